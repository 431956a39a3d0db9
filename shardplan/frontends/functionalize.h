#pragma once

#include <string>

#include "shardplan/frontends/exported_program.h"
#include "shardplan/support/result.h"

namespace shardplan::frontends {

/// The same program without operators that write into an operand. An in-place operator becomes the
/// operator that returns its result; who reads the tensor later reads that result. A write into a
/// view goes back into the tensor that it looks at, and views of it that are read later are made
/// again. Buffers that are written become mutations of the program. Values that leave a region
/// without gradients (`no_grad`) are detached.
///
/// A program that has none of these is returned as it is. Refused by name, with the way to export
/// the model so that PyTorch does this itself: writes through views that are not followed
/// (expanded, as_strided), into inputs and parameters, and such that would cut gradients. O(nodes ×
/// length of chains of views).
[[nodiscard]] Result<ExportedProgram> functionalize(ExportedProgram program,
                                                    const std::string& where);

}  // namespace shardplan::frontends
