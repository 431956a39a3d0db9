// Read `Beam::run` (one pass at one width) and `Beam::advance` (one variable), then
// `solve_by_beam`, which widens. A state is what later variables can see of a partial assignment:
// the choices that still matter (its frontier), its cost, usage and bound.
#include "shardplan/solvers/beam.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "shardplan/solvers/feasibility.h"
#include "shardplan/solvers/local_search.h"
#include "shardplan/solvers/relaxed_start.h"

namespace shardplan::solvers {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// States of one step, in columns.
struct Layer {
  std::size_t frontier = 0;  ///< choices a state
  std::size_t rows = 0;
  std::vector<double> bound{};
  std::vector<double> cost{};
  std::vector<double> usage{};           ///< rows a state
  std::vector<std::uint16_t> choices{};  ///< frontier a state

  [[nodiscard]] std::size_t size() const { return bound.size(); }
};

/// How a kept state came about.
struct Origin {
  std::uint32_t parent = 0;
  std::uint16_t choice = 0;
};

/// A state that may be kept.
struct Candidate {
  double bound = 0;
  double cost = 0;
  std::uint32_t parent = 0;
  std::uint16_t choice = 0;
};

class Beam {
 public:
  Beam(const ConstrainedProblem& problem, const RelaxedStart& relaxed, const Budget& budget);

  struct Outcome {
    bool finished = false;
    /// No assignment that this pass did not see costs less; infinity: it saw all that matter.
    double bound = kInfinity;
    std::optional<std::vector<int>> choice{};  ///< a feasible one, if it found one
  };
  /// Keeps at most `width` states. Assignments of `cutoff` or more do not matter.
  Outcome run(std::size_t width, double cutoff);

 private:
  void find_frontiers();
  void find_rest();
  void advance(std::size_t step, std::size_t width, double cutoff);
  void expand(std::size_t step, std::size_t state, double cutoff);
  void drop_dominated(std::size_t step);
  [[nodiscard]] int compare_frontier(std::size_t step,
                                     const Candidate& a,
                                     const Candidate& b) const;
  [[nodiscard]] std::uint16_t frontier_choice(std::size_t slot,
                                              std::size_t step,
                                              const Candidate& candidate) const;
  [[nodiscard]] bool dominates(std::size_t a, std::size_t b) const;
  void keep(std::size_t step, std::size_t width);
  [[nodiscard]] std::vector<int> trace(std::size_t state) const;

  const ConstrainedProblem& problem_;
  const MiniBuckets& relaxation_;
  const Budget& budget_;
  double root_;
  std::size_t rows_;
  // By step: the variables that earlier steps chose and this or a later one looks at; where the
  // step's context is in it; where each entry of the next frontier is in it (its size: the step's
  // own variable).
  std::vector<std::vector<int>> frontier_;
  std::vector<std::vector<std::size_t>> context_slot_;
  std::vector<std::vector<std::size_t>> inherited_;
  // By step and row: least and largest usage of what later steps add.
  std::vector<std::vector<double>> rest_least_;
  std::vector<std::vector<double>> rest_most_;
  double fixed_cost_ = 0;
  std::vector<double> fixed_usage_;

