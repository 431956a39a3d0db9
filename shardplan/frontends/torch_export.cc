// Reads a `.pt2` archive of torch.export. How to read this file: `Importer::run` makes a value of
// each input of the exported graph, then hands the nodes one by one to the table of aten.h.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "shardplan/frontends/archive_weights.h"
#include "shardplan/frontends/aten.h"
#include "shardplan/frontends/exported_program.h"
#include "shardplan/frontends/frontends.h"
#include "shardplan/frontends/functionalize.h"
#include "shardplan/frontends/pt2_archive.h"
#include "shardplan/ops/op.h"

namespace shardplan::frontends {

namespace {

using ir::ValueId;
using ir::ValueKind;
using Kind = ExportedInput::Kind;

constexpr std::uint64_t kMaxJsonBytes = std::uint64_t{256} << 20;
/// Written by shardplan.export: what the user calls the open dimensions.
constexpr std::string_view kDimNames = "extra/shardplan_dims.json";

class Importer {
 public:
  Importer(const std::string& path,
           const ArchiveWeights& weights,
           const ExportedProgram& program,
           const LoadOptions& options)
      : path_(path),
        weights_(weights),
        program_(program),
        options_(options),
        builder_(graph_),
        state_{.program = program, .builder = builder_} {}

  Result<ir::Graph> run() {
    find_users();
    for (const ExportedInput& input : program_.inputs) {
      SHARDPLAN_RETURN_IF_ERROR(add_input(input));
    }
    const std::unordered_map<std::string_view, AtenOp> table = aten_table();
    for (const ExportedNode& node : program_.nodes) {
      SHARDPLAN_RETURN_IF_ERROR(add_node(node, table));
    }
    SHARDPLAN_RETURN_IF_ERROR(add_loss());
    SHARDPLAN_RETURN_IF_ERROR(add_mutations());
    SHARDPLAN_RETURN_IF_ERROR(ops::verify(graph_));
    return std::move(graph_);
  }

 private:
  // Inputs of the graph
  // -----------------------------------------------------------------------------

  /// Which tensors some node reads, and which tensors the nodes of each module read.
  void find_users() {
    for (const ExportedNode& node : program_.nodes) {
      for (const auto& [name, argument] : node.inputs) {
        for (const std::string& tensor : argument.tensors) {
          used_.insert(tensor);
          readers_[node.layer].push_back(tensor);
        }
      }
    }
    used_.insert(program_.outputs.begin(), program_.outputs.end());
    for (const ExportedMutation& mutation : program_.mutations) {
      used_.insert(mutation.value);
    }
  }

  Status add_input(const ExportedInput& input) {
    const auto found = program_.tensors.find(input.graph_name);
    if (found == program_.tensors.end()) {
      return invalid_input(fmt::format("the archive gives no type for '{}'", input.name), path_);
    }
    const ExportedTensor& tensor = found->second;
    if (!tensor.problem.empty()) {
      Error error{
          ErrorCode::kUnsupported, fmt::format("'{}' {}", input.name, tensor.problem), path_, {}};
      error.notes.emplace_back(
          "supported are bool, uint8, int32, int64, bfloat16, float16, float32 and float64; "
          "convert "
          "it before the model, for example with .to(torch.int32)");
      return error;
    }
    if (std::count(tensor.type.shape.begin(), tensor.type.shape.end(), 0) > 0) {
      return Error{ErrorCode::kUnsupported,
                   fmt::format("'{}' has no elements ({})", input.name, to_string(tensor.type)),
                   path_,
                   {"every dimension of a tensor must be at least 1"}};
    }
    if (!ir::is_valid(tensor.type)) {
      return invalid_input(
          fmt::format("'{}' has the impossible type {}", input.name, to_string(tensor.type)),
          path_);
    }
    switch (input.kind) {
      case Kind::kUser:
        return add_value(input, tensor, ValueKind::kInput);
      case Kind::kConstant:
        return add_constant(input, tensor);
      case Kind::kParameter:
      case Kind::kBuffer:
        break;
    }
    if (const std::optional<ValueId> tied = tied_value(input, tensor)) {
      graph_.value(*tied).aliases.push_back(input.name);
      state_.operands[input.graph_name] = {std::nullopt, *tied};
      return {};
    }
    return add_value(
        input, tensor, input.kind == Kind::kParameter ? ValueKind::kParameter : ValueKind::kBuffer);
  }

  Status add_value(const ExportedInput& input, const ExportedTensor& tensor, ValueKind kind) {
    ir::Value value;
    value.kind = kind;
    value.name = input.name;
    value.type = tensor.type;
    value.trainable = kind == ValueKind::kParameter && tensor.requires_grad;
    std::optional<ConstTensor> known;
    if (kind != ValueKind::kInput) {
      if (options_.weights) {
        SHARDPLAN_ASSIGN_OR_RETURN(value.data, weights_.data(input.name, tensor.type));
      }
      if (kind == ValueKind::kBuffer && !changes(input)) {
        known = weights_.fixed_content(input.name, tensor.type);
      }
    }
    const ValueId id = graph_.add_value(std::move(value));
    by_name_[input.name] = id;
    state_.operands[input.graph_name] = {std::move(known), id};
    return {};
  }

