// map: our successor of MAP (Liu, Li, Fang, Shao, Yao, You, "MAP: Memory-aware Automated Intra-op
// Parallel Training for Foundation Models", arXiv 2302.02599).
//
// The idea in five lines: on each mesh, one choice for every node of the training step (an op with
// its backward ops; a parameter with its gradient and optimizer state), least additive time, bytes
// at program points within the limit. Without a binding limit the problem is solved exactly by
// elimination. With one, every choice exists twice, with its block run once or again in the
// backward pass, and the limit is relaxed by Lagrange multipliers, which gives the bound. Program
// points come from the lowered program: solve, lower, look where the peak is, add that point, solve
// again. The simulator has the last word among the candidates, expert plans included.
//
// Read `MeshSearch::run`, then `plan_map`.
//
// Deviations from the paper: one stage instead of two (recomputation is chosen with the sharding),
// memory by liveness instead of a sum over nodes, any number of mesh axes, layouts of gradients and
// optimizer state are choices, elimination instead of a MILP.
#include "shardplan/planners/intra/map2023.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "shardplan/planners/evaluate.h"
#include "shardplan/planners/experts.h"
#include "shardplan/problem/intra_op.h"
#include "shardplan/solvers/constrained.h"

namespace shardplan::planners {
namespace {

using problem::IntraOpProblem;

/// The search on one mesh.
class MeshSearch {
 public:
  MeshSearch(const PlanRequest& request, const IntraOpProblem& problem, const Budget& budget)
      : request_(request),
        problem_(problem),
        budget_(budget),
        limit_(static_cast<double>(memory_limit(request))) {}

  /// Adds candidates; sets the lower bound of this mesh.
  Status run(std::vector<Candidate>& candidates, double& bound) {
    const problem::StrategyGraph free = problem_.strategy_graph(false, {});
    const auto outcome = elimination_.minimise(free.problem.objective);
    if (!outcome.solved) {
      return unsupported("map: the model's graph is too entangled for exact elimination");
    }
    bound = outcome.solution.cost;
    SHARDPLAN_ASSIGN_OR_RETURN(
        Candidate candidate,
        evaluate(problem_.to_plan(outcome.solution.choice, false), request_.step));
    const bool fits = static_cast<double>(candidate.simulation.peak_bytes) <= limit_;
    const problem::Moment peak = peak_point(candidate);
    const std::size_t before = candidates.size();
    candidates.push_back(std::move(candidate));
    if (!request_.cluster.local) {
      SHARDPLAN_RETURN_IF_ERROR(add_overlapping(free.problem.objective, candidates));
    }
    if (fits) {
      return {};
    }
    SHARDPLAN_RETURN_IF_ERROR(within_limit(peak, candidates, bound));
    const bool found = std::any_of(
        candidates.begin() + static_cast<std::ptrdiff_t>(before),
        candidates.end(),
        [&](const auto& c) { return static_cast<double>(c.simulation.peak_bytes) <= limit_; });
    return found ? Status{} : least_memory(candidates);
  }

 private:
  [[nodiscard]] problem::Moment peak_point(const Candidate& candidate) const {
    return problem_.moment_of(candidate.simulation.peak, candidate.plan);
  }

  void add_point(problem::Moment at) {
    if (std::find(points_.begin(), points_.end(), at) == points_.end()) {
      points_.push_back(at);
      slack_.push_back(0);
    }
  }

