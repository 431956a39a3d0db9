#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "shardplan/sim/pipeline.h"
#include "shardplan/sim/sim.h"

namespace shardplan::sim {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMicroseconds = 1e6;  // the format's unit
constexpr int kProcess = 0;
constexpr int kComputeThread = 0;
constexpr int kCommunicationThread = 1;

std::string_view phase_name(ir::Phase phase) {
  switch (phase) {
    case ir::Phase::kForward:
      return "forward";
    case ir::Phase::kBackward:
      return "backward";
    case ir::Phase::kUpdate:
      return "update";
  }
  return "";
}

/// A metadata event: the name of a process or thread.
Json named(const char* what, int process, int thread, const std::string& name) {
  return {
      {"ph", "M"}, {"name", what}, {"pid", process}, {"tid", thread}, {"args", {{"name", name}}}};
}

Json complete_event(const Event& event) {
  Json args = {{"layer", event.layer}};
  if (event.microbatch >= 0) {
    args["microbatch"] = event.microbatch;
  }
  if (event.recompute) {
    args["recompute"] = true;
  }
  return {{"ph", "X"},
          {"name", event.name},
          {"cat", event.recompute ? std::string_view("recompute") : phase_name(event.phase)},
          {"pid", kProcess},
          {"tid", event.communication ? kCommunicationThread : kComputeThread},
          {"ts", event.start * kMicroseconds},
          {"dur", (event.end - event.start) * kMicroseconds},
          {"args", std::move(args)}};
}

std::string text(Json events) {
  const Json trace = {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  // Layer names come from files: bytes that are no UTF-8 are replaced, not an error.
  return trace.dump(-1, ' ', false, Json::error_handler_t::replace);
}

struct WorkText {
  const char* name;
  const char* category;
};

WorkText text_of(lower::Work work) {
  switch (work) {
    case lower::Work::kForward:
      return {"forward", "forward"};
    case lower::Work::kBackward:
      return {"backward", "backward"};
    case lower::Work::kBackwardInput:
      return {"backward of inputs", "backward"};
    case lower::Work::kBackwardWeight:
      return {"backward of weights", "weights"};
    case lower::Work::kUpdate:
      return {"update", "update"};
  }
  return {"", ""};
}

/// A process of the trace for each group of devices.
class PipelineTrace {
 public:
  PipelineTrace(const PipelineSimulation& simulation, const lower::PipelineProgram& program)
      : simulation_(simulation), program_(program) {}

  Json run() {
    const lower::Schedule& schedule = program_.schedule;
    for (int group = 0; group < schedule.devices; ++group) {
      begin_group(group);
      const auto g = static_cast<std::size_t>(group);
      for (std::size_t t = 0; t < schedule.tasks[g].size(); ++t) {
        const lower::Task& task = schedule.tasks[g][t];
        const ScheduleTime::Span span = simulation_.schedule.tasks[g][t];
        add_task(group, task, span);
        add_message(group, task, span.end);
      }
    }
    return std::move(events_);
  }

 private:
  void begin_group(int group) {
    lane_ends_.clear();
    const auto g = static_cast<std::size_t>(group);
    const std::int64_t first = program_.first_rank[g];
    const std::int64_t last = program_.first_rank[g + 1] - 1;
    events_.push_back(named("process_name",
                            group,
                            kComputeThread,
                            first == last
                                ? fmt::format("group {}, rank {}", group, first)
                                : fmt::format("group {}, ranks {}-{}", group, first, last)));
    events_.push_back(named("thread_name", group, kComputeThread, "compute"));
  }

  void add_task(int group, const lower::Task& task, const ScheduleTime::Span& span) {
    const WorkText work = text_of(task.work);
    Json args = {{"stage", task.stage}};
    if (program_.schedule.pipelines > 1) {
      args["pipeline"] = lower::pipeline_of(program_.schedule, task, group);
    }
    std::string name = fmt::format("{}, stage {}", work.name, task.stage);
    if (task.work != lower::Work::kUpdate) {
      args["microbatch"] = task.microbatch;
      name = fmt::format("{} {}, stage {}", work.name, task.microbatch, task.stage);
    }
    add({group, kComputeThread}, name, work.category, span, std::move(args));
  }

  /// From the end of the pass that sends it, where it goes to another group.
  void add_message(int group, const lower::Task& task, Seconds start) {
    const bool forward = task.work == lower::Work::kForward;
    const bool backward =
        task.work == lower::Work::kBackward || task.work == lower::Work::kBackwardInput;
    const int to = task.stage + (forward ? 1 : -1);
    const lower::Schedule& schedule = program_.schedule;
    if ((!forward && !backward) || to < 0 || to >= schedule.stages) {
      return;
    }
    const int pipeline = schedule.pipeline_of[static_cast<std::size_t>(task.microbatch)];
    const std::vector<int>& groups = schedule.device_of[static_cast<std::size_t>(pipeline)];
    if (groups[static_cast<std::size_t>(to)] == group) {
      return;
    }
    const StageTimes& times =
        simulation_.stage_times[static_cast<std::size_t>(program_.stage_of(task, group))];
    const Seconds end = start + (forward ? times.send_forward : times.send_backward);
    add({group, lane(group, start, end)},
        fmt::format(
            "{} {} to stage {}", forward ? "activations" : "gradients", task.microbatch, to),
        "message",
        {start, end},
        {{"stage", task.stage}, {"to", to}, {"microbatch", task.microbatch}});
  }

  /// A thread of the group in which nothing runs at that time: messages do not wait for each other,
  /// and events of one thread cannot overlap.
  int lane(int group, Seconds start, Seconds end) {
    const auto free = std::find_if(
        lane_ends_.begin(), lane_ends_.end(), [&](Seconds lane_end) { return lane_end <= start; });
    const int thread = kCommunicationThread + static_cast<int>(free - lane_ends_.begin());
    if (free != lane_ends_.end()) {
      *free = end;
    } else {
      lane_ends_.push_back(end);
      events_.push_back(named("thread_name", group, thread, "messages"));
    }
    return thread;
  }

  struct Place {
    int process;
    int thread;
  };
  void add(const Place& place,
           const std::string& name,
           const char* category,
           const ScheduleTime::Span& span,
           Json args) {
    events_.push_back({{"ph", "X"},
                       {"name", name},
                       {"cat", category},
                       {"pid", place.process},
                       {"tid", place.thread},
                       {"ts", span.start * kMicroseconds},
                       {"dur", (span.end - span.start) * kMicroseconds},
                       {"args", std::move(args)}});
  }

  const PipelineSimulation& simulation_;
  const lower::PipelineProgram& program_;
  Json events_ = Json::array();
  std::vector<Seconds> lane_ends_{};  ///< of the group's message threads
};

}  // namespace

std::string chrome_trace(const Simulation& simulation) {
  Json events =
      Json::array({named("process_name", kProcess, kComputeThread, "device"),
                   named("thread_name", kProcess, kComputeThread, "compute"),
                   named("thread_name", kProcess, kCommunicationThread, "communication")});
  for (const Event& event : simulation.timeline) {
    events.push_back(complete_event(event));
  }
  return text(std::move(events));
}

std::string chrome_trace(const PipelineSimulation& simulation,
                         const lower::PipelineProgram& program) {
  return text(PipelineTrace(simulation, program).run());
}

}  // namespace shardplan::sim
