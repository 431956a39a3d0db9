#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shardplan/cli/session.h"
#include "shardplan/support/result.h"

namespace shardplan::cli {

/// The options of `solve` that speak of layer graphs, as the user writes them.
struct LayerSolveOptions {
  std::string planner{};
  int devices = 0;
  int cpus = 0;
  std::string memory{};
  std::string bandwidth{};
  std::int64_t microbatches = 0;
  std::string hierarchy{};              ///< "4x4"
  std::string bandwidths{};             ///< "15e9,1.25e9"
  std::vector<std::string> settings{};  ///< "inner=greedy"
  Seconds time_limit = 0;

  /// Whether anything was said that only a layer graph has a use for.
  [[nodiscard]] bool any() const {
    return !planner.empty() || devices != 0 || cpus != 0 || !bandwidth.empty() ||
           microbatches != 0 || !hierarchy.empty() || !bandwidths.empty() || !settings.empty();
  }
};
void add_layer_options(CLI::App& app, LayerSolveOptions& options);

/// Solves the layer graph `content` of `file` and prints the stages.
[[nodiscard]] Result<int> solve_layer_file(std::string_view content,
                                           const std::string& file,
                                           const LayerSolveOptions& options,
                                           const Session& session);

}  // namespace shardplan::cli
