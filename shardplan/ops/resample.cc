// Space made larger or smaller by interpolation, and elements taken along one dimension at places
// that are fixed (flips, reflecting and circular padding, overlapping windows).

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "shardplan/ops/checks.h"
#include "shardplan/ops/registry.h"
#include "shardplan/ops/spatial_axes.h"

namespace shardplan::ops {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 30;  ///< of a size
/// Of the dimensions of space.
constexpr std::array<const char*, 3> kScales{"scale0", "scale1", "scale2"};

// resample ----------------------------------------------------------------------------------------

Status check_resample_attributes(const ir::Attributes& attributes, std::int64_t rank) {
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes,
                                             {{"mode", AttributeKind::kText},
                                              {"size", AttributeKind::kInts},
                                              {"align_corners", AttributeKind::kFlag, false},
                                              {"scale0", AttributeKind::kNumber, false},
                                              {"scale1", AttributeKind::kNumber, false},
                                              {"scale2", AttributeKind::kNumber, false}}));
  const std::string& mode = attributes.string("mode");
  const bool known =
      mode == "nearest" || mode == "nearest_exact" || mode == "linear" || mode == "cubic";
  if (!known || (mode == "cubic" && rank != 2)) {
    return invalid_input(
        "mode is \"" + mode + "\" in " + std::to_string(rank) +
        " dimensions; \"nearest\", \"nearest_exact\" or \"linear\" in 1 to 3, or " +
        "\"cubic\" in 2 expected");
  }
  const ir::IntList& size = attributes.ints("size");
  bool fits = static_cast<std::int64_t>(size.size()) == rank && rank >= 1 && rank <= 3;
  for (const std::int64_t s : size) {
    fits = fits && s >= 1 && s <= kMost;
  }
  for (const char* const scale : kScales) {
    fits = fits && attributes.number_or(scale, 1.0) > 0;
  }
  if (!fits) {
    return invalid_input("size is " + list_sizes(size) + ", " + std::to_string(rank) +
                         " positive sizes, and positive scales, expected");
  }
  return {};
}

/// x [n, c, ...] → [n, c, size...]; the backward op the other way: its `size` is x's.
Result<Types> infer_resample(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, 0));
  SHARDPLAN_RETURN_IF_ERROR(check_resample_attributes(attributes, inputs[0].rank() - 2));
  ir::TensorType y = inputs[0];
  const ir::IntList& size = attributes.ints("size");
  std::copy(size.begin(), size.end(), y.shape.begin() + 2);
  return Types{std::move(y)};
}

/// How often an element of the smaller side is repeated along dimension `d` of space; 0 where that
/// is no whole number, or where elements depend on more than the nearest places.
std::int64_t times_along(const ir::Attributes& attributes,
                         std::size_t d,
                         std::int64_t small,
                         std::int64_t large) {
  const bool local = attributes.string("mode") != "cubic" &&
                     !attributes.flag_or("align_corners", false) && large % small == 0;
  const std::int64_t times = local ? large / small : 0;
  const auto scale = static_cast<double>(times);
  return attributes.number_or(kScales[d], scale) == scale ? times : 0;
}

/// The map of an op from `small` to `large` or, in the gradient, back. Parts of the smaller side
/// meet parts of the larger one; between two places of the smaller side, linear means need the next
/// one.
AxisMap axes_between(const OpView& op, const ir::TensorType& small, const ir::TensorType& large) {
  constexpr std::array<const char*, 3> kTimes{"p", "q", "r"};
  const bool backward = &small != op.inputs.data();
  std::string smaller = "n c";
  std::string larger = "n c";
  std::vector<std::pair<std::string, Halo>> halos;
  const std::size_t rank = small.shape.size() - 2;
  for (std::size_t d = 0; d < rank; ++d) {
    const std::int64_t size = small.shape[d + 2];
    const std::int64_t times = times_along(op.attributes, d, size, large.shape[d + 2]);
    const std::string name(1, space_name(d, rank));
    const bool slides = op.attributes.string("mode") == "linear" && times > 1;
    if (times == 0 || (slides && size == 1)) {
      smaller += " *";
      larger += " *";
      continue;
    }
    smaller += (slides ? " ~" : " ") + name;
    larger += " (" + name + " " + kTimes[d] + ")";
    if (slides) {
      // One place of the smaller side to both sides, in elements of the operand.
      const std::int64_t step = backward ? times : 1;
      halos.emplace_back(name,
                         Halo{.dim = static_cast<int>(d) + 2,
                              .own_size = size,
                              .size = size * step,
                              .kernel = 3 * step,
                              .stride = step,
                              .padding = step,
                              .outside = backward ? Outside::kZero : Outside::kEdge});
    }
  }
  const std::string text = backward ? larger + " -> " + smaller : smaller + " -> " + larger;
  AxisMap map = make_axis_map(text, op.inputs, op.results, {{{0}, {0}}});
  for (const auto& [name, halo] : halos) {
    add_halo(map, name, halo);
  }
  return map;
}

