#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "shardplan/solvers/cost_network.h"

namespace shardplan::solvers {

/// Lower bounds of a problem of any width, by mini-bucket elimination (Dechter, Rish 2003): where
/// the factors of a variable would join too many others, they are split in groups and the variable
/// is minimised in each group apart. Rows are relaxed by multipliers. Exact where nothing is split.
///
/// The structure is fixed at construction; equal sub-problems (equal layers) are computed once.
/// Cost of construction: about quadratic in the neighbours of a variable. Of an evaluation: the
/// entries of the distinct clusters. Keeps a reference to the problem.
class MiniBuckets {
 public:
  /// `largest`: entries of a cluster, including the variable that is minimised.
  MiniBuckets(const ConstrainedProblem& problem, std::size_t largest);

  struct Bound {
    /// No assignment has less of: weight · objective + Σ multiplier · (row − limit).
    double value = 0;
    /// Of each row in the relaxed optimum: value changes at least by as much as this minus the
    /// limit says (a supergradient).
    std::vector<double> usage{};
  };
  [[nodiscard]] Bound evaluate(const std::vector<double>& multiplier, double weight = 1);

  /// Whether some variable is minimised in more than one group.
  [[nodiscard]] bool split() const { return split_; }
  /// Sum of the entries of distinct clusters, the cost of an evaluation.
  [[nodiscard]] std::size_t entries() const { return entries_; }

  /// The variables of more than one choice, as they are best assigned: the last eliminated first.
  [[nodiscard]] const std::vector<int>& order() const { return order_; }
  /// Assigned variables that the groups of `order()[step]` look at.
  [[nodiscard]] const std::vector<int>& context(std::size_t step) const;
  /// What each choice of `order()[step]` adds to the bound of the last evaluation, given the
  /// choices of its context (in that order). At least 0 up to rounding; after the last variable
  /// the sum is the relaxed objective itself.
  void increments(std::size_t step,
                  const std::vector<int>& context_choice,
                  std::vector<double>& out) const;

  /// Functions of the problem by the step at which all their variables are assigned.
  struct Function {
    int factor = -1;                    ///< of the objective; -1: the variable's own costs
    std::vector<std::size_t> stride{};  ///< of each variable of the context, then of the own one
  };
  [[nodiscard]] const std::vector<Function>& functions(std::size_t step) const;

 private:
  /// A table that is computed once for all places where it occurs.
  struct Kind {
    // Of the problem: the objective's table and the rows'.
    const std::vector<double>* objective = nullptr;
    std::vector<const std::vector<double>*> rows{};
    // Or a message: the minimum over the last of `sizes` of the sum of the inputs.
    struct Input {
      std::size_t kind = 0;
      std::vector<std::size_t> stride{};  ///< one a variable of the cluster
    };
    std::vector<Input> inputs{};
    std::vector<std::size_t> sizes{};
    // Of the last evaluation.
    std::vector<double> values{};
    std::vector<std::uint16_t> best{};  ///< of a message: the minimising choice
  };
  /// A function during construction, and a function of the problem.
  struct Term {
    std::size_t kind = 0;
    std::vector<int> scope{};
    std::vector<std::size_t> stride{};  ///< one a variable of the scope
    int group = -1;                     ///< that made it; -1: of the problem
    int variable = -1;                  ///< of the problem: whose costs
    int factor = -1;
  };
  /// A group of the terms of one variable.
  struct Group {
    int variable = 0;
    std::vector<int> scope{};  ///< the others, ascending
    std::vector<std::size_t> terms{};
    std::size_t kind = 0;              ///< of its message
    int parent = -1;                   ///< the group that has the message
    std::vector<std::size_t> slots{};  ///< of its scope in the step's context
  };

  void add_problem_terms();
  void add_term(const CostTable& objective,
                const std::vector<const CostTable*>& rows,
                const std::vector<int>& scope,
                int variable,
                int factor);
  [[nodiscard]] std::size_t cluster_size(int variable) const;
  void eliminate(int variable);
  [[nodiscard]] std::vector<Group> partition(int variable) const;
  void close_group(Group group);
  [[nodiscard]] std::size_t message_kind(const Group& group);
  void finish_order();
  [[nodiscard]] std::size_t size(int variable) const;
  static std::vector<std::size_t> strides_in(const Term& term, const std::vector<int>& cluster);
  void compute_source(Kind& kind, const std::vector<double>& multiplier, double weight) const;
  void compute_message(Kind& kind);
  void add_usage(std::vector<double>& usage) const;

  const ConstrainedProblem& problem_;
  std::size_t largest_;
  bool split_ = false;
  std::size_t entries_ = 0;
  std::vector<Kind> kinds_;
  std::vector<Term> constants_;     ///< terms without a choice
  std::vector<std::size_t> roots_;  ///< groups with messages to nobody
  std::vector<Term> terms_;
  std::vector<std::vector<std::size_t>> terms_of_;  ///< by variable, those that still stand
  std::vector<Group> groups_;                       ///< in order of elimination
  std::vector<int> order_;
  std::vector<std::vector<std::size_t>> groups_of_;  ///< by step of order_
  std::vector<std::vector<int>> context_;            ///< by step
  std::vector<std::vector<Function>> functions_;     ///< by step
  std::map<std::vector<std::uintptr_t>, std::size_t> known_;
};

}  // namespace shardplan::solvers
