#include <nlohmann/json.hpp>

#include "shardplan/sim/sim.h"

namespace shardplan::sim {
namespace {

using Json = nlohmann::ordered_json;

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
Json named(const char* what, int thread, const char* name) {
  return {
      {"ph", "M"}, {"name", what}, {"pid", kProcess}, {"tid", thread}, {"args", {{"name", name}}}};
}

Json complete_event(const Event& event) {
  constexpr double kMicroseconds = 1e6;  // the format's unit
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

}  // namespace

std::string chrome_trace(const Simulation& simulation) {
  Json events = Json::array({named("process_name", kComputeThread, "device"),
                             named("thread_name", kComputeThread, "compute"),
                             named("thread_name", kCommunicationThread, "communication")});
  for (const Event& event : simulation.timeline) {
    events.push_back(complete_event(event));
  }
  const Json trace = {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  // Layer names come from files: bytes that are no UTF-8 are replaced, not an error.
  return trace.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace shardplan::sim
