// map: our successor of MAP (Liu, Li, Fang, Shao, Yao, You, "MAP: Memory-aware Automated Intra-op
// Parallel Training for Foundation Models", arXiv 2302.02599).
//
// The idea in five lines: on each mesh, one choice for every node of the training step (an op with
// its backward ops; a parameter with its gradient and optimizer state) and for every block (kept,
// or recomputed in part or whole), least additive time, bytes at every moment within the limit.
// Without a binding limit the problem is solved exactly by elimination over classes of layouts;
// with one, by Lagrangian bounds and elimination over Pareto points (solvers/exact.h). Memory rows
// come from lowered programs, which they equal to the byte (map_mesh.cc). The simulator has the
// last word among the plans found on the way, expert plans included.
//
// Read `MapSearch::plan`.
//
// Deviations from the paper: one stage instead of two (recomputation is chosen with the sharding),
// memory by liveness instead of a sum over nodes, any number of mesh axes, layouts of gradients and
// optimizer state are choices, elimination instead of a MILP.
#include "shardplan/planners/intra/map2023.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>

#include "shardplan/planners/experts.h"
#include "shardplan/planners/intra/map_mesh.h"

namespace shardplan::planners {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Seconds of counted work for closing the gap within one limit.
constexpr Seconds kProofEffort = 4;

/// Data parallelism over each level of links and one more way of cutting.
int most_axes(const PlanRequest& request) {
  return request.max_mesh_axes > 0 ? request.max_mesh_axes
                                   : static_cast<int>(request.cluster.levels.size()) + 1;
}

/// The search over all meshes of one request; answers one memory limit after the other.
class MapSearch {
 public:
  explicit MapSearch(const PlanRequest& request)
      : request_(request),
        structure_(std::make_shared<const problem::StepStructure>(request.step)),
        experts_(request, structure_),
        meshes_(request.mesh ? std::vector<cluster::DeviceMesh>{*request.mesh}
                             : cluster::enumerate_meshes(request.cluster, most_axes(request))) {}

  Result<PlanResult> plan(Bytes limit, const Budget& budget) {
    MapShared shared{budget, rows_, candidates_};
    SHARDPLAN_RETURN_IF_ERROR(solve_free(budget));
    Proof proof;
    if (request_.worth < kInfinity) {
      SHARDPLAN_RETURN_IF_ERROR(solve_overlapping(limit, budget, proof));
    }
    SHARDPLAN_RETURN_IF_ERROR(solve_within(limit, shared, proof));
    SHARDPLAN_RETURN_IF_ERROR(solve_overlapping(limit, budget, proof));
    if (!request_.mesh) {
      SHARDPLAN_RETURN_IF_ERROR(add_experts(limit, budget));
    }
    if (least_additive_seconds(candidates_, limit) == kInfinity && !budget.exhausted() &&
        request_.worth == kInfinity) {
      SHARDPLAN_RETURN_IF_ERROR(solve_least(shared, proof));
    }
    return conclude(request_, "map", candidates_, limit, proof, budget);
  }

 private:
  /// A plan with this simulated time or more would not be taken.
  [[nodiscard]] Seconds step_worth(Bytes limit) const {
    return std::min(request_.worth, least_step_seconds(candidates_, limit));
  }
  /// A limit makes nothing faster: where only a plan in less than `worth` is wanted, a mesh whose
  /// plans without a limit are not has none (one that hides its communication better may be lost).
  [[nodiscard]] bool can_win(const MapMesh& search) const {
    return search.free_seconds() < request_.worth;
  }

  /// The same of the additive time, of which as much hides as without a limit.
  [[nodiscard]] Seconds additive_worth(const MapMesh& search, Bytes limit) const {
    const Seconds least = least_additive_seconds(candidates_, limit);
    return request_.worth == kInfinity
               ? least
               : std::min(least, request_.worth * search.free_bound() / search.free_seconds());
  }

  /// Every mesh without a limit, the first time.
  Status solve_free(const Budget& budget) {
    while (searches_.size() < meshes_.size() && !(budget.exhausted() && !candidates_.empty())) {
      const std::size_t m = searches_.size();
      budget.control().report("meshes",
                              static_cast<double>(m) / static_cast<double>(meshes_.size()));
      SHARDPLAN_ASSIGN_OR_RETURN(MapMesh search, MapMesh::make(request_, structure_, meshes_[m]));
      searches_.push_back(std::make_unique<MapMesh>(std::move(search)));
      SHARDPLAN_RETURN_IF_ERROR(searches_.back()->solve_free(candidates_));
    }
    return {};
  }

