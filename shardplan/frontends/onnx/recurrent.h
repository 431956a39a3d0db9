#pragma once

#include <cstdint>

#include "shardplan/frontends/onnx/call.h"

/// What recurrent cells share.
namespace shardplan::frontends::onnx {

struct Sizes {
  std::int64_t steps = 0;
  std::int64_t batch = 0;
  std::int64_t input = 0;
  std::int64_t hidden = 0;
  std::int64_t directions = 1;
  bool batch_first = false;
};

/// An initial state [directions, batch, hidden]; zeros where it is left out.
[[nodiscard]] ir::ValueId initial_state(Call& c, std::size_t operand, const Sizes& s);

/// A GRU with linear_before_reset = 0.
void map_gru_steps(Call& c, const Sizes& s);

}  // namespace shardplan::frontends::onnx
