#include "shardplan/frontends/exported_program.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

namespace shardplan::frontends {

namespace {

using Json = nlohmann::json;

constexpr std::int64_t kSchemaMajor = 8;

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

/// The member, or null when `json` is no object or has none of this name.
const Json* member(const Json& json, const char* name) {
  if (!json.is_object()) {
    return nullptr;
  }
  const auto found = json.find(name);
  return found == json.end() ? nullptr : &*found;
}

/// The single entry of an object such as {"as_int": 3}: the schema's form of a union.
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

bool is_true(const Json* json) {
  return json != nullptr && json->is_boolean() && json->get<bool>();
}

/// The "name" of {"name": "x", ...}.
std::optional<std::string> name_of(const Json& json) {
  return text(member(json, "name"));
}

/// {"as_int": 3} -> 3; nothing for a symbolic expression.
std::optional<std::int64_t> fixed_int(const Json& json) {
  if (json.is_number_integer()) {
    return integer(&json);
  }
  return integer(member(json, "as_int"));
}

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
                 : DTypeResult{ir::DType::kFloat32, fmt::format("has dtype {}", entry.name)};
    }
  }
  return {ir::DType::kFloat32,
          value.has_value() ? fmt::format("has an unknown dtype (number {})", *value)
                            : std::string("has no dtype")};
}

ExportedTensor tensor_of(const Json& json) {
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
    const std::optional<std::int64_t> size = fixed_int((*sizes)[i]);
    if (!size.has_value()) {
      tensor.problem = fmt::format("has a dimension {} that is not fixed", i);
      return tensor;
    }
    tensor.type.shape.push_back(*size);
  }
  const Json* const strides = member(json, "strides");
  if (strides != nullptr && strides->is_array()) {
    for (const Json& stride : *strides) {
      tensor.strides.push_back(fixed_int(stride).value_or(-1));
    }
  }
  const Json* const offset = member(json, "storage_offset");
  tensor.storage_offset = offset == nullptr ? 0 : fixed_int(*offset).value_or(-1);
  return tensor;
}

class ProgramParser {
 public:
  explicit ProgramParser(const std::string& where) : where_(where) {}

  Result<ExportedProgram> run(std::string_view json) {
    const Json root = Json::parse(json, nullptr, false);
    if (root.is_discarded()) {
      return error("models/model.json is not valid JSON");
    }
    const Json* const version = member(root, "schema_version");
    const std::optional<std::int64_t> major =
        version == nullptr ? std::nullopt : integer(member(*version, "major"));
    if (!major.has_value()) {
      return error("models/model.json has no schema version: it was not written by torch.export");
    }
    if (*major != kSchemaMajor) {
      return error(
          fmt::format("has schema version {} of torch.export, {} is supported: export it "
                      "with PyTorch 2.13",
                      *major,
                      kSchemaMajor));
    }
    const Json* const module = member(root, "graph_module");
    const Json* const graph = module == nullptr ? nullptr : member(*module, "graph");
    const Json* const signature = module == nullptr ? nullptr : member(*module, "signature");
    if (graph == nullptr || signature == nullptr) {
      return error("models/model.json has no graph or no signature");
    }
    SHARDPLAN_RETURN_IF_ERROR(tensors(*graph));
    SHARDPLAN_RETURN_IF_ERROR(inputs(*signature));
    SHARDPLAN_RETURN_IF_ERROR(outputs(*signature));
    SHARDPLAN_RETURN_IF_ERROR(nodes(*graph));
    return std::move(program_);
  }

 private:
  [[nodiscard]] Error error(std::string message) const {
    return invalid_input(std::move(message), where_);
  }

  Result<const Json*> list(const Json& parent, const char* name) const {
    const Json* const found = member(parent, name);
    if (found == nullptr || !found->is_array()) {
      return error(fmt::format("models/model.json has no list '{}'", name));
    }
    return found;
  }

  Status tensors(const Json& graph) {
    const Json* const values = member(graph, "tensor_values");
    if (values == nullptr || !values->is_object()) {
      return error("models/model.json has no 'tensor_values'");
    }
    for (const auto& [name, value] : values->items()) {
      program_.tensors.emplace(name, tensor_of(value));
    }
    return {};
  }

