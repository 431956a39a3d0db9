// SPMD partitioning. Every op of the step is emitted once, in graph order, in local shapes; a value
// that is needed in another layout than it has is resharded on demand. `Lowering::need` is the
// heart: it finds, changes or recomputes the copy of a value that a reader asks for. Frees are
// added last (frees.cc), when all uses are known.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include "shardplan/lower/frees.h"
#include "shardplan/lower/program.h"
#include "shardplan/ops/op.h"

namespace shardplan::lower {
namespace {

using ir::OpId;
using ir::Phase;
using ir::ValueId;
using ir::ValueKind;
using sharding::ShardingSpec;

/// One copy of a graph value on the devices.
struct Copy {
  ShardingSpec spec;
  LocalId local;
  /// A changed layout that only ops of recomputed blocks asked for in the forward pass: dropped
  /// there and made again when they run again.
  bool for_recomputed = false;
};

bool lives_across_steps(ValueKind kind) {
  return kind != ValueKind::kOpResult;
}

class Lowering {
 public:
  Lowering(const ir::Graph& step,
           const plan::Plan& plan,
           const sharding::StepPrice& price,
           const LowerOptions& options)
      : step_(step),
        plan_(plan),
        options_(options),
        resharder_(plan.mesh, price),
        copies_(step.values().size()) {
    program_.mesh = plan.mesh;
    program_.microbatches = step.microbatches;
  }

  Result<Program> run() {
    SHARDPLAN_RETURN_IF_ERROR(find_layouts());
    add_residents();
    find_recomputable();
    schedule_writes();
    find_common_layouts();
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      const OpId op(i);
      enter_phase(step_.op(op).phase);
      SHARDPLAN_RETURN_IF_ERROR(emit_op(op, false));
      for (const ir::Write& write : writes_after_[i]) {
        SHARDPLAN_RETURN_IF_ERROR(emit_write(write));
      }
    }
    SHARDPLAN_RETURN_IF_ERROR(find_loss());
    SHARDPLAN_RETURN_IF_ERROR(keep_gradients());
    insert_frees(program_);
    return std::move(program_);
  }

 private:
  LocalId add_local(ValueId global, const ShardingSpec& spec, LocalId view_of) {
    const ir::TensorType& type = step_.type(global);
    program_.values.push_back(
        LocalValue{ir::TensorType{type.dtype, sharding::local_shape(spec, type.shape, plan_.mesh)},
                   spec,
                   global,
                   view_of});
    return LocalId(program_.values.size() - 1);
  }

  Status find_layouts() {
    maps_.reserve(step_.ops().size());
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      maps_.push_back(ops::axis_map(step_, OpId(i)));
      auto found = sharding::layouts(maps_.back(), plan_.strategies[i], plan_.mesh);
      if (!found) {
        const ir::Op& op = step_.ops()[i];
        return invalid_input("the strategy is not possible for this op",
                             fmt::format("layer {}, op {}.{}", op.layer, op.name, i));
      }
      layouts_.push_back(std::move(*found));
    }
    return {};
  }

