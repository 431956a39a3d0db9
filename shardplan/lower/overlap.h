#pragma once

#include "shardplan/lower/program.h"

namespace shardplan::lower {

/// Lets collectives run beside the steps that follow them, within the memory that the program takes
/// anyway: a collective is marked `aside`, and a kWait stands before the first step that needs what
/// it makes or that changes what it reads; what it reads is freed after the kWait. A gather of a
/// parameter starts some gathers ahead, while what an earlier gather made is in use. No window is
/// opened, and none is wider than, where the peak of the program as given leaves room: the peak
/// never grows. Collectives that would wait at once stay in line. All ranks get the same order.
///
/// Precondition: the program has its frees. O(steps · windows that are open at a time).
void overlap_collectives(Program& program);

}  // namespace shardplan::lower
