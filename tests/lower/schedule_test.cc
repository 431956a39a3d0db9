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
