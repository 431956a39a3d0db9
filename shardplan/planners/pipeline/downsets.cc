#include "shardplan/planners/pipeline/downsets.h"

#include <algorithm>
#include <cstddef>

namespace shardplan::planners {
namespace {

constexpr unsigned kWordBits = 64;
constexpr int kSetsBetweenLooks = 1 << 10;

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

/// A well mixed number for each node (the finaliser of splitmix64).
std::uint64_t code_of(int node) {
  std::uint64_t x = (static_cast<std::uint64_t>(node) + 1) * 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31U);
}

/// Makes the sets size by size. A set is the xor of its nodes' codes for the hash table, and a row
/// of bits for certainty.
class Builder {
 public:
  Builder(const std::vector<std::vector<int>>& needs,
          int most,
          const std::function<bool()>& stopped)
      : needs_(needs),
        most_(most),
        stopped_(stopped),
        words_((needs.size() + kWordBits - 1) / kWordBits),
        needed_by_(needs.size()) {
    for (std::size_t v = 0; v < needs.size(); ++v) {
      for (const int w : needs[v]) {
        needed_by_[at(w)].push_back(static_cast<int>(v));
      }
    }
  }

  std::optional<DownsetLattice> run() {
    lattice_.nodes = static_cast<int>(needs_.size());
    std::vector<std::vector<int>> level_ready(1);  // nodes that may be added, of each set of a size
    for (std::size_t v = 0; v < needs_.size(); ++v) {
      if (needs_[v].empty()) {
        level_ready[0].push_back(static_cast<int>(v));
      }
    }
    bits_.assign(words_, 0);
    codes_.push_back(0);
    int first = 0;
    while (!level_ready.empty()) {
      std::vector<std::vector<int>> next_ready;
      const auto end = first + static_cast<int>(level_ready.size());
      table_.assign(1024, -1);
      level_ = end;
      for (int set = first; set < end; ++set) {
        lattice_.begin.push_back(static_cast<int>(lattice_.covers.size()));
        if (!extend(set, level_ready[at(set - first)], next_ready) ||
            lattice_.covers.size() > kMostCovers ||
            (set % kSetsBetweenLooks == 0 && stopped_ && stopped_())) {
          return std::nullopt;
        }
      }
      first = end;
      level_ready = std::move(next_ready);
    }
    lattice_.begin.push_back(static_cast<int>(lattice_.covers.size()));
    return std::move(lattice_);
  }

 private:
  bool extend(int set, const std::vector<int>& ready, std::vector<std::vector<int>>& next_ready) {
    for (const int node : ready) {
      const int to = find_or_add(set, node);
      if (to > most_) {
        return false;
      }
      lattice_.covers.push_back({node, to});
      if (at(to - level_) == next_ready.size()) {
        next_ready.push_back(ready_after(to, node, ready));
      }
    }
    return true;
  }

  [[nodiscard]] bool holds(int set, int node) const {
    const std::uint64_t word = bits_[at(set) * words_ + at(node) / kWordBits];
    return ((word >> (at(node) % kWordBits)) & 1U) != 0;
  }

  [[nodiscard]] std::vector<int> ready_after(int set,
                                             int node,
                                             const std::vector<int>& before) const {
    std::vector<int> ready;
    std::copy_if(
        before.begin(), before.end(), std::back_inserter(ready), [&](int v) { return v != node; });
    for (const int v : needed_by_[at(node)]) {
      const std::vector<int>& needs = needs_[at(v)];
      if (std::all_of(needs.begin(), needs.end(), [&](int w) { return holds(set, w); })) {
        ready.push_back(v);
      }
    }
    std::sort(ready.begin(), ready.end());
    return ready;
  }

  /// The set of the level in the making that is `set` and `node`.
  int find_or_add(int set, int node) {
    const std::uint64_t code = codes_[at(set)] ^ code_of(node);
    std::vector<std::uint64_t> row(
        bits_.begin() + static_cast<std::ptrdiff_t>(at(set) * words_),
        bits_.begin() + static_cast<std::ptrdiff_t>((at(set) + 1) * words_));
    row[at(node) / kWordBits] |= std::uint64_t{1} << (at(node) % kWordBits);
    std::size_t place = code & (table_.size() - 1);
    while (table_[place] >= 0) {
      const int other = table_[place];
      if (codes_[at(other)] == code &&
          std::equal(row.begin(),
                     row.end(),
                     bits_.begin() + static_cast<std::ptrdiff_t>(at(other) * words_))) {
        return other;
      }
      place = (place + 1) & (table_.size() - 1);
    }
    const auto added = static_cast<int>(codes_.size());
    table_[place] = added;
    codes_.push_back(code);
    bits_.insert(bits_.end(), row.begin(), row.end());
    if (2 * at(added - level_) >= table_.size()) {
      grow_table();
    }
    return added;
  }

