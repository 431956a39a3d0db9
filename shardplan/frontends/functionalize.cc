// How to read this file: every tensor of the archive is a Tensor, a place in some Storage. Reading
// one (`read`) gives the name of a value with its present content, and makes the views in between
// again where the storage was written since. `write` gives a tensor a new content and carries it up
// to the root of its storage.

#include "shardplan/frontends/functionalize.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "shardplan/frontends/alias.h"
#include "shardplan/frontends/node_arguments.h"
#include "shardplan/frontends/undo_view.h"

namespace shardplan::frontends {

namespace {

using Kind = Argument::Kind;

/// Writes into chains of views grow as their product; no model comes near this.
constexpr std::size_t kMaxNodes = std::size_t{1} << 22;

struct Storage {
  std::size_t root = 0;                  ///< the tensor that covers it all
  int version = 0;                       ///< number of writes
  const ExportedInput* input = nullptr;  ///< whose memory it is
  bool frozen = false;                   ///< shared with tensors that are not followed
};

struct Tensor {
  static constexpr std::size_t kNoView = std::numeric_limits<std::size_t>::max();

  std::string name;     ///< in the archive: its type is that of this name
  std::string current;  ///< value with its content at `version`
  int version = 0;
  std::size_t storage = 0;
  std::size_t view = kNoView;  ///< that made it; none for a root
};

/// One node that makes views: its results are siblings.
struct View {
  ExportedNode node;
  Alias alias = Alias::kNone;
  std::size_t parent = 0;
  std::vector<std::size_t> results;
};

/// Operators that compute in the wider type of their operands.
bool promotes(const std::string& target) {
  static const std::set<std::string_view> names{"add",
                                                "sub",
                                                "mul",
                                                "div",
                                                "pow",
                                                "addcmul",
                                                "addcdiv",
                                                "remainder",
                                                "fmod",
                                                "atan2",
                                                "lerp"};
  return names.contains(operator_name(target));
}

bool gives_truth(const std::string& target) {
  static const std::set<std::string_view> names{"eq",
                                                "ne",
                                                "lt",
                                                "le",
                                                "gt",
                                                "ge",
                                                "logical_and",
                                                "logical_or",
                                                "logical_xor",
                                                "logical_not"};
  return names.contains(operator_name(target));
}

class Functionalizer {
 public:
  Functionalizer(ExportedProgram program, const std::string& where)
      : program_(std::move(program)), where_(where) {}

  Result<ExportedProgram> run() {
    for (const ExportedInput& input : program_.inputs) {
      add_root(input.graph_name, &input);
      const auto found = program_.tensors.find(input.graph_name);
      if (input.kind == ExportedInput::Kind::kParameter && found != program_.tensors.end() &&
          found->second.requires_grad) {
        needs_gradient_.insert(input.graph_name);
      }
    }
    const std::vector<ExportedNode> nodes = std::move(program_.nodes);
    program_.nodes.clear();
    for (const ExportedNode& node : nodes) {
      SHARDPLAN_RETURN_IF_ERROR(add(node));
      if (program_.nodes.size() > kMaxNodes) {
        return refused(node, "is one of too many writes into views of views");
      }
    }
    SHARDPLAN_RETURN_IF_ERROR(finish());
    return std::move(program_);
  }

 private:
  // Nodes ----------------------------------------------------------------------------------------

  Status add(const ExportedNode& node) {
    if (writes_out(node)) {
      return add_out(node);
    }
    if (const std::optional<std::string> functional = functional_target(node.target)) {
      return add_in_place(node, *functional);
    }
    if (updates_statistics(node)) {
      return add_batch_norm(node);
    }
    const Alias alias = alias_of(node, program_);
    if (alias == Alias::kOpaque && node.inputs.front().second.list) {
      return add_views_of_many(node);
    }
    const std::string operand = first_operand(node);
    SHARDPLAN_ASSIGN_OR_RETURN(const ExportedNode pure, with_present_operands(node));
    const auto parent = tensors_by_name_.find(operand);
    if (alias == Alias::kNone || parent == tensors_by_name_.end()) {
      emit(pure);
      for (const std::string& output : node.outputs) {
        add_root(output, nullptr);
      }
      return {};
    }
    const std::size_t view = views_.size();
    views_.push_back({node, alias, parent->second, {}});
    const Tensor base = tensors_[parent->second];
    emit(pure);
    for (const std::string& output : node.outputs) {
      views_[view].results.push_back(tensors_.size());
      tensors_by_name_[output] = tensors_.size();
      tensors_.push_back({output, output, storages_[base.storage].version, base.storage, view});
    }
    return {};
  }

