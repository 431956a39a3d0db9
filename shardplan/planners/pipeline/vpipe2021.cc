// vPipe: A Virtualized Acceleration System for Achieving Efficient and Scalable Pipeline Parallel
// DNN Training (Zhao et al., TPDS 2021). Its planner is not published; this is its description.
//
// The model is a chain of layers (the graph in topological order), stage s of p holds p - s
// microbatches. Two plans are made in turn until neither changes: in each stage, what becomes of
// the activations of each layer (keep, swap, recompute) so that they fit at the least extra time
// (choose_retention, exact); and between stages, single layers move over a boundary of the slowest
// stage to its neighbour, in the style of Kernighan and Lin: the best of a row of moves counts,
// also when the first of them makes things worse.
//
// Costs: recomputing takes the forward time again and holds what enters the layer; swapping takes
// what the transfer out and in needs beyond the layer's own time, and holds one microbatch.
// Where nothing fits, the excess is what is made smaller first.
// Deviations: bytes and times are the profile's, not measured on the run; no live migration.

#include "shardplan/planners/pipeline/vpipe2021.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "shardplan/planners/pipeline/even_cut.h"
#include "shardplan/problem/pipeline_objectives.h"
#include "shardplan/solvers/budget.h"

namespace shardplan::planners {
namespace {

constexpr std::size_t kMostTradeOffs = 2'000;  // of a front; beyond, neighbours are merged

using problem::Retention;

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

/// First layers of the stages, rising from 0.
using Begins = std::vector<int>;

/// How a stage does: bytes beyond the limit, then time.
using Cost = std::pair<double, double>;

class Vpipe {
 public:
  Vpipe(const LayerRequest& request, double host_bandwidth)
      : request_(request),
        options_(limits_of(request)),
        budget_(options_),
        order_(problem::topological_order(request.graph)) {
    const problem::LayerGraph& graph = request.graph;
    std::vector<double> enters(graph.layers.size(), 0);
    for (const problem::LayerEdge& edge : graph.edges) {
      enters[at(edge.target)] += edge.bytes;
    }
    for (const int v : order_) {
      const problem::LayerChoice& choice = graph.layers[at(v)].choices.front();
      Layer& layer = layers_.emplace_back();
      layer.time = choice.time;
      layer.forward = choice.forward();
      layer.constant = choice.constant_bytes;
      layer.kept = choice.in_flight_bytes;
      layer.entering = std::min(enters[at(v)], choice.in_flight_bytes);
      const double moved =
          2 * choice.in_flight_bytes / host_bandwidth * graph.units_per_transfer_second;
      layer.exposed = std::max(0.0, moved - choice.time);
    }
  }

  LayerPlanResult run() {
    Begins begins = balanced();
    while (!budget_.exhausted() && pass(begins)) {
    }
    LayerPlanResult result;
    result.limit = search_limit(budget_.limit());
    const Cost cost = slowest(begins).second;
    if (cost.first > 0) {
      result.status = SearchStatus::kNoPlanFound;
      result.explanation = fmt::format(
          "no stages fit {:.6g} bytes a device, with everything swapped or "
          "recomputed; the closest are {:.6g} bytes beyond",
          request_.machines.memory_bytes,
          cost.first);
      return result;
    }
    result.status = SearchStatus::kFeasible;
    result.objective = cost.second;
    result.best.schedule = "1f1b";
    for (int s = 0; s < stages(); ++s) {
      append(result.best, begins, s);
    }
    return result;
  }

 private:
  struct Layer {
    double time = 0;
    double forward = 0;
    double constant = 0;
    double kept = 0;      // bytes of one microbatch
    double entering = 0;  // likewise, when recomputed
    double exposed = 0;   // time, when swapped
  };

  [[nodiscard]] int stages() const { return request_.machines.devices; }
  [[nodiscard]] int end_of(const Begins& begins, int stage) const {
    return stage + 1 < stages() ? begins[at(stage + 1)] : static_cast<int>(layers_.size());
  }

