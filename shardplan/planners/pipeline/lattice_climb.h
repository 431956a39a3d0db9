#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "shardplan/planners/pipeline/downsets.h"

namespace shardplan::planners {

/// What searches share that put one stage on another along a lattice of downsets: a list of entries
/// for every set, each of which knows the entry (`from`, its set, and `entry`, its place in that
/// set's list) below its last stage; the first entry of the empty set has `from` -1.
template <class Entry>
class LatticeClimb {
 public:
  using List = std::vector<Entry>;

  explicit LatticeClimb(const DownsetLattice& lattice)
      : nodes_(lattice.nodes),
        parent_(static_cast<std::size_t>(lattice.sets())),
        lists_(static_cast<std::size_t>(lattice.sets())) {
    for (int set = 0; set < lattice.sets(); ++set) {
      for (int c = lattice.begin[at(set)]; c < lattice.begin[at(set) + 1]; ++c) {
        const DownsetLattice::Cover& cover = lattice.covers[at(c)];
        parent_[at(cover.to)] = {cover.node, set};
      }
    }
    std::vector<int> size(lists_.size(), 0);
    for (int set = 1; set < lattice.sets(); ++set) {
      size[at(set)] = size[at(parent_[at(set)].to)] + 1;
      if (size[at(set)] != size[at(set) - 1]) {
        levels_.push_back(set);
      }
    }
  }

  [[nodiscard]] List& operator[](int set) { return lists_[at(set)]; }
  [[nodiscard]] const List& operator[](int set) const { return lists_[at(set)]; }
  /// Whether all nodes have a stage.
  [[nodiscard]] bool arrived() const { return !lists_.back().empty(); }

  /// Empties the lists but for one entry at the bottom, and calls `push` on sets that have entries,
  /// from the smallest up, until `stopped` or arrived. Of the sets of one size only the part
  /// `share`, but `least` of them, with the least `waste`.
  template <class Waste, class Push>
  void climb(
      double share, std::size_t least, const bool& stopped, const Waste& waste, const Push& push) {
    for (List& list : lists_) {
      list.clear();
    }
    lists_.front().push_back({});
    for (std::size_t size = 0; size + 1 < levels_.size(); ++size) {
      choose(levels_[size], levels_[size + 1], share, least, waste);
      for (const int set : level_) {
        if (stopped || arrived()) {
          return;
        }
        push(set);
      }
    }
  }

  /// Calls `visit(entry, nodes)` on the entries of the first way to all nodes, the last stage
  /// first, with the nodes of its stage, rising.
  template <class Visit>
  void trace(const Visit& visit) const {
    int set = static_cast<int>(lists_.size()) - 1;
    const Entry* entry = &lists_.back().front();
    while (entry->from >= 0) {
      visit(*entry, nodes_between(entry->from, set));
      set = entry->from;
      entry = &lists_[at(set)][at(entry->entry)];
    }
  }

 private:
  [[nodiscard]] static std::size_t at(int index) { return static_cast<std::size_t>(index); }

  template <class Waste>
  void choose(int begin, int end, double share, std::size_t least, const Waste& waste) {
    level_.clear();
    for (int set = begin; set < end; ++set) {
      if (!lists_[at(set)].empty()) {
        level_.push_back(set);
      }
    }
    if (share < 1) {
      const std::size_t kept = std::min(
          level_.size(),
          std::max(least, static_cast<std::size_t>(static_cast<double>(level_.size()) * share)));
      std::partial_sort(
          level_.begin(),
          level_.begin() + static_cast<std::ptrdiff_t>(kept),
          level_.end(),
          [&](int a, int b) { return std::pair(waste(a), a) < std::pair(waste(b), b); });
      level_.resize(kept);
    }
  }

  [[nodiscard]] std::vector<int> nodes_between(int from, int to) const {
    std::vector<std::uint8_t> inside(at(nodes_), 0);
    for (int set = to; set != 0; set = parent_[at(set)].to) {
      inside[at(parent_[at(set)].node)] = 1;
    }
    for (int set = from; set != 0; set = parent_[at(set)].to) {
      inside[at(parent_[at(set)].node)] = 0;
    }
    std::vector<int> nodes;
    for (int node = 0; node < nodes_; ++node) {
      if (inside[at(node)] != 0) {
        nodes.push_back(node);
      }
    }
    return nodes;
  }

  int nodes_;
  std::vector<DownsetLattice::Cover> parent_;  ///< a downset with one node less, and that node
  std::vector<int> levels_{0};                 ///< the first downset of each size
  std::vector<List> lists_;
  std::vector<int> level_{};  ///< those of one size to put stages on
};

}  // namespace shardplan::planners
