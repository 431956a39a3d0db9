// Read `Presolver::run`, then `dominates`.
#include "shardplan/solvers/presolve.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

namespace shardplan::solvers {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A table with one variable's choices as rows: entry (choice, place).
struct Rows {
  const std::vector<double>* table = nullptr;
  std::vector<std::size_t> place{};  ///< offsets of the entries of choice 0
  std::size_t stride = 0;            ///< from one choice to the next

  [[nodiscard]] double at(std::size_t choice, std::size_t p) const {
    return (*table)[place[p] + choice * stride];
  }
};

/// The largest rise when choice `a` becomes `b`. What was forbidden before rises by nothing.
double largest_rise(const Rows& rows, std::size_t a, std::size_t b) {
  double largest = -kInfinity;
  for (std::size_t p = 0; p < rows.place.size(); ++p) {
    const double before = rows.at(a, p);
    if (before < kInfinity) {
      largest = std::max(largest, rows.at(b, p) - before);
    }
  }
  return largest;
}

class Presolver {
 public:
  Presolver(const ConstrainedProblem& problem, double max_work)
      : problem_(problem), work_left_(max_work), factors_of_(problem.objective.unary.size()) {
    for (std::size_t f = 0; f < problem.objective.factors.size(); ++f) {
      for (const int v : problem.objective.factors[f].scope) {
        factors_of_[static_cast<std::size_t>(v)].push_back(f);
      }
    }
    for (const CostTable& unary : problem.objective.unary) {
      kept_.emplace_back(unary->size());
      std::iota(kept_.back().begin(), kept_.back().end(), 0);
    }
  }

  Presolved run() {
    for (std::size_t v = 0; v < kept_.size(); ++v) {
      std::vector<int>& known = known_[key_of(v)];
      if (known.empty()) {
        known = undominated(v);
      }
      kept_[v] = known;
    }
    Presolved out;
    out.kept = kept_;
    out.problem = reduced();
    return out;
  }

 private:
  /// Tables and remaining choices around a variable: equal for those that look alike.
  [[nodiscard]] std::vector<std::uintptr_t> key_of(std::size_t v) const {
    std::vector<std::uintptr_t> key;
    const auto add = [&](const CostTable& table) {
      key.push_back(reinterpret_cast<std::uintptr_t>(table.get()));
    };
    add(problem_.objective.unary[v]);
    for (const ConstrainedProblem::Row& row : problem_.rows) {
      add(row.unary[v]);
    }
    for (const std::size_t f : factors_of_[v]) {
      const CostNetwork::Factor& factor = problem_.objective.factors[f];
      add(factor.cost);
      for (const ConstrainedProblem::Row& row : problem_.rows) {
        add(row.factors[f]);
      }
      for (const int w : factor.scope) {
        const std::vector<int>& left = kept_[static_cast<std::size_t>(w)];
        key.push_back(w == static_cast<int>(v) ? 1 : 0);
        key.push_back(left.size());
        key.insert(key.end(), left.begin(), left.end());
      }
    }
    return key;
  }

  /// The factor's table with the choices of `v` as rows, over what is left of the others.
  [[nodiscard]] Rows rows_of(std::size_t v, std::size_t f, const CostTable& table) const {
    const CostNetwork::Factor& factor = problem_.objective.factors[f];
    Rows rows;
    rows.table = table.get();
    rows.place = {0};
    std::size_t stride = 1;
    for (std::size_t i = factor.scope.size(); i-- > 0;) {
      const auto w = static_cast<std::size_t>(factor.scope[i]);
      if (w == v) {
        rows.stride = stride;
      } else {
        std::vector<std::size_t> wider;
        wider.reserve(rows.place.size() * kept_[w].size());
        for (const std::size_t place : rows.place) {
          for (const int choice : kept_[w]) {
            wider.push_back(place + stride * static_cast<std::size_t>(choice));
          }
        }
        rows.place = std::move(wider);
      }
      stride *= problem_.objective.unary[w]->size();
    }
    return rows;
  }

  /// All tables of one sum (the objective or a row) around a variable.
  [[nodiscard]] std::vector<Rows> around(std::size_t v,
                                         const CostTable& unary,
                                         const std::vector<const CostTable*>& factors) const {
    std::vector<Rows> out;
    if (unary) {
      out.push_back({unary.get(), {0}, 1});
    }
    for (std::size_t i = 0; i < factors.size(); ++i) {
      if (*factors[i]) {
        out.push_back(rows_of(v, factors_of_[v][i], *factors[i]));
      }
    }
    return out;
  }

