#include "shardplan/cli/sweep.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "shardplan/plan/plan.h"
#include "shardplan/support/text.h"
#include "shardplan/support/text_plot.h"
#include "shardplan/training/training.h"

namespace shardplan::cli {

namespace {

constexpr std::size_t kMostLimits = 1000;

constexpr std::string_view kDevices = "devices";
constexpr std::string_view kMicrobatches = "microbatches";

/// Whether the text sweeps `what`, on its own or with a list.
bool sweeps(const std::string& text, std::string_view what) {
  return text == what || text.starts_with(std::string(what) + '=');
}

Result<std::int64_t> read_count(const std::string& text,
                                std::string_view what,
                                const std::string& part) {
  std::int64_t count = 0;
  const char* const end = part.data() + part.size();
  const auto [rest, failed] = std::from_chars(part.data(), end, count);
  if (failed != std::errc{} || rest != end || count < 1) {
    return invalid_input(
        fmt::format("'{0}' is no number of {1} in '{2}'; write counts such as {1}=1,2,4,8, or {1} "
                    "alone",
                    part,
                    what,
                    text),
        "--sweep");
  }
  return count;
}

/// The list behind "what="; empty where there is none.
Result<std::vector<std::int64_t>> read_counts(const std::string& text, std::string_view what) {
  std::vector<std::int64_t> counts;
  if (text == what) {
    return counts;
  }
  for (const std::string& part : CLI::detail::split(text.substr(what.size() + 1), ',')) {
    SHARDPLAN_ASSIGN_OR_RETURN(const std::int64_t count, read_count(text, what, part));
    if (!counts.empty() && count <= counts.back()) {
      return invalid_input(fmt::format("the counts in '{}' must grow", text), "--sweep");
    }
    counts.push_back(count);
  }
  return counts;
}

bool interrupted(const std::vector<planners::PlanResult>& results) {
  return std::any_of(results.begin(), results.end(), [](const auto& result) {
    return result.limit == planners::SearchLimit::kInterrupted;
  });
}

std::string gap_text(const plan::Prediction& prediction) {
  return prediction.lower_bound_seconds > 0 ? fmt::format("{:.2f} %", 100 * prediction.gap) : "-";
}

/// What takes the place of the peak where there is no plan.
std::string no_plan_text(const planners::PlanResult& result) {
  return result.status == planners::SearchStatus::kInfeasible
             ? fmt::format("none: needs {}", human_bytes(result.best.prediction.peak_bytes))
             : "none found";
}

void print_memory_table(const std::vector<planners::PlanResult>& results,
                        const std::vector<Bytes>& limits) {
  TextTable table({"memory limit", "peak", "step", "additive", "gap", "recomputed", "mesh"});
  for (std::size_t i = 0; i < limits.size(); ++i) {
    const plan::Plan& plan = results[i].best;
    if (!fits(results[i])) {
      table.add({human_bytes(limits[i]), no_plan_text(results[i]), "-", "-", "-", "-", "-"});
      continue;
    }
    table.add({human_bytes(limits[i]),
               human_bytes(plan.prediction.peak_bytes),
               human_seconds(plan.prediction.step_seconds),
               human_seconds(plan.prediction.additive_seconds),
               gap_text(plan.prediction),
               recompute_text(plan),
               shape_text(plan)});
  }
  fmt::print("{}", table.text());
}

void print_memory_plot(const std::vector<planners::PlanResult>& results,
                       const std::vector<Bytes>& limits) {
  std::vector<PlotPoint> points;
  Seconds fastest = 0;
  Seconds slowest = 0;
  for (std::size_t i = 0; i < limits.size(); ++i) {
    PlotPoint& point = points.emplace_back();
    point.x = static_cast<double>(limits[i]);
    if (fits(results[i])) {
      const Seconds step = results[i].best.prediction.step_seconds;
      point.y = step;
      fastest = fastest > 0 ? std::min(fastest, step) : step;
      slowest = std::max(slowest, step);
    }
  }
  fmt::print("\n{}",
             scatter_plot(points,
                          {human_bytes(limits.front()),
                           human_bytes(limits.back()),
                           human_seconds(fastest),
                           human_seconds(slowest),
                           "memory limit (x: no plan)",
                           "step"}));
}

void print_heading(const Planning& planning) {
  fmt::print("model     {}  {}\n", planning.model, model_text(planning.step));
  fmt::print("cluster   {}  {}\n\n", planning.cluster.name, cluster_text(planning.cluster));
}

/// Samples and tokens of one step over all microbatches, by the first input: its first dimension,
/// and all of it where it holds whole numbers; 0 for what the model does not have.
struct Batch {
  std::int64_t samples = 0;
  std::int64_t tokens = 0;
};

Batch batch_of(const ir::Graph& step) {
  const auto input = std::find_if(step.values().begin(), step.values().end(), [](const auto& v) {
    return v.kind == ir::ValueKind::kInput && v.type.rank() > 0;
  });
  if (input == step.values().end()) {
    return {};
  }
  Batch batch;
  batch.samples = step.microbatches * input->type.shape.front();
  if (input->type.dtype == ir::DType::kInt64 && input->type.rank() == 2) {
    batch.tokens = batch.samples * input->type.shape.back();
  }
  return batch;
}

/// One cluster of a sweep.
struct Scale {
  std::int64_t devices = 0;
  double samples_a_second = 0;
  double tokens_a_second = 0;
  double speed_up = 0;
  double efficiency = 0;
};

/// Against the first cluster that has a plan. Zeros where there is none.
std::vector<Scale> scales(const std::vector<planners::PlanResult>& results, const Batch& batch) {
  std::vector<Scale> out;
  const auto base = std::find_if(results.begin(), results.end(), planners::fits);
  for (const planners::PlanResult& result : results) {
    Scale& scale = out.emplace_back();
    scale.devices = result.best.cluster.device_count();
    if (!fits(result)) {
      continue;
    }
    const Seconds step = result.best.prediction.step_seconds;
    scale.samples_a_second = static_cast<double>(batch.samples) / step;
    scale.tokens_a_second = static_cast<double>(batch.tokens) / step;
    scale.speed_up = base->best.prediction.step_seconds / step;
    scale.efficiency = scale.speed_up * static_cast<double>(base->best.cluster.device_count()) /
                       static_cast<double>(scale.devices);
  }
  return out;
}

void print_device_table(const std::vector<planners::PlanResult>& results, const Batch& batch) {
  const bool text = batch.tokens > 0;
  TextTable table({"devices",
                   "step",
                   text ? "tokens/s" : "samples/s",
                   "speed-up",
                   "efficiency",
                   "memory",
                   "gap",
                   "recomputed",
                   "mesh"});
  const std::vector<Scale> rows = scales(results, batch);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const plan::Plan& plan = results[i].best;
    const std::string devices = std::to_string(rows[i].devices);
    if (!fits(results[i])) {
      table.add({devices, "-", "-", "-", "-", no_plan_text(results[i]), "-", "-", "-"});
      continue;
    }
    table.add({devices,
               human_seconds(plan.prediction.step_seconds),
               human_count(text ? rows[i].tokens_a_second : rows[i].samples_a_second),
               fmt::format("{:.2f}", rows[i].speed_up),
               fmt::format("{:.0f} %", 100 * rows[i].efficiency),
               human_bytes(plan.prediction.peak_bytes),
               gap_text(plan.prediction),
               recompute_text(plan),
               shape_text(plan)});
  }
  fmt::print("{}", table.text());
}

void print_microbatch_table(const std::vector<planners::PlanResult>& results,
                            const std::vector<Planning>& plannings) {
  TextTable table({"microbatches", "step", "memory", "recomputed", "mesh"});
  for (std::size_t i = 0; i < results.size(); ++i) {
    const plan::Plan& plan = results[i].best;
    const std::string count = std::to_string(plannings[i].recipe.microbatches);
    if (!fits(results[i])) {
      table.add({count, "-", no_plan_text(results[i]), "-", "-"});
      continue;
    }
    table.add({count,
               human_seconds(plan.prediction.step_seconds),
               human_bytes(plan.prediction.peak_bytes),
               recompute_text(plan),
               shape_text(plan)});
  }
  fmt::print("{}", table.text());
}

nlohmann::ordered_json device_json(const std::vector<planners::PlanResult>& results,
                                   const Batch& batch,
                                   const std::string& planner) {
  nlohmann::ordered_json plans = nlohmann::ordered_json::array();
  const std::vector<Scale> rows = scales(results, batch);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    nlohmann::ordered_json object;
    object["devices"] = rows[i].devices;
    if (fits(results[i])) {
      object["samples_per_second"] = rows[i].samples_a_second;
      if (batch.tokens > 0) {
        object["tokens_per_second"] = rows[i].tokens_a_second;
      }
      object["speed_up"] = rows[i].speed_up;
      object["efficiency"] = rows[i].efficiency;
    }
    object.update(plan_json(results[i], planner));
    plans.push_back(std::move(object));
  }
  return plans;
}

}  // namespace

