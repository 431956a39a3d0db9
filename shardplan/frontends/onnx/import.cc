// Reads an ONNX model. How to read this file: `Importer::run` makes a value of each input and
// initializer that some node reads, then hands the nodes one by one to the table of call.h.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "shardplan/frontends/frontends.h"
#include "shardplan/frontends/loss.h"
#include "shardplan/frontends/onnx/call.h"
#include "shardplan/frontends/onnx/constants.h"
#include "shardplan/frontends/onnx/model.h"
#include "shardplan/ops/op.h"
#include "shardplan/support/text.h"

namespace shardplan::frontends {

namespace onnx {

namespace {

using ir::ValueId;
using ir::ValueKind;

constexpr std::int64_t kOldestOpset = 6;
constexpr std::int64_t kNewestOpset = 28;

/// Operands that say how to compute, not with what: initializers there are no weights.
bool is_setting(std::string_view op, std::size_t index) {
  static const std::map<std::string_view, std::set<std::size_t>> settings{
      {"Clip", {1, 2}},
      {"Dropout", {1, 2}},
      {"Pad", {1, 2}},
      {"Resize", {1, 2, 3}},
      {"Upsample", {1}},
      {"OneHot", {1, 2}},
      {"Range", {0, 1, 2}},
      {"LSTM", {4, 5, 6}},
      {"GRU", {4, 5}},
      {"RNN", {4, 5}},
      {"BatchNormalization", {3, 4}}};
  const auto found = settings.find(op);
  return found != settings.end() && found->second.contains(index);
}

/// Operators whose constant operands are weights and nothing else.
bool multiplies(std::string_view op) {
  static const std::set<std::string_view> products{
      "MatMul", "Gemm", "Einsum", "Conv", "ConvTranspose", "LSTM", "GRU", "RNN"};
  return products.contains(op);
}

/// Whether a tensor holds minus infinity or what stands for it: a mask, not a weight.
bool masks(const TensorData& tensor) {
  const auto any_below = [&](auto element) {
    constexpr double kNever = -1e30;
    for (std::size_t at = 0; at + sizeof element <= tensor.raw.size(); at += sizeof element) {
      std::memcpy(&element, tensor.raw.data() + at, sizeof element);
      if (static_cast<double>(element) <= kNever) {
        return true;
      }
    }
    return false;
  };
  return tensor.type.dtype == ir::DType::kFloat32   ? any_below(float{})
         : tensor.type.dtype == ir::DType::kFloat64 ? any_below(double{})
                                                    : false;
}

class Importer {
 public:
  Importer(const std::string& path, const Model& model, const LoadOptions& options)
      : path_(path),
        model_(model),
        options_(options),
        builder_(graph_),
        state_{.builder = builder_} {}

  /// The graph without outputs.
  Status run() {
    SHARDPLAN_RETURN_IF_ERROR(check_opset());
    const std::unordered_map<std::string_view, Row> rows = table();
    SHARDPLAN_RETURN_IF_ERROR(check_operators(rows));
    find_readers();
    SHARDPLAN_RETURN_IF_ERROR(add_inputs());
    for (const TensorData& tensor : model_.graph.initializers) {
      SHARDPLAN_RETURN_IF_ERROR(add_initializer(tensor));
    }
    for (const Node& node : model_.graph.nodes) {
      SHARDPLAN_RETURN_IF_ERROR(add_node(node, rows));
    }
    return {};
  }

  Result<ir::Graph> with_all_outputs() {
    builder_.set_layer("");
    graph_.outputs = {builder_.emit(
        "full", {}, {{"shape", ir::IntList{}}, {"value", 0.0}, {"dtype", std::string("f32")}})};
    for (const std::string& name : model_.graph.outputs) {
      SHARDPLAN_ASSIGN_OR_RETURN(const ValueId value, output(name));
      graph_.outputs.push_back(value);
    }
    return finished();
  }

  Result<ir::Graph> with_loss() {
    builder_.set_layer("");
    if (options_.loss.empty() || options_.loss == "none") {
      SHARDPLAN_RETURN_IF_ERROR(use_first_output());
      return finished();
    }
    SHARDPLAN_ASSIGN_OR_RETURN(const LossSpec loss, parse_loss(options_.loss));
    SHARDPLAN_ASSIGN_OR_RETURN(const ValueId prediction, predicted(loss));
    if (graph_.find_input(options_.target).valid() || options_.target.empty()) {
      return invalid_input(
          fmt::format("the model has an input '{}' already; the target of the loss needs a name of "
                      "its own",
                      options_.target),
          "--target");
    }
    const ValueId value = add_loss(builder_, loss, prediction, options_.target);
    SHARDPLAN_RETURN_IF_ERROR(builder_.status());
    graph_.outputs = {value};
    return finished();
  }

