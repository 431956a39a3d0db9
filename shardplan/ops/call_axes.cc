// Which dimensions of called operators are independent, so that a call can be cut along them: each
// device then calls the operator on its part. An operator that is not listed here is called on the
// whole tensors, on every device.

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "shardplan/ops/call.h"
#include "shardplan/ops/checks.h"

namespace shardplan::ops {
namespace {

/// What a row of the table sees of a call.
struct CallView {
  const OpView& op;
  std::vector<CallArgument> arguments;

  [[nodiscard]] std::int64_t integer(std::string_view name, std::int64_t fallback) const {
    const CallValue* const value = find_argument(arguments, name);
    return value != nullptr && value->kind == CallValue::Kind::kInt ? value->integer : fallback;
  }
  [[nodiscard]] bool flag(std::string_view name) const {
    const CallValue* const value = find_argument(arguments, name);
    return value != nullptr && value->kind == CallValue::Kind::kBool && value->integer != 0;
  }
  /// A list of integers, or one as a list; `fallback` when it is not given.
  [[nodiscard]] ir::IntList integers(std::string_view name, ir::IntList fallback) const {
    const CallValue* const value = find_argument(arguments, name);
    if (value == nullptr || value->kind == CallValue::Kind::kNone) {
      return fallback;
    }
    if (value->kind == CallValue::Kind::kInt) {
      return {value->integer};
    }
    ir::IntList out;
    for (const CallValue& entry : value->list) {
      out.push_back(entry.integer);
    }
    return out;
  }
  /// Numbers of the operands that an argument names.
  [[nodiscard]] std::vector<std::size_t> operands(std::string_view name) const {
    std::vector<std::size_t> out;
    if (const CallValue* const value = find_argument(arguments, name)) {
      if (value->kind == CallValue::Kind::kTensor) {
        out.push_back(static_cast<std::size_t>(value->integer));
      }
      for (const CallValue& entry : value->list) {
        if (entry.kind == CallValue::Kind::kTensor) {
          out.push_back(static_cast<std::size_t>(entry.integer));
        }
      }
    }
    return out;
  }
};

/// The axis map in the making: a name for each dimension of each tensor, or "*".
struct Names {
  std::vector<std::vector<std::string>> inputs;
  std::vector<std::vector<std::string>> results;

  explicit Names(const OpView& op) {
    for (const ir::TensorType& type : op.inputs) {
      inputs.emplace_back(type.shape.size(), "*");
    }
    for (const ir::TensorType& type : op.results) {
      results.emplace_back(type.shape.size(), "*");
    }
  }

  [[nodiscard]] AxisMap map(const OpView& op) const {
    return make_axis_map(side(inputs) + " -> " + side(results), op.inputs, op.results);
  }

