// Maxima and means over windows of 1 to 3 spatial dimensions.

#include <algorithm>
#include <string>
#include <utility>

#include "shardplan/ops/checks.h"
#include "shardplan/ops/registry.h"
#include "shardplan/ops/spatial_axes.h"

namespace shardplan::ops {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 30;  ///< of a size, stride, padding or dilation

/// x is [batch, channels, ...] with 1 to 3 spatial dimensions.
Status check_spatial(Inputs inputs, std::size_t i) {
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, i));
  bool fits = inputs[i].rank() >= 3 && inputs[i].rank() <= 5;
  for (std::size_t d = 2; fits && d < inputs[i].shape.size(); ++d) {
    fits = inputs[i].shape[d] <= kMost;
  }
  if (fits) {
    return {};
  }
  return invalid_input("operand " + std::to_string(i) + " is " + ir::to_string(inputs[i]) +
                       ", a batch, channels and 1 to 3 dimensions of space expected");
}

Status check_list(const ir::Attributes& attributes,
                  std::string_view name,
                  std::size_t rank,
                  std::int64_t least) {
  const ir::IntList& list = attributes.ints(name);
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

/// The windows of one pooling op.
struct Windows {
  ir::IntList kernel;
  ir::IntList stride;
  ir::IntList padding;
  ir::IntList dilation;
  bool ceil = false;  ///< a last window that starts inside, but ends outside, counts
};

Windows windows_of(const ir::Attributes& attributes) {
  const ir::IntList& kernel = attributes.ints("kernel");
  return Windows{
      kernel,
      attributes.ints("stride"),
      attributes.ints("padding"),
      attributes.has("dilation") ? attributes.ints("dilation") : ir::IntList(kernel.size(), 1),
      attributes.flag_or("ceil", false)};
}

/// Number of windows along a dimension; less than 1 when none fits.
std::int64_t window_count(const Windows& windows, std::size_t d, std::int64_t size) {
  const std::int64_t stride = windows.stride[d];
  const std::int64_t reach = windows.dilation[d] * (windows.kernel[d] - 1) + 1;
  const std::int64_t room = size + 2 * windows.padding[d] - reach + (windows.ceil ? stride - 1 : 0);
  if (room < 0) {
    return 0;
  }
  std::int64_t count = room / stride + 1;
  if (windows.ceil && (count - 1) * stride >= size + windows.padding[d]) {
    --count;
  }
  return count;
}

/// The type of x after pooling.
Result<ir::TensorType> pooled(const ir::TensorType& x, const ir::Attributes& attributes) {
  const std::size_t rank = x.shape.size() - 2;
  SHARDPLAN_RETURN_IF_ERROR(check_list(attributes, "kernel", rank, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_list(attributes, "stride", rank, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_list(attributes, "padding", rank, 0));
  if (attributes.has("dilation")) {
    SHARDPLAN_RETURN_IF_ERROR(check_list(attributes, "dilation", rank, 1));
  }
  const Windows windows = windows_of(attributes);
  ir::TensorType y = x;
  for (std::size_t d = 0; d < rank; ++d) {
    if (windows.padding[d] > (windows.dilation[d] * (windows.kernel[d] - 1) + 1) / 2) {
      return invalid_input("padding is " + list_sizes(windows.padding) +
                           ", at most half of a window expected");
    }
    y.shape[d + 2] = window_count(windows, d, x.shape[d + 2]);
    if (y.shape[d + 2] < 1) {
      return invalid_input("no window fits dimension " + std::to_string(d + 2) + " of " +
                           ir::to_string(x));
    }
  }
  return y;
}

/// The type of x with other sizes of space.
ir::TensorType resized(ir::TensorType x, const ir::IntList& size) {
  std::copy(size.begin(), size.end(), x.shape.begin() + 2);
  return x;
}

/// Of a backward op, whose operand 0 is the gradient of what pooling makes: the type of x, whose
/// spatial sizes are `size`.
Result<ir::TensorType> before_pooling(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_spatial(inputs, 0));
  SHARDPLAN_RETURN_IF_ERROR(check_list(attributes, "size", inputs[0].shape.size() - 2, 1));
  ir::TensorType x = resized(inputs[0], attributes.ints("size"));
  SHARDPLAN_ASSIGN_OR_RETURN(const ir::TensorType y, pooled(x, attributes));
  SHARDPLAN_RETURN_IF_ERROR(check_type(inputs, 0, y, "the gradient"));
  return x;
}

/// The attributes of a backward op: those of the op, and the sizes of its x.
ir::Attributes with_size_of_operand(GradientBuilder& b) {
  const ir::Shape& x = b.type(b.input(0)).shape;
  ir::Attributes attributes = b.attributes();
  attributes.set("size", ir::IntList(x.begin() + 2, x.end()));
  return attributes;
}

SpatialAxes axes_of(const ir::Attributes& attributes,
                    const ir::TensorType& elements,
                    const ir::TensorType& pooled) {
  const Windows w = windows_of(attributes);
  return {elements, pooled, w.kernel, w.stride, w.padding, w.dilation};
}

/// "n c * *"
std::string names_of(const ir::TensorType& x) {
  std::string names = "n c";
  for (std::size_t d = 2; d < x.shape.size(); ++d) {
    names += " *";
  }
  return names;
}

// Maxima ------------------------------------------------------------------------------------------

Types with_places(const ir::TensorType& y) {
  return Types{y, ir::TensorType{ir::DType::kInt64, y.shape}};
}

/// The backward op has a list of sizes besides.
Status check_max_attributes(const ir::Attributes& attributes, bool backward) {
  return check_attributes(
      attributes,
      {{"kernel", AttributeKind::kInts},
       {"stride", AttributeKind::kInts},
       {"padding", AttributeKind::kInts},
       {"dilation", AttributeKind::kInts},
       {"ceil", AttributeKind::kFlag},
       {backward ? "size" : "ceil", backward ? AttributeKind::kInts : AttributeKind::kFlag}});
}

Result<Types> infer_max_pool(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_max_attributes(attributes, false));
  SHARDPLAN_RETURN_IF_ERROR(check_spatial(inputs, 0));
  SHARDPLAN_ASSIGN_OR_RETURN(const ir::TensorType y, pooled(inputs[0], attributes));
  return with_places(y);
}

Result<Types> infer_adaptive_max_pool(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes, {{"size", AttributeKind::kInts}}));
  SHARDPLAN_RETURN_IF_ERROR(check_spatial(inputs, 0));
  SHARDPLAN_RETURN_IF_ERROR(check_list(attributes, "size", inputs[0].shape.size() - 2, 1));
  return with_places(resized(inputs[0], attributes.ints("size")));
}

