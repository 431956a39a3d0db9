#include "shardplan/lower/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace shardplan::lower {
namespace {

ScheduleShape shape(int devices, std::int64_t microbatches) {
  ScheduleShape shape;
  shape.devices = devices;
  shape.microbatches = microbatches;
  return shape;
}

Schedule make(std::string_view name, const ScheduleShape& asked) {
  const auto info = find_schedule(name);
  EXPECT_TRUE(info) << info.error().text();
  auto made = (*info)->make(asked);
  EXPECT_TRUE(made) << made.error().text();
  return made.value();
}

std::string text(const std::vector<Task>& tasks) {
  std::string out;
  for (const Task& task : tasks) {
    out += "FBIWU"[static_cast<std::size_t>(task.work)] + std::to_string(task.microbatch) + " ";
  }
  return out;
}

std::string error_of(const Schedule& schedule, std::int64_t capacity = 1) {
  const Status checked = check(schedule, capacity);
  return checked ? "" : checked.error().text();
}

TEST(Schedule, GpipeDoesAllForwardPassesFirst) {
  const Schedule gpipe = make("gpipe", shape(2, 3));
  EXPECT_EQ(text(gpipe.tasks[0]), "F0 F1 F2 B2 B1 B0 U2 ");
  EXPECT_EQ(text(gpipe.tasks[1]), "F0 F1 F2 B2 B1 B0 U2 ");
}

TEST(Schedule, OneForwardOneBackwardWarmsUp) {
  const Schedule schedule = make("1f1b", shape(3, 4));
  EXPECT_EQ(text(schedule.tasks[0]), "F0 F1 F2 B0 F3 B1 B2 B3 U3 ");
  EXPECT_EQ(text(schedule.tasks[1]), "F0 F1 B0 F2 B1 F3 B2 B3 U3 ");
  EXPECT_EQ(text(schedule.tasks[2]), "F0 B0 F1 B1 F2 B2 F3 B3 U3 ");
}

TEST(Schedule, EverySynchronousOneIsWholeAndKeepsWhatIsPublished) {
  for (int p = 1; p <= 8; ++p) {
    for (std::int64_t m = 1; m <= 20; ++m) {
      const Schedule gpipe = make("gpipe", shape(p, m));
      const Schedule flush = make("1f1b", shape(p, m));
      EXPECT_EQ(error_of(gpipe), "");
      EXPECT_EQ(error_of(flush), "");
      for (int i = 0; i < p; ++i) {
        EXPECT_EQ(microbatches_in_flight(gpipe)[static_cast<std::size_t>(i)], m);
        EXPECT_EQ(microbatches_in_flight(flush)[static_cast<std::size_t>(i)],
                  std::min<std::int64_t>(p - i, m));
      }
    }
  }
}

ScheduleShape with_chunks(ScheduleShape shape, int chunks) {
  shape.chunks = chunks;
  return shape;
}

std::int64_t most_in_flight(const Schedule& schedule) {
  const std::vector<std::int64_t> held = microbatches_in_flight(schedule);
  return *std::max_element(held.begin(), held.end());
}

/// The schedule holds with the capacity that it says, and not with less.
void expect_whole(const Schedule& schedule) {
  EXPECT_EQ(error_of(schedule, schedule.channel_capacity), "");
  if (schedule.channel_capacity > 1) {
    EXPECT_NE(error_of(schedule, schedule.channel_capacity - 1), "");
  }
}

TEST(Schedule, SeveralStagesADevice) {
  for (int p = 1; p <= 8; ++p) {
    for (int v = 1; v <= 4; ++v) {
      for (std::int64_t m = 1; m <= std::int64_t{3} * p; ++m) {
        const Schedule breadth = make("breadth_first", with_chunks(shape(p, m), v));
        expect_whole(breadth);
        EXPECT_EQ(breadth.channel_capacity,
                  v == 1 || p == 1 ? 1 : std::max<std::int64_t>(1, m / p));
        EXPECT_EQ(most_in_flight(breadth), m * v);
        if (m % p != 0) {
          EXPECT_FALSE((*find_schedule("interleaved_1f1b"))->make(with_chunks(shape(p, m), v)));
          continue;
        }
        const Schedule interleaved = make("interleaved_1f1b", with_chunks(shape(p, m), v));
        expect_whole(interleaved);
        EXPECT_EQ(interleaved.channel_capacity, 1);
        // (1 + (p - 1) / (pv)) p times a v-th.
        EXPECT_EQ(microbatches_in_flight(interleaved)[0],
                  std::min<std::int64_t>(m * v, v == 1 ? p : p * v + p - 1));
      }
    }
  }
}

TEST(Schedule, ZeroBubbleHoldsTheMemoryPublished) {
  for (int p = 1; p <= 8; ++p) {
    for (std::int64_t m = 1; m <= 20; ++m) {
      const Schedule h1 = make("zb_h1", shape(p, m));
      const Schedule h2 = make("zb_h2", shape(p, m));
      const Schedule v = make("zb_v", shape(p, m));
      for (const Schedule* schedule : {&h1, &h2, &v}) {
        expect_whole(*schedule);
        EXPECT_EQ(schedule->channel_capacity, 1);
      }
      for (int i = 0; i < p; ++i) {
        EXPECT_EQ(microbatches_in_flight(h1)[static_cast<std::size_t>(i)],
                  std::min<std::int64_t>(p, m));
        EXPECT_EQ(microbatches_in_flight(h2)[static_cast<std::size_t>(i)],
                  std::min<std::int64_t>(2 * p - 1, m));
      }
      EXPECT_LE(most_in_flight(v), 2 * p);
    }
  }
}

TEST(Schedule, DappleWarmsUpByItsPolicy) {
  for (int p = 1; p <= 8; ++p) {
    for (std::int64_t m = 1; m <= 20; ++m) {
      for (const std::int64_t most : {0, 1, 2, 3, 5, 100}) {
        for (const bool longer : {false, true}) {
          ScheduleShape asked = shape(p, m);
          asked.max_in_flight = most;
          asked.warm_up = longer ? WarmUp::kLong : WarmUp::kShort;
          const Schedule dapple = make("dapple", asked);
          EXPECT_EQ(error_of(dapple), "");
          for (int i = 0; i < p; ++i) {
            const std::int64_t k = longer ? 2 * (p - i) - 1 : p - i;
            EXPECT_EQ(microbatches_in_flight(dapple)[static_cast<std::size_t>(i)],
                      std::min({k, m, most == 0 ? m : most}));
          }
        }
      }
      EXPECT_EQ(make("dapple", shape(p, m)).tasks, make("1f1b", shape(p, m)).tasks);
    }
  }
}

TEST(Schedule, AsynchronousOnesKeepTheWeightVersionsPublished) {
  for (int p = 1; p <= 8; ++p) {
    for (std::int64_t m = 1; m <= 20; ++m) {
      Schedule pipedream = make("pipedream", shape(p, m));
      EXPECT_EQ(error_of(pipedream), "");
      for (int i = 0; i < p; ++i) {
        EXPECT_EQ(microbatches_in_flight(pipedream)[static_cast<std::size_t>(i)],
                  std::min<std::int64_t>(p - i, m));
        EXPECT_EQ(pipedream.weight_versions[static_cast<std::size_t>(i)], p - i);
      }
      if (m >= std::int64_t{2} * p && p > 1) {  // not one version less
        --pipedream.weight_versions[0];
        EXPECT_NE(error_of(pipedream), "");
      }
      ScheduleShape asked = shape(p, m);
      if (m < p) {
        EXPECT_FALSE((*find_schedule("pipedream_2bw"))->make(asked));
        continue;
      }
      for (asked.batches = 1; asked.batches <= 4; ++asked.batches) {
        const Schedule both = make("pipedream_2bw", asked);
        EXPECT_EQ(error_of(both), "");
        EXPECT_EQ(both.weight_versions, std::vector<int>(static_cast<std::size_t>(p), 2));
        EXPECT_EQ(most_in_flight(both), std::min<std::int64_t>(p, m * asked.batches));
        EXPECT_EQ(both.update_every, m);
      }
    }
  }
  const Schedule pipedream = make("pipedream", shape(2, 4));
  EXPECT_EQ(text(pipedream.tasks[0]), "F0 F1 B0 U0 F2 B1 U1 F3 B2 U2 B3 U3 ");
  std::string versions;
  for (const Task& task : pipedream.tasks[0]) {
    versions += std::to_string(task.weight_version);
  }
  EXPECT_EQ(versions, "000010121223");
}

/// Two microbatches' forward passes of a stage follow each other.
void expect_forward_pairs(const Schedule& doubled) {
  for (const std::vector<Task>& tasks : doubled.tasks) {
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      if (tasks[i].work == Work::kForward && tasks[i].microbatch % 2 == 0) {
        EXPECT_EQ(tasks[i + 1], (Task{Work::kForward, tasks[i].stage, tasks[i].microbatch + 1}));
      }
    }
  }
}