  [[nodiscard]] std::vector<std::vector<RetentionChoice>> choices(int from,
                                                                  int to,
                                                                  int held) const {
    std::vector<std::vector<RetentionChoice>> all;
    for (int i = from; i < to; ++i) {
      const Layer& layer = layers_[at(i)];
      all.push_back({{Retention::kKeep, held * layer.kept, 0},
                     {Retention::kRecompute, held * layer.entering, layer.forward},
                     {Retention::kSwap, layer.kept, layer.exposed}});
    }
    return all;
  }

  [[nodiscard]] double room(int from, int to) const {
    double bytes = request_.machines.memory_bytes > 0 ? request_.machines.memory_bytes
                                                      : std::numeric_limits<double>::infinity();
    for (int i = from; i < to; ++i) {
      bytes -= layers_[at(i)].constant;
    }
    return bytes;
  }

  Cost cost(const Begins& begins, int stage) {
    const int from = begins[at(stage)];
    const int to = end_of(begins, stage);
    const auto known = costs_.find({stage, from, to});
    if (known != costs_.end()) {
      return known->second;
    }
    const auto options = choices(from, to, stages() - stage);
    const std::vector<std::size_t> chosen = choose_retention(options, room(from, to));
    double time = 0;
    double least = 0;
    for (int i = from; i < to; ++i) {
      const std::vector<RetentionChoice>& layer = options[at(i - from)];
      time += layers_[at(i)].time + (chosen.empty() ? 0 : layer[chosen[at(i - from)]].time);
      least += std::min({layer[0].bytes, layer[1].bytes, layer[2].bytes});
    }
    const Cost result = {chosen.empty() ? least - room(from, to) : 0, time};
    costs_[{stage, from, to}] = result;
    return result;
  }

  std::pair<int, Cost> slowest(const Begins& begins) {
    std::pair<int, Cost> worst = {0, {-1, -1}};
    for (int s = 0; s < stages(); ++s) {
      const Cost one = cost(begins, s);
      worst = one > worst.second ? std::pair(s, one) : worst;
    }
    return worst;
  }

  /// The partition with the least largest stage when everything is kept, exactly.
  [[nodiscard]] Begins balanced() const {
    std::vector<double> sums = {0};
    for (const Layer& layer : layers_) {
      sums.push_back(sums.back() + layer.time);
    }
    Begins begins;
    for (const std::size_t begin : even_cut(sums, at(stages()))) {
      begins.push_back(static_cast<int>(begin));
    }
    return begins;
  }

  /// A row of moves, each the better of the two that the slowest stage has, also when it is worse
  /// than before; whether the best partition on the way is better than the first.
  bool pass(Begins& begins) {
    Begins current = begins;
    Cost best = slowest(begins).second;
    bool better = false;
    std::vector<Begins> seen = {begins};
    for (std::size_t step = 0; step < 2 * layers_.size() && !budget_.exhausted(); ++step) {
      const int stage = slowest(current).first;
      Begins next;
      Cost next_cost = {std::numeric_limits<double>::infinity(), 0};
      for (const bool first : {true, false}) {
        const int boundary = first ? stage : stage + 1;
        if (boundary == 0 || boundary == stages() ||
            end_of(current, stage) - current[at(stage)] < 2) {
          continue;
        }
        Begins moved = current;
        moved[at(boundary)] += first ? 1 : -1;
        const Cost moved_cost = slowest(moved).second;
        if (moved_cost < next_cost && std::find(seen.begin(), seen.end(), moved) == seen.end()) {
          next = std::move(moved);
          next_cost = moved_cost;
        }
      }
      if (next.empty()) {
        break;
      }
      current = next;
      seen.push_back(std::move(next));
      if (next_cost < best) {
        best = next_cost;
        begins = current;
        better = true;
      }
    }
    return better;
  }

  void append(problem::LayerPlan& plan, const Begins& begins, int s) const {
    problem::LayerStage& stage = plan.stages.emplace_back();
    const int from = begins[at(s)];
    const int to = end_of(begins, s);
    const auto options = choices(from, to, stages() - s);
    const std::vector<std::size_t> chosen = choose_retention(options, room(from, to));
    for (int i = from; i < to; ++i) {
      const RetentionChoice& choice = options[at(i - from)][chosen[at(i - from)]];
      stage.layers.push_back(order_[at(i)]);
      stage.retention.push_back(choice.what);
      stage.time += layers_[at(i)].time + choice.time;
      stage.memory_bytes += layers_[at(i)].constant + choice.bytes;
    }
  }

