#include "shardplan/ops/checks.h"

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "shardplan/support/text.h"

namespace shardplan::ops {
namespace {

std::string_view kind_name(AttributeKind kind) {
  switch (kind) {
    case AttributeKind::kFlag:
      return "true or false";
    case AttributeKind::kInteger:
      return "an integer";
    case AttributeKind::kNumber:
      return "a number";
    case AttributeKind::kText:
      return "a text";
    case AttributeKind::kInts:
      return "a list of integers";
  }
  return "";
}

bool has_kind(const ir::Attribute& attribute, AttributeKind kind) {
  switch (kind) {
    case AttributeKind::kFlag:
      return std::holds_alternative<bool>(attribute);
    case AttributeKind::kInteger:
      return std::holds_alternative<std::int64_t>(attribute);
    case AttributeKind::kNumber:
      return std::holds_alternative<double>(attribute) ||
             std::holds_alternative<std::int64_t>(attribute);
    case AttributeKind::kText:
      return std::holds_alternative<std::string>(attribute);
    case AttributeKind::kInts:
      return std::holds_alternative<ir::IntList>(attribute);
  }
  return false;
}

std::string operand(std::size_t i, const ir::TensorType& type) {
  return "operand " + std::to_string(i) + " is " + ir::to_string(type);
}

}  // namespace

Status check_attributes(const ir::Attributes& attributes,
                        std::initializer_list<AttributeRule> rules) {
  for (const auto& [name, value] : attributes.entries()) {
    const auto* const rule = std::find_if(
        rules.begin(), rules.end(), [&](const AttributeRule& r) { return r.name == name; });
    if (rule == rules.end()) {
      Error error = invalid_input("attribute '" + name + "' is not known to this op");
      std::vector<std::string> known;
      for (const AttributeRule& r : rules) {
        known.emplace_back(r.name);
      }
      const std::string close = suggest(name, known);
      if (!close.empty()) {
        error.notes.push_back("did you mean '" + close + "'?");
      }
      return error;
    }
    if (!has_kind(value, rule->kind)) {
      return invalid_input("attribute '" + name + "' is not " + std::string(kind_name(rule->kind)));
    }
  }
  for (const AttributeRule& rule : rules) {
    if (rule.required && !attributes.has(rule.name)) {
      return invalid_input("attribute '" + std::string(rule.name) + "' (" +
                           std::string(kind_name(rule.kind)) + ") is missing");
    }
  }
  return {};
}

Status check_count(Inputs inputs, std::size_t least, std::size_t most) {
  if (inputs.size() >= least && inputs.size() <= most) {
    return {};
  }
  std::string expected = std::to_string(least);
  if (most != least) {
    expected += " to " + std::to_string(most);
  }
  return invalid_input(std::to_string(inputs.size()) + " operands were given, " + expected +
                       " expected");
}

Status check_floating(Inputs inputs, std::size_t i) {
  if (ir::is_floating(inputs[i].dtype)) {
    return {};
  }
  return invalid_input(operand(i, inputs[i]) + ", a floating type was expected");
}

Status check_integer(Inputs inputs, std::size_t i) {
  if (inputs[i].dtype == ir::DType::kInt32 || inputs[i].dtype == ir::DType::kInt64) {
    return {};
  }
  return invalid_input(operand(i, inputs[i]) + ", i32 or i64 was expected");
}

Status check_type(Inputs inputs,
                  std::size_t i,
                  const ir::TensorType& expected,
                  std::string_view what) {
  if (inputs[i] == expected) {
    return {};
  }
  return invalid_input(operand(i, inputs[i]) + ", but " + std::string(what) + " must be " +
                       ir::to_string(expected));
}

Status check_shape(Inputs inputs, std::size_t i, const ir::Shape& expected, std::string_view what) {
  if (inputs[i].shape == expected) {
    return {};
  }
  return invalid_input(operand(i, inputs[i]) + ", but " + std::string(what) +
                       " must have the shape " + list_sizes(expected));
}

Status check_same_dtype(Inputs inputs, std::size_t i, std::size_t j) {
  if (inputs[i].dtype == inputs[j].dtype) {
    return {};
  }
  Error error = invalid_input(operand(i, inputs[i]) + " and " + operand(j, inputs[j]) +
                              ": the element types differ");
  error.notes.emplace_back("insert a cast");
  return error;
}

Status check_dim(Inputs inputs, std::size_t i, std::int64_t dim) {
  if (dim >= 0 && dim < inputs[i].rank()) {
    return {};
  }
  return invalid_input("dimension " + std::to_string(dim) +
                       " does not exist: " + operand(i, inputs[i]));
}

Status check_dims(Inputs inputs, std::size_t i, const ir::IntList& dims) {
  for (std::size_t k = 0; k < dims.size(); ++k) {
    SHARDPLAN_RETURN_IF_ERROR(check_dim(inputs, i, dims[k]));
    if (k > 0 && dims[k] <= dims[k - 1]) {
      return invalid_input("the dimensions " + list_sizes(dims) + " are not strictly increasing");
    }
  }
  return {};
}

Status check_result(const ir::TensorType& type) {
  if (ir::is_valid(type)) {
    return {};
  }
  return invalid_input("the result would be " + ir::to_string(type) +
                       ": sizes must be at least 1, with fewer than 2^63 bytes in all");
}

Result<ir::Shape> broadcast_shapes(Inputs inputs) {
  ir::Shape shape;
  for (const ir::TensorType& type : inputs) {
    if (type.shape.size() > shape.size()) {
      shape.insert(shape.begin(), type.shape.size() - shape.size(), 1);
    }
    const std::size_t skipped = shape.size() - type.shape.size();
    for (std::size_t d = 0; d < type.shape.size(); ++d) {
      std::int64_t& size = shape[skipped + d];
      if (size == 1) {
        size = type.shape[d];
      } else if (type.shape[d] != 1 && type.shape[d] != size) {
        return invalid_input("the operands " + list_types(inputs) +
                             " do not broadcast: aligned at the right, sizes must be equal or 1");
      }
    }
  }
  return shape;
}

ir::DType accumulation_dtype(ir::DType dtype) {
  return dtype == ir::DType::kFloat64 ? ir::DType::kFloat64 : ir::DType::kFloat32;
}

std::string list_types(Inputs types) {
  std::string out;
  for (const ir::TensorType& type : types) {
    out += (out.empty() ? "" : ", ") + ir::to_string(type);
  }
  return out;
}

std::string list_sizes(const ir::Shape& shape) {
  std::string out = "[";
  for (std::size_t d = 0; d < shape.size(); ++d) {
    out += (d == 0 ? "" : ",") + std::to_string(shape[d]);
  }
  return out + "]";
}

std::string axis_names(std::string_view prefix, std::size_t count) {
  std::string out;
  for (std::size_t i = 0; i < count; ++i) {
    out += i == 0 ? "" : " ";
    out += prefix;
    out += std::to_string(i);
  }
  return out;
}

std::string names_with_whole(std::int64_t rank, std::int64_t dim) {
  std::string out;
  for (std::int64_t d = 0; d < rank; ++d) {
    out += d == 0 ? "" : " ";
    out += d == dim ? "*" : "d" + std::to_string(d);
  }
  return out;
}

Flops result_elements(const OpView& op) {
  Flops total = 0;
  for (const ir::TensorType& type : op.results) {
    total += static_cast<Flops>(type.numel());
  }
  return total;
}

Result<ir::DType> named_dtype(const ir::Attributes& attributes) {
  const auto dtype = ir::parse_dtype(attributes.string("dtype"));
  if (!dtype) {
    return invalid_input("dtype \"" + attributes.string("dtype") +
                         "\" is none of bool u8 i32 i64 bf16 f16 f32 f64");
  }
  return *dtype;
}

}  // namespace shardplan::ops
