#include "shardplan/ops/op.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <utility>
#include <variant>

#include "shardplan/ops/checks.h"
#include "shardplan/support/text.h"

namespace shardplan::ops {
namespace {

Result<const OpDef*> find_or_error(const ir::Op& op) {
  if (const OpDef* const def = find(op.name); def != nullptr) {
    return def;
  }
  Error error{ErrorCode::kUnsupported, "this op is not known", describe(op), {}};
  std::vector<std::string> known;
  for (const OpDef* const def : all()) {
    known.emplace_back(def->name);
  }
  const std::string close = suggest(op.name, known);
  if (!close.empty()) {
    error.notes.push_back("did you mean '" + close + "'?");
  }
  return error;
}

Types types_of(const ir::Graph& graph, const std::vector<ir::ValueId>& values) {
  Types types;
  types.reserve(values.size());
  for (const ir::ValueId value : values) {
    types.push_back(graph.type(value));
  }
  return types;
}

Result<Types> infer(const ir::Op& op, const OpDef& def, Inputs inputs) {
  Result<Types> types = def.infer(inputs, op.attributes);
  Status status = types ? Status{} : Status{types.error()};
  for (std::size_t i = 0; status && i < types->size(); ++i) {
    status = check_result((*types)[i]);
  }
  if (!status) {
    Error error = std::move(status).error();
    error.location = describe(op);
    return error;
  }
  return types;
}

}  // namespace

std::string describe(const ir::Op& op) {
  std::string text = "op '" + op.name + "'";
  if (const ir::Attribute* const target = op.attributes.find("target")) {
    const auto* const called = std::get_if<std::string>(target);
    text += called == nullptr ? "" : " of " + *called;
  }
  return text + (op.layer.empty() ? "" : " of layer '" + op.layer + "'");
}

int storage_operand(const OpDef& def, std::size_t result) {
  if (def.view) {
    return 0;
  }
  return result < def.in_place.size() ? def.in_place[result] : -1;
}

OpTypes op_types(const ir::Graph& graph, ir::OpId op) {
  return OpTypes{types_of(graph, graph.op(op).inputs), types_of(graph, graph.op(op).outputs)};
}

AxisMap axis_map(const ir::Graph& graph, ir::OpId op) {
  const OpTypes types = op_types(graph, op);
  const ir::Op& node = graph.op(op);
  return get(node.name).axes(OpView{types.inputs, types.results, node.attributes});
}

namespace {

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ULL + (hash << 6U) + (hash >> 2U);
  return hash * 0xff51afd7ed558ccdULL;
}

std::uint64_t hash_of(const ir::Graph& graph, const ir::Op& op) {
  std::uint64_t hash = std::hash<std::string>()(op.name);
  for (const auto* values : {&op.inputs, &op.outputs}) {
    hash = mix(hash, values->size());
    for (const ir::ValueId value : *values) {
      const ir::TensorType& type = graph.type(value);
      hash = mix(hash, static_cast<std::uint64_t>(type.dtype));
      for (const std::int64_t size : type.shape) {
        hash = mix(hash, static_cast<std::uint64_t>(size));
      }
    }
  }
  return hash;
}

bool alike(const ir::Graph& graph, const ir::Op& a, const ir::Op& b) {
  const auto same_types = [&](const std::vector<ir::ValueId>& x,
                              const std::vector<ir::ValueId>& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), [&](ir::ValueId p, ir::ValueId q) {
      return graph.type(p) == graph.type(q);
    });
  };
  return a.name == b.name && a.attributes == b.attributes && same_types(a.inputs, b.inputs) &&
         same_types(a.outputs, b.outputs);
}

}  // namespace

AxisMaps::AxisMaps(const ir::Graph& graph) {
  std::unordered_multimap<std::uint64_t, std::size_t> known;  // hash -> op
  kind_.reserve(graph.ops().size());
  for (std::size_t i = 0; i < graph.ops().size(); ++i) {
    const ir::Op& op = graph.ops()[i];
    const std::uint64_t hash = hash_of(graph, op);
    const auto [first, last] = known.equal_range(hash);
    const auto it = std::find_if(first, last, [&](const auto& entry) {
      return alike(graph, op, graph.ops()[entry.second]);
    });
    if (it != last) {
      kind_.push_back(kind_[it->second]);
      continue;
    }
    known.emplace(hash, i);
    kind_.push_back(maps_.size());
    maps_.push_back(axis_map(graph, ir::OpId(i)));
  }
}

