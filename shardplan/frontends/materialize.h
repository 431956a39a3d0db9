#pragma once

#include <optional>

#include "shardplan/frontends/builder.h"
#include "shardplan/frontends/const_tensor.h"

/// Tensors of a model that is being read, and the few ops that all front ends put between others.
namespace shardplan::frontends {

/// A tensor of the model: known content, or a value of our graph, or both once the constant has
/// been put into the graph.
struct Operand {
  std::optional<ConstTensor> constant;
  ir::ValueId value;
};

/// Puts a constant into the graph in compact form (size 1 where it does not vary): iota, full,
/// comparison of indices, or data. A constant that cannot be held is an error of the builder.
[[nodiscard]] ir::ValueId materialize_compact(Builder& b, const ConstTensor& constant);
/// The same in its full shape.
[[nodiscard]] ir::ValueId materialize(Builder& b, const ConstTensor& constant);

/// `x` in another dtype or shape; `x` itself where that is its own.
[[nodiscard]] ir::ValueId cast_to(Builder& b, ir::ValueId x, ir::DType dtype);
[[nodiscard]] ir::ValueId reshape_to(Builder& b, ir::ValueId x, const ir::Shape& shape);
[[nodiscard]] ir::ValueId broadcast_to(Builder& b, ir::ValueId x, const ir::Shape& shape);
[[nodiscard]] ir::ValueId permuted(Builder& b, ir::ValueId x, const ir::IntList& permutation);
/// Every step-th index of one dimension from start to before end; `x` itself when that is all.
[[nodiscard]] ir::ValueId sliced(Builder& b,
                                 ir::ValueId x,
                                 std::size_t dim,
                                 std::int64_t start,
                                 std::int64_t end,
                                 std::int64_t step = 1);

}  // namespace shardplan::frontends
