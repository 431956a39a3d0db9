#pragma once

#include "shardplan/lower/program.h"

namespace shardplan::lower {

/// By step of each section: values that must stay until the step is done though it does not read
/// them.
struct Keeps {
  std::vector<std::vector<LocalId>> microbatch{};
  std::vector<std::vector<LocalId>> update{};
};

/// Adds a kFree right after the last use of every storage that is no resident, no loss, no kept
/// gradient, and that no kWrite gives to a resident. O(steps). Precondition: `keeps` has an entry a
/// step.
void insert_frees(Program& program, const Keeps& keeps);

}  // namespace shardplan::lower