  Status inputs(const Json& signature) {
    SHARDPLAN_ASSIGN_OR_RETURN(const Json* const specs, list(signature, "input_specs"));
    for (const Json& spec : *specs) {
      const auto kind = alternative(spec);
      if (!kind.has_value()) {
        return error("an input in the signature is damaged");
      }
      SHARDPLAN_RETURN_IF_ERROR(input(kind->first, *kind->second));
    }
    return {};
  }

  Status input(const std::string& kind, const Json& spec) {
    ExportedInput input;
    const Json* arg = member(spec, "arg");
    std::optional<std::string> user_name;
    if (kind == "parameter") {
      input.kind = ExportedInput::Kind::kParameter;
      user_name = text(member(spec, "parameter_name"));
    } else if (kind == "buffer") {
      input.kind = ExportedInput::Kind::kBuffer;
      user_name = text(member(spec, "buffer_name"));
    } else if (kind == "tensor_constant") {
      input.kind = ExportedInput::Kind::kConstant;
      user_name = text(member(spec, "tensor_constant_name"));
    } else if (kind == "user_input") {
      arg = arg == nullptr ? nullptr : member(*arg, "as_tensor");
      if (arg == nullptr) {
        return {};  // a number or None: its uses are already in the graph as constants
      }
      user_name = name_of(*arg);
    } else if (kind == "constant_input") {
      return {};
    } else {
      return Error{ErrorCode::kUnsupported,
                   fmt::format("the model has an input of kind '{}'", kind),
                   where_,
                   {}};
    }
    const std::optional<std::string> graph_name = arg == nullptr ? std::nullopt : name_of(*arg);
    if (!graph_name.has_value() || !user_name.has_value()) {
      return error("an input in the signature has no name");
    }
    input.graph_name = *graph_name;
    input.name = *user_name;
    program_.inputs.push_back(std::move(input));
    return {};
  }

  Status outputs(const Json& signature) {
    SHARDPLAN_ASSIGN_OR_RETURN(const Json* const specs, list(signature, "output_specs"));
    for (const Json& spec : *specs) {
      const auto kind = alternative(spec);
      if (!kind.has_value()) {
        return error("an output in the signature is damaged");
      }
      SHARDPLAN_RETURN_IF_ERROR(output(kind->first, *kind->second));
    }
    return {};
  }

  Status output(const std::string& kind, const Json& spec) {
    const Json* const arg = member(spec, "arg");
    if (arg == nullptr) {
      return error("an output in the signature is damaged");
    }
    if (kind == "user_output" || kind == "loss_output") {
      const Json* const tensor = kind == "user_output" ? member(*arg, "as_tensor") : arg;
      const auto name = tensor == nullptr ? std::nullopt : name_of(*tensor);
      program_.outputs.push_back(name.value_or(std::string()));
      return {};
    }
    if (kind == "buffer_mutation") {
      const auto buffer = text(member(spec, "buffer_name"));
      const auto value = name_of(*arg);
      if (!buffer.has_value() || !value.has_value()) {
        return error("a changed buffer in the signature has no name");
      }
      program_.mutations.push_back({*buffer, *value});
      return {};
    }
    return Error{ErrorCode::kUnsupported,
                 fmt::format("the model has an output of kind '{}'", kind),
                 where_,
                 {}};
  }

  Status nodes(const Json& graph) {
    SHARDPLAN_ASSIGN_OR_RETURN(const Json* const nodes, list(graph, "nodes"));
    program_.nodes.reserve(nodes->size());
    for (const Json& json : *nodes) {
      SHARDPLAN_RETURN_IF_ERROR(node(json));
    }
    return {};
  }

  Status node(const Json& json) {
    ExportedNode node;
    const std::optional<std::string> target = text(member(json, "target"));
    if (!target.has_value()) {
      return error("a node of the graph has no target");
    }
    constexpr std::string_view kPrefix = "torch.ops.";
    node.target = target->starts_with(kPrefix) ? target->substr(kPrefix.size()) : *target;
    SHARDPLAN_ASSIGN_OR_RETURN(const Json* const inputs, list(json, "inputs"));
    for (const Json& input : *inputs) {
      const std::optional<std::string> name = name_of(input);
      const Json* const arg = member(input, "arg");
      if (!name.has_value() || arg == nullptr) {
        return error(fmt::format("a node {} has a damaged argument", node.target));
      }
      node.inputs.emplace_back(*name, argument(*arg));
    }
    SHARDPLAN_ASSIGN_OR_RETURN(const Json* const outputs, list(json, "outputs"));
    for (const Json& output : *outputs) {
      const Argument result = argument(output);
      if (result.kind != Argument::Kind::kTensors && result.kind != Argument::Kind::kNone) {
        return Error{ErrorCode::kUnsupported,
                     fmt::format("a node {} has a result of kind {}", node.target, result.text),
                     where_,
                     {}};
      }
      node.outputs.insert(node.outputs.end(), result.tensors.begin(), result.tensors.end());
    }
    const Json* const metadata = member(json, "metadata");
    if (metadata != nullptr) {
      node.layer = layer(text(member(*metadata, "nn_module_stack")).value_or(std::string()));
    }
    program_.nodes.push_back(std::move(node));
    return {};
  }

