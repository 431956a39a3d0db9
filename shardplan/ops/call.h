#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shardplan/ops/op.h"

/// The op `call`: an operator of PyTorch that has no definition of its own, called by its name. Its
/// static arguments travel as one text attribute, so that the graph stays plain.
namespace shardplan::ops {

/// One argument of a called operator.
struct CallValue {
  enum class Kind : std::uint8_t { kNone, kTensor, kInt, kReal, kBool, kText, kDType, kList };
  Kind kind = Kind::kNone;
  std::int64_t integer = 0;  ///< number of the op's operand (kTensor), integer, 0 or 1 (kBool)
  double real = 0;
  std::string text{};  ///< of kText, or our name of the element type
  std::vector<CallValue> list{};
  bool operator==(const CallValue&) const = default;
};

struct CallArgument {
  std::string name;
  CallValue value;
  bool operator==(const CallArgument&) const = default;
};

/// "self=$0, dim=1, index=[none,$1], eps=1e-05, mode='mean', dtype=:f32". Text may hold any
/// characters but a quote.
[[nodiscard]] std::string to_string(const std::vector<CallArgument>& arguments);
/// The inverse; errors say what cannot be read.
[[nodiscard]] Result<std::vector<CallArgument>> parse_call_arguments(std::string_view text);

/// The attribute `results`: "same[4,8] - i64[4,8]". `same` is the element type of the first
/// floating operand, so that a graph in another precision keeps the text; "-", here a missing type,
/// stands for a result of the operator that the op does not have.
[[nodiscard]] std::string call_results_text(
    const std::vector<std::optional<ir::TensorType>>& results, const Types& inputs);
/// By result of the op: its number among the operator's results.
[[nodiscard]] std::vector<std::size_t> call_kept_results(std::string_view results);

/// Attributes of a `call` of `target` ("aten.cumprod.default") with these arguments, operand and
/// result types.
[[nodiscard]] ir::Attributes call_attributes(
    std::string_view target,
    const std::vector<CallArgument>& arguments,
    const Types& inputs,
    const std::vector<std::optional<ir::TensorType>>& results);

/// "cumprod" of "aten.cumprod.default".
[[nodiscard]] std::string_view call_name(std::string_view target);
/// The value of a named argument, or null when it is not given.
[[nodiscard]] const CallValue* find_argument(const std::vector<CallArgument>& arguments,
                                             std::string_view name);
/// Whether the call draws random numbers: its attribute `site` then tells its draws from those of
/// other calls.
[[nodiscard]] bool draws_random_numbers(std::string_view target,
                                        const std::vector<CallArgument>& arguments);

/// The axis map of a call, from a table of operators whose dimensions are known to be independent
/// (call_axes.cc); no axis at all for any other.
[[nodiscard]] AxisMap call_axis_map(const OpView& op);

}  // namespace shardplan::ops
