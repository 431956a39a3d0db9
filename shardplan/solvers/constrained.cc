// Lagrangian relaxation of the limits over exact elimination. Read `Dual::maximise_row` (one
// multiplier by intersection of supporting lines) and `Primal` (feasible assignments), then
// `solve_constrained`.
#include "shardplan/solvers/constrained.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

namespace shardplan::solvers {
namespace {

constexpr int kMaxEvaluations = 400;  // of the Lagrangian
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Whether a usage meets a limit, up to rounding of sums.
bool meets(double usage, double limit) {
  return usage <= limit + 1e-9 * std::abs(limit);
}

/// One assignment with its objective and row usages.
struct Point {
  std::vector<int> choice;
  double objective = 0;
  std::vector<double> usage;
};

class Evaluator {
 public:
  explicit Evaluator(const ConstrainedProblem& problem) : problem_(problem) {}

  [[nodiscard]] Point point(std::vector<int> choice) const {
    Point point;
    point.objective = evaluate(problem_.objective, choice);
    for (const ConstrainedProblem::Row& row : problem_.rows) {
      point.usage.push_back(evaluate(problem_, row, choice));
    }
    point.choice = std::move(choice);
    return point;
  }
  [[nodiscard]] bool feasible(const Point& point) const {
    for (std::size_t r = 0; r < problem_.rows.size(); ++r) {
      if (!meets(point.usage[r], problem_.rows[r].limit)) {
        return false;
      }
    }
    return point.objective < kInfinity;
  }
  /// Largest relative excess over a limit; 0 when feasible.
  [[nodiscard]] double violation(const Point& point) const {
    double worst = 0;
    for (std::size_t r = 0; r < problem_.rows.size(); ++r) {
      const double limit = problem_.rows[r].limit;
      worst = std::max(worst, (point.usage[r] - limit) / std::max(std::abs(limit), 1e-300));
    }
    return worst;
  }

 private:
  const ConstrainedProblem& problem_;
};

/// The Lagrangian dual: value and a minimising assignment at given multipliers.
class Dual {
 public:
  Dual(const ConstrainedProblem& problem, Elimination& elimination, const SolveOptions& options)
      : problem_(problem), elimination_(elimination), options_(options), evaluator_(problem) {}

  struct Value {
    double bound = -kInfinity;
    Point point;
  };

  /// Minimum of objective_weight · objective + Σ multiplier · (row − limit).
  std::optional<Value> at(const std::vector<double>& multiplier, double objective_weight = 1) {
    ++evaluations_;
    const CostNetwork relaxed = relax(multiplier, objective_weight);
    const Elimination::Outcome outcome = elimination_.minimise(relaxed, std::size_t{1} << 26U);
    if (!outcome.solved) {
      return std::nullopt;
    }
    Value value;
    value.bound = outcome.solution.cost;
    for (std::size_t r = 0; r < multiplier.size(); ++r) {
      value.bound += multiplier[r] * (problem_.rows[r].constant - problem_.rows[r].limit);
    }
    value.point = evaluator_.point(outcome.solution.choice);
    return value;
  }

  [[nodiscard]] bool exhausted() const {
    return evaluations_ >= kMaxEvaluations || options_.control.interrupted();
  }

 private:
  [[nodiscard]] static CostTable combine(const CostTable& objective,
                                         const std::vector<const std::vector<double>*>& parts,
                                         const std::vector<double>& multiplier,
                                         double weight) {
    auto sum = std::make_shared<std::vector<double>>(*objective);
    if (weight == 0) {
      for (double& value : *sum) {
        value = value < kInfinity ? 0 : kInfinity;
      }
    }
    for (std::size_t r = 0; r < parts.size(); ++r) {
      if (parts[r] == nullptr || multiplier[r] == 0) {
        continue;
      }
      for (std::size_t i = 0; i < sum->size(); ++i) {
        (*sum)[i] += multiplier[r] * (*parts[r])[i];
      }
    }
    return sum;
  }

