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
  costs.sync_per_byte_ = 4 * costs.per_byte_ / static_cast<double>(machines.microbatches);
  std::set<int> degrees;
  for (const Layer& layer : request.graph.layers) {
    for (const LayerChoice& choice : layer.choices) {
      degrees.insert(choice.degree);
    }
  }
  for (const int degree : degrees) {
    if (degree <= machines.devices) {
      costs.by_degree_.emplace_back().degree = degree;
      SHARDPLAN_RETURN_IF_ERROR(read_degree(request, order, costs.by_degree_.back()));
    }
  }
  if (costs.by_degree_.empty()) {
    return unsupported(fmt::format("piper: no layer runs on {} devices", machines.devices),
                       request.graph.name);
  }
  costs.rankings_.resize(costs.by_degree_.size());
  costs.orders_.resize(costs.by_degree_.size());
  costs.work_.assign(order.size(), std::numeric_limits<double>::infinity());
  costs.least_time_ = costs.work_;
  for (const Degree& degree : costs.by_degree_) {
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (degree.nodes[i].offered) {
        costs.work_[i] = std::min(costs.work_[i], degree.degree * degree.nodes[i].time);
        costs.least_time_[i] = std::min(costs.least_time_[i], degree.nodes[i].time);
      }
    }
  }
  return costs;
}

Status StageCosts::read_degree(const LayerRequest& request,
                               const std::vector<int>& order,
                               Degree& degree) {
  degree.nodes.resize(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    SHARDPLAN_RETURN_IF_ERROR(
        read_node(request.graph.layers[at(order[i])], degree.degree, degree.nodes[i]));
  }
  read_edges(request.graph, order, degree);
  return {};
}