 private:
  // What the model is -----------------------------------------------------------------------------

  Status check_opset() {
    const auto standard = model_.opsets.find("");
    opset_ = standard == model_.opsets.end() ? kNewestOpset : standard->second;
    if (opset_ < kOldestOpset || opset_ > kNewestOpset) {
      return Error{
          ErrorCode::kUnsupported,
          fmt::format(
              "uses operator set {}; {} to {} are supported", opset_, kOldestOpset, kNewestOpset),
          path_,
          {"convert it with onnx.version_converter.convert_version"}};
    }
    if (model_.graph.sparse_initializers) {
      return unsupported("holds sparse initializers, which are not supported", path_);
    }
    return {};
  }

  /// One error for all operators that have no row.
  Status check_operators(const std::unordered_map<std::string_view, Row>& rows) const {
    std::set<std::string> unknown;
    for (const Node& node : model_.graph.nodes) {
      if (!node.domain.empty() || !rows.contains(node.op)) {
        unknown.insert(node.domain.empty() ? node.op : node.domain + "." + node.op);
      }
    }
    if (unknown.empty()) {
      return {};
    }
    return unsupported(
        fmt::format(
            "{} {} not supported",
            unknown.size() == 1 ? "operator" : "operators",
            fmt::format("{} {}", fmt::join(unknown, ", "), unknown.size() == 1 ? "is" : "are")),
        path_);
  }

  /// Which tensors some node or output reads, and which of them as more than a setting.
  void find_readers() {
    for (const Node& node : model_.graph.nodes) {
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        used_.insert(node.inputs[i]);
        if (!is_setting(node.op, i)) {
          learned_.insert(node.inputs[i]);
        }
        if (multiplies(node.op) && !is_setting(node.op, i)) {
          multiplied_.insert(node.inputs[i]);
        }
        if (node.op == "BatchNormalization" && i >= 3) {
          statistics_.insert(node.inputs[i]);
        }
      }
    }
    for (const std::string& name : model_.graph.outputs) {
      used_.insert(name);
    }
  }

  // Inputs and initializers -----------------------------------------------------------------------

  /// The name with which the user binds an open dimension: its own, or that of its place.
  static std::string dim_name(const ValueInfo& input, std::size_t index) {
    const std::string& own = input.dims[index].name;
    return own.empty() ? fmt::format("{}.{}", input.name, index) : own;
  }

  Status add_inputs() {
    std::set<std::string> initialized;
    for (const TensorData& tensor : model_.graph.initializers) {
      initialized.insert(tensor.name);
    }
    std::vector<std::string> open;
    std::vector<std::string> known;
    for (const ValueInfo& input : model_.graph.inputs) {
      if (initialized.contains(input.name)) {
        continue;
      }
      if (!input.problem.empty()) {
        return unsupported(fmt::format("input '{}' {}", input.name, input.problem), path_);
      }
      ir::Value value;
      value.kind = ValueKind::kInput;
      value.name = input.name;
      value.type.dtype = input.dtype;
      for (std::size_t d = 0; d < input.dims.size(); ++d) {
        value.type.shape.push_back(size_of(input, d, open, known));
      }
      if (open.empty() && !ir::is_valid(value.type)) {
        return invalid_input(
            fmt::format("input '{}' has the impossible type {}", input.name, to_string(value.type)),
            path_);
      }
      SHARDPLAN_RETURN_IF_ERROR(define(input.name));
      state_.operands[input.name] = {std::nullopt, graph_.add_value(std::move(value))};
    }
    return check_dims(open, known);
  }

  std::int64_t size_of(const ValueInfo& input,
                       std::size_t index,
                       std::vector<std::string>& open,
                       std::vector<std::string>& known) const {
    const std::optional<std::int64_t>& fixed = input.dims[index].size;
    if (fixed.has_value()) {
      return *fixed;
    }
    const std::string name = dim_name(input, index);
    std::vector<std::string>& list = options_.dims.contains(name) ? known : open;
    if (std::find(list.begin(), list.end(), name) == list.end()) {
      list.push_back(name);
    }
    const auto bound = options_.dims.find(name);
    return bound == options_.dims.end() ? 1 : bound->second;
  }

