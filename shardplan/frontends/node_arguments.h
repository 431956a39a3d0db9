#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shardplan/frontends/exported_program.h"

/// Reading and making the arguments of nodes of an exported program.
namespace shardplan::frontends {

/// The argument, or null when it is missing or None.
[[nodiscard]] const Argument* argument_of(const ExportedNode& node, std::string_view name);
/// A whole number; `fallback` when it is missing or something else.
[[nodiscard]] std::int64_t int_of(const ExportedNode& node,
                                  std::string_view name,
                                  std::int64_t fallback);
/// False when it is missing or something else.
[[nodiscard]] bool flag_of(const ExportedNode& node, std::string_view name);

/// The first tensor among the arguments, or the first of a list: what views look at and in-place
/// operators write into. Empty when there is none.
[[nodiscard]] std::string first_operand(const ExportedNode& node);
void replace_first_operand(ExportedNode& node, const std::string& tensor);

[[nodiscard]] Argument tensor_argument(const std::string& name);
[[nodiscard]] Argument int_argument(std::int64_t value);
[[nodiscard]] Argument ints_argument(std::vector<std::int64_t> values);
[[nodiscard]] Argument dtype_argument(ir::DType dtype);

/// "add_" of "aten.add_.Tensor"; empty when the target has another form.
[[nodiscard]] std::string_view operator_name(std::string_view target);

}  // namespace shardplan::frontends
