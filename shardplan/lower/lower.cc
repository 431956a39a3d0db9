// SPMD partitioning. Every op of the step is emitted once, in graph order, in local shapes; a value
// that is needed in another layout than it has is resharded on demand. `Lowering::need` is the
// heart: it finds or makes the copy of a value that a reader asks for. Frees are added last
// (frees.cc), when all uses are known.
//
// Time and memory of a plan are sums over ops and over pairs of ops by construction, which is what
// the problem (shardplan/problem) counts on: a changed copy serves the ops of one reader (an op of
// the forward pass and its backward ops) and is always made from the value as it was made.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "shardplan/lower/frees.h"
#include "shardplan/lower/local_op.h"
#include "shardplan/lower/overlap.h"
#include "shardplan/lower/program.h"
#include "shardplan/lower/readers.h"
#include "shardplan/lower/recompute.h"
#include "shardplan/ops/op.h"

namespace shardplan::lower {
namespace {

using ir::OpId;
using ir::Phase;
using ir::ValueId;
using ir::ValueKind;
using sharding::ShardingSpec;

/// One copy of a graph value on the devices. The first of a value is as its producer made it.
struct Copy {
  ShardingSpec spec;
  LocalId local;
  int reader = kNoReader;  ///< whose ops it serves
  /// Made in the forward pass for an op that does not keep its results: dropped there and made
  /// again when the op or its backward ops need it.
  bool forward_only = false;
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
        copies_(step.values().size()),
        readers_(find_readers(step)),
        maps_(step) {
    program_.mesh = plan.mesh;
    program_.microbatches = step.microbatches;
  }

  Result<Program> run() {
    SHARDPLAN_RETURN_IF_ERROR(find_layouts());
    add_residents();
    find_reruns();
    schedule_writes();
    find_common_layouts();
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      const OpId op(i);
      enter_phase(step_.op(op).phase);
      for (const OpId again : reruns_.before[i]) {
        SHARDPLAN_RETURN_IF_ERROR(emit_op(again, true));
      }
      SHARDPLAN_RETURN_IF_ERROR(emit_op(op, false));
      for (const ir::Write& write : writes_after_[i]) {
        SHARDPLAN_RETURN_IF_ERROR(emit_write(write, op));
      }
    }
    SHARDPLAN_RETURN_IF_ERROR(find_loss());
    SHARDPLAN_RETURN_IF_ERROR(keep_gradients());
    insert_frees(program_, keeps_);
    if (options_.overlap) {
      overlap_collectives(program_);
    }
    return std::move(program_);
  }

 private:
  LocalId add_local(ValueId global, const ShardingSpec& spec, LocalId view_of) {
    const ir::TensorType& type = step_.type(global);
    program_.values.push_back(
        LocalValue{ir::TensorType{type.dtype, sharding::local_shape(spec, type.shape, plan_.mesh)},
                   spec,
                   global,
                   view_of,
                   {}});
    return LocalId(program_.values.size() - 1);
  }

  Status find_layouts() {
    std::map<std::pair<std::size_t, sharding::Strategy>, std::size_t> known;
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      const auto [it, fresh] =
          known.emplace(std::pair{maps_.kind(OpId(i)), plan_.strategies[i]}, layouts_.size());
      layout_of_.push_back(it->second);
      if (!fresh) {
        continue;
      }
      auto found = sharding::layouts(maps_[OpId(i)], plan_.strategies[i], plan_.mesh);
      if (!found) {
        const ir::Op& op = step_.ops()[i];
        return invalid_input("the strategy is not possible for this op",
                             fmt::format("layer {}, op {}.{}", op.layer, op.name, i));
      }
      layouts_.push_back(std::move(*found));
    }
    return {};
  }

