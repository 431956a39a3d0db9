// PipeDream: Generalized Pipeline Parallelism for DNN Training (Narayanan et al., SOSP 2019).
//
// A[i][j][m] is the least time of the slowest stage when the layers between two states i and j are
// given to m machines: all of them one stage of m replicas, or A[i][k][m - m'] with a last stage
// from k to j of m' replicas. A level with machines of its own repeats this, with the lower level's
// A[i][j][all machines] in place of the time of the layers. Read Level::solve and Level::improve.
//
// Names are the paper's: i, j, k are states, m and m' machines. Transfers between stages count
// (the published code leaves them out unless it is given a compression ratio).
//
// What the published code does, and so does this: the time of synchronisation is divided by the
// machines of the lower levels only where one stage takes all; the stash of that case is
// ceil((M - m)/m), of a last stage ceil((M - m)/m'), where m are all machines used so far.
// Deviations: at least one copy of weights and activations must fit, also where nothing is stashed;
// what a cut sends is what later layers read (the published code also counts a layer
// whose readers are all inside, where they branch), and on a lower level a split must lie inside
// its stage (the published code subtracts sums of states of which none is a part of the other).
//
// Speed of many machines at the last level: see pipedream_targets.h. Of the levels below it, and of
// few machines: (T(j) - T(k))/m' bounds the last stage and (T(k) - T(i))/(m - m') the rest, T
// being the time of the layers divided by the machines of the lower levels; states are sorted by T,
// so the k to look at are a window around the balanced one.

#include "shardplan/planners/pipeline/pipedream2019.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "shardplan/planners/pipeline/cut_states.h"
#include "shardplan/planners/pipeline/pipedream_targets.h"
#include "shardplan/planners/pipeline/target_descent.h"
#include "shardplan/problem/pipeline_objectives.h"

namespace shardplan::planners {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kMostStates = 20'000;
constexpr double kMostTableEntries = 2e8;
constexpr double kMostSplits = 2e9;  // of states and numbers of machines, at a level

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

/// What the recurrence is asked, apart from the level.
struct Rules {
  double memory_bytes = 0;  // 0 = no limit
  double units_per_second = 1;
  bool straight = false;  // one machine a stage
  bool fewer = false;     // machines may be left over
};

/// Machines of one level, and what a stage takes on one of them.
class Level {
 public:
  /// `lower` is null at the first level; outlives this one.
  Level(const CutStates& states,
        const Rules& rules,
        const solvers::Budget& budget,
        int machines,
        double bandwidth,
        Level* lower)
      : states_(states),
        rules_(rules),
        budget_(budget),
        machines_(machines),
        bandwidth_(bandwidth),
        within_(lower == nullptr ? 1 : lower->within_ * lower->machines_),
        lower_(lower) {}

  struct Cell {
    double time = kInfinity;
    int split = -1;    // the state before the last stage; -1: one stage
    int replicas = 0;  // of the last stage
    int machines = 0;  // that are used, of those there are
  };

  /// A[i][j][m] for all j that contain i, for one i.
  void solve(int i) {
    from_ = i;
    inside_.clear();
    for (int j = i + 1; j < states_.count(); ++j) {
      if (states_.contains(j, i)) {
        inside_.push_back(j);
      }
    }
    table_.assign(inside_.size() * at(machines_ + 1), {});
    for (std::size_t j = 0; j < inside_.size(); ++j) {
      for (int m = 1; m <= machines_ && !budget_.exhausted(); ++m) {
        Cell& cell = table_[j * at(machines_ + 1) + at(m)];
        cell = one_stage(inside_[j], m);
        if (rules_.fewer && m > 1 && table_[j * at(machines_ + 1) + at(m - 1)].time < cell.time) {
          cell = table_[j * at(machines_ + 1) + at(m - 1)];
        }
        // All machines busy all the time is as good as it gets.
        const double ideal = least(i, inside_[j]) / m;
        for (int last = 1;
             cell.time > ideal && last <= (rules_.straight ? std::min(1, m - 1) : m - 1);
             ++last) {
          improve(cell, j, m, last);
        }
      }
    }
  }