  CostNetwork relax(const std::vector<double>& multiplier, double weight) {
    std::map<std::vector<const std::vector<double>*>, CostTable> known;
    const auto combined = [&](const CostTable& objective, const auto& part_of) {
      std::vector<const std::vector<double>*> key{objective.get()};
      std::vector<const std::vector<double>*> parts;
      for (std::size_t r = 0; r < problem_.rows.size(); ++r) {
        const CostTable& part = part_of(problem_.rows[r]);
        parts.push_back(multiplier[r] == 0 ? nullptr : part.get());
      }
      key.insert(key.end(), parts.begin(), parts.end());
      if (weight == 1 && std::all_of(parts.begin(), parts.end(), [](const auto* part) {
            return part == nullptr;
          })) {
        return objective;
      }
      CostTable& slot = known[key];
      if (!slot) {
        slot = combine(objective, parts, multiplier, weight);
      }
      return slot;
    };
    CostNetwork relaxed;
    for (std::size_t v = 0; v < problem_.objective.unary.size(); ++v) {
      relaxed.unary.push_back(
          combined(problem_.objective.unary[v],
                   [v](const auto& row) -> const CostTable& { return row.unary[v]; }));
    }
    for (std::size_t f = 0; f < problem_.objective.factors.size(); ++f) {
      const CostNetwork::Factor& factor = problem_.objective.factors[f];
      relaxed.factors.push_back(
          {factor.scope, combined(factor.cost, [f](const auto& row) -> const CostTable& {
             return row.factors[f];
           })});
    }
    return relaxed;
  }

  const ConstrainedProblem& problem_;
  Elimination& elimination_;
  const SolveOptions& options_;
  Evaluator evaluator_;
  int evaluations_ = 0;
};

/// Feasible assignments and how they get better.
class Primal {
 public:
  explicit Primal(const ConstrainedProblem& problem) : problem_(problem), evaluator_(problem) {
    const std::size_t n = problem.objective.unary.size();
    factors_of_.resize(n);
    for (std::size_t f = 0; f < problem.objective.factors.size(); ++f) {
      for (const int v : problem.objective.factors[f].scope) {
        factors_of_[static_cast<std::size_t>(v)].push_back(f);
      }
    }
  }

  void offer(const Point& point) {
    if (evaluator_.feasible(point)) {
      if (!best_ || point.objective < best_->objective) {
        best_ = point;
      }
    } else if (!closest_ || evaluator_.violation(point) < evaluator_.violation(*closest_)) {
      closest_ = point;
    }
    if (seen_.size() < 12 || point.objective < kInfinity) {
      seen_.push_back(point);
      if (seen_.size() > 12) {
        seen_.erase(seen_.begin());
      }
    }
  }

  /// Joins every two of the assignments seen last at every variable: the first part of the one, the
  /// rest of the other. The variables follow the network, so a join costs one change of layout.
  void join_seen() {
    const std::vector<Point> points = seen_;
    for (std::size_t i = 0; i < points.size(); ++i) {
      for (std::size_t j = 0; j < points.size(); ++j) {
        if (i != j) {
          join(points[i], points[j]);
        }
      }
    }
  }

  void improve(const Control& control) {
    if (!best_) {
      return;
    }
    Point best = *best_;
    for (int round = 0; round < 50 && !control.interrupted(); ++round) {
      const bool single = improve_singles(best);
      if (!single && !improve_pairs(best)) {
        break;
      }
    }
    best_ = std::move(best);
  }

  [[nodiscard]] const std::optional<Point>& best() const { return best_; }
  [[nodiscard]] const std::optional<Point>& closest() const { return closest_; }

 private:
  struct Delta {
    double objective = 0;
    std::vector<double> usage;
  };

  void join(const Point& first, const Point& second) {
    Point point = second;
    for (std::size_t v = 0; v + 1 < point.choice.size(); ++v) {
      if (point.choice[v] == first.choice[v]) {
        continue;
      }
      // Infinite costs do not subtract: such a joint is evaluated afresh.
      const Delta delta = change(point, v, first.choice[v]);
      point.choice[v] = first.choice[v];
      if (std::isfinite(delta.objective) && std::isfinite(point.objective)) {
        point.objective += delta.objective;
      } else {
        point.objective = evaluate(problem_.objective, point.choice);
      }
      for (std::size_t r = 0; r < point.usage.size(); ++r) {
        point.usage[r] += delta.usage[r];
      }
      if (evaluator_.feasible(point) && (!best_ || point.objective < best_->objective)) {
        best_ = evaluator_.point(point.choice);
      }
    }
  }

