#include "shardplan/plan/check.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>

#include "shardplan/ops/op.h"
#include "shardplan/plan/labels.h"
#include "shardplan/training/stages.h"

namespace shardplan::plan {
namespace {

using sharding::Reduction;
using sharding::ShardingSpec;

Error at(Error error, const std::string& place) {
  error.location = place;
  return error;
}

/// The characters that the text forms of layouts and strategies do not use themselves.
bool is_writable_name(const std::string& name) {
  return !name.empty() && name != "-" && name != "replicated" &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' ||
                  c == '.';
         });
}

/// The first mesh axis over which `needed` is partial and `given` is not (in the same way); -1 when
/// there is none, so that a change from `given` to `needed` exists.
int missing_partial(const ShardingSpec& given, const ShardingSpec& needed) {
  for (int axis = 0; axis < sharding::kMaxMeshAxes; ++axis) {
    if (needed.is_partial(axis) &&
        !(given.is_partial(axis) && given.reduction(axis) == needed.reduction(axis))) {
      return axis;
    }
  }
  return -1;
}

/// Follows the layouts of all values through the step.
class Checker {
 public:
  Checker(const Plan& plan, const ir::Graph& step)
      : plan_(plan), step_(step), labels_(step), given_(step.values().size()) {}

  Status run() {
    SHARDPLAN_RETURN_IF_ERROR(check_layouts());
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      SHARDPLAN_RETURN_IF_ERROR(check_op(ir::OpId(i)));
    }
    for (const ir::Write& write : step_.writes) {
      SHARDPLAN_RETURN_IF_ERROR(check_write(write));
    }
    return check_blocks();
  }

 private:
  Status check_layouts() {
    for (const auto& [id, spec] : plan_.layouts) {
      if (!id.valid() || id.index() >= step_.values().size()) {
        return invalid_input("there is no value " + std::to_string(id.value), "layouts");
      }
      const std::string place = "layouts / " + labels_.label(id);
      const ir::Value& value = step_.value(id);
      if (!has_layout(value)) {
        return invalid_input(
            value.kind == ir::ValueKind::kConstant
                ? "it is a constant, which every device holds whole"
                : "it is the result of an op: its layout follows from the op's strategy",
            place);
      }
      SHARDPLAN_RETURN_IF_ERROR(check_layout(value, spec, place));
      given_[id.index()] = spec;
    }
    return {};
  }

  Status check_layout(const ir::Value& value, const ShardingSpec& spec, const std::string& place) {
    const int mesh_axes = static_cast<int>(plan_.mesh.axes.size());
    for (int axis = 0; axis < sharding::kMaxMeshAxes; ++axis) {
      if (axis >= mesh_axes && !spec.is_replicated(axis)) {
        return invalid_input("it uses mesh axis " + std::to_string(axis) + ", the mesh is " +
                                 cluster::to_string(plan_.mesh),
                             place);
      }
      // An accumulator starts as zeros, so that each device may add up its own part of the sum.
      if (spec.is_partial(axis) &&
          (value.kind != ir::ValueKind::kAccumulator || spec.reduction(axis) != Reduction::kSum)) {
        return invalid_input("it cannot be partial over mesh axis \"" + axis_name(axis) +
                                 "\": only accumulators of gradients can be partial sums",
                             place);
      }
      const int dim = spec.dim_of(axis);
      if (dim >= value.type.rank()) {
        return invalid_input("mesh axis \"" + axis_name(axis) + "\" cuts dimension " +
                                 std::to_string(dim) + " of " + ir::to_string(value.type),
                             place);
      }
      if (dim < 0) {
        continue;
      }
      const std::int64_t parts = sharding::shard_count(spec, dim, plan_.mesh);
      const std::int64_t size = value.type.shape[static_cast<std::size_t>(dim)];
      if (!sharding::can_cut(size, parts)) {
        return invalid_input("dimension " + std::to_string(dim) + " of size " +
                                 std::to_string(size) + " is too small to be cut into " +
                                 std::to_string(parts) + " parts (mesh axis \"" + axis_name(axis) +
                                 "\")",
                             place);
      }
    }
    return {};
  }

  Status check_op(ir::OpId id) {
    const ir::Op& op = step_.op(id);
    const sharding::Strategy& strategy = plan_.strategies[id.index()];
    const std::string place = "strategies / " + op_place(step_, id);
    const ops::AxisMap map = ops::axis_map(step_, id);
    for (int axis = static_cast<int>(plan_.mesh.axes.size()); axis < sharding::kMaxMeshAxes;
         ++axis) {
      if (strategy.at(axis) != sharding::Strategy::kNone) {
        return invalid_input("it uses mesh axis " + std::to_string(axis) + ", the mesh is " +
                                 cluster::to_string(plan_.mesh),
                             place);
      }
    }
    const std::optional<sharding::OpLayouts> layouts = sharding::layouts(map, strategy, plan_.mesh);
    if (!layouts) {
      return at(sharding::check_strategy(map, strategy, plan_.mesh).error(), place);
    }
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const std::string operand = "operand " + std::to_string(i);
      SHARDPLAN_RETURN_IF_ERROR(check_change(op.inputs[i], layouts->inputs[i], operand, place));
    }
    for (std::size_t r = 0; r < op.outputs.size(); ++r) {
      given_[op.outputs[r].index()] = layouts->results[r];
    }
    return {};
  }

  /// Every layout can be changed to every other but for partial sums that nobody made.
  [[nodiscard]] Status check_change(ir::ValueId value,
                                    const ShardingSpec& needed,
                                    const std::string& what,
                                    const std::string& place) const {
    const int axis = missing_partial(given_[value.index()], needed);
    if (axis < 0) {
      return {};
    }
    const auto rank = static_cast<std::size_t>(step_.type(value).rank());
    const ir::OpId producer = step_.value(value).producer;
    Error error =
        invalid_input(what + " must be partial over mesh axis \"" + axis_name(axis) + "\" (" +
                          to_string(needed, rank, plan_.mesh) + "), but " +
                          (producer.valid() ? op_label(step_, producer) : labels_.label(value)) +
                          " gives " + to_string(given_[value.index()], rank, plan_.mesh),
                      place);
    error.notes.emplace_back(
        "choose a strategy that takes whole values here, or one that leaves "
        "a partial value there");
    return error;
  }

  [[nodiscard]] Status check_write(const ir::Write& write) const {
    return check_change(write.value,
                        given_[write.target.index()],
                        "the value that is written back",
                        "layouts / " + labels_.label(write.target));
  }

  [[nodiscard]] Status check_blocks() const {
    const std::vector<std::string> known = blocks_of(step_);
    std::set<std::string> seen;
    for (const auto& [block, how] : plan_.recompute) {
      if (how == Recompute::kNone) {
        return invalid_input("block \"" + block + "\" is listed and yet kept", "recompute");
      }
      if (std::find(known.begin(), known.end(), block) == known.end()) {
        return with_suggestion(
            invalid_input("no block is named \"" + block + "\"", "recompute"), block, known);
      }
      if (!seen.insert(block).second) {
        return invalid_input("block \"" + block + "\" is listed twice", "recompute");
      }
    }
    return {};
  }

  [[nodiscard]] const std::string& axis_name(int axis) const {
    return plan_.mesh.axes[static_cast<std::size_t>(axis)].name;
  }

  const Plan& plan_;
  const ir::Graph& step_;
  ValueLabels labels_;
  std::vector<ShardingSpec> given_;  ///< by value; replicated unless the plan says otherwise
};

}  // namespace

