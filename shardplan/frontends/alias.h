#pragma once

#include <optional>
#include <string>

#include "shardplan/frontends/exported_program.h"

/// Which operators of ATen write into an operand, and which give results that share its memory.
namespace shardplan::frontends {

/// How the results of an operator lie in the memory of its first operand.
enum class Alias {
  kNone,       ///< memory of their own
  kSame,       ///< all of it, in the same shape
  kDetached,   ///< the same, without gradient
  kReshape,    ///< all of it, row by row, in another shape
  kTranspose,  ///< two dimensions swapped: its own inverse
  kPermute,    ///< `dims`
  kSlice,      ///< `start`, `end`, `step` of one dimension
  kNarrow,     ///< `start`, `length`
  kSelect,     ///< one index of one dimension
  kSplit,      ///< one result after the other along one dimension
  kUnbind,     ///< one result for each index of one dimension
  kExpand,     ///< elements that repeat
  kDiagonal,   ///< one diagonal
  kOpaque      ///< in a way that is not followed here
};

/// Looks at the strides that the archive has, where it depends on them whether memory is shared.
[[nodiscard]] Alias alias_of(const ExportedNode& node, const ExportedProgram& program);

/// Whether a row-major reshape of such a tensor needs no copy. Strides as PyTorch has them.
[[nodiscard]] bool can_view(const ir::Shape& shape, const ir::Shape& strides, const ir::Shape& to);

/// "aten.add.Tensor" for "aten.add_.Tensor"; nothing for an operator that does not write into its
/// first operand.
[[nodiscard]] std::optional<std::string> functional_target(const std::string& target);
/// Whether it writes into its argument `out`, one tensor.
[[nodiscard]] bool writes_out(const ExportedNode& node);
/// "aten.mv.default" for "aten.mv.out".
[[nodiscard]] std::string target_without_out(const std::string& target);
/// Whether an in-place operator changes the shape or the memory of its operand, not its content.
[[nodiscard]] bool changes_shape_in_place(const std::string& target);

}  // namespace shardplan::frontends