Error infeasible(const planners::PlanResult& result, const std::string& planner) {
  const bool searched = !result.explanation.empty();
  return Error{ErrorCode::kInfeasible,
               searched
                   ? result.explanation
                   : fmt::format("{} found no plan; give it more time (--time-limit)", planner),
               "",
               {}};
}

Result<std::vector<Bytes>> read_limits(const std::string& text) {
  if (text.find(':') == std::string::npos) {
    SHARDPLAN_ASSIGN_OR_RETURN(const Bytes one, read_memory(text));
    return std::vector<Bytes>{one};
  }
  const std::vector<std::string> parts = CLI::detail::split(text, ':');
  if (parts.size() != 3) {
    return invalid_input(
        fmt::format("'{}' is no sweep; write FROM:TO:STEP, such as 20GiB:80GiB:5GiB", text),
        "--memory");
  }
  std::vector<Bytes> ends;
  for (const std::string& part : parts) {
    SHARDPLAN_ASSIGN_OR_RETURN(const Bytes end, read_memory(part.empty() ? "''" : part));
    ends.push_back(end);
  }
  if (ends[1] < ends[0]) {
    return invalid_input(fmt::format("'{}' ends below its start", text), "--memory");
  }
  std::vector<Bytes> limits;
  for (Bytes limit = ends[0]; limit <= ends[1]; limit += ends[2]) {
    limits.push_back(limit);
    if (limits.size() > kMostLimits) {
      return invalid_input(
          fmt::format("'{}' has more than {} limits; make the step larger", text, kMostLimits),
          "--memory");
    }
  }
  return limits;
}