AxisMap axes_resample(const OpView& op) {
  return axes_between(op, op.inputs[0], op.results[0]);
}
AxisMap axes_resample_backward(const OpView& op) {
  return axes_between(op, op.results[0], op.inputs[0]);
}

/// An element is a mean of 1, or of 2 or 4 elements along each dimension.
Flops flops_resample(const OpView& op) {
  const std::string& mode = op.attributes.string("mode");
  const Flops along = mode == "linear" ? 2 : mode == "cubic" ? 4 : 1;
  Flops count = static_cast<Flops>(std::max(op.inputs[0].numel(), op.results[0].numel()));
  for (std::size_t d = 0; d < op.attributes.ints("size").size(); ++d) {
    count *= along;
  }
  return count;
}

/// What it takes to put channels last, or back: nothing where they are both first and last.
Bytes turned_channels(const ir::TensorType& x) {
  const bool lies_so = x.numel() == x.shape[0] * x.shape[1] || x.shape[1] <= 1;
  return lies_so ? 0 : x.bytes();
}

/// ATen puts channels last where it interpolates two dimensions of several channels, and back;
/// elsewhere it lists places and weights along each dimension.
Bytes workspace_between(const std::string& mode, const ir::TensorType& x, const ir::TensorType& y) {
  if (x.rank() == 4 && mode != "cubic") {
    return turned_channels(x) + turned_channels(y);
  }
  const Bytes taps = mode == "linear" ? 2 : mode == "cubic" ? 4 : 1;
  const Bytes place = ir::element_bytes(ir::DType::kInt64) + ir::element_bytes(x.dtype);
  Bytes bytes = 0;
  for (std::size_t d = 2; d < y.shape.size(); ++d) {
    bytes += y.shape[d] * taps * place;
  }
  return bytes;
}

/// Of a part, the kernel makes that of its halos too, and takes the own rows of it.
ir::TensorType made_of_part(const OpView& op) {
  ir::TensorType made = op.results[0];
  for (const Halo& halo : op.cut) {
    const auto dim = static_cast<std::size_t>(halo.dim);
    const std::int64_t own = op.inputs[0].shape[dim] / halo.stride - 2;
    made.shape[dim] += 2 * made.shape[dim] / own;
  }
  return made;
}

Bytes workspace_resample(const OpView& op) {
  const ir::TensorType made = made_of_part(op);
  const Bytes workspace = workspace_between(op.attributes.string("mode"), op.inputs[0], made);
  return workspace_with_crop(made, op.results[0], workspace);
}

Bytes workspace_resample_backward(const OpView& op) {
  const ir::TensorType made = made_of_part(op);
  const ir::TensorType& g = op.inputs[0];
  const bool last = made.rank() == 4 && op.attributes.string("mode") != "cubic" &&
                    turned_channels(g) == 0;  // ATen then makes it with its channels last
  return workspace_with_crop(made, op.results[0], last ? turned_channels(made) : 0);
}

void gradient_resample(GradientBuilder& b) {
  const ir::Shape& x = b.type(b.input(0)).shape;
  ir::Attributes attributes = b.attributes();
  attributes.set("size", ir::IntList(x.begin() + 2, x.end()));
  b.set_input_gradient(0,
                       b.emit("resample_backward", {b.output_gradient(0)}, std::move(attributes)));
}

// take --------------------------------------------------------------------------------------------

Status check_places(const ir::IntList& places, std::int64_t size) {
  if (!places.empty() && std::all_of(places.begin(), places.end(), [&](std::int64_t place) {
        return place >= 0 && place < size;
      })) {
    return {};
  }
  return invalid_input("places must be at least one, each from 0 to below " + std::to_string(size));
}