  /// The path in the last entry of "key,path,class;key,path,class".
  static std::string layer(std::string_view stack) {
    const std::size_t last = stack.rfind(';');
    const std::string_view entry = last == std::string_view::npos ? stack : stack.substr(last + 1);
    const std::size_t first_comma = entry.find(',');
    const std::size_t last_comma = entry.rfind(',');
    if (first_comma == std::string_view::npos || last_comma <= first_comma) {
      return {};
    }
    std::string_view path = entry.substr(first_comma + 1, last_comma - first_comma - 1);
    // "h.0@1" is the second call of the module "h.0".
    path = path.substr(0, path.find('@'));
    return std::string(path);
  }

  static void add_tensor(Argument& out, const Json& json) {
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

  static void add_int(Argument& out, const Json& json) {
    const std::optional<std::int64_t> value = fixed_int(json);
    if (!value.has_value()) {
      out.problem = "is not a fixed number";
    }
    out.ints.push_back(value.value_or(0));
  }

  static void add_float(Argument& out, const Json& json) {
    const Json* const inner = member(json, "as_float");
    const std::optional<double> value = real(inner == nullptr ? json : *inner);
    if (!value.has_value()) {
      out.problem = "is not a fixed number";
    }
    out.floats.push_back(value.value_or(0));
  }

  static void add_bool(Argument& out, const Json& json) {
    const Json* const inner = member(json, "as_bool");
    const Json& value = inner == nullptr ? json : *inner;
    if (!value.is_boolean()) {
      out.problem = "is not a fixed truth value";
    }
    out.ints.push_back(is_true(&value) ? 1 : 0);
  }

  static Argument argument(const Json& json) {
    using Kind = Argument::Kind;
    struct Form {
      std::string_view name;
      Kind kind;
      bool list;
      void (*add)(Argument&, const Json&);
    };
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
        add_all(out, *value, form.list, form.add);
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

  static void add_all(Argument& out,
                      const Json& value,
                      bool list,
                      void (*add)(Argument&, const Json&)) {
    if (!list) {
      add(out, value);
      return;
    }
    if (!value.is_array()) {
      out.problem = "is damaged";
      return;
    }
    for (const Json& element : value) {
      add(out, element);
    }
  }

  const std::string& where_;
  ExportedProgram program_;
};

}  // namespace

Result<ExportedProgram> parse_program(std::string_view json, const std::string& where) {
  return ProgramParser(where).run(json);
}

Result<WeightFiles> parse_weight_files(std::string_view json,
                                       std::string_view folder,
                                       const std::string& where) {
  const Json root = Json::parse(json, nullptr, false);
  const Json* const config = root.is_discarded() ? nullptr : member(root, "config");
  if (config == nullptr || !config->is_object()) {
    return invalid_input(fmt::format("the list of files in {} is damaged", folder), where);
  }
  WeightFiles files;
  for (const auto& [name, entry] : config->items()) {
    const std::optional<std::string> path = text(member(entry, "path_name"));
    const Json* const meta = member(entry, "tensor_meta");
    if (!path.has_value()) {
      return invalid_input(fmt::format("the entry of '{}' in {} has no path", name, folder), where);
    }
    WeightFile file;
    file.entry = std::string(folder) + *path;
    file.pickled = is_true(member(entry, "use_pickle"));
    if (meta != nullptr && meta->is_object()) {
      file.tensor = tensor_of(*meta);
    } else {
      file.tensor.problem = "has no description";
    }
    files.emplace(name, std::move(file));
  }
  return files;
}

}  // namespace shardplan::frontends