  /// The layout that all readers of a value agree on; nothing where they differ. A value is brought
  /// into it as soon as it is made if that makes it smaller (gradients: reduce-scattered while the
  /// backward pass goes on).
  void find_common_layouts() {
    common_.resize(step_.values().size());
    std::vector<bool> differ(step_.values().size(), false);
    const auto read = [&](ValueId value, const ShardingSpec& spec) {
      auto& common = common_[value.index()];
      differ[value.index()] = differ[value.index()] || (common && *common != spec);
      common = spec;
    };
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      for (std::size_t k = 0; k < step_.ops()[i].inputs.size(); ++k) {
        read(step_.ops()[i].inputs[k], layouts_[i].inputs[k]);
      }
    }
    for (const ir::Write& write : step_.writes) {
      read(write.value, copies_[write.target.index()].front().spec);
    }
    for (std::size_t v = 0; v < common_.size(); ++v) {
      if (differ[v]) {
        common_[v].reset();
      }
    }
  }

  /// Changes a fresh value to the layout that all readers want if that is no larger.
  Status settle(ValueId value, OpId producer) {
    const auto& common = common_[value.index()];
    const ShardingSpec made = copies_[value.index()].front().spec;
    if (!common || *common == made) {
      return {};
    }
    const ir::TensorType& type = step_.type(value);
    if (sharding::local_bytes(*common, type, plan_.mesh) <=
        sharding::local_bytes(made, type, plan_.mesh)) {
      SHARDPLAN_RETURN_IF_ERROR(need(value, *common, producer));
      copies_[value.index()].back().for_recomputed = false;
    }
    return {};
  }

  void add_residents() {
    for (std::size_t i = 0; i < step_.values().size(); ++i) {
      const ir::Value& value = step_.values()[i];
      if (!lives_across_steps(value.kind)) {
        continue;
      }
      const ValueId id(i);
      const auto layout = plan_.layouts.find(id);
      const ShardingSpec spec = layout == plan_.layouts.end() ? ShardingSpec{} : layout->second;
      const LocalId local = add_local(id, spec, LocalId{});
      program_.residents.push_back(Resident{local, id});
      copies_[i].push_back(Copy{spec, local, false});
    }
  }

  /// Marks the values that the backward pass makes again: results of forward ops of a recomputed
  /// block that no forward op outside the block reads. What other blocks read is kept, so that
  /// running a block again never starts a chain through the blocks before it.
  void find_recomputable() {
    recomputable_.assign(step_.values().size(), false);
    recomputed_op_.assign(step_.ops().size(), false);
    if (plan_.recompute.empty()) {
      return;
    }
    const std::unordered_set<std::string_view> blocks(plan_.recompute.begin(),
                                                      plan_.recompute.end());
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      const ir::Op& op = step_.ops()[i];
      if (op.phase != Phase::kForward || !blocks.contains(plan::block_of(op.layer))) {
        continue;
      }
      recomputed_op_[i] = true;
      for (const ValueId output : op.outputs) {
        recomputable_[output.index()] = true;
      }
    }
    for (const ir::Op& op : step_.ops()) {
      if (op.phase != Phase::kForward) {
        continue;
      }
      const std::string_view block = plan::block_of(op.layer);
      for (const ValueId input : op.inputs) {
        const OpId producer = step_.value(input).producer;
        if (producer.valid() && plan::block_of(step_.op(producer).layer) != block) {
          recomputable_[input.index()] = false;
        }
      }
    }
    for (const ValueId output : step_.outputs) {
      recomputable_[output.index()] = false;
    }
  }

  /// A write happens once the value exists and nothing reads the old content any more.
  void schedule_writes() {
    writes_after_.resize(step_.ops().size());
    std::vector<std::size_t> last_use(step_.values().size(), 0);
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      for (const ValueId input : step_.ops()[i].inputs) {
        last_use[input.index()] = i;
      }
    }
    for (const ir::Write& write : step_.writes) {
      const std::size_t made = step_.value(write.value).producer.index();
      writes_after_[std::max(made, last_use[write.target.index()])].push_back(write);
    }
  }

  void enter_phase(Phase phase) {
    if (phase == phase_) {
      return;
    }
    phase_ = phase;
    if (phase != Phase::kBackward) {
      return;
    }
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      if (recomputable_[i]) {
        copies_[i].clear();
      } else if (step_.values()[i].kind == ValueKind::kParameter && copies_[i].size() > 1) {
        copies_[i].resize(1);
      } else {
        std::erase_if(copies_[i], [](const Copy& copy) { return copy.for_recomputed; });
      }
    }
  }

  std::vector<Step>& section() {
    return phase_ == Phase::kUpdate ? program_.update : program_.microbatch;
  }

  /// The copy of `value` in the layout `spec`, made if it is not there yet.
  Result<LocalId> need(ValueId value, const ShardingSpec& spec, OpId reader) {
    std::vector<Copy>& copies = copies_[value.index()];
    if (copies.empty()) {
      SHARDPLAN_CHECK(recomputable_[value.index()]) << "value %" << value.value << " is not there";
      SHARDPLAN_RETURN_IF_ERROR(emit_op(step_.value(value).producer, true));
    }
    const sharding::ReshardPath* best = nullptr;
    LocalId source;
    const bool for_recomputed = phase_ == Phase::kForward && recomputed_op_[reader.index()];
    for (Copy& copy : copies) {
      if (copy.spec == spec) {
        copy.for_recomputed = copy.for_recomputed && for_recomputed;
        return copy.local;
      }
      const sharding::ReshardPath& path = resharder_.path(copy.spec, spec, step_.type(value));
      if (path.possible && (best == nullptr || path.price < best->price)) {
        best = &path;
        source = copy.local;
      }
    }
    if (best == nullptr) {
      return no_reshard(value, spec, reader);
    }
    for (const sharding::ReshardStep& move : best->steps) {
      const LocalId result = add_local(value, move.to, LocalId{});
      Step step;
      step.kind = StepKind::kCollective;
      step.inputs = {source};
      step.outputs = {result};
      step.op = reader;
      step.collective = move;
      step.workspace = collective_workspace(
          move, program_.value(source).type, program_.value(result).type, plan_.mesh);
      step.phase = phase_;
      section().push_back(std::move(step));
      source = result;
    }
    copies.push_back(Copy{spec, source, for_recomputed});
    return source;
  }

  Error no_reshard(ValueId value, const ShardingSpec& spec, OpId reader) const {
    const auto rank = static_cast<std::size_t>(step_.type(value).rank());
    const ir::Op& op = step_.op(reader);
    return invalid_input(
        fmt::format("a value in layout {} cannot be changed to layout {}, which op {} needs",
                    to_string(copies_[value.index()].front().spec, rank, plan_.mesh),
                    to_string(spec, rank, plan_.mesh),
                    op.name),
        fmt::format("layer {}, op {}.{}", op.layer, op.name, reader.value));
  }

  Status emit_op(OpId id, bool recompute) {
    const ir::Op& op = step_.op(id);
    const ops::OpDef& def = ops::get(op.name);
    const ops::AxisMap& map = maps_[id.index()];
    const sharding::Strategy& strategy = plan_.strategies[id.index()];
    const sharding::OpLayouts& layouts = layouts_[id.index()];
    Step step;
    step.op = id;
    step.recompute = recompute;
    step.phase = phase_;
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      SHARDPLAN_ASSIGN_OR_RETURN(const LocalId local, need(op.inputs[i], layouts.inputs[i], id));
      step.inputs.push_back(local);
    }
    for (std::size_t r = 0; r < op.outputs.size(); ++r) {
      LocalId storage;
      if (def.view) {
        storage = program_.root(step.inputs[0]);
      } else if (r < def.in_place.size() && def.in_place[r] >= 0) {
        storage = program_.root(step.inputs[static_cast<std::size_t>(def.in_place[r])]);
      }
      const LocalId local = add_local(op.outputs[r], layouts.results[r], storage);
      step.outputs.push_back(local);
      copies_[op.outputs[r].index()] = {Copy{layouts.results[r], local, false}};
    }
    add_positions(map, strategy, step);
    add_work(def, op, map, step);
    section().push_back(std::move(step));
    for (const ValueId output : op.outputs) {
      SHARDPLAN_RETURN_IF_ERROR(settle(output, id));
    }
    return {};
  }

  void add_positions(const ops::AxisMap& map,
                     const sharding::Strategy& strategy,
                     Step& step) const {
    for (std::size_t a = 0; a < map.axes.size(); ++a) {
      const ops::Axis& axis = map.axes[a];
      if (!axis.positional && axis.role != ops::AxisRole::kLookup) {
        continue;
      }
      Position position{static_cast<int>(a), axis.name, axis.size, axis.size, {}};
      for (std::size_t m = 0; m < plan_.mesh.axes.size(); ++m) {
        if (strategy.at(static_cast<int>(m)) == static_cast<int>(a)) {
          position.mesh_axes.push_back(static_cast<int>(m));
          position.local_size /= plan_.mesh.axes[m].size;
        }
      }
      step.positions.push_back(std::move(position));
    }
  }

  void add_work(const ops::OpDef& def,
                const ir::Op& op,
                const ops::AxisMap& map,
                Step& step) const {
    if (def.view) {
      return;
    }
    ops::Types inputs;
    ops::Types results;
    for (const LocalId local : step.inputs) {
      inputs.push_back(program_.value(local).type);
    }
    for (const LocalId local : step.outputs) {
      results.push_back(program_.value(local).type);
    }
    const ops::OpView view{inputs, results, op.attributes};
    step.flops = def.flops != nullptr ? def.flops(view) : 0;
    step.workspace = def.workspace != nullptr ? def.workspace(view) : 0;
    step.bytes = memory_traffic(map, inputs, results);
  }

  const ir::Graph& step_;
  const plan::Plan& plan_;
  const LowerOptions& options_;
  sharding::Resharder resharder_;
  Program program_;
  std::vector<std::vector<Copy>> copies_;
  std::vector<ops::AxisMap> maps_;                   ///< by op
  std::vector<sharding::OpLayouts> layouts_;         ///< by op
  std::vector<std::optional<ShardingSpec>> common_;  ///< by value, see find_common_layouts
  std::vector<bool> recomputable_;                   ///< by value
  std::vector<bool> recomputed_op_;                  ///< by op: forward op of a recomputed block
  std::vector<std::vector<ir::Write>> writes_after_;
  Phase phase_ = Phase::kForward;

  Status emit_write(const ir::Write& write) {
    // The resident's own copy is always the first.
    const Copy target = copies_[write.target.index()].front();
    const OpId producer = step_.value(write.value).producer;
    SHARDPLAN_ASSIGN_OR_RETURN(const LocalId value, need(write.value, target.spec, producer));
    Step step;
    step.kind = StepKind::kWrite;
    step.inputs = {value};
    step.outputs = {target.local};
    step.op = producer;
    step.phase = phase_;
    section().push_back(std::move(step));
    return {};
  }

  Status find_loss() {
    const ValueId loss = step_.outputs.front();
    phase_ = Phase::kBackward;
    const OpId producer = step_.value(loss).producer;
    SHARDPLAN_ASSIGN_OR_RETURN(program_.loss, need(loss, ShardingSpec{}, producer));
    return {};
  }

  Status keep_gradients() {
    if (!options_.keep_gradients) {
      return {};
    }
    for (const ir::Write& gradient : step_.gradients) {
      if (step_.value(gradient.target).kind != ValueKind::kParameter) {
        continue;
      }
      const std::vector<Copy>& copies = copies_[gradient.value.index()];
      const auto whole = std::find_if(
          copies.begin(), copies.end(), [](const Copy& copy) { return !copy.spec.has_partial(); });
      SHARDPLAN_CHECK(whole != copies.end()) << "gradient is only there as a partial sum";
      program_.kept_gradients.push_back(Resident{whole->local, gradient.target});
    }
    return {};
  }
};

}  // namespace