Result<Types> infer_take(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(
      attributes, {{"dim", AttributeKind::kInteger}, {"places", AttributeKind::kInts}}));
  const std::int64_t dim = attributes.integer("dim");
  SHARDPLAN_RETURN_IF_ERROR(check_dim(inputs, 0, dim));
  const ir::IntList& places = attributes.ints("places");
  SHARDPLAN_RETURN_IF_ERROR(check_places(places, dim_size(inputs[0], dim)));
  Types types{inputs[0]};
  types[0].shape[static_cast<std::size_t>(dim)] = static_cast<std::int64_t>(places.size());
  return types;
}

/// g → zeros, of `size` along the dimension, to which g is added at the places.
Result<Types> infer_take_backward(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_count(inputs, 1));
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes,
                                             {{"dim", AttributeKind::kInteger},
                                              {"places", AttributeKind::kInts},
                                              {"size", AttributeKind::kInteger}}));
  const std::int64_t dim = attributes.integer("dim");
  const std::int64_t size = attributes.integer("size");
  SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, 0));
  SHARDPLAN_RETURN_IF_ERROR(check_dim(inputs, 0, dim));
  const ir::IntList& places = attributes.ints("places");
  SHARDPLAN_RETURN_IF_ERROR(check_places(places, size));
  if (dim_size(inputs[0], dim) != static_cast<std::int64_t>(places.size()) || size > kMost) {
    return invalid_input(std::to_string(places.size()) + " places do not fit dimension " +
                         std::to_string(dim) + " of " + ir::to_string(inputs[0]));
  }
  Types types{inputs[0]};
  types[0].shape[static_cast<std::size_t>(dim)] = size;
  return types;
}

AxisMap axes_take(const OpView& op) {
  const std::string names = names_with_whole(op.results[0].rank(), op.attributes.integer("dim"));
  return make_axis_map(names + " -> " + names, op.inputs, op.results, {{{0}, {0}}});
}

/// The places as a tensor.
Bytes workspace_take(const OpView& op) {
  return static_cast<Bytes>(op.attributes.ints("places").size()) *
         ir::element_bytes(ir::DType::kInt64);
}

/// The places, and what ATen adds up in f32 for a narrow type: everything along the last dimension,
/// a slice along the first.
Bytes workspace_take_backward(const OpView& op) {
  const ir::TensorType& type = op.results[0];
  const auto dim = static_cast<std::size_t>(op.attributes.integer("dim"));
  const ir::DType wide = accumulation_dtype(type.dtype);
  std::int64_t summed = 0;
  if (wide != type.dtype && type.rank() > 1) {
    if (dim + 1 == type.shape.size()) {
      summed = type.numel();
    } else if (dim == 0) {
      summed = type.numel() / std::max<std::int64_t>(1, type.shape[0]);
    }
  }
  return workspace_take(op) + summed * ir::element_bytes(wide);
}

void gradient_take(GradientBuilder& b) {
  const std::int64_t dim = b.attributes().integer("dim");
  ir::Attributes attributes = b.attributes();
  attributes.set("size", dim_size(b.type(b.input(0)), dim));
  b.set_input_gradient(0, b.emit("take_backward", {b.output_gradient(0)}, std::move(attributes)));
}

}  // namespace

std::vector<OpDef> resample_ops() {
  return {
      {.name = "resample",
       .summary = "space interpolated to another size",
       .infer = infer_resample,
       .axes = axes_resample,
       .flops = flops_resample,
       .workspace = workspace_resample,
       .gradient = gradient_resample},
      {.name = "resample_backward",
       .summary = "gradient of resample's x",
       .infer = infer_resample,
       .axes = axes_resample_backward,
       .flops = flops_resample,
       .workspace = workspace_resample_backward},
      {.name = "take",
       .summary = "elements of one dimension at fixed places",
       .infer = infer_take,
       .axes = axes_take,
       .workspace = workspace_take,
       .gradient = gradient_take},
      {.name = "take_backward",
       .summary = "zeros to which elements of one dimension are added at fixed places",
       .infer = infer_take_backward,
       .axes = axes_take,
       .flops = result_elements,
       .workspace = workspace_take_backward},
  };
}

}  // namespace shardplan::ops
