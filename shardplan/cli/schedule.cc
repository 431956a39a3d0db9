#include "shardplan/lower/schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "shardplan/cli/command.h"
#include "shardplan/sim/schedule_time.h"
#include "shardplan/support/text.h"

namespace shardplan::cli {

namespace {

constexpr std::size_t kLineWidth = 118;
constexpr double kMostCells = 1e5;  // of a drawing that somebody could look at

struct ScheduleCommand {
  std::string name{};
  lower::ScheduleShape shape{};
  std::string times = "1,1,1";
  std::string scaling = "concatenation";
  std::string warm_up = "short";
  std::vector<std::string> given{};  ///< of the options that only some schedules have
};

/// Whether some device has more than one stage, so that a pass must be told by both.
bool several_stages(const lower::Schedule& schedule) {
  return schedule.stages > schedule.devices || schedule.pipelines > 1;
}

int list_schedules(const Session& session) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  TextTable table({"name", "year", "what it does", "own options", "paper"});
  for (const lower::ScheduleInfo& info : lower::schedules()) {
    std::vector<std::string> options;
    options.reserve(info.options.size());
    for (const std::string_view option : info.options) {
      options.push_back(fmt::format("--{}", option));
    }
    list.push_back({{"name", info.name},
                    {"paper", info.paper},
                    {"year", info.year},
                    {"summary", info.summary},
                    {"options", options}});
    table.add({std::string(info.name),
               fmt::format("{}", info.year),
               std::string(info.summary),
               fmt::format("{}", fmt::join(options, " ")),
               std::string(info.paper)});
  }
  if (session.json) {
    print_json(list);
  } else {
    fmt::print("{}\nDraw one: shardplan schedule NAME --stages S --microbatches M\n", table.text());
  }
  return 0;
}

/// "1,1,0.5": forward, backward of inputs, backward of weights.
Result<sim::StageTimes> read_times(const std::string& text) {
  std::array<double, 3> values{};
  std::size_t count = 0;
  const char* next = text.data();
  const char* const end = text.data() + text.size();
  while (count < values.size()) {
    const auto [rest, failed] = std::from_chars(next, end, values.at(count));
    if (failed != std::errc{} || !std::isfinite(values.at(count)) || values.at(count) < 0) {
      break;
    }
    ++count;
    next = rest;
    if (count < values.size() && (next == end || *next++ != ',')) {
      break;
    }
  }
  if (count < values.size() || next != end || values[0] <= 0) {
    return invalid_input(
        fmt::format(
            "'{}' is no list of three times, as in 1,1,0.5: of a forward pass (above 0), of "
            "the gradients of a stage's inputs, and of its weights",
            text),
        "--times");
  }
  sim::StageTimes times;
  times.forward = values[0];
  times.backward_input = values[1];
  times.backward_weight = values[2];
  times.backward = values[1] + values[2];
  return times;
}

/// Refuses options that the schedule does not have: left out silently, they would answer another
/// question.
Status check_options(const lower::ScheduleInfo& info, const ScheduleCommand& command) {
  for (const std::string& option : command.given) {
    if (std::find(info.options.begin(), info.options.end(), option) == info.options.end()) {
      std::vector<std::string_view> with;
      for (const lower::ScheduleInfo& other : lower::schedules()) {
        if (std::find(other.options.begin(), other.options.end(), option) != other.options.end()) {
          with.push_back(other.name);
        }
      }
      return invalid_input(
          fmt::format("{} has no such option; these have: {}", info.name, fmt::join(with, ", ")),
          fmt::format("--{}", option));
    }
  }
  return {};
}

/// Cells of one slot each, by device: the pass that begins in it by its name, "-" while it goes on,
/// "." where the device is idle.
std::vector<std::vector<std::string>> cells(const lower::Schedule& schedule,
                                            const sim::ScheduleTime& time,
                                            Seconds slot) {
  const bool name_stages = several_stages(schedule);
  std::vector<std::vector<std::string>> rows;
  for (std::size_t device = 0; device < schedule.tasks.size(); ++device) {
    std::vector<std::string>& row =
        rows.emplace_back(static_cast<std::size_t>(std::llround(time.makespan / slot)), ".");
    for (std::size_t i = 0; i < schedule.tasks[device].size(); ++i) {
      const lower::Task& task = schedule.tasks[device][i];
      const sim::ScheduleTime::Span& span = time.tasks[device][i];
      const auto first = static_cast<std::size_t>(std::llround(span.start / slot));
      const auto last = static_cast<std::size_t>(std::llround(span.end / slot));
      for (std::size_t cell = first; cell < std::min(last, row.size()); ++cell) {
        row[cell] = cell > first ? "-"
                                 : fmt::format("{}{}{}",
                                               name_stages ? fmt::format("{}", task.stage) : "",
                                               lower::letter(task.work),
                                               task.microbatch);
      }
    }
  }
  return rows;
}

void draw(const lower::Schedule& schedule, const sim::ScheduleTime& time, Seconds slot) {
  if (time.makespan / slot * schedule.devices > kMostCells) {
    fmt::print("({} slots on {} devices are too many to draw; --json lists them)\n\n",
               std::llround(time.makespan / slot),
               schedule.devices);
    return;
  }
  const std::vector<std::vector<std::string>> rows = cells(schedule, time, slot);
  std::size_t width = 1;
  for (const std::vector<std::string>& row : rows) {
    for (const std::string& cell : row) {
      width = std::max(width, cell.size());
    }
  }
  const std::string head = fmt::format("device {}", schedule.devices - 1);
  const std::size_t a_line =
      std::max<std::size_t>(1, (kLineWidth - std::min(kLineWidth, head.size() + 2)) / (width + 1));
  for (std::size_t begin = 0; begin < rows.front().size(); begin += a_line) {
    const std::size_t end = std::min(rows.front().size(), begin + a_line);
    for (std::size_t device = 0; device < rows.size(); ++device) {
      std::string line = fmt::format("{:<{}}", fmt::format("device {}", device), head.size());
      for (std::size_t cell = begin; cell < end; ++cell) {
        const std::string& text = rows[device][cell];
        const char fill = text == "-" ? '-' : ' ';
        line += (fill == '-' ? "-" : " ") + text;
        // What goes on is joined to its name.
        const bool goes_on = cell + 1 < end && rows[device][cell + 1] == "-";
        line += std::string(width - text.size(), goes_on || fill == '-' ? '-' : ' ');
      }
      line.erase(line.find_last_not_of(' ') + 1);
      fmt::print("{}\n", line);
    }
    fmt::print("\n");
  }
}

void print_schedule(const lower::Schedule& schedule,
                    const sim::ScheduleTime& time,
                    const sim::StageTimes& times) {
  Seconds slot = times.forward;
  for (const Seconds pass : {times.backward_input, times.backward_weight}) {
    slot = pass > 0 ? std::min(slot, pass) : slot;
  }
  fmt::print("{}: {} stages on {} devices, {} microbatches\n\n",
             schedule.name,
             schedule.stages,
             schedule.devices,
             schedule.microbatches);
  draw(schedule, time, slot);
  fmt::print(
      "{}F forward, {}; the number behind it is the microbatch{}\n",
      several_stages(schedule) ? "first the stage; " : "",
      lower::has_parts(schedule) ? "I gradient of the inputs, W of the weights" : "B backward",
      schedule.synchronous ? "" : "; updates follow backward passes at once");
  fmt::print("time          {:g} ({:g} on a device from its first pass to its last)\n",
             time.makespan,
             time.period);
  fmt::print("bubble        {:g}, {:.1f} % of that\n", time.bubble, 100 * time.bubble_ratio());
  fmt::print("in flight     {} passes, by device\n",
             fmt::join(lower::microbatches_in_flight(schedule), " "));
  fmt::print("weights       {} versions, by stage{}\n",
             fmt::join(schedule.weight_versions, " "),
             schedule.pipelines > 1 ? fmt::format(", on {} devices each", schedule.pipelines) : "");
  fmt::print("messages      {} must have room to wait between two stages\n",
             schedule.channel_capacity);
}

nlohmann::ordered_json to_json(const lower::Schedule& schedule, const sim::ScheduleTime& time) {
  nlohmann::ordered_json devices = nlohmann::ordered_json::array();
  for (std::size_t device = 0; device < schedule.tasks.size(); ++device) {
    nlohmann::ordered_json tasks = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < schedule.tasks[device].size(); ++i) {
      const lower::Task& task = schedule.tasks[device][i];
      tasks.push_back({{"work", std::string(1, lower::letter(task.work))},
                       {"stage", task.stage},
                       {"microbatch", task.microbatch},
                       {"weight_version", task.weight_version},
                       {"start", time.tasks[device][i].start},
                       {"end", time.tasks[device][i].end}});
    }
    devices.push_back(std::move(tasks));
  }
  return {{"name", schedule.name},
          {"devices", schedule.devices},
          {"stages", schedule.stages},
          {"microbatches", schedule.microbatches},
          {"pipelines", schedule.pipelines},
          {"device_of", schedule.device_of},
          {"pipeline_of", schedule.pipeline_of},
          {"synchronous", schedule.synchronous},
          {"update_every", schedule.update_every},
          {"weight_versions", schedule.weight_versions},
          {"in_flight", lower::microbatches_in_flight(schedule)},
          {"channel_capacity", schedule.channel_capacity},
          {"time", time.makespan},
          {"period", time.period},
          {"bubble", time.bubble},
          {"bubble_ratio", time.bubble_ratio()},
          {"tasks", std::move(devices)}};
}

