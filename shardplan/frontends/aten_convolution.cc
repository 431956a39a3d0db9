// Convolutions. The bias is an addition of its own.

#include <algorithm>
#include <array>
#include <string>

#include "shardplan/frontends/aten.h"

namespace shardplan::frontends {

namespace {

using ir::Attributes;
using ir::IntList;
using ir::Shape;
using ir::TensorType;
using ir::ValueId;

/// One number for each spatial dimension; a single one, or none, stands for all.
IntList sizes_of(AtenCall& c, std::string_view name, std::size_t rank, std::int64_t fallback) {
  IntList sizes = c.integers(name);
  if (sizes.size() <= 1) {
    sizes = IntList(rank, sizes.empty() ? fallback : sizes.front());
  }
  return sizes;
}

/// padding = "same": half of what the kernel reaches on each side; where that is odd, a zero more
/// at the end, which `x` gets here.
IntList same_padding(AtenCall& c, ValueId& x, const Shape& weight, const IntList& dilation) {
  IntList padding;
  for (std::size_t d = 0; d < dilation.size(); ++d) {
    const std::int64_t reach = dilation[d] * (weight[d + 2] - 1);
    padding.push_back(reach / 2);
    if (reach % 2 != 0) {
      x = c.builder().emit("pad",
                           {x},
                           {{"dim", static_cast<std::int64_t>(d + 2)},
                            {"before", std::int64_t{0}},
                            {"after", std::int64_t{1}},
                            {"value", 0.0}});
    }
  }
  return padding;
}

/// conv1d, conv2d, conv3d, their transposes, convolution; an x without a batch dimension gets one.
void map_convolution(AtenCall& c) {
  ValueId x = c.tensor("input");
  const ValueId weight = c.tensor("weight");
  const ValueId bias = c.tensor_if_given("bias");
  if (!c.ok()) {
    return;
  }
  const Shape kernel = c.builder().type(weight).shape;
  Shape shape = c.builder().type(x).shape;
  if (kernel.size() < 3 || (shape.size() != kernel.size() && shape.size() + 1 != kernel.size())) {
    c.invalid("the ranks of its operands do not fit");
    return;
  }
  const std::size_t rank = kernel.size() - 2;
  if (shape.size() < kernel.size()) {
    shape.insert(shape.begin(), 1);
    x = c.reshape(x, shape);
  }
  const bool transposed = c.ours() == "transposed" || c.flag("transposed", false);
  const IntList dilation = sizes_of(c, "dilation", rank, 1);
  IntList padding(rank, 0);
  if (c.ours() != "padding") {
    padding = sizes_of(c, "padding", rank, 0);
  } else if (c.text("padding", "valid") == "same" && dilation.size() == rank) {
    padding = same_padding(c, x, kernel, dilation);
  }
  ValueId y = c.builder().emit("convolution",
                               {x, weight},
                               {{"stride", sizes_of(c, "stride", rank, 1)},
                                {"padding", padding},
                                {"dilation", dilation},
                                {"output_padding", sizes_of(c, "output_padding", rank, 0)},
                                {"transposed", transposed},
                                {"groups", c.integer("groups", 1)}});
  if (bias.valid() && c.ok()) {
    Shape aligned(rank + 1, 1);
    aligned.front() = c.builder().type(bias).numel();
    y = c.builder().emit("add", {y, c.reshape(bias, aligned)});
  }
  c.result(c.reshape(y, c.result_type().shape));
}

}  // namespace

std::vector<AtenOp> aten_convolution() {
  return {{"aten.conv1d.default", map_convolution},
          {"aten.conv2d.default", map_convolution},
          {"aten.conv3d.default", map_convolution},
          {"aten.conv1d.padding", map_convolution, "padding"},
          {"aten.conv2d.padding", map_convolution, "padding"},
          {"aten.conv3d.padding", map_convolution, "padding"},
          {"aten.convolution.default", map_convolution},
          {"aten.conv_transpose1d.default", map_convolution, "transposed"},
          {"aten.conv_transpose2d.input", map_convolution, "transposed"},
          {"aten.conv_transpose3d.input", map_convolution, "transposed"}};
}

}  // namespace shardplan::frontends