  [[nodiscard]] std::vector<int> undominated(std::size_t v) {
    std::vector<std::vector<Rows>> sums;
    std::vector<const CostTable*> tables;
    for (const std::size_t f : factors_of_[v]) {
      tables.push_back(&problem_.objective.factors[f].cost);
    }
    sums.push_back(around(v, problem_.objective.unary[v], tables));
    for (const ConstrainedProblem::Row& row : problem_.rows) {
      for (std::size_t i = 0; i < tables.size(); ++i) {
        tables[i] = &row.factors[factors_of_[v][i]];
      }
      sums.push_back(around(v, row.unary[v], tables));
    }
    const std::size_t choices = kept_[v].size();
    double work = 0;
    for (const std::vector<Rows>& sum : sums) {
      for (const Rows& rows : sum) {
        work += static_cast<double>(choices * choices * rows.place.size());
      }
    }
    if (work > work_left_) {
      return kept_[v];
    }
    work_left_ -= work;
    std::vector<bool> out(choices, false);
    for (std::size_t a = 0; a < choices; ++a) {
      for (std::size_t b = 0; b < choices && !out[a]; ++b) {
        // Of two that dominate each other the first stays.
        out[a] = b != a && !out[b] && dominates(sums, b, a) && (b < a || !dominates(sums, a, b));
      }
    }
    std::vector<int> left;
    for (std::size_t c = 0; c < choices; ++c) {
      if (!out[c]) {
        left.push_back(static_cast<int>(c));
      }
    }
    return left;
  }

  /// Whether changing `a` to `b` raises no sum.
  static bool dominates(const std::vector<std::vector<Rows>>& sums, std::size_t b, std::size_t a) {
    return std::all_of(sums.begin(), sums.end(), [&](const std::vector<Rows>& sum) {
      double rise = 0;
      for (const Rows& rows : sum) {
        const double largest = largest_rise(rows, a, b);
        if (largest == -kInfinity) {
          return true;  // a is forbidden whatever the others choose
        }
        rise += largest;
      }
      return rise <= 0;
    });
  }

  /// A table over the remaining choices of its scope; equal ones are made once.
  CostTable shrunk(const CostTable& table, const std::vector<int>& scope) {
    bool whole = true;
    std::vector<std::uintptr_t> key{reinterpret_cast<std::uintptr_t>(table.get())};
    for (const int w : scope) {
      const std::vector<int>& left = kept_[static_cast<std::size_t>(w)];
      whole = whole && left.size() == problem_.objective.unary[static_cast<std::size_t>(w)]->size();
      key.push_back(left.size());
      key.insert(key.end(), left.begin(), left.end());
    }
    if (!table || whole) {
      return table;
    }
    CostTable& known = shrunk_[key];
    if (!known) {
      std::vector<std::size_t> place{0};
      for (const int w : scope) {
        const auto variable = static_cast<std::size_t>(w);
        std::vector<std::size_t> wider;
        wider.reserve(place.size() * kept_[variable].size());
        for (const std::size_t p : place) {
          for (const int choice : kept_[variable]) {
            wider.push_back(p * problem_.objective.unary[variable]->size() +
                            static_cast<std::size_t>(choice));
          }
        }
        place = std::move(wider);
      }
      std::vector<double> values;
      values.reserve(place.size());
      for (const std::size_t p : place) {
        values.push_back((*table)[p]);
      }
      known = std::make_shared<const std::vector<double>>(std::move(values));
    }
    return known;
  }

  ConstrainedProblem reduced() {
    ConstrainedProblem out = problem_;
    for (std::size_t v = 0; v < kept_.size(); ++v) {
      const std::vector<int> own{static_cast<int>(v)};
      out.objective.unary[v] = shrunk(problem_.objective.unary[v], own);
      for (std::size_t r = 0; r < out.rows.size(); ++r) {
        out.rows[r].unary[v] = shrunk(problem_.rows[r].unary[v], own);
      }
    }
    for (std::size_t f = 0; f < out.objective.factors.size(); ++f) {
      CostNetwork::Factor& factor = out.objective.factors[f];
      factor.cost = shrunk(factor.cost, factor.scope);
      for (ConstrainedProblem::Row& row : out.rows) {
        row.factors[f] = shrunk(row.factors[f], factor.scope);
      }
    }
    return out;
  }

  const ConstrainedProblem& problem_;
  double work_left_;
  std::vector<std::vector<std::size_t>> factors_of_;  ///< by variable
  std::vector<std::vector<int>> kept_;
  std::map<std::vector<std::uintptr_t>, std::vector<int>> known_;
  std::map<std::vector<std::uintptr_t>, CostTable> shrunk_;
};

}  // namespace

std::vector<int> Presolved::original(const std::vector<int>& choice) const {
  std::vector<int> out;
  out.reserve(choice.size());
  for (std::size_t v = 0; v < choice.size(); ++v) {
    out.push_back(kept[v][static_cast<std::size_t>(choice[v])]);
  }
  return out;
}

std::size_t Presolved::left_out(const ConstrainedProblem& from) const {
  std::size_t count = 0;
  for (std::size_t v = 0; v < kept.size(); ++v) {
    count += from.objective.unary[v]->size() - kept[v].size();
  }
  return count;
}

Presolved presolve(const ConstrainedProblem& problem, double max_work) {
  return Presolver(problem, max_work).run();
}

}  // namespace shardplan::solvers
