// A sweep visits the variables back and forth. At each, all factors hand over their least cost for
// every choice, and get back equal shares of the sum.
#include "shardplan/solvers/cost_shift.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

namespace shardplan::solvers {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class Shifting {
 public:
  Shifting(const ConstrainedProblem& problem, const std::vector<double>& multiplier)
      : problem_(problem), moved_(problem.objective.factors.size()) {
    const CostNetwork& network = problem.objective;
    const auto relaxed = [&](const CostTable& objective, const auto& part_of) {
      std::vector<double> sum = *objective;
      for (std::size_t r = 0; r < multiplier.size(); ++r) {
        const CostTable& part = part_of(problem.rows[r]);
        for (std::size_t i = 0; part && i < sum.size(); ++i) {
          sum[i] += multiplier[r] * (*part)[i];
        }
      }
      return sum;
    };
    incidences_.resize(network.unary.size());
    for (std::size_t v = 0; v < network.unary.size(); ++v) {
      unary_.push_back(relaxed(network.unary[v],
                               [v](const auto& row) -> const CostTable& { return row.unary[v]; }));
      received_.emplace_back(unary_[v].size(), 0);
    }
    for (std::size_t f = 0; f < network.factors.size(); ++f) {
      factor_.push_back(relaxed(network.factors[f].cost, [f](const auto& row) -> const CostTable& {
        return row.factors[f];
      }));
      std::size_t stride = 1;
      const std::vector<int>& scope = network.factors[f].scope;
      moved_[f].resize(scope.size());
      for (std::size_t i = scope.size(); i-- > 0;) {
        const auto v = static_cast<std::size_t>(scope[i]);
        moved_[f][i].resize(unary_[v].size(), 0);
        incidences_[v].push_back({f, i, stride});
        stride *= unary_[v].size();
      }
    }
  }

  void sweep(bool forward) {
    const std::size_t n = unary_.size();
    for (std::size_t i = 0; i < n; ++i) {
      visit(forward ? i : n - 1 - i);
    }
  }

  [[nodiscard]] double bound() const {
    double total = 0;
    const auto add = [&](const std::vector<double>& table) {
      total += *std::min_element(table.begin(), table.end());
    };
    std::for_each(unary_.begin(), unary_.end(), add);
    std::for_each(factor_.begin(), factor_.end(), add);
    return total;
  }

  /// The problem's own costs with what was moved.
  [[nodiscard]] ConstrainedProblem result() const {
    ConstrainedProblem out = problem_;
    for (std::size_t v = 0; v < unary_.size(); ++v) {
      std::vector<double> costs = *problem_.objective.unary[v];
      for (std::size_t c = 0; c < costs.size(); ++c) {
        costs[c] += received_[v][c];
      }
      out.objective.unary[v] = std::make_shared<const std::vector<double>>(std::move(costs));
    }
    for (std::size_t f = 0; f < factor_.size(); ++f) {
      const CostNetwork::Factor& factor = problem_.objective.factors[f];
      std::vector<double> costs = *factor.cost;
      std::size_t stride = costs.size();
      for (std::size_t i = 0; i < factor.scope.size(); ++i) {
        const std::size_t size = moved_[f][i].size();
        stride /= size;
        for (std::size_t entry = 0; entry < costs.size(); ++entry) {
          costs[entry] -= moved_[f][i][entry / stride % size];
        }
      }
      out.objective.factors[f].cost = std::make_shared<const std::vector<double>>(std::move(costs));
    }
    return out;
  }

 private:
  struct Incidence {
    std::size_t factor = 0;
    std::size_t slot = 0;    ///< of the variable in the scope
    std::size_t stride = 0;  ///< of the variable in the table
  };

  /// Calls `with(entry, choice)` for every entry of a factor's table.
  template <class With>
  static void for_entries(std::size_t entries,
                          std::size_t stride,
                          std::size_t size,
                          const With& with) {
    for (std::size_t block = 0; block < entries; block += stride * size) {
      for (std::size_t c = 0; c < size; ++c) {
        const std::size_t start = block + c * stride;
        for (std::size_t i = start; i < start + stride; ++i) {
          with(i, c);
        }
      }
    }
  }

  void visit(std::size_t v) {
    const std::size_t size = unary_[v].size();
    if (incidences_[v].empty() || size == 1) {
      return;
    }
    std::vector<double> sum = unary_[v];
    std::vector<std::vector<double>> least;
    for (const Incidence& at : incidences_[v]) {
      const std::vector<double>& table = factor_[at.factor];
      std::vector<double>& own = least.emplace_back(size, kInfinity);
      for_entries(table.size(), at.stride, size, [&](std::size_t i, std::size_t c) {
        own[c] = std::min(own[c], table[i]);
      });
      for (std::size_t c = 0; c < size; ++c) {
        sum[c] += own[c];
      }
    }
    const double share = 1.0 / static_cast<double>(incidences_[v].size() + 1);
    for (std::size_t k = 0; k < incidences_[v].size(); ++k) {
      give(v, incidences_[v][k], least[k], sum, share);
    }
  }

  /// Moves the difference between a factor's least costs and its new share to the variable.
  void give(std::size_t v,
            const Incidence& at,
            std::vector<double>& least,
            const std::vector<double>& sum,
            double share) {
    for (std::size_t c = 0; c < least.size(); ++c) {
      // A forbidden choice has nothing to share.
      least[c] = sum[c] < kInfinity ? least[c] - share * sum[c] : 0;
      unary_[v][c] += least[c];
      received_[v][c] += least[c];
      moved_[at.factor][at.slot][c] += least[c];
    }
    std::vector<double>& table = factor_[at.factor];
    for_entries(table.size(), at.stride, least.size(), [&](std::size_t i, std::size_t c) {
      table[i] -= least[c];
    });
  }

  const ConstrainedProblem& problem_;
  std::vector<std::vector<double>> unary_;  ///< relaxed, as shifted so far
  std::vector<std::vector<double>> factor_;
  std::vector<std::vector<Incidence>> incidences_;
  std::vector<std::vector<double>> received_;            ///< by variable and choice
  std::vector<std::vector<std::vector<double>>> moved_;  ///< by factor, slot and choice
};

}  // namespace

ConstrainedProblem shift_costs(const ConstrainedProblem& problem,
                               const std::vector<double>& multiplier,
                               int sweeps,
                               const Budget& budget) {
  Shifting shifting(problem, multiplier);
  double before = shifting.bound();
  constexpr int kRound = 10;
  for (int sweep = 1; sweep <= sweeps && !budget.exhausted(); ++sweep) {
    shifting.sweep(sweep % 2 == 1);
    if (sweep % kRound == 0) {
      const double bound = shifting.bound();
      if (bound - before <= 1e-6 * std::abs(bound)) {
        break;
      }
      before = bound;
    }
  }
  return shifting.result();
}

}  // namespace shardplan::solvers