  const LayerRequest& request_;
  solvers::SolveOptions options_;
  solvers::Budget budget_;
  std::vector<int> order_;
  std::vector<Layer> layers_{};
  std::map<std::tuple<int, int, int>, Cost> costs_{};  // of stages that were looked at
};

Result<LayerPlanResult> solve(const LayerRequest& request) {
  const double host_bandwidth = std::stod(request.options.at("host_bandwidth"));
  if (host_bandwidth <= 0) {
    return invalid_input("the bandwidth to the host must be positive", "--option");
  }
  SHARDPLAN_RETURN_IF_ERROR(require_both_passes(request.graph, "vpipe"));
  SHARDPLAN_RETURN_IF_ERROR(require_layer_for_each_device(request, "vpipe"));
  return Vpipe(request, host_bandwidth).run();
}

}  // namespace

std::vector<std::size_t> choose_retention(const std::vector<std::vector<RetentionChoice>>& layers,
                                          double limit) {
  struct Point {
    double bytes = 0;
    double time = 0;
    std::size_t before = 0;  // in the front of one layer less
    std::size_t choice = 0;
  };
  // Bytes that the layers from here on hold at least.
  std::vector<double> least(layers.size() + 1, 0);
  for (std::size_t l = layers.size(); l-- > 0;) {
    double fewest = std::numeric_limits<double>::infinity();
    for (const RetentionChoice& choice : layers[l]) {
      fewest = std::min(fewest, choice.bytes);
    }
    least[l] = least[l + 1] + fewest;
  }
  std::vector<std::vector<Point>> fronts = {{{}}};
  for (std::size_t l = 0; l < layers.size(); ++l) {
    std::vector<Point> all;
    for (std::size_t p = 0; p < fronts.back().size(); ++p) {
      const Point& point = fronts.back()[p];
      for (std::size_t c = 0; c < layers[l].size(); ++c) {
        const double bytes = point.bytes + layers[l][c].bytes;
        if (bytes + least[l + 1] <= limit) {
          all.push_back({bytes, point.time + layers[l][c].time, p, c});
        }
      }
    }
    std::sort(all.begin(), all.end(), [](const Point& a, const Point& b) {
      return std::pair(a.bytes, a.time) < std::pair(b.bytes, b.time);
    });
    std::vector<Point> front;
    for (const Point& point : all) {
      if (front.empty() || point.time < front.back().time) {
        front.push_back(point);
      }
    }
    const std::size_t stride = front.size() / kMostTradeOffs + 1;
    for (std::size_t p = 0; stride > 1 && p * stride < front.size(); ++p) {
      front[p] = front[p * stride];
    }
    front.resize((front.size() + stride - 1) / stride);
    fronts.push_back(std::move(front));
  }
  if (fronts.back().empty()) {
    return {};
  }
  std::vector<std::size_t> chosen(layers.size());
  std::size_t p = fronts.back().size() - 1;  // most bytes, least time
  for (std::size_t l = layers.size(); l-- > 0;) {
    chosen[l] = fronts[l + 1][p].choice;
    p = fronts[l + 1][p].before;
  }
  return chosen;
}

LayerPlannerInfo vpipe_planner() {
  return {"vpipe",
          "Zhao et al., vPipe: A Virtualized Acceleration System for Achieving Efficient and "
          "Scalable Pipeline Parallel DNN Training",
          2021,
          "stages of a chain with swapped and recomputed activations, balanced by moving layers",
          "transfers between stages, replicas, tensor parallelism; branches (the graph becomes a "
          "chain)",
          "in the slowest stage",
          {{"host_bandwidth", "12e9", {}, "bytes a second between a device and its host"}},
          &solve,
          &problem::vpipe_objective};
}

}  // namespace shardplan::planners
