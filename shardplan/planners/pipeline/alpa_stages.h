#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <vector>

namespace shardplan::planners {

/// What each run of consecutive layers takes on each kind of submesh, for Alpa's inter-operator
/// dynamic programme.
struct StageTable {
  int layers = 0;
  int devices = 0;           ///< all of which must be used
  std::vector<int> sizes{};  ///< devices of each kind of submesh
  /// How many numbers of stages to the end are told apart, because what is in flight must fit: 1
  /// when memory does not matter, else `layers`.
  int depths = 1;
  /// Of layers [from, to) on submesh kind o, when `depth` stages follow (0 .. depths - 1):
  /// times[((from * (layers + 1) + to) * sizes + o) * depths + depth]; infinity = does not fit.
  std::vector<double> times{};

  [[nodiscard]] std::size_t index(int from, int to, int option, int depth) const {
    const std::size_t run = static_cast<std::size_t>(from) * static_cast<std::size_t>(layers + 1) +
                            static_cast<std::size_t>(to);
    return (run * sizes.size() + static_cast<std::size_t>(option)) *
               static_cast<std::size_t>(depths) +
           static_cast<std::size_t>(depth);
  }
};

struct StageCut {
  struct Stage {
    int from = 0;
    int to = 0;
    int option = 0;
  };
  std::vector<Stage> stages{};
  double sum = std::numeric_limits<double>::infinity();  ///< of the stages' times
  double largest = 0;
  [[nodiscard]] double latency(double microbatches) const {
    return sum + (microbatches - 1) * largest;
  }
};

/// The cut and submeshes with the least sum of stage times + (microbatches - 1) x the largest one,
/// exactly; nothing when no cut uses all devices and fits. Each test of a bound on the largest time
/// costs layers^2 x sizes x devices x depths; Alpa tests every time that occurs, here as many as
/// there are trade-offs between sum and largest close to the optimum. When `stopped` says so, the
/// best cut so far.
[[nodiscard]] std::optional<StageCut> cut_stages(const StageTable& table,
                                                 double microbatches,
                                                 const std::function<bool()>& stopped = {});

/// Alpa's operator clustering: the beginnings of `clusters` runs of a chain whose largest incoming
/// bytes are least, of runs with at most (1 + imbalance) of the average work (or the largest single
/// operator's, if that is more); of equal ones the most even. `bytes[i][k]` enter the operators
/// [i, k). O(operators^2 x clusters).
[[nodiscard]] std::vector<int> cluster_operators(const std::vector<double>& work,
                                                 const std::vector<std::vector<double>>& bytes,
                                                 int clusters,
                                                 double imbalance);

}  // namespace shardplan::planners