  /// Views of several tensors at once, such as meshgrid's, are not followed: none of them may be
  /// written from here on.
  Status add_views_of_many(const ExportedNode& node) {
    SHARDPLAN_ASSIGN_OR_RETURN(const ExportedNode pure, with_present_operands(node));
    emit(pure);
    std::vector<std::string> shared = node.outputs;
    for (const std::string& output : node.outputs) {
      add_root(output, nullptr);
    }
    for (const auto& [name, argument] : node.inputs) {
      shared.insert(shared.end(), argument.tensors.begin(), argument.tensors.end());
    }
    for (const std::string& name : shared) {
      const auto found = tensors_by_name_.find(name);
      if (found != tensors_by_name_.end()) {
        storages_[tensors_[found->second].storage].frozen = true;
      }
    }
    return {};
  }

  void add_root(const std::string& name, const ExportedInput* input) {
    tensors_by_name_[name] = tensors_.size();
    storages_.push_back({.root = tensors_.size(), .input = input});
    tensors_.push_back({name, name, 0, storages_.size() - 1, Tensor::kNoView});
  }

  /// The node with the values that its operands have now.
  Result<ExportedNode> with_present_operands(const ExportedNode& node) {
    ExportedNode pure = node;
    for (auto& [name, argument] : pure.inputs) {
      for (std::string& tensor : argument.tensors) {
        const auto found = tensors_by_name_.find(tensor);
        if (found != tensors_by_name_.end()) {
          SHARDPLAN_ASSIGN_OR_RETURN(tensor, read(found->second, node));
        }
      }
    }
    return pure;
  }

  /// Appends a node whose operands are values. What leaves a region without gradients is detached
  /// where it is read outside.
  void emit(ExportedNode node) {
    bool differentiable = false;
    bool cut = false;
    for (auto& [name, argument] : node.inputs) {
      for (std::string& tensor : argument.tensors) {
        differentiable = differentiable || needs_gradient_.contains(tensor);
        if (without_gradient_.contains(tensor)) {
          cut = true;
          tensor = node.no_grad ? tensor : detached(tensor);
        }
      }
    }
    for (const std::string& output : node.outputs) {
      const auto found = program_.tensors.find(output);
      if (found == program_.tensors.end() || !ir::is_floating(found->second.type.dtype)) {
        continue;
      }
      if (node.no_grad && (differentiable || cut)) {
        without_gradient_.insert(output);
      } else if (differentiable && node.target != "aten.detach.default") {
        needs_gradient_.insert(output);
      }
    }
    program_.nodes.push_back(std::move(node));
  }

  std::string detached(const std::string& value) {
    const auto found = detached_.find(value);
    if (found != detached_.end()) {
      return found->second;
    }
    ExportedNode node;
    node.target = "aten.detach.default";
    node.inputs.emplace_back("self", tensor_argument(value));
    node.outputs = {fresh(value, type_of(value))};
    detached_[value] = node.outputs.front();
    program_.nodes.push_back(std::move(node));
    return detached_[value];
  }

  // Reading --------------------------------------------------------------------------------------

  /// The value of a tensor with its present content; `reader` is named in errors.
  Result<std::string> read(std::size_t tensor, const ExportedNode& reader) {
    std::vector<std::size_t> stale;
    for (std::size_t at = tensor; is_stale(at); at = views_[tensors_[at].view].parent) {
      stale.push_back(at);
    }
    for (; !stale.empty(); stale.pop_back()) {
      if (is_stale(stale.back())) {
        SHARDPLAN_RETURN_IF_ERROR(make_again(tensors_[stale.back()].view, reader));
      }
    }
    return tensors_[tensor].current;
  }

  /// Never true of a root: writes go up to it.
  [[nodiscard]] bool is_stale(std::size_t tensor) const {
    const Tensor& t = tensors_[tensor];
    return t.view != Tensor::kNoView && t.version != storages_[t.storage].version;
  }

