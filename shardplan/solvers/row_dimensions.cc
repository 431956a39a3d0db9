// Read `Builder::step`: groups by what is joined, then maxima of those that are equal outside.
// That two rows are equal inside or outside a step is seen from sums of random-looking words, one
// for each table of each row.
#include "shardplan/solvers/row_dimensions.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>

namespace shardplan::solvers {
namespace {

std::uint64_t bits(double value) {
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof word);
  return word;
}

class Builder {
 public:
  Builder(const Compiled& compiled,
          const StepClasses& relaxed,
          const std::vector<int>& active,
          const std::vector<double>& multiplier)
      : compiled_(compiled), relaxed_(relaxed), active_(active), multiplier_(multiplier) {}

  RowDimensions build() {
    const std::size_t steps = compiled_.schedule.steps.size();
    const std::size_t rows = active_.size();
    inside_.assign(steps * rows, 0);
    dimension_.assign(steps * rows, RowDimensions::kNone);
    shift_.assign(steps * rows, 0.0);
    add_inside();
    for (std::size_t s = 0; s < steps; ++s) {
      step(s);
    }
    if (steps > 0) {
      set_root_limits(steps - 1);
    }
    return std::move(result_);
  }

 private:
  [[nodiscard]] std::size_t row(std::size_t a) const {
    return static_cast<std::size_t>(active_[a]);
  }
  /// What a row allows to its factors.
  [[nodiscard]] double limit(std::size_t a) const {
    return compiled_.limit[row(a)] - compiled_.row_constant[row(a)];
  }
  [[nodiscard]] double weight(std::size_t a) const { return multiplier_[row(a)]; }

  void add_inside() {
    const std::size_t rows = active_.size();
    for (std::size_t s = 0; s < compiled_.schedule.steps.size(); ++s) {
      const Schedule::Step& step = compiled_.schedule.steps[s];
      std::uint64_t* const sum = inside_.data() + s * rows;
      for (const int f : step.factors) {
        for (std::size_t a = 0; a < rows; ++a) {
          const int part = compiled_.part(static_cast<std::size_t>(f), row(a));
          if (part != TableStore::kZeros) {
            const std::array<std::uint64_t, 2> key = {static_cast<std::uint64_t>(f),
                                                      static_cast<std::uint64_t>(part)};
            sum[a] += hash_words(key.data(), key.size());
          }
        }
      }
      for (const int child : step.children) {
        for (std::size_t a = 0; a < rows; ++a) {
          sum[a] += inside_[static_cast<std::size_t>(child) * rows + a];
        }
      }
    }
  }

  void step(std::size_t s) {
    const std::size_t rows = active_.size();
    RowDimensions::Plan plan;
    std::vector<int> group(rows);  // by row
    make_groups(s, plan, group);
    make_dimensions(s, plan, group);
    sort_dimensions(s, plan);
    number(s, std::move(plan));
  }

  /// Puts the dimensions in an order that does not depend on which rows they stand for.
  void sort_dimensions(std::size_t s, RowDimensions::Plan& plan) {
    std::vector<std::size_t> order(plan.dimensions.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return plan.dimensions[a].members < plan.dimensions[b].members;
    });
    std::vector<RowDimensions::Dimension> sorted;
    std::vector<int> place(order.size());
    for (const std::size_t from : order) {
      place[from] = static_cast<int>(sorted.size());
      sorted.push_back(std::move(plan.dimensions[from]));
    }
    plan.dimensions = std::move(sorted);
    for (std::size_t a = 0; a < active_.size(); ++a) {
      int& dimension = dimension_[s * active_.size() + a];
      if (dimension != RowDimensions::kNone) {
        dimension = place[static_cast<std::size_t>(dimension)];
      }
    }
  }

  /// Rows that sum the same terms form a group; group kNone: no terms at all.
  void make_groups(std::size_t s, RowDimensions::Plan& plan, std::vector<int>& group) {
    const std::size_t rows = active_.size();
    const Schedule::Step& step = compiled_.schedule.steps[s];
    std::vector<RowDimensions::Group> of_row(rows);
    for (std::size_t a = 0; a < rows; ++a) {
      RowDimensions::Group& terms = of_row[a];
      double shift = 0;
      for (const int f : step.factors) {
        terms.push_back(compiled_.part(static_cast<std::size_t>(f), row(a)));
      }
      for (const int child : step.children) {
        const std::size_t at = static_cast<std::size_t>(child) * rows + a;
        terms.push_back(dimension_[at]);
        shift += shift_[at];
      }
      shift_[s * rows + a] = shift;
    }
    plan.groups = of_row;
    std::sort(plan.groups.begin(), plan.groups.end());
    plan.groups.erase(std::unique(plan.groups.begin(), plan.groups.end()), plan.groups.end());
    plan.group_multiplier.assign(plan.groups.size(), 0.0);
    for (std::size_t a = 0; a < rows; ++a) {
      group[a] =
          static_cast<int>(std::lower_bound(plan.groups.begin(), plan.groups.end(), of_row[a]) -
                           plan.groups.begin());
      plan.group_multiplier[static_cast<std::size_t>(group[a])] += weight(a);
    }
  }

