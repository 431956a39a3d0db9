// Cheapest changes of layout. Nodes are layouts, edges the steps of steps.cc, weights the caller's
// prices. Read Search::expand (a node's edges are made and priced once, when some search first
// settles it) and Search::settle (Dijkstra's algorithm from one source, stopped at the target and
// resumed by the next question about the same source).
#include "shardplan/sharding/reshard.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "shardplan/sharding/steps.h"

namespace shardplan::sharding {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Whether `from` has every partial axis of `to`: partial values cannot be made from reduced ones.
bool keeps_partial(const ShardingSpec& from, const ShardingSpec& to) {
  for (int axis = 0; axis < kMaxMeshAxes; ++axis) {
    const bool same = from.is_partial(axis) && from.reduction(axis) == to.reduction(axis);
    if (to.is_partial(axis) && !same) {
      return false;
    }
  }
  return true;
}

const ReshardPath& impossible_path() {
  static const ReshardPath path{.price = kInfinity, .possible = false};
  return path;
}

}  // namespace

struct Resharder::Context {
  cluster::DeviceMesh mesh;
  StepPrice price;
};

class Resharder::Search {
 public:
  Search(const Context& context, ir::TensorType type) : context_(context), type_(std::move(type)) {}

  const ReshardPath& path(const ShardingSpec& from, const ShardingSpec& to) {
    if (!reachable(from, to)) {
      return impossible_path();
    }
    const int source = intern(from);
    const int target = intern(to);
    const std::uint64_t key = (static_cast<std::uint64_t>(source) << 32U) |
                              static_cast<std::uint64_t>(static_cast<std::uint32_t>(target));
    const auto known = paths_.find(key);
    return known != paths_.end() ? known->second
                                 : paths_.emplace(key, build(source, target)).first->second;
  }

  ReshardCost cost(const ShardingSpec& from, const ShardingSpec& to) {
    if (!reachable(from, to)) {
      return {kInfinity, 0, false};
    }
    const int target = intern(to);
    const Source& source = settle(intern(from), target);
    const Entry& end = source.entries[index(target)];
    return {end.price, temporary(source, target), end.price < kInfinity};
  }

 private:
  struct Edge {
    int target = -1;
    int ordinal = -1;  ///< number of the step in for_each_step
    double price = 0;
  };
  struct Node {
    ShardingSpec spec{};
    Bytes bytes = 0;
    bool expanded = false;
    std::vector<Edge> edges{};
  };
  /// Best way known from the source to one node.
  struct Entry {
    double price = kInfinity;
    int steps = 0;
    int parent = -1;
    int ordinal = -1;
    bool settled = false;
  };
  struct Frontier {
    double price = 0;
    int steps = 0;
    int node = -1;
  };
  struct Source {
    std::vector<Entry> entries{};  ///< by node; nodes found later are missing at the end
    std::vector<Frontier> heap{};
  };

  static std::size_t index(int node) { return static_cast<std::size_t>(node); }

  [[nodiscard]] bool reachable(const ShardingSpec& from, const ShardingSpec& to) const {
    return divides(from, type_.shape, context_.mesh) && divides(to, type_.shape, context_.mesh) &&
           keeps_partial(from, to);
  }

  int intern(const ShardingSpec& spec) {
    const auto [at, is_new] = ids_.try_emplace(spec, static_cast<int>(nodes_.size()));
    if (is_new) {
      nodes_.push_back({spec, local_bytes(spec, type_, context_.mesh), false, {}});
    }
    return at->second;
  }

  void expand(int node) {
    if (nodes_[index(node)].expanded) {
      return;
    }
    nodes_[index(node)].expanded = true;
    std::vector<Edge> edges;
    int ordinal = 0;
    const ShardingSpec spec = nodes_[index(node)].spec;
    for_each_step(spec, type_.shape, context_.mesh, [&](const ReshardStep& step) {
      const double price = context_.price(step, type_);
      SHARDPLAN_CHECK(price >= 0) << "price " << price << " of " << collective_name(step.kind);
      if (price < kInfinity) {
        edges.push_back({intern(step.to), ordinal, price});
      }
      ++ordinal;
    });
    nodes_[index(node)].edges = std::move(edges);
  }

  /// Heap order: the best last to come first. Equal prices by fewer steps, then by layout, so that
  /// the outcome does not depend on earlier questions.
  [[nodiscard]] bool worse(const Frontier& a, const Frontier& b) const {
    if (a.price != b.price) {
      return a.price > b.price;
    }
    if (a.steps != b.steps) {
      return a.steps > b.steps;
    }
    return nodes_[index(a.node)].spec > nodes_[index(b.node)].spec;
  }

