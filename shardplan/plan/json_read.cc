// Plans from JSON, described for people in docs/plan.md. Trusts nothing: every field has its type
// and range checked here, and what the fields mean together is checked by check().
#include <limits>
#include <utility>

#include "shardplan/ops/op.h"
#include "shardplan/plan/check.h"
#include "shardplan/plan/json_format.h"
#include "shardplan/plan/json_reader.h"
#include "shardplan/plan/labels.h"
#include "shardplan/plan/plan.h"
#include "shardplan/training/stages.h"

namespace shardplan::plan {
namespace {

constexpr std::int64_t kMaxCount = std::int64_t{1} << 40;

/// Puts the place of a part of the document before an error's own place.
Error within(Error error, const std::string& place) {
  error.location = error.location.empty() ? place : place + ": " + error.location;
  return error;
}

/// A text field that another room parses.
template <class T, class Parse>
Status read_with(const JsonValue& parent, const std::string& name, T& out, const Parse& parse) {
  SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue value, parent.field(name));
  SHARDPLAN_ASSIGN_OR_RETURN(const std::string text, value.text());
  Result<T> parsed = parse(text);
  if (!parsed) {
    return within(std::move(parsed).error(), value.place());
  }
  out = std::move(parsed).value();
  return {};
}

Status read_text(const JsonValue& parent, const std::string& name, std::string& out) {
  return read_with(
      parent, name, out, [](const std::string& text) -> Result<std::string> { return text; });
}

Status read_recipe(const JsonValue& document, training::Recipe& recipe) {
  SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue value, document.field("recipe"));
  SHARDPLAN_RETURN_IF_ERROR(value.only({"optimizer", "precision", "clip_norm", "microbatches"}));
  SHARDPLAN_RETURN_IF_ERROR(
      read_with(value, "optimizer", recipe.optimizer, training::parse_optimizer));
  SHARDPLAN_RETURN_IF_ERROR(
      read_with(value, "precision", recipe.precision, training::parse_precision));
  SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue clip, value.field("clip_norm"));
  SHARDPLAN_ASSIGN_OR_RETURN(recipe.clip_norm, clip.number(0));
  SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue microbatches, value.field("microbatches"));
  SHARDPLAN_ASSIGN_OR_RETURN(recipe.microbatches, microbatches.integer(1, kMaxCount));
  return {};
}

Status read_cluster(const JsonValue& document, cluster::Cluster& cluster) {
  SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue value, document.field("cluster"));
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<JsonValue> lines, value.items());
  std::string yaml;
  for (const JsonValue& line : lines) {
    SHARDPLAN_ASSIGN_OR_RETURN(const std::string text, line.text());
    yaml += text + "\n";
  }
  SHARDPLAN_ASSIGN_OR_RETURN(cluster, cluster::parse_cluster_yaml(yaml, value.place()));
  return {};
}

Status read_mesh(const JsonValue& document, const std::string& where, Plan& plan) {
  SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue value, document.field("mesh"));
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<JsonValue> axes, value.items());
  for (const JsonValue& axis : axes) {
    cluster::MeshAxis out;
    SHARDPLAN_RETURN_IF_ERROR(axis.only({"axis", "size"}));
    SHARDPLAN_RETURN_IF_ERROR(read_text(axis, "axis", out.name));
    SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue size, axis.field("size"));
    SHARDPLAN_ASSIGN_OR_RETURN(out.size, size.integer(1, kMaxCount));
    plan.mesh.axes.push_back(std::move(out));
  }
  if (document.has("pipeline")) {
    return {};  // the stages have meshes
  }
  if (Status status = check_mesh(plan.mesh, plan.cluster); !status) {
    return within(std::move(status).error(), where);
  }
  return {};
}

Status read_seconds(const JsonValue& parent, const std::string& name, double& out) {
  if (!parent.has(name)) {
    return {};
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue value, parent.field(name));
  if (!value.is_null()) {
    SHARDPLAN_ASSIGN_OR_RETURN(out, value.number(0));
  }
  return {};
}

