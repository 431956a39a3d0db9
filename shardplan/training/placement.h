#pragma once

#include <map>
#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/support/result.h"

namespace shardplan::training {

/// The stage of every op of a step, and the owner of every value that lives across steps and is
/// changed by one: see split_into_stages.
class Placement {
 public:
  static constexpr int kAnywhere = -1;  ///< in every stage that needs it
  static constexpr int kNobody = -2;    ///< not written

  /// Both must outlive it. `forward_stage`: by op.
  Placement(const ir::Graph& step, const std::vector<int>& forward_stage);
  /// Precedes all others. Errors: a forward op that needs a value of a later stage.
  Status run();

  [[nodiscard]] int stage(ir::OpId op) const { return stage_[op.index()]; }
  [[nodiscard]] const std::vector<int>& stages() const { return stage_; }
  /// Of a value that is no op result.
  [[nodiscard]] int owner(ir::ValueId value) const { return owner_[value.index()]; }

 private:
  [[nodiscard]] int stage_of_value(ir::ValueId value) const;
  [[nodiscard]] bool is_anywhere(const ir::Op& op) const;
  void place_forward();
  void find_owners();
  [[nodiscard]] int first_stage_of_inputs(const ir::Op& op) const;
  [[nodiscard]] int backward_stage(const ir::Op& op) const;
  [[nodiscard]] int update_stage(const ir::Op& op) const;
  [[nodiscard]] Status check_order() const;

  const ir::Graph& step_;
  const std::vector<int>& forward_stage_;
  std::vector<int> stage_;                          ///< by op
  std::vector<int> owner_;                          ///< by value
  std::vector<bool> written_;                       ///< by value
  std::map<ir::ValueId, ir::ValueId> gradient_of_;  ///< parameter by gradient
};

}  // namespace shardplan::training
