#include "shardplan/planners/pipeline/idle_layers.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace shardplan::planners {
namespace {

using problem::Layer;
using problem::LayerChoice;
using problem::LayerEdge;
using problem::LayerGraph;

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

/// Whether one device could hold the whole graph with every microbatch in flight.
bool memory_never_binds(const LayerRequest& request) {
  if (request.machines.memory_bytes <= 0) {
    return true;
  }
  const auto in_flight = static_cast<double>(
      std::min<std::int64_t>(request.machines.microbatches, request.machines.devices));
  double bytes = 0;
  for (const Layer& layer : request.graph.layers) {
    double most = 0;
    for (const LayerChoice& choice : layer.choices) {
      most = std::max(most, choice.in_flight_bytes * in_flight + choice.constant_bytes);
    }
    bytes += most;
  }
  return bytes <= request.machines.memory_bytes;
}

bool is_idle(const Layer& layer, bool memory_matters) {
  return std::all_of(layer.choices.begin(), layer.choices.end(), [&](const LayerChoice& choice) {
    return choice.time == 0 && choice.parameter_bytes == 0 &&
           (!memory_matters || (choice.in_flight_bytes == 0 && choice.constant_bytes == 0));
  });
}

/// Whether `layer` can run by every degree of `other`.
bool offers_degrees_of(const Layer& layer, const Layer& other) {
  return std::all_of(other.choices.begin(), other.choices.end(), [&](const LayerChoice& theirs) {
    return std::any_of(layer.choices.begin(), layer.choices.end(), [&](const LayerChoice& own) {
      return own.degree == theirs.degree;
    });
  });
}

std::vector<double> without(const std::vector<double>& extra,
                            const std::vector<int>& edges,
                            const std::vector<std::uint8_t>& edge_gone) {
  std::vector<double> rest;
  for (std::size_t i = 0; i < extra.size(); ++i) {
    if (edge_gone[at(edges[i])] == 0) {
      rest.push_back(extra[i]);
    }
  }
  return rest;
}

/// Takes idle layers out one by one.
class Fold {
 public:
  explicit Fold(const LayerRequest& request)
      : graph_(request.graph),
        adjacent_(problem::adjacency(request.graph)),
        memory_matters_(!memory_never_binds(request)),
        gone_(request.graph.layers.size(), 0),
        edge_gone_(request.graph.edges.size(), 0) {}

  WithoutIdleLayers run() {
    for (std::size_t v = 0; v < graph_.layers.size(); ++v) {
      fold(static_cast<int>(v));
    }
    std::vector<int> place(graph_.layers.size(), -1);
    out_.graph.name = graph_.name;
    out_.graph.time_unit = graph_.time_unit;
    out_.graph.units_per_transfer_second = graph_.units_per_transfer_second;
    for (std::size_t v = 0; v < graph_.layers.size(); ++v) {
      if (gone_[v] == 0) {
        place[v] = static_cast<int>(out_.kept.size());
        out_.kept.push_back(static_cast<int>(v));
        Layer& layer = out_.graph.layers.emplace_back(graph_.layers[v]);
        for (LayerChoice& choice : layer.choices) {
          choice.extra_in_bytes = without(choice.extra_in_bytes, adjacent_.in[v], edge_gone_);
          choice.extra_out_bytes = without(choice.extra_out_bytes, adjacent_.out[v], edge_gone_);
        }
      }
    }
    for (std::size_t e = 0; e < graph_.edges.size(); ++e) {
      if (edge_gone_[e] == 0) {
        LayerEdge& edge = out_.graph.edges.emplace_back(graph_.edges[e]);
        edge.source = place[at(edge.source)];
        edge.target = place[at(edge.target)];
      }
    }
    return std::move(out_);
  }

 private:
  /// The edge of the layer that is left, if it is the only one; else -1.
  [[nodiscard]] int only_edge(int v) const {
    int only = -1;
    for (const std::vector<int>* edges : {&adjacent_.in[at(v)], &adjacent_.out[at(v)]}) {
      for (const int e : *edges) {
        if (edge_gone_[at(e)] != 0) {
          continue;
        }
        if (only >= 0) {
          return -1;
        }
        only = e;
      }
    }
    return only;
  }

  /// Takes the layer out if it is idle, and then its neighbour if that has become so.
  void fold(int v) {
    while (gone_[at(v)] == 0 && is_idle(graph_.layers[at(v)], memory_matters_)) {
      const int e = only_edge(v);
      if (e < 0) {
        return;
      }
      const LayerEdge& edge = graph_.edges[at(e)];
      const int neighbour = edge.source == v ? edge.target : edge.source;
      if (!offers_degrees_of(graph_.layers[at(v)], graph_.layers[at(neighbour)])) {
        return;
      }
      gone_[at(v)] = 1;
      edge_gone_[at(e)] = 1;
      out_.followers.push_back({v, neighbour});
      v = neighbour;
    }
  }

  const LayerGraph& graph_;
  problem::LayerAdjacency adjacent_;
  bool memory_matters_;
  std::vector<std::uint8_t> gone_;
  std::vector<std::uint8_t> edge_gone_;
  WithoutIdleLayers out_{};
};

int first_choice_of(const Layer& layer, int degree) {
  const auto found =
      std::find_if(layer.choices.begin(), layer.choices.end(), [&](const LayerChoice& choice) {
        return choice.degree == degree;
      });
  return static_cast<int>(found - layer.choices.begin());
}

}  // namespace

WithoutIdleLayers without_idle_layers(const LayerRequest& request) {
  return Fold(request).run();
}

void restore_idle_layers(const LayerGraph& graph,
                         const WithoutIdleLayers& smaller,
                         problem::LayerPlan& plan) {
  std::vector<int> stage_of(graph.layers.size(), -1);
  std::vector<int> choice_of(graph.layers.size(), 0);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    problem::LayerStage& stage = plan.stages[s];
    for (std::size_t i = 0; i < stage.layers.size(); ++i) {
      const int v = smaller.kept[at(stage.layers[i])];
      stage_of[at(v)] = static_cast<int>(s);
      choice_of[at(v)] = stage.choices[i];
    }
    stage.layers.clear();
    stage.choices.clear();
  }
  for (std::size_t f = smaller.followers.size(); f-- > 0;) {  // leaders before their followers
    const WithoutIdleLayers::Follower& follower = smaller.followers[f];
    const int s = stage_of[at(follower.leader)];
    const Layer& layer = graph.layers[at(follower.layer)];
    const int choice = first_choice_of(layer, plan.stages[at(s)].degree);
    stage_of[at(follower.layer)] = s;
    choice_of[at(follower.layer)] = choice;
  }
  for (const int v : problem::topological_order(graph)) {
    problem::LayerStage& stage = plan.stages[at(stage_of[at(v)])];
    stage.layers.push_back(v);
    stage.choices.push_back(choice_of[at(v)]);
  }
  int replicas = 0;  // of this stage and all behind it
  for (std::size_t s = plan.stages.size(); s-- > 0;) {
    problem::LayerStage& stage = plan.stages[s];
    replicas += stage.replicas;
    const int in_flight = (replicas + stage.replicas - 1) / stage.replicas;
    stage.memory_bytes = 0;
    for (std::size_t i = 0; i < stage.layers.size(); ++i) {
      const LayerChoice& choice = graph.layers[at(stage.layers[i])].choices[at(stage.choices[i])];
      stage.memory_bytes += choice.in_flight_bytes * in_flight + choice.constant_bytes;
    }
  }
}

}  // namespace shardplan::planners