Bytes memory_traffic(const ops::AxisMap& map,
                     std::span<const ir::TensorType> inputs,
                     std::span<const ir::TensorType> results) {
  Bytes written = 0;
  for (const ir::TensorType& type : results) {
    written += type.bytes();
  }
  Bytes total = written;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool looked_up =
        std::any_of(map.inputs[i].begin(), map.inputs[i].end(), [&](const std::vector<int>& dim) {
          return std::any_of(dim.begin(), dim.end(), [&](int axis) {
            return map.axes[static_cast<std::size_t>(axis)].role == ops::AxisRole::kLookup;
          });
        });
    total += looked_up ? std::min(inputs[i].bytes(), written) : inputs[i].bytes();
  }
  return total;
}

Result<Program> lower(const ir::Graph& step,
                      const plan::Plan& plan,
                      const sharding::StepPrice& price,
                      const LowerOptions& options) {
  return Lowering(step, plan, price, options).run();
}

Bytes resident_bytes(const Program& program, const ir::Graph& step, ir::ValueKind kind) {
  Bytes total = 0;
  for (const Resident& resident : program.residents) {
    if (step.value(resident.global).kind == kind) {
      total += program.value(resident.local).type.bytes();
    }
  }
  return total;
}

}  // namespace shardplan::lower
