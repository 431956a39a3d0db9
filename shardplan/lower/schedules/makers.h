#pragma once

#include "shardplan/lower/schedule.h"

// One function a schedule; what it is and what it costs stands at the top of its file.

namespace shardplan::lower {

[[nodiscard]] Result<Schedule> make_gpipe(const ScheduleShape& shape);
[[nodiscard]] Result<Schedule> make_1f1b(const ScheduleShape& shape);
[[nodiscard]] Result<Schedule> make_pipedream(const ScheduleShape& shape);
[[nodiscard]] Result<Schedule> make_interleaved_1f1b(const ScheduleShape& shape);
[[nodiscard]] Result<Schedule> make_pipedream_2bw(const ScheduleShape& shape);
[[nodiscard]] Result<Schedule> make_dapple(const ScheduleShape& shape);
[[nodiscard]] Result<Schedule> make_chimera(const ScheduleShape& shape);
[[nodiscard]] Result<Schedule> make_zb_h1(const ScheduleShape& shape);
[[nodiscard]] Result<Schedule> make_zb_h2(const ScheduleShape& shape);
[[nodiscard]] Result<Schedule> make_zb_v(const ScheduleShape& shape);
[[nodiscard]] Result<Schedule> make_breadth_first(const ScheduleShape& shape);

}  // namespace shardplan::lower