  /// The layout that all reads of a value agree on; nothing where they differ.
  void find_common_layouts() {
    common_.resize(step_.values().size());
    std::vector<bool> differ(step_.values().size(), false);
    const auto read = [&](ValueId value, const ShardingSpec& spec) {
      std::optional<ShardingSpec>& common = common_[value.index()];
      differ[value.index()] = differ[value.index()] || (common && *common != spec);
      common = spec;
    };
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      for (std::size_t k = 0; k < step_.ops()[i].inputs.size(); ++k) {
        read(step_.ops()[i].inputs[k], layouts_[layout_of_[i]].inputs[k]);
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

  /// A value is brought into the layout that its only reader wants as soon as it is made, if that
  /// makes it no larger (gradients: reduce-scattered while the backward pass goes on).
  Status settle(ValueId value, OpId producer) {
    const Readers& readers = readers_[value.index()];
    const std::optional<ShardingSpec>& common = common_[value.index()];
    const ShardingSpec made = copies_[value.index()].front().spec;
    if (!common || readers.several || readers.own || *common == made) {
      return {};
    }
    const ir::TensorType& type = step_.type(value);
    if (sharding::local_bytes(*common, type, plan_.mesh) >
        sharding::local_bytes(made, type, plan_.mesh)) {
      return {};
    }
    SHARDPLAN_RETURN_IF_ERROR(change(value, *common, readers.first, producer, Step::kOfResult));
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
      copies_[i].push_back(Copy{spec, local});
    }
  }

  void find_reruns() {
    std::unordered_map<std::string_view, plan::Recompute> how;
    for (const plan::RecomputedBlock& block : plan_.recompute) {
      how.emplace(block.block, block.how);
    }
    reruns_ = rerun_schedule(step_, [&](std::string_view block) {
      const auto it = how.find(block);
      return it == how.end() ? plan::Recompute::kNone : it->second;
    });
  }

  void schedule_writes() {
    writes_after_.resize(step_.ops().size());
    const std::vector<OpId> points = write_points(step_);
    for (std::size_t w = 0; w < points.size(); ++w) {
      writes_after_[points[w].index()].push_back(step_.writes[w]);
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
      if (reruns_.dropped[i]) {
        copies_[i].clear();
      } else if (step_.values()[i].kind == ValueKind::kParameter && copies_[i].size() > 1) {
        copies_[i].resize(1);
      } else {
        std::erase_if(copies_[i], [](const Copy& copy) { return copy.forward_only; });
      }
    }
  }

  void push(Step step, std::vector<LocalId> keeps = {}) {
    const bool update = phase_ == Phase::kUpdate;
    (update ? program_.update : program_.microbatch).push_back(std::move(step));
    (update ? keeps_.update : keeps_.microbatch).push_back(std::move(keeps));
  }

  /// The copy of `value` in the layout `spec`, made if it is not there yet. `operand`: of `op`.
  Result<LocalId> need(ValueId value, const ShardingSpec& spec, int reader, OpId op, int operand) {
    const std::vector<Copy>& copies = copies_[value.index()];
    SHARDPLAN_CHECK(!copies.empty()) << "value %" << value.value << " is not there";
    for (const Copy& copy : copies) {
      const bool own = &copy == &copies.front() || copy.reader == reader;
      if (own && copy.spec == spec) {
        return copy.local;
      }
    }
    return change(value, spec, reader, op, operand);
  }

  /// Makes a copy in another layout; `operand` as in Step.
  Result<LocalId> change(
      ValueId value, const ShardingSpec& spec, int reader, OpId op, int operand) {
    const Copy& made = copies_[value.index()].front();
    const sharding::ReshardPath& path = resharder_.path(made.spec, spec, step_.type(value));
    if (!path.possible) {
      return no_reshard(value, spec, op);
    }
    LocalId source = made.local;
    for (const sharding::ReshardStep& move : path.steps) {
      const LocalId result = add_local(value, move.to, LocalId{});
      Step step;
      step.kind = StepKind::kCollective;
      step.inputs = {source};
      step.outputs = {result};
      step.op = op;
      step.operand = operand;
      step.recompute = again_;
      step.collective = move;
      step.workspace = collective_workspace(
          move, program_.value(source).type, program_.value(result).type, plan_.mesh);
      step.phase = phase_;
      push(std::move(step));
      source = result;
    }
    const bool forward_only =
        phase_ == Phase::kForward && operand >= 0 && reruns_.member[op.index()];
    copies_[value.index()].push_back(Copy{spec, source, reader, forward_only});
    return source;
  }

  /// The storage of a view, and of a value with several readers, stays until the last of them is
  /// done, whatever the layout in which they read it.
  void keep_alive(ValueId value, int reader, LocalId read, std::vector<LocalId>& keeps) const {
    const Readers& readers = readers_[value.index()];
    const Copy& made = copies_[value.index()].front();
    const OpId producer = step_.value(value).producer;
    const bool own = producer.valid() && reader == reader_of(step_, producer);
    const bool view = program_.value(made.local).view_of.valid();
    if (read != made.local && producer.valid() && (readers.several || own || view)) {
      keeps.push_back(made.local);
    }
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

  Status emit_op(OpId id, bool again) {
    const ir::Op& op = step_.op(id);
    const ops::OpDef& def = ops::get(op.name);
    const ops::AxisMap& map = maps_[id];
    const sharding::Strategy& strategy = plan_.strategies[id.index()];
    const sharding::OpLayouts& layouts = layouts_[layout_of_[id.index()]];
    const int reader = reader_of(step_, id);
    again_ = again;
    Step step;
    step.op = id;
    step.recompute = again;
    step.phase = phase_;
    std::vector<LocalId> keeps;
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      SHARDPLAN_ASSIGN_OR_RETURN(
          const LocalId copy,
          need(op.inputs[i], layouts.inputs[i], reader, id, static_cast<int>(i)));
      keep_alive(op.inputs[i], reader, copy, keeps);
      step.inputs.push_back(copy);
    }
    LocalOp local =
        local_op(def, map, ops::op_types(step_, id), op.attributes, layouts, plan_.mesh);
    exchange_halos(local, step, keeps);
    step.flops = local.flops;
    step.bytes = local.bytes;
    step.workspace = local.workspace;
    step.cut = std::move(local.cut);
    for (std::size_t r = 0; r < op.outputs.size(); ++r) {
      LocalId storage;
      if (const int operand = ops::storage_operand(def, r); operand >= 0) {
        storage = program_.root(step.inputs[static_cast<std::size_t>(operand)]);
      }
      const LocalId made = add_local(op.outputs[r], layouts.results[r], storage);
      step.outputs.push_back(made);
      if (!again || reruns_.dropped[op.outputs[r].index()]) {
        copies_[op.outputs[r].index()] = {Copy{layouts.results[r], made}};
      }
    }
    add_positions(map, strategy, step);
    push(std::move(step), std::move(keeps));
    for (const ValueId output : op.outputs) {
      if (!again || reruns_.dropped[output.index()]) {
        SHARDPLAN_RETURN_IF_ERROR(settle(output, id));
      }
    }
    again_ = false;
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
          position.local_size =
              sharding::largest_part(position.local_size, plan_.mesh.axes[m].size);
        }
      }
      step.positions.push_back(std::move(position));
    }
  }

  /// The copies of operands that have their halos take the place of those without; these stay as
  /// long as the op runs.
  void exchange_halos(const LocalOp& local, Step& step, std::vector<LocalId>& keeps) {
    for (const HaloExchange& halo : local.exchanges) {
      LocalId& input = step.inputs[static_cast<std::size_t>(halo.operand)];
      program_.values.push_back(
          LocalValue{halo.made, halo.step.to, program_.value(input).global, {}, halo.step.halos});
      const LocalId made(program_.values.size() - 1);
      Step exchange;
      exchange.kind = StepKind::kCollective;
      exchange.inputs = {input};
      exchange.outputs = {made};
      exchange.op = step.op;
      exchange.operand = halo.operand;
      exchange.recompute = step.recompute;
      exchange.collective = halo.step;
      exchange.workspace = halo.workspace;
      exchange.phase = phase_;
      push(std::move(exchange));
      keeps.push_back(input);
      input = made;
    }
  }

  const ir::Graph& step_;
  const plan::Plan& plan_;
  const LowerOptions& options_;
  sharding::Resharder resharder_;
  Program program_;
  std::vector<std::vector<Copy>> copies_;
  std::vector<Readers> readers_;                     ///< by value
  std::vector<std::optional<ShardingSpec>> common_;  ///< by value, see find_common_layouts
  ops::AxisMaps maps_;
  std::vector<sharding::OpLayouts> layouts_;  ///< of the distinct ops and strategies
  std::vector<std::size_t> layout_of_;        ///< by op: which of them
  RerunSchedule reruns_;
  Keeps keeps_;
  std::vector<std::vector<ir::Write>> writes_after_;
  Phase phase_ = Phase::kForward;
  bool again_ = false;  ///< the op in progress runs again

  Status emit_write(const ir::Write& write, OpId after) {
    // The resident's own copy is always the first.
    const Copy target = copies_[write.target.index()].front();
    const OpId producer = step_.value(write.value).producer;
    SHARDPLAN_ASSIGN_OR_RETURN(
        const LocalId value, need(write.value, target.spec, kWritesReader, after, Step::kOfWrite));
    Step step;
    step.kind = StepKind::kWrite;
    step.inputs = {value};
    step.outputs = {target.local};
    step.op = producer;
    step.phase = phase_;
    std::vector<LocalId> keeps;
    keep_alive(write.value, kWritesReader, value, keeps);
    push(std::move(step), std::move(keeps));
    return {};
  }

  Status find_loss() {
    if (step_.outputs.empty()) {
      return {};  // a pipeline stage without the loss
    }
    const ValueId loss = step_.outputs.front();
    phase_ = Phase::kBackward;
    const OpId producer = step_.value(loss).producer;
    SHARDPLAN_ASSIGN_OR_RETURN(program_.loss,
                               need(loss, ShardingSpec{}, kNoReader, producer, Step::kOfResult));
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

Result<Program> lower(const ir::Graph& step,
                      const plan::Plan& plan,
                      const sharding::StepPrice& price,
                      const LowerOptions& options) {
  if (plan.pipeline) {
    return Error{ErrorCode::kUnsupported,
                 "the plan is a pipeline, whose stages are programs of their own",
                 "lower",
                 {"plan with another planner, such as map"}};
  }
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
