// Reads a `.pt2` archive of torch.export. How to read this file: `Importer::run` makes a value of
// each input of the exported graph, then hands the nodes one by one to the table of aten.h.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <tuple>

#include "shardplan/frontends/aten.h"
#include "shardplan/frontends/exported_program.h"
#include "shardplan/frontends/frontends.h"
#include "shardplan/frontends/pt2_archive.h"
#include "shardplan/ops/op.h"

namespace shardplan::frontends {

namespace {

using ir::ValueId;
using ir::ValueKind;
using Kind = ExportedInput::Kind;

constexpr std::uint64_t kMaxJsonBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kMaxFoldedBytes = std::uint64_t{16} << 20;
constexpr std::uint64_t kMaxWeightBytes = std::uint64_t{1} << 40;

ir::Shape contiguous_strides(const ir::Shape& shape) {
  ir::Shape strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * shape[d];
  }
  return strides;
}

bool is_contiguous(const ExportedTensor& tensor) {
  const ir::Shape plain = contiguous_strides(tensor.type.shape);
  if (tensor.strides.size() != plain.size()) {
    return tensor.strides.empty();
  }
  for (std::size_t d = 0; d < plain.size(); ++d) {
    if (tensor.type.shape[d] != 1 && tensor.strides[d] != plain[d]) {
      return false;
    }
  }
  return true;
}

/// Whether a strided tensor lies inside `elements` elements of storage, no element used twice.
bool fits_storage(const ExportedTensor& tensor, std::int64_t elements) {
  if (tensor.strides.size() != tensor.type.shape.size() || tensor.type.numel() > elements ||
      tensor.storage_offset < 0) {
    return false;
  }
  std::int64_t last = tensor.storage_offset;
  for (std::size_t d = 0; d < tensor.strides.size(); ++d) {
    const std::int64_t steps = tensor.type.shape[d] - 1;
    if (tensor.strides[d] < 0 || last >= elements ||
        (steps > 0 && tensor.strides[d] > (elements - 1 - last) / steps)) {
      return false;
    }
    last += steps * tensor.strides[d];
  }
  return last < elements;
}

/// Elements of a strided tensor inside its storage, row-major. Precondition: it fits.
std::vector<std::byte> gather_strided(const ExportedTensor& tensor,
                                      const std::vector<std::byte>& storage) {
  const ir::TensorType& type = tensor.type;
  const Bytes width = ir::element_bytes(type.dtype);
  std::vector<std::byte> out;
  out.reserve(static_cast<std::size_t>(type.bytes()));
  ir::Shape index(type.shape.size(), 0);
  for (std::int64_t k = 0; k < type.numel(); ++k) {
    std::int64_t at = tensor.storage_offset;
    for (std::size_t d = 0; d < index.size(); ++d) {
      at += index[d] * tensor.strides[d];
    }
    const auto start = storage.begin() + at * width;
    out.insert(out.end(), start, start + width);
    for (std::size_t d = index.size(); d-- > 0;) {
      if (++index[d] < type.shape[d]) {
        break;
      }
      index[d] = 0;
    }
  }
  return out;
}

class Importer {
 public:
  Importer(const std::string& path,
           const Pt2Archive& archive,
           const ExportedProgram& program,
           const LoadOptions& options)
      : path_(path),
        archive_(archive),
        program_(program),
        options_(options),
        builder_(graph_),
        state_{.program = program, .builder = builder_} {}

  Result<ir::Graph> run() {
    SHARDPLAN_RETURN_IF_ERROR(read_weight_files());
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

  Status read_weight_files() {
    if (archive_.has("byteorder")) {
      SHARDPLAN_ASSIGN_OR_RETURN(const std::string order, archive_.read("byteorder", 64));
      if (order != "little") {
        return Error{ErrorCode::kUnsupported,
                     fmt::format("its numbers have byte order '{}', little is supported", order),
                     path_,
                     {}};
      }
    }
    SHARDPLAN_RETURN_IF_ERROR(read_list("data/weights/", "data/weights/model_weights_config.json"));
    return read_list("data/constants/", "data/constants/model_constants_config.json");
  }

  Status read_list(std::string_view folder, std::string_view list) {
    if (!archive_.has(list)) {
      return {};
    }
    SHARDPLAN_ASSIGN_OR_RETURN(const std::string json, archive_.read(list, kMaxJsonBytes));
    SHARDPLAN_ASSIGN_OR_RETURN(WeightFiles found, parse_weight_files(json, folder, path_));
    files_.merge(std::move(found));
    return {};
  }

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
  }