AxisMap axes_max_pool(const OpView& op) {
  const SpatialAxes space = axes_of(op.attributes, op.inputs[0], op.results[0]);
  const std::string names = "n c" + space.names();
  AxisMap map = make_axis_map(names + " -> " + names + ", " + names, op.inputs, op.results);
  space.add_halos(map, 0, false, Outside::kLowest);
  return map;
}

AxisMap axes_adaptive_max_pool(const OpView& op) {
  const std::string names = names_of(op.inputs[0]);
  return make_axis_map(names + " -> " + names + ", " + names, op.inputs, op.results);
}

/// g, places → the gradient of x, whose spatial sizes are `size`.
Result<Types> infer_max_pool_backward(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 2));
  SHARDPLAN_RETURN_IF_ERROR(check_max_attributes(attributes, true));
  SHARDPLAN_ASSIGN_OR_RETURN(ir::TensorType x, before_pooling(inputs, attributes));
  SHARDPLAN_RETURN_IF_ERROR(
      check_type(inputs, 1, ir::TensorType{ir::DType::kInt64, inputs[0].shape}, "the places"));
  return Types{std::move(x)};
}

AxisMap axes_max_pool_backward(const OpView& op) {
  const SpatialAxes space = axes_of(op.attributes, op.results[0], op.inputs[0]);
  const std::string names = "n c" + space.names();
  AxisMap map =
      make_axis_map(names + ", " + names + " -> " + names, op.inputs, op.results, {{{0}, {0}}});
  space.add_halos(map, 0, true);
  space.add_halos(map, 1, true, Outside::kNoPlace);
  return map;
}

void gradient_max_pool(GradientBuilder& b) {
  b.refuse_output_gradient(1, "the gradient of the places of maxima");
  if (!b.output_gradient(0).valid()) {
    return;
  }
  b.set_input_gradient(
      0, b.emit("max_pool_backward", {b.output_gradient(0), b.output(1)}, with_size_of_operand(b)));
}

/// The gradient goes to the places of the maxima, which are counted over all of space.
void gradient_adaptive_max_pool(GradientBuilder& b) {
  b.refuse_output_gradient(1, "the gradient of the places of maxima");
  if (!b.output_gradient(0).valid()) {
    return;
  }
  const ir::Shape x = b.type(b.input(0)).shape;
  const ir::Shape y = b.type(b.output(0)).shape;
  const auto flat = [](const ir::Shape& shape) {
    std::int64_t space = 1;
    for (std::size_t d = 2; d < shape.size(); ++d) {
      space *= shape[d];
    }
    return ir::IntList{shape[0], shape[1], space};
  };
  const ir::ValueId g = b.emit("reshape", {b.output_gradient(0)}, {{"shape", flat(y)}});
  const ir::ValueId places = b.emit("reshape", {b.output(1)}, {{"shape", flat(y)}});
  const ir::ValueId sums =
      b.emit("scatter_sum", {g, places}, {{"dim", std::int64_t{2}}, {"shape", flat(x)}});
  b.set_input_gradient(0, b.emit("reshape", {sums}, {{"shape", x}}));
}

