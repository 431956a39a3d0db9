#pragma once

#include <optional>
#include <string>

#include "shardplan/frontends/alias.h"
#include "shardplan/frontends/exported_program.h"

namespace shardplan::frontends {

/// Whether the tensor that such a view looks at has elements which the view does not show.
[[nodiscard]] bool shows_a_part(Alias alias);

/// The node that gives the tensor which `view` looks at, after its `result`-th result got the
/// content `value`. `whole` is that tensor's content before; it matters where the view shows a
/// part. Without outputs. Nothing when such a view cannot be undone. Precondition: not kSame,
/// kDetached. `program` has the types under the names that `view` has.
[[nodiscard]] std::optional<ExportedNode> undo_view(const ExportedNode& view,
                                                    Alias alias,
                                                    std::size_t result,
                                                    const std::string& whole,
                                                    const std::string& value,
                                                    const ExportedProgram& program);

}  // namespace shardplan::frontends