  Status check_dims(const std::vector<std::string>& open,
                    const std::vector<std::string>& known) const {
    if (!open.empty()) {
      std::string flags;
      for (const std::string& name : open) {
        flags += fmt::format(" --dim {}=N", name);
      }
      return Error{ErrorCode::kInvalidInput,
                   fmt::format("leaves the {} {} open",
                               open.size() == 1 ? "dimension" : "dimensions",
                               fmt::join(open, ", ")),
                   path_,
                   {"give each a size:" + flags}};
    }
    for (const auto& [name, size] : options_.dims) {
      if (std::find(known.begin(), known.end(), name) == known.end()) {
        Error error =
            invalid_input(fmt::format("the model has no open dimension '{}'", name), path_);
        const std::string close = suggest(name, known);
        error.notes.push_back(close.empty()
                                  ? (known.empty() ? "all its dimensions are fixed"
                                                   : fmt::format("its open dimensions are {}",
                                                                 fmt::join(known, ", ")))
                                  : fmt::format("did you mean '{}'?", close));
        return error;
      }
    }
    return {};
  }

  Status define(const std::string& name) {
    if (name.empty() || !defined_.insert(name).second) {
      return invalid_input(name.empty() ? "an input or initializer has no name"
                                        : fmt::format("the tensor '{}' is defined twice", name),
                           path_);
    }
    return {};
  }

  /// Where the exporter tells the parameters, an initializer of another name may still be one that
  /// was folded into a product.
  [[nodiscard]] bool is_weight(const TensorData& tensor) const {
    const Graph& graph = model_.graph;
    const bool told = graph.parameters.empty() || graph.parameters.contains(tensor.name) ||
                      (multiplied_.contains(tensor.name) && !graph.buffers.contains(tensor.name));
    return ir::is_floating(tensor.type.dtype) && tensor.type.rank() > 0 && told &&
           learned_.contains(tensor.name) && !masks(tensor);
  }

  /// Weights are parameters, running statistics buffers, others known constants.
  Status add_initializer(const TensorData& tensor) {
    SHARDPLAN_RETURN_IF_ERROR(define(tensor.name));
    if (!used_.contains(tensor.name)) {
      return {};
    }
    if (!tensor.problem.empty()) {
      return unsupported(fmt::format("initializer '{}' {}", tensor.name, tensor.problem), path_);
    }
    const bool weight = is_weight(tensor);
    if (!weight && !statistics_.contains(tensor.name)) {
      Result<Operand> operand = constant_operand(builder_, tensor, path_);
      if (!operand) {
        return std::move(operand).error();
      }
      state_.operands[tensor.name] = std::move(*operand);
      return {};
    }
    if (!ir::is_valid(tensor.type)) {
      return invalid_input(
          fmt::format(
              "initializer '{}' has the impossible type {}", tensor.name, to_string(tensor.type)),
          path_);
    }
    ir::Value value;
    value.kind = weight ? ValueKind::kParameter : ValueKind::kBuffer;
    value.trainable = weight;
    value.name = tensor.name;
    value.type = tensor.type;
    if (options_.weights) {
      SHARDPLAN_ASSIGN_OR_RETURN(value.data, read_bytes(tensor, path_));
    }
    state_.operands[tensor.name] = {std::nullopt, graph_.add_value(std::move(value))};
    return {};
  }

  // Nodes -----------------------------------------------------------------------------------------

  Status add_node(const Node& node, const std::unordered_map<std::string_view, Row>& rows) {
    const Row& row = rows.at(node.op);
    for (const std::string& output : node.outputs) {
      if (!output.empty()) {
        SHARDPLAN_RETURN_IF_ERROR(define(output));
      }
    }
    builder_.set_layer(node.layer);
    Call call(state_, node, opset_, row.ours);
    const bool folded = row.fold != nullptr && row.fold(call);
    if (!folded && builder_.ok()) {
      if (row.map == nullptr) {
        call.unsupported("is supported on constants only");
      } else {
        row.map(call);
      }
    }
    if (builder_.ok()) {
      return check_results(node);
    }
    Error error = std::move(builder_.status()).error();
    const std::string own = fmt::format(
        "{}: node '{}' ({})", path_, node.name.empty() ? first_output(node) : node.name, node.op);
    error.location = own;
    return error;
  }