  Status within_limit(problem::Moment peak, std::vector<Candidate>& candidates, double& bound) {
    constexpr int kRounds = 12;
    add_point(peak);
    for (int round = 0; round < kRounds && !budget_.exhausted(); ++round) {
      problem::StrategyGraph graph = problem_.strategy_graph(true, points_);
      for (std::size_t r = 0; r < points_.size(); ++r) {
        graph.problem.rows[r].limit = limit_ + slack_[r];
      }
      solvers::SolveOptions options;
      options.control = request_.control;
      options.hint = hint_;
      const solvers::Solution solution =
          solvers::solve_constrained(graph.problem, elimination_, options);
      if (solution.choice.empty() || solution.status == solvers::SolveStatus::kInfeasible) {
        return {};
      }
      if (round == 0) {
        bound = std::max(bound, solution.lower_bound);
      }
      hint_ = solution.multiplier;
      SHARDPLAN_ASSIGN_OR_RETURN(Candidate candidate,
                                 evaluate(problem_.to_plan(solution.choice, true), request_.step));
      const auto peak_bytes = static_cast<double>(candidate.simulation.peak_bytes);
      peak = peak_point(candidate);
      candidates.push_back(std::move(candidate));
      const bool fits = peak_bytes <= limit_;
      const double tightest = *std::max_element(solution.usage.begin(), solution.usage.end());
      if (fits && (limit_ - peak_bytes) <= 0.005 * limit_) {
        return {};
      }
      adjust(peak, peak_bytes, tightest, solution, fits);
      request_.control.report("memory", static_cast<double>(round + 1) / kRounds);
    }
    return {};
  }

  /// The rows are sums that differ a little from what the lowered program needs: moves their limits
  /// by what was seen, and adds the point of a peak elsewhere.
  void adjust(problem::Moment peak,
              double peak_bytes,
              double tightest,
              const solvers::Solution& solution,
              bool fits) {
    const bool known = std::find(points_.begin(), points_.end(), peak) != points_.end();
    if (!fits && !known) {
      add_point(peak);
      return;
    }
    const double seen = tightest - peak_bytes;
    for (std::size_t r = 0; r < slack_.size(); ++r) {
      if (fits) {
        slack_[r] = std::max(slack_[r], seen);
      } else if (points_[r] == peak) {
        slack_[r] = std::min(slack_[r] - 0.002 * limit_, solution.usage[r] - peak_bytes);
      }
    }
  }

  /// Optima in which changes of layout count only in part, as if the rest hid behind compute: more
  /// candidates for the simulator, which knows what does.
  Status add_overlapping(const solvers::CostNetwork& objective,
                         std::vector<Candidate>& candidates) {
    for (const double exposed : {0.5, 0.2}) {
      if (budget_.exhausted()) {
        return {};
      }
      solvers::CostNetwork discounted = objective;
      std::map<const std::vector<double>*, solvers::CostTable> known;
      for (solvers::CostNetwork::Factor& factor : discounted.factors) {
        solvers::CostTable& table = known[factor.cost.get()];
        if (!table) {
          std::vector<double> values = *factor.cost;
          for (double& value : values) {
            value *= exposed;
          }
          table = std::make_shared<const std::vector<double>>(std::move(values));
        }
        factor.cost = table;
      }
      const auto outcome = elimination_.minimise(discounted);
      if (outcome.solved) {
        SHARDPLAN_ASSIGN_OR_RETURN(
            Candidate candidate,
            evaluate(problem_.to_plan(outcome.solution.choice, false), request_.step));
        candidates.push_back(std::move(candidate));
      }
    }
    return {};
  }

  /// A plan of least memory: fictitious play between the plan, which makes the weighted sum of the
  /// rows small, and the rows, of which the one that peaked gains weight.
  Status least_memory(std::vector<Candidate>& candidates) {
    constexpr int kRounds = 8;
    std::vector<double> weight(points_.size(), 1);
    for (int round = 0; round < kRounds && !budget_.exhausted(); ++round) {
      const problem::StrategyGraph graph = problem_.strategy_graph(true, points_);
      const auto outcome = elimination_.minimise(weighted(graph, weight));
      if (!outcome.solved) {
        return {};
      }
      SHARDPLAN_ASSIGN_OR_RETURN(
          Candidate candidate,
          evaluate(problem_.to_plan(outcome.solution.choice, true), request_.step));
      const problem::Moment peak = peak_point(candidate);
      candidates.push_back(std::move(candidate));
      add_point(peak);
      weight.resize(points_.size(), 0);
      for (std::size_t r = 0; r < points_.size(); ++r) {
        weight[r] += points_[r] == peak ? 1 : 0;
      }
    }
    return {};
  }

