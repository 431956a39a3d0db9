#include "shardplan/planners/pipeline/piper2021_stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <set>

namespace shardplan::planners::piper {
namespace {

using problem::Layer;
using problem::LayerChoice;
using problem::LayerGraph;

constexpr unsigned kWordBits = 64;
constexpr double kRounding = 1e-12;

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

double extra_of(const std::vector<double>& extra, std::size_t i) {
  return extra.empty() ? 0 : extra[i];
}

/// What the paper's cost of a stage keeps apart from the inner choice must not depend on it.
Status check_pair(const Layer& layer, const LayerChoice& a, const LayerChoice& b) {
  if (a.parameter_bytes == b.parameter_bytes && a.extra_in_bytes == b.extra_in_bytes &&
      a.extra_out_bytes == b.extra_out_bytes) {
    return {};
  }
  return unsupported(fmt::format("piper: the choices '{}' and '{}' of degree {} have different "
                                 "weights or extra bytes; they may differ in time and memory",
                                 a.name,
                                 b.name,
                                 a.degree),
                     "layer " + problem::describe(layer));
}

}  // namespace

Result<StageCosts> StageCosts::create(const LayerRequest& request,
                                      const std::vector<int>& order,
                                      Inner inner) {
  StageCosts costs;
  const problem::LayerMachines& machines = request.machines;
  costs.inner_ = inner;
  costs.memory_ =
      machines.memory_bytes > 0 ? machines.memory_bytes : std::numeric_limits<double>::infinity();
  costs.per_byte_ = request.graph.units_per_transfer_second / machines.bandwidth;
  costs.microbatches_ = static_cast<double>(machines.microbatches);
  std::set<int> degrees;
  for (const Layer& layer : request.graph.layers) {
    for (const LayerChoice& choice : layer.choices) {
      degrees.insert(choice.degree);
    }
  }
  for (const int degree : degrees) {
    if (degree <= machines.devices) {
      costs.by_degree_.emplace_back().degree = degree;
      SHARDPLAN_RETURN_IF_ERROR(costs.read_degree(request, order, costs.by_degree_.back()));
    }
  }
  if (costs.by_degree_.empty()) {
    return unsupported(fmt::format("piper: no layer runs on {} devices", machines.devices),
                       request.graph.name);
  }
  costs.rankings_.resize(costs.by_degree_.size());
  costs.work_.assign(order.size(), std::numeric_limits<double>::infinity());
  for (const Degree& degree : costs.by_degree_) {
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (degree.nodes[i].offered) {
        costs.work_[i] = std::min(costs.work_[i], degree.degree * degree.nodes[i].time);
      }
    }
  }
  costs.bits_.assign(order.size() / kWordBits + 1, 0);
  return costs;
}