Status read_bytes(const JsonValue& parent, const std::string& name, Bytes& out) {
  if (!parent.has(name)) {
    return {};
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue value, parent.field(name));
  SHARDPLAN_ASSIGN_OR_RETURN(out, value.integer(0, std::numeric_limits<Bytes>::max()));
  return {};
}

Status read_rows(const JsonValue& parent, std::vector<BindingRow>& rows) {
  if (!parent.has("binding")) {
    return {};
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue list, parent.field("binding"));
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<JsonValue> items, list.items());
  for (const JsonValue& item : items) {
    SHARDPLAN_RETURN_IF_ERROR(item.only({"where", "bytes", "seconds_per_gib"}));
    BindingRow row;
    SHARDPLAN_RETURN_IF_ERROR(read_text(item, "where", row.where));
    SHARDPLAN_RETURN_IF_ERROR(read_bytes(item, "bytes", row.bytes));
    SHARDPLAN_RETURN_IF_ERROR(read_seconds(item, "seconds_per_gib", row.seconds_per_gib));
    rows.push_back(std::move(row));
  }
  return {};
}

Status read_prediction(const JsonValue& document, Prediction& prediction) {
  if (!document.has("prediction")) {
    return {};
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue value, document.field("prediction"));
  SHARDPLAN_RETURN_IF_ERROR(value.only({"step_seconds",
                                        "additive_seconds",
                                        "objective_seconds",
                                        "lower_bound_seconds",
                                        "gap",
                                        "step_lower_bound_seconds",
                                        "binding",
                                        "peak_bytes",
                                        "memory_limit",
                                        "search_seconds"}));
  SHARDPLAN_RETURN_IF_ERROR(read_seconds(value, "step_seconds", prediction.step_seconds));
  SHARDPLAN_RETURN_IF_ERROR(read_seconds(value, "additive_seconds", prediction.additive_seconds));
  SHARDPLAN_RETURN_IF_ERROR(read_seconds(value, "objective_seconds", prediction.objective_seconds));
  SHARDPLAN_RETURN_IF_ERROR(
      read_seconds(value, "step_lower_bound_seconds", prediction.step_lower_bound_seconds));
  SHARDPLAN_RETURN_IF_ERROR(read_rows(value, prediction.rows));
  SHARDPLAN_RETURN_IF_ERROR(
      read_seconds(value, "lower_bound_seconds", prediction.lower_bound_seconds));
  SHARDPLAN_RETURN_IF_ERROR(read_bytes(value, "peak_bytes", prediction.peak_bytes));
  SHARDPLAN_RETURN_IF_ERROR(read_bytes(value, "memory_limit", prediction.memory_limit));
  SHARDPLAN_RETURN_IF_ERROR(read_seconds(value, "search_seconds", prediction.search_seconds));
  if (!value.has("gap")) {
    return {};
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue gap, value.field("gap"));
  if (!gap.is_null()) {
    // Rounding may put a bound that is met a hair above the plan.
    SHARDPLAN_ASSIGN_OR_RETURN(prediction.gap, gap.number(-1));
  }
  return {};
}

Status read_recompute(const JsonValue& document, Plan& plan) {
  if (!document.has("recompute")) {
    return {};
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue value, document.field("recompute"));
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<JsonValue> blocks, value.items());
  for (const JsonValue& block : blocks) {
    RecomputedBlock entry;
    if (block.is_object()) {
      SHARDPLAN_RETURN_IF_ERROR(block.only({"block", "mode"}));
      SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue name, block.field("block"));
      SHARDPLAN_ASSIGN_OR_RETURN(entry.block, name.text());
      SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue mode, block.field("mode"));
      SHARDPLAN_ASSIGN_OR_RETURN(const std::string how, mode.text());
      if (how != kSelectiveMode && how != kWholeMode) {
        return mode.error("must be \"selective\" or \"whole\"");
      }
      entry.how = how == kSelectiveMode ? Recompute::kSelective : Recompute::kWhole;
    } else {
      SHARDPLAN_ASSIGN_OR_RETURN(entry.block, block.text());
    }
    plan.recompute.push_back(std::move(entry));
  }
  return {};
}