  [[nodiscard]] bool changes(const ExportedInput& input) const {
    return std::any_of(program_.mutations.begin(),
                       program_.mutations.end(),
                       [&](const ExportedMutation& m) { return m.buffer == input.name; });
  }

  Status add_constant(const ExportedInput& input, const ExportedTensor& tensor) {
    if (!weights_.has_data(input.name)) {
      // Exported under the meta device: its content is unknown, like that of the weights.
      return add_value(input, tensor, ValueKind::kBuffer);
    }
    if (std::optional<ConstTensor> known = weights_.content(input.name, tensor.type)) {
      state_.operands[input.graph_name] = {std::move(known), {}};
      return {};
    }
    ir::Value value;
    value.kind = ValueKind::kConstant;
    value.name = input.name;
    value.type = tensor.type;
    SHARDPLAN_ASSIGN_OR_RETURN(value.data, weights_.data(input.name, tensor.type));
    state_.operands[input.graph_name] = {std::nullopt, graph_.add_value(std::move(value))};
    return {};
  }

  /// The value that this parameter or buffer is another name of.
  std::optional<ValueId> tied_value(const ExportedInput& input, const ExportedTensor& tensor) {
    if (weights_.has_data(input.name)) {
      const WeightFile* const file = weights_.file(input.name);
      const auto key = std::tuple(
          file->entry, file->tensor.type.shape, file->tensor.strides, file->tensor.storage_offset);
      const auto [first, is_new] = by_storage_.emplace(key, input.name);
      return is_new ? std::nullopt : value_named(first->second);
    }
    return tied_by_use(input, tensor);
  }

  /// Without weight data, ties show in the graph: torch.export reads all names of a tensor through
  /// one of them, so nodes of a module whose own parameter nobody reads, read the other name.
  std::optional<ValueId> tied_by_use(const ExportedInput& input, const ExportedTensor& tensor) {
    for (const ExportedInput& other : program_.inputs) {
      if (other.name == input.name || other.kind != input.kind) {
        continue;
      }
      const auto type = program_.tensors.find(other.graph_name);
      if (type == program_.tensors.end() || type->second.type != tensor.type ||
          !(reads_in_place_of(input, other) || reads_in_place_of(other, input))) {
        continue;
      }
      if (const std::optional<ValueId> value = value_named(other.name)) {
        return value;
      }
    }
    return std::nullopt;
  }

  /// Whether the module of `unread`, which nobody reads, reads `read` of another module.
  [[nodiscard]] bool reads_in_place_of(const ExportedInput& unread,
                                       const ExportedInput& read) const {
    if (used_.contains(unread.graph_name) || !used_.contains(read.graph_name)) {
      return false;
    }
    const auto module = [](const std::string& name) {
      const std::size_t dot = name.rfind('.');
      return dot == std::string::npos ? std::string() : name.substr(0, dot);
    };
    const auto readers = readers_.find(module(unread.name));
    return module(unread.name) != module(read.name) && readers != readers_.end() &&
           std::find(readers->second.begin(), readers->second.end(), read.graph_name) !=
               readers->second.end();
  }

  [[nodiscard]] std::optional<ValueId> value_named(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? std::nullopt : std::optional(found->second);
  }

  // Nodes
  // -------------------------------------------------------------------------------------------

  Status add_node(const ExportedNode& node,
                  const std::unordered_map<std::string_view, AtenOp>& table) {
    if (node.target.starts_with("aten._assert_") ||
        node.target.starts_with("aten.sym_constrain_range")) {
      return {};
    }
    const auto is_nothing = [&](const std::string& name) {
      return is_without_elements(program_, name);
    };
    if (!node.outputs.empty() &&
        std::all_of(node.outputs.begin(), node.outputs.end(), is_nothing)) {
      return {};
    }
    builder_.set_layer(node.layer);
    AtenCall call(state_, node);
    const auto row = table.find(node.target);
    if (row == table.end()) {
      return call_by_name(call);
    }
    call.set_ours(row->second.ours);
    if (row->second.fold != nullptr) {
      std::optional<ConstTensor> known = row->second.fold(call);
      SHARDPLAN_RETURN_IF_ERROR(located());
      if (known.has_value()) {
        call.constant_result(std::move(*known));
        return {};
      }
    }
    if (row->second.map != nullptr) {
      row->second.map(call);
      const bool complete = !builder_.ok() || has_all_results(node);
      if (!builder_.recover() && complete) {
        return located();
      }
    }
    return call_by_name(call);
  }

  /// A mapping may leave out results that models seldom read, such as the statistics of a norm.
  [[nodiscard]] bool has_all_results(const ExportedNode& node) const {
    return std::all_of(node.outputs.begin(), node.outputs.end(), [&](const std::string& name) {
      return !used_.contains(name) || state_.operands.contains(name) ||
             is_without_elements(program_, name);
    });
  }

