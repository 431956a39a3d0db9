#include "shardplan/sim/schedule_time.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace shardplan::sim {
namespace {

using lower::Schedule;
using lower::ScheduleShape;

struct PassTimes {
  Seconds forward = 1;
  Seconds input = 1;
  Seconds weight = 1;
};

/// `times` are those of all stages of one device together.
ScheduleTime run(const Schedule& schedule, const PassTimes& times = {}) {
  const double share = static_cast<double>(schedule.devices) / schedule.stages;
  StageTimes stage;
  stage.forward = times.forward * share;
  stage.backward = (times.input + times.weight) * share;
  stage.backward_input = times.input * share;
  stage.backward_weight = times.weight * share;
  const auto timed = time_schedule(
      schedule, std::vector<StageTimes>(static_cast<std::size_t>(schedule.stages), stage));
  EXPECT_TRUE(timed) << timed.error().text();
  return timed.value();
}

Schedule make(std::string_view name, const ScheduleShape& shape) {
  const auto made = (*lower::find_schedule(name))->make(shape);
  EXPECT_TRUE(made) << made.error().text();
  return made.value();
}

ScheduleShape shape(int devices, std::int64_t microbatches, int chunks = 1) {
  ScheduleShape shape;
  shape.devices = devices;
  shape.microbatches = microbatches;
  shape.chunks = chunks;
  return shape;
}

constexpr double kNear = 1e-9;
constexpr PassTimes kUneven{1.25, 1.5, 0.75};

TEST(ScheduleTime, FlushedSchedulesFillAndDrainOnce) {
  for (int p = 1; p <= 8; ++p) {
    for (std::int64_t m = 1; m <= 20; ++m) {
      for (const PassTimes& t : {PassTimes{}, kUneven}) {
        const Seconds bubble = (p - 1) * (t.forward + t.input + t.weight);
        for (const std::string_view name : {"gpipe", "1f1b", "dapple", "breadth_first"}) {
          const ScheduleTime time = run(make(name, shape(p, m)), t);
          EXPECT_NEAR(time.bubble, bubble, kNear) << name;
          EXPECT_NEAR(time.bubble_ratio(), (p - 1.0) / (static_cast<double>(m) + p - 1), kNear);
          EXPECT_NEAR(time.makespan, time.period, kNear);
        }
      }
    }
  }
}

TEST(ScheduleTime, SeveralStagesADeviceDivideTheBubble) {
  for (int p = 1; p <= 8; ++p) {
    for (int v = 1; v <= 4; ++v) {
      for (std::int64_t m = p; m <= std::int64_t{4} * p; m += p) {
        for (const PassTimes& t : {PassTimes{}, kUneven}) {
          const Seconds bubble = (p - 1) * (t.forward + t.input + t.weight) / v;
          EXPECT_NEAR(run(make("interleaved_1f1b", shape(p, m, v)), t).bubble, bubble, kNear);
          EXPECT_NEAR(run(make("breadth_first", shape(p, m, v)), t).bubble, bubble, kNear);
        }
      }
    }
  }
}

TEST(ScheduleTime, WeightGradientsFillGaps) {
  for (int p = 1; p <= 8; ++p) {
    for (std::int64_t m = p; m <= 24; ++m) {
      for (const PassTimes& t : {PassTimes{}, kUneven, PassTimes{1, 1.1, 0.9}}) {
        EXPECT_NEAR(run(make("zb_h1", shape(p, m)), t).bubble,
                    (p - 1) * (t.forward + t.input - t.weight),
                    kNear);
        if (m >= 2 * p - 1) {
          EXPECT_NEAR(run(make("zb_h2", shape(p, m)), t).bubble,
                      (p - 1) * (t.forward + t.input - 2 * t.weight),
                      kNear);
        }
      }
      const double ratio = run(make("zb_h1", shape(p, m))).bubble / (3.0 * static_cast<double>(m));
      EXPECT_NEAR(ratio, (p - 1) / (3.0 * static_cast<double>(m)), kNear);
      if (m >= 2 * p - 1) {
        EXPECT_NEAR(run(make("zb_v", shape(p, m))).bubble, 0, kNear);
      }
    }
  }
}

TEST(ScheduleTime, ChimeraTakesThePublishedSlots) {
  const PassTimes slots{1, 0.5, 0.5};
  for (int d = 2; d <= 12; d += 2) {
    for (int f = 1; f <= d / 2; ++f) {
      if (d / 2 % f != 0) {
        continue;
      }
      for (int k = 1; k <= 4; ++k) {
        ScheduleShape asked = shape(d, std::int64_t{k} * d);
        asked.pipelines = 2 * f;
        const int published = 2 * k * d + d / f - 2;
        EXPECT_NEAR(run(make("chimera", asked), slots).makespan, published, kNear);
      }
    }
  }
  ScheduleShape asked = shape(8, 8);
  EXPECT_NEAR(run(make("chimera", shape(4, 4)), slots).makespan, 10, kNear);
  EXPECT_NEAR(run(make("chimera", asked), slots).makespan, 22, kNear);
  EXPECT_NEAR(run(make("chimera", shape(8, 16)), slots).makespan, 38, kNear);
  asked.pipelines = 4;
  EXPECT_NEAR(run(make("chimera", asked), slots).makespan, 18, kNear);
}

TEST(ScheduleTime, DoublingAndHalvingLeaveNoGapsWhereBackwardTakesTwice) {
  const PassTimes twice{1, 1, 1};
  for (int d = 4; d <= 12; d += 2) {
    for (int k = 1; k <= 3; ++k) {
      ScheduleShape asked = shape(d, 2 * std::int64_t{k} * d);
      const ScheduleTime concatenated = run(make("chimera", asked), twice);
      asked.scaling = lower::ChimeraScaling::kForwardDoubling;
      const ScheduleTime doubled = run(make("chimera", asked), twice);
      // Slots of two forward passes or one backward pass: D − 2 idle ones at most, of 2 each.
      EXPECT_LE(doubled.makespan, 3 * 2 * k * d + 2 * (d - 2) + kNear);
      EXPECT_LE(doubled.makespan, concatenated.makespan);
      asked.microbatches /= 2;
      asked.scaling = lower::ChimeraScaling::kBackwardHalving;
      EXPECT_NEAR(run(make("chimera", asked), twice).makespan, doubled.makespan, kNear);
    }
  }
}

TEST(ScheduleTime, AsynchronousSchedulesHaveNoBubbleInTheSteadyState) {
  for (int p = 1; p <= 8; ++p) {
    for (const PassTimes& t : {PassTimes{}, kUneven}) {
      const ScheduleShape asked = shape(p, 40);
      const std::vector<Schedule> both = {make("pipedream", asked), make("pipedream_2bw", asked)};
      for (const Schedule& schedule : both) {
        const ScheduleTime time = run(schedule, t);
        // One more microbatch costs one forward and one backward pass.
        ScheduleShape longer = asked;
        longer.microbatches += 10;
        const double batches = schedule.update_every == 1 ? 1 : 2;
        EXPECT_NEAR(run(make(schedule.name, longer), t).makespan - time.makespan,
                    batches * 10 * (t.forward + t.input + t.weight),
                    kNear);
      }
    }
  }
}

TEST(ScheduleTime, MessagesTakeTimeBesideComputation) {
  StageTimes stage;
  stage.forward = 1;
  stage.backward = 2;
  stage.update = 0.5;
  stage.send_forward = 0.25;
  stage.send_backward = 0.125;
  const auto time = time_schedule(make("1f1b", shape(2, 2)), {stage, stage});
  ASSERT_TRUE(time);
  // Device 0: F0 F1 B0 B1 U, device 1: F0 B0 F1 B1 U.
  EXPECT_NEAR(time->tasks[1][0].start, 1.25, kNear);
  EXPECT_NEAR(time->tasks[0][2].start, 1.25 + 3 + 0.125, kNear);
  EXPECT_NEAR(time->tasks[0][3].start, 1.25 + 6 + 0.125, kNear);
  EXPECT_NEAR(time->makespan, 1.25 + 6 + 0.125 + 2 + 0.5, kNear);
}

TEST(ScheduleTime, ReplicatedStagesUpdateTogether) {
  StageTimes stage{};
  stage.forward = 1;
  stage.backward = 2;
  stage.update = 1;
  const Schedule schedule = make("chimera", shape(4, 4));
  const auto time = time_schedule(schedule, std::vector<StageTimes>(4, stage));
  ASSERT_TRUE(time) << time.error().text();
  std::vector<Seconds> starts(4, -1);
  for (std::size_t device = 0; device < 4; ++device) {
    for (std::size_t i = 0; i < schedule.tasks[device].size(); ++i) {
      const lower::Task& task = schedule.tasks[device][i];
      if (task.work == lower::Work::kUpdate) {
        Seconds& start = starts[static_cast<std::size_t>(task.stage)];
        EXPECT_TRUE(start < 0 || start == time->tasks[device][i].start);
        start = time->tasks[device][i].start;
      }
    }
  }
}

TEST(ScheduleTime, WhatNeverEndsIsAnError) {
  Schedule schedule = make("1f1b", shape(2, 2));
  std::swap(schedule.tasks[0][1], schedule.tasks[0][2]);  // B0 before F1
  std::swap(schedule.tasks[1][1], schedule.tasks[1][2]);  // F1 before B0
  const auto time = time_schedule(schedule, std::vector<StageTimes>(2));
  ASSERT_FALSE(time);
  EXPECT_EQ(time.error().text(), "schedule 1f1b, device 0: B(0, 0) waits forever");
  EXPECT_FALSE(time_schedule(schedule, std::vector<StageTimes>(3)));
}

}  // namespace
}  // namespace shardplan::sim