  /// Precondition: the view's parent is not stale.
  Status make_again(std::size_t index, const ExportedNode& reader) {
    const View& view = views_[index];
    if (view.alias == Alias::kOpaque) {
      return refused(reader, "reads a " + view.node.target + " of a tensor that was changed since");
    }
    ExportedNode node = view.node;
    node.layer = reader.layer;
    replace_first_operand(node, tensors_[view.parent].current);
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      Tensor& result = tensors_[view.results[i]];
      node.outputs[i] = fresh(result.name, type_of(result.name));
      const int version = storages_[result.storage].version;
      if (result.version != version) {
        result.version = version;
        result.current = node.outputs[i];
      }
    }
    emit(std::move(node));
    return {};
  }

  // Writing --------------------------------------------------------------------------------------

  Status add_in_place(const ExportedNode& node, const std::string& functional) {
    const auto found = tensors_by_name_.find(first_operand(node));
    if (found == tensors_by_name_.end()) {
      return refused(node, "has no operand to change");
    }
    if (node.inputs.front().second.list) {
      return refused(node, "changes a list of tensors in place");
    }
    if (changes_shape_in_place(node.target) || node.outputs.size() > 1) {
      return refused(node, "changes the form of a tensor in place");
    }
    const std::size_t tensor = found->second;
    SHARDPLAN_ASSIGN_OR_RETURN(ExportedNode pure, with_present_operands(node));
    SHARDPLAN_RETURN_IF_ERROR(check_gradients(tensor, pure));
    const ir::TensorType type = program_.tensors[tensors_[tensor].name].type;
    pure.outputs = {fresh(tensors_[tensor].name, type)};
    const std::string value = pure.outputs.front();
    pure.target = functional;
    if (functional.find("dropout.") != std::string::npos && !pure.inputs.empty()) {
      pure.inputs.front().first = "input";
    }
    emit_functional(std::move(pure), type);
    for (const std::string& output : node.outputs) {
      tensors_by_name_[output] = tensor;
    }
    return write(tensor, value, node);
  }

  /// An operator with a tensor for its result, which has its shape and type already.
  Status add_out(const ExportedNode& node) {
    const auto found = tensors_by_name_.find(argument_of(node, "out")->tensors.front());
    if (found == tensors_by_name_.end() || node.outputs.size() > 1) {
      return refused(node, "has no operand to write into");
    }
    const std::size_t tensor = found->second;
    SHARDPLAN_ASSIGN_OR_RETURN(ExportedNode pure, with_present_operands(node));
    std::erase_if(pure.inputs, [](const auto& input) { return input.first == "out"; });
    SHARDPLAN_RETURN_IF_ERROR(check_gradients(tensor, pure));
    pure.target = target_without_out(node.target);
    pure.outputs = {fresh(tensors_[tensor].name, type_of(tensors_[tensor].name))};
    const std::string value = pure.outputs.front();
    emit(std::move(pure));
    for (const std::string& output : node.outputs) {
      tensors_by_name_[output] = tensor;
    }
    return write(tensor, value, node);
  }

  /// Some counterparts have another name, or give another type than that of the tensor.
  void emit_functional(ExportedNode node, const ir::TensorType& type) {
    if (node.target == "aten.zero.default") {
      node.target = "aten.zeros_like.default";
    } else if (promotes(node.target)) {
      emit_promoted(std::move(node), type);
      return;
    } else if (gives_truth(node.target) && type.dtype != ir::DType::kBool) {
      emit_and_cast(std::move(node), ir::DType::kBool, type);
      return;
    }
    emit(std::move(node));
  }

  /// A tensor of a wider floating type decides the type in which the result is computed.
  void emit_promoted(ExportedNode node, const ir::TensorType& type) {
    ir::DType wide = type.dtype;
    for (const auto& [name, argument] : node.inputs) {
      for (const std::string& tensor : argument.tensors) {
        const ir::TensorType operand = type_of(tensor);
        if (ir::is_floating(operand.dtype) && ir::is_floating(type.dtype) &&
            operand.dtype != wide && (operand.rank() > 0 || type.rank() == 0)) {
          wide = ir::element_bytes(operand.dtype) > ir::element_bytes(wide)    ? operand.dtype
                 : ir::element_bytes(operand.dtype) == ir::element_bytes(wide) ? ir::DType::kFloat32
                                                                               : wide;
        }
      }
    }
    if (wide == type.dtype) {
      emit(std::move(node));
    } else {
      emit_and_cast(std::move(node), wide, type);
    }
  }

