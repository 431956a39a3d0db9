// Variable elimination over interned tables. Read `EliminationRun::run` (smallest cluster first)
// and `eliminate` (joins all factors of a variable and minimises it out).
//
// Tables are interned by content, so that the key "which tables were joined, and how their
// variables coincide" identifies a sub-problem; the equal layers of a network then cost one join
// and a few hash lookups each.
#include "shardplan/solvers/elimination.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <limits>
#include <queue>
#include <set>

namespace shardplan::solvers {

struct Elimination::Table {
  std::uint64_t id = 0;
  std::vector<double> values;
};

struct Elimination::Joined {
  std::shared_ptr<const Table> table;
  std::vector<std::uint16_t> best;  ///< minimising choice for each entry of the table
};

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ULL + (hash << 6U) + (hash >> 2U);
  return hash * 0xff51afd7ed558ccdULL;
}

std::uint64_t hash_values(const std::vector<double>& values) {
  std::uint64_t hash = values.size();
  for (const double value : values) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    hash = mix(hash, bits);
  }
  return hash;
}

}  // namespace

std::size_t Elimination::KeyHash::operator()(const std::vector<std::uint64_t>& key) const {
  std::uint64_t hash = key.size();
  for (const std::uint64_t part : key) {
    hash = mix(hash, part);
  }
  return hash;
}

std::shared_ptr<const Elimination::Table> Elimination::intern(std::vector<double> values) {
  const std::uint64_t hash = hash_values(values);
  const auto [first, last] = interned_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    if (it->second->values == values) {
      return it->second;
    }
  }
  auto table = std::make_shared<Table>();
  table->id = next_id_++;
  table->values = std::move(values);
  interned_.emplace(hash, table);
  return table;
}

std::shared_ptr<const Elimination::Table> Elimination::table_of(const CostTable& cost) {
  auto& slot = by_pointer_[cost.get()];
  if (!slot.second) {
    slot = {cost, intern(*cost)};
  }
  return slot.second;
}

/// One elimination: factors over variables, and the trail for walking back.
class EliminationRun {
 public:
  EliminationRun(Elimination& owner, const CostNetwork& network, std::size_t max_cluster)
      : owner_(owner), max_cluster_(max_cluster) {
    const std::size_t n = network.unary.size();
    size_.resize(n);
    factors_of_.resize(n);
    neighbours_.resize(n);
    for (std::size_t v = 0; v < n; ++v) {
      size_[v] = network.unary[v]->size();
      add_factor({static_cast<int>(v)}, owner_.table_of(network.unary[v]));
    }
    for (const CostNetwork::Factor& factor : network.factors) {
      add_sorted(factor);
    }
  }

  Elimination::Outcome run() {
    Elimination::Outcome outcome;
    using Entry = std::pair<std::size_t, int>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    std::vector<std::size_t> current(size_.size());
    for (std::size_t v = 0; v < size_.size(); ++v) {
      current[v] = cluster(static_cast<int>(v));
      queue.emplace(current[v], static_cast<int>(v));
    }
    std::vector<bool> done(size_.size(), false);
    while (!queue.empty()) {
      const auto [entries, v] = queue.top();
      queue.pop();
      const auto index = static_cast<std::size_t>(v);
      if (done[index] || entries != current[index]) {
        continue;
      }
      if (entries > max_cluster_) {
        return outcome;
      }
      outcome.largest_cluster = std::max(outcome.largest_cluster, entries);
      done[index] = true;
      eliminate(v);
      for (const int other : neighbours_[index]) {
        const auto o = static_cast<std::size_t>(other);
        current[o] = cluster(other);
        queue.emplace(current[o], other);
      }
    }
    outcome.solved = true;
    outcome.solution = walk_back();
    return outcome;
  }

 private:
  struct Factor {
    std::vector<int> scope;  ///< ascending; the last variable varies fastest
    std::shared_ptr<const Elimination::Table> table;
  };
  struct Trail {
    int variable;
    std::vector<int> scope;
    std::shared_ptr<const Elimination::Joined> joined;
  };
  /// A factor laid out for the join: the eliminated variable contiguous, strides of the scope.
  struct Operand {
    std::vector<double> values;
    std::vector<std::size_t> stride;  ///< one a scope variable, 0 where the factor lacks it
  };

  [[nodiscard]] std::size_t size(int v) const { return size_[static_cast<std::size_t>(v)]; }

  void add_factor(std::vector<int> scope, std::shared_ptr<const Elimination::Table> table) {
    const std::size_t id = factors_.size();
    for (const int v : scope) {
      factors_of_[static_cast<std::size_t>(v)].push_back(id);
      for (const int w : scope) {
        if (v != w) {
          neighbours_[static_cast<std::size_t>(v)].insert(w);
        }
      }
    }
    factors_.push_back(Factor{std::move(scope), std::move(table)});
  }

