#pragma once

#include <ATen/core/Tensor.h>

#include "shardplan/ir/types.h"

namespace shardplan::runtime {

/// A contiguous tensor for an argument of which ATen needs the shape only: of zeros, in pages that
/// nobody has written and that take no memory therefore, and that no allocator counts. Reading it
/// is safe (some paths copy parts of such operands); writing to it is not. Throws std::bad_alloc.
[[nodiscard]] at::Tensor unread(const ir::Shape& shape, const at::TensorOptions& options);

}  // namespace shardplan::runtime
