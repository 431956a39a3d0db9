// Elimination over Pareto points. Read `StepRun::entry` (all joins of one entry), `PointFilter`
// (which points stay), then `ParetoElimination::run`.
#include "shardplan/solvers/pareto.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "shardplan/solvers/point_filter.h"

namespace shardplan::solvers {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

/// The points of one class of steps.
class ParetoElimination::StepRun {
 public:
  StepRun(ParetoElimination& owner, const ParetoRequest& request, std::size_t index)
      : owner_(owner),
        request_(request),
        step_(owner.compiled_.schedule
                  .steps[static_cast<std::size_t>(owner.dimensions_.first_step[index])]),
        plan_(owner.dimensions_.plans[index]),
        out_(owner.lists_[index]),
        filter_(plan_.dimensions.size(), 1 + step_.children.size()) {
    relaxed_class_ = static_cast<std::size_t>(
        owner.relaxed_.of_step[static_cast<std::size_t>(owner.dimensions_.first_step[index])]);
    join_ = owner.relaxed_.joins[relaxed_class_];
    join_.first_inner = join_.sizes.size();  // every entry is visited
    join_.inner = 1;
    for (const int child : step_.children) {
      children_.push_back(&owner.lists_[static_cast<std::size_t>(
          owner.dimensions_.of_step[static_cast<std::size_t>(child)])]);
    }
    group_.resize(plan_.groups.size());
    base_group_.resize(plan_.groups.size());
    point_.resize(plan_.dimensions.size() + 3);
    back_.resize(1 + children_.size());
    budget_.resize(request.bounds->size());
    gather_tables();
    filter_.set_tolerance(request.tolerance * owner.share_[index]);
  }

  /// False: stopped or out of memory. Lowers `bound` by what had to be given up.
  bool run(double& bound) {
    out_ = {};
    out_.dimensions = plan_.dimensions.size();
    out_.children = children_.size();
    out_.begin.push_back(0);
    bool complete = true;
    for_each_outer(join_, [&](const std::vector<std::size_t>& offsets, std::size_t at) {
      if (!complete) {
        return;
      }
      set_budgets(at);
      filter_.clear();
      complete = entry(offsets, bound) && owner_.work_ + filter_.work() < request_.max_work;
      thin(bound);
      filter_.append_to(out_.values, out_.back);
      out_.begin.push_back(out_.values.size() / out_.stride());
    });
    owner_.work_ += filter_.work();
    owner_.points_ += out_.begin.back();
    return complete;
  }

 private:
  void gather_tables() {
    for (std::size_t i = 0; i < step_.factors.size(); ++i) {
      const auto factor = static_cast<std::size_t>(step_.factors[i]);
      costs_.push_back(owner_.store_.values(owner_.compiled_.factors[factor].cost).data());
      for (std::size_t g = 0; g < plan_.groups.size(); ++g) {
        const int part = plan_.groups[g][i];
        if (part != TableStore::kZeros) {
          parts_.push_back({g, i, owner_.store_.values(part).data()});
        }
      }
    }
  }

  void set_budgets(std::size_t at) {
    double allowed = 0;
    for (std::size_t r = 0; r < request_.multiplier.size(); ++r) {
      allowed +=
          request_.multiplier[r] * (owner_.compiled_.limit[r] - owner_.compiled_.row_constant[r]);
    }
    const double cut = request_.cut - owner_.compiled_.constant;
    for (std::size_t k = 0; k < budget_.size(); ++k) {
      const CompletionBound& bound = (*request_.bounds)[k];
      const double outside = bound.outside[relaxed_class_][at];
      const double most = bound.weight * cut + allowed;
      const double rounding = 1e-12 * (std::abs(bound.weight * cut) + std::abs(allowed));
      budget_[k] = most - outside + rounding;
    }
  }