  /// Brings the variables of a factor of the problem into ascending order. Those with one choice
  /// are left out (the table is the same without them), so that they join nothing.
  void add_sorted(CostNetwork::Factor factor) {
    std::erase_if(factor.scope, [&](int v) { return size(v) == 1; });
    if (factor.scope.empty()) {
      total_ += factor.cost->front();
      return;
    }
    if (std::is_sorted(factor.scope.begin(), factor.scope.end())) {
      add_factor(factor.scope, owner_.table_of(factor.cost));
      return;
    }
    std::vector<int> scope = factor.scope;
    std::sort(scope.begin(), scope.end());
    std::vector<std::size_t> stride(scope.size());  // in the source, of the sorted variables
    std::size_t entries = 1;
    for (std::size_t i = scope.size(); i-- > 0;) {
      stride[position(scope, factor.scope[i])] = entries;
      entries *= size(factor.scope[i]);
    }
    std::vector<double> values(entries);
    std::vector<std::size_t> digit(scope.size(), 0);
    std::size_t source = 0;
    for (double& value : values) {
      value = (*factor.cost)[source];
      for (std::size_t i = scope.size(); i-- > 0;) {
        source += stride[i];
        if (++digit[i] < size(scope[i])) {
          break;
        }
        source -= stride[i] * digit[i];
        digit[i] = 0;
      }
    }
    add_factor(std::move(scope), owner_.intern(std::move(values)));
  }

  [[nodiscard]] std::size_t cluster(int v) const {
    std::size_t product = size(v);
    for (const int other : neighbours_[static_cast<std::size_t>(v)]) {
      if (product > max_cluster_) {
        break;
      }
      product *= size(other);
    }
    return product;
  }

  void eliminate(int v) {
    const auto index = static_cast<std::size_t>(v);
    const std::vector<int> scope(neighbours_[index].begin(), neighbours_[index].end());
    std::vector<std::size_t> ids;
    for (const std::size_t f : factors_of_[index]) {
      if (factors_[f].table) {
        ids.push_back(f);
      }
    }
    auto& slot = owner_.joined_[join_key(v, scope, ids)];
    if (!slot) {
      slot = join(v, scope, ids);
    }
    const std::shared_ptr<const Elimination::Joined> joined = slot;
    for (const std::size_t f : ids) {
      factors_[f].table.reset();
    }
    for (const int w : scope) {
      neighbours_[static_cast<std::size_t>(w)].erase(v);
      std::erase_if(factors_of_[static_cast<std::size_t>(w)],
                    [&](std::size_t f) { return !factors_[f].table; });
    }
    trail_.push_back(Trail{v, scope, joined});
    if (scope.empty()) {
      total_ += joined->table->values[0];
    } else {
      add_factor(scope, joined->table);
    }
  }

  [[nodiscard]] std::vector<std::uint64_t> join_key(int v,
                                                    const std::vector<int>& scope,
                                                    const std::vector<std::size_t>& ids) const {
    std::vector<std::uint64_t> key{size(v), scope.size()};
    for (const std::size_t f : ids) {
      key.push_back(factors_[f].table->id);
      for (const int w : factors_[f].scope) {
        key.push_back(position(scope, w));
      }
    }
    for (const int w : scope) {
      key.push_back(size(w));
    }
    return key;
  }

  /// Place of `v` in the scope; the scope's size when it is not there (the eliminated variable).
  static std::size_t position(const std::vector<int>& scope, int v) {
    const auto it = std::lower_bound(scope.begin(), scope.end(), v);
    return it != scope.end() && *it == v ? static_cast<std::size_t>(it - scope.begin())
                                         : scope.size();
  }

  [[nodiscard]] Operand lay_out(const Factor& factor, int v, const std::vector<int>& scope) const {
    const std::size_t arity = factor.scope.size();
    Operand operand;
    operand.stride.assign(scope.size(), 0);
    std::vector<std::size_t> source_stride(arity);
    std::vector<std::size_t> target_stride(arity, 1);
    std::size_t entries = 1;
    std::size_t own = size(v);
    for (std::size_t i = arity; i-- > 0;) {
      source_stride[i] = entries;
      entries *= size(factor.scope[i]);
      if (factor.scope[i] != v) {
        target_stride[i] = own;
        operand.stride[position(scope, factor.scope[i])] = own;
        own *= size(factor.scope[i]);
      }
    }
    operand.values.resize(entries);
    for (std::size_t entry = 0; entry < entries; ++entry) {
      std::size_t rest = entry;
      std::size_t target = 0;
      for (std::size_t i = 0; i < arity; ++i) {
        target += rest / source_stride[i] * target_stride[i];
        rest %= source_stride[i];
      }
      operand.values[target] = factor.table->values[entry];
    }
    return operand;
  }

