#pragma once

#include <string_view>

#include "shardplan/lower/schedule.h"

// What the files of schedules/ share: the shape's checks and the pieces of lists that several
// schedules are made of.

namespace shardplan::lower {

/// A schedule without tasks: one pipeline of `shape.devices` × `chunks` stages, stage s on device
/// s mod devices, synchronous. Errors: no devices or microbatches, or more tasks than 2^27.
[[nodiscard]] Result<Schedule> begin_schedule(std::string_view name,
                                              const ScheduleShape& shape,
                                              int chunks = 1);

/// Appends to the list of `device`: `warm_up` forward passes of `stage` (or all, when there are
/// fewer), then a backward pass and a forward pass in turn, then the remaining backward passes.
void append_one_forward_one_backward(Schedule& schedule,
                                     int device,
                                     int stage,
                                     std::int64_t warm_up);

/// The update that ends a synchronous batch: of every stage of every device, the first stage first.
void append_updates(Schedule& schedule);

/// Asynchronous schedules: after the backward pass of every `update_every`-th microbatch, and of
/// the last, its update.
void insert_updates(Schedule& schedule);

}  // namespace shardplan::lower