  Layer layer_;
  std::vector<std::vector<Origin>> origins_;  ///< by step
  std::vector<Candidate> candidates_;
  std::vector<double> candidate_usage_;  ///< rows a candidate, as far as it matters
  double dropped_ = kInfinity;           ///< least bound of a state dropped for room or the cutoff
  // Scratch of expand().
  std::vector<int> context_;
  std::vector<double> increments_;
  std::vector<double> cost_;
  std::vector<std::vector<double>> usage_;
};

Beam::Beam(const ConstrainedProblem& problem, const RelaxedStart& relaxed, const Budget& budget)
    : problem_(problem),
      relaxation_(relaxed.relaxation()),
      budget_(budget),
      root_(relaxed.root()),
      rows_(problem.rows.size()),
      usage_(problem.rows.size()) {
  find_frontiers();
  find_rest();
}

void Beam::find_frontiers() {
  const std::vector<int>& order = relaxation_.order();
  std::vector<std::size_t> last_use(problem_.objective.unary.size(), 0);
  for (std::size_t step = 0; step < order.size(); ++step) {
    for (const int v : relaxation_.context(step)) {
      last_use[static_cast<std::size_t>(v)] = step;
    }
  }
  std::vector<int> frontier;
  for (std::size_t step = 0; step < order.size(); ++step) {
    std::vector<std::size_t> slots;
    for (const int v : relaxation_.context(step)) {
      slots.push_back(static_cast<std::size_t>(std::find(frontier.begin(), frontier.end(), v) -
                                               frontier.begin()));
    }
    std::vector<int> next;
    std::vector<std::size_t> inherited;
    for (std::size_t i = 0; i <= frontier.size(); ++i) {
      const int v = i < frontier.size() ? frontier[i] : order[step];
      if (last_use[static_cast<std::size_t>(v)] > step) {
        next.push_back(v);
        inherited.push_back(i);
      }
    }
    context_slot_.push_back(std::move(slots));
    inherited_.push_back(std::move(inherited));
    frontier_.push_back(std::exchange(frontier, std::move(next)));
  }
}

void Beam::find_rest() {
  const std::size_t steps = relaxation_.order().size();
  const CostNetwork& objective = problem_.objective;
  rest_least_.assign(steps + 1, std::vector<double>(rows_, 0));
  rest_most_ = rest_least_;
  for (std::size_t step = steps; step-- > 0;) {
    rest_least_[step] = rest_least_[step + 1];
    rest_most_[step] = rest_most_[step + 1];
    for (const MiniBuckets::Function& function : relaxation_.functions(step)) {
      for (std::size_t r = 0; r < rows_; ++r) {
        const auto own = static_cast<std::size_t>(relaxation_.order()[step]);
        const CostTable& table =
            function.factor < 0
                ? problem_.rows[r].unary[own]
                : problem_.rows[r].factors[static_cast<std::size_t>(function.factor)];
        if (table) {
          const auto [least, most] = std::minmax_element(table->begin(), table->end());
          rest_least_[step][r] += *least;
          rest_most_[step][r] += *most;
        }
      }
    }
  }
  // What has no choice.
  for (const ConstrainedProblem::Row& row : problem_.rows) {
    fixed_usage_.push_back(row.constant);
  }
  const auto is_fixed = [&](int v) {
    return objective.unary[static_cast<std::size_t>(v)]->size() == 1;
  };
  for (std::size_t v = 0; v < objective.unary.size(); ++v) {
    if (is_fixed(static_cast<int>(v))) {
      fixed_cost_ += objective.unary[v]->front();
      for (std::size_t r = 0; r < rows_; ++r) {
        const CostTable& table = problem_.rows[r].unary[v];
        fixed_usage_[r] += table ? table->front() : 0;
      }
    }
  }
  for (std::size_t f = 0; f < objective.factors.size(); ++f) {
    const std::vector<int>& scope = objective.factors[f].scope;
    if (std::all_of(scope.begin(), scope.end(), is_fixed)) {
      fixed_cost_ += objective.factors[f].cost->front();
      for (std::size_t r = 0; r < rows_; ++r) {
        const CostTable& table = problem_.rows[r].factors[f];
        fixed_usage_[r] += table ? table->front() : 0;
      }
    }
  }
}

/// Adds the candidates of one state.
void Beam::expand(std::size_t step, std::size_t state, double cutoff) {
  const std::uint16_t* const open = layer_.choices.data() + state * layer_.frontier;
  context_.clear();
  for (const std::size_t slot : context_slot_[step]) {
    context_.push_back(open[slot]);
  }
  relaxation_.increments(step, context_, increments_);
  const auto own = static_cast<std::size_t>(relaxation_.order()[step]);
  const std::size_t count = increments_.size();
  cost_.assign(count, layer_.cost[state]);
  for (std::size_t r = 0; r < rows_; ++r) {
    usage_[r].assign(count, layer_.usage[state * rows_ + r]);
  }
  for (const MiniBuckets::Function& function : relaxation_.functions(step)) {
    std::size_t start = 0;
    for (std::size_t i = 0; i < context_.size(); ++i) {
      start += function.stride[i] * static_cast<std::size_t>(context_[i]);
    }
    const std::size_t stride = function.stride.back();
    const auto add = [&](const CostTable& table, std::vector<double>& sum) {
      for (std::size_t c = 0; table && c < count; ++c) {
        sum[c] += (*table)[start + c * stride];
      }
    };
    const auto f = static_cast<std::size_t>(function.factor);
    add(function.factor < 0 ? problem_.objective.unary[own] : problem_.objective.factors[f].cost,
        cost_);
    for (std::size_t r = 0; r < rows_; ++r) {
      add(function.factor < 0 ? problem_.rows[r].unary[own] : problem_.rows[r].factors[f],
          usage_[r]);
    }
  }
  for (std::size_t c = 0; c < count; ++c) {
    const double bound = layer_.bound[state] + increments_[c];
    bool possible = bound < kInfinity;
    for (std::size_t r = 0; possible && r < rows_; ++r) {
      possible = meets_limit(usage_[r][c] + rest_least_[step + 1][r], problem_.rows[r].limit);
    }
    if (!possible) {
      continue;
    }
    if (bound >= cutoff) {
      dropped_ = std::min(dropped_, bound);
      continue;
    }
    candidates_.push_back(
        {bound, cost_[c], static_cast<std::uint32_t>(state), static_cast<std::uint16_t>(c)});
    for (std::size_t r = 0; r < rows_; ++r) {
      // Below this, whatever comes fits.
      const double harmless = problem_.rows[r].limit - rest_most_[step + 1][r];
      candidate_usage_.push_back(std::max(usage_[r][c], harmless));
    }
  }
}

std::uint16_t Beam::frontier_choice(std::size_t slot,
                                    std::size_t step,
                                    const Candidate& candidate) const {
  const std::size_t from = inherited_[step][slot];
  return from == layer_.frontier ? candidate.choice
                                 : layer_.choices[candidate.parent * layer_.frontier + from];
}

int Beam::compare_frontier(std::size_t step, const Candidate& a, const Candidate& b) const {
  for (std::size_t slot = 0; slot < inherited_[step].size(); ++slot) {
    const std::uint16_t x = frontier_choice(slot, step, a);
    const std::uint16_t y = frontier_choice(slot, step, b);
    if (x != y) {
      return x < y ? -1 : 1;
    }
  }
  return 0;
}

bool Beam::dominates(std::size_t a, std::size_t b) const {
  if (candidates_[a].cost > candidates_[b].cost) {
    return false;
  }
  for (std::size_t r = 0; r < rows_; ++r) {
    if (candidate_usage_[a * rows_ + r] > candidate_usage_[b * rows_ + r]) {
      return false;
    }
  }
  return true;
}

/// Of candidates with the same open choices, keeps those that are better in something.
void Beam::drop_dominated(std::size_t step) {
  std::vector<std::size_t> order(candidates_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const int frontier = compare_frontier(step, candidates_[a], candidates_[b]);
    if (frontier != 0) {
      return frontier < 0;
    }
    return candidates_[a].cost != candidates_[b].cost ? candidates_[a].cost < candidates_[b].cost
                                                      : a < b;
  });
  constexpr std::size_t kMostCompared = 64;
  std::vector<std::size_t> kept;
  std::size_t group = 0;  // first of those kept with the same open choices
  for (const std::size_t i : order) {
    if (!kept.empty() && compare_frontier(step, candidates_[kept.back()], candidates_[i]) != 0) {
      group = kept.size();
    }
    const std::size_t last = std::min(kept.size(), group + kMostCompared);
    bool dominated = false;
    for (std::size_t k = group; k < last && !dominated; ++k) {
      dominated = dominates(kept[k], i);
    }
    if (!dominated) {
      kept.push_back(i);
    }
  }
  std::vector<Candidate> candidates;
  std::vector<double> usage;
  for (const std::size_t i : kept) {
    candidates.push_back(candidates_[i]);
    for (std::size_t r = 0; r < rows_; ++r) {
      usage.push_back(candidate_usage_[i * rows_ + r]);
    }
  }
  candidates_ = std::move(candidates);
  candidate_usage_ = std::move(usage);
}

