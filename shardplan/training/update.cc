#include "shardplan/training/update.h"

#include <algorithm>
#include <string>
#include <utility>

#include "shardplan/ops/op.h"

namespace shardplan::training {
namespace {

bool is_narrow(ir::DType dtype) {
  return ir::element_bytes(dtype) < 4;
}

/// Moments are kept in at least f32.
ir::DType moment_dtype(ir::DType dtype) {
  return is_narrow(dtype) ? ir::DType::kFloat32 : dtype;
}

class UpdateBuilder {
 public:
  UpdateBuilder(ir::Graph& graph, const Recipe& recipe) : graph_(graph), recipe_(recipe) {}

  Status run(const std::vector<ParameterGradient>& gradients) {
    find_first_readers();
    scalar_ = {ir::DType::kFloat32, {}};
    for (const ParameterGradient& pair : gradients) {
      if (graph_.type(pair.gradient).dtype == ir::DType::kFloat64) {
        scalar_.dtype = ir::DType::kFloat64;
      }
    }
    if (recipe_.clip_norm > 0) {
      SHARDPLAN_RETURN_IF_ERROR(append_clipping(gradients));
    }
    step_ = add_state("optimizer.step", scalar_);
    for (const ParameterGradient& pair : gradients) {
      SHARDPLAN_RETURN_IF_ERROR(append_parameter(pair));
    }
    SHARDPLAN_ASSIGN_OR_RETURN(const ir::OpId next,
                               append("add_scalar", {step_}, {{"value", 1.0}}, ""));
    graph_.writes.push_back({step_, graph_.op(next).outputs.front()});
    return {};
  }

 private:
  void find_first_readers() {
    first_readers_.assign(graph_.values().size(), ir::OpId{});
    for (std::size_t i = graph_.ops().size(); i-- > 0;) {
      for (const ir::ValueId input : graph_.ops()[i].inputs) {
        first_readers_[input.index()] = ir::OpId{i};
      }
    }
  }

  /// Of the first op that reads the parameter.
  [[nodiscard]] std::string layer_of(ir::ValueId parameter) const {
    return graph_.op(first_readers_[parameter.index()]).layer;
  }

  Result<ir::OpId> append(std::string name,
                          std::vector<ir::ValueId> inputs,
                          ir::Attributes attributes,
                          const std::string& layer) {
    ir::Op op;
    op.name = std::move(name);
    op.inputs = std::move(inputs);
    op.attributes = std::move(attributes);
    op.layer = layer;
    op.phase = ir::Phase::kUpdate;
    return ops::append(graph_, std::move(op));
  }

  ir::ValueId add_state(std::string name, ir::TensorType type) {
    ir::Value value;
    value.kind = ir::ValueKind::kState;
    value.name = std::move(name);
    value.type = std::move(type);
    return graph_.add_value(std::move(value));
  }

  /// min(1, clip_norm / norm of all gradients together).
  Status append_clipping(const std::vector<ParameterGradient>& gradients) {
    ir::ValueId total{};
    for (const ParameterGradient& pair : gradients) {
      const std::string layer = layer_of(pair.parameter);
      SHARDPLAN_ASSIGN_OR_RETURN(const ir::OpId squares,
                                 append("sum_squares", {pair.gradient}, {}, layer));
      ir::ValueId part = graph_.op(squares).outputs.front();
      if (graph_.type(part) != scalar_) {
        const std::string dtype(ir::dtype_name(scalar_.dtype));
        SHARDPLAN_ASSIGN_OR_RETURN(const ir::OpId cast,
                                   append("cast", {part}, {{"dtype", dtype}}, layer));
        part = graph_.op(cast).outputs.front();
      }
      if (total.valid()) {
        SHARDPLAN_ASSIGN_OR_RETURN(const ir::OpId sum, append("add", {total, part}, {}, layer));
        part = graph_.op(sum).outputs.front();
      }
      total = part;
    }
    SHARDPLAN_ASSIGN_OR_RETURN(
        const ir::OpId clip, append("clip_scale", {total}, {{"max_norm", recipe_.clip_norm}}, ""));
    clip_ = graph_.op(clip).outputs.front();
    return {};
  }