  const Source& settle(int source_node, int target) {
    const auto order = [this](const Frontier& a, const Frontier& b) { return worse(a, b); };
    const auto [at, is_new] = sources_.try_emplace(source_node);
    Source& source = at->second;
    source.entries.resize(std::max(source.entries.size(), nodes_.size()));
    if (is_new) {
      source.entries[index(source_node)].price = 0;
      source.heap.push_back({0, 0, source_node});
    }
    while (!source.entries[index(target)].settled && !source.heap.empty()) {
      std::pop_heap(source.heap.begin(), source.heap.end(), order);
      const Frontier best = source.heap.back();
      source.heap.pop_back();
      if (source.entries[index(best.node)].settled) {
        continue;
      }
      source.entries[index(best.node)].settled = true;
      expand(best.node);
      source.entries.resize(nodes_.size());
      for (const Edge& edge : nodes_[index(best.node)].edges) {
        Entry& entry = source.entries[index(edge.target)];
        const double price = best.price + edge.price;
        const int steps = best.steps + 1;
        if (!entry.settled &&
            (price < entry.price || (price == entry.price && steps < entry.steps))) {
          entry = {price, steps, best.node, edge.ordinal, false};
          source.heap.push_back({price, steps, edge.target});
          std::push_heap(source.heap.begin(), source.heap.end(), order);
        }
      }
    }
    return source;
  }

  [[nodiscard]] Bytes temporary(const Source& source, int target) const {
    Bytes largest = 0;
    Bytes output = 0;  // of the step that ends in `node`; the path's own output is not counted
    for (int node = target; source.entries[index(node)].parent >= 0;) {
      const int parent = source.entries[index(node)].parent;
      const bool is_first = source.entries[index(parent)].parent < 0;
      const Bytes input = is_first ? 0 : nodes_[index(parent)].bytes;
      largest = std::max(largest, input + output);
      output = input;
      node = parent;
    }
    return largest;
  }

  ReshardPath build(int source_node, int target) {
    const Source& source = settle(source_node, target);
    const Entry& end = source.entries[index(target)];
    ReshardPath path;
    path.price = end.price;
    path.possible = end.price < kInfinity;
    path.temporary = temporary(source, target);
    for (int node = target; source.entries[index(node)].parent >= 0;) {
      const Entry& entry = source.entries[index(node)];
      int ordinal = 0;
      for_each_step(nodes_[index(entry.parent)].spec,
                    type_.shape,
                    context_.mesh,
                    [&](const ReshardStep& step) {
                      if (ordinal++ == entry.ordinal) {
                        path.steps.push_back(step);
                      }
                    });
      node = entry.parent;
    }
    std::reverse(path.steps.begin(), path.steps.end());
    return path;
  }

  const Context& context_;
  ir::TensorType type_;
  std::unordered_map<ShardingSpec, int, ShardingSpecHash> ids_;
  std::vector<Node> nodes_;
  std::unordered_map<int, Source> sources_;
  std::unordered_map<std::uint64_t, ReshardPath> paths_;  ///< by source node and target node
};

Resharder::Resharder(cluster::DeviceMesh mesh, StepPrice price)
    : context_(std::make_unique<Context>(Context{std::move(mesh), std::move(price)})) {
  SHARDPLAN_CHECK(context_->mesh.axes.size() <= kMaxMeshAxes)
      << context_->mesh.axes.size() << " mesh axes";
}
Resharder::~Resharder() = default;
Resharder::Resharder(Resharder&&) noexcept = default;
Resharder& Resharder::operator=(Resharder&&) noexcept = default;

const cluster::DeviceMesh& Resharder::mesh() const {
  return context_->mesh;
}

std::size_t Resharder::TypeHash::operator()(const ir::TensorType& type) const {
  std::uint64_t hash = static_cast<std::uint64_t>(type.dtype) + 1;
  for (const std::int64_t size : type.shape) {
    hash = (hash ^ static_cast<std::uint64_t>(size)) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 32U;
  }
  return hash;
}

Resharder::Search& Resharder::search(const ir::TensorType& type) {
  const auto known = searches_.find(type);
  if (known != searches_.end()) {
    return *known->second;
  }
  return *searches_.emplace(type, std::make_unique<Search>(*context_, type)).first->second;
}

const ReshardPath& Resharder::path(const ShardingSpec& from,
                                   const ShardingSpec& to,
                                   const ir::TensorType& type) {
  return search(type).path(from, to);
}

ReshardCost Resharder::cost(const ShardingSpec& from,
                            const ShardingSpec& to,
                            const ir::TensorType& type) {
  return search(type).cost(from, to);
}

}  // namespace shardplan::sharding