  [[nodiscard]] const WeightFile* file_of(const ExportedInput& input) const {
    const auto found = files_.find(input.name);
    return found == files_.end() ? nullptr : &found->second;
  }

  [[nodiscard]] bool has_data(const WeightFile& file) const {
    return archive_.size(file.entry).value_or(0) > 0;
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
      error.notes.emplace_back("export the model with fixed shapes and supported element types");
      return error;
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
      const WeightFile* const file = file_of(input);
      if (options_.weights) {
        SHARDPLAN_ASSIGN_OR_RETURN(value.data, weight(input, file, tensor.type));
      }
      if (kind == ValueKind::kBuffer && !changes(input) && file != nullptr) {
        known = fixed_content(*file, tensor.type);
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

  /// Integer and bool buffers that no step changes, and masks in any type, are as good as
  /// constants.
  [[nodiscard]] std::optional<ConstTensor> fixed_content(const WeightFile& file,
                                                         const ir::TensorType& type) const {
    if (ir::is_floating(type.dtype) && type.rank() < 2) {
      return std::nullopt;
    }
    std::optional<ConstTensor> known = content(file, type);
    if (!known.has_value()) {
      return std::nullopt;
    }
    std::optional<ConstTensor> band = recognise_band(*known);
    if (band.has_value() || ir::is_floating(type.dtype)) {
      return band;
    }
    return known;
  }

  /// Content of a small tensor that the archive holds.
  [[nodiscard]] std::optional<ConstTensor> content(const WeightFile& file,
                                                   const ir::TensorType& type) const {
    if (file.pickled || file.tensor.type != type || !is_contiguous(file.tensor) ||
        archive_.size(file.entry) != static_cast<std::uint64_t>(type.bytes())) {
      return std::nullopt;
    }
    const Result<std::vector<std::byte>> bytes = archive_.read_bytes(file.entry, kMaxFoldedBytes);
    return bytes ? ConstTensor::from_bytes(type, *bytes) : std::nullopt;
  }

  Status add_constant(const ExportedInput& input, const ExportedTensor& tensor) {
    const WeightFile* const file = file_of(input);
    if (file == nullptr || !has_data(*file)) {
      // Exported under the meta device: its content is unknown, like that of the weights.
      return add_value(input, tensor, ValueKind::kBuffer);
    }
    if (std::optional<ConstTensor> known = content(*file, tensor.type)) {
      if (std::optional<ConstTensor> band = recognise_band(*known)) {
        known = std::move(band);
      }
      state_.operands[input.graph_name] = {std::move(known), {}};
      return {};
    }
    ir::Value value;
    value.kind = ValueKind::kConstant;
    value.name = input.name;
    value.type = tensor.type;
    SHARDPLAN_ASSIGN_OR_RETURN(value.data, weight(input, file, tensor.type));
    state_.operands[input.graph_name] = {std::nullopt, graph_.add_value(std::move(value))};
    return {};
  }

  /// The value that this parameter or buffer is another name of.
  std::optional<ValueId> tied_value(const ExportedInput& input, const ExportedTensor& tensor) {
    const WeightFile* const file = file_of(input);
    if (file != nullptr && has_data(*file)) {
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

  Result<ir::Data> weight(const ExportedInput& input,
                          const WeightFile* file,
                          const ir::TensorType& type) const {
    const std::string where = fmt::format("{}: '{}'", path_, input.name);
    if (file == nullptr || !has_data(*file)) {
      return Error{ErrorCode::kNotFound,
                   "the archive holds no data for it",
                   where,
                   {"export the model with its weights (not under the meta device)"}};
    }
    if (file->pickled) {
      return Error{ErrorCode::kUnsupported,
                   "its data are pickled, only plain tensors are supported",
                   where,
                   {}};
    }
    if (!file->tensor.problem.empty() || file->tensor.type != type) {
      return invalid_input("its file and its type in the graph differ", where);
    }
    SHARDPLAN_ASSIGN_OR_RETURN(std::vector<std::byte> bytes,
                               archive_.read_bytes(file->entry, kMaxWeightBytes));
    const bool plain = is_contiguous(file->tensor) && file->tensor.storage_offset == 0 &&
                       static_cast<Bytes>(bytes.size()) == type.bytes();
    if (!plain) {
      const auto elements = static_cast<std::int64_t>(bytes.size()) / ir::element_bytes(type.dtype);
      if (!fits_storage(file->tensor, elements)) {
        return invalid_input(fmt::format("{} needs {} bytes, but its file has {}",
                                         to_string(type),
                                         type.bytes(),
                                         bytes.size()),
                             where);
      }
      bytes = gather_strided(file->tensor, bytes);
    }
    return std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  }

  // Nodes
  // -------------------------------------------------------------------------------------------

  Status add_node(const ExportedNode& node,
                  const std::unordered_map<std::string_view, AtenOp>& table) {
    if (node.target.starts_with("aten._assert_")) {
      return {};
    }
    const auto row = table.find(node.target);
    if (row == table.end() || node.outputs.empty()) {
      return unknown_operator(node, table);
    }
    builder_.set_layer(node.layer);
    AtenCall call(state_, node);
    call.set_ours(row->second.ours);
    if (row->second.fold != nullptr) {
      std::optional<ConstTensor> known = row->second.fold(call);
      SHARDPLAN_RETURN_IF_ERROR(located());
      if (known.has_value()) {
        call.constant_result(std::move(*known));
        return {};
      }
    }
    if (row->second.map == nullptr) {
      call.unsupported("is supported on constants only");
    } else {
      row->second.map(call);
    }
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

  [[nodiscard]] Error unknown_operator(
      const ExportedNode& node, const std::unordered_map<std::string_view, AtenOp>& table) const {
    std::set<std::string> others;
    for (const ExportedNode& other : program_.nodes) {
      if (!table.contains(other.target) && other.target != node.target &&
          !other.target.starts_with("aten._assert_")) {
        others.insert(other.target);
      }
    }
    Error error{
        ErrorCode::kUnsupported,
        fmt::format("operator {} is not supported", node.target),
        fmt::format("{}: {}", path_, node.layer.empty() ? "the top module" : "layer " + node.layer),
        {}};
    if (!others.empty()) {
      std::string list;
      for (const std::string& other : others) {
        list += (list.empty() ? "" : ", ") + other;
      }
      error.notes.push_back("the model also uses these, which are not supported: " + list);
    }
    if (node.target.find("_.") != std::string::npos) {
      error.notes.emplace_back(
          "in-place operators go away with .run_decompositions({}), which shardplan.export calls");
    }
    return error;
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
    for (const ExportedMutation& mutation : program_.mutations) {
      const std::optional<ValueId> target = value_named(mutation.buffer);
      const auto value = state_.operands.find(mutation.value);
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
  const Pt2Archive& archive_;
  const ExportedProgram& program_;
  LoadOptions options_;
  ir::Graph graph_;
  Builder builder_;
  ImportState state_;
  WeightFiles files_;
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
  SHARDPLAN_ASSIGN_OR_RETURN(const ExportedProgram program, parse_program(json, path));
  SHARDPLAN_ASSIGN_OR_RETURN(ir::Graph graph, Importer(path, archive, program, options).run());
  const std::size_t slash = path.rfind('/');
  graph.name = slash == std::string::npos ? path : path.substr(slash + 1);
  return graph;
}

}  // namespace shardplan::frontends