Result<std::vector<cluster::Cluster>> read_device_sweep(const std::string& text,
                                                        const cluster::Cluster& cluster) {
  if (!sweeps(text, kDevices)) {
    return invalid_input(fmt::format("'{}' is nothing to sweep; write devices, devices=1,2,4,8, "
                                     "microbatches or microbatches=1,2,4,8 (memory is swept by "
                                     "--memory FROM:TO:STEP)",
                                     text),
                         "--sweep");
  }
  SHARDPLAN_ASSIGN_OR_RETURN(std::vector<std::int64_t> counts, read_counts(text, kDevices));
  if (counts.empty()) {
    for (std::int64_t count = 1; count < cluster.device_count(); count *= 2) {
      counts.push_back(count);
    }
    counts.push_back(cluster.device_count());
  }
  std::vector<cluster::Cluster> clusters;
  for (const std::int64_t count : counts) {
    Result<cluster::Cluster> part = cluster::part_of(cluster, count);
    if (part) {
      clusters.push_back(std::move(*part));
    } else if (text.find('=') != std::string::npos) {
      Error error = std::move(part).error();
      error.location = "--sweep";
      return error;
    }
  }
  return clusters;
}

bool sweeps_microbatches(const std::string& text) {
  return sweeps(text, kMicrobatches);
}

Result<std::vector<Planning>> read_microbatch_sweep(const std::string& text,
                                                    const Planning& planning) {
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<std::int64_t> counts,
                             read_counts(text, kMicrobatches));
  SHARDPLAN_ASSIGN_OR_RETURN(const ir::Graph forward,
                             load_model(planning.model, planning.binding, false));
  SHARDPLAN_ASSIGN_OR_RETURN(std::vector<Planning::Alternative> all,
                             in_microbatches(forward, planning.recipe, counts));
  std::vector<Planning> out;
  for (Planning::Alternative& alternative : all) {
    Planning with = planning;
    with.recipe = alternative.recipe;
    with.step = std::move(alternative.step);
    out.push_back(std::move(with));
  }
  return out;
}

Result<int> sweep_memory(const planners::PlannerInfo& planner,
                         const Planning& planning,
                         const std::vector<Bytes>& limits,
                         const Session& session) {
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<planners::PlanResult> results,
                             make_plans(planner, planning, limits, session.control));
  const std::string name(planner.name);
  const bool any = std::any_of(results.begin(), results.end(), planners::fits);
  if (session.json) {
    nlohmann::ordered_json object;
    object["sweep"] = "memory";
    object["interrupted"] = interrupted(results);
    object["plans"] = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < limits.size(); ++i) {
      nlohmann::ordered_json plan = plan_json(results[i], name);
      plan["memory_limit"] = limits[i];
      object["plans"].push_back(std::move(plan));
    }
    print_json(object);
  } else if (any) {
    clear_progress();
    print_heading(planning);
    print_memory_table(results, limits);
    print_memory_plot(results, limits);
    const auto last = std::find_if_not(results.rbegin(), results.rend(), planners::fits);
    if (last != results.rend()) {
      fmt::print("\n{}\n", infeasible(*last, name).text());
    }
    if (interrupted(results)) {
      fmt::print("\nInterrupted: these are the best plans so far.\n");
    }
  }
  if (!any) {
    return infeasible(results.back(), name);
  }
  return 0;
}

