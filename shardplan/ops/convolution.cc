// Convolutions over 1 to 3 spatial dimensions, plain and transposed, without bias (an `add` of its
// own, so that the op is linear), and the ops of their gradients. Every op reads the number of
// groups from its operands where they are shards, so groups can be sharded.

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "shardplan/ops/checks.h"
#include "shardplan/ops/convolution_workspace.h"
#include "shardplan/ops/registry.h"
#include "shardplan/ops/spatial_axes.h"

namespace shardplan::ops {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 30;  ///< of a stride, padding or dilation

/// The attributes of a convolution, each list with one number for each spatial dimension.
struct Window {
  ir::IntList stride;
  ir::IntList padding;
  ir::IntList dilation;
  ir::IntList output_padding;  ///< of transposed ones
  bool transposed = false;
  std::int64_t groups = 1;

  [[nodiscard]] std::size_t rank() const { return stride.size(); }
};

Window window_of(const ir::Attributes& attributes) {
  return Window{attributes.ints("stride"),
                attributes.ints("padding"),
                attributes.ints("dilation"),
                attributes.ints("output_padding"),
                attributes.flag_or("transposed", false),
                attributes.integer("groups")};
}

Status check_sizes(const ir::IntList& list, std::string_view name, std::size_t rank, int least) {
  bool fits = list.size() == rank;
  for (const std::int64_t size : list) {
    fits = fits && size >= least && size <= kMost;
  }
  if (fits) {
    return {};
  }
  return invalid_input(std::string(name) + " is " + list_sizes(list) + ", " + std::to_string(rank) +
                       " numbers from " + std::to_string(least) + " to 2^30 expected");
}

/// The attributes fit `rank` spatial dimensions; `shape` names the list of sizes that backward ops
/// have besides, or is empty.
Status check_window(const ir::Attributes& attributes, std::int64_t rank, std::string_view shape) {
  const std::string_view last = shape.empty() ? "groups" : shape;
  const AttributeKind kind = shape.empty() ? AttributeKind::kInteger : AttributeKind::kInts;
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes,
                                             {{"stride", AttributeKind::kInts},
                                              {"padding", AttributeKind::kInts},
                                              {"dilation", AttributeKind::kInts},
                                              {"output_padding", AttributeKind::kInts},
                                              {"transposed", AttributeKind::kFlag},
                                              {"groups", AttributeKind::kInteger},
                                              {last, kind}}));
  if (rank < 1 || rank > 3) {
    return invalid_input(std::to_string(rank) + " spatial dimensions were given, 1 to 3 expected");
  }
  const auto count = static_cast<std::size_t>(rank);
  const Window window = window_of(attributes);
  SHARDPLAN_RETURN_IF_ERROR(check_sizes(window.stride, "stride", count, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_sizes(window.padding, "padding", count, 0));
  SHARDPLAN_RETURN_IF_ERROR(check_sizes(window.dilation, "dilation", count, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_sizes(window.output_padding, "output_padding", count, 0));
  for (std::size_t d = 0; d < count; ++d) {
    const std::int64_t extra = window.output_padding[d];
    const bool fits = extra < window.stride[d] || extra < window.dilation[d];
    if (extra != 0 && (!window.transposed || !fits)) {
      return invalid_input(
          "output_padding is for transposed convolutions only, and less than stride or dilation");
    }
  }
  if (window.groups < 1) {
    return invalid_input("groups is " + std::to_string(window.groups) + ", at least 1 expected");
  }
  return {};
}

/// Channels of the result of a convolution of x by a weight.
Result<std::int64_t> result_channels(const Window& window,
                                     const ir::TensorType& x,
                                     const ir::TensorType& weight) {
  const std::int64_t channels = x.shape[1];
  const std::int64_t groups = window.groups;
  const bool fits = window.transposed
                        ? weight.shape[0] == channels && channels % groups == 0
                        : weight.shape[1] * groups == channels && weight.shape[0] % groups == 0;
  if (!fits || groups > channels) {
    return invalid_input("the weight " + ir::to_string(weight) + " does not fit " +
                         ir::to_string(x) + " with " + std::to_string(groups) + " groups");
  }
  return window.transposed ? weight.shape[1] * groups : weight.shape[0];
}

/// Size of a spatial dimension of the result.
std::int64_t result_size(const Window& window,
                         std::size_t dim,
                         std::int64_t size,
                         std::int64_t kernel) {
  const std::int64_t reach = window.dilation[dim] * (kernel - 1);
  if (window.transposed) {
    return (size - 1) * window.stride[dim] - 2 * window.padding[dim] + reach +
           window.output_padding[dim] + 1;
  }
  const std::int64_t room = size + 2 * window.padding[dim] - reach - 1;
  return room < 0 ? 0 : room / window.stride[dim] + 1;
}

/// The type of the convolution of x by weight; sizes of dimensions beyond 2^30 are refused, so that
/// nothing here overflows.
Result<ir::TensorType> result_type(const Window& window,
                                   const ir::TensorType& x,
                                   const ir::TensorType& weight) {
  SHARDPLAN_ASSIGN_OR_RETURN(const std::int64_t channels, result_channels(window, x, weight));
  ir::TensorType result{x.dtype, {x.shape[0], channels}};
  for (std::size_t d = 0; d < window.rank(); ++d) {
    const std::int64_t size = x.shape[d + 2];
    const std::int64_t kernel = weight.shape[d + 2];
    const bool small = size <= kMost && kernel <= kMost && size > 0 && kernel > 0;
    const std::int64_t made = small ? result_size(window, d, size, kernel) : 0;
    if (made < 1) {
      return invalid_input("dimension " + std::to_string(d + 2) + " of " + ir::to_string(x) +
                           " does not fit the weight " + ir::to_string(weight));
    }
    result.shape.push_back(made);
  }
  return result;
}

Status check_operands(Inputs inputs) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 2));
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, 0));
  SHARDPLAN_RETURN_IF_ERROR(check_same_dtype(inputs, 0, 1));
  if (inputs[0].rank() != inputs[1].rank()) {
    return invalid_input("the operands are " + list_types(inputs) +
                         ", equally many dimensions expected");
  }
  return {};
}

