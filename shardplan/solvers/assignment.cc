#include "shardplan/solvers/assignment.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

namespace shardplan::solvers {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// More than the largest and the smallest possible objective are apart.
double more_than_all(const CostNetwork& network) {
  double total = 0;
  const auto add = [&](const CostTable& table) {
    double largest = 0;
    for (const double cost : *table) {
      largest = cost < kInfinity ? std::max(largest, std::abs(cost)) : largest;
    }
    total += 2 * largest;
  };
  std::for_each(network.unary.begin(), network.unary.end(), add);
  std::for_each(network.factors.begin(), network.factors.end(), [&](const auto& factor) {
    add(factor.cost);
  });
  return total + 1;
}

}  // namespace

const std::vector<double>* Assignment::finite(const CostTable& table,
                                              double forbidden,
                                              std::deque<std::vector<double>>& copies) {
  if (std::all_of(table->begin(), table->end(), [](double cost) { return cost < kInfinity; })) {
    return table.get();
  }
  std::vector<double>& copy = copies.emplace_back(*table);
  std::replace(copy.begin(), copy.end(), kInfinity, forbidden);
  return &copy;
}

Assignment::Assignment(const ConstrainedProblem& problem)
    : problem_(problem), forbidden_(more_than_all(problem.objective)) {
  const CostNetwork& network = problem.objective;
  std::map<const std::vector<double>*, const std::vector<double>*> known;
  const auto finite_of = [&](const CostTable& table) {
    const auto [it, is_new] = known.emplace(table.get(), nullptr);
    if (is_new) {
      it->second = finite(table, forbidden_, copies_);
    }
    return it->second;
  };
  incidences_.resize(network.unary.size());
  neighbours_.resize(network.unary.size());
  for (const CostTable& table : network.unary) {
    unary_.push_back(finite_of(table));
  }
  for (std::size_t f = 0; f < network.factors.size(); ++f) {
    factor_.push_back(finite_of(network.factors[f].cost));
    std::size_t stride = 1;
    const std::vector<int>& scope = network.factors[f].scope;
    for (std::size_t i = scope.size(); i-- > 0;) {
      const auto v = static_cast<std::size_t>(scope[i]);
      incidences_[v].push_back({f, stride});
      stride *= network.unary[v]->size();
      std::copy_if(scope.begin(), scope.end(), std::back_inserter(neighbours_[v]), [&](int other) {
        return other != scope[i];
      });
    }
  }
  for (std::vector<int>& list : neighbours_) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
}

void Assignment::reset(std::vector<int> choice) {
  choice_ = std::move(choice);
  objective_ = 0;
  index_.clear();
  for (std::size_t v = 0; v < unary_.size(); ++v) {
    objective_ += (*unary_[v])[static_cast<std::size_t>(choice_[v])];
  }
  for (std::size_t f = 0; f < factor_.size(); ++f) {
    index_.push_back(table_index(problem_.objective, problem_.objective.factors[f], choice_));
    objective_ += (*factor_[f])[index_.back()];
  }
  usage_.clear();
  for (const ConstrainedProblem::Row& row : problem_.rows) {
    usage_.push_back(evaluate(problem_, row, choice_));
  }
}

void Assignment::changes(int variable, Changes& out) const {
  const auto v = static_cast<std::size_t>(variable);
  const std::size_t count = unary_[v]->size();
  work_ += static_cast<std::int64_t>(count * (1 + incidences_[v].size()) * (1 + usage_.size()));
  const auto own = static_cast<std::size_t>(choice_[v]);
  const auto add = [&](const std::vector<double>& table,
                       std::size_t start,
                       std::size_t stride,
                       std::vector<double>& sum) {
    const double present = table[start + own * stride];
    for (std::size_t c = 0; c < count; ++c) {
      sum[c] += table[start + c * stride] - present;
    }
  };
  out.objective.assign(count, 0);
  out.usage.resize(problem_.rows.size());
  add(*unary_[v], 0, 1, out.objective);
  for (std::size_t r = 0; r < problem_.rows.size(); ++r) {
    out.usage[r].assign(count, 0);
    if (const CostTable& table = problem_.rows[r].unary[v]) {
      add(*table, 0, 1, out.usage[r]);
    }
  }
  for (const Incidence& incidence : incidences_[v]) {
    const std::size_t start = index_[incidence.factor] - own * incidence.stride;
    add(*factor_[incidence.factor], start, incidence.stride, out.objective);
    for (std::size_t r = 0; r < problem_.rows.size(); ++r) {
      if (const CostTable& table = problem_.rows[r].factors[incidence.factor]) {
        add(*table, start, incidence.stride, out.usage[r]);
      }
    }
  }
}

void Assignment::change(int variable, int to) {
  changes(variable, scratch_);
  const auto v = static_cast<std::size_t>(variable);
  const auto place = static_cast<std::size_t>(to);
  objective_ += scratch_.objective[place];
  for (std::size_t r = 0; r < usage_.size(); ++r) {
    usage_[r] += scratch_.usage[r][place];
  }
  for (const Incidence& incidence : incidences_[v]) {
    std::size_t& index = index_[incidence.factor];
    index =
        index - static_cast<std::size_t>(choice_[v]) * incidence.stride + place * incidence.stride;
  }
  choice_[v] = to;
}

}  // namespace shardplan::solvers