  /// The node gives `dtype`; its result is cast to the type of the tensor that it changes.
  void emit_and_cast(ExportedNode node, ir::DType dtype, const ir::TensorType& type) {
    ExportedNode cast = node;
    cast.target = "aten.to.dtype";
    node.outputs = {fresh(node.outputs.front(), {dtype, type.shape})};
    cast.inputs = {{"self", tensor_argument(node.outputs.front())},
                   {"dtype", dtype_argument(type.dtype)}};
    emit(std::move(node));
    emit(std::move(cast));
  }

  /// Writes that would cut gradients which PyTorch keeps: its in-place operators outside of the
  /// graph of gradients leave that graph as it was.
  Status check_gradients(std::size_t tensor, const ExportedNode& node) {
    const std::size_t root = storages_[tensors_[tensor].storage].root;
    bool cut = node.no_grad;
    for (std::size_t at = tensor; tensors_[at].view != Tensor::kNoView;) {
      const View& view = views_[tensors_[at].view];
      cut = cut || view.node.no_grad || view.alias == Alias::kDetached;
      at = view.parent;
    }
    if (cut && needs_gradient_.contains(tensors_[root].current)) {
      return refused(node, "changes a tensor in place where gradients do not follow");
    }
    return {};
  }

  /// Gives the tensor a new content, and all that share its memory with it.
  Status write(std::size_t tensor, const std::string& value, const ExportedNode& writer) {
    if (storages_[tensors_[tensor].storage].frozen) {
      return refused(writer, "changes a tensor of which there are views that are not followed");
    }
    struct Step {
      std::size_t tensor;
      std::string value;
    };
    std::vector<Step> steps{{tensor, value}};
    for (std::size_t at = tensor; tensors_[at].view != Tensor::kNoView;) {
      const View view = views_[tensors_[at].view];
      SHARDPLAN_ASSIGN_OR_RETURN(std::string above,
                                 written_back(view, at, steps.back().value, writer));
      at = view.parent;
      steps.push_back({at, std::move(above)});
    }
    Storage& storage = storages_[tensors_[tensor].storage];
    ++storage.version;
    for (const Step& step : steps) {
      tensors_[step.tensor].current = step.value;
      tensors_[step.tensor].version = storage.version;
    }
    return {};
  }

  /// The new content of the view's parent after `tensor`, one of its results, got `value`.
  Result<std::string> written_back(const View& view,
                                   std::size_t tensor,
                                   const std::string& value,
                                   const ExportedNode& writer) {
    if (view.alias == Alias::kDetached && needs_gradient_.contains(value)) {
      return refused(writer, "changes a tensor in place where gradients do not follow");
    }
    if (view.alias == Alias::kSame || view.alias == Alias::kDetached) {
      return value;
    }
    std::string whole;
    if (shows_a_part(view.alias)) {
      SHARDPLAN_ASSIGN_OR_RETURN(whole, read(view.parent, writer));
    }
    const auto position = static_cast<std::size_t>(
        std::find(view.results.begin(), view.results.end(), tensor) - view.results.begin());
    std::optional<ExportedNode> node =
        undo_view(view.node, view.alias, position, whole, value, program_);
    if (!node.has_value()) {
      return refused(writer, "changes a tensor in place through " + view.node.target);
    }
    node->layer = writer.layer;
    node->no_grad = writer.no_grad;
    const std::string parent = tensors_[view.parent].name;
    node->outputs = {fresh(parent, type_of(parent))};
    std::string name = node->outputs.front();
    emit(*std::move(node));
    return name;
  }

  // Batch normalisation --------------------------------------------------------------------------

  static bool updates_statistics(const ExportedNode& node) {
    return node.target == "aten.batch_norm.default" && flag_of(node, "training") &&
           argument_of(node, "running_mean") != nullptr && node.outputs.size() == 1;
  }