Status StageCosts::read_degree(const LayerRequest& request,
                               const std::vector<int>& order,
                               Degree& degree) const {
  const LayerGraph& graph = request.graph;
  const problem::LayerAdjacency adjacency = problem::adjacency(graph);
  std::vector<int> place(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    place[at(order[i])] = static_cast<int>(i);
  }
  degree.nodes.resize(order.size());
  degree.out.resize(order.size());
  std::vector<const LayerChoice*> plain(graph.layers.size(), nullptr);  // for edges and weights
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Layer& layer = graph.layers[at(order[i])];
    Node& node = degree.nodes[i];
    std::vector<int> own;
    for (std::size_t c = 0; c < layer.choices.size(); ++c) {
      if (layer.choices[c].degree == degree.degree) {
        own.push_back(static_cast<int>(c));
      }
    }
    if (own.empty()) {
      continue;
    }
    if (own.size() > 2) {
      return unsupported(fmt::format("piper takes at most 2 choices of one degree; there are {} of "
                                     "degree {}",
                                     own.size(),
                                     degree.degree),
                         "layer " + problem::describe(layer));
    }
    SHARDPLAN_RETURN_IF_ERROR(
        check_pair(layer, layer.choices[at(own.front())], layer.choices[at(own.back())]));
    const bool swapped = layer.choices[at(own.back())].time < layer.choices[at(own.front())].time;
    node.offered = true;
    node.fast = swapped ? own.back() : own.front();
    node.small = swapped ? own.front() : own.back();
    const LayerChoice& fast = layer.choices[at(node.fast)];
    const LayerChoice& small = layer.choices[at(node.small)];
    node.time = fast.time;
    node.extra_time = small.time - fast.time;
    node.parameter_bytes = fast.parameter_bytes;
    node.in_flight = fast.in_flight_bytes;
    node.constant = fast.constant_bytes;
    node.small_in_flight = small.in_flight_bytes;
    node.small_constant = small.constant_bytes;
    node.least_memory =
        std::min(node.in_flight + node.constant, node.small_in_flight + node.small_constant);
    plain[at(order[i])] = &fast;
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::vector<int>& in = adjacency.in[at(order[i])];
    for (std::size_t k = 0; k < in.size() && degree.nodes[i].offered; ++k) {
      degree.nodes[i].in_bytes +=
          graph.edges[at(in[k])].bytes + extra_of(plain[at(order[i])]->extra_in_bytes, k);
    }
    const std::vector<int>& out = adjacency.out[at(order[i])];
    for (std::size_t k = 0; k < out.size() && degree.nodes[i].offered; ++k) {
      const problem::LayerEdge& edge = graph.edges[at(out[k])];
      const std::vector<int>& into = adjacency.in[at(edge.target)];
      const auto entry =
          static_cast<std::size_t>(std::find(into.begin(), into.end(), out[k]) - into.begin());
      const LayerChoice* target = plain[at(edge.target)];
      degree.out[i].push_back(
          {place[at(edge.target)],
           edge.bytes + extra_of(plain[at(order[i])]->extra_out_bytes, k),
           edge.bytes + (target == nullptr ? 0 : extra_of(target->extra_in_bytes, entry))});
    }
  }
  return {};
}

bool StageCosts::add(std::size_t t,
                     int node,
                     const std::vector<std::uint8_t>& in_stage,
                     StageSums& sums) const {
  const Node& own = by_degree_[t].nodes[at(node)];
  if (!own.offered) {
    return false;
  }
  sums.time += own.time;
  sums.parameter_bytes += own.parameter_bytes;
  sums.in_flight += own.in_flight;
  sums.constant += own.constant;
  sums.small_in_flight += own.small_in_flight;
  sums.small_constant += own.small_constant;
  sums.small_extra_time += own.extra_time;
  sums.least_memory += own.least_memory;
  sums.transfer_bytes += own.in_bytes;
  for (const OutEdge& edge : by_degree_[t].out[at(node)]) {
    sums.transfer_bytes += in_stage[at(edge.target)] != 0 ? -edge.joined : edge.cut;
  }
  return true;
}

const StageCosts::Ranking& StageCosts::ranking(std::size_t t, std::int64_t y) {
  std::vector<std::optional<Ranking>>& known = rankings_[t];
  const auto index = static_cast<std::size_t>(y);
  if (known.size() <= index) {
    known.resize(index + 1);
  }
  if (known[index]) {
    return *known[index];
  }
  Ranking& made = known[index].emplace();
  const std::vector<Node>& nodes = by_degree_[t].nodes;
  std::vector<Saving> savings(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    savings[i] = {node.extra_time,
                  (node.in_flight - node.small_in_flight) * static_cast<double>(y) +
                      (node.constant - node.small_constant)};
    if (node.offered && node.fast != node.small && savings[i].weight > 0) {
      made.node_of.push_back(static_cast<int>(i));
    }
  }
  std::stable_sort(made.node_of.begin(), made.node_of.end(), [&](int a, int b) {
    return savings[at(a)].cost / savings[at(a)].weight <
           savings[at(b)].cost / savings[at(b)].weight;
  });
  made.rank.assign(nodes.size(), -1);
  for (std::size_t r = 0; r < made.node_of.size(); ++r) {
    made.rank[at(made.node_of[r])] = static_cast<int>(r);
    made.items.push_back(savings[at(made.node_of[r])]);
  }
  return made;
}

