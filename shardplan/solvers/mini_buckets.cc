// Construction goes variable by variable: `eliminate` takes the terms that still look at a
// variable, `partition` groups them, and every group leaves a message, a term over the group's
// other variables. Evaluation computes the kinds of tables in the order in which they were made.
#include "shardplan/solvers/mini_buckets.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <set>
#include <utility>

namespace shardplan::solvers {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<int> merged(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> out;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}

std::size_t position(const std::vector<int>& sorted, int value) {
  return static_cast<std::size_t>(std::lower_bound(sorted.begin(), sorted.end(), value) -
                                  sorted.begin());
}

}  // namespace

std::size_t MiniBuckets::size(int variable) const {
  return problem_.objective.unary[static_cast<std::size_t>(variable)]->size();
}

MiniBuckets::MiniBuckets(const ConstrainedProblem& problem, std::size_t largest)
    : problem_(problem), largest_(largest) {
  const std::size_t n = problem.objective.unary.size();
  terms_of_.resize(n);
  add_problem_terms();
  using Entry = std::pair<std::size_t, int>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  std::vector<std::size_t> current(n, 0);
  const auto look_again = [&](int v) {
    current[static_cast<std::size_t>(v)] = cluster_size(v);
    queue.emplace(current[static_cast<std::size_t>(v)], v);
  };
  for (std::size_t v = 0; v < n; ++v) {
    if (problem.objective.unary[v]->size() > 1) {
      look_again(static_cast<int>(v));
    }
  }
  while (!queue.empty()) {
    const auto [entries, v] = queue.top();
    queue.pop();
    if (entries != current[static_cast<std::size_t>(v)]) {
      continue;
    }
    current[static_cast<std::size_t>(v)] = 0;
    const std::size_t first = groups_.size();
    eliminate(v);
    std::set<int> touched;
    for (std::size_t g = first; g < groups_.size(); ++g) {
      touched.insert(groups_[g].scope.begin(), groups_[g].scope.end());
    }
    std::for_each(touched.begin(), touched.end(), look_again);
  }
  finish_order();
}

void MiniBuckets::add_problem_terms() {
  const CostNetwork& objective = problem_.objective;
  std::vector<const CostTable*> rows(problem_.rows.size());
  for (std::size_t v = 0; v < objective.unary.size(); ++v) {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      rows[r] = &problem_.rows[r].unary[v];
    }
    add_term(objective.unary[v], rows, {static_cast<int>(v)}, static_cast<int>(v), -1);
  }
  for (std::size_t f = 0; f < objective.factors.size(); ++f) {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      rows[r] = &problem_.rows[r].factors[f];
    }
    add_term(objective.factors[f].cost, rows, objective.factors[f].scope, -1, static_cast<int>(f));
  }
}

void MiniBuckets::add_term(const CostTable& objective,
                           const std::vector<const CostTable*>& rows,
                           const std::vector<int>& scope,
                           int variable,
                           int factor) {
  std::vector<std::uintptr_t> key{0, reinterpret_cast<std::uintptr_t>(objective.get())};
  for (const CostTable* row : rows) {
    key.push_back(reinterpret_cast<std::uintptr_t>(row->get()));
  }
  const auto [known, is_new] = known_.emplace(std::move(key), kinds_.size());
  if (is_new) {
    Kind& kind = kinds_.emplace_back();
    kind.objective = objective.get();
    for (const CostTable* row : rows) {
      kind.rows.push_back(row->get());
    }
  }
  Term term{.kind = known->second, .variable = variable, .factor = factor};
  std::vector<std::pair<int, std::size_t>> strides;
  std::size_t stride = 1;
  for (std::size_t i = scope.size(); i-- > 0;) {
    // A variable of one choice joins nothing.
    if (size(scope[i]) > 1) {
      strides.emplace_back(scope[i], stride);
      stride *= size(scope[i]);
    }
  }
  std::sort(strides.begin(), strides.end());
  for (const auto& [v, step] : strides) {
    term.scope.push_back(v);
    term.stride.push_back(step);
  }
  if (term.scope.empty()) {
    constants_.push_back(std::move(term));
    return;
  }
  for (const int v : term.scope) {
    terms_of_[static_cast<std::size_t>(v)].push_back(terms_.size());
  }
  terms_.push_back(std::move(term));
}