Status read_layouts(const JsonValue& document, const ir::Graph& step, Plan& plan) {
  const ValueLabels labels(step);
  for (std::size_t i = 0; i < step.values().size(); ++i) {
    if (has_layout(step.values()[i])) {
      plan.layouts[ir::ValueId(i)] = {};
    }
  }
  if (!document.has("layouts")) {
    return {};
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue value, document.field("layouts"));
  SHARDPLAN_ASSIGN_OR_RETURN(const auto entries, value.fields());
  for (const auto& [name, entry] : entries) {
    const ir::ValueId id = labels.find(name);
    if (!id.valid()) {
      return with_suggestion(value.error("the training step has no parameter, buffer, state, "
                                         "accumulator or input named \"" +
                                         name + "\""),
                             name,
                             labels.all());
    }
    SHARDPLAN_ASSIGN_OR_RETURN(const std::string text, entry.text());
    const auto rank = static_cast<std::size_t>(step.type(id).rank());
    Result<sharding::ShardingSpec> spec = sharding::parse_spec(text, rank, plan.mesh);
    if (!spec) {
      return within(std::move(spec).error(), entry.place());
    }
    plan.layouts[id] = *spec;
  }
  return {};
}

Status read_strategy(const std::string& layer,
                     const std::string& label,
                     const JsonValue& entry,
                     const ir::Graph& step,
                     Plan& plan) {
  Result<ir::OpId> op = find_op(step, label);
  if (!op) {
    return within(std::move(op).error(), entry.place());
  }
  if (layer_label(step.op(*op)) != layer) {
    return entry.error("this op is in layer \"" + layer_label(step.op(*op)) + "\"");
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const std::string text, entry.text());
  Result<sharding::Strategy> strategy =
      sharding::parse_strategy(text, ops::axis_map(step, *op), plan.mesh);
  if (!strategy) {
    return within(std::move(strategy).error(), entry.place());
  }
  plan.strategies[op->index()] = *strategy;
  return {};
}

Status read_strategies(const JsonValue& document, const ir::Graph& step, Plan& plan) {
  plan.strategies.assign(step.ops().size(), sharding::Strategy{});
  if (!document.has("strategies")) {
    return {};
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue value, document.field("strategies"));
  SHARDPLAN_ASSIGN_OR_RETURN(const auto layers, value.fields());
  for (const auto& [layer, of_layer] : layers) {
    SHARDPLAN_ASSIGN_OR_RETURN(const auto entries, of_layer.fields());
    for (const auto& [label, entry] : entries) {
      SHARDPLAN_RETURN_IF_ERROR(read_strategy(layer, label, entry, step, plan));
    }
  }
  return {};
}

Status read_format(const JsonValue& document) {
  std::string format;
  SHARDPLAN_RETURN_IF_ERROR(read_text(document, "format", format));
  if (format != kFormat) {
    return document.error("its format is \"" + format + "\", a plan has \"" + std::string(kFormat) +
                          "\"");
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue version, document.field("version"));
  SHARDPLAN_ASSIGN_OR_RETURN(const std::int64_t number,
                             version.integer(1, std::numeric_limits<std::int32_t>::max()));
  if (number != kVersion) {
    return document.error("it is a plan of version " + std::to_string(number) +
                          ", this program reads version " + std::to_string(kVersion));
  }
  return {};
}

Status read_binding(const JsonValue& document, Binding& binding) {
  if (!document.has("model_binding")) {
    return {};
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue object, document.field("model_binding"));
  SHARDPLAN_RETURN_IF_ERROR(object.only({"dims", "loss", "target"}));
  if (object.has("dims")) {
    SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue dims, object.field("dims"));
    SHARDPLAN_ASSIGN_OR_RETURN(const auto sizes, dims.fields());
    for (const auto& [name, size] : sizes) {
      SHARDPLAN_ASSIGN_OR_RETURN(binding.dims[name], size.integer(1, kMaxCount));
    }
  }
  if (object.has("loss")) {
    SHARDPLAN_RETURN_IF_ERROR(read_text(object, "loss", binding.loss));
    SHARDPLAN_RETURN_IF_ERROR(read_text(object, "target", binding.target));
  }
  return {};
}

