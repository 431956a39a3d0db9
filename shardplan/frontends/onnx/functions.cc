// Functions of a model are macros: a call is replaced by the function's nodes.

#include <fmt/format.h>

#include <unordered_map>
#include <utility>

#include "shardplan/frontends/onnx/model.h"

namespace shardplan::frontends::onnx {

namespace {

constexpr int kMaxDepth = 64;
constexpr std::size_t kMaxNodes = 1'000'000;

class Inliner {
 public:
  Inliner(const std::vector<Function>& functions, const std::string& path) : path_(path) {
    for (const Function& function : functions) {
      by_name_[key(function.domain, function.name)] = &function;
    }
  }

  Status append(const Node& node, int depth) {
    const auto found = by_name_.find(key(node.domain, node.op));
    if (found == by_name_.end()) {
      nodes_.push_back(node);
    } else {
      SHARDPLAN_RETURN_IF_ERROR(expand(node, *found->second, depth));
    }
    if (nodes_.size() > kMaxNodes) {
      return invalid_input("its functions grow the model beyond a million nodes", path_);
    }
    return {};
  }

  [[nodiscard]] std::vector<Node> take() { return std::move(nodes_); }

 private:
  static std::string key(const std::string& domain, const std::string& name) {
    return domain + "::" + name;
  }

  /// The function's nodes with its names replaced by those of the call, or by new ones.
  Status expand(const Node& call, const Function& function, int depth) {
    if (depth >= kMaxDepth) {
      return invalid_input(
          fmt::format("function {} calls itself, or calls are nested deeper than {}",
                      function.name,
                      kMaxDepth),
          path_);
    }
    if (call.inputs.size() > function.inputs.size() ||
        call.outputs.size() > function.outputs.size()) {
      return invalid_input(fmt::format("a call of function {} has {} operands and {} results, the "
                                       "function {} and {}",
                                       function.name,
                                       call.inputs.size(),
                                       call.outputs.size(),
                                       function.inputs.size(),
                                       function.outputs.size()),
                           path_);
    }
    std::unordered_map<std::string, std::string> names;
    names[""] = "";
    for (std::size_t i = 0; i < function.inputs.size(); ++i) {
      names[function.inputs[i]] = i < call.inputs.size() ? call.inputs[i] : "";
    }
    for (std::size_t i = 0; i < call.outputs.size(); ++i) {
      if (!call.outputs[i].empty()) {
        names[function.outputs[i]] = call.outputs[i];
      }
    }
    const std::string prefix = fmt::format("{}#{}/", function.name, ++expansions_);
    const auto renamed = [&](std::string& name) {
      name = names.emplace(name, prefix + name).first->second;
    };
    for (Node node : function.nodes) {
      for (std::string& input : node.inputs) {
        renamed(input);
      }
      for (std::string& output : node.outputs) {
        renamed(output);
      }
      bind_attributes(node, call);
      if (node.layer.empty()) {
        node.layer = call.layer;
      }
      SHARDPLAN_RETURN_IF_ERROR(append(node, depth + 1));
    }
    return {};
  }

  static void bind_attributes(Node& node, const Node& call) {
    for (auto at = node.attributes.begin(); at != node.attributes.end();) {
      if (at->second.reference.empty()) {
        ++at;
        continue;
      }
      const auto given = call.attributes.find(at->second.reference);
      if (given == call.attributes.end()) {
        at = node.attributes.erase(at);
      } else {
        at->second = given->second;
        ++at;
      }
    }
  }

  const std::string& path_;
  std::unordered_map<std::string, const Function*> by_name_;
  std::vector<Node> nodes_;
  std::int64_t expansions_ = 0;
};

}  // namespace

Status inline_functions(Model& model, const std::string& path) {
  if (model.functions.empty()) {
    return {};
  }
  Inliner inliner(model.functions, path);
  for (const Node& node : model.graph.nodes) {
    SHARDPLAN_RETURN_IF_ERROR(inliner.append(node, 0));
  }
  model.graph.nodes = inliner.take();
  return {};
}

}  // namespace shardplan::frontends::onnx