  bool entry(const std::vector<std::size_t>& offsets, double& bound) {
    for (int c = 0; c < join_.choices; ++c) {
      const auto choice = static_cast<std::size_t>(c);
      const auto at = [&](std::size_t input) {
        return offsets[input] + choice * join_.inputs[input].choice_stride;
      };
      double cost = 0;
      for (std::size_t i = 0; i < costs_.size(); ++i) {
        cost += costs_[i][at(i)];
      }
      if (cost == kInfinity) {
        continue;
      }
      std::fill(base_group_.begin(), base_group_.end(), 0.0);
      for (const Part& part : parts_) {
        base_group_[part.group] += part.values[at(part.input)];
      }
      double reduced = cost;
      for (std::size_t g = 0; g < base_group_.size(); ++g) {
        reduced += plan_.group_multiplier[g] * base_group_[g];
      }
      back_[0] = c;
      if (children_.empty()) {
        group_ = base_group_;
        offer(cost, 0);
      } else if (children_.size() == 1) {
        from_one(at(costs_.size()), cost, reduced);
      } else if (!from_two(at(costs_.size()), at(costs_.size() + 1), cost, reduced, bound)) {
        return false;
      }
    }
    return true;
  }

  /// Adds a child's usages to the groups.
  void add_child(const std::vector<double>& base, std::size_t child, const double* point) {
    const std::size_t term = costs_.size() + child;
    for (std::size_t g = 0; g < base.size(); ++g) {
      const int dimension = plan_.groups[g][term];
      group_[g] = base[g] + (dimension == RowDimensions::kNone ? 0.0 : point[3 + dimension]);
    }
  }

  void from_one(std::size_t entry_at, double cost, double reduced) {
    const Lists& lists = *children_[0];
    for (std::size_t p = lists.begin[entry_at]; p < lists.begin[entry_at + 1]; ++p) {
      const double* point = lists.point(p);
      if (reduced + point[0] > budget_[0]) {
        break;
      }
      add_child(base_group_, 0, point);
      back_[1] = static_cast<int>(p);
      offer(cost + point[1], point[2]);
    }
  }

  bool from_two(std::size_t at_a, std::size_t at_b, double cost, double reduced, double& bound) {
    const Lists& a = *children_[0];
    const Lists& b = *children_[1];
    const std::size_t first_b = b.begin[at_b];
    const std::size_t last_b = b.begin[at_b + 1];
    if (first_b == last_b) {
      return true;
    }
    for (std::size_t p = a.begin[at_a]; p < a.begin[at_a + 1]; ++p) {
      const double* const first = a.point(p);
      if (reduced + first[0] + b.point(first_b)[0] > budget_[0]) {
        break;
      }
      add_child(base_group_, 0, first);
      with_a_ = group_;
      back_[1] = static_cast<int>(p);
      for (std::size_t q = first_b; q < last_b; ++q) {
        const double* const second = b.point(q);
        if (reduced + first[0] + second[0] > budget_[0]) {
          break;
        }
        add_child(with_a_, 1, second);
        back_[2] = static_cast<int>(q);
        offer(cost + first[1] + second[1], first[2] + second[2]);
      }
      if (filter_.size() > kMostCandidates) {
        thin(bound);
        if (request_.stop() || owner_.work_ + filter_.work() > request_.max_work) {
          return false;
        }
      }
    }
    return true;
  }

  /// A candidate with usages group_ and ways back_.
  void offer(double cost, double loss) {
    double reduced = cost - loss;
    for (std::size_t d = 0; d < plan_.dimensions.size(); ++d) {
      const RowDimensions::Dimension& dimension = plan_.dimensions[d];
      double usage = -kInfinity;
      for (const auto& [group, shift] : dimension.members) {
        usage = std::max(usage, group_[static_cast<std::size_t>(group)] + shift);
      }
      point_[3 + d] = usage;
      reduced += dimension.multiplier * usage;
    }
    for (std::size_t k = 0; k < budget_.size(); ++k) {
      if (reduced + ((*request_.bounds)[k].weight - 1) * (cost - loss) > budget_[k]) {
        return;
      }
    }
    point_[0] = reduced;
    point_[1] = cost;
    point_[2] = loss;
    filter_.add(point_, back_);
  }

