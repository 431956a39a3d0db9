#include "shardplan/solvers/compiled.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shardplan::solvers {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A limit and what sums in another order may differ by.
double with_rounding(double limit) {
  return limit + 1e-12 * std::abs(limit);
}

/// Tables of one factor of the problem, in the objective and in the rows.
struct Tables {
  int cost = 0;
  std::vector<int> parts;
};

class Compiler {
 public:
  Compiler(const ConstrainedProblem& problem, TableStore& store)
      : problem_(problem), store_(store) {}

  Compiled compile(const Schedule::Options& options) {
    compiled_.rows = problem_.rows.size();
    for (const ConstrainedProblem::Row& row : problem_.rows) {
      compiled_.row_constant.push_back(row.constant);
      compiled_.limit.push_back(with_rounding(row.limit));
    }
    const CostNetwork& network = problem_.objective;
    for (const CostTable& unary : network.unary) {
      compiled_.sizes.push_back(static_cast<int>(unary->size()));
    }
    for (std::size_t v = 0; v < network.unary.size(); ++v) {
      add({static_cast<int>(v)}, tables(network.unary[v], [&](const auto& row) -> const CostTable& {
            return row.unary[v];
          }));
    }
    for (std::size_t f = 0; f < network.factors.size(); ++f) {
      add(network.factors[f].scope,
          tables(network.factors[f].cost,
                 [&](const auto& row) -> const CostTable& { return row.factors[f]; }));
    }
    std::vector<std::vector<int>> scopes;
    scopes.reserve(compiled_.factors.size());
    for (const Compiled::Factor& factor : compiled_.factors) {
      scopes.push_back(factor.scope);
    }
    compiled_.schedule = make_schedule(compiled_.sizes, scopes, options);
    reorder();
    sign();
    return std::move(compiled_);
  }

 private:
  template <typename PartOf>
  Tables tables(const CostTable& cost, const PartOf& part_of) {
    Tables result;
    result.cost = store_.intern(cost);
    result.parts.reserve(problem_.rows.size());
    const std::vector<double>* last = nullptr;
    int last_id = TableStore::kZeros;
    for (const ConstrainedProblem::Row& row : problem_.rows) {
      const CostTable& part = part_of(row);
      if (part.get() != last) {
        last = part.get();
        last_id = store_.part(part);
      }
      result.parts.push_back(last_id);
    }
    for (int& part : result.parts) {
      if (part != TableStore::kZeros && !store_.finite(part)) {
        forbid_infinite(result.cost, part);
      }
    }
    return result;
  }

  /// An entry that no limit can meet is forbidden in the objective, so that rows stay finite.
  void forbid_infinite(int& cost, int& part) {
    std::vector<double> costs = store_.values(cost);
    std::vector<double> usages = store_.values(part);
    for (std::size_t i = 0; i < costs.size(); ++i) {
      if (!std::isfinite(usages[i])) {
        costs[i] = kInfinity;
        usages[i] = 0;
      }
    }
    cost = store_.intern(std::make_shared<const std::vector<double>>(std::move(costs)));
    part = store_.part(std::make_shared<const std::vector<double>>(std::move(usages)));
  }

  void add(std::vector<int> scope, Tables tables) {
    std::erase_if(scope, [&](int v) { return compiled_.size(v) == 1; });
    if (scope.empty()) {
      compiled_.constant += store_.values(tables.cost).front();
      for (std::size_t r = 0; r < compiled_.rows; ++r) {
        if (tables.parts[r] != TableStore::kZeros) {
          compiled_.row_constant[r] += store_.values(tables.parts[r]).front();
        }
      }
      return;
    }
    compiled_.factors.push_back({std::move(scope), tables.cost, 0});
    compiled_.parts.insert(compiled_.parts.end(), tables.parts.begin(), tables.parts.end());
  }

  void reorder() {
    std::vector<int> sizes;
    std::vector<int> order;
    for (std::size_t f = 0; f < compiled_.factors.size(); ++f) {
      Compiled::Factor& factor = compiled_.factors[f];
      const std::vector<int> before = factor.scope;
      const auto position = [&](int v) {
        return compiled_.schedule.position[static_cast<std::size_t>(v)];
      };
      sizes.clear();
      order.clear();
      for (std::size_t i = 0; i < before.size(); ++i) {
        sizes.push_back(compiled_.sizes[static_cast<std::size_t>(before[i])]);
        order.push_back(static_cast<int>(i));
      }
      std::sort(order.begin(), order.end(), [&](int a, int b) {
        return position(before[static_cast<std::size_t>(a)]) <
               position(before[static_cast<std::size_t>(b)]);
      });
      for (std::size_t i = 0; i < before.size(); ++i) {
        factor.scope[i] = before[static_cast<std::size_t>(order[i])];
      }
      factor.cost = store_.permuted(factor.cost, sizes, order);
      for (std::size_t r = 0; r < compiled_.rows; ++r) {
        int& part = compiled_.parts[f * compiled_.rows + r];
        part = store_.permuted(part, sizes, order);
      }
    }
  }