Flops flops(const ir::Graph& graph, ir::OpId op) {
  const ir::Op& node = graph.op(op);
  const OpDef& def = get(node.name);
  if (def.flops == nullptr) {
    return 0;
  }
  const OpTypes types = op_types(graph, op);
  return def.flops(OpView{types.inputs, types.results, node.attributes});
}

Result<ir::OpId> append(ir::Graph& graph, ir::Op op) {
  SHARDPLAN_ASSIGN_OR_RETURN(const OpDef* const def, find_or_error(op));
  const Types inputs = types_of(graph, op.inputs);
  SHARDPLAN_ASSIGN_OR_RETURN(const Types results, infer(op, *def, inputs));
  return graph.add_op(std::move(op), results);
}

Status verify(const ir::Graph& graph) {
  SHARDPLAN_RETURN_IF_ERROR(ir::verify(graph));
  for (const ir::Op& op : graph.ops()) {
    SHARDPLAN_ASSIGN_OR_RETURN(const OpDef* const def, find_or_error(op));
    const Types inputs = types_of(graph, op.inputs);
    const Types found = types_of(graph, op.outputs);
    SHARDPLAN_ASSIGN_OR_RETURN(const Types expected, infer(op, *def, inputs));
    if (found != expected) {
      return invalid_input("the results are " + list_types(found) + ", but for the operands " +
                               list_types(inputs) + " they must be " + list_types(expected),
                           describe(op));
    }
  }
  return {};
}

GradientBuilder::GradientBuilder(ir::Graph& graph,
                                 ir::OpId op,
                                 std::vector<ir::ValueId> output_gradients,
                                 std::vector<bool> needed)
    : graph_(graph),
      op_(op),
      output_gradients_(std::move(output_gradients)),
      needed_(std::move(needed)),
      input_gradients_(graph.op(op).inputs.size()) {}

const ir::Attributes& GradientBuilder::attributes() const {
  return graph_.op(op_).attributes;
}

ir::ValueId GradientBuilder::input(std::size_t i) const {
  return graph_.op(op_).inputs[i];
}

ir::ValueId GradientBuilder::output(std::size_t i) const {
  return graph_.op(op_).outputs[i];
}

std::size_t GradientBuilder::input_count() const {
  return graph_.op(op_).inputs.size();
}

const ir::TensorType& GradientBuilder::type(ir::ValueId value) const {
  return graph_.type(value);
}

ir::ValueId GradientBuilder::emit(std::string name,
                                  std::vector<ir::ValueId> inputs,
                                  ir::Attributes attributes) {
  return emit_all(std::move(name), std::move(inputs), std::move(attributes)).front();
}

std::vector<ir::ValueId> GradientBuilder::emit_all(std::string name,
                                                   std::vector<ir::ValueId> inputs,
                                                   ir::Attributes attributes) {
  ir::Op op;
  op.name = std::move(name);
  op.inputs = std::move(inputs);
  op.attributes = std::move(attributes);
  op.layer = graph_.op(op_).layer;
  op.phase = ir::Phase::kBackward;
  op.source = op_;
  const Result<ir::OpId> id = append(graph_, std::move(op));
  SHARDPLAN_CHECK(id.has_value()) << "gradient of '" << graph_.op(op_).name
                                  << "': " << id.error().text();
  return graph_.op(*id).outputs;
}

ir::ValueId GradientBuilder::sum_to(ir::ValueId value, ir::ValueId like) {
  const ir::Shape from = type(value).shape;
  const ir::Shape to = type(like).shape;
  if (from == to) {
    return value;
  }
  const std::size_t skipped = from.size() - to.size();
  ir::IntList dims;
  bool stretched = false;
  for (std::size_t d = 0; d < from.size(); ++d) {
    const bool inner = d >= skipped;
    if (!inner || (to[d - skipped] == 1 && from[d] != 1)) {
      dims.push_back(static_cast<std::int64_t>(d));
      stretched = stretched || inner;
    }
  }
  const ir::ValueId summed = emit("sum", {value}, {{"dims", dims}, {"keepdim", stretched}});
  return type(summed).shape == to ? summed : emit("reshape", {summed}, {{"shape", to}});
}

void GradientBuilder::refuse_output_gradient(std::size_t i, std::string_view what) {
  if (output_gradient(i).valid()) {
    refusal_ = what;
  }
}

}  // namespace shardplan::ops
