#include "shardplan/frontends/exported_json.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <limits>

namespace shardplan::frontends {

const Json* member(const Json& json, const char* name) {
  if (!json.is_object()) {
    return nullptr;
  }
  const auto found = json.find(name);
  return found == json.end() ? nullptr : &*found;
}

std::optional<std::pair<std::string, const Json*>> alternative(const Json& json) {
  if (!json.is_object() || json.size() != 1) {
    return std::nullopt;
  }
  return std::pair(json.begin().key(), &*json.begin());
}

std::optional<std::string> text(const Json* json) {
  if (json == nullptr || !json->is_string()) {
    return std::nullopt;
  }
  return json->get<std::string>();
}

std::optional<std::int64_t> integer(const Json* json) {
  if (json == nullptr || !json->is_number_integer()) {
    return std::nullopt;
  }
  if (json->is_number_unsigned() &&
      json->get<std::uint64_t>() >
          static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return std::nullopt;
  }
  return json->get<std::int64_t>();
}

bool is_true(const Json* json) {
  return json != nullptr && json->is_boolean() && json->get<bool>();
}

std::optional<std::string> name_of(const Json& json) {
  return text(member(json, "name"));
}

namespace {

std::optional<double> real(const Json& json) {
  if (json.is_number()) {
    return json.get<double>();
  }
  if (!json.is_string()) {
    return std::nullopt;
  }
  const auto& name = json.get_ref<const std::string&>();
  if (name == "Infinity" || name == "-Infinity") {
    const double infinity = std::numeric_limits<double>::infinity();
    return name.front() == '-' ? -infinity : infinity;
  }
  return name == "NaN" ? std::optional(std::numeric_limits<double>::quiet_NaN()) : std::nullopt;
}

}  // namespace

std::optional<Number> number(const Json& json, const Sizes& sizes) {
  if (const std::optional<std::int64_t> fixed = integer(&json)) {
    return Number::of(*fixed);
  }
  const auto found = alternative(json);
  if (!found.has_value()) {
    const std::optional<double> value = real(json);
    return value.has_value() ? std::optional(Number::of(*value)) : std::nullopt;
  }
  const auto& [name, value] = *found;
  if (name == "as_int" || name == "as_float") {
    return value->is_structured() ? std::nullopt : number(*value, sizes);
  }
  if (name == "as_bool") {
    return value->is_boolean() ? std::optional(Number::of(std::int64_t{is_true(value) ? 1 : 0}))
                               : std::nullopt;
  }
  if (name == "as_name") {
    const auto computed = sizes.computed.find(text(value).value_or(std::string()));
    return computed == sizes.computed.end() ? std::nullopt : std::optional(computed->second);
  }
  const std::optional<std::string> expression = text(member(*value, "expr_str"));
  return name == "as_expr" && expression.has_value() ? evaluate_size(*expression, sizes.symbols)
                                                     : std::nullopt;
}

namespace {

constexpr const char* kOpenNumber = "is a number that depends on data";

std::optional<std::int64_t> whole_number(const Json& json, const Sizes& sizes) {
  if (const Json* const expression = member(json, "as_expr")) {
    return whole_size(text(member(*expression, "expr_str")).value_or(std::string()), sizes.symbols);
  }
  const std::optional<Number> value = number(json, sizes);
  return value.has_value() && !value->real ? std::optional(value->i) : std::nullopt;
}

struct TorchDType {
  std::int64_t number;
  std::string_view name;
  std::optional<ir::DType> dtype;
};

/// torch.export's own numbering of element types (torch/_export/serde/schema.py).
constexpr std::array<TorchDType, 13> kTorchDTypes{{{1, "uint8", ir::DType::kUInt8},
                                                   {2, "int8", std::nullopt},
                                                   {3, "int16", std::nullopt},
                                                   {4, "int32", ir::DType::kInt32},
                                                   {5, "int64", ir::DType::kInt64},
                                                   {6, "float16", ir::DType::kFloat16},
                                                   {7, "float32", ir::DType::kFloat32},
                                                   {8, "float64", ir::DType::kFloat64},
                                                   {9, "complex32", std::nullopt},
                                                   {10, "complex64", std::nullopt},
                                                   {11, "complex128", std::nullopt},
                                                   {12, "bool", ir::DType::kBool},
                                                   {13, "bfloat16", ir::DType::kBFloat16}}};

struct DTypeResult {
  ir::DType dtype = ir::DType::kFloat32;
  std::string problem;
};

DTypeResult dtype_of(const Json* number) {
  const std::optional<std::int64_t> value = integer(number);
  for (const TorchDType& entry : kTorchDTypes) {
    if (value == entry.number) {
      return entry.dtype.has_value()
                 ? DTypeResult{*entry.dtype, {}}
                 : DTypeResult{
                       ir::DType::kFloat32,
                       fmt::format("has dtype {}, for which Shardplan has no type", entry.name)};
    }
  }
  return {ir::DType::kFloat32,
          value.has_value() ? fmt::format("has an unknown dtype (number {})", *value)
                            : std::string("has no dtype")};
}

void add_tensor(Argument& out, const Json& json, const Sizes& /*sizes*/) {
  const Json* const inner = member(json, "as_tensor");
  if (json.is_null() || member(json, "as_none") != nullptr) {
    out.tensors.emplace_back();
    return;
  }
  const std::optional<std::string> name = name_of(inner == nullptr ? json : *inner);
  if (!name.has_value()) {
    out.problem = "is damaged";
  }
  out.tensors.push_back(name.value_or(std::string()));
}

void add_int(Argument& out, const Json& json, const Sizes& sizes) {
  const std::optional<std::int64_t> value = whole_number(json, sizes);
  if (!value.has_value()) {
    out.problem = kOpenNumber;
  }
  out.ints.push_back(value.value_or(0));
}

void add_float(Argument& out, const Json& json, const Sizes& sizes) {
  const std::optional<Number> value = number(json, sizes);
  if (!value.has_value()) {
    out.problem = kOpenNumber;
  }
  out.floats.push_back(value.value_or(Number::of(0.0)).as_double());
}

void add_bool(Argument& out, const Json& json, const Sizes& sizes) {
  const std::optional<Number> value =
      json.is_boolean() ? Number::of(std::int64_t{is_true(&json) ? 1 : 0}) : number(json, sizes);
  if (!value.has_value()) {
    out.problem = "is not a fixed truth value";
  }
  out.ints.push_back(value.has_value() && value->as_double() != 0 ? 1 : 0);
}

struct Form {
  std::string_view name;
  Argument::Kind kind;
  bool list;
  void (*add)(Argument&, const Json&, const Sizes&);
};

void add_all(Argument& out, const Json& value, const Form& form, const Sizes& sizes) {
  if (!form.list) {
    form.add(out, value, sizes);
    return;
  }
  if (!value.is_array()) {
    out.problem = "is damaged";
    return;
  }
  for (const Json& element : value) {
    form.add(out, element, sizes);
  }
}

}  // namespace

ExportedTensor tensor_of(const Json& json, const Sizes& known) {
  ExportedTensor tensor;
  const DTypeResult dtype = dtype_of(member(json, "dtype"));
  tensor.type.dtype = dtype.dtype;
  tensor.problem = dtype.problem;
  tensor.requires_grad = is_true(member(json, "requires_grad"));
  const Json* const sizes = member(json, "sizes");
  if (sizes == nullptr || !sizes->is_array()) {
    tensor.problem = "has no sizes";
    return tensor;
  }
  for (std::size_t i = 0; i < sizes->size(); ++i) {
    const std::optional<std::int64_t> size = whole_number((*sizes)[i], known);
    if (!size.has_value()) {
      tensor.problem = fmt::format("has a dimension {} whose size depends on data", i);
      return tensor;
    }
    tensor.type.shape.push_back(*size);
  }
  const Json* const strides = member(json, "strides");
  if (strides != nullptr && strides->is_array()) {
    for (const Json& stride : *strides) {
      tensor.strides.push_back(whole_number(stride, known).value_or(-1));
    }
  }
  const Json* const offset = member(json, "storage_offset");
  tensor.storage_offset = offset == nullptr ? 0 : whole_number(*offset, known).value_or(-1);
  return tensor;
}

Argument argument(const Json& json, const Sizes& sizes) {
  using Kind = Argument::Kind;
  constexpr std::array<Form, 15> kForms{{
      {"as_tensor", Kind::kTensors, false, add_tensor},
      {"as_tensors", Kind::kTensors, true, add_tensor},
      {"as_optional_tensor", Kind::kTensors, false, add_tensor},
      {"as_optional_tensors", Kind::kTensors, true, add_tensor},
      {"as_int", Kind::kInts, false, add_int},
      {"as_ints", Kind::kInts, true, add_int},
      {"as_sym_int", Kind::kInts, false, add_int},
      {"as_sym_ints", Kind::kInts, true, add_int},
      {"as_float", Kind::kFloats, false, add_float},
      {"as_floats", Kind::kFloats, true, add_float},
      {"as_sym_float", Kind::kFloats, false, add_float},
      {"as_sym_floats", Kind::kFloats, true, add_float},
      {"as_bool", Kind::kBools, false, add_bool},
      {"as_bools", Kind::kBools, true, add_bool},
      {"as_sym_bool", Kind::kBools, false, add_bool},
  }};
  Argument out;
  const auto found = alternative(json);
  if (!found.has_value()) {
    out.kind = Kind::kOther;
    out.problem = "is damaged";
    return out;
  }
  const auto& [name, value] = *found;
  for (const Form& form : kForms) {
    if (form.name == name) {
      out.kind = form.kind;
      out.list = form.list;
      add_all(out, *value, form, sizes);
      return out;
    }
  }
  out.kind = Kind::kOther;
  out.text = name;
  if (name == "as_none") {
    out.kind = Kind::kNone;
  } else if (name == "as_string") {
    out.kind = Kind::kText;
    out.text = text(value).value_or(std::string());
  } else if (name == "as_scalar_type") {
    const DTypeResult dtype = dtype_of(value);
    out.kind = Kind::kDType;
    out.text = dtype.problem.empty() ? std::string(ir::dtype_name(dtype.dtype)) : std::string();
    out.problem = dtype.problem;
  }
  return out;
}

}  // namespace shardplan::frontends
