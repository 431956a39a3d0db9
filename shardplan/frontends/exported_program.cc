#include "shardplan/frontends/exported_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "shardplan/frontends/exported_json.h"
#include "shardplan/frontends/open_dims.h"

namespace shardplan::frontends {

namespace {

constexpr std::int64_t kSchemaMajor = 8;

class ProgramParser {
 public:
  ProgramParser(const std::string& where, const DimRequest& dims) : where_(where), dims_(dims) {}

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
    SHARDPLAN_RETURN_IF_ERROR(bind_sizes(root, *graph, *signature));
    SHARDPLAN_RETURN_IF_ERROR(tensors(*graph));
    SHARDPLAN_RETURN_IF_ERROR(inputs(*signature));
    SHARDPLAN_RETURN_IF_ERROR(outputs(*signature));
    SHARDPLAN_RETURN_IF_ERROR(nodes(*graph, Region{.sizes = sizes_}));
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

  // Open dimensions ----------------------------------------------------------------------------

  Status bind_sizes(const Json& root, const Json& graph, const Json& signature) {
    OpenDims open;
    SHARDPLAN_ASSIGN_OR_RETURN(const Json* const specs, list(signature, "input_specs"));
    for (const Json& spec : *specs) {
      const Json* const input = member(spec, "user_input");
      const Json* const arg = input == nullptr ? nullptr : member(*input, "arg");
      if (arg != nullptr) {
        add_open_dims(*arg, graph, open);
      }
    }
    add_ranges(root, open);
    add_names(open);
    SHARDPLAN_ASSIGN_OR_RETURN(sizes_.symbols, bind_dims(open, dims_.sizes, where_));
    add_numbers(graph, sizes_);
    return {};
  }

  /// The numbers that the nodes of a graph compute.
  static void add_numbers(const Json& graph, Sizes& sizes) {
    for (const char* const kind : {"sym_int_values", "sym_float_values", "sym_bool_values"}) {
      const Json* const values = member(graph, kind);
      if (values != nullptr && values->is_object()) {
        for (const auto& [name, value] : values->items()) {
          if (const std::optional<Number> known = number(value, sizes)) {
            sizes.computed.insert_or_assign(name, *known);
          }
        }
      }
    }
  }

  static void add_open_dim(std::string place, const Json& size, OpenDims& open) {
    const Json* const symbolic = member(size, "as_expr");
    const auto expression =
        symbolic == nullptr ? std::nullopt : text(member(*symbolic, "expr_str"));
    if (expression.has_value()) {
      const Json* const hint = member(*symbolic, "hint");
      open.places.push_back({std::move(place),
                             *expression,
                             hint == nullptr ? std::nullopt : integer(member(*hint, "as_int"))});
    }
  }

  /// Of one input: a tensor, or a whole number.
  static void add_open_dims(const Json& arg, const Json& graph, OpenDims& open) {
    const auto described = [&](const char* values, const std::string& name) -> const Json* {
      const Json* const all = member(graph, values);
      return all == nullptr ? nullptr : member(*all, name.c_str());
    };
    if (const Json* const tensor = member(arg, "as_tensor")) {
      const std::string name = name_of(*tensor).value_or(std::string());
      const Json* const meta = described("tensor_values", name);
      const Json* const sizes = meta == nullptr ? nullptr : member(*meta, "sizes");
      for (std::size_t d = 0; sizes != nullptr && sizes->is_array() && d < sizes->size(); ++d) {
        add_open_dim(fmt::format("{}.{}", name, d), (*sizes)[d], open);
      }
    } else if (const Json* const symbol = member(arg, "as_sym_int")) {
      const std::string name = text(member(*symbol, "as_name")).value_or(std::string());
      if (const Json* const value = described("sym_int_values", name)) {
        add_open_dim(name, *value, open);
      }
    }
  }

  static void add_ranges(const Json& root, OpenDims& open) {
    const Json* const ranges = member(root, "range_constraints");
    if (ranges != nullptr && ranges->is_object()) {
      for (const auto& [expression, range] : ranges->items()) {
        open.ranges.push_back(
            {expression, integer(member(range, "min_val")), integer(member(range, "max_val"))});
      }
    }
    const Json* const guards = member(root, "guards_code");
    if (guards != nullptr && guards->is_array()) {
      for (const Json& guard : *guards) {
        if (const std::optional<std::string> code = text(&guard)) {
          open.guards.push_back(*code);
        }
      }
    }
  }