/// Entries of the variable's cluster if it were not split, up to a large number.
std::size_t MiniBuckets::cluster_size(int variable) const {
  constexpr std::size_t kEnough = std::size_t{1} << 40U;
  std::set<int> members;
  for (const std::size_t t : terms_of_[static_cast<std::size_t>(variable)]) {
    members.insert(terms_[t].scope.begin(), terms_[t].scope.end());
  }
  std::size_t entries = 1;
  for (const int v : members) {
    entries = std::min(kEnough, entries * size(v));
  }
  return entries;
}

/// First fit by falling size: each term joins the first group whose cluster stays small enough.
std::vector<MiniBuckets::Group> MiniBuckets::partition(int variable) const {
  std::vector<std::size_t> order = terms_of_[static_cast<std::size_t>(variable)];
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return terms_[a].scope.size() > terms_[b].scope.size();
  });
  const auto fits = [&](const std::vector<int>& scope) {
    std::size_t entries = 1;
    for (const int v : scope) {
      if (entries > largest_ / size(v)) {
        return false;
      }
      entries *= size(v);
    }
    return true;
  };
  std::vector<Group> groups;
  for (const std::size_t t : order) {
    const auto place = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
      const std::vector<int> together = merged(group.scope, terms_[t].scope);
      return together.size() == group.scope.size() || fits(together);
    });
    if (place == groups.end()) {
      groups.push_back(Group{.variable = variable, .scope = terms_[t].scope, .terms = {t}});
    } else {
      place->scope = merged(place->scope, terms_[t].scope);
      place->terms.push_back(t);
    }
  }
  return groups;
}

void MiniBuckets::eliminate(int variable) {
  std::vector<Group> groups = partition(variable);
  split_ = split_ || groups.size() > 1;
  order_.push_back(variable);
  groups_of_.emplace_back();
  for (const std::size_t t :
       std::vector<std::size_t>(terms_of_[static_cast<std::size_t>(variable)])) {
    for (const int v : terms_[t].scope) {
      std::erase(terms_of_[static_cast<std::size_t>(v)], t);
    }
  }
  for (Group& group : groups) {
    std::erase(group.scope, variable);
    std::sort(group.terms.begin(), group.terms.end());
    close_group(std::move(group));
  }
}

std::vector<std::size_t> MiniBuckets::strides_in(const Term& term,
                                                 const std::vector<int>& cluster) {
  std::vector<std::size_t> out(cluster.size(), 0);
  for (std::size_t i = 0; i < cluster.size(); ++i) {
    const auto it = std::lower_bound(term.scope.begin(), term.scope.end(), cluster[i]);
    if (it != term.scope.end() && *it == cluster[i]) {
      out[i] = term.stride[static_cast<std::size_t>(it - term.scope.begin())];
    }
  }
  return out;
}

/// The message's kind, made if no equal one is known.
std::size_t MiniBuckets::message_kind(const Group& group) {
  Kind kind;
  std::vector<int> cluster = group.scope;
  cluster.push_back(group.variable);
  std::vector<std::uintptr_t> key{1, cluster.size()};
  for (const int v : cluster) {
    kind.sizes.push_back(size(v));
    key.push_back(size(v));
  }
  for (const std::size_t t : group.terms) {
    Kind::Input input{terms_[t].kind, strides_in(terms_[t], cluster)};
    key.push_back(input.kind);
    key.insert(key.end(), input.stride.begin(), input.stride.end());
    kind.inputs.push_back(std::move(input));
  }
  const auto [known, is_new] = known_.emplace(std::move(key), kinds_.size());
  if (is_new) {
    std::size_t entries = 1;
    for (const std::size_t choices : kind.sizes) {
      entries *= choices;
    }
    entries_ += entries;
    kinds_.push_back(std::move(kind));
  }
  return known->second;
}