  /// Keeps A[i][j][all machines] of every pair, for the level above.
  void solve_all() {
    whole_.assign(at(states_.count()) * at(states_.count()), kInfinity);
    for (int i = 0; i < states_.count() && !budget_.exhausted(); ++i) {
      solve(i);
      for (std::size_t j = 0; j < inside_.size(); ++j) {
        whole_[at(i) * at(states_.count()) + at(inside_[j])] = cell_of(j, machines_).time;
      }
    }
  }

  [[nodiscard]] double whole(int i, int j) const {
    return whole_[at(i) * at(states_.count()) + at(j)];
  }

  /// A stage of a solution: of all machines of the level, `used` are its own or come before it.
  struct Cut {
    int from = 0;
    int to = 0;
    int replicas = 0;
    int used = 0;
  };

  /// The stages between two states. Solves the lower levels again.
  std::vector<problem::LayerStage> stages(int from, int to) {
    solve(from);
    std::vector<Cut> cuts;
    int m = machines_;
    int j = to;
    while (j != from) {
      const Cell cell = cell_of(index_of(j), m);
      const int k = cell.split < 0 ? from : cell.split;
      cuts.push_back({k, j, cell.replicas, cell.machines});
      m = cell.machines - cell.replicas;
      j = k;
    }
    std::reverse(cuts.begin(), cuts.end());
    return stages_of(cuts);
  }

  [[nodiscard]] std::vector<problem::LayerStage> stages_of(const std::vector<Cut>& cuts) {
    std::vector<problem::LayerStage> all;
    for (const Cut& cut : cuts) {
      problem::LayerStage& stage = all.emplace_back();
      stage.layers = states_.layers(cut.from, cut.to);
      stage.replicas = cut.replicas;
      stage.degree = within_;
      stage.time = time_of(cut, cut.from == cuts.front().from);
      stage.memory_bytes = stash(cut.from, cut.to, cut.used, cut.replicas);
      if (lower_ != nullptr) {
        stage.inner = lower_->stages(cut.from, cut.to);
      }
    }
    return all;
  }

  /// One stage that all machines of all levels share; its time in `time`.
  [[nodiscard]] problem::LayerStage data_parallel(double& time) const {
    problem::LayerStage stage;
    time = states_.time(states_.last());
    if (lower_ != nullptr) {
      stage.inner.push_back(lower_->data_parallel(time));
    }
    time = (time + sync(0, states_.last(), machines_) / within_) / machines_;
    stage.memory_bytes = stash(0, states_.last(), machines_, machines_);
    stage.layers = states_.layers(0, states_.last());
    stage.replicas = machines_;
    stage.degree = within_;
    stage.time = time;
    return stage;
  }

  // What a search by targets asks.

  /// Time of synchronising the weights of a stage.
  [[nodiscard]] double sync(int i, int j, int replicas) const {
    const double weights = states_.parameter_bytes(j) - states_.parameter_bytes(i);
    return transfer(4.0 * (replicas - 1) * weights / replicas);
  }
  [[nodiscard]] int machines() const { return machines_; }
  /// Of the stage between two states on so many machines; the first stage sends at no cost, and its
  /// machines within share its synchronisation.
  [[nodiscard]] double time_of(const Cut& cut, bool first) const {
    if (first) {
      return (compute(cut.from, cut.to) + sync(cut.from, cut.to, cut.replicas) / within_) /
             cut.replicas;
    }
    return last_stage(cut.from, cut.to, cut.replicas);
  }
  /// How many versions of a stage's weights and activations fit.
  [[nodiscard]] double versions(int from, int to) const {
    const double bytes = states_.in_flight_bytes(to) - states_.in_flight_bytes(from) +
                         states_.parameter_bytes(to) - states_.parameter_bytes(from);
    return rules_.memory_bytes <= 0 || bytes <= 0 ? kInfinity
                                                  : std::floor(rules_.memory_bytes / bytes);
  }
  /// Time of the layers between two states if the lower levels' machines shared it evenly.
  [[nodiscard]] double least(int from, int to) const {
    return least_between(states_.time(from), states_.time(to));
  }