  [[nodiscard]] Delta change(const Point& point, std::size_t v, int to) const {
    Delta delta;
    const CostNetwork& objective = problem_.objective;
    const int from = point.choice[v];
    const auto difference = [&](const CostTable& table) {
      return table
                 ? (*table)[static_cast<std::size_t>(to)] - (*table)[static_cast<std::size_t>(from)]
                 : 0.0;
    };
    delta.objective = difference(objective.unary[v]);
    delta.usage.resize(problem_.rows.size());
    for (std::size_t r = 0; r < problem_.rows.size(); ++r) {
      delta.usage[r] = difference(problem_.rows[r].unary[v]);
    }
    for (const std::size_t f : factors_of_[v]) {
      const CostNetwork::Factor& factor = objective.factors[f];
      const std::size_t before = table_index(objective, factor, point.choice);
      std::size_t stride = 1;  // of v in the table
      for (std::size_t i = factor.scope.size(); factor.scope[--i] != static_cast<int>(v);) {
        stride *= objective.unary[static_cast<std::size_t>(factor.scope[i])]->size();
      }
      const std::size_t after =
          before + stride * static_cast<std::size_t>(to) - stride * static_cast<std::size_t>(from);
      delta.objective += (*factor.cost)[after] - (*factor.cost)[before];
      for (std::size_t r = 0; r < problem_.rows.size(); ++r) {
        if (const CostTable& part = problem_.rows[r].factors[f]) {
          delta.usage[r] += (*part)[after] - (*part)[before];
        }
      }
    }
    return delta;
  }

  [[nodiscard]] bool fits(const std::vector<double>& usage, const Delta& delta) const {
    for (std::size_t r = 0; r < usage.size(); ++r) {
      if (!meets(usage[r] + delta.usage[r], problem_.rows[r].limit)) {
        return false;
      }
    }
    return true;
  }

  bool improve_singles(Point& best) {
    bool improved = false;
    for (std::size_t v = 0; v < best.choice.size(); ++v) {
      int best_choice = -1;
      double best_gain = -1e-12 * std::abs(best.objective);
      const int choices = static_cast<int>(problem_.objective.unary[v]->size());
      for (int c = 0; c < choices; ++c) {
        if (c == best.choice[v]) {
          continue;
        }
        const Delta delta = change(best, v, c);
        if (delta.objective < best_gain && fits(best.usage, delta)) {
          best_gain = delta.objective;
          best_choice = c;
        }
      }
      if (best_choice >= 0) {
        std::vector<int> choice = best.choice;
        choice[v] = best_choice;
        best = evaluator_.point(std::move(choice));
        improved = true;
      }
    }
    return improved;
  }

  /// Changes two variables of a factor together, where no single change helps.
  bool improve_pairs(Point& best) {
    bool improved = false;
    for (const CostNetwork::Factor& factor : problem_.objective.factors) {
      for (std::size_t i = 0; i < factor.scope.size(); ++i) {
        for (std::size_t j = i + 1; j < factor.scope.size(); ++j) {
          improved = improve_pair(static_cast<std::size_t>(factor.scope[i]),
                                  static_cast<std::size_t>(factor.scope[j]),
                                  best) ||
                     improved;
        }
      }
    }
    return improved;
  }

  bool improve_pair(std::size_t a, std::size_t b, Point& best) {
    constexpr std::size_t kLargestPair = 1024;
    const std::size_t choices_a = problem_.objective.unary[a]->size();
    const std::size_t choices_b = problem_.objective.unary[b]->size();
    if (a == b || choices_a * choices_b > kLargestPair) {
      return false;
    }
    for (std::size_t ca = 0; ca < choices_a; ++ca) {
      if (static_cast<int>(ca) == best.choice[a]) {
        continue;
      }
      Point moved = best;
      const Delta first = change(moved, a, static_cast<int>(ca));
      if (!std::isfinite(first.objective)) {
        continue;
      }
      moved.choice[a] = static_cast<int>(ca);
      moved.objective += first.objective;
      for (std::size_t r = 0; r < moved.usage.size(); ++r) {
        moved.usage[r] += first.usage[r];
      }
      for (std::size_t cb = 0; cb < choices_b; ++cb) {
        const Delta second = change(moved, b, static_cast<int>(cb));
        if (moved.objective + second.objective < best.objective * (1 - 1e-12) &&
            fits(moved.usage, second)) {
          moved.choice[b] = static_cast<int>(cb);
          best = evaluator_.point(moved.choice);
          return true;
        }
      }
    }
    return false;
  }

