#pragma once

#include <vector>

#include "shardplan/problem/layer_graph.h"

namespace shardplan::planners {

/// What planners without a search for cuts do: every stage gets as many repeated blocks.
///
/// The repeated blocks are the largest group of layers whose names differ in digits at most, when
/// they are more than half of all layers and nothing lies between the first and the last of them;
/// else every layer is a block of its own. In topological order; the last `blocks mod stages`
/// stages get one more.
class EqualStages {
 public:
  explicit EqualStages(const problem::LayerGraph& graph);

  [[nodiscard]] int blocks() const { return static_cast<int>(blocks_.size()); }
  /// Whether there are layers before or after the blocks.
  [[nodiscard]] bool has_ends() const { return !before_.empty() || !after_.empty(); }

  /// Layers by stage. With `own_ends`, what lies before the blocks and what lies after them get a
  /// stage each (where there is something), beside `stages`; else the first and the last stage take
  /// them. `stages` is 1 .. blocks().
  [[nodiscard]] std::vector<std::vector<int>> cut(int stages, bool own_ends = false) const;

 private:
  std::vector<int> before_{};
  std::vector<int> blocks_{};
  std::vector<int> after_{};
};

/// Choice of `degree` that all layers have, the `variant`-th of them; none where one layer lacks
/// it.
[[nodiscard]] std::vector<int> uniform_choice(const problem::LayerGraph& graph,
                                              int degree,
                                              int variant);

/// The degrees that all layers have, rising.
[[nodiscard]] std::vector<int> common_degrees(const problem::LayerGraph& graph);

/// Sums over a stage's layers with a choice for each layer of the graph, in the graph's units.
struct StageSums {
  double forward = 0;
  double backward = 0;
  double parameter_bytes = 0;
  double in_flight_bytes = 0;
  double constant_bytes = 0;
  double in_bytes = 0;   ///< that cut edges bring, with what the choices add
  double out_bytes = 0;  ///< that cut edges take away, likewise
};
[[nodiscard]] std::vector<StageSums> stage_sums(const problem::LayerGraph& graph,
                                                const std::vector<std::vector<int>>& stages,
                                                const std::vector<int>& choices);

}  // namespace shardplan::planners
