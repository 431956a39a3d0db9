#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "shardplan/cli/command.h"
#include "shardplan/cli/session.h"
#include "shardplan/plan/labels.h"
#include "shardplan/sim/certificate.h"
#include "shardplan/sim/pipeline_certificate.h"
#include "shardplan/support/text.h"

namespace shardplan::cli {

namespace {

/// Sums of doubles in another order differ by this much.
constexpr double kRounding = 1e-9;

/// One thing that a plan says of itself.
struct Claim {
  std::string name;
  bool holds = false;
  std::string wrong;  ///< what is the case instead
};

/// The limit that the plan was made for, else the device's memory.
Bytes limit_of(const plan::Plan& plan) {
  return plan.prediction.memory_limit > 0 ? plan.prediction.memory_limit
                                          : plan.cluster.device.memory;
}

/// A plan that was written by hand may say nothing of its time and bytes.
bool says_nothing(const plan::Prediction& said) {
  return said.step_seconds == 0 && said.additive_seconds == 0 && said.objective_seconds == 0 &&
         said.lower_bound_seconds == 0 && said.step_lower_bound_seconds == 0 && said.gap == 0 &&
         said.peak_bytes == 0 && said.rows.empty();
}

/// What was counted, whether there are stages or not.
struct Found {
  Seconds additive_seconds = 0;
  Seconds kernel_seconds = 0;
  Seconds least_step_seconds = 0;
  Seconds most_step_seconds = 0;
  Bytes peak_bytes = 0;
  std::string peak_place{};
  std::optional<sim::PipelineCertificate> pipeline{};
};

/// What a plan file says, held against its program.
class Claims {
 public:
  Claims(const plan::Plan& plan, const Found& found)
      : plan_(plan), said_(plan.prediction), found_(found) {}

  std::vector<Claim> check() {
    if (!says_nothing(said_)) {
      check_seconds();
      check_bytes();
      check_proof();
    }
    const Bytes limit = limit_of(plan_);
    claim("memory_limit",
          found_.peak_bytes <= limit,
          fmt::format("the program needs {} bytes, the limit is {}", found_.peak_bytes, limit));
    return std::move(claims_);
  }

 private:
  void check_seconds() {
    if (plan_.pipeline) {
      claim("additive_seconds",
            at_most(said_.additive_seconds, said_.step_seconds) &&
                at_most(said_.step_seconds, said_.additive_seconds),
            fmt::format("the plan says {}; a pipeline's is its step_seconds, {}",
                        seconds(said_.additive_seconds),
                        seconds(said_.step_seconds)));
    } else {
      equal("additive_seconds", said_.additive_seconds, found_.additive_seconds);
    }
    claim("step_seconds",
          at_most(found_.least_step_seconds, said_.step_seconds) &&
              at_most(said_.step_seconds, found_.most_step_seconds),
          fmt::format("the plan says {}, its program takes {} to {}",
                      seconds(said_.step_seconds),
                      seconds(found_.least_step_seconds),
                      seconds(found_.most_step_seconds)));
  }

  void check_bytes() {
    claim("peak_bytes",
          said_.peak_bytes == found_.peak_bytes,
          fmt::format(
              "the plan says {} bytes, its program needs {}", said_.peak_bytes, found_.peak_bytes));
    const Bytes limit = limit_of(plan_);
    for (const plan::BindingRow& row : said_.rows) {
      claim("binding",
            row.bytes <= limit && row.seconds_per_gib >= 0,
            fmt::format("{} has {} bytes and {:.9g} s a GiB, the limit is {} bytes",
                        row.where,
                        row.bytes,
                        row.seconds_per_gib,
                        limit));
    }
  }

  void check_proof() {
    in_order("objective_seconds",
             said_.objective_seconds,
             "additive_seconds",
             plan_.pipeline ? said_.additive_seconds : found_.additive_seconds);
    in_order("lower_bound_seconds",
             said_.lower_bound_seconds,
             "objective_seconds",
             said_.objective_seconds);
    in_order("step_lower_bound_seconds",
             said_.step_lower_bound_seconds,
             "step_seconds",
             said_.step_seconds);
    const double gap =
        said_.lower_bound_seconds > 0 ? said_.objective_seconds / said_.lower_bound_seconds - 1 : 0;
    claim("gap",
          std::abs(said_.gap - gap) <= kRounding,
          fmt::format("the plan says {:.9g}, its objective and bound give {:.9g}", said_.gap, gap));
  }