  const ConstrainedProblem& problem_;
  Evaluator evaluator_;
  std::vector<std::vector<std::size_t>> factors_of_;  ///< by variable
  std::optional<Point> best_;
  std::optional<Point> closest_;
  std::vector<Point> seen_;
};

/// Raises the bound along one multiplier, exactly: between a multiplier that violates the row and
/// one that meets it, the two supporting lines meet at the next trial; when the dual equals them
/// there, it is the maximum.
class Ascent {
 public:
  Ascent(const ConstrainedProblem& problem, Dual& dual, Primal& primal)
      : problem_(problem), dual_(dual), primal_(primal) {}

  /// Returns false when the relaxed problem could not be solved. `hint`: where to look first.
  bool row(std::size_t r, double hint, std::vector<double>& multiplier, Dual::Value& current) {
    std::vector<double> low = multiplier;
    low[r] = 0;
    std::optional<Dual::Value> value = multiplier[r] == 0 ? current : evaluate(low);
    if (!value) {
      return false;
    }
    Dual::Value below = *value;
    if (slope(below, r) <= 0) {
      take(low, below, multiplier, current);
      return true;
    }
    std::vector<double> high = low;
    hint = std::max(multiplier[r], hint);
    double factor = hint > 0 ? 1.3 : 8;
    high[r] = hint > 0 ? hint : first_guess(r, below);
    const double largest = 1e9 * std::max(high[r], first_guess(r, below));
    value = evaluate(high);
    if (!value) {
      return false;
    }
    Dual::Value above = *value;
    if (hint > 0 && slope(above, r) <= 0) {
      std::vector<double> near = high;
      near[r] /= factor;
      value = evaluate(near);
      if (value && slope(*value, r) > 0) {
        low = near;
        below = *value;
      } else if (value) {
        high = near;
        above = *value;
      }
    }
    while (slope(above, r) > 0 && !dual_.exhausted()) {
      if (high[r] > largest) {
        take(high, above, multiplier, current);
        return true;
      }
      low = high;
      below = above;
      high[r] *= factor;
      factor = 8;
      value = evaluate(high);
      if (!value) {
        return false;
      }
      above = *value;
    }
    return intersect(r, low, below, high, above, multiplier, current);
  }

  std::optional<Dual::Value> evaluate(const std::vector<double>& multiplier) {
    std::optional<Dual::Value> value = dual_.at(multiplier);
    if (value) {
      primal_.offer(value->point);
    }
    return value;
  }

 private:
  [[nodiscard]] double slope(const Dual::Value& value, std::size_t r) const {
    const double limit = problem_.rows[r].limit;
    return meets(value.point.usage[r], limit) ? std::min(0.0, value.point.usage[r] - limit)
                                              : value.point.usage[r] - limit;
  }

  [[nodiscard]] double first_guess(std::size_t r, const Dual::Value& value) const {
    const double excess = std::max(slope(value, r), 1e-3 * std::abs(problem_.rows[r].limit));
    return std::max(1e-3 * std::abs(value.point.objective), 1e-12) / std::max(excess, 1e-12);
  }

  static void take(const std::vector<double>& at,
                   const Dual::Value& value,
                   std::vector<double>& multiplier,
                   Dual::Value& current) {
    if (value.bound >= current.bound) {
      multiplier = at;
      current = value;
    }
  }

  bool intersect(std::size_t r,
                 std::vector<double> low,
                 Dual::Value below,
                 std::vector<double> high,
                 Dual::Value above,
                 std::vector<double>& multiplier,
                 Dual::Value& current) {
    while (!dual_.exhausted()) {
      const double rise = slope(below, r);
      const double fall = slope(above, r);
      if (rise - fall <= 0) {
        break;
      }
      const double meet =
          (above.bound - below.bound + rise * low[r] - fall * high[r]) / (rise - fall);
      const double height = below.bound + rise * (meet - low[r]);
      std::vector<double> middle = low;
      middle[r] = std::clamp(meet, low[r], high[r]);
      const std::optional<Dual::Value> value = evaluate(middle);
      if (!value) {
        return false;
      }
      take(middle, *value, multiplier, current);
      if (value->bound >= height - 1e-9 * std::abs(height)) {
        break;
      }
      if (slope(*value, r) > 0) {
        low = middle;
        below = *value;
      } else {
        high = middle;
        above = *value;
      }
    }
    take(low, below, multiplier, current);
    take(high, above, multiplier, current);
    return true;
  }