Result<Plan> read_header(const JsonValue& document, const std::string& where) {
  SHARDPLAN_RETURN_IF_ERROR(read_format(document));
  SHARDPLAN_RETURN_IF_ERROR(document.only({"format",
                                           "version",
                                           "planner",
                                           "model",
                                           "model_binding",
                                           "graph_hash",
                                           "recipe",
                                           "mesh",
                                           "cluster",
                                           "prediction",
                                           "pipeline",
                                           "recompute",
                                           "layouts",
                                           "strategies"}));
  Plan plan;
  if (document.has("planner")) {
    SHARDPLAN_RETURN_IF_ERROR(read_text(document, "planner", plan.planner));
  }
  SHARDPLAN_RETURN_IF_ERROR(read_text(document, "model", plan.model));
  SHARDPLAN_RETURN_IF_ERROR(read_binding(document, plan.binding));
  SHARDPLAN_RETURN_IF_ERROR(read_text(document, "graph_hash", plan.graph_hash));
  SHARDPLAN_RETURN_IF_ERROR(read_recipe(document, plan.recipe));
  SHARDPLAN_RETURN_IF_ERROR(read_cluster(document, plan.cluster));
  SHARDPLAN_RETURN_IF_ERROR(read_mesh(document, where, plan));
  return plan;
}

Status read_choices(const JsonValue& document, const ir::Graph& step, Plan& plan) {
  SHARDPLAN_RETURN_IF_ERROR(read_recompute(document, plan));
  SHARDPLAN_RETURN_IF_ERROR(read_layouts(document, step, plan));
  return read_strategies(document, step, plan);
}

Status read_cut(const JsonValue& document, const ir::Graph& step, std::vector<int>& stage_of) {
  constexpr std::int64_t kMostStages = 1 << 20;
  SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue cut, document.field("cut"));
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<JsonValue> entries, cut.items());
  stage_of.assign(step.ops().size(), 0);
  std::size_t begin = 0;
  for (const JsonValue& entry : entries) {
    SHARDPLAN_RETURN_IF_ERROR(entry.only({"from", "layer", "stage"}));
    std::string label;
    SHARDPLAN_RETURN_IF_ERROR(read_text(entry, "from", label));
    Result<ir::OpId> from = find_op(step, label);
    if (!from) {
      return within(std::move(from).error(), entry.place());
    }
    if (from->index() < begin) {
      return entry.error("the cut must name ops in their order");
    }
    begin = from->index();
    SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue number, entry.field("stage"));
    SHARDPLAN_ASSIGN_OR_RETURN(const std::int64_t stage, number.integer(0, kMostStages));
    for (std::size_t i = begin; i < stage_of.size(); ++i) {
      stage_of[i] = step.ops()[i].phase == ir::Phase::kForward ? static_cast<int>(stage) : 0;
    }
  }
  return {};
}

Status read_stage(const JsonValue& document,
                  const std::string& where,
                  const ir::Graph& stage,
                  Plan& plan) {
  SHARDPLAN_RETURN_IF_ERROR(
      document.only({"planner", "mesh", "recompute", "layouts", "strategies"}));
  if (document.has("planner")) {
    SHARDPLAN_RETURN_IF_ERROR(read_text(document, "planner", plan.planner));
  }
  const cluster::Cluster whole = plan.cluster;
  SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue mesh, document.field("mesh"));
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<JsonValue> axes, mesh.items());
  std::int64_t devices = 1;
  for (const JsonValue& axis : axes) {
    SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue size, axis.field("size"));
    SHARDPLAN_ASSIGN_OR_RETURN(const std::int64_t count, size.integer(1, whole.device_count()));
    devices *= count;
    if (devices > whole.device_count()) {
      return mesh.error("it has more devices than the cluster");
    }
  }
  Result<cluster::Cluster> part = stage_cluster(whole, devices);
  if (!part) {
    return within(std::move(part).error(), mesh.place());
  }
  plan.cluster = *std::move(part);
  SHARDPLAN_RETURN_IF_ERROR(read_mesh(document, where, plan));
  return read_choices(document, stage, plan);
}

