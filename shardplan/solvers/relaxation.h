#pragma once

#include <cstddef>
#include <vector>

#include "shardplan/solvers/compiled.h"
#include "shardplan/solvers/table_store.h"

namespace shardplan::solvers {

/// The relaxed problem: minimum over all assignments of weight · objective + Σ multiplier_r · row_r
/// by elimination. The tables of the last evaluation stay for walking back and for bounds.
/// The compiled problem and the store must outlive it.
class Relaxation {
 public:
  Relaxation(const Compiled& compiled, const TableStore& store);

  /// The minimum, constants included; infinity when everything is forbidden.
  double evaluate(const std::vector<double>& multiplier, double weight = 1);

  /// A minimising assignment of the last evaluation.
  [[nodiscard]] std::vector<int> choice() const;

  [[nodiscard]] const StepClasses& classes() const { return classes_; }
  /// What the steps of a class leave: the least cost of everything below them.
  [[nodiscard]] const double* result(int step_class) const {
    return results_.data() + offset_[static_cast<std::size_t>(step_class)];
  }
  /// Least cost of everything outside the steps of a class, laid out as its result; where the class
  /// has several steps, the least of them.
  [[nodiscard]] std::vector<std::vector<double>> outside() const;

 private:
  void relax_factors(const std::vector<double>& multiplier, double weight);
  int relax(std::size_t signature, const std::vector<double>& multiplier, double weight);
  void gather_inputs(const Join& join, std::vector<const double*>& inputs) const;

  const Compiled& compiled_;
  const TableStore& store_;
  std::vector<int> factor_class_;  ///< by factor
  StepClasses classes_;
  std::vector<std::size_t> offset_;  ///< of each step class into results_
  std::vector<double> results_;
  std::vector<std::size_t> relaxed_offset_;  ///< of each factor class into relaxed_
  std::vector<double> relaxed_;
  KeyIndex relaxed_index_;
  std::vector<std::pair<int, double>> terms_;
  std::vector<std::uint64_t> key_;
};

}  // namespace shardplan::solvers
