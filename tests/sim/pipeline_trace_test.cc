#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "shardplan/sim/pipeline.h"

namespace shardplan::sim {
namespace {

using nlohmann::json;

/// Groups of two ranks, and nothing but a schedule.
lower::PipelineProgram program_of(const std::string& schedule,
                                  int groups,
                                  std::int64_t microbatches) {
  lower::ScheduleShape shape;
  shape.devices = groups;
  shape.microbatches = microbatches;
  lower::PipelineProgram program;
  program.schedule = lower::find_schedule(schedule).value()->make(shape).value();
  for (int group = 0; group <= groups; ++group) {
    program.first_rank.push_back(std::int64_t{2} * group);
  }
  return program;
}

PipelineSimulation simulation_of(const lower::PipelineProgram& program, const StageTimes& times) {
  PipelineSimulation simulation;
  simulation.stage_times.assign(static_cast<std::size_t>(program.schedule.stages), times);
  simulation.schedule = time_schedule(program.schedule, simulation.stage_times).value();
  return simulation;
}

std::vector<json> spans(const json& trace) {
  std::vector<json> found;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") {
      found.push_back(event);
    }
  }
  return found;
}

TEST(PipelineTrace, TwoStagesByHand) {
  const lower::PipelineProgram program = program_of("gpipe", 2, 1);
  StageTimes times;
  times.forward = 1;
  times.backward = 2;
  times.update = 0.5;
  times.send_forward = 0.25;
  times.send_backward = 0.125;
  const json trace = json::parse(chrome_trace(simulation_of(program, times), program));
  const std::vector<std::tuple<std::string, int, double, double>> expected = {
      {"forward 0, stage 0", 0, 0, 1e6},
      {"activations 0 to stage 1", 0, 1e6, 0.25e6},
      {"backward 0, stage 0", 0, 4.375e6, 2e6},
      {"update, stage 0", 0, 6.375e6, 0.5e6},
      {"forward 0, stage 1", 1, 1.25e6, 1e6},
      {"backward 0, stage 1", 1, 2.25e6, 2e6},
      {"gradients 0 to stage 0", 1, 4.25e6, 0.125e6},
      {"update, stage 1", 1, 4.25e6, 0.5e6},
  };
  std::vector<std::tuple<std::string, int, double, double>> found;
  for (const json& span : spans(trace)) {
    found.emplace_back(span.at("name"), span.at("pid"), span.at("ts"), span.at("dur"));
  }
  EXPECT_EQ(found, expected);
  EXPECT_EQ(trace.at("traceEvents")[0].at("args").at("name"), "group 0, ranks 0-1");
}

// Messages that take longer than passes get threads of their own.
TEST(PipelineTrace, NoThreadHasTwoSpansAtOnce) {
  for (const char* const name : {"1f1b", "zb_h1", "interleaved_1f1b", "breadth_first"}) {
    const lower::PipelineProgram program = program_of(name, 4, 8);
    StageTimes times;
    times.forward = 1;
    times.backward = 2;
    times.backward_input = 1;
    times.backward_weight = 1;
    times.send_forward = 3.5;
    times.send_backward = 2.5;
    const json trace = json::parse(chrome_trace(simulation_of(program, times), program));
    std::map<std::pair<int, int>, double> free;
    std::map<std::string, int> count;
    std::vector<json> all = spans(trace);
    std::stable_sort(all.begin(), all.end(), [](const json& a, const json& b) {
      return a.at("ts").get<double>() < b.at("ts").get<double>();
    });
    for (const json& span : all) {
      double& end = free[{span.at("pid"), span.at("tid")}];
      EXPECT_GE(span.at("ts").get<double>(), end - 1e-6) << name << span;
      end = span.at("ts").get<double>() + span.at("dur").get<double>();
      ++count[span.at("cat")];
    }
    const auto passes = static_cast<int>(8 * program.schedule.stages);
    EXPECT_EQ(count["forward"], passes) << name;
    EXPECT_EQ(count["backward"], passes) << name;
    EXPECT_EQ(count["weights"], lower::has_parts(program.schedule) ? passes : 0) << name;
    EXPECT_EQ(count["update"], program.schedule.stages) << name;
    EXPECT_EQ(count["message"], 2 * 8 * (program.schedule.stages - 1)) << name;
  }
}

}  // namespace
}  // namespace shardplan::sim
