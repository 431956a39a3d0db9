// A GRU that applies its reset gate before the product, which PyTorch's cell does not: step by
// step.

#include <algorithm>
#include <string>
#include <vector>

#include "shardplan/frontends/onnx/recurrent.h"

namespace shardplan::frontends::onnx {

namespace {

using ir::IntList;
using ir::Shape;
using ir::ValueId;

/// More steps would make a graph that nobody can plan.
constexpr std::int64_t kMaxSteps = 512;

/// Part `index` along dimension 0, without it.
ValueId part(Builder& b, ValueId x, std::int64_t index) {
  const ValueId one = sliced(b, x, 0, index, index + 1);
  Shape shape = b.type(one).shape;
  if (b.ok()) {
    shape.erase(shape.begin());
  }
  return reshape_to(b, one, shape);
}

/// What one direction computes with.
struct Direction {
  ValueId input{};   ///< products of all steps with the weights, [steps, batch, 3 hidden]
  ValueId gates{};   ///< recurrent weights of z and r, [2 hidden, hidden]
  ValueId hidden{};  ///< those of the new state
  ValueId state{};   ///< [batch, hidden]
};

ValueId product(Builder& b, ValueId x, ValueId weight) {
  return b.emit("einsum", {x, weight}, {{"equation", std::string("bk,nk->bn")}});
}

Direction direction_of(Call& c, const Sizes& s, std::int64_t d, ValueId x, ValueId states) {
  Builder& b = c.builder();
  Direction out;
  out.input =
      b.emit("einsum", {x, part(b, c.tensor(1), d)}, {{"equation", std::string("tbk,nk->tbn")}});
  const ValueId recurrent = part(b, c.tensor(2), d);
  if (c.given(3)) {
    // Both biases of each gate are added to the same sum here.
    const ValueId bias = part(b, c.tensor(3), d);
    out.input = b.emit("add", {out.input, sliced(b, bias, 0, 0, 3 * s.hidden)});
    out.input = b.emit("add", {out.input, sliced(b, bias, 0, 3 * s.hidden, 6 * s.hidden)});
  }
  out.gates = sliced(b, recurrent, 0, 0, 2 * s.hidden);
  out.hidden = sliced(b, recurrent, 0, 2 * s.hidden, 3 * s.hidden);
  out.state = part(b, states, d);
  return out;
}

/// The next state: (1 - z) n + z h, with n = tanh(x + (r h) R).
ValueId step(Builder& b, const Direction& in, ValueId h, std::int64_t at, std::int64_t hidden) {
  const ValueId x = part(b, in.input, at);
  const ValueId both =
      b.emit("sigmoid", {b.emit("add", {sliced(b, x, 1, 0, 2 * hidden), product(b, h, in.gates)})});
  const ValueId z = sliced(b, both, 1, 0, hidden);
  const ValueId r = sliced(b, both, 1, hidden, 2 * hidden);
  const ValueId reset = product(b, b.emit("mul", {r, h}), in.hidden);
  const ValueId n =
      b.emit("tanh", {b.emit("add", {sliced(b, x, 1, 2 * hidden, 3 * hidden), reset})});
  return b.emit("add", {n, b.emit("mul", {z, b.emit("sub", {h, n})})});
}

ValueId stacked(Builder& b, const std::vector<ValueId>& parts, std::int64_t dim) {
  std::vector<ValueId> wide;
  for (const ValueId part : parts) {
    Shape shape = b.type(part).shape;
    shape.insert(shape.begin() + std::min<std::ptrdiff_t>(dim, std::ssize(shape)), 1);
    wide.push_back(reshape_to(b, part, shape));
  }
  return wide.size() == 1 ? wide.front() : b.emit("concat", wide, {{"dim", dim}});
}

}  // namespace

void map_gru_steps(Call& c, const Sizes& s) {
  Builder& b = c.builder();
  if (s.steps > kMaxSteps) {
    c.unsupported("with linear_before_reset = 0 is supported for at most 512 steps");
    return;
  }
  ValueId x = c.tensor(0);
  x = s.batch_first ? permuted(b, x, {1, 0, 2}) : x;
  const ValueId states = initial_state(c, 5, s);
  std::vector<ValueId> all;
  std::vector<ValueId> last;
  for (std::int64_t d = 0; d < s.directions && c.ok(); ++d) {
    const bool backwards = d == 1 || c.text("direction", "forward") == "reverse";
    const Direction direction = direction_of(c, s, d, x, states);
    std::vector<ValueId> steps(static_cast<std::size_t>(s.steps));
    ValueId h = direction.state;
    for (std::int64_t t = 0; t < s.steps; ++t) {
      const std::int64_t at = backwards ? s.steps - 1 - t : t;
      h = step(b, direction, h, at, s.hidden);
      steps[static_cast<std::size_t>(at)] = h;
    }
    all.push_back(stacked(b, steps, 0));
    last.push_back(h);
  }
  if (!c.ok()) {
    return;
  }
  const ValueId y = stacked(b, all, 1);
  const ValueId final_state = stacked(b, last, 0);
  c.result(s.batch_first ? permuted(b, y, {2, 0, 1, 3}) : y);
  c.result(s.batch_first ? permuted(b, final_state, {1, 0, 2}) : final_state, 1);
}

}  // namespace shardplan::frontends::onnx