  [[nodiscard]] double best(int to) const { return cell_of(index_of(to), machines_).time; }

 private:
  [[nodiscard]] const Cell& cell_of(std::size_t j, int m) const {
    return table_[j * at(machines_ + 1) + at(m)];
  }
  [[nodiscard]] std::size_t index_of(int state) const {
    return static_cast<std::size_t>(std::lower_bound(inside_.begin(), inside_.end(), state) -
                                    inside_.begin());
  }
  /// Of the layers between two states on one machine of this level.
  [[nodiscard]] double compute(int i, int j) const {
    return lower_ == nullptr ? states_.time(j) - states_.time(i) : lower_->whole(i, j);
  }
  /// At most compute().
  [[nodiscard]] double least_between(double time_i, double time_j) const {
    return (time_j - time_i) / within_;
  }
  [[nodiscard]] double transfer(double bytes) const {
    return bytes / bandwidth_ * rules_.units_per_second;
  }
  [[nodiscard]] double stash(int i, int j, int used, int replicas) const {
    const double copies =
        std::max(1.0, std::ceil(static_cast<double>(machines_ - used) / replicas));
    return copies * (states_.in_flight_bytes(j) - states_.in_flight_bytes(i) +
                     states_.parameter_bytes(j) - states_.parameter_bytes(i));
  }
  [[nodiscard]] bool fits(double bytes) const {
    return rules_.memory_bytes <= 0 || bytes <= rules_.memory_bytes;
  }

  [[nodiscard]] Cell one_stage(int j, int m) const {
    if ((rules_.straight && m > 1) || !fits(stash(from_, j, m, m))) {
      return {};
    }
    return {time_of({from_, j, m, m}, true), -1, m, m};
  }

  [[nodiscard]] double last_stage(int k, int j, int replicas) const {
    return std::max({(compute(k, j) + sync(k, j, replicas)) / replicas,
                     transfer(2 * states_.cut_bytes(k) / replicas),
                     transfer(2 * states_.cut_bytes(j) / replicas)});
  }

  /// Tries all splits of the first m machines that leave `last` to the last stage, from the
  /// balanced one outwards until nothing further out can be better.
  void improve(Cell& cell, std::size_t j, int m, int last) const {
    const int to = inside_[j];
    const int rest = m - last;
    const double begin = states_.time(from_);
    const double end = states_.time(to);
    const double balanced = (begin * last + end * rest) / m;
    const auto middle = static_cast<std::size_t>(
        std::partition_point(inside_.begin(),
                             inside_.begin() + static_cast<std::ptrdiff_t>(j),
                             [&](int k) { return states_.time(k) < balanced; }) -
        inside_.begin());
    const auto consider = [&](std::size_t k) {
      const int state = inside_[k];
      const Cell& before = cell_of(k, rest);
      if (before.time >= cell.time || !states_.contains(to, state)) {
        return;
      }
      const double time = std::max(before.time, last_stage(state, to, last));
      const int used = before.machines + last;
      if (time < cell.time && fits(stash(state, to, used, last))) {
        cell = {time, state, last, used};
      }
    };
    for (std::size_t k = middle; k-- > 0;) {
      if (least_between(states_.time(inside_[k]), end) / last >= cell.time) {
        break;
      }
      consider(k);
    }
    for (std::size_t k = middle; k < j; ++k) {
      if (least_between(begin, states_.time(inside_[k])) / rest >= cell.time) {
        break;
      }
      consider(k);
    }
  }