void MiniBuckets::close_group(Group group) {
  const std::size_t index = groups_.size();
  group.kind = message_kind(group);
  groups_of_.back().push_back(index);
  for (const std::size_t t : group.terms) {
    if (terms_[t].group >= 0) {
      groups_[static_cast<std::size_t>(terms_[t].group)].parent = static_cast<int>(index);
    }
  }
  if (group.scope.empty()) {
    roots_.push_back(index);
  } else {
    Term message{.kind = group.kind, .scope = group.scope, .group = static_cast<int>(index)};
    message.stride.resize(group.scope.size());
    std::size_t stride = 1;
    for (std::size_t i = group.scope.size(); i-- > 0;) {
      message.stride[i] = stride;
      stride *= size(group.scope[i]);
      terms_of_[static_cast<std::size_t>(group.scope[i])].push_back(terms_.size());
    }
    terms_.push_back(std::move(message));
  }
  groups_.push_back(std::move(group));
}

/// Turns the order of elimination into the order of assignment.
void MiniBuckets::finish_order() {
  std::reverse(order_.begin(), order_.end());
  std::reverse(groups_of_.begin(), groups_of_.end());
  for (std::size_t step = 0; step < order_.size(); ++step) {
    std::vector<int> context;
    for (const std::size_t g : groups_of_[step]) {
      context = merged(context, groups_[g].scope);
    }
    std::vector<int> cluster = context;
    cluster.push_back(order_[step]);
    std::vector<Function> functions;
    for (const std::size_t g : groups_of_[step]) {
      for (const int v : groups_[g].scope) {
        groups_[g].slots.push_back(position(context, v));
      }
      for (const std::size_t t : groups_[g].terms) {
        if (terms_[t].group < 0) {
          functions.push_back({terms_[t].factor, strides_in(terms_[t], cluster)});
        }
      }
    }
    context_.push_back(std::move(context));
    functions_.push_back(std::move(functions));
  }
}

const std::vector<int>& MiniBuckets::context(std::size_t step) const {
  return context_[step];
}

const std::vector<MiniBuckets::Function>& MiniBuckets::functions(std::size_t step) const {
  return functions_[step];
}

void MiniBuckets::compute_source(Kind& kind,
                                 const std::vector<double>& multiplier,
                                 double weight) const {
  kind.values.resize(kind.objective->size());
  for (std::size_t i = 0; i < kind.values.size(); ++i) {
    const double cost = (*kind.objective)[i];
    kind.values[i] = cost < kInfinity ? weight * cost : kInfinity;
  }
  for (std::size_t r = 0; r < kind.rows.size(); ++r) {
    if (kind.rows[r] == nullptr || multiplier[r] == 0) {
      continue;
    }
    for (std::size_t i = 0; i < kind.values.size(); ++i) {
      kind.values[i] += multiplier[r] * (*kind.rows[r])[i];
    }
  }
}

void MiniBuckets::compute_message(Kind& kind) {
  const std::size_t arity = kind.sizes.size() - 1;
  const std::size_t choices = kind.sizes.back();
  std::size_t entries = 1;
  for (std::size_t i = 0; i < arity; ++i) {
    entries *= kind.sizes[i];
  }
  kind.values.resize(entries);
  kind.best.resize(entries);
  std::vector<const double*> at;
  at.reserve(kind.inputs.size());
  for (const Kind::Input& input : kind.inputs) {
    at.push_back(kinds_[input.kind].values.data());
  }
  std::vector<std::size_t> digit(arity, 0);
  std::vector<double> sum(choices);
  for (std::size_t entry = 0; entry < kind.values.size(); ++entry) {
    std::fill(sum.begin(), sum.end(), 0);
    for (std::size_t k = 0; k < at.size(); ++k) {
      const std::size_t stride = kind.inputs[k].stride[arity];
      for (std::size_t c = 0; c < choices; ++c) {
        sum[c] += at[k][c * stride];
      }
    }
    const auto best = std::min_element(sum.begin(), sum.end());
    kind.values[entry] = *best;
    kind.best[entry] = static_cast<std::uint16_t>(best - sum.begin());
    for (std::size_t i = arity; i-- > 0;) {
      const bool carry = ++digit[i] == kind.sizes[i];
      for (std::size_t k = 0; k < at.size(); ++k) {
        const std::size_t stride = kind.inputs[k].stride[i];
        at[k] = carry ? at[k] - stride * (kind.sizes[i] - 1) : at[k] + stride;
      }
      if (!carry) {
        break;
      }
      digit[i] = 0;
    }
  }
}