 private:
  static std::string side(const std::vector<std::vector<std::string>>& tensors) {
    std::string out;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      out += t == 0 ? "" : ",";
      for (const std::string& name : tensors[t]) {
        out += " " + name;
      }
    }
    return out;
  }
};

using Axes = void (*)(const CallView& call, Names& names);

/// Names dimension d of all tensors that have the rank of the first operand, if all have its size.
void name_common(const CallView& call, std::size_t d, Names& names) {
  const std::size_t rank = call.op.inputs[0].shape.size();
  const std::int64_t size = call.op.inputs[0].shape[d];
  const auto fits = [&](const ir::TensorType& type) {
    return type.shape.size() != rank || type.shape[d] == size;
  };
  if (call.op.results[0].shape.size() != rank ||
      !std::all_of(call.op.inputs.begin(), call.op.inputs.end(), fits) ||
      !std::all_of(call.op.results.begin(), call.op.results.end(), fits)) {
    return;
  }
  const std::string name = "d" + std::to_string(d);
  for (auto* const side : {&names.inputs, &names.results}) {
    for (std::vector<std::string>& tensor : *side) {
      if (tensor.size() == rank) {
        tensor[d] = name;
      }
    }
  }
}

/// All dimensions but those that the argument `dim` or `dims` names (the last by default).
void all_but_dims(const CallView& call, Names& names) {
  const auto rank = static_cast<std::int64_t>(call.op.inputs[0].shape.size());
  ir::IntList whole = call.integers("dims", call.integers("dim", {-1}));
  if (whole.empty()) {
    return;
  }
  for (std::int64_t& dim : whole) {
    dim += dim < 0 ? rank : 0;
  }
  for (std::int64_t d = 0; d < rank; ++d) {
    if (std::find(whole.begin(), whole.end(), d) == whole.end()) {
      name_common(call, static_cast<std::size_t>(d), names);
    }
  }
}

/// A roll without dimensions is one of all elements in a row.
void rolled(const CallView& call, Names& names) {
  if (!call.integers("dims", {}).empty()) {
    all_but_dims(call, names);
  }
}

/// All dimensions but the last `kWhole`.
template <std::size_t kWhole>
void leading(const CallView& call, Names& names) {
  for (std::size_t d = 0; d + kWhole < call.op.inputs[0].shape.size(); ++d) {
    name_common(call, d, names);
  }
}

/// The first dimension.
void batch(const CallView& call, Names& names) {
  if (!call.op.inputs[0].shape.empty()) {
    name_common(call, 0, names);
  }
}

/// Operands broadcast against each other, aligned at the right.
void pointwise(const CallView& call, Names& names) {
  const Result<ir::Shape> shape = broadcast_shapes(call.op.inputs);
  const ir::Shape& result = call.op.results[0].shape;
  const auto same = [&](const ir::TensorType& type) { return type.shape == result; };
  if (!shape.has_value() || *shape != result ||
      !std::all_of(call.op.results.begin(), call.op.results.end(), same)) {
    return;
  }
  for (auto* const side : {&names.inputs, &names.results}) {
    for (std::vector<std::string>& tensor : *side) {
      for (std::size_t d = 0; d < tensor.size(); ++d) {
        tensor[d] = "d" + std::to_string(d + result.size() - tensor.size());
      }
    }
  }
}

/// lstm, gru and rnn on padded sequences: the batch of the input, of all states and of all results.
void recurrent(const CallView& call, Names& names) {
  const std::vector<std::size_t> input = call.operands("input");
  if (input != std::vector<std::size_t>{0} || call.op.inputs[0].rank() != 3 ||
      call.operands("params").empty()) {
    return;
  }
  const std::size_t at = call.flag("batch_first") ? 0 : 1;
  const std::vector<std::size_t> states = call.operands("hx");
  const std::span<const ir::TensorType> results = call.op.results;
  const std::int64_t rows = call.op.inputs[0].shape[at];
  const auto fits = [&](const ir::TensorType& type, std::size_t dim) {
    return type.rank() == 3 && type.shape[dim] == rows;
  };
  bool all = fits(results[0], at);
  for (const std::size_t state : states) {
    all = all && fits(call.op.inputs[state], 1);
  }
  for (std::size_t r = 1; r < results.size(); ++r) {
    all = all && fits(results[r], 1);
  }
  if (!all) {
    return;
  }
  names.inputs[0][at] = "b";
  for (const std::size_t state : states) {
    names.inputs[state][1] = "b";
  }
  names.results[0][at] = "b";
  for (std::size_t r = 1; r < results.size(); ++r) {
    names.results[r][1] = "b";
  }
}

/// Queries, keys and values [..., positions, channels], a mask [..., queries, keys] that
/// broadcasts.
void attention(const CallView& call, Names& names) {
  constexpr std::size_t kMask = 3;
  const std::size_t rank = call.op.inputs[0].shape.size();
  for (std::size_t d = 0; d + 2 < rank; ++d) {
    const std::int64_t size = call.op.inputs[0].shape[d];
    bool fits = call.op.results[0].shape.size() == rank;
    for (std::size_t i = 0; i < call.op.inputs.size(); ++i) {
      const ir::Shape& shape = call.op.inputs[i].shape;
      const std::size_t skipped = rank - std::min(rank, shape.size());
      const std::int64_t own = d < skipped ? 1 : shape[d - skipped];
      fits = fits && shape.size() <= rank && (own == size || (own == 1 && i == kMask));
    }
    if (!fits) {
      continue;
    }
    const std::string name = "d" + std::to_string(d);
    for (std::size_t i = 0; i < names.inputs.size(); ++i) {
      const std::size_t skipped = rank - names.inputs[i].size();
      if (d >= skipped) {
        names.inputs[i][d - skipped] = name;
      }
    }
    names.results[0][d] = name;
  }
}

struct Row {
  std::string_view name;
  Axes axes;
};

constexpr std::array kRows{
    Row{"cumsum", all_but_dims},
    Row{"cumprod", all_but_dims},
    Row{"cummax", all_but_dims},
    Row{"cummin", all_but_dims},
    Row{"logcumsumexp", all_but_dims},
    Row{"sort", all_but_dims},
    Row{"argsort", all_but_dims},
    Row{"topk", all_but_dims},
    Row{"amax", all_but_dims},
    Row{"amin", all_but_dims},
    Row{"argmax", all_but_dims},
    Row{"argmin", all_but_dims},
    Row{"prod", all_but_dims},
    Row{"softmax", all_but_dims},
    Row{"log_softmax", all_but_dims},
    Row{"flip", all_but_dims},
    Row{"roll", rolled},
    Row{"diff", all_but_dims},
    Row{"glu", all_but_dims},
    Row{"gather", all_but_dims},
    Row{"scatter", all_but_dims},
    Row{"scatter_add", all_but_dims},
    Row{"scatter_reduce", all_but_dims},
    Row{"index_add", all_but_dims},
    Row{"index_copy", all_but_dims},
    Row{"index_fill", all_but_dims},
    Row{"index_select", all_but_dims},
    Row{"slice_scatter", all_but_dims},
    Row{"upsample_nearest1d", leading<1>},
    Row{"upsample_linear1d", leading<1>},
    Row{"upsample_nearest2d", leading<2>},
    Row{"upsample_bilinear2d", leading<2>},
    Row{"upsample_bicubic2d", leading<2>},
    Row{"_upsample_bilinear2d_aa", leading<2>},
    Row{"_upsample_bicubic2d_aa", leading<2>},
    Row{"upsample_nearest3d", leading<3>},
    Row{"upsample_trilinear3d", leading<3>},
    Row{"reflection_pad1d", leading<1>},
    Row{"reflection_pad2d", leading<2>},
    Row{"reflection_pad3d", leading<3>},
    Row{"replication_pad1d", leading<1>},
    Row{"replication_pad2d", leading<2>},
    Row{"replication_pad3d", leading<3>},
    Row{"avg_pool1d", leading<1>},
    Row{"avg_pool2d", leading<2>},
    Row{"avg_pool3d", leading<3>},
    Row{"max_pool1d", leading<1>},
    Row{"max_pool2d", leading<2>},
    Row{"max_pool3d", leading<3>},
    Row{"max_pool2d_with_indices", leading<2>},
    Row{"adaptive_avg_pool1d", leading<1>},
    Row{"adaptive_avg_pool2d", leading<2>},
    Row{"adaptive_avg_pool3d", leading<3>},
    Row{"adaptive_max_pool1d", leading<1>},
    Row{"adaptive_max_pool2d", leading<2>},
    Row{"adaptive_max_pool3d", leading<3>},
    Row{"triu", leading<2>},
    Row{"tril", leading<2>},
    Row{"linalg_inv", leading<2>},
    Row{"linalg_cholesky", leading<2>},
    Row{"matrix_exp", leading<2>},
    Row{"grid_sampler", batch},
    Row{"grid_sampler_2d", batch},
    Row{"pixel_shuffle", batch},
    Row{"pixel_unshuffle", batch},
    Row{"channel_shuffle", batch},
    Row{"instance_norm", batch},
    Row{"group_norm", batch},
    Row{"lstm", recurrent},
    Row{"gru", recurrent},
    Row{"rnn_tanh", recurrent},
    Row{"rnn_relu", recurrent},
    Row{"scaled_dot_product_attention", attention},
    Row{"acos", pointwise},
    Row{"acosh", pointwise},
    Row{"addcdiv", pointwise},
    Row{"addcmul", pointwise},
    Row{"asin", pointwise},
    Row{"asinh", pointwise},
    Row{"atan", pointwise},
    Row{"atan2", pointwise},
    Row{"atanh", pointwise},
    Row{"bitwise_and", pointwise},
    Row{"bitwise_left_shift", pointwise},
    Row{"bitwise_not", pointwise},
    Row{"bitwise_or", pointwise},
    Row{"bitwise_right_shift", pointwise},
    Row{"bitwise_xor", pointwise},
    Row{"ceil", pointwise},
    Row{"celu", pointwise},
    Row{"clamp", pointwise},
    Row{"copysign", pointwise},
    Row{"cosh", pointwise},
    Row{"digamma", pointwise},
    Row{"div", pointwise},
    Row{"elu", pointwise},
    Row{"erf", pointwise},
    Row{"erfc", pointwise},
    Row{"erfinv", pointwise},
    Row{"exp2", pointwise},
    Row{"expm1", pointwise},
    Row{"floor", pointwise},
    Row{"floor_divide", pointwise},
    Row{"fmod", pointwise},
    Row{"frac", pointwise},
    Row{"hardshrink", pointwise},
    Row{"hardsigmoid", pointwise},
    Row{"hardswish", pointwise},
    Row{"hardtanh", pointwise},
    Row{"heaviside", pointwise},
    Row{"huber_loss", pointwise},
    Row{"hypot", pointwise},
    Row{"isfinite", pointwise},
    Row{"isinf", pointwise},
    Row{"isnan", pointwise},
    Row{"leaky_relu", pointwise},
    Row{"lerp", pointwise},
    Row{"lgamma", pointwise},
    Row{"log10", pointwise},
    Row{"log1p", pointwise},
    Row{"log2", pointwise},
    Row{"log_sigmoid", pointwise},
    Row{"logaddexp", pointwise},
    Row{"logaddexp2", pointwise},
    Row{"logical_xor", pointwise},
    Row{"logit", pointwise},
    Row{"masked_fill", pointwise},
    Row{"mish", pointwise},
    Row{"nan_to_num", pointwise},
    Row{"pow", pointwise},
    Row{"remainder", pointwise},
    Row{"round", pointwise},
    Row{"selu", pointwise},
    Row{"sgn", pointwise},
    Row{"sign", pointwise},
    Row{"sinc", pointwise},
    Row{"sinh", pointwise},
    Row{"smooth_l1_loss", pointwise},
    Row{"softplus", pointwise},
    Row{"softshrink", pointwise},
    Row{"square", pointwise},
    Row{"tan", pointwise},
    Row{"threshold", pointwise},
    Row{"trunc", pointwise},
    Row{"xlogy", pointwise},
};

}  // namespace

AxisMap call_axis_map(const OpView& op) {
  Names names(op);
  const std::string_view name = call_name(op.attributes.string("target"));
  const auto* const row =
      std::find_if(kRows.begin(), kRows.end(), [&](const Row& r) { return r.name == name; });
  if (row != kRows.end() && !op.inputs.empty() && !op.attributes.has("site")) {
    Result<std::vector<CallArgument>> arguments =
        parse_call_arguments(op.attributes.string("arguments"));
    SHARDPLAN_CHECK(arguments.has_value()) << arguments.error().text();
    row->axes(CallView{op, *std::move(arguments)}, names);
  }
  return names.map(op);
}

}  // namespace shardplan::ops