  void sign() {
    KeyIndex signatures;
    std::vector<std::uint64_t> key;
    for (std::size_t f = 0; f < compiled_.factors.size(); ++f) {
      key.assign(1, static_cast<std::uint64_t>(compiled_.factors[f].cost));
      for (std::size_t r = 0; r < compiled_.rows; ++r) {
        key.push_back(static_cast<std::uint64_t>(compiled_.part(f, r)));
      }
      const auto [number, fresh] = signatures.number(key);
      compiled_.factors[f].signature = number;
      if (fresh) {
        compiled_.first_of_signature.push_back(static_cast<int>(f));
      }
    }
  }

  const ConstrainedProblem& problem_;
  TableStore& store_;
  Compiled compiled_;
};

/// Where an input over `scope` of a step stands in the step's scope.
Join::Input lay_out_input(const Compiled& compiled,
                          const Schedule::Step& step,
                          const std::vector<int>& scope) {
  Join::Input input;
  input.stride.assign(step.scope.size(), 0);
  std::size_t stride = 1;
  for (std::size_t i = scope.size(); i-- > 0;) {
    if (scope[i] == step.variable) {
      input.choice_stride = stride;
    } else {
      const auto place = std::find(step.scope.begin(), step.scope.end(), scope[i]);
      input.stride[static_cast<std::size_t>(place - step.scope.begin())] = stride;
    }
    stride *= compiled.size(scope[i]);
  }
  return input;
}

Join make_join(const Compiled& compiled,
               const std::vector<int>& factor_class,
               const StepClasses& classes,
               const Schedule::Step& step) {
  Join join;
  join.choices = step.variable < 0 ? 1 : compiled.sizes[static_cast<std::size_t>(step.variable)];
  for (const int v : step.scope) {
    join.sizes.push_back(compiled.sizes[static_cast<std::size_t>(v)]);
  }
  for (const int f : step.factors) {
    const auto factor = static_cast<std::size_t>(f);
    join.inputs.push_back(lay_out_input(compiled, step, compiled.factors[factor].scope));
    join.inputs.back().table = factor_class[factor];
  }
  for (const int child : step.children) {
    const auto index = static_cast<std::size_t>(child);
    join.inputs.push_back(lay_out_input(compiled, step, compiled.schedule.steps[index].scope));
    join.inputs.back().table = classes.of_step[index];
    join.inputs.back().is_child = true;
  }
  join.lay_out();
  return join;
}

/// Bit i of the result: variable i of `scope` (in its order) is in `part`.
std::uint64_t mask_of(const std::vector<int>& scope, const std::vector<int>& part) {
  std::uint64_t mask = 0;
  for (std::size_t i = 0; i < scope.size(); ++i) {
    if (std::find(part.begin(), part.end(), scope[i]) != part.end()) {
      mask |= std::uint64_t{1} << (i % 64);
    }
  }
  return mask;
}

}  // namespace

Compiled compile(const ConstrainedProblem& problem,
                 TableStore& store,
                 const Schedule::Options& options) {
  return Compiler(problem, store).compile(options);
}

StepClasses classify(const Compiled& compiled, const std::vector<int>& factor_class) {
  StepClasses classes;
  KeyIndex index;
  std::vector<std::uint64_t> key;
  for (std::size_t s = 0; s < compiled.schedule.steps.size(); ++s) {
    const Schedule::Step& step = compiled.schedule.steps[s];
    key.clear();
    key.push_back(step.variable < 0 ? 1 : compiled.size(step.variable));
    key.push_back(step.factors.size());
    for (const int v : step.scope) {
      key.push_back(compiled.size(v));
    }
    for (const int f : step.factors) {
      const auto factor = static_cast<std::size_t>(f);
      key.push_back(static_cast<std::uint64_t>(factor_class[factor]));
      key.push_back(mask_of(step.scope, compiled.factors[factor].scope));
    }
    for (const int child : step.children) {
      const auto c = static_cast<std::size_t>(child);
      key.push_back(static_cast<std::uint64_t>(classes.of_step[c]));
      key.push_back(mask_of(step.scope, compiled.schedule.steps[c].scope));
    }
    const auto [number, fresh] = index.number(key);
    classes.of_step.push_back(number);
    if (fresh) {
      classes.joins.push_back(make_join(compiled, factor_class, classes, step));
      classes.first_step.push_back(static_cast<int>(s));
    }
  }
  return classes;
}

std::vector<double> usage_of(const Compiled& compiled,
                             const TableStore& store,
                             const std::vector<int>& choice) {
  std::vector<double> usage = compiled.row_constant;
  for (std::size_t f = 0; f < compiled.factors.size(); ++f) {
    std::size_t entry = 0;
    for (const int v : compiled.factors[f].scope) {
      entry =
          entry * compiled.size(v) + static_cast<std::size_t>(choice[static_cast<std::size_t>(v)]);
    }
    for (std::size_t r = 0; r < compiled.rows; ++r) {
      const int part = compiled.part(f, r);
      if (part != TableStore::kZeros) {
        usage[r] += store.values(part)[entry];
      }
    }
  }
  return usage;
}

}  // namespace shardplan::solvers