Status read_pipeline(const JsonValue& document,
                     const ir::Graph& step,
                     const std::string& where,
                     Plan& plan) {
  SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue object, document.field("pipeline"));
  SHARDPLAN_RETURN_IF_ERROR(object.only({"schedule",
                                         "groups",
                                         "weights_later",
                                         "steps",
                                         "pipelines",
                                         "forward_group",
                                         "cut",
                                         "stages"}));
  Pipeline pipeline;
  SHARDPLAN_RETURN_IF_ERROR(read_text(object, "schedule", pipeline.schedule));
  SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue groups, object.field("groups"));
  SHARDPLAN_ASSIGN_OR_RETURN(const std::int64_t count,
                             groups.integer(1, plan.cluster.device_count()));
  pipeline.devices = static_cast<int>(count);
  if (object.has("steps")) {
    SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue steps, object.field("steps"));
    SHARDPLAN_ASSIGN_OR_RETURN(pipeline.steps, steps.integer(1, kMaxCount));
  }
  if (object.has("weights_later")) {
    SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue flag, object.field("weights_later"));
    SHARDPLAN_ASSIGN_OR_RETURN(pipeline.weights_later, flag.boolean());
  }
  if (object.has("pipelines")) {
    SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue pipelines, object.field("pipelines"));
    SHARDPLAN_ASSIGN_OR_RETURN(const std::int64_t copies, pipelines.integer(1, count));
    pipeline.pipelines = static_cast<int>(copies);
  }
  if (object.has("forward_group")) {
    SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue passes, object.field("forward_group"));
    SHARDPLAN_ASSIGN_OR_RETURN(const std::int64_t group, passes.integer(1, 2));
    pipeline.forward_group = static_cast<int>(group);
  }
  SHARDPLAN_RETURN_IF_ERROR(read_cut(object, step, pipeline.stage_of));
  Result<training::StagedStep> staged = training::split_into_stages(
      step, pipeline.stage_of, pipeline.weights_later, pipeline.pipelines);
  if (!staged) {
    Error error = std::move(staged).error();
    if (error.location == "pipeline") {
      error.location.clear();  // the place says so
    }
    return within(std::move(error), object.place());
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const JsonValue list, object.field("stages"));
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<JsonValue> stages, list.items());
  if (stages.size() != staged->stages.size()) {
    return list.error("it has " + std::to_string(stages.size()) + " stages, the cut makes " +
                      std::to_string(staged->stages.size()));
  }
  for (std::size_t s = 0; s < stages.size(); ++s) {
    Plan& stage = pipeline.stages.emplace_back();
    stage.graph_hash = ir::structural_hash(staged->stages[s].graph);
    stage.recipe = plan.recipe;
    stage.cluster = plan.cluster;
    SHARDPLAN_RETURN_IF_ERROR(read_stage(stages[s], where, staged->stages[s].graph, stage));
  }
  plan.pipeline = std::move(pipeline);
  return {};
}

}  // namespace

Result<Plan> parse_header(std::string_view json, const std::string& where) {
  SHARDPLAN_ASSIGN_OR_RETURN(const nlohmann::json document, parse_json(json, where));
  return read_header(JsonValue(document, where), where);
}

Result<Plan> from_json(std::string_view json, const ir::Graph& step, const std::string& where) {
  SHARDPLAN_ASSIGN_OR_RETURN(const nlohmann::json document, parse_json(json, where));
  const JsonValue top(document, where);
  SHARDPLAN_ASSIGN_OR_RETURN(Plan plan, read_header(top, where));
  // Before anything that names ops: after a change of the model their numbers mean nothing.
  if (Status status = check_graph_hash(plan, step); !status) {
    return within(std::move(status).error(), where);
  }
  SHARDPLAN_RETURN_IF_ERROR(read_prediction(top, plan.prediction));
  if (top.has("pipeline")) {
    SHARDPLAN_RETURN_IF_ERROR(read_pipeline(top, step, where, plan));
  } else {
    SHARDPLAN_RETURN_IF_ERROR(read_choices(top, step, plan));
  }
  if (Status status = check(plan, step); !status) {
    return within(std::move(status).error(), where);
  }
  return plan;
}

}  // namespace shardplan::plan