void StageCosts::gather(const Ranking& ranking, const std::vector<int>& nodes) {
  std::fill(bits_.begin(), bits_.end(), 0);
  for (const int node : nodes) {
    const int rank = ranking.rank[at(node)];
    if (rank >= 0) {
      bits_[at(rank) / kWordBits] |= std::uint64_t{1} << (at(rank) % kWordBits);
    }
  }
  stage_items_.clear();
  stage_ranks_.clear();
  for (std::size_t w = 0; w < bits_.size(); ++w) {
    for (std::uint64_t word = bits_[w]; word != 0; word &= word - 1) {
      const std::size_t rank = w * kWordBits + static_cast<std::size_t>(std::countr_zero(word));
      stage_items_.push_back(ranking.items[rank]);
      stage_ranks_.push_back(static_cast<int>(rank));
    }
  }
}

bool StageCosts::fits(std::size_t t,
                      const std::vector<int>& nodes,
                      const StageSums& sums,
                      std::int64_t y,
                      double slack) {
  const auto in_flight = static_cast<double>(y);
  double need = sums.in_flight * in_flight + sums.constant - memory_;
  if (need <= 0) {
    return true;
  }
  if (sums.small_extra_time <= slack &&
      sums.small_in_flight * in_flight + sums.small_constant <= memory_) {
    return true;
  }
  gather(ranking(t, y), nodes);
  double cost = 0;
  for (const Saving& item : stage_items_) {
    if (item.weight >= need) {
      if (cost + item.cost <= slack) {
        return true;
      }
      if (inner_ == Inner::kGreedy || cost + item.cost * need / item.weight > slack) {
        return false;
      }
      return knapsack_.solve(
          stage_items_, sums.in_flight * in_flight + sums.constant - memory_, slack, true);
    }
    need -= item.weight;
    cost += item.cost;
    if (cost > slack) {
      return false;
    }
  }
  return false;
}

std::optional<StageCosts::Choice> StageCosts::choose(std::size_t t,
                                                     const std::vector<int>& nodes,
                                                     std::int64_t y) {
  Choice choice;
  choice.small.assign(nodes.size(), false);
  for (const int node : nodes) {
    const Node& own = by_degree_[t].nodes[at(node)];
    choice.memory += own.in_flight * static_cast<double>(y) + own.constant;
  }
  // A hair more than fits() allows: the sums are added in another order here.
  const double need = choice.memory - memory_ * (1 + kRounding);
  if (need <= 0) {
    return choice;
  }
  const Ranking& order = ranking(t, y);
  gather(order, nodes);
  std::vector<bool> taken(stage_items_.size(), false);
  if (inner_ == Inner::kExact) {
    if (!knapsack_.solve(stage_items_, need, std::numeric_limits<double>::infinity(), false)) {
      return std::nullopt;
    }
    taken = knapsack_.chosen();
  }
  double missing = need;
  for (std::size_t i = 0; i < stage_items_.size(); ++i) {
    taken[i] = inner_ == Inner::kExact ? taken[i] : missing > 0;
    if (taken[i]) {
      missing -= stage_items_[i].weight;
      choice.memory -= stage_items_[i].weight;
      choice.extra_time += stage_items_[i].cost;
      const int node = order.node_of[at(stage_ranks_[i])];
      choice.small[static_cast<std::size_t>(std::find(nodes.begin(), nodes.end(), node) -
                                            nodes.begin())] = true;
    }
  }
  if (missing > 0 && inner_ == Inner::kGreedy) {
    return std::nullopt;
  }
  return choice;
}

int StageCosts::choice(std::size_t t, int node, bool small) const {
  const Node& own = by_degree_[t].nodes[at(node)];
  return small ? own.small : own.fast;
}

}  // namespace shardplan::planners::piper
