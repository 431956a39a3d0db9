// Cheapest changes of layout. Nodes are layouts, edges the steps of steps.cc (StepGraph, shared by
// tensors that the mesh cuts alike), weights the caller's prices. Read Search::settle
// (Dijkstra's algorithm from one source, stopped at the target and resumed by the next question
// about the same source) and Search::add_rows (all targets from many sources at once, for tables).
#include "shardplan/sharding/reshard.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <queue>
#include <utility>

#include "shardplan/sharding/steps.h"

// Compiled for several vector widths; the program picks at run time.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SHARDPLAN_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SHARDPLAN_VECTOR_CLONES
#endif

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

constexpr std::size_t kVector = 8;
constexpr std::size_t kLanes = 64;

std::size_t index(int node) {
  return static_cast<std::size_t>(node);
}

/// to = min(to, from + step) in every lane; the least price that is new there, infinite when none
/// is. Loops of fixed length, so that the compiler makes vectors of them.
SHARDPLAN_VECTOR_CLONES
double relax(const double* __restrict from, double step, double* __restrict to) {
  const double none = kInfinity;
  double least[kVector];  // NOLINT: std::array is not kept in registers
  for (std::size_t k = 0; k < kVector; ++k) {
    least[k] = none;
  }
  for (std::size_t lane = 0; lane < kLanes; lane += kVector) {
    for (std::size_t k = 0; k < kVector; ++k) {
      const double price = from[lane + k] + step;
      const double old = to[lane + k];
      const double lowered = price < old ? price : none;
      to[lane + k] = price < old ? price : old;
      least[k] = lowered < least[k] ? lowered : least[k];
    }
  }
  return *std::min_element(least, least + kVector);
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

/// The steps between layouts, for all tensors whose dimensions the mesh cuts alike.
class Resharder::StepGraph {
 public:
  struct Edge {
    int target = -1;
    ReshardStep step{};
  };

  StepGraph(const cluster::DeviceMesh& mesh, ir::Shape shape)
      : mesh_(mesh), shape_(std::move(shape)) {}

  int intern(const ShardingSpec& spec) {
    const auto [at, is_new] = ids_.try_emplace(spec, static_cast<int>(nodes_.size()));
    if (is_new) {
      nodes_.push_back({spec, false, {}});
    }
    return at->second;
  }

  const std::vector<Edge>& edges(int node) {
    if (!nodes_[index(node)].expanded) {
      nodes_[index(node)].expanded = true;
      std::vector<Edge> edges;
      const ShardingSpec spec = nodes_[index(node)].spec;
      for_each_step(spec, shape_, mesh_, [&](const ReshardStep& step) {
        edges.push_back({intern(step.to), step});
      });
      nodes_[index(node)].edges = std::move(edges);
    }
    return nodes_[index(node)].edges;
  }

  [[nodiscard]] const ShardingSpec& spec(int node) const { return nodes_[index(node)].spec; }
  [[nodiscard]] std::size_t size() const { return nodes_.size(); }

  /// Takes every layout that can be reached from those seen so far.
  void expand_all() {
    for (; expanded_ < nodes_.size(); ++expanded_) {
      edges(static_cast<int>(expanded_));
    }
  }

 private:
  struct Node {
    ShardingSpec spec{};
    bool expanded = false;
    std::vector<Edge> edges{};
  };

  const cluster::DeviceMesh& mesh_;
  ir::Shape shape_;  ///< of one of the tensors
  std::unordered_map<ShardingSpec, int, ShardingSpecHash> ids_;
  std::deque<Node> nodes_;  ///< edges() stay where they are when nodes are added
  std::size_t expanded_ = 0;
};

class Resharder::Search {
 public:
  Search(const Context& context, StepGraph& graph, ir::TensorType type)
      : context_(context), graph_(graph), type_(std::move(type)) {}

  const ReshardPath& path(const ShardingSpec& from, const ShardingSpec& to) {
    if (!reachable(from, to)) {
      return impossible_path();
    }
    const int source = graph_.intern(from);
    const int target = graph_.intern(to);
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
    const int target = graph_.intern(to);
    const Source& source = settle(graph_.intern(from), target);
    const Entry& end = source.entries[index(target)];
    return {end.price, temporary(source, target), end.price < kInfinity};
  }

  double price(const ShardingSpec& from, const ShardingSpec& to) {
    if (!reachable(from, to)) {
      return kInfinity;
    }
    const int source = graph_.intern(from);
    const int target = graph_.intern(to);
    auto row = rows_.find(source);
    if (row == rows_.end()) {
      add_rows(company_of(source));
      row = rows_.find(source);
    }
    if (index(target) >= row->second.size()) {
      return kInfinity;
    }
    return row->second[index(target)];
  }

  std::vector<double> prices(std::span<const ShardingSpec> from, std::span<const ShardingSpec> to) {
    const std::vector<int> sources = intern_all(from);
    const std::vector<int> targets = intern_all(to);
    add_rows(sources);
    std::vector<double> out;
    out.reserve(from.size() * to.size());
    for (const int source : sources) {
      const std::vector<double>* row = source < 0 ? nullptr : &rows_.at(source);
      for (const int target : targets) {
        // A layout that no step leads to has no place in the row.
        const bool known = row != nullptr && target >= 0 && index(target) < row->size();
        out.push_back(kInfinity);
        if (known) {
          out.back() = (*row)[index(target)];
        }
      }
    }
    return out;
  }

 private:
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

  [[nodiscard]] bool reachable(const ShardingSpec& from, const ShardingSpec& to) const {
    return fits(from, type_.shape, context_.mesh) && fits(to, type_.shape, context_.mesh) &&
           keeps_partial(from, to);
  }

  [[nodiscard]] Bytes bytes(int node) const {
    return local_bytes(graph_.spec(node), type_, context_.mesh);
  }

  /// Prices of the steps from a node, in the order of its edges.
  const std::vector<double>& step_prices(int node) {
    if (step_prices_.size() <= index(node)) {
      step_prices_.resize(graph_.size());
    }
    std::vector<double>& prices = step_prices_[index(node)];
    if (prices.empty()) {
      for (const StepGraph::Edge& edge : graph_.edges(node)) {
        prices.push_back(context_.price(edge.step, type_));
        SHARDPLAN_CHECK(prices.back() >= 0)
            << "price " << prices.back() << " of " << collective_name(edge.step.kind);
      }
    }
    return prices;
  }

  // ---- All targets from many sources at once ----

  std::vector<int> intern_all(std::span<const ShardingSpec> specs) {
    std::vector<int> nodes;
    nodes.reserve(specs.size());
    for (const ShardingSpec& spec : specs) {
      nodes.push_back(fits(spec, type_.shape, context_.mesh) ? graph_.intern(spec) : -1);
    }
    return nodes;
  }

  /// Bellman-Ford from all sources that have no row yet: the prices of one node are a vector over
  /// the sources. A layout's steps are looked at again only when its vector has changed.
  void add_rows(const std::vector<int>& sources) {
    std::vector<int> fresh;
    for (const int source : sources) {
      if (source >= 0 && rows_.try_emplace(source).second) {
        fresh.push_back(source);
      }
    }
    if (fresh.empty()) {
      return;
    }
    graph_.expand_all();
    for (std::size_t first = 0; first < fresh.size(); first += kLanes) {
      const std::size_t lanes = std::min(kLanes, fresh.size() - first);
      add_rows(std::span<const int>(fresh).subspan(first, lanes));
    }
  }

  /// A source, and further ones that are likely to be asked for: they cost little more.
  std::vector<int> company_of(int source) {
    graph_.expand_all();
    std::vector<int> sources{source};
    const int count = static_cast<int>(graph_.size());
    for (int step = 1; step < count && sources.size() < kLanes; ++step) {
      const int node = (source + step) % count;
      if (!rows_.contains(node) && in_mesh_order(graph_.spec(node))) {
        sources.push_back(node);
      }
    }
    return sources;
  }

  /// As strategies make layouts.
  [[nodiscard]] bool in_mesh_order(const ShardingSpec& spec) const {
    for (int dim = 0; dim < static_cast<int>(type_.rank()); ++dim) {
      for (int position = 1; position < spec.count_of(dim); ++position) {
        if (spec.axis_at(dim, position) < spec.axis_at(dim, position - 1)) {
          return false;
        }
      }
    }
    return true;
  }

  /// Few sources at a time, so that their vectors stay in the cache.
  void add_rows(std::span<const int> sources) {
    const std::size_t nodes = graph_.size();
    std::vector<double> price(nodes * kLanes, kInfinity);
    // A layout is looked at again where it got a lower price: in the order of these prices, most
    // are final when their turn comes.
    std::vector<double> lowered(nodes, kInfinity);
    using Turn = std::pair<double, std::size_t>;
    std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns;
    for (std::size_t lane = 0; lane < sources.size(); ++lane) {
      const std::size_t source = index(sources[lane]);
      price[source * kLanes + lane] = 0;
      lowered[source] = 0;
      turns.emplace(0.0, source);
    }
    while (!turns.empty()) {
      const auto [least, node] = turns.top();
      turns.pop();
      if (lowered[node] != least) {
        continue;
      }
      lowered[node] = kInfinity;
      const std::vector<double>& steps = step_prices(static_cast<int>(node));
      const std::vector<StepGraph::Edge>& edges = graph_.edges(static_cast<int>(node));
      for (std::size_t e = 0; e < edges.size(); ++e) {
        const std::size_t target = index(edges[e].target);
        const double fresh =
            relax(price.data() + node * kLanes, steps[e], price.data() + target * kLanes);
        if (fresh < lowered[target]) {
          lowered[target] = fresh;
          turns.emplace(fresh, target);
        }
      }
    }
    std::vector<double*> row;
    for (const int source : sources) {
      rows_[source].resize(nodes);
      row.push_back(rows_[source].data());
    }
    for (std::size_t node = 0; node < nodes; ++node) {
      for (std::size_t lane = 0; lane < row.size(); ++lane) {
        row[lane][node] = price[node * kLanes + lane];
      }
    }
  }

  // ---- One pair ----

  /// Heap order: the best last to come first. Equal prices by fewer steps, then by layout, so that
  /// the outcome does not depend on earlier questions.
  [[nodiscard]] bool worse(const Frontier& a, const Frontier& b) const {
    if (a.price != b.price) {
      return a.price > b.price;
    }
    if (a.steps != b.steps) {
      return a.steps > b.steps;
    }
    return graph_.spec(a.node) > graph_.spec(b.node);
  }

  const Source& settle(int source_node, int target) {
    const auto order = [this](const Frontier& a, const Frontier& b) { return worse(a, b); };
    const auto [at, is_new] = sources_.try_emplace(source_node);
    Source& source = at->second;
    source.entries.resize(std::max(source.entries.size(), graph_.size()));
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
      const std::vector<double>& prices = step_prices(best.node);
      const std::vector<StepGraph::Edge>& edges = graph_.edges(best.node);
      source.entries.resize(std::max(source.entries.size(), graph_.size()));
      for (std::size_t e = 0; e < edges.size(); ++e) {
        Entry& entry = source.entries[index(edges[e].target)];
        const double price = best.price + prices[e];
        const int steps = best.steps + 1;
        if (!entry.settled &&
            (price < entry.price || (price == entry.price && steps < entry.steps))) {
          entry = {price, steps, best.node, static_cast<int>(e), false};
          source.heap.push_back({price, steps, edges[e].target});
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
      const Bytes input = is_first ? 0 : bytes(parent);
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
      path.steps.push_back(graph_.edges(entry.parent)[index(entry.ordinal)].step);
      node = entry.parent;
    }
    std::reverse(path.steps.begin(), path.steps.end());
    return path;
  }

  const Context& context_;
  StepGraph& graph_;
  ir::TensorType type_;
  std::vector<std::vector<double>> step_prices_;  ///< by node and edge
  std::unordered_map<int, Source> sources_;
  std::unordered_map<std::uint64_t, ReshardPath> paths_;  ///< by source node and target node
  std::unordered_map<int, std::vector<double>> rows_;     ///< by source node: prices by node
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
  // Mesh axes divide a dimension if they divide its common divisor with the mesh; others can cut it
  // if it is large enough, and dimensions as large as the mesh are.
  std::vector<std::int64_t> alike;
  for (const std::int64_t size : type.shape) {
    alike.push_back(std::gcd(size, context_->mesh.size()));
    alike.push_back(std::min(size, context_->mesh.size()));
  }
  std::unique_ptr<StepGraph>& graph = graphs_[alike];
  if (!graph) {
    graph = std::make_unique<StepGraph>(context_->mesh, type.shape);
  }
  return *searches_.emplace(type, std::make_unique<Search>(*context_, *graph, type)).first->second;
}

const ReshardPath& Resharder::path(const ShardingSpec& from,
                                   const ShardingSpec& to,
                                   const ir::TensorType& type) {
  return search(type).path(from, to);
}

void Resharder::forget() {
  searches_.clear();
  graphs_.clear();
}

double Resharder::price(const ShardingSpec& from,
                        const ShardingSpec& to,
                        const ir::TensorType& type) {
  return search(type).price(from, to);
}

std::vector<double> Resharder::prices(std::span<const ShardingSpec> from,
                                      std::span<const ShardingSpec> to,
                                      const ir::TensorType& type) {
  return search(type).prices(from, to);
}

ReshardCost Resharder::cost(const ShardingSpec& from,
                            const ShardingSpec& to,
                            const ir::TensorType& type) {
  return search(type).cost(from, to);
}

}  // namespace shardplan::sharding