  void equal(const char* name, Seconds said, Seconds found) {
    claim(name,
          at_most(said, found) && at_most(found, said),
          fmt::format("the plan says {}, its program takes {}", seconds(said), seconds(found)));
  }

  void in_order(const char* name, Seconds value, const char* other, Seconds most) {
    claim(name,
          at_most(value, most),
          fmt::format("{} is above {}, {}", seconds(value), other, seconds(most)));
  }

  void claim(const char* name, bool holds, std::string wrong) {
    claims_.push_back({name, holds, holds ? "" : std::move(wrong)});
  }

  /// False for what is no number.
  [[nodiscard]] static bool at_most(Seconds low, Seconds high) {
    return low <= high * (1 + kRounding);
  }
  [[nodiscard]] static std::string seconds(Seconds value) { return fmt::format("{:.9g} s", value); }

  const plan::Plan& plan_;
  const plan::Prediction& said_;
  const Found& found_;
  std::vector<Claim> claims_;
};

/// "transformer.h.3 / einsum.42, all_gather".
std::string place_of(const lower::Step& step, const ir::Graph& graph) {
  std::string place = plan::op_place(graph, step.op);
  if (step.recompute) {
    place += ", run again";
  }
  if (step.kind == lower::StepKind::kCollective) {
    place += fmt::format(", {}", sharding::collective_name(step.collective.kind));
  }
  return place;
}

Result<Found> count(const LoadedPlan& loaded) {
  SHARDPLAN_ASSIGN_OR_RETURN(const sim::Certificate counted,
                             sim::certify(loaded.program, loaded.step, cost_model_of(loaded.plan)));
  Found found;
  found.additive_seconds = counted.additive_seconds;
  found.kernel_seconds = counted.kernel_seconds;
  // Kernels take one stream and collectives another, or all of it one after the other.
  const Seconds messages = found.additive_seconds - found.kernel_seconds;
  found.least_step_seconds =
      loaded.plan.cluster.local ? found.additive_seconds : std::max(found.kernel_seconds, messages);
  found.most_step_seconds = found.additive_seconds;
  found.peak_bytes = counted.peak_bytes;
  const auto& section = counted.peak_in_update ? loaded.program.update : loaded.program.microbatch;
  found.peak_place = place_of(section[counted.peak_step], loaded.step);
  return found;
}

/// "group 1, F(1, 3): transformer.h.3 / einsum.42".
std::string place_of(const sim::PipelineCertificate::Peak& peak,
                     const lower::PipelineProgram& program) {
  const auto stage = static_cast<std::size_t>(peak.task.stage);
  const lower::Program& of_stage = program.programs[stage];
  const auto& section = peak.in_update ? of_stage.update : of_stage.microbatch;
  const std::string task = peak.in_update ? fmt::format("update of stage {}", peak.task.stage)
                                          : lower::task_text(peak.task);
  return fmt::format("group {}, {}: {}",
                     peak.group,
                     task,
                     place_of(section[peak.step], program.stages[stage].graph));
}

Result<Found> count_pipeline(const LoadedPlan& loaded,
                             const lower::PipelineProgram& program,
                             const std::vector<plan::Plan>& stages) {
  Found found;
  SHARDPLAN_ASSIGN_OR_RETURN(
      found.pipeline,
      sim::certify_pipeline(
          program, loaded.plan.cluster, stages, /*in_line=*/loaded.plan.cluster.local));
  found.additive_seconds = found.pipeline->additive_seconds;
  found.kernel_seconds = found.pipeline->kernel_seconds;
  found.least_step_seconds = found.pipeline->least_step_seconds;
  found.most_step_seconds = found.pipeline->most_step_seconds;
  found.peak_bytes = found.pipeline->peak.bytes;
  found.peak_place = place_of(found.pipeline->peak, program);
  return found;
}

nlohmann::ordered_json to_object(const LoadedPlan& loaded,
                                 const Found& found,
                                 const std::vector<Claim>& claims) {
  const plan::Prediction& said = loaded.plan.prediction;
  nlohmann::ordered_json object;
  object["ok"] = std::all_of(claims.begin(), claims.end(), [](const Claim& c) { return c.holds; });
  object["additive_seconds"] = found.additive_seconds;
  object["compute_seconds"] = found.kernel_seconds;
  object["peak_bytes"] = found.peak_bytes;
  object["peak_at"] = found.peak_place;
  if (found.pipeline) {
    object["least_step_seconds"] = found.least_step_seconds;
    object["most_step_seconds"] = found.most_step_seconds;
    object["group_peak_bytes"] = found.pipeline->peak_bytes;
  }
  object["memory_limit"] = limit_of(loaded.plan);
  object["objective_seconds"] = said.objective_seconds;
  object["lower_bound_seconds"] = said.lower_bound_seconds;
  object["gap"] = said.gap;
  object["claims"] = nlohmann::ordered_json::array();
  for (const Claim& claim : claims) {
    nlohmann::ordered_json row{{"name", claim.name}, {"holds", claim.holds}};
    if (!claim.holds) {
      row["wrong"] = claim.wrong;
    }
    object["claims"].push_back(std::move(row));
  }
  return object;
}

void print_table(const LoadedPlan& loaded, const Found& found) {
  const plan::Plan& plan = loaded.plan;
  const plan::Prediction& said = plan.prediction;
  fmt::print("plan      {} of {} on {}, mesh {}\n",
             plan.planner,
             plan.model,
             plan.cluster.name,
             shape_text(plan));
  const char* const verdict =
      says_nothing(said) ? "of which the plan says nothing" : "as the plan says";
  if (found.pipeline) {
    fmt::print("step      {}  {}; its longest chain of tasks takes {} to {}\n",
               human_seconds(says_nothing(said) ? found.most_step_seconds : said.step_seconds),
               verdict,
               human_seconds(found.least_step_seconds),
               human_seconds(found.most_step_seconds));
    fmt::print("schedule  {} passes, each once; {} messages, all elements of each arrive\n",
               found.pipeline->passes,
               found.pipeline->messages);
  } else {
    fmt::print("objective {}  {}; kernels {}, collectives {}\n",
               human_seconds(found.additive_seconds),
               verdict,
               human_seconds(found.kernel_seconds),
               human_seconds(found.additive_seconds - found.kernel_seconds));
  }
  fmt::print("peak      {}  {}; at {}\n", human_bytes(found.peak_bytes), verdict, found.peak_place);
  fmt::print("limit     {}  met\n", human_bytes(limit_of(plan)));
  if (said.lower_bound_seconds > 0) {
    fmt::print("bound     {}  not above the least found, {}; gap {:.3f} %\n",
               human_seconds(said.lower_bound_seconds),
               human_seconds(said.objective_seconds),
               100 * said.gap);
  } else {
    fmt::print("bound     none: the plan claims none\n");
  }
  if (!said.rows.empty()) {
    fmt::print("binding   {} {} within the limit\n",
               said.rows.size(),
               said.rows.size() == 1 ? "moment" : "moments");
  }
}

/// The first claim that does not hold, with the others as notes.
Error broken(const std::vector<Claim>& claims, const std::string& file) {
  Error error{ErrorCode::kNotEqual, "", file, {}};
  for (const Claim& claim : claims) {
    if (claim.holds) {
      continue;
    }
    std::string text = fmt::format("{} does not hold: {}", claim.name, claim.wrong);
    if (error.message.empty()) {
      error.message = std::move(text);
    } else {
      error.notes.push_back(std::move(text));
    }
  }
  return error;
}

Result<int> check_plan(const std::string& file, const Session& session) {
  SHARDPLAN_RETURN_IF_ERROR(require(file, "check-plan", "a PLAN file"));
  SHARDPLAN_ASSIGN_OR_RETURN(const LoadedPlan loaded, load_plan(file));
  SHARDPLAN_ASSIGN_OR_RETURN(
      const Found found,
      loaded.pipeline&& loaded.plan.pipeline
          ? count_pipeline(loaded, *loaded.pipeline, loaded.plan.pipeline->stages)
          : count(loaded));
  const std::vector<Claim> claims = Claims(loaded.plan, found).check();
  if (session.json) {
    print_json(to_object(loaded, found, claims));
  }
  if (!std::all_of(claims.begin(), claims.end(), [](const Claim& c) { return c.holds; })) {
    return broken(claims, file);
  }
  if (!session.json) {
    print_table(loaded, found);
  }
  return 0;
}

}  // namespace

Action add_check_plan(CLI::App& app) {
  const auto file = std::make_shared<std::string>();
  app.add_option("PLAN", *file, "file that shardplan plan wrote");
  return [file](const Session& session) { return check_plan(*file, session); };
}

}  // namespace shardplan::cli
