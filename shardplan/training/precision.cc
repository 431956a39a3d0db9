#include "shardplan/training/precision.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardplan/ops/op.h"
#include "shardplan/training/graph_copy.h"

namespace shardplan::training {
namespace {

using ir::DType;

bool is_floating(const ir::TensorType& type) {
  return ir::is_floating(type.dtype);
}

void set_value_dtype(ir::Value& value, DType dtype) {
  value.data = converted(value.data, value.type.dtype, dtype);
  value.type.dtype = dtype;
}

/// The floating type that an op's `dtype` attribute names, if it has one.
bool names_floating_dtype(const ir::Op& op) {
  if (!op.attributes.has("dtype")) {
    return false;
  }
  const auto dtype = ir::parse_dtype(op.attributes.string("dtype"));
  return dtype && ir::is_floating(*dtype);
}

void set_dtype(ir::Op& op, DType dtype) {
  op.attributes.set("dtype", std::string(ir::dtype_name(dtype)));
}

/// Ops that keep sums wide by themselves, whatever their operands are.
bool takes_operands_as_they_are(std::string_view name) {
  return name == "sum_exp" || name == "batch_moments" || name == "batch_statistics" ||
         name == "batch_running" || name == "batch_norm";
}

/// The variance is a difference of its sums, which must not be rounded before.
bool makes_sums_of_its_own(std::string_view name) {
  return name == "batch_moments";
}

/// A cast to the type that its operand already has stands for the operand.
bool is_void_cast(const ir::Graph& graph, const ir::Op& op) {
  return op.name == "cast" &&
         op.attributes.string("dtype") == ir::dtype_name(graph.type(op.inputs[0]).dtype);
}

// fp64, fp32: one floating type everywhere
// ---------------------------------------------------------

/// A called operator may name its element type itself: its result is cast.
Status cast_result(GraphCopy& copy, ir::ValueId original, DType dtype) {
  const ir::ValueId made = copy.at(original);
  const ir::TensorType& type = copy.to().type(made);
  if (!is_floating(type) || type.dtype == dtype) {
    return {};
  }
  ir::Op op;
  op.name = "cast";
  op.inputs = {made};
  op.layer = copy.to().op(copy.to().value(made).producer).layer;
  set_dtype(op, dtype);
  SHARDPLAN_ASSIGN_OR_RETURN(const ir::OpId id, ops::append(copy.to(), std::move(op)));
  copy.set(original, copy.to().op(id).outputs.front());
  return {};
}

Result<ir::Graph> in_one_dtype(const ir::Graph& forward, DType dtype) {
  GraphCopy copy(forward);
  for (std::size_t i = 0; i < copy.to().values().size(); ++i) {
    ir::Value& value = copy.to().value(ir::ValueId{i});
    if (is_floating(value.type)) {
      set_value_dtype(value, dtype);
    }
  }
  for (std::size_t i = 0; i < forward.ops().size(); ++i) {
    const ir::OpId id{i};
    ir::Op op = copy.op_like(id);
    if (names_floating_dtype(op)) {
      set_dtype(op, dtype);
    }
    if (is_void_cast(copy.to(), op)) {
      copy.set(forward.op(id).outputs.front(), op.inputs.front());
      continue;
    }
    SHARDPLAN_RETURN_IF_ERROR(copy.append(id, std::move(op)));
    if (makes_sums_of_its_own(forward.op(id).name)) {
      continue;
    }
    for (const ir::ValueId output : forward.op(id).outputs) {
      SHARDPLAN_RETURN_IF_ERROR(cast_result(copy, output, dtype));
    }
  }
  return std::move(copy).finish();
}

// bf16 --------------------------------------------------------------------------------------------

/// Three sorts of floating values. Fixed ones depend on no parameter and no floating input: they
/// stay as in the model. The rest is narrow (bf16), or wide (f32) from a sum to a scalar, a
/// log-sum-exp or a cast to more than the model's own precision on.
class NarrowCopy {
 public:
  NarrowCopy(const ir::Graph& forward, DType model_dtype)
      : forward_(forward),
        model_dtype_(model_dtype),
        copy_(forward),
        fixed_(forward.values().size(), true) {
    for (std::size_t i = 0; i < forward.values().size(); ++i) {
      const ir::Value& original = forward.values()[i];
      const bool narrow =
          original.kind == ir::ValueKind::kParameter || original.kind == ir::ValueKind::kInput;
      if (narrow && is_floating(original.type)) {
        set_value_dtype(copy_.to().value(copy_.at(ir::ValueId{i})), DType::kBFloat16);
        fixed_[i] = false;
      }
    }
  }