Status check_mesh(const cluster::DeviceMesh& mesh, const cluster::Cluster& cluster) {
  if (mesh.axes.size() > sharding::kMaxMeshAxes) {
    return invalid_input("it has " + std::to_string(mesh.axes.size()) + " axes, at most " +
                             std::to_string(sharding::kMaxMeshAxes) + " are supported",
                         "mesh");
  }
  const std::int64_t devices = cluster.device_count();
  std::set<std::string> names;
  std::int64_t rest = devices;
  bool fits = true;
  for (const cluster::MeshAxis& axis : mesh.axes) {
    if (!is_writable_name(axis.name)) {
      return invalid_input(
          "\"" + axis.name + "\" is no name for an axis: use letters, digits, \"_\", \"-\", \".\"",
          "mesh");
    }
    if (!names.insert(axis.name).second) {
      return invalid_input("two axes are named \"" + axis.name + "\"", "mesh");
    }
    if (axis.size < 1) {
      return invalid_input("axis \"" + axis.name + "\" has size " + std::to_string(axis.size) +
                               ", which must be at least 1",
                           "mesh");
    }
    // Divides instead of multiplying: a product of wrong sizes may not fit an integer.
    fits = fits && rest % axis.size == 0;
    rest = fits ? rest / axis.size : rest;
  }
  if (!fits || rest != 1) {
    return invalid_input("the sizes of its axes (" + cluster::to_string(mesh) +
                             ") do not multiply to the " + std::to_string(devices) +
                             " devices of the cluster",
                         "mesh");
  }
  return {};
}