TEST(Schedule, ChimeraBalancesWhatIsInFlight) {
  for (int d = 2; d <= 12; d += 2) {
    for (int f = 1; f <= d / 2; ++f) {
      for (std::int64_t m = 1; m <= std::int64_t{3} * d; ++m) {
        ScheduleShape asked = shape(d, m);
        asked.pipelines = 2 * f;
        if (d / 2 % f != 0) {
          EXPECT_FALSE((*find_schedule("chimera"))->make(asked));
          continue;
        }
        const Schedule chimera = make("chimera", asked);
        expect_whole(chimera);
        EXPECT_EQ(chimera.channel_capacity, 1);
        for (const std::int64_t held : microbatches_in_flight(chimera)) {
          EXPECT_LE(held, d);
          if (m % d == 0) {  // published: between D/2 + 1 and D
            EXPECT_GE(held, d / 2 + 1);
          }
        }
        asked.scaling = ChimeraScaling::kBackwardHalving;
        const Schedule halved = make("chimera", asked);
        expect_whole(halved);
        EXPECT_EQ(halved.microbatches, 2 * m);
        EXPECT_LE(most_in_flight(halved), 2 * d);  // halves
        asked.scaling = ChimeraScaling::kForwardDoubling;
        if (m % 2 != 0) {
          EXPECT_FALSE((*find_schedule("chimera"))->make(asked));
          continue;
        }
        const Schedule doubled = make("chimera", asked);
        expect_whole(doubled);
        expect_forward_pairs(doubled);
      }
    }
  }
}

