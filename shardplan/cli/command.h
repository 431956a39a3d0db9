#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string_view>
#include <vector>

#include "shardplan/cli/session.h"
#include "shardplan/support/result.h"

namespace shardplan::cli {

/// What a command does once its options are read; the value is the exit code.
using Action = std::function<Result<int>(const Session& session)>;

/// One command of the program. `add` declares its options on `app` and returns its action, which
/// owns the variables that the options are read into.
struct Command {
  std::string_view name;
  std::string_view summary;
  std::string_view example;
  Action (*add)(CLI::App& app);
};

[[nodiscard]] Action add_profile(CLI::App& app);
[[nodiscard]] Action add_plan(CLI::App& app);
[[nodiscard]] Action add_compare(CLI::App& app);
[[nodiscard]] Action add_explain(CLI::App& app);
[[nodiscard]] Action add_simulate(CLI::App& app);
[[nodiscard]] Action add_check_plan(CLI::App& app);
[[nodiscard]] Action add_run(CLI::App& app);
[[nodiscard]] Action add_predict(CLI::App& app);
[[nodiscard]] Action add_probe(CLI::App& app);
[[nodiscard]] Action add_zoo(CLI::App& app);
[[nodiscard]] Action add_planners(CLI::App& app);
[[nodiscard]] Action add_clusters(CLI::App& app);
[[nodiscard]] Action add_problem(CLI::App& app);
[[nodiscard]] Action add_solve(CLI::App& app);
[[nodiscard]] Action add_solvers(CLI::App& app);
[[nodiscard]] Action add_schedule(CLI::App& app);

}  // namespace shardplan::cli
