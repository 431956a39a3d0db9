#include "shardplan/training/pipeline_copies.h"

#include <fmt/format.h>

#include <utility>

#include "shardplan/ops/op.h"

namespace shardplan::training {
namespace {

using ir::OpId;
using ir::Phase;
using ir::ValueId;
using ir::ValueKind;

class PassCopier {
 public:
  PassCopier(const ir::Graph& step, int pipelines)
      : step_(step),
        pipelines_(static_cast<std::size_t>(pipelines)),
        values_(pipelines_, std::vector<ValueId>(step.values().size())),
        ops_(pipelines_, std::vector<OpId>(step.ops().size())) {}

  /// The copies of an op stand side by side, so that each copy has the order of the step.
  PipelineCopies run() {
    out_.step.name = step_.name;
    out_.step.microbatches = step_.microbatches;
    copy_values();
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      const ir::Op& op = step_.ops()[i];
      if (op.phase == Phase::kUpdate) {
        copy(OpId(i), 0);
      } else if (op.name == "accumulate") {
        accumulate(OpId(i));
      } else {
        for (std::size_t pipeline = 0; pipeline < pipelines_; ++pipeline) {
          copy(OpId(i), pipeline);
        }
      }
    }
    finish();
    return std::move(out_);
  }

 private:
  void copy_values() {
    for (std::size_t v = 0; v < step_.values().size(); ++v) {
      if (step_.values()[v].kind != ValueKind::kOpResult) {
        const ValueId made = out_.step.add_value(step_.values()[v]);
        for (std::vector<ValueId>& values : values_) {
          values[v] = made;
        }
      }
    }
    // A state may be declared before the parameter that it starts from.
    for (std::size_t v = 0; v < out_.step.values().size(); ++v) {
      ir::Value& value = out_.step.value(ValueId(v));
      if (value.init_from.valid()) {
        value.init_from = values_[0][value.init_from.index()];
      }
    }
  }

  [[nodiscard]] ir::Op op_like(OpId original, std::size_t pipeline) const {
    ir::Op op = step_.op(original);
    for (ValueId& input : op.inputs) {
      input = values_[pipeline][input.index()];
    }
    if (op.source.valid()) {
      op.source = ops_[pipeline][op.source.index()];
    }
    return op;
  }

  ValueId append(ir::Op op, const ir::TensorType& type) {
    const OpId id = out_.step.add_op(std::move(op), {type});
    out_.op_of.emplace_back();
    out_.pipeline_of.push_back(0);
    return out_.step.op(id).outputs[0];
  }

  void record(OpId original, OpId made, std::size_t pipeline) {
    ops_[pipeline][original.index()] = made;
    const std::vector<ValueId>& results = step_.op(original).outputs;
    for (std::size_t r = 0; r < results.size(); ++r) {
      const ValueId result = out_.step.op(made).outputs[r];
      values_[pipeline][results[r].index()] = result;
      out_.step.value(result).name = step_.value(results[r]).name;
    }
    out_.op_of.push_back(original);
    out_.pipeline_of.push_back(static_cast<int>(pipeline));
  }

  void copy(OpId original, std::size_t pipeline) {
    const ops::OpTypes types = ops::op_types(step_, original);
    record(original, out_.step.add_op(op_like(original, pipeline), types.results), pipeline);
  }

  /// Adds what all pipelines have.
  void accumulate(OpId original) {
    ir::Op op = op_like(original, 0);
    const ValueId term = step_.op(original).inputs[1];
    for (std::size_t pipeline = 1; pipeline < pipelines_; ++pipeline) {
      ir::Op add;
      add.name = "add";
      add.inputs = {op.inputs[1], values_[pipeline][term.index()]};
      add.phase = op.phase;
      add.layer = op.layer;
      op.inputs[1] = append(std::move(add), step_.type(term));
    }
    const ops::OpTypes types = ops::op_types(step_, original);
    record(original, out_.step.add_op(std::move(op), types.results), 0);
  }

  void finish() {
    const std::vector<ValueId>& values = values_[0];
    for (const std::vector<ValueId>& of_pipeline : values_) {
      out_.step.outputs.push_back(of_pipeline[step_.outputs.front().index()]);
    }
    for (const ir::Write& write : step_.writes) {
      out_.step.writes.push_back({values[write.target.index()], values[write.value.index()]});
    }
    for (const ir::Write& gradient : step_.gradients) {
      const bool once = step_.value(gradient.target).kind == ValueKind::kParameter;
      for (std::size_t pipeline = 0; pipeline < (once ? 1 : pipelines_); ++pipeline) {
        out_.step.gradients.push_back({values_[pipeline][gradient.target.index()],
                                       values_[pipeline][gradient.value.index()]});
      }
    }
    out_.value_of.resize(out_.step.values().size());
    for (const std::vector<ValueId>& of_pipeline : values_) {
      for (std::size_t v = 0; v < of_pipeline.size(); ++v) {
        if (of_pipeline[v].valid()) {
          out_.value_of[of_pipeline[v].index()] = ValueId(v);
        }
      }
    }
  }

  const ir::Graph& step_;
  std::size_t pipelines_;
  std::vector<std::vector<ValueId>> values_;  ///< [pipeline][value of the step]
  std::vector<std::vector<OpId>> ops_;        ///< likewise
  PipelineCopies out_{};
};

}  // namespace

Result<PipelineCopies> copy_passes(const ir::Graph& step, int pipelines) {
  if (pipelines < 1 || step.microbatches < pipelines) {
    return invalid_input(
        fmt::format("{} pipelines share {} microbatches; each needs one at least (--microbatches)",
                    pipelines,
                    step.microbatches),
        "pipeline");
  }
  for (const ir::Write& write : step.writes) {
    const ir::Value& target = step.value(write.target);
    const OpId producer = step.value(write.value).producer;
    const bool in_update = producer.valid() && step.op(producer).phase == Phase::kUpdate;
    if (target.kind == ValueKind::kBuffer && !in_update) {
      return Error{ErrorCode::kUnsupported,
                   fmt::format("every pass writes '{}', and microbatches that go through several "
                               "pipelines have no order in which to do so",
                               target.name),
                   "pipeline",
                   {"take a schedule of one pipeline, such as 1f1b"}};
    }
  }
  return PassCopier(step, pipelines).run();
}

}  // namespace shardplan::training
