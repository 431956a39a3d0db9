#pragma once

#include "shardplan/lower/schedule.h"

// One function a file of schedules/; what each is and what it costs stands at the top of its file.

namespace shardplan::lower {

[[nodiscard]] Result<Schedule> make_gpipe(const ScheduleShape& shape);
[[nodiscard]] Result<Schedule> make_1f1b(const ScheduleShape& shape);

}  // namespace shardplan::lower
