// Plans to JSON, described for people in docs/plan.md. What is replicated is left out.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "shardplan/ops/op.h"
#include "shardplan/plan/json_format.h"
#include "shardplan/plan/labels.h"
#include "shardplan/plan/plan.h"
#include "shardplan/training/stages.h"

namespace shardplan::plan {
namespace {

using nlohmann::ordered_json;

ordered_json write_recipe(const training::Recipe& recipe) {
  return {{"optimizer", training::to_string(recipe.optimizer)},
          {"precision", training::to_string(recipe.precision)},
          {"clip_norm", recipe.clip_norm},
          {"microbatches", recipe.microbatches}};
}

ordered_json write_mesh(const cluster::DeviceMesh& mesh) {
  ordered_json out = ordered_json::array();
  for (const cluster::MeshAxis& axis : mesh.axes) {
    out.push_back({{"axis", axis.name}, {"size", axis.size}});
  }
  return out;
}

/// The YAML text as a list of lines, so that it can be read and edited inside JSON.
ordered_json write_cluster(const cluster::Cluster& cluster) {
  const std::string yaml = cluster::to_yaml(cluster);
  ordered_json lines = ordered_json::array();
  for (std::size_t start = 0; start < yaml.size();) {
    const std::size_t end = std::min(yaml.find('\n', start), yaml.size());
    lines.push_back(yaml.substr(start, end - start));
    start = end + 1;
  }
  return lines;
}

ordered_json write_binding(const Binding& binding) {
  ordered_json out = ordered_json::object();
  if (!binding.dims.empty()) {
    out["dims"] = binding.dims;
  }
  if (!binding.loss.empty()) {
    out["loss"] = binding.loss;
    out["target"] = binding.target;
  }
  return out;
}

/// JSON has no infinities; null stands for "not known".
ordered_json write_number(double number) {
  return std::isfinite(number) ? ordered_json(number) : ordered_json(nullptr);
}

ordered_json write_rows(const std::vector<BindingRow>& rows) {
  ordered_json out = ordered_json::array();
  for (const BindingRow& row : rows) {
    out.push_back({{"where", row.where},
                   {"bytes", row.bytes},
                   {"seconds_per_gib", write_number(row.seconds_per_gib)}});
  }
  return out;
}

ordered_json write_prediction(const Prediction& prediction) {
  return {{"step_seconds", write_number(prediction.step_seconds)},
          {"additive_seconds", write_number(prediction.additive_seconds)},
          {"objective_seconds", write_number(prediction.objective_seconds)},
          {"lower_bound_seconds", write_number(prediction.lower_bound_seconds)},
          {"gap", write_number(prediction.gap)},
          {"step_lower_bound_seconds", write_number(prediction.step_lower_bound_seconds)},
          {"binding", write_rows(prediction.rows)},
          {"peak_bytes", prediction.peak_bytes},
          {"memory_limit", prediction.memory_limit},
          {"search_seconds", write_number(prediction.search_seconds)}};
}

ordered_json write_layouts(const Plan& plan, const ir::Graph& step) {
  const ValueLabels labels(step);
  ordered_json out = ordered_json::object();
  for (const auto& [id, spec] : plan.layouts) {
    if (!spec.fully_replicated()) {
      const auto rank = static_cast<std::size_t>(step.type(id).rank());
      out[labels.label(id)] = to_string(spec, rank, plan.mesh);
    }
  }
  return out;
}

ordered_json write_strategies(const Plan& plan, const ir::Graph& step) {
  ordered_json out = ordered_json::object();
  for (std::size_t i = 0; i < plan.strategies.size(); ++i) {
    const ir::OpId op(i);
    if (plan.strategies[i] != sharding::Strategy{}) {
      out[layer_label(step.op(op))][op_label(step, op)] =
          to_string(plan.strategies[i], ops::axis_map(step, op), plan.mesh);
    }
  }
  return out;
}

/// A block that runs again whole is its name alone.
ordered_json write_recompute(const Plan& plan) {
  ordered_json out = ordered_json::array();
  for (const RecomputedBlock& block : plan.recompute) {
    if (block.how == Recompute::kWhole) {
      out.push_back(block.block);
    } else {
      out.push_back({{"block", block.block}, {"mode", kSelectiveMode}});
    }
  }
  return out;
}

void write_choices(const Plan& plan, const ir::Graph& step, ordered_json& out) {
  out["recompute"] = write_recompute(plan);
  out["layouts"] = write_layouts(plan, step);
  out["strategies"] = write_strategies(plan, step);
}

/// The stage of a forward op is that of the nearest op before it which the cut names.
ordered_json write_pipeline(const Pipeline& pipeline, const ir::Graph& step) {
  ordered_json out;
  out["schedule"] = pipeline.schedule;
  out["groups"] = pipeline.devices;
  if (pipeline.steps != 1) {
    out["steps"] = pipeline.steps;
  }
  if (pipeline.weights_later) {
    out["weights_later"] = true;
  }
  if (pipeline.pipelines != 1) {
    out["pipelines"] = pipeline.pipelines;
  }
  if (pipeline.forward_group != 1) {
    out["forward_group"] = pipeline.forward_group;
  }
  out["cut"] = ordered_json::array();
  int last = -1;
  for (std::size_t i = 0; i < step.ops().size(); ++i) {
    if (step.ops()[i].phase == ir::Phase::kForward && pipeline.stage_of[i] != last) {
      last = pipeline.stage_of[i];
      out["cut"].push_back({{"from", op_label(step, ir::OpId(i))},
                            {"layer", layer_label(step.ops()[i])},
                            {"stage", last}});
    }
  }
  out["stages"] = ordered_json::array();
  const Result<training::StagedStep> staged = training::split_into_stages(
      step, pipeline.stage_of, pipeline.weights_later, pipeline.pipelines);
  SHARDPLAN_CHECK(staged.has_value()) << staged.error().text();
  for (std::size_t s = 0; s < pipeline.stages.size(); ++s) {
    ordered_json stage;
    stage["planner"] = pipeline.stages[s].planner;
    stage["mesh"] = write_mesh(pipeline.stages[s].mesh);
    write_choices(pipeline.stages[s], staged->stages[s].graph, stage);
    out["stages"].push_back(std::move(stage));
  }
  return out;
}

}  // namespace

std::string to_json(const Plan& plan, const ir::Graph& step) {
  ordered_json out;
  out["format"] = kFormat;
  out["version"] = kVersion;
  out["planner"] = plan.planner;
  out["model"] = plan.model;
  if (plan.binding != Binding{}) {
    out["model_binding"] = write_binding(plan.binding);
  }
  out["graph_hash"] = plan.graph_hash;
  out["recipe"] = write_recipe(plan.recipe);
  out["mesh"] = write_mesh(plan.mesh);
  out["cluster"] = write_cluster(plan.cluster);
  out["prediction"] = write_prediction(plan.prediction);
  if (plan.pipeline) {
    out["pipeline"] = write_pipeline(*plan.pipeline, step);
  } else {
    write_choices(plan, step, out);
  }
  return out.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace shardplan::plan