  static std::string first_output(const Node& node) {
    const auto named = std::find_if(node.outputs.begin(),
                                    node.outputs.end(),
                                    [](const std::string& name) { return !name.empty(); });
    return named == node.outputs.end() ? std::string() : *named;
  }

  /// A result that a mapping has not given must not be read.
  Status check_results(const Node& node) const {
    for (const std::string& output : node.outputs) {
      if (!output.empty() && used_.contains(output) && !state_.operands.contains(output)) {
        return unsupported(
            fmt::format("operator {} is not supported with its result '{}'", node.op, output),
            path_);
      }
    }
    return {};
  }

  // Results ---------------------------------------------------------------------------------------

  Result<ValueId> output(const std::string& name) {
    const auto found = state_.operands.find(name);
    if (found == state_.operands.end()) {
      return invalid_input(fmt::format("the model's output '{}' is not defined", name), path_);
    }
    Operand& operand = found->second;
    if (!operand.value.valid() && operand.constant.has_value()) {
      operand.value = materialize(builder_, *operand.constant);
    }
    SHARDPLAN_RETURN_IF_ERROR(builder_.status());
    return operand.value;
  }

  Result<ValueId> predicted(const LossSpec& loss) {
    const std::vector<std::string>& names = model_.graph.outputs;
    if (names.empty()) {
      return invalid_input("the model has no output", path_);
    }
    const std::string name = loss.output.empty() ? names.front() : loss.output;
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      Error error = invalid_input(fmt::format("the model has no output '{}'", name), path_);
      error.notes.push_back(fmt::format("its outputs are {}", fmt::join(names, ", ")));
      return error;
    }
    return output(name);
  }

  Status use_first_output() {
    SHARDPLAN_ASSIGN_OR_RETURN(const ValueId loss, predicted({}));
    const ir::TensorType type = graph_.type(loss);
    if (type.numel() != 1 || !ir::is_floating(type.dtype)) {
      return Error{ErrorCode::kInvalidInput,
                   fmt::format("the model's first output '{}' is {}, no scalar loss",
                               model_.graph.outputs.front(),
                               to_string(type)),
                   path_,
                   {"give one with --loss, for example --loss cross_entropy --target label"}};
    }
    graph_.outputs = {reshape_to(builder_, loss, {})};
    return builder_.status();
  }

  Result<ir::Graph> finished() {
    graph_.writes = state_.writes;
    SHARDPLAN_RETURN_IF_ERROR(ops::verify(graph_));
    const std::size_t slash = path_.rfind('/');
    graph_.name = slash == std::string::npos ? path_ : path_.substr(slash + 1);
    return std::move(graph_);
  }

  const std::string& path_;
  const Model& model_;
  const LoadOptions& options_;
  ir::Graph graph_;
  Builder builder_;
  State state_;
  std::int64_t opset_ = 0;
  std::set<std::string> used_;
  std::set<std::string> learned_;
  std::set<std::string> multiplied_;
  std::set<std::string> statistics_;
  std::set<std::string> defined_;
};

Result<Model> read_inlined(const std::string& path) {
  SHARDPLAN_ASSIGN_OR_RETURN(Model model, read_model_file(path));
  SHARDPLAN_RETURN_IF_ERROR(inline_functions(model, path));
  return model;
}

}  // namespace

}  // namespace onnx

Result<ir::Graph> read_onnx(const std::string& path, const LoadOptions& options) {
  SHARDPLAN_ASSIGN_OR_RETURN(const onnx::Model model, onnx::read_inlined(path));
  onnx::Importer importer(path, model, options);
  SHARDPLAN_RETURN_IF_ERROR(importer.run());
  return importer.with_loss();
}

Result<ir::Graph> read_onnx_outputs(const std::string& path, const LoadOptions& options) {
  SHARDPLAN_ASSIGN_OR_RETURN(const onnx::Model model, onnx::read_inlined(path));
  onnx::Importer importer(path, model, options);
  SHARDPLAN_RETURN_IF_ERROR(importer.run());
  return importer.with_all_outputs();
}

}  // namespace shardplan::frontends