Result<Types> infer_convolution(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_operands(inputs));
  SHARDPLAN_RETURN_IF_ERROR(check_window(attributes, inputs[0].rank() - 2, ""));
  SHARDPLAN_ASSIGN_OR_RETURN(ir::TensorType result,
                             result_type(window_of(attributes), inputs[0], inputs[1]));
  return Types{std::move(result)};
}

/// The convolution of `x` by `weight` gives something of the type `g`.
Status check_gradient(const Window& window,
                      const ir::TensorType& g,
                      const ir::TensorType& x,
                      const ir::TensorType& weight) {
  SHARDPLAN_ASSIGN_OR_RETURN(const ir::TensorType expected, result_type(window, x, weight));
  if (g == expected) {
    return {};
  }
  return invalid_input("the gradient is " + ir::to_string(g) + ", the convolution gives " +
                       ir::to_string(expected));
}

/// g, weight → the gradient of x, whose spatial sizes are `size`.
Result<Types> infer_backward_input(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_operands(inputs));
  SHARDPLAN_RETURN_IF_ERROR(check_window(attributes, inputs[0].rank() - 2, "size"));
  const Window window = window_of(attributes);
  const ir::IntList& size = attributes.ints("size");
  SHARDPLAN_RETURN_IF_ERROR(check_sizes(size, "size", window.rank(), 1));
  const ir::TensorType& weight = inputs[1];
  if (window.groups > kMost || weight.shape[1] > kMost) {
    return invalid_input("groups is " + std::to_string(window.groups) + ", too many");
  }
  const std::int64_t channels =
      window.transposed ? weight.shape[0] : weight.shape[1] * window.groups;
  ir::TensorType x{inputs[0].dtype, {inputs[0].shape[0], channels}};
  x.shape.insert(x.shape.end(), size.begin(), size.end());
  SHARDPLAN_RETURN_IF_ERROR(check_gradient(window, inputs[0], x, weight));
  return Types{std::move(x)};
}

/// g, x → the gradient of the weight, whose spatial sizes are `size`.
Result<Types> infer_backward_weight(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_operands(inputs));
  SHARDPLAN_RETURN_IF_ERROR(check_window(attributes, inputs[0].rank() - 2, "size"));
  const Window window = window_of(attributes);
  const ir::IntList& size = attributes.ints("size");
  SHARDPLAN_RETURN_IF_ERROR(check_sizes(size, "size", window.rank(), 1));
  const std::int64_t outer = inputs[window.transposed ? 1 : 0].shape[1];
  const std::int64_t inner = inputs[window.transposed ? 0 : 1].shape[1];
  if (inner % window.groups != 0) {
    return invalid_input("groups is " + std::to_string(window.groups) + ", a divisor of " +
                         std::to_string(inner) + " expected");
  }
  ir::TensorType weight{inputs[0].dtype, {outer, inner / window.groups}};
  weight.shape.insert(weight.shape.end(), size.begin(), size.end());
  SHARDPLAN_RETURN_IF_ERROR(check_gradient(window, inputs[0], inputs[1], weight));
  return Types{std::move(weight)};
}

// Axes --------------------------------------------------------------------------------------------

/// The dimensions of x, of the weight and of the result; those of the weight's window are whole. c
/// are the channels of x in a group, o those of the result.
struct Places {
  std::string x;
  std::string weight;
  std::string result;
  SpatialAxes space;
  bool transposed;  ///< x has an element for each window, and not the result
};