  Status append_parameter(const ParameterGradient& pair) {
    const std::string name = graph_.value(pair.parameter).name;
    const ir::TensorType type = graph_.type(pair.parameter);
    const std::string layer = layer_of(pair.parameter);
    ir::ValueId target = pair.parameter;
    const ir::DType dtype = updated_dtype(type, recipe_.precision);
    if (dtype != type.dtype) {
      target = add_state(name + ".master", {dtype, type.shape});
      graph_.value(target).init_from = pair.parameter;
    }
    std::vector<ir::ValueId> states;
    for (const char* const suffix : state_suffixes()) {
      states.push_back(add_state(name + suffix, {moment_dtype(dtype), type.shape}));
    }
    std::vector<ir::ValueId> operands{target, pair.gradient};
    operands.insert(operands.end(), states.begin(), states.end());
    operands.push_back(step_);
    if (clip_.valid()) {
      operands.push_back(clip_);
    }
    SHARDPLAN_ASSIGN_OR_RETURN(
        const ir::OpId update,
        append(update_name(), std::move(operands), update_attributes(), layer));
    const std::vector<ir::ValueId> results = graph_.op(update).outputs;
    graph_.writes.push_back({target, results[0]});
    for (std::size_t i = 0; i < states.size(); ++i) {
      graph_.writes.push_back({states[i], results[i + 1]});
    }
    if (target != pair.parameter) {
      const std::string narrow(ir::dtype_name(type.dtype));
      SHARDPLAN_ASSIGN_OR_RETURN(const ir::OpId cast,
                                 append("cast", {results[0]}, {{"dtype", narrow}}, layer));
      graph_.writes.push_back({pair.parameter, graph_.op(cast).outputs.front()});
    }
    return {};
  }

  [[nodiscard]] bool is_sgd() const { return recipe_.optimizer.kind == OptimizerKind::kSgd; }

  [[nodiscard]] const char* update_name() const { return is_sgd() ? "sgd_update" : "adam_update"; }

  [[nodiscard]] std::vector<const char*> state_suffixes() const {
    if (!is_sgd()) {
      return {".exp_avg", ".exp_avg_sq"};
    }
    if (recipe_.optimizer.momentum > 0) {
      return {".momentum_buffer"};
    }
    return {};
  }

  [[nodiscard]] ir::Attributes update_attributes() const {
    const Optimizer& o = recipe_.optimizer;
    if (is_sgd()) {
      return {{"lr", o.lr},
              {"momentum", o.momentum},
              {"dampening", o.dampening},
              {"weight_decay", o.weight_decay},
              {"nesterov", o.nesterov},
              {"has_momentum", o.momentum > 0},
              {"clip", clip_.valid()}};
    }
    return {{"lr", o.lr},
            {"beta1", o.beta1},
            {"beta2", o.beta2},
            {"eps", o.eps},
            {"weight_decay", o.weight_decay},
            {"decoupled", o.kind == OptimizerKind::kAdamW},
            {"clip", clip_.valid()}};
  }

  ir::Graph& graph_;
  const Recipe& recipe_;
  std::vector<ir::OpId> first_readers_;  ///< by value
  ir::TensorType scalar_;                ///< type of the step counter and of norms
  ir::ValueId step_;
  ir::ValueId clip_;  ///< invalid when there is no clipping
};

}  // namespace

ir::DType updated_dtype(const ir::TensorType& parameter, Precision precision) {
  const bool has_master = precision == Precision::kBFloat16 && is_narrow(parameter.dtype);
  return has_master ? ir::DType::kFloat32 : parameter.dtype;
}

Status append_update(ir::Graph& graph,
                     const std::vector<ParameterGradient>& gradients,
                     const Recipe& recipe) {
  return UpdateBuilder(graph, recipe).run(gradients);
}

}  // namespace shardplan::training