Result<int> show_schedule(const Session& session, const ScheduleCommand& command) {
  if (command.name.empty()) {
    return list_schedules(session);
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const lower::ScheduleInfo* info, lower::find_schedule(command.name));
  SHARDPLAN_RETURN_IF_ERROR(check_options(*info, command));
  lower::ScheduleShape shape = command.shape;
  if (command.scaling != "concatenation") {
    shape.scaling = command.scaling == "doubling" ? lower::ChimeraScaling::kForwardDoubling
                                                  : lower::ChimeraScaling::kBackwardHalving;
  }
  shape.warm_up = command.warm_up == "long" ? lower::WarmUp::kLong : lower::WarmUp::kShort;
  SHARDPLAN_ASSIGN_OR_RETURN(const sim::StageTimes times, read_times(command.times));
  SHARDPLAN_ASSIGN_OR_RETURN(const lower::Schedule schedule, info->make(shape));
  SHARDPLAN_RETURN_IF_ERROR(lower::check(schedule));
  SHARDPLAN_ASSIGN_OR_RETURN(
      const sim::ScheduleTime time,
      sim::time_schedule(
          schedule,
          std::vector<sim::StageTimes>(static_cast<std::size_t>(schedule.stages), times)));
  if (session.json) {
    print_json(to_json(schedule, time));
  } else {
    print_schedule(schedule, time, times);
  }
  return 0;
}

}  // namespace