  /// What no table maps runs as PyTorch's own operator.
  Status call_by_name(AtenCall& call) {
    const ExportedNode& node = call.node();
    if (node.outputs.empty() || node.target.find("_.") != std::string::npos ||
        std::count(node.target.begin(), node.target.end(), '.') != 2) {
      return unknown_operator(node);
    }
    call.call_by_name();
    return located();
  }

  [[nodiscard]] Status located() const {
    const Status status = builder_.status();
    if (status) {
      return {};
    }
    Error error = status.error();
    error.location = error.location.empty() ? path_ : path_ + ": " + error.location;
    return error;
  }

  [[nodiscard]] Error unknown_operator(const ExportedNode& node) const {
    return Error{
        ErrorCode::kUnsupported,
        fmt::format("operator {} is not supported", node.target),
        fmt::format("{}: {}", path_, node.layer.empty() ? "the top module" : "layer " + node.layer),
        {"export the model with .run_decompositions({}), as shardplan.export does, or write it "
         "without this operator"}};
  }

  // Results
  // -----------------------------------------------------------------------------------------

  Status add_loss() {
    const std::string note =
        "export a module that returns its loss first, or give shardplan.export a loss";
    if (program_.outputs.empty() || program_.outputs.front().empty()) {
      return Error{
          ErrorCode::kInvalidInput, "the model returns no tensor, a loss is needed", path_, {note}};
    }
    const auto found = state_.operands.find(program_.outputs.front());
    if (found == state_.operands.end()) {
      return invalid_input(
          fmt::format("the model's output '{}' is not defined", program_.outputs.front()), path_);
    }
    const Operand& loss = found->second;
    if (!loss.value.valid()) {
      return Error{ErrorCode::kInvalidInput,
                   "the model's first output is a constant, a loss that depends on its inputs is "
                   "needed",
                   path_,
                   {note}};
    }
    const ir::TensorType type = graph_.type(loss.value);
    if (type.rank() != 0 || !ir::is_floating(type.dtype)) {
      return Error{
          ErrorCode::kInvalidInput,
          fmt::format("the model's first output is {}, a scalar loss is needed", to_string(type)),
          path_,
          {note}};
    }
    graph_.outputs = {loss.value};
    return {};
  }

  Status add_mutations() {
    graph_.writes = state_.writes;
    for (const ExportedMutation& mutation : program_.mutations) {
      const std::optional<ValueId> target = value_named(mutation.buffer);
      const auto value = state_.operands.find(mutation.value);
      if (value != state_.operands.end() && !value->second.value.valid()) {
        if (const std::optional<ConstTensor>& known = value->second.constant; known.has_value()) {
          value->second.value = materialize(builder_, *known);
          SHARDPLAN_RETURN_IF_ERROR(located());
        }
      }
      if (!target.has_value() || value == state_.operands.end() || !value->second.value.valid()) {
        return Error{ErrorCode::kUnsupported,
                     fmt::format("the new content of buffer '{}' is not known", mutation.buffer),
                     path_,
                     {}};
      }
      graph_.writes.push_back({*target, value->second.value});
    }
    return {};
  }

  const std::string& path_;
  const ArchiveWeights& weights_;
  const ExportedProgram& program_;
  LoadOptions options_;
  ir::Graph graph_;
  Builder builder_;
  ImportState state_;
  std::map<std::string, ValueId> by_name_;
  std::map<std::tuple<std::string, ir::Shape, ir::Shape, std::int64_t>, std::string> by_storage_;
  std::set<std::string> used_;
  std::map<std::string, std::vector<std::string>> readers_;
};

}  // namespace

Result<ir::Graph> read_pt2(const std::string& path, const LoadOptions& options) {
  SHARDPLAN_ASSIGN_OR_RETURN(const Pt2Archive archive, Pt2Archive::open(path));
  if (!archive.has("models/model.json")) {
    return Error{ErrorCode::kInvalidInput,
                 "holds no models/model.json: it was not written by torch.export.save",
                 path,
                 {"torch.save files cannot be read; write one with shardplan.export"}};
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const std::string json,
                             archive.read("models/model.json", kMaxJsonBytes));
  DimRequest dims{.sizes = options.dims};
  if (archive.has(kDimNames)) {
    SHARDPLAN_ASSIGN_OR_RETURN(dims.names, archive.read(kDimNames, kMaxJsonBytes));
  }
  SHARDPLAN_ASSIGN_OR_RETURN(ExportedProgram written, parse_program(json, path, dims));
  SHARDPLAN_ASSIGN_OR_RETURN(const ExportedProgram program,
                             functionalize(std::move(written), path));
  SHARDPLAN_ASSIGN_OR_RETURN(const ArchiveWeights weights, ArchiveWeights::create(archive, path));
  SHARDPLAN_ASSIGN_OR_RETURN(ir::Graph graph, Importer(path, weights, program, options).run());
  const std::size_t slash = path.rfind('/');
  graph.name = slash == std::string::npos ? path : path.substr(slash + 1);
  return graph;
}

}  // namespace shardplan::frontends