  /// First every mesh quickly; then, from the most promising on, those proofs that are still open.
  /// Meshes whose bound is no better than a plan that fits need no more work.
  Status solve_within(Bytes limit, MapShared& shared, Proof& proof) {
    std::vector<std::pair<Seconds, std::size_t>> order;
    for (std::size_t m = 0; m < searches_.size(); ++m) {
      order.emplace_back(searches_[m]->free_bound(), m);
    }
    std::stable_sort(order.begin(), order.end());
    for (auto& [bound, m] : order) {
      if (!can_win(*searches_[m])) {
        continue;
      }
      // Plans of a slightly larger sum may hide more of their communication.
      const double margin = request_.cluster.local ? 1 : 1.02;
      const Seconds worth = margin * additive_worth(*searches_[m], limit);
      SHARDPLAN_ASSIGN_OR_RETURN(bound, searches_[m]->approach(limit, worth, shared));
    }
    std::stable_sort(order.begin(), order.end());
    Seconds effort = kProofEffort;
    proof.lower_bound = kInfinity;
    for (const auto& [approached, m] : order) {
      if (!can_win(*searches_[m])) {
        proof.lower_bound = std::min(proof.lower_bound, approached);
        continue;
      }
      const Seconds worth = additive_worth(*searches_[m], limit);
      SHARDPLAN_ASSIGN_OR_RETURN(MapMesh::Bound bound,
                                 searches_[m]->close(limit, worth, effort, shared));
      if (bound.additive < proof.lower_bound) {
        proof.lower_bound = bound.additive;
        proof.rows = std::move(bound.rows);
      }
    }
    if (searches_.size() < meshes_.size()) {
      proof = {};  // meshes that were not looked at have no bound
    }
    return {};
  }

  /// What hides its communication better, where that may win.
  Status solve_overlapping(Bytes limit, const Budget& budget, Proof& proof) {
    Seconds least = kInfinity;
    for (const std::unique_ptr<MapMesh>& search : searches_) {
      if (!budget.exhausted()) {
        SHARDPLAN_RETURN_IF_ERROR(search->solve_overlapping(step_worth(limit), candidates_));
      }
      least = std::min(least, search->least_step_seconds());
    }
    proof.step_lower_bound = searches_.size() < meshes_.size() ? 0 : least;
    return {};
  }

  Status add_experts(Bytes limit, const Budget& budget) {
    for (const ExpertRule& rule : expert_rules()) {
      if (!experts_.applies(rule)) {
        continue;
      }
      for (const cluster::DeviceMesh& mesh : expert_meshes(rule, request_.cluster.device_count())) {
        if (budget.exhausted()) {
          return {};
        }
        SHARDPLAN_ASSIGN_OR_RETURN(std::vector<Candidate> plans,
                                   experts_.plans(rule, mesh, limit, step_worth(limit)));
        std::move(plans.begin(), plans.end(), std::back_inserter(candidates_));
      }
    }
    return {};
  }

  /// Nothing fits: how much would.
  Status solve_least(MapShared& shared, Proof& proof) {
    proof.least_bytes = kInfinity;
    for (const std::unique_ptr<MapMesh>& search : searches_) {
      Bytes worth = std::numeric_limits<Bytes>::max();
      for (const Candidate& candidate : candidates_) {
        worth = std::min(worth, candidate.simulation.peak_bytes);
      }
      SHARDPLAN_ASSIGN_OR_RETURN(const double least,
                                 search->solve_least(static_cast<double>(worth), shared));
      proof.least_bytes = std::min(proof.least_bytes, least);
    }
    return {};
  }

  const PlanRequest& request_;
  std::shared_ptr<const problem::StepStructure> structure_;
  Experts experts_;
  std::vector<cluster::DeviceMesh> meshes_;
  std::vector<std::unique_ptr<MapMesh>> searches_;  ///< of the first meshes
  MemoryRows rows_;
  std::vector<Candidate> candidates_;  ///< every plan found, for any limit
};

Result<PlanResult> plan_map(const PlanRequest& request) {
  const Budget budget(request);
  return MapSearch(request).plan(memory_limit(request), budget);
}

Result<std::vector<PlanResult>> sweep_map(const PlanRequest& request,
                                          const std::vector<Bytes>& limits) {
  MapSearch search(request);
  // From the most memory to the least: every plan found stays a candidate, so that more memory
  // never gives a slower plan.
  std::vector<PlanResult> results(limits.size());
  for (std::size_t pass = 0; pass < 2; ++pass) {
    for (std::size_t i = limits.size(); i-- > 0;) {
      const Budget budget(request);
      const Seconds before = results[i].best.prediction.search_seconds;
      SHARDPLAN_ASSIGN_OR_RETURN(results[i], search.plan(limits[i], budget));
      results[i].best.prediction.search_seconds += before;
    }
  }
  return results;
}

}  // namespace

PlannerInfo map_planner() {
  return {"map",
          "after Liu et al., MAP, arXiv 2302.02599",
          2023,
          "sharding, optimizer state layout and recomputation together, within the memory limit",
          plan_map,
          sweep_map};
}

}  // namespace shardplan::planners