  const CutStates& states_;
  const Rules& rules_;
  const solvers::Budget& budget_;
  int machines_;
  double bandwidth_;
  int within_;
  Level* lower_;
  int from_ = 0;
  std::vector<int> inside_{};    // states that contain `from_`, rising
  std::vector<Cell> table_{};    // by those, and machines
  std::vector<double> whole_{};  // by pair of states
};

Result<std::vector<Level>> make_levels(const CutStates& states,
                                       const Rules& rules,
                                       const solvers::Budget& budget,
                                       const problem::LayerMachines& machines) {
  std::vector<int> counts = machines.hierarchy;
  std::vector<double> bandwidths = machines.bandwidths;
  if (counts.empty()) {
    counts = {machines.devices};
    bandwidths = {machines.bandwidth};
  }
  for (const double bandwidth : bandwidths) {
    if (bandwidth <= 0) {
      return invalid_input("pipedream needs the bandwidth between machines; give one",
                           "--bandwidth");
    }
  }
  const double pairs = static_cast<double>(states.count()) * states.count();
  for (std::size_t level = 0; level + 1 < counts.size(); ++level) {
    const double entries = pairs + static_cast<double>(states.count()) * (counts[level] + 1);
    const double splits = static_cast<double>(counts[level]) * counts[level] * states.count();
    if (entries > kMostTableEntries || splits > kMostSplits) {
      return unsupported(
          fmt::format("pipedream keeps a table of {} states on {} machines of level {}, which is "
                      "too large",
                      states.count(),
                      counts[level],
                      level + 1),
          "--hierarchy");
    }
  }
  std::vector<Level> levels;
  levels.reserve(counts.size());
  for (std::size_t level = 0; level < counts.size(); ++level) {
    levels.emplace_back(states,
                        rules,
                        budget,
                        counts[level],
                        bandwidths[level],
                        level == 0 ? nullptr : &levels[level - 1]);
  }
  return levels;
}

std::string why_none(const problem::LayerMachines& machines, const Rules& rules) {
  return fmt::format(
      "no stages for {} devices{}",
      machines.devices,
      rules.memory_bytes > 0
          ? fmt::format(" of {:.6g} bytes: the weights and activations of every version that "
                        "is stashed must fit",
                        rules.memory_bytes)
          : "; straight pipelines need a layer for each, or the option fewer = yes");
}

/// The last level's stages, by its table or by targets.
class Top {
 public:
  Top(const CutStates& states, const Rules& rules, const solvers::Budget& budget, Level& level)
      : states_(states), rules_(rules), budget_(budget), level_(level) {}

  void run(LayerPlanResult& result) {
    if (level_.machines() <= kFewMachines) {
      level_.solve(0);
      result.objective = budget_.exhausted() ? kInfinity : level_.best(states_.last());
      if (result.objective < kInfinity) {
        result.lower_bound = result.objective;
        result.best.stages = level_.stages(0, states_.last());
      }
      return;
    }
    by_targets();
    result.objective = ends_.high;
    result.lower_bound = best_.empty() ? result.lower_bound : ends_.low;
    if (!best_.empty()) {
      result.best.stages = level_.stages_of(best_);
    }
  }

 private:
  static constexpr int kFewMachines = 20;  // whose table is filled in less time

  void by_targets() {
    PipedreamTargets::Costs costs;
    costs.states = states_.count();
    costs.machines = level_.machines();
    costs.all_machines = !rules_.fewer;
    costs.replicas = !rules_.straight;
    costs.contains = [&](int outer, int inner) { return states_.contains(outer, inner); };
    costs.time = [&](int from, int to, int replicas) {
      return level_.time_of({from, to, replicas, replicas}, from == 0);
    };
    for (int state = 0; state < states_.count(); ++state) {
      costs.single.push_back(level_.least(0, state));
      costs.synchronisation.push_back(level_.sync(0, state, 2));
    }
    costs.versions = [&](int from, int to) { return level_.versions(from, to); };
    PipedreamTargets targets(std::move(costs));
    ends_.low = level_.least(0, states_.last()) / level_.machines();
    ends_.stopped = [&] { return budget_.exhausted(); };
    const TargetDescent::Try find = [&](double target) { return improve(targets, target); };
    if (find(std::numeric_limits<double>::max())) {
      ends_.descend(find, find);
    }
  }