Status StageCosts::read_node(const Layer& layer, int degree, Node& node) {
  std::vector<int> own;
  for (std::size_t c = 0; c < layer.choices.size(); ++c) {
    if (layer.choices[c].degree == degree) {
      own.push_back(static_cast<int>(c));
    }
  }
  if (own.empty()) {
    return {};
  }
  if (own.size() > 2) {
    return unsupported(
        fmt::format("piper takes at most 2 choices of one degree; there are {} of degree {}",
                    own.size(),
                    degree),
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
  return {};
}

void StageCosts::read_edges(const LayerGraph& graph,
                            const std::vector<int>& order,
                            Degree& degree) {
  const problem::LayerAdjacency adjacency = problem::adjacency(graph);
  std::vector<std::size_t> place(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    place[at(order[i])] = i;
  }
  degree.out.resize(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    Node& node = degree.nodes[i];
    if (!node.offered) {
      continue;
    }
    const LayerChoice& own = graph.layers[at(order[i])].choices[at(node.fast)];
    const std::vector<int>& in = adjacency.in[at(order[i])];
    for (std::size_t k = 0; k < in.size(); ++k) {
      // To a source whose stage lacks the degree, the edge is always cut.
      const problem::LayerEdge& edge = graph.edges[at(in[k])];
      const double bytes = edge.bytes + extra_of(own.extra_in_bytes, k);
      node.in_bytes += bytes;
      const std::vector<int>& out = adjacency.out[at(edge.source)];
      const auto entry =
          static_cast<std::size_t>(std::find(out.begin(), out.end(), in[k]) - out.begin());
      const std::size_t source = place[at(edge.source)];
      if (degree.nodes[source].offered) {
        const LayerChoice& theirs =
            graph.layers[at(edge.source)].choices[at(degree.nodes[source].fast)];
        degree.out[source].push_back(
            {static_cast<int>(i), edge.bytes + extra_of(theirs.extra_out_bytes, entry), bytes});
      }
    }
    // Edges to layers that do not offer the degree are always cut.
    const std::vector<int>& out = adjacency.out[at(order[i])];
    for (std::size_t k = 0; k < out.size(); ++k) {
      const problem::LayerEdge& edge = graph.edges[at(out[k])];
      const std::size_t target = place[at(edge.target)];
      if (!degree.nodes[target].offered) {
        degree.out[i].push_back(
            {static_cast<int>(target), edge.bytes + extra_of(own.extra_out_bytes, k), 0});
      }
    }
  }
}

const StageCosts::Ranking& StageCosts::ranking(std::size_t t, std::int64_t y) {
  std::vector<std::optional<Ranking>>& known = rankings_[t];
  const auto index = static_cast<std::size_t>(y);
  if (known.size() <= index) {
    known.resize(index + 1);
  }
  if (const std::optional<Ranking>& there = known[index]; there) {
    return *there;
  }
  const std::vector<Node>& nodes = by_degree_[t].nodes;
  std::vector<Saving> savings(nodes.size());
  std::vector<int> node_of;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    savings[i] = {node.extra_time,
                  (node.in_flight - node.small_in_flight) * static_cast<double>(y) +
                      (node.constant - node.small_constant)};
    if (node.offered && node.fast != node.small && savings[i].weight > 0) {
      node_of.push_back(static_cast<int>(i));
    }
  }
  std::stable_sort(node_of.begin(), node_of.end(), [&](int a, int b) {
    return savings[at(a)].cost / savings[at(a)].weight <
           savings[at(b)].cost / savings[at(b)].weight;
  });
  Ranking& made = known[index].emplace();
  for (const int node : node_of) {
    made.items.push_back(savings[at(node)]);
  }
  made.order = find_order(t, std::move(node_of));
  return made;
}

std::size_t StageCosts::find_order(std::size_t t, std::vector<int> node_of) {
  std::vector<Order>& orders = orders_[t];
  for (std::size_t o = 0; o < orders.size(); ++o) {
    if (orders[o].node_of == node_of) {
      return o;
    }
  }
  Order& order = orders.emplace_back();
  order.rank.assign(by_degree_[t].nodes.size(), -1);
  for (std::size_t r = 0; r < node_of.size(); ++r) {
    order.rank[at(node_of[r])] = static_cast<int>(r);
  }
  order.node_of = std::move(node_of);
  order.bits.assign(order.node_of.size() / kWordBits + 1, 0);
  return orders.size() - 1;
}

const StageCosts::Bits& StageCosts::stage_bits(Order& order) const {
  for (; order.marked < stage_.size(); ++order.marked) {
    flip(order, stage_[order.marked]);
  }
  return order.bits;
}

void StageCosts::mark(const Order& order, const std::vector<int>& nodes, Bits& bits) {
  bits.assign(order.node_of.size() / kWordBits + 1, 0);
  for (const int node : nodes) {
    const int rank = order.rank[at(node)];
    if (rank >= 0) {
      bits[at(rank) / kWordBits] |= std::uint64_t{1} << (at(rank) % kWordBits);
    }
  }
}

void StageCosts::gather(const Ranking& ranking, const Bits& bits) {
  stage_items_.clear();
  stage_ranks_.clear();
  for (std::size_t w = 0; w < bits.size(); ++w) {
    for (std::uint64_t word = bits[w]; word != 0; word &= word - 1) {
      const std::size_t rank = w * kWordBits + static_cast<std::size_t>(std::countr_zero(word));
      stage_items_.push_back(ranking.items[rank]);
      stage_ranks_.push_back(static_cast<int>(rank));
    }
  }
}

StageCosts::Fit StageCosts::fits(
    std::size_t t, const StageSums& sums, std::int64_t y, double slack, double most_slack) {
  const auto in_flight = static_cast<double>(y);
  const double need = sums.in_flight * in_flight + sums.constant - memory_;
  if (need <= 0) {
    return slack >= 0 ? Fit::kYes : Fit::kNo;
  }
  const bool all_small_fit = sums.small_in_flight * in_flight + sums.small_constant <= memory_;
  if (all_small_fit && sums.small_extra_time <= slack) {
    return Fit::kYes;
  }
  const Ranking& ranked = ranking(t, y);
  const Bits& bits = stage_bits(orders_[t][ranked.order]);
  double missing = need;
  double cost = 0;
  for (std::size_t w = 0; w < bits.size(); ++w) {
    for (std::uint64_t word = bits[w]; word != 0; word &= word - 1) {
      const Saving& item =
          ranked.items[w * kWordBits + static_cast<std::size_t>(std::countr_zero(word))];
      if (item.weight >= missing) {
        const double relaxed = cost + item.cost * missing / item.weight;
        return relaxed > most_slack ? Fit::kHopeless
               : last_swap_fits(ranked, bits, need, slack, cost + item.cost, relaxed) ? Fit::kYes
                                                                                      : Fit::kNo;
      }
      missing -= item.weight;
      cost += item.cost;
      if (cost > most_slack) {
        return Fit::kHopeless;
      }
    }
  }
  return Fit::kHopeless;
}

bool StageCosts::last_swap_fits(const Ranking& ranked,
                                const Bits& bits,
                                double need,
                                double slack,
                                double greedy,
                                double relaxed) {
  if (greedy <= slack) {
    return true;
  }
  if (inner_ == Inner::kGreedy || relaxed > slack) {
    return false;
  }
  gather(ranked, bits);
  return knapsack_.solve(stage_items_, need, slack, true);
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
  const Ranking& ranked = ranking(t, y);
  const Order& order = orders_[t][ranked.order];
  mark(order, nodes, bits_);
  gather(ranked, bits_);
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
