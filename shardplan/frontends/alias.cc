#include "shardplan/frontends/alias.h"

#include <algorithm>
#include <unordered_map>

#include "shardplan/frontends/node_arguments.h"

namespace shardplan::frontends {

namespace {

using ir::Shape;

/// Operators whose results always lie in the memory of their operand.
const std::unordered_map<std::string_view, Alias>& views() {
  static const std::unordered_map<std::string_view, Alias> table{
      {"alias", Alias::kSame},
      {"lift_fresh", Alias::kSame},
      {"positive", Alias::kSame},
      {"resolve_conj", Alias::kSame},
      {"resolve_neg", Alias::kSame},
      {"detach", Alias::kDetached},
      {"view", Alias::kReshape},
      {"_unsafe_view", Alias::kReshape},
      {"view_as", Alias::kReshape},
      {"unflatten", Alias::kReshape},
      {"unsqueeze", Alias::kReshape},
      {"squeeze", Alias::kReshape},
      {"transpose", Alias::kTranspose},
      {"t", Alias::kTranspose},
      {"swapaxes", Alias::kTranspose},
      {"swapdims", Alias::kTranspose},
      {"mT", Alias::kTranspose},
      {"permute", Alias::kPermute},
      {"slice", Alias::kSlice},
      {"narrow", Alias::kNarrow},
      {"select", Alias::kSelect},
      {"split", Alias::kSplit},
      {"split_with_sizes", Alias::kSplit},
      {"chunk", Alias::kSplit},
      {"tensor_split", Alias::kSplit},
      {"unbind", Alias::kUnbind},
      {"expand", Alias::kExpand},
      {"expand_as", Alias::kExpand},
      {"broadcast_to", Alias::kExpand},
      {"diagonal", Alias::kDiagonal},
      {"as_strided", Alias::kOpaque},
      {"unfold", Alias::kOpaque},
      {"movedim", Alias::kOpaque},
      {"moveaxis", Alias::kOpaque},
      {"matrix_H", Alias::kOpaque},
      {"mH", Alias::kOpaque},
      {"numpy_T", Alias::kOpaque},
      {"adjoint", Alias::kOpaque},
      {"real", Alias::kOpaque},
      {"imag", Alias::kOpaque},
      {"view_as_real", Alias::kOpaque},
      {"view_as_complex", Alias::kOpaque},
      {"hsplit", Alias::kOpaque},
      {"vsplit", Alias::kOpaque},
      {"dsplit", Alias::kOpaque},
      {"broadcast_tensors", Alias::kOpaque},
      {"meshgrid", Alias::kOpaque}};
  return table;
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

const ExportedTensor* tensor_named(const ExportedProgram& program, const std::string& name) {
  const auto found = program.tensors.find(name);
  return found == program.tensors.end() ? nullptr : &found->second;
}

/// Strides of a tensor whose archive tells none: without gaps.
Shape strides_of(const ExportedTensor& tensor) {
  const Shape& shape = tensor.type.shape;
  if (tensor.strides.size() == shape.size()) {
    return tensor.strides;
  }
  Shape strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * shape[d];
  }
  return strides;
}

/// reshape and what is made of it copies only what it cannot view.
Alias reshape_alias(const ExportedTensor& operand, const ExportedTensor& result) {
  return can_view(operand.type.shape, strides_of(operand), result.type.shape) ? Alias::kReshape
                                                                              : Alias::kNone;
}

/// contiguous, to: nothing happens where the result is what the operand was.
Alias conversion_alias(const ExportedNode& node,
                       const ExportedTensor& operand,
                       const ExportedTensor& result) {
  const Argument* const copy = argument_of(node, "copy");
  const bool must_copy = copy != nullptr && !copy->ints.empty() && copy->ints.front() != 0;
  return !must_copy && operand.type == result.type && strides_of(operand) == strides_of(result)
             ? Alias::kSame
             : Alias::kNone;
}

bool is_training(const ExportedNode& node) {
  for (const std::string_view name : {"train", "training"}) {
    const Argument* const flag = argument_of(node, name);
    if (flag != nullptr && !flag->ints.empty()) {
      return flag->ints.front() != 0;
    }
  }
  return true;
}

}  // namespace

bool can_view(const Shape& shape, const Shape& strides, const Shape& to) {
  // Neighbouring dimensions without a gap between them are one run of elements; every run must be
  // a product of neighbouring dimensions of the result.
  Shape runs;
  std::int64_t inner_stride = 0;
  for (std::size_t d = shape.size(); d-- > 0;) {
    if (shape[d] == 0) {
      return true;
    }
    if (shape[d] == 1) {
      continue;
    }
    if (!runs.empty() && strides[d] == inner_stride) {
      runs.back() *= shape[d];
    } else {
      runs.push_back(shape[d]);
    }
    inner_stride = strides[d] * shape[d];
  }
  std::size_t next = to.size();
  for (const std::int64_t run : runs) {
    std::int64_t product = 1;
    while (product < run && next > 0) {
      product *= to[--next];
    }
    if (product != run) {
      return false;
    }
  }
  return true;
}

Alias alias_of(const ExportedNode& node, const ExportedProgram& program) {
  if (!node.target.starts_with("aten.") || node.outputs.empty()) {
    return Alias::kNone;
  }
  const std::string_view name = operator_name(node.target);
  const ExportedTensor* const operand = tensor_named(program, first_operand(node));
  const ExportedTensor* const result = tensor_named(program, node.outputs.front());
  if (operand == nullptr || result == nullptr) {
    return Alias::kNone;
  }
  if (name == "view" && operand->type.dtype != result->type.dtype) {
    return Alias::kOpaque;
  }
  if (const auto found = views().find(name); found != views().end()) {
    return found->second;
  }
  if (is_one_of(name, {"reshape", "flatten", "reshape_as", "ravel", "_reshape_alias"})) {
    return reshape_alias(*operand, *result);
  }
  if (is_one_of(name, {"contiguous", "to", "type_as"})) {
    return conversion_alias(node, *operand, *result);
  }
  if (is_one_of(name, {"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"})) {
    return is_training(node) ? Alias::kNone : Alias::kSame;
  }
  return Alias::kNone;
}

std::optional<std::string> functional_target(const std::string& target) {
  const std::string_view name = operator_name(target);
  constexpr std::string_view kPrefix = "aten.";
  if (!target.starts_with(kPrefix) || name.empty()) {
    return std::nullopt;
  }
  const std::string overload = target.substr(target.rfind('.'));
  if (name.starts_with("__i") && name.ends_with("__")) {
    return std::string(kPrefix) + "__" + std::string(name.substr(3)) + overload;
  }
  if (!name.ends_with('_') || name.ends_with("__")) {
    return std::nullopt;
  }
  const std::string_view plain = name.substr(0, name.size() - 1);
  if (plain == "normal") {
    return std::string(kPrefix) + "normal_functional" + overload;
  }
  if (target == "aten.bernoulli_.float") {
    return "aten.bernoulli.p";
  }
  return std::string(kPrefix) + std::string(plain) + overload;
}

bool writes_out(const ExportedNode& node) {
  const Argument* const out = argument_of(node, "out");
  return out != nullptr && out->kind == Argument::Kind::kTensors && out->tensors.size() == 1;
}

std::string target_without_out(const std::string& target) {
  const std::size_t dot = target.rfind('.') + 1;
  const std::string overload = target.substr(dot);
  if (overload.ends_with("_out")) {
    return target.substr(0, target.size() - std::string_view("_out").size());
  }
  const bool binary = is_one_of(operator_name(target), {"add", "sub", "mul", "div"});
  return target.substr(0, dot) + (binary ? "Tensor" : "default");
}

bool changes_shape_in_place(const std::string& target) {
  return is_one_of(operator_name(target),
                   {"squeeze_",
                    "unsqueeze_",
                    "transpose_",
                    "t_",
                    "swapaxes_",
                    "swapdims_",
                    "resize_",
                    "resize_as_",
                    "set_",
                    "as_strided_",
                    "rename_"});
}

}  // namespace shardplan::frontends