/// Makes the next layer of the candidates of least bound.
void Beam::keep(std::size_t step, std::size_t width) {
  std::vector<std::size_t> order(candidates_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (order.size() > width) {
    const auto cut = order.begin() + static_cast<std::ptrdiff_t>(width);
    std::nth_element(order.begin(), cut, order.end(), [&](std::size_t a, std::size_t b) {
      return std::pair(candidates_[a].bound, a) < std::pair(candidates_[b].bound, b);
    });
    dropped_ = std::min(dropped_, candidates_[*cut].bound);
    order.erase(cut, order.end());
    std::sort(order.begin(), order.end());
  }
  Layer next;
  next.frontier = inherited_[step].size();
  next.rows = rows_;
  for (const std::size_t i : order) {
    const Candidate& candidate = candidates_[i];
    next.bound.push_back(candidate.bound);
    next.cost.push_back(candidate.cost);
    for (std::size_t r = 0; r < rows_; ++r) {
      next.usage.push_back(candidate_usage_[i * rows_ + r]);
    }
    for (std::size_t slot = 0; slot < next.frontier; ++slot) {
      next.choices.push_back(frontier_choice(slot, step, candidate));
    }
    origins_[step].push_back({candidate.parent, candidate.choice});
  }
  layer_ = std::move(next);
}

void Beam::advance(std::size_t step, std::size_t width, double cutoff) {
  candidates_.clear();
  candidate_usage_.clear();
  for (std::size_t state = 0; state < layer_.size(); ++state) {
    expand(step, state, cutoff);
  }
  drop_dominated(step);
  keep(step, width);
}

std::vector<int> Beam::trace(std::size_t state) const {
  std::vector<int> choice(problem_.objective.unary.size(), 0);
  for (std::size_t step = origins_.size(); step-- > 0;) {
    const Origin& origin = origins_[step][state];
    choice[static_cast<std::size_t>(relaxation_.order()[step])] = origin.choice;
    state = origin.parent;
  }
  return choice;
}

Beam::Outcome Beam::run(std::size_t width, double cutoff) {
  Outcome outcome;
  const std::size_t steps = relaxation_.order().size();
  dropped_ = kInfinity;
  origins_.assign(steps, {});
  layer_ = Layer{.rows = rows_, .bound = {root_}, .cost = {fixed_cost_}, .usage = fixed_usage_};
  for (std::size_t step = 0; step < steps; ++step) {
    if (budget_.exhausted()) {
      return outcome;
    }
    advance(step, width, cutoff);
  }
  outcome.finished = true;
  outcome.bound = dropped_;
  std::size_t best = layer_.size();
  for (std::size_t state = 0; state < layer_.size(); ++state) {
    bool feasible = layer_.cost[state] < kInfinity;
    for (std::size_t r = 0; r < rows_; ++r) {
      feasible = feasible && meets_limit(layer_.usage[state * rows_ + r], problem_.rows[r].limit);
    }
    if (feasible && (best == layer_.size() || layer_.cost[state] < layer_.cost[best])) {
      best = state;
    }
  }
  if (best < layer_.size()) {
    outcome.choice = trace(best);
  }
  return outcome;
}

/// Wider and wider passes; the better of all that they find.
class Widening {
 public:
  Widening(const ConstrainedProblem& problem, const SolveOptions& options)
      : problem_(problem),
        options_(options),
        budget_(options),
        relaxed_(problem, options, budget_),
        search_(problem, options.seed),
        solution_(relaxed_.start()) {}

  Solution run() {
    if (solution_.status == SolveStatus::kInfeasible) {
      return solution_;
    }
    Beam beam(problem_, relaxed_, budget_);
    constexpr int kRestarts = 3;
    constexpr std::int64_t kThorough = 100'000'000;
    search_.run_from(
        relaxed_.starts(), solution_.multiplier, kRestarts, kThorough, target(), budget_);
    found_ = search_.best();
    constexpr std::size_t kWidest = std::size_t{1} << 14U;
    const std::size_t widest = options_.time_limit > 0 ? kWidest * 64 : kWidest;
    for (std::size_t width = 4; width <= widest && !done() && !budget_.exhausted(); width *= 4) {
      options_.control.report("beam", -1);
      const Beam::Outcome outcome = beam.run(width, cutoff());
      if (!outcome.finished) {
        break;
      }
      if (outcome.choice) {
        improve(*outcome.choice);
      }
      if (outcome.bound == kInfinity && !found_) {
        solution_.status = SolveStatus::kInfeasible;
        solution_.lower_bound = kInfinity;
        return solution_;
      }
      // What was not seen costs at least the pass's bound; what was seen, at least the best.
      const double seen = std::min(outcome.bound, cutoff());
      solution_.lower_bound =
          std::max(solution_.lower_bound, without_rounding(seen, problem_, solution_.multiplier));
    }
    return finish();
  }

 private:
  /// Offers an assignment, and what a few moves make of it.
  void improve(std::vector<int> start) {
    constexpr std::int64_t kKicks = 200;
    constexpr std::int64_t kWork = 20'000'000;
    search_.run(std::move(start), solution_.multiplier, kKicks, kWork, target(), budget_);
    found_ = search_.best();
  }

  [[nodiscard]] double target() const {
    return solution_.lower_bound + 0.5 * options_.gap * std::abs(solution_.lower_bound);
  }

  [[nodiscard]] double cutoff() const {
    if (!found_) {
      return kInfinity;
    }
    return found_->objective;
  }

  [[nodiscard]] bool done() const {
    return found_ && found_->objective - solution_.lower_bound <=
                         options_.gap * std::abs(solution_.lower_bound);
  }

  Solution finish() {
    solution_.limit = done() ? SolveLimit::kNone : budget_.limit();
    solution_.choice = found_ ? found_->choice : search_.closest();
    measure(problem_, solution_);
    if (found_) {
      solution_.status = SolveStatus::kFeasible;
    }
    conclude(solution_, options_.gap);
    return solution_;
  }

  const ConstrainedProblem& problem_;
  const SolveOptions& options_;
  Budget budget_;
  RelaxedStart relaxed_;
  LocalSearch search_;
  Solution solution_;
  std::optional<LocalSearch::Found> found_;
};

Solution solve_by_beam(const ConstrainedProblem& problem, const SolveOptions& options) {
  return Widening(problem, options).run();
}

}  // namespace

SolverInfo beam_solver() {
  return {"beam",
          "Lowerre 1976; Kask, Dechter 2001",
          "wider and wider beams ranked by a mini-bucket relaxation, whose drops give the bound",
          solve_by_beam};
}

}  // namespace shardplan::solvers