  const ConstrainedProblem& problem_;
  Dual& dual_;
  Primal& primal_;
};

/// Whether some row alone is beyond its limit for every assignment.
bool proven_infeasible(const ConstrainedProblem& problem, Dual& dual, Primal& primal) {
  for (std::size_t r = 0; r < problem.rows.size(); ++r) {
    std::vector<double> only(problem.rows.size(), 0);
    only[r] = 1;
    const std::optional<Dual::Value> value = dual.at(only, 0);
    if (!value) {
      return false;
    }
    primal.offer(value->point);
    if (!meets(value->bound + problem.rows[r].limit, problem.rows[r].limit)) {
      return true;
    }
  }
  return false;
}

}  // namespace

double evaluate(const CostNetwork& network, const std::vector<int>& choice) {
  double total = 0;
  for (std::size_t v = 0; v < choice.size(); ++v) {
    total += (*network.unary[v])[static_cast<std::size_t>(choice[v])];
  }
  for (const CostNetwork::Factor& factor : network.factors) {
    total += (*factor.cost)[table_index(network, factor, choice)];
  }
  return total;
}

double evaluate(const ConstrainedProblem& problem,
                const ConstrainedProblem::Row& row,
                const std::vector<int>& choice) {
  double total = row.constant;
  for (std::size_t v = 0; v < choice.size(); ++v) {
    if (row.unary[v]) {
      total += (*row.unary[v])[static_cast<std::size_t>(choice[v])];
    }
  }
  for (std::size_t f = 0; f < problem.objective.factors.size(); ++f) {
    if (row.factors[f]) {
      total +=
          (*row.factors[f])[table_index(problem.objective, problem.objective.factors[f], choice)];
    }
  }
  return total;
}

Solution solve_constrained(const ConstrainedProblem& problem,
                           Elimination& elimination,
                           const SolveOptions& options) {
  Solution solution;
  solution.multiplier.assign(problem.rows.size(), 0);
  Dual dual(problem, elimination, options);
  Primal primal(problem);
  Ascent ascent(problem, dual, primal);
  std::optional<Dual::Value> start = ascent.evaluate(solution.multiplier);
  if (!start) {
    return solution;
  }
  Dual::Value current = *start;
  const Evaluator evaluator(problem);
  bool infeasible = false;
  if (!evaluator.feasible(current.point)) {
    infeasible = proven_infeasible(problem, dual, primal);
    for (int sweep = 0; sweep < 4 && !infeasible && !dual.exhausted(); ++sweep) {
      const double before = current.bound;
      for (std::size_t r = 0; r < problem.rows.size(); ++r) {
        const double hint = r < options.hint.size() ? options.hint[r] : 0;
        if (!ascent.row(r, hint, solution.multiplier, current)) {
          break;
        }
        options.control.report("search", -1);
      }
      if (problem.rows.size() == 1 || current.bound - before <= 1e-7 * std::abs(before)) {
        break;
      }
    }
    primal.join_seen();
    primal.improve(options.control);
  }
  solution.lower_bound = current.bound;
  const std::optional<Point>& found = primal.best() ? primal.best() : primal.closest();
  if (found) {
    solution.objective = found->objective;
    solution.choice = found->choice;
    solution.usage = found->usage;
  }
  if (infeasible) {
    solution.status = SolveStatus::kInfeasible;
  } else if (primal.best()) {
    solution.lower_bound = std::min(solution.lower_bound, solution.objective);
    const double slack = options.gap * std::abs(solution.lower_bound);
    solution.status = solution.objective - solution.lower_bound <= slack ? SolveStatus::kOptimal
                                                                         : SolveStatus::kFeasible;
  }
  return solution;
}

}  // namespace shardplan::solvers