Result<int> sweep_microbatches(const planners::PlannerInfo& planner,
                               const std::vector<Planning>& plannings,
                               Bytes limit,
                               const std::string& output,
                               const Session& session) {
  std::vector<planners::PlanResult> results;
  for (const Planning& planning : plannings) {
    session.control.report(
        fmt::format("planning {} microbatches", planning.recipe.microbatches),
        static_cast<double>(results.size()) / static_cast<double>(plannings.size()));
    SHARDPLAN_ASSIGN_OR_RETURN(planners::PlanResult result,
                               make_plan(planner, planning, limit, session.control));
    results.push_back(std::move(result));
    if (session.control.interrupted()) {
      break;
    }
  }
  const std::string name(planner.name);
  const auto best =
      std::min_element(results.begin(), results.end(), [](const auto& a, const auto& b) {
        return fits(a) != fits(b) ? fits(a)
                                  : a.best.prediction.step_seconds < b.best.prediction.step_seconds;
      });
  const bool any = fits(*best);
  const Planning& of_best = plannings[static_cast<std::size_t>(best - results.begin())];
  if (any && !output.empty()) {
    SHARDPLAN_RETURN_IF_ERROR(write_file(output, plan::to_json(best->best, of_best.step)));
  }
  if (session.json) {
    nlohmann::ordered_json object;
    object["sweep"] = "microbatches";
    object["interrupted"] = interrupted(results);
    object["plans"] = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < results.size(); ++i) {
      nlohmann::ordered_json plan = plan_json(results[i], name);
      plan["microbatches"] = plannings[i].recipe.microbatches;
      object["plans"].push_back(std::move(plan));
    }
    object["fastest"] =
        any ? nlohmann::ordered_json(of_best.recipe.microbatches) : nlohmann::ordered_json(nullptr);
    if (any && !output.empty()) {
      object["file"] = output;
    }
    print_json(object);
  } else if (any) {
    clear_progress();
    print_heading(of_best);
    print_microbatch_table(results, plannings);
    const std::int64_t count = of_best.recipe.microbatches;
    fmt::print("\nfastest   {} microbatch{}{}\n",
               count,
               count == 1 ? "" : "es",
               output.empty() ? "; give -o plan.json to keep the plan" : ", written to " + output);
    print_remarks(*best);
    if (interrupted(results)) {
      fmt::print("Interrupted: {}\n",
                 results.size() < plannings.size() ? "larger numbers are missing."
                                                   : "the last is the best plan so far.");
    }
  }
  if (!any) {
    return infeasible(results.back(), name);
  }
  return 0;
}

Result<int> sweep_devices(const planners::PlannerInfo& planner,
                          const Planning& planning,
                          const std::vector<cluster::Cluster>& clusters,
                          Bytes limit,
                          const Session& session) {
  std::vector<planners::PlanResult> results;
  Planning part = planning;
  for (const cluster::Cluster& cluster : clusters) {
    session.control.report(
        fmt::format("planning for {} devices", cluster.device_count()),
        static_cast<double>(results.size()) / static_cast<double>(clusters.size()));
    part.cluster = cluster;
    SHARDPLAN_ASSIGN_OR_RETURN(planners::PlanResult result,
                               make_plan(planner, part, limit, session.control));
    result.best.cluster = cluster;
    results.push_back(std::move(result));
    if (session.control.interrupted()) {
      break;
    }
  }
  const std::string name(planner.name);
  const bool any = std::any_of(results.begin(), results.end(), planners::fits);
  const Batch batch = batch_of(planning.step);
  if (session.json) {
    nlohmann::ordered_json object;
    object["sweep"] = "devices";
    object["interrupted"] = interrupted(results);
    object["plans"] = device_json(results, batch, name);
    print_json(object);
  } else if (any) {
    clear_progress();
    print_heading(planning);
    print_device_table(results, batch);
    if (interrupted(results)) {
      fmt::print("\nInterrupted: the last is the best plan so far, larger ones are missing.\n");
    }
  }
  if (!any) {
    return infeasible(results.back(), name);
  }
  return 0;
}

}  // namespace shardplan::cli
