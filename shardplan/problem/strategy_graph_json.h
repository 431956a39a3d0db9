#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shardplan/problem/strategy_graph.h"
#include "shardplan/support/result.h"

namespace shardplan::problem {

/// A StrategyGraph as it lies in a file, with the limits that it is meant to be solved under.
struct StrategyGraphFile {
  /// One question about the graph.
  struct Case {
    std::vector<double> limits{};  ///< one a row; infinity = none
    std::optional<double> optimum{};
  };
  std::string name{};
  std::string unit = "s";         ///< of costs
  std::string memory_unit = "B";  ///< of rows
  StrategyGraph graph{};
  std::vector<Case> cases{};
  std::optional<double> optimum{};  ///< under the rows' own limits
};

/// The JSON form "shardplan.strategy_graph", version 1 (docs/problem.md). Tables that the graph
/// shares are written once; doubles come back bit for bit. Deterministic.
[[nodiscard]] std::string to_json(const StrategyGraphFile& file);

/// Reads that form, or the published one of strategy-selection instances (nodes with `cost` and
/// `memory`, edges with `from`, `to` and a cost matrix, cases with one `memory_limit`), as plain
/// text or gzip, told apart by content. Equal tables are shared, parallel edges kept apart, so that
/// evaluate() adds in the order of the file. Checks every number, size and index; errors name
/// `where` and the way to the value.
[[nodiscard]] Result<StrategyGraphFile> parse_strategy_graph(std::string_view content,
                                                             const std::string& where);

/// Reads the file at `path`.
[[nodiscard]] Result<StrategyGraphFile> load_strategy_graph(const std::string& path);

}  // namespace shardplan::problem