  std::shared_ptr<const Elimination::Joined> join(int v,
                                                  const std::vector<int>& scope,
                                                  const std::vector<std::size_t>& ids) {
    const std::size_t choices = size(v);
    std::vector<Operand> operands;
    operands.reserve(ids.size());
    for (const std::size_t f : ids) {
      operands.push_back(lay_out(factors_[f], v, scope));
    }
    std::size_t entries = 1;
    for (const int w : scope) {
      entries *= size(w);
    }
    auto joined = std::make_shared<Elimination::Joined>();
    std::vector<double> values(entries);
    joined->best.resize(entries);
    std::vector<std::size_t> digit(scope.size(), 0);
    std::vector<std::size_t> offset(operands.size(), 0);
    std::vector<double> sum(choices);
    for (std::size_t entry = 0; entry < entries; ++entry) {
      std::copy_n(operands[0].values.data() + offset[0], choices, sum.data());
      for (std::size_t o = 1; o + 1 < operands.size(); ++o) {
        const double* row = operands[o].values.data() + offset[o];
        for (std::size_t c = 0; c < choices; ++c) {
          sum[c] += row[c];
        }
      }
      // The last addition and the minimum in one pass; four running minima, which the compiler
      // keeps in one vector register.
      const double* last = operands.back().values.data() + offset.back();
      const bool more = operands.size() > 1;
      std::array<double, 4> lowest{kInfinity, kInfinity, kInfinity, kInfinity};
      std::size_t c = 0;
      for (; more && c + 4 <= choices; c += 4) {
        for (std::size_t k = 0; k < 4; ++k) {
          sum[c + k] += last[c + k];
          lowest[k] = sum[c + k] < lowest[k] ? sum[c + k] : lowest[k];
        }
      }
      double best = std::min(std::min(lowest[0], lowest[1]), std::min(lowest[2], lowest[3]));
      for (; c < choices; ++c) {
        sum[c] += more ? last[c] : 0;
        best = std::min(best, sum[c]);
      }
      values[entry] = best;
      joined->best[entry] =
          static_cast<std::uint16_t>(std::find(sum.begin(), sum.end(), best) - sum.begin());
      advance(scope, operands, digit, offset);
    }
    joined->table = owner_.intern(std::move(values));
    return joined;
  }

  void advance(const std::vector<int>& scope,
               const std::vector<Operand>& operands,
               std::vector<std::size_t>& digit,
               std::vector<std::size_t>& offset) const {
    for (std::size_t i = scope.size(); i-- > 0;) {
      const bool carry = ++digit[i] == size(scope[i]);
      for (std::size_t o = 0; o < operands.size(); ++o) {
        if (carry) {
          offset[o] -= operands[o].stride[i] * (size(scope[i]) - 1);
        } else {
          offset[o] += operands[o].stride[i];
        }
      }
      if (!carry) {
        return;
      }
      digit[i] = 0;
    }
  }

  [[nodiscard]] CostNetworkSolution walk_back() const {
    CostNetworkSolution solution;
    solution.cost = total_;
    solution.choice.assign(size_.size(), 0);
    for (std::size_t t = trail_.size(); t-- > 0;) {
      const Trail& step = trail_[t];
      std::size_t entry = 0;
      for (const int w : step.scope) {
        entry = entry * size(w) +
                static_cast<std::size_t>(solution.choice[static_cast<std::size_t>(w)]);
      }
      solution.choice[static_cast<std::size_t>(step.variable)] = step.joined->best[entry];
    }
    return solution;
  }

  Elimination& owner_;
  std::size_t max_cluster_;
  std::vector<std::size_t> size_;
  std::vector<Factor> factors_;
  std::vector<std::vector<std::size_t>> factors_of_;
  std::vector<std::set<int>> neighbours_;
  std::vector<Trail> trail_;
  double total_ = 0;
};

std::size_t table_index(const CostNetwork& network,
                        const CostNetwork::Factor& factor,
                        const std::vector<int>& choice) {
  std::size_t index = 0;
  for (const int v : factor.scope) {
    const auto variable = static_cast<std::size_t>(v);
    index = index * network.unary[variable]->size() + static_cast<std::size_t>(choice[variable]);
  }
  return index;
}

Elimination::Outcome Elimination::minimise(const CostNetwork& network, std::size_t max_cluster) {
  return EliminationRun(*this, network, max_cluster).run();
}

}  // namespace shardplan::solvers