Places places_of(const ir::Attributes& attributes,
                 const ir::TensorType& x,
                 const ir::TensorType& weight,
                 const ir::TensorType& result) {
  const Window window = window_of(attributes);
  const ir::IntList kernel(weight.shape.begin() + 2, weight.shape.end());
  std::string whole;
  for (std::size_t d = 0; d < window.rank(); ++d) {
    whole += " *";
  }
  const SpatialAxes space(window.transposed ? result : x,
                          window.transposed ? x : result,
                          kernel,
                          window.stride,
                          window.padding,
                          window.dilation);
  const bool grouped = window.groups > 1;
  const std::string in = grouped ? "(g c)" : "c";
  const std::string out = grouped ? "(g o)" : "o";
  return Places{"n " + in + space.names(),
                (window.transposed ? in + " o" : out + " c") + whole,
                "n " + out + space.names(),
                space,
                window.transposed};
}

std::vector<PartialRule> linear_in_each() {
  return {{{0}, {0}}, {{1}, {0}}};
}

AxisMap axes_convolution(const OpView& op) {
  const Places at = places_of(op.attributes, op.inputs[0], op.inputs[1], op.results[0]);
  AxisMap map = make_axis_map(
      at.x + ", " + at.weight + " -> " + at.result, op.inputs, op.results, linear_in_each());
  at.space.add_halos(map, 0, at.transposed);
  return map;
}

AxisMap axes_backward_input(const OpView& op) {
  const Places at = places_of(op.attributes, op.results[0], op.inputs[1], op.inputs[0]);
  AxisMap map = make_axis_map(
      at.result + ", " + at.weight + " -> " + at.x, op.inputs, op.results, linear_in_each());
  at.space.add_halos(map, 0, !at.transposed);
  return map;
}

/// Each rank sums over its own windows, for which it needs the elements under them.
AxisMap axes_backward_weight(const OpView& op) {
  const Places at = places_of(op.attributes, op.inputs[1], op.results[0], op.inputs[0]);
  AxisMap map = make_axis_map(
      at.result + ", " + at.x + " -> " + at.weight, op.inputs, op.results, linear_in_each());
  at.space.add_halos(map, at.transposed ? 0 : 1, false);
  return map;
}

// Cost --------------------------------------------------------------------------------------------

/// Each element of the smaller side (the result; the operand of a transposed one) meets a part of
/// the weight: that of one channel.
Flops products(const ir::TensorType& side, const ir::TensorType& weight) {
  const std::int64_t of_channel = weight.numel() / std::max<std::int64_t>(1, weight.shape[0]);
  return 2 * static_cast<Flops>(side.numel()) * static_cast<Flops>(of_channel);
}

bool transposed(const OpView& op) {
  return op.attributes.flag_or("transposed", false);
}

Flops flops_convolution(const OpView& op) {
  return products(transposed(op) ? op.inputs[0] : op.results[0], op.inputs[1]);
}
Flops flops_backward_input(const OpView& op) {
  return products(transposed(op) ? op.results[0] : op.inputs[0], op.inputs[1]);
}
Flops flops_backward_weight(const OpView& op) {
  return products(transposed(op) ? op.inputs[1] : op.inputs[0], op.results[0]);
}

// Gradient ----------------------------------------------------------------------------------------

ir::IntList spatial_sizes(const ir::TensorType& type) {
  return {type.shape.begin() + 2, type.shape.end()};
}

void gradient_convolution(GradientBuilder& b) {
  const ir::ValueId g = b.output_gradient(0);
  const std::array<std::string, 2> ops{"convolution_backward_input", "convolution_backward_weight"};
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (b.needed(i)) {
      ir::Attributes attributes = b.attributes();
      attributes.set("size", spatial_sizes(b.type(b.input(i))));
      b.set_input_gradient(i, b.emit(ops[i], {g, b.input(1 - i)}, std::move(attributes)));
    }
  }
}

}  // namespace

std::vector<OpDef> convolution_ops() {
  return {
      {.name = "convolution",
       .summary = "x convolved with a weight, or the transpose of that",
       .infer = infer_convolution,
       .axes = axes_convolution,
       .flops = flops_convolution,
       .workspace = workspace_convolution,
       .gradient = gradient_convolution,
       .matmul = true},
      {.name = "convolution_backward_input",
       .summary = "gradient of a convolution's x",
       .infer = infer_backward_input,
       .axes = axes_backward_input,
       .flops = flops_backward_input,
       .workspace = workspace_convolution_backward_input,
       .matmul = true},
      {.name = "convolution_backward_weight",
       .summary = "gradient of a convolution's weight",
       .infer = infer_backward_weight,
       .axes = axes_backward_weight,
       .flops = flops_backward_weight,
       .workspace = workspace_convolution_backward_weight,
       .matmul = true},
  };
}

}  // namespace shardplan::ops
