#include "shardplan/plan/labels.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>

#include "shardplan/plan/plan.h"
#include "shardplan/support/text.h"

namespace shardplan::plan {

std::string_view block_of(std::string_view layer) {
  std::size_t start = 0;
  while (start < layer.size()) {
    const std::size_t end = std::min(layer.find('.', start), layer.size());
    const std::string_view part = layer.substr(start, end - start);
    const bool is_number = !part.empty() && std::all_of(part.begin(), part.end(), [](char c) {
      return std::isdigit(static_cast<unsigned char>(c)) != 0;
    });
    if (is_number) {
      return layer.substr(0, end);
    }
    start = end + 1;
  }
  return {};
}

std::string op_label(const ir::Graph& step, ir::OpId op) {
  return step.op(op).name + "." + std::to_string(op.value);
}

std::string layer_label(const ir::Op& op) {
  return op.layer.empty() ? "(model)" : op.layer;
}

std::string op_place(const ir::Graph& step, ir::OpId op) {
  return layer_label(step.op(op)) + " / " + op_label(step, op);
}

Result<ir::OpId> find_op(const ir::Graph& step, std::string_view label) {
  const std::size_t dot = std::min(label.rfind('.'), label.size());
  const std::string_view digits = label.substr(std::min(dot + 1, label.size()));
  std::size_t id = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), id);
  if (code != std::errc{} || end != digits.data() + digits.size()) {
    return invalid_input("\"" + std::string(label) +
                         "\" does not name an op: expected its name and number, as in "
                         "\"einsum.42\"");
  }
  if (id >= step.ops().size()) {
    return invalid_input("there is no op " + std::to_string(id) + ": the training step has " +
                         std::to_string(step.ops().size()) + " ops, counted from 0");
  }
  const ir::OpId op(id);
  if (op_label(step, op) != label) {
    return invalid_input("op " + std::to_string(id) + " is \"" + op_label(step, op) + "\", not \"" +
                         std::string(label) + "\"");
  }
  return op;
}

bool has_layout(const ir::Value& value) {
  return value.kind != ir::ValueKind::kOpResult && value.kind != ir::ValueKind::kConstant;
}

ValueLabels::ValueLabels(const ir::Graph& step) {
  for (std::size_t i = 0; i < step.values().size(); ++i) {
    const ir::ValueId id(i);
    const ir::Value& value = step.value(id);
    if (!has_layout(value)) {
      continue;
    }
    std::string label = value.name;
    if (label.empty() || ids_.contains(label)) {
      label = "value." + std::to_string(i);
    }
    while (!ids_.try_emplace(label, id).second) {
      label += "'";
    }
    labels_[id] = label;
  }
}

std::string ValueLabels::label(ir::ValueId value) const {
  const auto at = labels_.find(value);
  return at == labels_.end() ? "value." + std::to_string(value.value) : at->second;
}

ir::ValueId ValueLabels::find(const std::string& label) const {
  const auto at = ids_.find(label);
  return at == ids_.end() ? ir::ValueId{} : at->second;
}

std::vector<std::string> ValueLabels::all() const {
  std::vector<std::string> out;
  out.reserve(ids_.size());
  for (const auto& [label, id] : ids_) {
    out.push_back(label);
  }
  return out;
}

std::vector<std::string> blocks_of(const ir::Graph& step) {
  std::set<std::string_view> seen{""};
  std::vector<std::string> blocks;
  for (const ir::Op& op : step.ops()) {
    const std::string_view block = block_of(op.layer);
    if (op.phase == ir::Phase::kForward && seen.insert(block).second) {
      blocks.emplace_back(block);
    }
  }
  return blocks;
}

Error with_suggestion(Error error, std::string_view name, const std::vector<std::string>& known) {
  constexpr std::size_t kMaxListed = 12;
  const std::string close = suggest(name, known);
  if (!close.empty()) {
    error.notes.push_back("did you mean \"" + close + "\"?");
  } else if (!known.empty() && known.size() <= kMaxListed) {
    std::string list;
    for (const std::string& each : known) {
      list += (list.empty() ? "" : ", ") + each;
    }
    error.notes.push_back("there are " + list);
  }
  return error;
}

}  // namespace shardplan::plan