Action add_schedule(CLI::App& app) {
  const auto command = std::make_shared<ScheduleCommand>();
  lower::ScheduleShape& shape = command->shape;
  shape.chunks = 2;
  app.add_option("NAME", command->name, "a schedule; without one, all are listed");
  app.add_option("--stages", shape.devices, "devices of the pipeline, of one stage each or more");
  app.add_option("--microbatches", shape.microbatches, "of one batch");
  app.add_option(
         "--times",
         command->times,
         "of a forward pass and of the gradients of inputs and weights, of one stage: F,B,W")
      ->capture_default_str();
  std::vector<CLI::Option*> own;
  own.push_back(app.add_option("--chunks", shape.chunks, "stages a device")->capture_default_str());
  own.push_back(app.add_option("--pipelines", shape.pipelines, "that share the devices")
                    ->capture_default_str());
  own.push_back(app.add_option("--scaling",
                               command->scaling,
                               "how it takes more microbatches than devices: concatenation, "
                               "doubling (of forward passes) or halving (of backward passes)")
                    ->check(CLI::IsMember({"concatenation", "doubling", "halving"}))
                    ->capture_default_str());
  own.push_back(app.add_option("--warm-up",
                               command->warm_up,
                               "short, or long where transfers take as long as passes")
                    ->check(CLI::IsMember({"short", "long"}))
                    ->capture_default_str());
  own.push_back(app.add_option("--max-in-flight",
                               shape.max_in_flight,
                               "microbatches whose activations fit the memory; 0 = all"));
  own.push_back(app.add_option("--batches", shape.batches, "that follow without a flush")
                    ->capture_default_str());
  return [command, own](const Session& session) {
    for (const CLI::Option* option : own) {
      if (option->count() > 0) {
        command->given.push_back(option->get_lnames().front());
      }
    }
    return show_schedule(session, *command);
  };
}

}  // namespace shardplan::cli
