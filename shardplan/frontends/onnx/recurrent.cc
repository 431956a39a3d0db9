// LSTM, GRU and RNN: one call of PyTorch's, gates in its order.

#include "shardplan/frontends/onnx/recurrent.h"

#include <algorithm>
#include <array>
#include <string>

#include "shardplan/frontends/operator_call.h"

namespace shardplan::frontends::onnx {

namespace {

using ir::IntList;
using ir::Shape;
using ir::TensorType;
using ir::ValueId;

/// What the three cells differ in.
struct Cell {
  std::string_view name;
  std::vector<std::size_t> gates;  ///< of ONNX, in the order of PyTorch
  std::string target;
  bool has_cell_state = false;
};

Cell cell_of(Call& c) {
  if (c.ours() == "lstm") {
    return {"lstm", {0, 2, 3, 1}, "aten.lstm.input", true};
  }
  if (c.ours() == "gru") {
    return {"gru", {1, 0, 2}, "aten.gru.input", false};
  }
  bool relu = false;
  if (const Attribute* const activations = c.attribute("activations")) {
    relu = !activations->texts.empty() && activations->texts.front() == "Relu";
  }
  return {"rnn", {0}, relu ? "aten.rnn_relu.input" : "aten.rnn_tanh.input", false};
}

bool only_default_activations(Call& c, std::int64_t directions) {
  const Attribute* const given = c.attribute("activations");
  if (given == nullptr) {
    return true;
  }
  std::vector<std::string> expected;
  for (std::int64_t d = 0; d < directions; ++d) {
    if (c.ours() == "lstm") {
      expected.insert(expected.end(), {"Sigmoid", "Tanh", "Tanh"});
    } else if (c.ours() == "gru") {
      expected.insert(expected.end(), {"Sigmoid", "Tanh"});
    } else {
      expected.insert(expected.end(), {given->texts.empty() ? "Tanh" : given->texts.front()});
    }
  }
  const bool known = c.ours() != "rnn" || expected.front() == "Tanh" || expected.front() == "Relu";
  return known && given->texts == expected;
}

std::optional<Sizes> sizes_of(Call& c, const Cell& cell) {
  Sizes s;
  const std::string direction = c.text("direction", "forward");
  s.directions = direction == "bidirectional" ? 2 : 1;
  s.hidden = c.integer("hidden_size", 0);
  s.batch_first = c.integer("layout", 0) == 1;
  const Shape x = c.type(0).shape;
  const auto gates = static_cast<std::int64_t>(cell.gates.size());
  if (!c.ok() || x.size() != 3 || s.hidden < 1 || s.hidden > (std::int64_t{1} << 40)) {
    c.invalid("its operand has not 3 dimensions, or 'hidden_size' is missing");
    return std::nullopt;
  }
  s.steps = x[s.batch_first ? 1 : 0];
  s.batch = x[s.batch_first ? 0 : 1];
  s.input = x[2];
  if (c.type(1).shape != Shape{s.directions, gates * s.hidden, s.input} ||
      c.type(2).shape != Shape{s.directions, gates * s.hidden, s.hidden} ||
      (c.given(3) && c.type(3).shape != Shape{s.directions, 2 * gates * s.hidden})) {
    c.invalid("its weights do not fit its operand");
    return std::nullopt;
  }
  const std::optional<double> length = c.uniform(4);
  if (c.given(4) && length != static_cast<double>(s.steps)) {
    c.unsupported("is supported for sequences of full length only");
  } else if (c.given(7) || c.has("clip") || c.flag("input_forget", false) ||
             !only_default_activations(c, s.directions)) {
    c.unsupported("is supported with its default activations, and without peepholes and clip");
  }
  return c.ok() ? std::optional(s) : std::nullopt;
}

/// The gates of one direction of a stacked tensor, in the order of PyTorch.
ValueId reordered(
    Builder& b, ValueId stacked, std::size_t direction, const Cell& cell, std::int64_t hidden) {
  const auto d = static_cast<std::int64_t>(direction);
  ValueId one = sliced(b, stacked, 0, d, d + 1);
  Shape shape = b.type(one).shape;
  if (!b.ok()) {
    return one;
  }
  shape.erase(shape.begin());
  one = reshape_to(b, one, shape);
  std::vector<ValueId> parts;
  for (const std::size_t gate : cell.gates) {
    const auto start = static_cast<std::int64_t>(gate) * hidden;
    parts.push_back(sliced(b, one, 0, start, start + hidden));
  }
  return parts.size() == 1 ? parts.front() : b.emit("concat", parts, {{"dim", std::int64_t{0}}});
}

std::vector<ValueId> parameters(Call& c, const Cell& cell, const Sizes& s) {
  Builder& b = c.builder();
  const ValueId w = c.tensor(1);
  const ValueId r = c.tensor(2);
  const ValueId bias = c.tensor_if_given(3);
  const auto rows = static_cast<std::int64_t>(cell.gates.size()) * s.hidden;
  std::vector<ValueId> out;
  for (std::size_t d = 0; d < static_cast<std::size_t>(s.directions); ++d) {
    out.push_back(reordered(b, w, d, cell, s.hidden));
    out.push_back(reordered(b, r, d, cell, s.hidden));
    if (bias.valid()) {
      out.push_back(reordered(b, sliced(b, bias, 1, 0, rows), d, cell, s.hidden));
      out.push_back(reordered(b, sliced(b, bias, 1, rows, 2 * rows), d, cell, s.hidden));
    }
  }
  return out;
}

ValueId flipped(Builder& b, ValueId x, std::int64_t dim) {
  return OperatorCall(b, "aten.flip.default")
      .tensor("self", x)
      .integers("dims", {dim})
      .result(b.type(x));
}

void map_recurrent(Call& c) {
  Builder& b = c.builder();
  const Cell cell = cell_of(c);
  const std::optional<Sizes> s = sizes_of(c, cell);
  if (!s.has_value()) {
    return;
  }
  if (cell.name == "gru" && !c.flag("linear_before_reset", false)) {
    map_gru_steps(c, *s);
    return;
  }
  const std::int64_t time = s->batch_first ? 1 : 0;
  const bool backwards = c.text("direction", "forward") == "reverse";
  ValueId x = c.tensor(0);
  x = backwards ? flipped(b, x, time) : x;
  std::vector<ValueId> states{initial_state(c, 5, *s)};
  if (cell.has_cell_state) {
    states.push_back(initial_state(c, 6, *s));
  }
  const ir::DType dtype = c.type(0).dtype;
  const std::int64_t width = s->directions * s->hidden;
  const TensorType sequence{
      dtype, s->batch_first ? Shape{s->batch, s->steps, width} : Shape{s->steps, s->batch, width}};
  const TensorType last{dtype, {s->directions, s->batch, s->hidden}};
  OperatorCall call(b, cell.target);
  call.tensor("input", x);
  if (cell.has_cell_state) {
    call.tensors("hx", states);
  } else {
    call.tensor("hx", states.front());
  }
  std::vector<std::optional<TensorType>> types{sequence, last};
  if (cell.has_cell_state) {
    types.emplace_back(last);
  }
  const std::vector<ValueId> made = call.tensors("params", parameters(c, cell, *s))
                                        .flag("has_biases", c.given(3))
                                        .integer("num_layers", 1)
                                        .real("dropout", 0.0)
                                        .flag("train", false)
                                        .flag("bidirectional", s->directions == 2)
                                        .flag("batch_first", s->batch_first)
                                        .results(types);
  ValueId y = backwards ? flipped(b, made[0], time) : made[0];
  if (s->batch_first) {
    c.result(reshape_to(b, y, {s->batch, s->steps, s->directions, s->hidden}));
  } else {
    y = reshape_to(b, y, {s->steps, s->batch, s->directions, s->hidden});
    c.result(permuted(b, y, {0, 2, 1, 3}));
  }
  for (std::size_t i = 1; i < made.size(); ++i) {
    c.result(s->batch_first ? permuted(b, made[i], {1, 0, 2}) : made[i], i);
  }
}

}  // namespace

ValueId initial_state(Call& c, std::size_t operand, const Sizes& s) {
  Builder& b = c.builder();
  if (!c.given(operand)) {
    return b.emit("full",
                  {},
                  {{"shape", IntList{s.directions, s.batch, s.hidden}},
                   {"value", 0.0},
                   {"dtype", std::string(ir::dtype_name(c.type(0).dtype))}});
  }
  const ValueId given = c.tensor(operand);
  return s.batch_first ? permuted(b, given, {1, 0, 2}) : given;
}

std::vector<Row> recurrent_rows() {
  return {{"LSTM", map_recurrent, "lstm"},
          {"GRU", map_recurrent, "gru"},
          {"RNN", map_recurrent, "rnn"}};
}

}  // namespace shardplan::frontends::onnx