  /// In training it writes the running statistics: they become results.
  Status add_batch_norm(const ExportedNode& node) {
    SHARDPLAN_ASSIGN_OR_RETURN(ExportedNode pure, with_present_operands(node));
    pure.target = "aten._native_batch_norm_legit_functional.default";
    std::erase_if(pure.inputs, [](const auto& input) { return input.first == "cudnn_enabled"; });
    std::vector<std::pair<std::size_t, std::string>> updates;
    for (const char* const name : {"running_mean", "running_var"}) {
      const Argument* const buffer = argument_of(node, name);
      const auto found = buffer == nullptr || buffer->tensors.empty()
                             ? tensors_by_name_.end()
                             : tensors_by_name_.find(buffer->tensors.front());
      if (found == tensors_by_name_.end()) {
        return refused(node, "has no running statistics to update");
      }
      const std::string& tensor = tensors_[found->second].name;
      pure.outputs.push_back(fresh(tensor, type_of(tensor)));
      updates.emplace_back(found->second, fresh(tensor, type_of(tensor)));
    }
    for (const auto& [tensor, value] : updates) {
      pure.outputs.push_back(value);
    }
    emit(pure);
    add_root(node.outputs.front(), nullptr);
    for (const auto& [tensor, value] : updates) {
      needs_gradient_.erase(value);
      SHARDPLAN_RETURN_IF_ERROR(write(tensor, value, node));
    }
    return {};
  }

  // Results --------------------------------------------------------------------------------------

  Status finish() {
    const ExportedNode end{
        .target = "the model's output", .inputs = {}, .outputs = {}, .layer = {}};
    for (std::string& output : program_.outputs) {
      SHARDPLAN_RETURN_IF_ERROR(replace(output, end));
      if (without_gradient_.contains(output)) {
        output = detached(output);
      }
    }
    for (ExportedMutation& mutation : program_.mutations) {
      SHARDPLAN_RETURN_IF_ERROR(replace(mutation.value, end));
    }
    for (const Storage& storage : storages_) {
      if (storage.input == nullptr || storage.version == 0) {
        continue;
      }
      const ExportedInput& input = *storage.input;
      if (input.kind != ExportedInput::Kind::kBuffer) {
        const bool given = input.kind == ExportedInput::Kind::kUser;
        Error error = unsupported(fmt::format("the model changes its {} '{}' in place",
                                              given ? "input" : "parameter or constant",
                                              input.name),
                                  where_);
        error.notes.emplace_back("let it change a clone() of it");
        return error;
      }
      program_.mutations.push_back({input.name, tensors_[storage.root].current});
    }
    return {};
  }

  Status replace(std::string& value, const ExportedNode& reader) {
    const auto found = tensors_by_name_.find(value);
    if (found != tensors_by_name_.end()) {
      SHARDPLAN_ASSIGN_OR_RETURN(value, read(found->second, reader));
    }
    return {};
  }

  [[nodiscard]] ir::TensorType type_of(const std::string& name) const {
    const auto found = program_.tensors.find(name);
    return found == program_.tensors.end() ? ir::TensorType{} : found->second.type;
  }

  /// A new name for a value, of this type.
  std::string fresh(const std::string& name, const ir::TensorType& type) {
    std::string made = fmt::format("{}.{}", name.substr(0, name.find('.')), ++made_);
    ExportedTensor tensor;
    const auto found = program_.tensors.find(name);
    if (found != program_.tensors.end()) {
      tensor.problem = found->second.problem;
    }
    tensor.type = type;
    program_.tensors[made] = std::move(tensor);
    return made;
  }

  [[nodiscard]] Error refused(const ExportedNode& node, const std::string& why) const {
    Error error = unsupported(
        fmt::format("operator {} {}", node.target, why),
        fmt::format(
            "{}: {}", where_, node.layer.empty() ? "the top module" : "layer " + node.layer));
    error.notes.emplace_back(
        "export the model with torch.export.export(...).run_decompositions({}), as "
        "shardplan.export does");
    return error;
  }

  ExportedProgram program_;
  const std::string& where_;
  std::vector<Storage> storages_;
  std::vector<Tensor> tensors_;
  std::vector<View> views_;
  std::unordered_map<std::string, std::size_t> tensors_by_name_;
  std::set<std::string> needs_gradient_;
  std::set<std::string> without_gradient_;  ///< made in a region from what needs gradients
  std::unordered_map<std::string, std::string> detached_;
  std::int64_t made_ = 0;
};

bool is_functional(const ExportedProgram& program) {
  return std::none_of(program.nodes.begin(), program.nodes.end(), [](const ExportedNode& node) {
    return node.no_grad || functional_target(node.target).has_value() || writes_out(node);
  });
}

}  // namespace

Result<ExportedProgram> functionalize(ExportedProgram program, const std::string& where) {
  if (is_functional(program)) {
    return program;
  }
  return Functionalizer(std::move(program), where).run();
}

}  // namespace shardplan::frontends