// Means -------------------------------------------------------------------------------------------

/// The backward op has a list of sizes besides.
Status check_mean_attributes(const ir::Attributes& attributes, bool backward) {
  return check_attributes(
      attributes,
      {{"kernel", AttributeKind::kInts},
       {"stride", AttributeKind::kInts},
       {"padding", AttributeKind::kInts},
       {"ceil", AttributeKind::kFlag},
       {"count_padding", AttributeKind::kFlag},
       {"divisor", AttributeKind::kInteger, false},
       {backward ? "size" : "ceil", backward ? AttributeKind::kInts : AttributeKind::kFlag}});
}

Result<Types> infer_avg_pool(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_mean_attributes(attributes, false));
  SHARDPLAN_RETURN_IF_ERROR(check_spatial(inputs, 0));
  SHARDPLAN_ASSIGN_OR_RETURN(ir::TensorType y, pooled(inputs[0], attributes));
  if (attributes.integer_or("divisor", 1) == 0) {
    return invalid_input("divisor is 0");
  }
  return Types{std::move(y)};
}

/// g → the gradient of x, whose spatial sizes are `size`.
Result<Types> infer_avg_pool_backward(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_mean_attributes(attributes, true));
  SHARDPLAN_ASSIGN_OR_RETURN(ir::TensorType x, before_pooling(inputs, attributes));
  if (attributes.integer_or("divisor", 1) == 0) {
    return invalid_input("divisor is 0");
  }
  return Types{std::move(x)};
}

AxisMap axes_avg_pool(const OpView& op) {
  const SpatialAxes space = axes_of(op.attributes, op.inputs[0], op.results[0]);
  const std::string names = "n c" + space.names();
  AxisMap map = make_axis_map(names + " -> " + names, op.inputs, op.results, {{{0}, {0}}});
  space.add_halos(map, 0, false);
  return map;
}

AxisMap axes_avg_pool_backward(const OpView& op) {
  const SpatialAxes space = axes_of(op.attributes, op.results[0], op.inputs[0]);
  const std::string names = "n c" + space.names();
  AxisMap map = make_axis_map(names + " -> " + names, op.inputs, op.results, {{{0}, {0}}});
  space.add_halos(map, 0, true);
  return map;
}

void gradient_avg_pool(GradientBuilder& b) {
  b.set_input_gradient(
      0, b.emit("avg_pool_backward", {b.output_gradient(0)}, with_size_of_operand(b)));
}

/// Every element of a window is visited once.
Flops flops_windows(const OpView& op) {
  const ir::TensorType& y =
      op.attributes.has("size") && op.attributes.has("kernel") ? op.inputs[0] : op.results[0];
  Flops count = static_cast<Flops>(y.numel());
  if (op.attributes.has("kernel")) {
    for (const std::int64_t size : op.attributes.ints("kernel")) {
      count *= static_cast<Flops>(size);
    }
  }
  return count;
}

Flops flops_adaptive(const OpView& op) {
  return static_cast<Flops>(op.inputs[0].numel());
}

}  // namespace

std::vector<OpDef> pooling_ops() {
  return {
      {.name = "max_pool",
       .summary = "maxima over windows, and their places",
       .infer = infer_max_pool,
       .axes = axes_max_pool,
       .flops = flops_windows,
       .gradient = gradient_max_pool},
      {.name = "adaptive_max_pool",
       .summary = "maxima over equal parts of space, and their places",
       .infer = infer_adaptive_max_pool,
       .axes = axes_adaptive_max_pool,
       .flops = flops_adaptive,
       .gradient = gradient_adaptive_max_pool},
      {.name = "max_pool_backward",
       .summary = "gradient of max_pool's x",
       .infer = infer_max_pool_backward,
       .axes = axes_max_pool_backward,
       .flops = flops_adaptive},
      {.name = "avg_pool",
       .summary = "means over windows",
       .infer = infer_avg_pool,
       .axes = axes_avg_pool,
       .flops = flops_windows,
       .gradient = gradient_avg_pool},
      {.name = "avg_pool_backward",
       .summary = "gradient of avg_pool's x",
       .infer = infer_avg_pool_backward,
       .axes = axes_avg_pool_backward,
       .flops = flops_windows},
  };
}

}  // namespace shardplan::ops