  Result<ir::Graph> run() {
    for (std::size_t i = 0; i < forward_.ops().size(); ++i) {
      SHARDPLAN_RETURN_IF_ERROR(copy_op(ir::OpId{i}));
    }
    ir::Graph graph = std::move(copy_).finish();
    ir::ValueId& loss = graph.outputs.front();
    SHARDPLAN_ASSIGN_OR_RETURN(loss, cast_to(graph, loss, DType::kFloat32));
    for (ir::Write& write : graph.writes) {
      const DType target = graph.type(write.target).dtype;
      SHARDPLAN_ASSIGN_OR_RETURN(write.value, cast_to(graph, write.value, target));
    }
    return graph;
  }

 private:
  Status copy_op(ir::OpId id) {
    const ir::Op& original = forward_.op(id);
    const bool fixed = std::all_of(original.inputs.begin(),
                                   original.inputs.end(),
                                   [&](ir::ValueId input) { return fixed_[input.index()]; });
    if (fixed) {
      copy_.keep(id);
      return {};
    }
    for (const ir::ValueId output : original.outputs) {
      fixed_[output.index()] = false;
    }
    if (original.name == "cast" && names_floating_dtype(original)) {
      return copy_cast(id);
    }
    ir::Op op = copy_.op_like(id);
    if (takes_operands_as_they_are(original.name)) {
      return copy_.append(id, std::move(op));
    }
    const bool called = original.name == "call";
    const DType dtype = called || is_wide(id, op) ? DType::kFloat32 : DType::kBFloat16;
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const bool as_is = original.name == "label_score" && i == 0;
      if (is_floating(copy_.to().type(op.inputs[i])) && !as_is) {
        SHARDPLAN_ASSIGN_OR_RETURN(op.inputs[i],
                                   in_dtype(original.inputs[i], dtype, original.layer));
      }
    }
    SHARDPLAN_RETURN_IF_ERROR(copy_.append(id, std::move(op)));
    // Not every operator of PyTorch has a bf16 kernel: called ones run in f32 between casts.
    for (const ir::ValueId output : original.outputs) {
      if (called) {
        SHARDPLAN_RETURN_IF_ERROR(cast_result(copy_, output, DType::kBFloat16));
      }
    }
    return {};
  }

  /// Computed in f32: a sum to a scalar, and whatever reads an f32 value that is not fixed.
  [[nodiscard]] bool is_wide(ir::OpId id, const ir::Op& op) {
    if (op.name == "sum" && forward_.type(forward_.op(id).outputs[0]).numel() == 1 &&
        forward_.type(forward_.op(id).inputs[0]).numel() > 1) {
      return true;
    }
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const ir::TensorType& type = copy_.to().type(op.inputs[i]);
      if (!fixed_[forward_.op(id).inputs[i].index()] && type.dtype == DType::kFloat32) {
        return true;
      }
    }
    return false;
  }

  /// A cast within the model's own precision stands for its operand; one to more makes f32; one
  /// back makes bf16.
  Status copy_cast(ir::OpId id) {
    const ir::Op& original = forward_.op(id);
    const ir::ValueId source = original.inputs.front();
    const DType from = forward_.type(source).dtype;
    const DType to = forward_.type(original.outputs.front()).dtype;
    const bool widens = ir::element_bytes(to) > ir::element_bytes(model_dtype_);
    ir::ValueId result = copy_.at(source);
    if (from != to || !ir::is_floating(from)) {
      SHARDPLAN_ASSIGN_OR_RETURN(
          result, in_dtype(source, widens ? DType::kFloat32 : DType::kBFloat16, original.layer));
    }
    copy_.set(original.outputs.front(), result);
    return {};
  }