MiniBuckets::Bound MiniBuckets::evaluate(const std::vector<double>& multiplier, double weight) {
  for (Kind& kind : kinds_) {
    if (kind.objective != nullptr) {
      compute_source(kind, multiplier, weight);
    } else {
      compute_message(kind);
    }
  }
  Bound bound;
  for (const Term& term : constants_) {
    bound.value += kinds_[term.kind].values[0];
  }
  for (const std::size_t g : roots_) {
    bound.value += kinds_[groups_[g].kind].values[0];
  }
  for (std::size_t r = 0; r < problem_.rows.size(); ++r) {
    const ConstrainedProblem::Row& row = problem_.rows[r];
    bound.value += multiplier[r] * (row.constant - row.limit);
    bound.usage.push_back(row.constant);
  }
  add_usage(bound.usage);
  return bound;
}

/// Walks from the last groups to the first: each takes over what its parent chose.
void MiniBuckets::add_usage(std::vector<double>& usage) const {
  const auto add = [&](const Term& term, std::size_t index) {
    const Kind& kind = kinds_[term.kind];
    for (std::size_t r = 0; r < usage.size(); ++r) {
      usage[r] += kind.rows[r] != nullptr ? (*kind.rows[r])[index] : 0;
    }
  };
  for (const Term& term : constants_) {
    add(term, 0);
  }
  // By group: the choices of its scope, then of its variable.
  std::vector<std::vector<std::size_t>> assigned(groups_.size());
  for (std::size_t g = groups_.size(); g-- > 0;) {
    const Group& group = groups_[g];
    std::vector<std::size_t>& own = assigned[g];
    std::size_t entry = 0;
    for (const int v : group.scope) {
      const auto parent = static_cast<std::size_t>(group.parent);
      const std::size_t choice = v == groups_[parent].variable
                                     ? assigned[parent].back()
                                     : assigned[parent][position(groups_[parent].scope, v)];
      own.push_back(choice);
      entry = entry * size(v) + choice;
    }
    own.push_back(kinds_[group.kind].best[entry]);
    const std::vector<Kind::Input>& inputs = kinds_[group.kind].inputs;
    for (std::size_t k = 0; k < group.terms.size(); ++k) {
      if (terms_[group.terms[k]].group < 0) {
        std::size_t index = 0;
        for (std::size_t i = 0; i < own.size(); ++i) {
          index += own[i] * inputs[k].stride[i];
        }
        add(terms_[group.terms[k]], index);
      }
    }
  }
}

void MiniBuckets::increments(std::size_t step,
                             const std::vector<int>& context_choice,
                             std::vector<double>& out) const {
  out.assign(size(order_[step]), 0);
  for (const std::size_t g : groups_of_[step]) {
    const Group& group = groups_[g];
    const Kind& kind = kinds_[group.kind];
    std::size_t entry = 0;
    for (std::size_t i = 0; i < group.slots.size(); ++i) {
      entry = entry * kind.sizes[i] + static_cast<std::size_t>(context_choice[group.slots[i]]);
    }
    for (const Kind::Input& input : kind.inputs) {
      std::size_t start = 0;
      for (std::size_t i = 0; i < group.slots.size(); ++i) {
        start += input.stride[i] * static_cast<std::size_t>(context_choice[group.slots[i]]);
      }
      const double* const values = kinds_[input.kind].values.data() + start;
      for (std::size_t c = 0; c < out.size(); ++c) {
        out[c] += values[c * input.stride.back()];
      }
    }
    for (double& value : out) {
      value -= kind.values[entry];
    }
  }
}

}  // namespace shardplan::solvers