  void thin(double& bound) {
    filter_.filter();
    const double least_lost = filter_.limit(request_.max_points);
    if (least_lost < kInfinity) {
      bound = std::min(bound, request_.cut + (least_lost - budget_[0]));
    }
  }

  static constexpr std::size_t kMostCandidates = 200'000;

  struct Part {
    std::size_t group;
    std::size_t input;
    const double* values;
  };

  ParetoElimination& owner_;
  const ParetoRequest& request_;
  const Schedule::Step& step_;
  const RowDimensions::Plan& plan_;
  Lists& out_;
  PointFilter filter_;
  std::size_t relaxed_class_ = 0;
  Join join_;
  std::vector<const Lists*> children_;
  std::vector<const double*> costs_;  ///< of the factors
  std::vector<Part> parts_;
  std::vector<double> budget_;
  std::vector<double> base_group_;
  std::vector<double> with_a_;
  std::vector<double> group_;
  std::vector<double> point_;
  std::vector<int> back_;
};

ParetoElimination::ParetoElimination(const Compiled& compiled,
                                     const TableStore& store,
                                     const StepClasses& relaxed,
                                     const RowDimensions& dimensions)
    : compiled_(compiled), store_(store), relaxed_(relaxed), dimensions_(dimensions) {
  const std::vector<Schedule::Step>& steps = compiled.schedule.steps;
  std::vector<double> below(steps.size(), 1);
  for (std::size_t s = 0; s < steps.size(); ++s) {
    for (const int child : steps[s].children) {
      below[s] += below[static_cast<std::size_t>(child)];
    }
  }
  lists_.resize(dimensions.plans.size());
  for (const int step : dimensions.first_step) {
    share_.push_back(below[static_cast<std::size_t>(step)] / static_cast<double>(steps.size()));
  }
}

bool ParetoElimination::run(const ParetoRequest& request) {
  points_ = 0;
  work_ = 0;
  found_.clear();
  double bound = request.cut;
  std::size_t bytes = 0;
  for (std::size_t c = 0; c < lists_.size(); ++c) {
    if (!StepRun(*this, request, c).run(bound) || request.stop()) {
      return false;
    }
    bytes += lists_[c].values.size() * sizeof(double) + lists_[c].back.size() * sizeof(int) +
             lists_[c].begin.size() * sizeof(std::size_t);
    if (bytes > request.max_bytes) {
      return false;
    }
  }
  const Lists& last = lists_.back();
  for (std::size_t p = 0; p < last.begin.back(); ++p) {
    const double* const point = last.point(p);
    bool within = true;
    for (std::size_t d = 0; d < last.dimensions; ++d) {
      within = within && point[3 + d] <= dimensions_.root_limit[d];
    }
    if (within) {
      found_.push_back(p);
      bound = std::min(bound, compiled_.constant + point[1] - point[2]);
    }
  }
  std::stable_sort(found_.begin(), found_.end(), [&](std::size_t a, std::size_t b) {
    return last.point(a)[1] < last.point(b)[1];
  });
  lower_bound_ = bound;
  return true;
}

std::vector<int> ParetoElimination::choice(std::size_t index) const {
  const std::vector<Schedule::Step>& steps = compiled_.schedule.steps;
  std::vector<int> choice(compiled_.sizes.size(), 0);
  std::vector<std::size_t> point(steps.size());
  point.back() = found_[index];
  for (std::size_t s = steps.size(); s-- > 0;) {
    const Lists& lists = lists_[static_cast<std::size_t>(dimensions_.of_step[s])];
    const int* const back = lists.back.data() + point[s] * (1 + lists.children);
    if (steps[s].variable >= 0) {
      choice[static_cast<std::size_t>(steps[s].variable)] = back[0];
    }
    for (std::size_t i = 0; i < steps[s].children.size(); ++i) {
      point[static_cast<std::size_t>(steps[s].children[i])] = static_cast<std::size_t>(back[1 + i]);
    }
  }
  return choice;
}

}  // namespace shardplan::solvers