Status check_graph_hash(const Plan& plan, const ir::Graph& step) {
  const std::string hash = ir::structural_hash(step);
  if (plan.graph_hash == hash) {
    return {};
  }
  Error error =
      invalid_input("the plan was made for another training step: its graph has the hash " +
                        plan.graph_hash + ", this one has " + hash,
                    "graph_hash");
  error.notes.emplace_back(
      "the model or the recipe (optimizer, precision, clipping, microbatches) "
      "has changed: make the plan again");
  return error;
}

namespace {

Status check_pipeline(const Plan& plan, const Pipeline& pipeline, const ir::Graph& step) {
  SHARDPLAN_ASSIGN_OR_RETURN(
      const training::StagedStep staged,
      training::split_into_stages(
          step, pipeline.stage_of, pipeline.weights_later, pipeline.pipelines));
  if (staged.stages.size() != pipeline.stages.size()) {
    return invalid_input("it has plans of " + std::to_string(pipeline.stages.size()) +
                             " stages, and cuts the step into " +
                             std::to_string(staged.stages.size()),
                         "pipeline / stages");
  }
  std::int64_t devices = 0;
  for (std::size_t s = 0; s < staged.stages.size(); ++s) {
    if (const Status status = check(pipeline.stages[s], staged.stages[s].graph); !status) {
      const std::string place = "pipeline / stages / " + std::to_string(s);
      const Error& error = status.error();
      return at(error, error.location.empty() ? place : place + " / " + error.location);
    }
    devices += pipeline.stages[s].mesh.size();
  }
  const auto chunks =
      static_cast<std::int64_t>(staged.stages.size()) / std::max(1, pipeline.devices);
  if (devices != plan.cluster.device_count() * chunks) {
    return invalid_input("its stages have " + std::to_string(devices) + " devices, " +
                             std::to_string(chunks) + " stages on each, of " +
                             std::to_string(plan.cluster.device_count()),
                         "pipeline");
  }
  return {};
}

/// So many devices in one level, with the links of the outermost level.
cluster::Cluster joined_by_outer_links(const cluster::Cluster& whole, std::int64_t devices) {
  cluster::Cluster part = whole;
  const auto outer = std::find_if(whole.levels.begin(),
                                  whole.levels.end(),
                                  [](const cluster::LinkLevel& level) { return level.fanout > 1; });
  part.levels = {*outer};
  part.levels.front().fanout = devices;
  part.levels.front().collective_curves.clear();
  part.name = std::to_string(devices) + " of " + whole.name;
  return part;
}

}  // namespace

Result<cluster::Cluster> stage_cluster(const cluster::Cluster& whole, std::int64_t devices) {
  Result<cluster::Cluster> filled = cluster::part_of(whole, devices);
  if (!filled && devices >= 1 && devices < whole.device_count()) {
    filled = joined_by_outer_links(whole, devices);
  }
  SHARDPLAN_ASSIGN_OR_RETURN(cluster::Cluster part, std::move(filled));
  // part_of() makes processes faster when there are fewer on the machine; here there are not.
  part.device = whole.device;
  return part;
}

Status check(const Plan& plan, const ir::Graph& step) {
  SHARDPLAN_RETURN_IF_ERROR(check_graph_hash(plan, step));
  if (plan.pipeline) {
    return check_pipeline(plan, *plan.pipeline, step);
  }
  SHARDPLAN_RETURN_IF_ERROR(check_mesh(plan.mesh, plan.cluster));
  if (plan.recipe.microbatches != step.microbatches) {
    return invalid_input("the recipe has " + std::to_string(plan.recipe.microbatches) +
                             " microbatches, the training step " +
                             std::to_string(step.microbatches),
                         "recipe");
  }
  if (plan.strategies.size() != step.ops().size()) {
    return invalid_input("there are " + std::to_string(plan.strategies.size()) +
                             " strategies for the " + std::to_string(step.ops().size()) +
                             " ops of the training step",
                         "strategies");
  }
  return Checker(plan, step).run();
}

}  // namespace shardplan::plan
