#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "shardplan/cli/command.h"
#include "shardplan/cli/session.h"
#include "shardplan/cli/solve_layers.h"
#include "shardplan/problem/inflate.h"
#include "shardplan/problem/layer_graph_json.h"
#include "shardplan/problem/strategy_graph_json.h"
#include "shardplan/solvers/registry.h"
#include "shardplan/support/text.h"

namespace shardplan::cli {
namespace {

using problem::StrategyGraphFile;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Options {
  std::string file{};
  std::string solver{solvers::registry().front().name};
  int which = -1;
  std::string memory_limit{};
  double gap = solvers::SolveOptions{}.gap;
  Seconds time_limit = 0;
  std::uint64_t seed = 0;
  LayerSolveOptions layers{};
};

/// A solved file.
struct Solved {
  std::string solver;
  solvers::SolveStatus status = solvers::SolveStatus::kUnknown;
  solvers::SolveLimit limit = solvers::SolveLimit::kNone;
  std::vector<int> choice;  ///< empty: none is feasible, or known to be
  double objective = kInfinity;
  double lower_bound = -kInfinity;
  std::vector<double> usage;       ///< of every row of the file
  std::vector<double> multiplier;  ///< likewise
  Seconds seconds = 0;
};

std::string_view status_name(solvers::SolveStatus status) {
  switch (status) {
    case solvers::SolveStatus::kOptimal:
      return "optimal";
    case solvers::SolveStatus::kFeasible:
      return "feasible";
    case solvers::SolveStatus::kInfeasible:
      return "infeasible";
    case solvers::SolveStatus::kUnknown:
      return "unknown";
  }
  return "";
}

std::string_view limit_name(solvers::SolveLimit limit) {
  switch (limit) {
    case solvers::SolveLimit::kNone:
      return "none";
    case solvers::SolveLimit::kTime:
      return "time";
    case solvers::SolveLimit::kMemory:
      return "memory";
    case solvers::SolveLimit::kInterrupted:
      return "interrupted";
  }
  return "";
}

/// Puts the limits that the user asked for into the rows.
Status set_limits(const Options& options, StrategyGraphFile& file) {
  std::vector<solvers::ConstrainedProblem::Row>& rows = file.graph.problem.rows;
  if (options.which >= 0) {
    const auto which = static_cast<std::size_t>(options.which);
    if (which >= file.cases.size()) {
      return invalid_input(
          file.cases.empty()
              ? fmt::format("{} has no cases; give a --memory-limit", options.file)
              : fmt::format(
                    "{} has cases 0 to {}, not {}", options.file, file.cases.size() - 1, which),
          "--case");
    }
    for (std::size_t r = 0; r < rows.size(); ++r) {
      rows[r].limit = file.cases[which].limits[r];
    }
  }
  if (!options.memory_limit.empty()) {
    Result<Bytes> limit = parse_bytes(options.memory_limit);
    if (!limit) {
      return invalid_input(limit.error().message, "--memory-limit");
    }
    if (rows.empty()) {
      return invalid_input(fmt::format("{} has no memory rows to limit", options.file),
                           "--memory-limit");
    }
    for (solvers::ConstrainedProblem::Row& row : rows) {
      row.limit = static_cast<double>(*limit);
    }
  }
  return {};
}

/// Solves under the rows that have a limit; the others are only measured.
Solved solve(const solvers::SolverInfo& solver,
             const solvers::ConstrainedProblem& problem,
             const solvers::SolveOptions& options) {
  solvers::ConstrainedProblem limited;
  limited.objective = problem.objective;
  std::vector<std::size_t> kept;
  for (std::size_t r = 0; r < problem.rows.size(); ++r) {
    if (problem.rows[r].limit < kInfinity) {
      kept.push_back(r);
      limited.rows.push_back(problem.rows[r]);
    }
  }
  const Seconds start = now();
  solvers::Solution solution = solver.solve(limited, options);
  Solved solved;
  solved.seconds = now() - start;
  solved.solver = solver.name;
  solved.status = solution.status;
  solved.limit = solution.limit;
  solved.lower_bound = solution.lower_bound;
  solved.multiplier.assign(problem.rows.size(), 0);
  for (std::size_t k = 0; k < std::min(kept.size(), solution.multiplier.size()); ++k) {
    solved.multiplier[kept[k]] = solution.multiplier[k];
  }
  const bool found = solution.status == solvers::SolveStatus::kOptimal ||
                     solution.status == solvers::SolveStatus::kFeasible;
  // Measured here, in the file's order of addition, whatever the solver did to the problem.
  for (const solvers::ConstrainedProblem::Row& row : problem.rows) {
    solved.usage.push_back(solution.choice.empty() ? 0 : evaluate(problem, row, solution.choice));
  }
  if (found) {
    solved.objective = evaluate(problem.objective, solution.choice);
    solved.lower_bound = std::min(solved.lower_bound, solved.objective);
    solved.choice = std::move(solution.choice);
  }
  return solved;
}

double gap_of(const Solved& solved) {
  const double distance = solved.objective - solved.lower_bound;
  return distance <= 0 ? 0 : distance / std::abs(solved.lower_bound);
}

double largest(const std::vector<double>& usage) {
  const auto most = std::max_element(usage.begin(), usage.end());
  return most == usage.end() ? std::numeric_limits<double>::infinity() : *most;
}

nlohmann::ordered_json solved_json(const Solved& solved, const StrategyGraphFile& file) {
  const bool found = !solved.choice.empty() || solved.objective < kInfinity;
  nlohmann::ordered_json object;
  object["status"] = status_name(solved.status);
  object["objective"] = number_or_null(solved.objective);
  object["lower_bound"] = solved.status == solvers::SolveStatus::kInfeasible
                              ? nlohmann::ordered_json()
                              : number_or_null(solved.lower_bound);
  object["gap"] = found ? number_or_null(gap_of(solved)) : nlohmann::ordered_json();
  object["seconds"] = solved.seconds;
  object["memory"] = found ? number_or_null(largest(solved.usage)) : nlohmann::ordered_json();
  object["choices"] = solved.choice;
  object["solver"] = solved.solver;
  object["stopped_by"] = limit_name(solved.limit);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (std::size_t r = 0; r < file.graph.rows.size(); ++r) {
    rows.push_back({{"name", file.graph.rows[r]},
                    {"limit", number_or_null(file.graph.problem.rows[r].limit)},
                    {"memory", found ? number_or_null(solved.usage[r]) : nlohmann::ordered_json()},
                    {"multiplier", solved.multiplier[r]}});
  }
  object["rows"] = rows;
  return object;
}

/// Digits enough to tell an objective from its bound.
std::string in_unit(double number, const std::string& unit) {
  return fmt::format("{:.10g} {}", number, unit);
}

std::string memory_in_unit(double number, const std::string& unit) {
  constexpr double kLargest = 9e18;
  return unit == "B" && number >= 0 && number < kLargest ? human_bytes(static_cast<Bytes>(number))
                                                         : fmt::format("{:.6g} {}", number, unit);
}

void print_summary(const Solved& solved, const StrategyGraphFile& file, const Options& options) {
  const solvers::CostNetwork& network = file.graph.problem.objective;
  fmt::print("problem   {}  {} nodes · {} factors · {} memory rows\n",
             file.name.empty() ? options.file : file.name,
             network.unary.size(),
             network.factors.size(),
             file.graph.rows.size());
  fmt::print("solver    {}  {} in {}{}\n",
             solved.solver,
             status_name(solved.status),
             human_seconds(solved.seconds),
             solved.limit == solvers::SolveLimit::kNone
                 ? ""
                 : fmt::format(", stopped by: {}", limit_name(solved.limit)));
  fmt::print("objective {}\n", in_unit(solved.objective, file.unit));
  fmt::print("proof     {}\n",
             std::isfinite(solved.lower_bound) ? fmt::format("nothing below {} (gap {:.4f} %)",
                                                             in_unit(solved.lower_bound, file.unit),
                                                             100 * gap_of(solved))
                                               : "none");
  if (file.graph.rows.empty()) {
    return;
  }
  TextTable table({"row", "memory", "limit", "price"});
  for (std::size_t r = 0; r < file.graph.rows.size(); ++r) {
    const double limit = file.graph.problem.rows[r].limit;
    table.add({file.graph.rows[r],
               memory_in_unit(solved.usage[r], file.memory_unit),
               std::isfinite(limit) ? memory_in_unit(limit, file.memory_unit) : "none",
               solved.multiplier[r] > 0
                   ? fmt::format("{:.3g} {}/{}", solved.multiplier[r], file.unit, file.memory_unit)
                   : "-"});
  }
  fmt::print("{}", table.text());
}

/// Why there is no answer, by the assignment that came closest.
Error no_answer(const Solved& solved, const StrategyGraphFile& file) {
  std::string closest;
  double worst = 0;
  for (std::size_t r = 0; r < solved.usage.size(); ++r) {
    const double limit = file.graph.problem.rows[r].limit;
    const double excess = (solved.usage[r] - limit) / std::max(std::abs(limit), 1e-300);
    if (excess > worst) {
      worst = excess;
      closest = fmt::format("; the closest that was found has {} in row '{}', whose limit is {}",
                            memory_in_unit(solved.usage[r], file.memory_unit),
                            file.graph.rows[r],
                            memory_in_unit(limit, file.memory_unit));
    }
  }
  const bool proven = solved.status == solvers::SolveStatus::kInfeasible;
  return Error{ErrorCode::kInfeasible,
               fmt::format("{}{}",
                           proven ? "no assignment meets the limits"
                                  : fmt::format("{} found no assignment that meets the limits, and "
                                                "did not prove that there is none",
                                                solved.solver),
                           closest),
               "",
               {}};
}

Result<int> solve_strategies(std::string_view content,
                             const Options& options,
                             const Session& session) {
  if (options.layers.any()) {
    return invalid_input(
        "is a strategy graph: --planner, --devices and the like are for layer graphs",
        options.file);
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const solvers::SolverInfo* solver,
                             solvers::find_solver(options.solver));
  SHARDPLAN_ASSIGN_OR_RETURN(StrategyGraphFile file,
                             problem::parse_strategy_graph(content, options.file));
  SHARDPLAN_RETURN_IF_ERROR(set_limits(options, file));
  solvers::SolveOptions solve_options;
  solve_options.gap = options.gap;
  solve_options.time_limit = options.time_limit;
  solve_options.seed = options.seed;
  solve_options.control = session.control;
  const Solved solved = solve(*solver, file.graph.problem, solve_options);
  const bool found = solved.status == solvers::SolveStatus::kOptimal ||
                     solved.status == solvers::SolveStatus::kFeasible;
  if (session.json) {
    print_json(solved_json(solved, file));
  }
  if (!found) {
    return no_answer(solved, file);
  }
  if (!session.json) {
    clear_progress();
    print_summary(solved, file, options);
  }
  return 0;
}

Result<int> solve_file(const Options& options, const Session& session) {
  SHARDPLAN_RETURN_IF_ERROR(require(options.file, "solve", "a FILE"));
  SHARDPLAN_ASSIGN_OR_RETURN(std::string content, read_file(options.file));
  if (problem::is_gzip(content)) {
    SHARDPLAN_ASSIGN_OR_RETURN(content, problem::inflate_gzip(content, options.file));
  }
  if (!problem::is_layer_graph(content)) {
    return solve_strategies(content, options, session);
  }
  if (options.which >= 0) {
    return invalid_input("is a layer graph, which has no cases; --case is for strategy graphs",
                         options.file);
  }
  LayerSolveOptions layers = options.layers;
  layers.memory = options.memory_limit;
  layers.time_limit = options.time_limit;
  return solve_layer_file(content, options.file, layers, session);
}

Result<int> list_solvers(const Session& session) {
  if (session.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const solvers::SolverInfo& solver : solvers::registry()) {
      list.push_back(
          {{"name", solver.name}, {"reference", solver.reference}, {"summary", solver.summary}});
    }
    print_json(list);
    return 0;
  }
  TextTable table({"name", "what it does", "reference"});
  for (const solvers::SolverInfo& solver : solvers::registry()) {
    table.add(
        {std::string(solver.name), std::string(solver.summary), std::string(solver.reference)});
  }
  fmt::print("{}", table.text());
  return 0;
}

}  // namespace

Action add_solve(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  app.add_option("FILE",
                 options->file,
                 "a strategy graph (docs/problem.md) or layer graph (docs/layer_graph.md)");
  app.add_option("--solver", options->solver, "who solves (shardplan solvers)")
      ->capture_default_str();
  app.add_option("--case", options->which, "limits of this case of the file, from 0")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--memory-limit,--memory",
                 options->memory_limit,
                 "of every row or device, such as 20GiB; default: the file's, or the case's");
  app.add_option("--gap", options->gap, "relative gap at which to stop")
      ->check(number_at_least(0))
      ->capture_default_str();
  app.add_option("--time-limit", options->time_limit, "of the solver, in seconds; 0 = none")
      ->check(number_at_least(0))
      ->capture_default_str();
  app.add_option("--seed", options->seed, "of random choices")
      ->check(number_at_least(0))
      ->capture_default_str();
  add_layer_options(app, options->layers);
  return [options](const Session& session) { return solve_file(*options, session); };
}

Action add_solvers(CLI::App& /*app*/) {
  return list_solvers;
}

}  // namespace shardplan::cli