TEST(Schedule, CheckFindsWhatIsWrong) {
  const Schedule good = make("1f1b", shape(2, 3));  // F0 F1 B0 F2 B1 B2 U2 / F0 B0 F1 B1 F2 B2 U2

  Schedule twice = good;
  twice.tasks[1][2] = {Work::kForward, 1, 0};
  EXPECT_EQ(error_of(twice),
            "schedule 1f1b, device 1: F(1, 0) comes twice, or after its backward pass");

  Schedule missing = good;
  missing.tasks[1].erase(missing.tasks[1].begin() + 4, missing.tasks[1].begin() + 6);
  missing.tasks[1].pop_back();
  missing.tasks[1].push_back({Work::kUpdate, 1, 1});
  EXPECT_EQ(error_of(missing),
            "schedule 1f1b, device 1: U(1, 1) comes where update 0 after "
            "microbatch 2 is due");

  Schedule elsewhere = good;
  elsewhere.tasks[1][0].stage = 0;
  EXPECT_EQ(error_of(elsewhere), "schedule 1f1b, device 1: F(0, 0) belongs on device 0");

  Schedule early = good;
  std::swap(early.tasks[0][5], early.tasks[0][6]);
  EXPECT_EQ(error_of(early),
            "schedule 1f1b, device 0: U(0, 2) contains 3 backward passes; 2 came "
            "before, the last of microbatch 1");

  Schedule backward_first = good;
  std::swap(backward_first.tasks[1][0], backward_first.tasks[1][1]);
  EXPECT_EQ(error_of(backward_first),
            "schedule 1f1b, device 1: B(1, 0) comes twice, or before its forward pass");

  Schedule crossed = good;  // stage 1 takes microbatch 1 before 0
  std::swap(crossed.tasks[1][0], crossed.tasks[1][2]);
  std::swap(crossed.tasks[1][1], crossed.tasks[1][3]);
  EXPECT_EQ(error_of(crossed),
            "schedule 1f1b, device 1: F(1, 1) finds microbatch 0 at the front of its channel");

  Schedule circle = good;  // stage 0 needs B(1, 1) before it does F(0, 1)
  std::swap(circle.tasks[0][1], circle.tasks[0][2]);  // F0 B0 F1 F2 B1 B2: still fine
  EXPECT_EQ(error_of(circle), "");
  std::swap(circle.tasks[1][1], circle.tasks[1][2]);  // F0 F1 B0 B1 F2 B2
  EXPECT_EQ(error_of(circle), "schedule 1f1b, device 0: B(0, 0) waits forever for what it needs");
}

TEST(Schedule, SendersWaitForRoom) {
  // Stage 0 does all forward passes first, stage 1 takes them one by one in between.
  Schedule schedule = make("1f1b", shape(2, 4));
  schedule.tasks[0] = make("gpipe", shape(2, 4)).tasks[0];
  std::reverse(schedule.tasks[0].begin() + 4, schedule.tasks[0].begin() + 8);
  EXPECT_EQ(error_of(schedule, 1),
            "schedule 1f1b, device 0: F(0, 3) is done, but can never send its result: its channel, "
            "with room for 1, stays full");
  EXPECT_EQ(error_of(schedule, 2), "");
}

TEST(Schedule, NamesAndShapesAreChecked) {
  EXPECT_EQ(find_schedule("gpip").error().text(),
            "unknown schedule 'gpip'; did you mean 'gpipe'?; list them with: shardplan schedule");
  for (const ScheduleInfo& info : schedules()) {
    EXPECT_FALSE(info.make(shape(0, 4))) << info.name;
    EXPECT_FALSE(info.make(shape(4, 0))) << info.name;
    EXPECT_FALSE(info.make(shape(4, std::int64_t{1} << 60))) << info.name;
  }
}

}  // namespace
}  // namespace shardplan::lower
