#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "shardplan/planners/pipeline/downsets.h"
#include "shardplan/problem/layer_graph.h"
#include "shardplan/support/result.h"

namespace shardplan::planners {

/// All places where a graph can be cut into an earlier and a later part, with the sums of what lies
/// before each: PipeDream's states. A stage is the difference of two states, of which the first is
/// a part of the second; its sums are differences. Of layers with choices the first choice counts.
///
/// States are numbered by rising time, then size: 0 has no layer, the last one has all, and a state
/// comes after all states that are parts of it.
///
/// In profiles of PipeDream's format, layers named "Input..." cost nothing and belong to the first
/// stage, and "__getitem__" layers that nobody reads belong to the layer that they read, as in its
/// code, which takes them out first.
class CutStates {
 public:
  /// Errors: parts of a backward pass as layers of their own, and more than `most` states, in the
  /// name of `method`. Time and memory in the square of the number of states (in bits).
  [[nodiscard]] static Result<CutStates> create(const problem::LayerGraph& graph,
                                                std::string_view method,
                                                int most);

  [[nodiscard]] int count() const { return static_cast<int>(times_.size()); }
  [[nodiscard]] int last() const { return count() - 1; }

  /// Sums over the layers before the state.
  [[nodiscard]] double time(int state) const { return times_[at(state)]; }
  [[nodiscard]] double forward_time(int state) const { return forward_times_[at(state)]; }
  [[nodiscard]] double parameter_bytes(int state) const { return parameters_[at(state)]; }
  [[nodiscard]] double in_flight_bytes(int state) const { return in_flight_[at(state)]; }
  /// Of the layers before the state that a layer behind it reads, each once; 0 for the last state.
  [[nodiscard]] double cut_bytes(int state) const { return cut_[at(state)]; }

  /// Whether all layers before `inner` come before `outer`, and others too.
  [[nodiscard]] bool contains(int outer, int inner) const {
    const std::size_t bit = at(inner) * words_ * kWordBits + at(outer);
    return inner < outer && ((supersets_[bit / kWordBits] >> (bit % kWordBits)) & 1U) != 0;
  }

  /// The layers of the stage between two states, in an order in which they can run.
  [[nodiscard]] std::vector<int> layers(int from, int to) const;

 private:
  static constexpr std::size_t kWordBits = 64;
  [[nodiscard]] static std::size_t at(int index) { return static_cast<std::size_t>(index); }

  void attach(const problem::LayerGraph& graph);
  void sum(const problem::LayerGraph& graph, const DownsetLattice& lattice);
  void relate(const DownsetLattice& lattice, const std::vector<int>& state_of);

  std::vector<int> nodes_{};              // layers that are no inputs, in the lattice's order
  std::vector<int> inputs_{};             // layers of the first stage, whatever it is
  std::vector<std::vector<int>> tail_{};  // of each node: layers that follow it at no cost
  std::vector<std::vector<std::uint64_t>> members_{};  // of each state, bits of nodes
  std::vector<double> times_{};
  std::vector<double> forward_times_{};
  std::vector<double> parameters_{};
  std::vector<double> in_flight_{};
  std::vector<double> cut_{};
  std::vector<std::uint64_t> supersets_{};  // of each state, `words_` words
  std::size_t words_ = 0;
};

}  // namespace shardplan::planners