  /// The weighted sum of the rows, with a millionth of the time to settle ties.
  [[nodiscard]] static solvers::CostNetwork weighted(const problem::StrategyGraph& graph,
                                                     const std::vector<double>& weight) {
    solvers::CostNetwork sum = graph.problem.objective;
    const auto add = [&](solvers::CostTable& table, auto part_of) {
      auto total = std::make_shared<std::vector<double>>(*table);
      for (double& value : *total) {
        value *= 1e-6;
      }
      for (std::size_t r = 0; r < weight.size(); ++r) {
        const solvers::CostTable& part = part_of(graph.problem.rows[r]);
        for (std::size_t i = 0; part && i < total->size(); ++i) {
          (*total)[i] += weight[r] * 1e-9 * (*part)[i];
        }
      }
      table = std::move(total);
    };
    for (std::size_t v = 0; v < sum.unary.size(); ++v) {
      add(sum.unary[v], [v](const auto& row) -> const auto& { return row.unary[v]; });
    }
    for (std::size_t f = 0; f < sum.factors.size(); ++f) {
      add(sum.factors[f].cost, [f](const auto& row) -> const auto& { return row.factors[f]; });
    }
    return sum;
  }

  const PlanRequest& request_;
  const IntraOpProblem& problem_;
  const Budget& budget_;
  double limit_;
  std::vector<problem::Moment> points_;
  std::vector<double> slack_;  ///< by point
  std::vector<double> hint_;   ///< multipliers of the last round, by point
  solvers::Elimination elimination_;
};

Status search_mesh(const PlanRequest& request,
                   const cluster::DeviceMesh& mesh,
                   const Budget& budget,
                   std::vector<Candidate>& candidates,
                   double& bound) {
  const cost::CostModel cost(request.cluster, mesh);
  SHARDPLAN_ASSIGN_OR_RETURN(const IntraOpProblem problem,
                             IntraOpProblem::build(request.step, cost));
  double mesh_bound = 0;
  SHARDPLAN_RETURN_IF_ERROR(MeshSearch(request, problem, budget).run(candidates, mesh_bound));
  bound = std::min(bound, mesh_bound);
  return {};
}

Result<PlanResult> plan_map(const PlanRequest& request) {
  const Budget budget(request);
  std::vector<cluster::DeviceMesh> meshes =
      request.mesh ? std::vector<cluster::DeviceMesh>{*request.mesh}
                   : cluster::enumerate_meshes(request.cluster, request.max_mesh_axes);
  std::vector<Candidate> candidates;
  double bound = std::numeric_limits<double>::infinity();
  for (std::size_t m = 0; m < meshes.size(); ++m) {
    if (budget.exhausted() && !candidates.empty()) {
      bound = 0;  // meshes that were not looked at have no bound
      break;
    }
    request.control.report("meshes", static_cast<double>(m) / static_cast<double>(meshes.size()));
    SHARDPLAN_RETURN_IF_ERROR(search_mesh(request, meshes[m], budget, candidates, bound));
  }
  if (!request.mesh) {
    for (const ExpertRule& rule : expert_rules()) {
      for (const cluster::DeviceMesh& mesh : expert_meshes(rule, request.cluster.device_count())) {
        if (budget.exhausted()) {
          break;
        }
        SHARDPLAN_ASSIGN_OR_RETURN(std::vector<Candidate> plans, expert_plans(request, rule, mesh));
        std::move(plans.begin(), plans.end(), std::back_inserter(candidates));
      }
    }
  }
  return conclude(request, "map", std::move(candidates), bound, budget);
}

}  // namespace

PlannerInfo map_planner() {
  return {"map",
          "after Liu et al., MAP, arXiv 2302.02599",
          2023,
          "sharding, optimizer state layout and recomputation together, within the memory limit",
          plan_map};
}

}  // namespace shardplan::planners