  void add_names(OpenDims& open) const {
    const Json names = Json::parse(dims_.names, nullptr, false);
    if (names.is_object()) {
      for (const auto& [symbol, name] : names.items()) {
        if (const std::optional<std::string> known = text(&name)) {
          open.names.emplace(symbol, *known);
        }
      }
    }
  }

  // The graph ----------------------------------------------------------------------------------

  Status tensors(const Json& graph) {
    const Json* const values = member(graph, "tensor_values");
    if (values == nullptr || !values->is_object()) {
      return error("models/model.json has no 'tensor_values'");
    }
    for (const auto& [name, value] : values->items()) {
      program_.tensors.emplace(name, tensor_of(value, sizes_));
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

  /// A graph while its nodes are read: the whole one, or that of a region inside it, whose names
  /// are its own.
  struct Region {
    const Sizes& sizes;
    std::string prefix{};
    std::map<std::string, std::string> inputs{};  ///< its names of tensors from outside
    bool no_grad = false;
    int depth = 0;

    [[nodiscard]] std::string name(const std::string& own) const {
      const auto outer = inputs.find(own);
      return outer != inputs.end() ? outer->second : (own.empty() ? own : prefix + own);
    }
  };

  Status nodes(const Json& graph, const Region& region) {
    SHARDPLAN_ASSIGN_OR_RETURN(const Json* const nodes, list(graph, "nodes"));
    program_.nodes.reserve(program_.nodes.size() + nodes->size());
    for (const Json& json : *nodes) {
      SHARDPLAN_RETURN_IF_ERROR(node(json, region));
    }
    return {};
  }

  Status node(const Json& json, const Region& region) {
    ExportedNode node;
    const std::optional<std::string> target = text(member(json, "target"));
    if (!target.has_value()) {
      return error("a node of the graph has no target");
    }
    constexpr std::string_view kPrefix = "torch.ops.";
    node.target = target->starts_with(kPrefix) ? target->substr(kPrefix.size()) : *target;
    node.no_grad = region.no_grad;
    SHARDPLAN_ASSIGN_OR_RETURN(const Json* const inputs, list(json, "inputs"));
    const Json* inner = nullptr;
    for (const Json& input : *inputs) {
      const std::optional<std::string> name = name_of(input);
      const Json* const arg = member(input, "arg");
      if (!name.has_value() || arg == nullptr) {
        return error(fmt::format("a node {} has a damaged argument", node.target));
      }
      Argument read = argument(*arg, region.sizes);
      rename(read.tensors, region);
      node.inputs.emplace_back(*name, std::move(read));
      const Json* const graph = member(*arg, "as_graph");
      inner = graph == nullptr ? inner : member(*graph, "graph");
    }
    SHARDPLAN_ASSIGN_OR_RETURN(const bool computes_numbers, results(json, region, node));
    const Json* const metadata = member(json, "metadata");
    if (metadata != nullptr) {
      node.layer = layer(text(member(*metadata, "nn_module_stack")).value_or(std::string()));
    }
    if (inner != nullptr && is_region(node)) {
      return inlined(*inner, node, region);
    }
    // Its numbers are known already, from the descriptions of their symbols.
    if (!computes_numbers || !node.outputs.empty()) {
      program_.nodes.push_back(std::move(node));
    }
    return {};
  }

  static void rename(std::vector<std::string>& tensors, const Region& region) {
    for (std::string& tensor : tensors) {
      tensor = region.name(tensor);
    }
  }

  /// Whether one of them is a number, of the sizes of tensors or from data.
  Result<bool> results(const Json& json, const Region& region, ExportedNode& node) const {
    SHARDPLAN_ASSIGN_OR_RETURN(const Json* const outputs, list(json, "outputs"));
    bool computes_numbers = false;
    for (const Json& output : *outputs) {
      Argument result = argument(output, region.sizes);
      if (is_number(output)) {
        computes_numbers = true;
        continue;
      }
      if (result.kind != Argument::Kind::kTensors && result.kind != Argument::Kind::kNone) {
        return Error{ErrorCode::kUnsupported,
                     fmt::format("a node {} has a result of kind {}", node.target, result.text),
                     where_,
                     {}};
      }
      rename(result.tensors, region);
      node.outputs.insert(node.outputs.end(), result.tensors.begin(), result.tensors.end());
    }
    return computes_numbers;
  }

  // Regions --------------------------------------------------------------------------------------

  /// torch.no_grad() and the like, and automatic mixed precision where it is switched off.
  static bool is_region(const ExportedNode& node) {
    const auto off = [](const auto& input) {
      return input.second.kind == Argument::Kind::kBools && !input.second.ints.empty() &&
             input.second.ints.front() == 0;
    };
    return node.target == "higher_order.wrap_with_set_grad_enabled" ||
           (node.target == "higher_order.wrap_with_autocast" && node.inputs.size() > 2 &&
            off(node.inputs[2]));
  }

  /// Puts the nodes of a region in the place of the node that stands for it.
  Status inlined(const Json& graph, const ExportedNode& node, const Region& outside) {
    constexpr int kMaxDepth = 32;
    if (outside.depth == kMaxDepth) {
      return error("its regions without gradients lie too deep in one another");
    }
    Sizes sizes = outside.sizes;
    add_numbers(graph, sizes);
    Region region{.sizes = sizes,
                  .prefix = fmt::format("region{}/", ++regions_),
                  .no_grad = outside.no_grad,
                  .depth = outside.depth + 1};
    if (node.target == "higher_order.wrap_with_set_grad_enabled") {
      const std::vector<std::int64_t>& enabled = node.inputs.front().second.ints;
      const bool off = !enabled.empty() && enabled.front() == 0;
      if (!off && outside.no_grad) {
        return unsupported("gradients are enabled again inside torch.no_grad()", where_);
      }
      region.no_grad = off;
    }
    SHARDPLAN_RETURN_IF_ERROR(region_inputs(graph, node, region));
    const Json* const values = member(graph, "tensor_values");
    if (values != nullptr && values->is_object()) {
      for (const auto& [name, value] : values->items()) {
        program_.tensors.emplace(region.name(name), tensor_of(value, sizes));
      }
    }
    SHARDPLAN_RETURN_IF_ERROR(nodes(graph, region));
    return region_outputs(graph, node, region);
  }

  /// The operands that follow the graph among the arguments are its inputs.
  Status region_inputs(const Json& graph, const ExportedNode& node, Region& region) const {
    SHARDPLAN_ASSIGN_OR_RETURN(const Json* const inputs, list(graph, "inputs"));
    auto operand = std::find_if(node.inputs.begin(), node.inputs.end(), [](const auto& input) {
      return input.second.text == "as_graph";
    });
    for (const Json& input : *inputs) {
      operand += operand == node.inputs.end() ? 0 : 1;
      if (operand == node.inputs.end()) {
        return error("a region has more inputs than operands");
      }
      const Json* const tensor = member(input, "as_tensor");
      if (tensor != nullptr && operand->second.tensors.size() == 1) {
        region.inputs[name_of(*tensor).value_or(std::string())] = operand->second.tensors.front();
      }
    }
    return {};
  }

  Status region_outputs(const Json& graph, const ExportedNode& node, const Region& region) {
    SHARDPLAN_ASSIGN_OR_RETURN(const Json* const outputs, list(graph, "outputs"));
    std::vector<std::string> inner;
    for (const Json& output : *outputs) {
      Argument result = argument(output, region.sizes);
      rename(result.tensors, region);
      inner.insert(inner.end(), result.tensors.begin(), result.tensors.end());
    }
    if (inner.size() != node.outputs.size()) {
      return error("a region has not as many results as the node that stands for it");
    }
    for (std::size_t i = 0; i < inner.size(); ++i) {
      ExportedNode alias;
      alias.target = "aten.alias.default";
      alias.layer = node.layer;
      alias.no_grad = region.no_grad;
      Argument self;
      self.kind = Argument::Kind::kTensors;
      self.tensors = {inner[i]};
      alias.inputs.emplace_back("self", std::move(self));
      alias.outputs = {node.outputs[i]};
      program_.nodes.push_back(std::move(alias));
    }
    return {};
  }

  static bool is_number(const Json& output) {
    return member(output, "as_sym_int") != nullptr || member(output, "as_sym_float") != nullptr ||
           member(output, "as_sym_bool") != nullptr;
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

  const std::string& where_;
  const DimRequest& dims_;
  Sizes sizes_;
  ExportedProgram program_;
  int regions_ = 0;
};

}  // namespace

Result<ExportedProgram> parse_program(std::string_view json,
                                      const std::string& where,
                                      const DimRequest& dims) {
  return ProgramParser(where, dims).run(json);
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
      file.tensor = tensor_of(*meta, {});
    } else {
      file.tensor.problem = "has no description";
    }
    files.emplace(name, std::move(file));
  }
  return files;
}

}  // namespace shardplan::frontends