  bool improve(PipedreamTargets& targets, double target) {
    const std::vector<PipedreamTargets::Stage> stages = targets.find(target, budget_);
    if (stages.empty()) {
      return false;
    }
    std::vector<Level::Cut> cuts;
    double slowest = 0;
    int used = 0;
    for (const PipedreamTargets::Stage& stage : stages) {
      used += stage.replicas;
      cuts.push_back({stage.from, stage.to, stage.replicas, used});
      slowest = std::max(slowest, level_.time_of(cuts.back(), stage.from == 0));
    }
    if (slowest < ends_.high) {
      ends_.high = slowest;
      best_ = std::move(cuts);
    }
    return true;
  }

  const CutStates& states_;
  const Rules& rules_;
  const solvers::Budget& budget_;
  Level& level_;
  TargetDescent ends_{};
  std::vector<Level::Cut> best_{};
};

Result<LayerPlanResult> solve(const LayerRequest& request) {
  const solvers::SolveOptions options = limits_of(request);
  const solvers::Budget budget(options);
  SHARDPLAN_ASSIGN_OR_RETURN(const CutStates states,
                             CutStates::create(request.graph, "pipedream", kMostStates));
  Rules rules;
  rules.memory_bytes = request.machines.memory_bytes;
  rules.units_per_second = request.graph.units_per_transfer_second;
  rules.straight = request.options.at("straight") == "yes";
  rules.fewer = request.options.at("fewer") == "yes";
  SHARDPLAN_ASSIGN_OR_RETURN(std::vector<Level> levels,
                             make_levels(states, rules, budget, request.machines));
  for (std::size_t level = 0; level + 1 < levels.size(); ++level) {
    levels[level].solve_all();
  }
  Level& top = levels.back();
  LayerPlanResult result;
  if (!budget.exhausted()) {
    Top(states, rules, budget, top).run(result);
  }
  result.limit = search_limit(budget.limit());
  if (result.limit != SearchLimit::kNone && result.best.stages.empty() && !rules.straight) {
    result.best.stages = {top.data_parallel(result.objective)};
    if (rules.memory_bytes > 0 && result.best.stages.front().memory_bytes > rules.memory_bytes) {
      result.best.stages.clear();
    }
  }
  if (result.best.stages.empty()) {
    const bool stopped = result.limit != SearchLimit::kNone;
    result.status = stopped ? SearchStatus::kNoPlanFound : SearchStatus::kInfeasible;
    result.explanation = stopped ? "the search was stopped before it found a plan"
                                 : why_none(request.machines, rules);
    return result;
  }
  result.status =
      result.lower_bound >= result.objective ? SearchStatus::kOptimal : SearchStatus::kFeasible;
  result.best.schedule = "pipedream";
  return result;
}

}  // namespace

LayerPlannerInfo pipedream_planner() {
  return {"pipedream",
          "Narayanan et al., PipeDream: Generalized Pipeline Parallelism for DNN Training",
          2019,
          "replicated stages, level by level of the machines, for the asynchronous steady state",
          "tensor parallelism, recomputation, fill and drain of the pipeline",
          "in the slowest stage",
          {{"straight", "no", {"no", "yes"}, "one machine a stage"},
           {"fewer", "no", {"no", "yes"}, "machines may be left over"}},
          &solve,
          &problem::pipedream_objective};
}

}  // namespace shardplan::planners