  void make_dimensions(std::size_t s, RowDimensions::Plan& plan, const std::vector<int>& group) {
    const std::size_t rows = active_.size();
    const std::uint64_t* const total = inside_.data() + (inside_.size() - rows);
    std::map<std::uint64_t, std::vector<std::size_t>> equal_outside;
    std::vector<std::uint64_t> order;  // of first sight, so that equal steps get equal plans
    for (std::size_t a = 0; a < rows; ++a) {
      const std::uint64_t outside = total[a] - inside_[s * rows + a];
      std::vector<std::size_t>& same = equal_outside[outside];
      if (same.empty()) {
        order.push_back(outside);
      }
      same.push_back(a);
    }
    std::vector<int> plain(plan.groups.size(), RowDimensions::kNone);  // dimension, by group
    for (const std::uint64_t outside : order) {
      const std::vector<std::size_t>& same = equal_outside[outside];
      const bool one_group = std::all_of(
          same.begin(), same.end(), [&](std::size_t a) { return group[a] == group[same[0]]; });
      if (one_group) {
        for (const std::size_t a : same) {
          use_plain(s, a, plan, static_cast<std::size_t>(group[a]), plain);
        }
      } else {
        use_largest(s, same, plan, group);
      }
    }
  }

  void use_plain(std::size_t s,
                 std::size_t a,
                 RowDimensions::Plan& plan,
                 std::size_t group,
                 std::vector<int>& plain) {
    const RowDimensions::Group& terms = plan.groups[group];
    if (std::all_of(terms.begin(), terms.end(), [](int t) { return t == RowDimensions::kNone; })) {
      return;  // no usage, no dimension
    }
    if (plain[group] == RowDimensions::kNone) {
      plain[group] = static_cast<int>(plan.dimensions.size());
      plan.dimensions.push_back({{{static_cast<int>(group), 0.0}}, 0});
    }
    dimension_[s * active_.size() + a] = plain[group];
    plan.dimensions[static_cast<std::size_t>(plain[group])].multiplier += weight(a);
  }

  /// One dimension for rows that are equal outside: the largest excess, moved so that the
  /// multipliers' weighted sum of the shifts stays what it was; bounds then need no correction.
  void use_largest(std::size_t s,
                   const std::vector<std::size_t>& same,
                   RowDimensions::Plan& plan,
                   const std::vector<int>& group) {
    const std::size_t rows = active_.size();
    RowDimensions::Dimension dimension;
    double slack = 0;
    for (const std::size_t a : same) {
      dimension.multiplier += weight(a);
      slack += weight(a) * (limit(a) - shift_[s * rows + a]);
    }
    const double middle = dimension.multiplier > 0 ? slack / dimension.multiplier
                                                   : limit(same[0]) - shift_[s * rows + same[0]];
    for (const std::size_t a : same) {
      const double move = middle - (limit(a) - shift_[s * rows + a]);
      const auto member = std::find_if(dimension.members.begin(),
                                       dimension.members.end(),
                                       [&](const auto& m) { return m.first == group[a]; });
      if (member == dimension.members.end()) {
        dimension.members.emplace_back(group[a], move);
      } else {
        member->second = std::max(member->second, move);
      }
    }
    const int index = static_cast<int>(plan.dimensions.size());
    for (const std::size_t a : same) {
      dimension_[s * rows + a] = index;
      shift_[s * rows + a] = limit(a) - middle;
    }
    std::sort(dimension.members.begin(), dimension.members.end());
    plan.dimensions.push_back(std::move(dimension));
  }

  void number(std::size_t s, RowDimensions::Plan plan) {
    const Schedule::Step& step = compiled_.schedule.steps[s];
    key_.assign(1, static_cast<std::uint64_t>(relaxed_.of_step[s]));
    for (const int child : step.children) {
      key_.push_back(static_cast<std::uint64_t>(result_.of_step[static_cast<std::size_t>(child)]));
    }
    key_.push_back(plan.groups.size());
    for (const RowDimensions::Group& group : plan.groups) {
      for (const int term : group) {
        key_.push_back(static_cast<std::uint64_t>(term));
      }
    }
    for (const double multiplier : plan.group_multiplier) {
      key_.push_back(bits(multiplier));
    }
    for (const RowDimensions::Dimension& dimension : plan.dimensions) {
      key_.push_back(dimension.members.size());
      key_.push_back(bits(dimension.multiplier));
      for (const auto& [group, shift] : dimension.members) {
        key_.push_back(static_cast<std::uint64_t>(group));
        key_.push_back(bits(shift));
      }
    }
    const auto [number, fresh] = index_.number(key_);
    result_.of_step.push_back(number);
    if (fresh) {
      result_.plans.push_back(std::move(plan));
      result_.first_step.push_back(static_cast<int>(s));
    }
  }

  void set_root_limits(std::size_t root) {
    const std::size_t rows = active_.size();
    const RowDimensions::Plan& plan =
        result_.plans[static_cast<std::size_t>(result_.of_step[root])];
    result_.root_limit.assign(plan.dimensions.size(), std::numeric_limits<double>::infinity());
    for (std::size_t a = 0; a < rows; ++a) {
      const int dimension = dimension_[root * rows + a];
      if (dimension != RowDimensions::kNone) {
        double& most = result_.root_limit[static_cast<std::size_t>(dimension)];
        most = std::min(most, limit(a) - shift_[root * rows + a]);
      }
    }
  }

  const Compiled& compiled_;
  const StepClasses& relaxed_;
  const std::vector<int>& active_;
  const std::vector<double>& multiplier_;
  std::vector<std::uint64_t> inside_;  ///< [step][row]: tells the row's tables below the step
  std::vector<int> dimension_;         ///< [step][row]
  std::vector<double> shift_;          ///< [step][row]: usage of the row less its dimension
  KeyIndex index_;
  std::vector<std::uint64_t> key_;
  RowDimensions result_;
};

}  // namespace

RowDimensions make_row_dimensions(const Compiled& compiled,
                                  const StepClasses& relaxed,
                                  const std::vector<int>& active,
                                  const std::vector<double>& multiplier) {
  return Builder(compiled, relaxed, active, multiplier).build();
}

}  // namespace shardplan::solvers
