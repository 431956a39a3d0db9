#include "shardplan/sim/rank_memory.h"

#include <algorithm>

#include "shardplan/ops/op.h"
#include "shardplan/sharding/halo.h"
#include "shardplan/sim/memory.h"
#include "shardplan/sim/program_memory.h"

namespace shardplan::sim {
namespace {

using lower::Step;
using lower::StepKind;

ir::TensorType part_type(const lower::Program& program,
                         const ir::Graph& step,
                         const lower::LocalValue& value,
                         std::int64_t rank) {
  const ir::Shape& whole = step.type(value.global).shape;
  return {value.type.dtype,
          sharding::widened_part_shape(value.halos, value.spec, whole, program.mesh, rank)};
}

void set_workspace(const lower::Program& program, const ir::Graph& graph, Step& step) {
  const ir::Op& op = graph.op(step.op);
  const ops::OpDef& def = ops::get(op.name);
  if (def.view || def.workspace == nullptr) {
    return;
  }
  const ops::Types inputs = types_of(program, step.inputs);
  const ops::Types results = types_of(program, step.outputs);
  const auto empty = [](const ir::TensorType& type) { return type.numel() == 0; };
  const bool nothing = std::any_of(inputs.begin(), inputs.end(), empty) ||
                       std::any_of(results.begin(), results.end(), empty);
  step.workspace =
      nothing ? 0 : def.workspace(ops::OpView{inputs, results, op.attributes, step.cut});
}

Bytes peak_of(const lower::Program& program, const ir::Graph& step) {
  MemoryMeter meter;
  ProgramMemory memory(program, step, meter);
  const std::int64_t rounds = std::min<std::int64_t>(program.microbatches, 2);
  for (std::int64_t m = 0; m < rounds; ++m) {
    std::for_each(program.microbatch.begin(), program.microbatch.end(), [&](const Step& s) {
      memory.run(s);
    });
  }
  std::for_each(
      program.update.begin(), program.update.end(), [&](const Step& s) { memory.run(s); });
  return meter.peak();
}

bool is_even(const lower::Program& program, const ir::Graph& step) {
  return std::all_of(
      program.values.begin(), program.values.end(), [&](const lower::LocalValue& value) {
        for (std::int64_t rank = 1; rank < program.mesh.size(); ++rank) {
          if (part_type(program, step, value, rank) != value.type) {
            return false;
          }
        }
        return true;
      });
}

}  // namespace

lower::Program program_of_rank(const lower::Program& program,
                               const ir::Graph& step,
                               std::int64_t rank) {
  lower::Program out = program;
  bool same = true;
  for (lower::LocalValue& value : out.values) {
    ir::TensorType type = part_type(program, step, value, rank);
    same = same && type == value.type;
    value.type = std::move(type);
  }
  if (same) {
    return out;
  }
  for (std::vector<Step>* steps : {&out.microbatch, &out.update}) {
    for (Step& s : *steps) {
      if (s.kind == StepKind::kCompute) {
        set_workspace(out, step, s);
      }
    }
  }
  return out;
}

std::vector<Bytes> rank_peaks(const lower::Program& program, const ir::Graph& step) {
  const auto ranks = static_cast<std::size_t>(program.mesh.size());
  if (is_even(program, step)) {
    return std::vector<Bytes>(ranks, peak_of(program, step));
  }
  std::vector<Bytes> peaks;
  for (std::int64_t rank = 0; rank < program.mesh.size(); ++rank) {
    peaks.push_back(peak_of(program_of_rank(program, step, rank), step));
  }
  return peaks;
}

}  // namespace shardplan::sim