  /// The copy of a value in bf16 or f32; a cast is made once and shared. What is made from integers
  /// or from nothing is made in that type at once.
  Result<ir::ValueId> in_dtype(ir::ValueId original, DType dtype, const std::string& layer) {
    const ir::ValueId value = copy_.at(original);
    if (copy_.to().type(value).dtype == dtype) {
      return value;
    }
    std::vector<ir::ValueId>& made = casts_[dtype == DType::kFloat32 ? 1 : 0];
    made.resize(forward_.values().size());
    ir::ValueId& known = made[original.index()];
    if (!known.valid()) {
      SHARDPLAN_ASSIGN_OR_RETURN(known, make_in_dtype(value, dtype, layer));
    }
    return known;
  }

  Result<ir::ValueId> make_in_dtype(ir::ValueId value, DType dtype, const std::string& layer) {
    ir::Graph& graph = copy_.to();
    const ir::Value& found = graph.value(value);
    if (found.kind == ir::ValueKind::kConstant) {
      ir::Value constant = found;
      set_value_dtype(constant, dtype);
      return graph.add_value(std::move(constant));
    }
    if (found.producer.valid()) {
      ir::Op op = graph.op(found.producer);
      const bool from_integers =
          op.name == "cast" && !ir::is_floating(graph.type(op.inputs.front()).dtype);
      if (op.name == "full" || from_integers) {
        set_dtype(op, dtype);
        SHARDPLAN_ASSIGN_OR_RETURN(const ir::OpId id, ops::append(graph, std::move(op)));
        return graph.op(id).outputs.front();
      }
    }
    return append_cast(graph, value, dtype, layer);
  }

  /// The value itself when it has the type already.
  static Result<ir::ValueId> cast_to(ir::Graph& graph, ir::ValueId value, DType dtype) {
    if (graph.type(value).dtype == dtype) {
      return value;
    }
    return append_cast(graph, value, dtype, "");
  }

  static Result<ir::ValueId> append_cast(ir::Graph& graph,
                                         ir::ValueId value,
                                         DType dtype,
                                         const std::string& layer) {
    ir::Op op;
    op.name = "cast";
    op.inputs = {value};
    op.layer = layer;
    set_dtype(op, dtype);
    SHARDPLAN_ASSIGN_OR_RETURN(const ir::OpId id, ops::append(graph, std::move(op)));
    return graph.op(id).outputs.front();
  }

  const ir::Graph& forward_;
  DType model_dtype_;  ///< the widest type of a parameter
  GraphCopy copy_;
  std::vector<bool> fixed_;                        ///< by value of `forward_`
  std::array<std::vector<ir::ValueId>, 2> casts_;  ///< by value of `forward_`: bf16, f32
};

DType widest_parameter(const ir::Graph& graph) {
  DType widest = DType::kBFloat16;
  for (const ir::Value& value : graph.values()) {
    if (value.kind == ir::ValueKind::kParameter && is_floating(value.type) &&
        ir::element_bytes(value.type.dtype) >= ir::element_bytes(widest)) {
      widest = value.type.dtype;
    }
  }
  return widest;
}

}  // namespace

Result<ir::Graph> with_precision(const ir::Graph& forward, Precision precision) {
  switch (precision) {
    case Precision::kAsModel:
      return forward;
    case Precision::kFloat64:
      return in_one_dtype(forward, DType::kFloat64);
    case Precision::kFloat32:
      return in_one_dtype(forward, DType::kFloat32);
    case Precision::kBFloat16:
      break;
  }
  const DType widest = widest_parameter(forward);
  if (widest == DType::kBFloat16) {
    return forward;
  }
  return NarrowCopy(forward, widest).run();
}

}  // namespace shardplan::training
