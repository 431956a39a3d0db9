#include "shardplan/solvers/relaxation.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace shardplan::solvers {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::uint64_t bits(double value) {
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof word);
  return word;
}

}  // namespace

Relaxation::Relaxation(const Compiled& compiled, const TableStore& store)
    : compiled_(compiled), store_(store) {}

double Relaxation::evaluate(const std::vector<double>& multiplier, double weight) {
  double total = compiled_.constant < kInfinity ? weight * compiled_.constant : kInfinity;
  for (std::size_t r = 0; r < multiplier.size(); ++r) {
    total += multiplier[r] * compiled_.row_constant[r];
  }
  relax_factors(multiplier, weight);
  std::vector<const double*> inputs;
  for (std::size_t c = 0; c < classes_.joins.size(); ++c) {
    gather_inputs(classes_.joins[c], inputs);
    min_plus(classes_.joins[c], inputs, results_.data() + offset_[c]);
  }
  for (std::size_t s = 0; s < compiled_.schedule.steps.size(); ++s) {
    if (compiled_.schedule.steps[s].parent < 0) {
      total += *result(classes_.of_step[s]);
    }
  }
  return total;
}

void Relaxation::relax_factors(const std::vector<double>& multiplier, double weight) {
  relaxed_index_ = {};
  relaxed_offset_.clear();
  relaxed_.clear();
  std::vector<int> of_signature(compiled_.first_of_signature.size());
  for (std::size_t s = 0; s < of_signature.size(); ++s) {
    of_signature[s] = relax(s, multiplier, weight);
  }
  std::vector<int> factor_class(compiled_.factors.size());
  for (std::size_t f = 0; f < factor_class.size(); ++f) {
    factor_class[f] = of_signature[static_cast<std::size_t>(compiled_.factors[f].signature)];
  }
  if (factor_class == factor_class_ && !offset_.empty()) {
    return;  // the same factors are equal as before
  }
  factor_class_ = std::move(factor_class);
  classes_ = classify(compiled_, factor_class_);
  offset_.clear();
  std::size_t size = 0;
  for (const Join& join : classes_.joins) {
    offset_.push_back(size);
    size += join.entries;
  }
  offset_.push_back(size);
  results_.resize(size);
}

int Relaxation::relax(std::size_t signature, const std::vector<double>& multiplier, double weight) {
  const auto f = static_cast<std::size_t>(compiled_.first_of_signature[signature]);
  const int cost = compiled_.factors[f].cost;
  terms_.clear();
  for (std::size_t r = 0; r < multiplier.size(); ++r) {
    const int part = compiled_.part(f, r);
    if (multiplier[r] != 0 && part != TableStore::kZeros) {
      terms_.emplace_back(part, multiplier[r]);
    }
  }
  std::sort(terms_.begin(), terms_.end());
  key_.assign(1, static_cast<std::uint64_t>(cost));
  std::size_t kept = 0;
  for (const auto& [part, factor] : terms_) {
    if (kept > 0 && terms_[kept - 1].first == part) {
      terms_[kept - 1].second += factor;
    } else {
      terms_[kept++] = {part, factor};
    }
  }
  terms_.resize(kept);
  for (const auto& [part, factor] : terms_) {
    key_.push_back(static_cast<std::uint64_t>(part));
    key_.push_back(bits(factor));
  }
  const auto [number, fresh] = relaxed_index_.number(key_);
  if (!fresh) {
    return number;
  }
  const std::vector<double>& costs = store_.values(cost);
  const std::size_t start = relaxed_.size();
  relaxed_offset_.push_back(start);
  relaxed_.resize(start + costs.size());
  double* const relaxed = relaxed_.data() + start;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    relaxed[i] = costs[i] < kInfinity ? weight * costs[i] : kInfinity;
  }
  for (const auto& [part, factor] : terms_) {
    const std::vector<double>& usages = store_.values(part);
    for (std::size_t i = 0; i < costs.size(); ++i) {
      relaxed[i] += factor * usages[i];
    }
  }
  return number;
}

void Relaxation::gather_inputs(const Join& join, std::vector<const double*>& inputs) const {
  inputs.clear();
  for (const Join::Input& input : join.inputs) {
    const auto table = static_cast<std::size_t>(input.table);
    inputs.push_back(input.is_child ? results_.data() + offset_[table]
                                    : relaxed_.data() + relaxed_offset_[table]);
  }
}

std::vector<int> Relaxation::choice() const {
  std::vector<int> choice(compiled_.sizes.size(), 0);
  std::vector<const double*> inputs;
  std::vector<double> sum;
  for (std::size_t s = compiled_.schedule.steps.size(); s-- > 0;) {
    const Schedule::Step& step = compiled_.schedule.steps[s];
    if (step.variable < 0) {
      continue;
    }
    const Join& join = classes_.joins[static_cast<std::size_t>(classes_.of_step[s])];
    gather_inputs(join, inputs);
    sum.assign(static_cast<std::size_t>(join.choices), 0.0);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const double* values = inputs[i];
      for (std::size_t d = 0; d < step.scope.size(); ++d) {
        values += join.inputs[i].stride[d] *
                  static_cast<std::size_t>(choice[static_cast<std::size_t>(step.scope[d])]);
      }
      for (std::size_t c = 0; c < sum.size(); ++c) {
        sum[c] += values[c * join.inputs[i].choice_stride];
      }
    }
    choice[static_cast<std::size_t>(step.variable)] =
        static_cast<int>(std::min_element(sum.begin(), sum.end()) - sum.begin());
  }
  return choice;
}

std::vector<std::vector<double>> Relaxation::outside() const {
  std::vector<std::vector<double>> outside(classes_.joins.size());
  double roots = 0;
  for (std::size_t s = 0; s < compiled_.schedule.steps.size(); ++s) {
    if (compiled_.schedule.steps[s].parent < 0) {
      roots += *result(classes_.of_step[s]);
    }
  }
  for (std::size_t c = 0; c < outside.size(); ++c) {
    outside[c].assign(classes_.joins[c].entries, kInfinity);
  }
  for (std::size_t s = 0; s < compiled_.schedule.steps.size(); ++s) {
    if (compiled_.schedule.steps[s].parent < 0) {
      const auto c = static_cast<std::size_t>(classes_.of_step[s]);
      outside[c][0] = std::min(outside[c][0], roots - *result(classes_.of_step[s]));
    }
  }
  std::vector<const double*> inputs;
  std::vector<double> cluster;
  std::vector<double> least;
  for (std::size_t c = outside.size(); c-- > 0;) {
    const Join& join = classes_.joins[c];
    const bool has_child = std::any_of(
        join.inputs.begin(), join.inputs.end(), [](const auto& input) { return input.is_child; });
    if (!has_child) {
      continue;
    }
    gather_inputs(join, inputs);
    cluster.resize(static_cast<std::size_t>(join.choices) * join.entries);
    sum_cluster(join, inputs, outside[c].data(), cluster.data());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!join.inputs[i].is_child) {
        continue;
      }
      const auto child = static_cast<std::size_t>(join.inputs[i].table);
      std::vector<double>& target = outside[child];
      least.assign(target.size(), kInfinity);
      min_onto_input(join, i, cluster.data(), least.data());
      for (std::size_t k = 0; k < target.size(); ++k) {
        // A forbidden entry leads nowhere; its outside is not looked at.
        const double rest = least[k] < kInfinity ? least[k] - inputs[i][k] : kInfinity;
        target[k] = std::min(target[k], rest);
      }
    }
  }
  return outside;
}

}  // namespace shardplan::solvers
