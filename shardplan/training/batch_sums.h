#pragma once

#include <cstdint>
#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/support/result.h"
#include "shardplan/training/batch_cut.h"

namespace shardplan::training {

/// How a value without a batch dimension depends on the batch.
enum class Batch : std::uint8_t {
  kFree,  ///< not at all
  kCut,   ///< it has a batch dimension
  kPart,  ///< the values of all microbatches add up to the value of the whole batch
  kMean,  ///< their mean is the value of the whole batch
  kOwn,   ///< neither; no trained parameter has to do with it: a function of counts of tokens
};

/// Finds how values without a batch dimension depend on the batch, and what that asks of operands.
class BatchSums {
 public:
  /// `graph` and `cut` must outlive this.
  BatchSums(const ir::Graph& graph, const BatchCut& cut);

  /// Errors name the op that needs the whole batch.
  Status run();

  [[nodiscard]] bool is_part(ir::ValueId value) const {
    return batch_[value.index()] == Batch::kPart;
  }
  /// Whether the value asks nothing of its readers: it is the same in every microbatch, or
  /// is_of_each().
  [[nodiscard]] bool is_free(ir::ValueId value) const {
    return batch_[value.index()] == Batch::kFree;
  }
  /// Whether the value comes from statistics of one microbatch (batch_moments), which are no part
  /// of anything: batch normalisation is defined for each microbatch. Such values ask nothing of
  /// their readers, and is_free() holds for those without a batch dimension.
  [[nodiscard]] bool is_of_each(ir::ValueId value) const { return of_each_[value.index()]; }
  /// Operands of the op that must be multiplied by the number of microbatches first: sums that are
  /// added to something that is none.
  [[nodiscard]] const std::vector<int>& scaled_operands(ir::OpId op) const {
    return scaled_[op.index()];
  }
  /// Operands of the op that must be those of the whole batch: a count of tokens that a sum is
  /// divided by.
  [[nodiscard]] const std::vector<int>& whole_operands(ir::OpId op) const {
    return whole_[op.index()];
  }

 private:
  /// Operands of an op by how they depend on the batch.
  struct Operands {
    std::vector<int> parts{};      ///< sums
    std::vector<int> means{};      ///< means
    std::vector<int> untrained{};  ///< sums and others that no trained parameter has to do with
    bool own = false;              ///< one of them is kOwn
  };
  [[nodiscard]] Operands operands(const ir::Op& op) const;
  /// How results of the op that have no batch dimension depend on the batch.
  Result<Batch> without_dimension(ir::OpId id, bool trained);
  Result<Batch> of_trained(ir::OpId id, const Operands& found);
  /// Operands of the op that are sums and stay them.
  [[nodiscard]] std::vector<int> trained_parts(ir::OpId id) const;
  [[nodiscard]] bool passes_sums(ir::OpId id, const std::vector<int>& parts) const;

  const ir::Graph& graph_;
  const BatchCut& cut_;
  std::vector<Batch> batch_;              ///< by value
  std::vector<bool> trained_;             ///< by value: depends on a trainable parameter
  std::vector<bool> of_each_;             ///< by value, see is_of_each
  std::vector<std::vector<int>> scaled_;  ///< by op
  std::vector<std::vector<int>> whole_;   ///< by op
};

}  // namespace shardplan::training
