#pragma once

#include "shardplan/lower/program.h"

namespace shardplan::lower {

/// Adds a kFree right after the last use of every storage that is no resident, no loss, no kept
/// gradient, and that no kWrite gives to a resident. O(steps).
void insert_frees(Program& program);

}  // namespace shardplan::lower
