#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "shardplan/cli/command.h"
#include "shardplan/cli/planning.h"
#include "shardplan/cli/session.h"
#include "shardplan/planners/evaluate.h"
#include "shardplan/planners/pipeline/step_layers.h"
#include "shardplan/problem/layer_graph_json.h"
#include "shardplan/problem/strategy_graph_json.h"
#include "shardplan/solvers/class_elimination.h"
#include "shardplan/solvers/exact.h"
#include "shardplan/support/text.h"

namespace shardplan::cli {
namespace {

using problem::IntraOpNode;
using problem::IntraOpProblem;

struct Options {
  PlanningOptions planning{};
  std::string memory{};
  std::string output{};
  bool layers = false;
};

/// The choices of a node in words: what each mesh axis does to the op, or how a parameter lies.
std::vector<std::string> names_of(const IntraOpNode& node,
                                  const ir::Graph& step,
                                  const cluster::DeviceMesh& mesh) {
  std::vector<std::string> names;
  for (const problem::NodeChoice& choice : node.type->choices) {
    if (node.kind == IntraOpNode::Kind::kOp) {
      const std::string text =
          to_string(choice.forward, ops::axis_map(step, node.members[0]), mesh);
      names.push_back(text.empty() ? "whole" : text);
      continue;
    }
    const auto rank = static_cast<std::size_t>(step.type(node.parameter).rank());
    std::string text = to_string(choice.stored, rank, mesh);
    if (node.kind == IntraOpNode::Kind::kParameter) {
      text += fmt::format(", gradient {}, state {}",
                          to_string(choice.accumulated, rank, mesh),
                          to_string(choice.state, rank, mesh));
    }
    names.push_back(std::move(text));
  }
  return names;
}

void add_names(const IntraOpProblem& posed,
               const ir::Graph& step,
               const cluster::DeviceMesh& mesh,
               problem::StrategyGraph& graph) {
  using Names = std::shared_ptr<const std::vector<std::string>>;
  std::map<const problem::NodeType*, Names> known;
  for (const IntraOpNode& node : posed.nodes()) {
    Names& names = known[node.type.get()];
    if (!names) {
      names = std::make_shared<const std::vector<std::string>>(names_of(node, step, mesh));
    }
    graph.strategies.push_back(names);
  }
  const auto block = std::make_shared<const std::vector<std::string>>(
      std::vector<std::string>{"kept", "partly recomputed", "recomputed"});
  graph.strategies.resize(graph.problem.objective.unary.size(), block);
}

/// Rows at the moments at which optimal plans take more than the limit: solve, lower, look, again.
class RowSearch {
 public:
  RowSearch(const Planning& planning, const IntraOpProblem& posed, Bytes limit)
      : planning_(planning), posed_(posed), limit_(limit) {}

  Result<problem::StrategyGraph> run(const Control& control) {
    const solvers::ClassSolution free = solvers::minimise(posed_.class_network(false));
    if (!free.solved) {
      return unsupported("the model's graph is too entangled to be solved on this mesh");
    }
    // Without news the graph has all rows that matter.
    SHARDPLAN_ASSIGN_OR_RETURN(bool news, look(free.choice, false, 0));
    constexpr int kMostRounds = 12;
    problem::StrategyGraph graph = pose();
    solvers::ExactSolver solver;
    for (int round = 0; round < kMostRounds && news && !control.interrupted(); ++round) {
      control.report("rows", static_cast<double>(round) / kMostRounds);
      solvers::SolveOptions options;
      options.control = control;
      const solvers::Solution solution = solver.solve(graph.problem, options);
      if (solution.choice.empty()) {
        break;
      }
      SHARDPLAN_ASSIGN_OR_RETURN(news, look(solution.choice, true, limit_));
      graph = pose();
    }
    return graph;
  }

 private:
  /// Adds the moments at which the plan's phases peak above `least`; whether there are new ones.
  Result<bool> look(const std::vector<int>& choice, bool recompute, Bytes least) {
    SHARDPLAN_ASSIGN_OR_RETURN(
        const planners::Candidate made,
        planners::evaluate(posed_.to_plan(choice, recompute), planning_.step));
    bool news = false;
    for (const sim::Peak& peak : made.simulation.phase_peaks) {
      if (peak.bytes <= least) {
        continue;
      }
      const problem::Moment at = posed_.moment_of(peak.at, made.plan);
      if (std::find(moments_.begin(), moments_.end(), at) == moments_.end()) {
        moments_.push_back(at);
        news = true;
      }
    }
    return news;
  }

  [[nodiscard]] problem::StrategyGraph pose() const {
    problem::StrategyGraph graph = posed_.strategy_graph(true, moments_);
    for (solvers::ConstrainedProblem::Row& row : graph.problem.rows) {
      row.limit = static_cast<double>(limit_);
    }
    return graph;
  }