  void grow_table() {
    table_.assign(table_.size() * 4, -1);
    for (std::size_t set = at(level_); set < codes_.size(); ++set) {
      std::size_t place = codes_[set] & (table_.size() - 1);
      while (table_[place] >= 0) {
        place = (place + 1) & (table_.size() - 1);
      }
      table_[place] = static_cast<int>(set);
    }
  }

  const std::vector<std::vector<int>>& needs_;
  int most_;
  const std::function<bool()>& stopped_;
  std::size_t words_;
  std::vector<std::vector<int>> needed_by_;
  DownsetLattice lattice_{};
  std::vector<std::uint64_t> bits_{};
  std::vector<std::uint64_t> codes_{};
  std::vector<int> table_{};  ///< of the sets of one size; -1 = free
  int level_ = 0;             ///< first set of that size
};

}  // namespace

std::optional<DownsetLattice> all_downsets(const std::vector<std::vector<int>>& needs,
                                           int most,
                                           const std::function<bool()>& stopped) {
  return Builder(needs, most, stopped).run();
}

DownsetLattice prefix_downsets(int nodes) {
  DownsetLattice lattice;
  lattice.nodes = nodes;
  for (int v = 0; v < nodes; ++v) {
    lattice.begin.push_back(v);
    lattice.covers.push_back({v, v + 1});
  }
  lattice.begin.insert(lattice.begin.end(), {nodes, nodes});
  return lattice;
}

namespace {

std::vector<int> order_by_branches(const std::vector<std::vector<int>>& needs, bool reversed) {
  std::vector<std::vector<int>> needed_by(needs.size());
  std::vector<std::size_t> waiting(needs.size());
  std::vector<int> stack;
  for (std::size_t v = 0; v < needs.size(); ++v) {
    waiting[v] = needs[v].size();
    for (const int w : needs[v]) {
      needed_by[at(w)].push_back(static_cast<int>(v));
    }
    if (waiting[v] == 0) {
      stack.push_back(static_cast<int>(v));
    }
  }
  if (!reversed) {
    std::reverse(stack.begin(), stack.end());
  }
  std::vector<int> order;
  while (!stack.empty()) {
    const int v = stack.back();
    stack.pop_back();
    order.push_back(v);
    std::vector<int>& next = needed_by[at(v)];
    if (reversed) {
      std::reverse(next.begin(), next.end());
    }
    for (const int w : next) {
      if (--waiting[at(w)] == 0) {
        stack.push_back(w);
      }
    }
  }
  return order;
}

std::vector<int> order_by_needs(const std::vector<std::vector<int>>& needs, bool reversed) {
  std::vector<int> order;
  std::vector<std::size_t> looked_at(needs.size(), 0);
  std::vector<bool> seen(needs.size(), false);
  std::vector<int> stack;
  for (std::size_t i = 0; i < needs.size(); ++i) {
    const std::size_t root = reversed ? needs.size() - 1 - i : i;
    if (!seen[root]) {
      seen[root] = true;
      stack.push_back(static_cast<int>(root));
    }
    while (!stack.empty()) {
      const int v = stack.back();
      const std::vector<int>& own = needs[at(v)];
      const std::size_t next = looked_at[at(v)]++;
      if (next == own.size()) {
        order.push_back(v);
        stack.pop_back();
        continue;
      }
      const int w = own[reversed ? own.size() - 1 - next : next];
      if (!seen[at(w)]) {
        seen[at(w)] = true;
        stack.push_back(w);
      }
    }
  }
  return order;
}

}  // namespace

std::vector<int> depth_first_order(const std::vector<std::vector<int>>& needs,
                                   const DepthFirst& how) {
  return how.rule == DepthFirst::Rule::kBranches ? order_by_branches(needs, how.reversed)
                                                 : order_by_needs(needs, how.reversed);
}

}  // namespace shardplan::planners