  const Planning& planning_;
  const IntraOpProblem& posed_;
  Bytes limit_;
  std::vector<problem::Moment> moments_;
};

/// The model as the planners of pipelines see it: docs/layer_graph.md.
Result<int> write_layers(const Options& options, const Session& session) {
  SHARDPLAN_ASSIGN_OR_RETURN(const Bytes limit, read_memory(options.memory));
  SHARDPLAN_RETURN_IF_ERROR(require(options.output, "problem", "a file to write, -o FILE"));
  if (!options.planning.mesh.empty()) {
    return invalid_input("layers have choices for all degrees, and no mesh", "--mesh");
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const Planning planning, read_planning("problem", options.planning));
  planners::PlanRequest request{.step = planning.step};
  request.recipe = planning.recipe;
  request.cluster = planning.cluster;
  request.memory_limit = limit;
  SHARDPLAN_ASSIGN_OR_RETURN(planners::StepLayers made, planners::layers_of(request));
  problem::LayerGraph& graph = made.graph;
  graph.name = fmt::format("{} on {}", planning.model, planning.cluster.name);
  SHARDPLAN_RETURN_IF_ERROR(write_file(options.output, problem::to_json(graph)));
  std::size_t choices = 0;
  for (const problem::Layer& layer : graph.layers) {
    choices += layer.choices.size();
  }
  if (session.json) {
    nlohmann::ordered_json object;
    object["file"] = options.output;
    object["layers"] = graph.layers.size();
    object["edges"] = graph.edges.size();
    object["choices"] = choices;
    print_json(object);
    return 0;
  }
  clear_progress();
  fmt::print("problem   {}\n", graph.name);
  fmt::print("size      {} layers with {} choices · {} edges\n",
             graph.layers.size(),
             choices,
             graph.edges.size());
  fmt::print("wrote     {}  solve it: shardplan solve {} --planner piper\n",
             options.output,
             options.output);
  return 0;
}

Result<int> write_problem(const Options& options, const Session& session) {
  if (options.layers) {
    return write_layers(options, session);
  }
  SHARDPLAN_ASSIGN_OR_RETURN(Bytes limit, read_memory(options.memory));
  SHARDPLAN_RETURN_IF_ERROR(require(options.planning.mesh, "problem", "a --mesh"));
  SHARDPLAN_RETURN_IF_ERROR(require(options.output, "problem", "a file to write, -o FILE"));
  SHARDPLAN_ASSIGN_OR_RETURN(const Planning planning, read_planning("problem", options.planning));
  limit = limit > 0 ? limit : planning.cluster.device.memory;
  if (!planning.mesh) {
    return invalid_input("names no mesh; write one such as data=2,tensor=4", "--mesh");
  }
  const cluster::DeviceMesh& mesh = *planning.mesh;
  const cost::CostModel cost(planning.cluster, mesh);
  SHARDPLAN_ASSIGN_OR_RETURN(const IntraOpProblem posed,
                             IntraOpProblem::build(planning.step, cost));
  problem::StrategyGraphFile file;
  SHARDPLAN_ASSIGN_OR_RETURN(file.graph, RowSearch(planning, posed, limit).run(session.control));
  file.name =
      fmt::format("{} on {}, {}", planning.model, planning.cluster.name, cluster::to_string(mesh));
  add_names(posed, planning.step, mesh, file.graph);
  SHARDPLAN_RETURN_IF_ERROR(write_file(options.output, problem::to_json(file)));
  const solvers::ConstrainedProblem& numbers = file.graph.problem;
  if (session.json) {
    nlohmann::ordered_json object;
    object["file"] = options.output;
    object["nodes"] = numbers.objective.unary.size();
    object["factors"] = numbers.objective.factors.size();
    object["rows"] = file.graph.rows;
    object["memory_limit"] = limit;
    print_json(object);
    return 0;
  }
  clear_progress();
  fmt::print("problem   {}\n", file.name);
  fmt::print("size      {} nodes · {} factors · {} memory rows of at most {}\n",
             numbers.objective.unary.size(),
             numbers.objective.factors.size(),
             numbers.rows.size(),
             human_bytes(limit));
  fmt::print("wrote     {}  solve it: shardplan solve {}\n", options.output, options.output);
  return 0;
}

}  // namespace

Action add_problem(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  add_planning_options(app, options->planning);
  app.add_option("--memory",
                 options->memory,
                 "limit of each device, such as 20GiB; default: the device's memory");
  app.add_option("-o,--output", options->output, "file for the problem");
  app.add_flag("--layers",
               options->layers,
               "the graph of layers that planners of pipelines cut, instead of one mesh's problem");
  return [options](const Session& session) { return write_problem(*options, session); };
}

}  // namespace shardplan::cli
