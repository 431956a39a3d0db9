#include "shardplan/ops/recurrent_workspace.h"

#include <algorithm>
#include <vector>

#include "shardplan/ops/call.h"

namespace shardplan::ops {
namespace {

constexpr std::int64_t kPage = 4096;

std::int64_t up(std::int64_t bytes, std::int64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

/// What is there, and the most that ever was.
class Meter {
 public:
  void add(Bytes bytes) {
    now_ += bytes;
    most_ = std::max(most_, now_);
  }
  void remove(Bytes bytes) { now_ -= bytes; }
  void touch(Bytes bytes) { most_ = std::max(most_, now_ + bytes); }
  [[nodiscard]] Bytes most() const { return most_; }

 private:
  Bytes now_ = 0;
  Bytes most_ = 0;
};

/// Layers of cells, each for one direction or two.
struct Network {
  std::int64_t gates = 4;
  std::int64_t steps = 1;
  std::int64_t batch = 1;
  std::int64_t input = 1;
  std::int64_t hidden = 1;
  std::int64_t layers = 1;
  std::int64_t directions = 1;
  bool batch_first = false;
  ir::DType dtype = ir::DType::kFloat32;

  [[nodiscard]] Bytes of(std::int64_t elements) const {
    return elements * ir::element_bytes(dtype);
  }
  [[nodiscard]] std::int64_t width(std::int64_t layer) const {
    return layer == 0 ? input : hidden * directions;
  }
  [[nodiscard]] Bytes read(std::int64_t layer) const { return of(steps * batch * width(layer)); }
  /// Of the input with its steps first, if that is another order in memory.
  [[nodiscard]] Bytes turned_input() const {
    return batch_first && steps > 1 && batch > 1 ? read(0) : 0;
  }
  [[nodiscard]] Bytes made() const { return of(steps * batch * hidden); }
  [[nodiscard]] Bytes state() const { return of(batch * hidden); }
  [[nodiscard]] Bytes bias() const { return of(gates * hidden); }
  [[nodiscard]] Bytes weights(std::int64_t layer) const {
    return of(gates * hidden * (width(layer) + hidden));
  }
  [[nodiscard]] std::int64_t states() const { return gates == 4 ? 2 : 1; }
  [[nodiscard]] Bytes last_states() const { return states() * layers * directions * state(); }
  [[nodiscard]] bool on_onednn() const { return gates == 4 && dtype == ir::DType::kFloat32; }
};

const CallValue* given(const std::vector<CallArgument>& arguments, std::string_view name) {
  return find_argument(arguments, name);
}

bool flag(const std::vector<CallArgument>& arguments, std::string_view name) {
  const CallValue* const value = given(arguments, name);
  return value != nullptr && value->integer != 0;
}

/// None where the call is no lstm or gru on padded sequences.
std::optional<Network> network_of(const OpView& call) {
  const std::string_view name = call_name(call.attributes.string("target"));
  const bool plain = name == "rnn_tanh" || name == "rnn_relu";
  if (name != "lstm" && name != "gru" && !plain) {
    return std::nullopt;
  }
  const Result<std::vector<CallArgument>> arguments =
      parse_call_arguments(call.attributes.string("arguments"));
  if (!arguments.has_value()) {
    return std::nullopt;
  }
  const CallValue* const x = given(*arguments, "input");
  const CallValue* const params = given(*arguments, "params");
  const CallValue* const layers = given(*arguments, "num_layers");
  if (x == nullptr || params == nullptr || layers == nullptr || params->list.size() < 2) {
    return std::nullopt;  // packed sequences have no `input`
  }
  const auto operand = [&](const CallValue& value) -> const ir::TensorType& {
    return call.inputs[static_cast<std::size_t>(value.integer)];
  };
  const ir::TensorType& type = operand(*x);
  const ir::TensorType& recurrent = operand(params->list[1]);
  if (type.rank() != 3 || recurrent.rank() != 2) {
    return std::nullopt;
  }
  Network network;
  network.gates = plain ? 1 : name == "lstm" ? 4 : 3;
  network.batch_first = flag(*arguments, "batch_first");
  network.steps = type.shape[network.batch_first ? 1 : 0];
  network.batch = type.shape[network.batch_first ? 0 : 1];
  network.input = type.shape[2];
  network.hidden = recurrent.shape[1];
  network.layers = layers->integer;
  network.directions = flag(*arguments, "bidirectional") ? 2 : 1;
  network.dtype = type.dtype;
  return network;
}

// oneDNN ------------------------------------------------------------------------------------------
//
// Sizes follow oneDNN's cpu/rnn/rnn_utils.cpp: buffers start on pages, and rows are whole runs of
// 64 bytes, such that no two rows start at the same place of a page.

/// Elements of a row of so many.
std::int64_t row_of(std::int64_t elements) {
  constexpr std::int64_t kRun = 16;
  constexpr std::int64_t kApart = 256;
  const std::int64_t row = up(elements, kRun);
  return row % kApart == 0 ? row + kRun : row;
}

Bytes gates_of_all_steps(const Network& n) {
  return up(n.of(n.steps * n.batch * row_of(n.gates * n.hidden)), kPage);
}

/// The states of all steps, before and after the layer.
Bytes states_of_all_steps(const Network& n, std::int64_t row) {
  return up(n.of(2 * (n.steps + 1) * n.batch * row), kPage);
}

Bytes state_in_pages(const Network& n) {
  return up(n.of(n.batch * row_of(n.hidden)), kPage);
}

Bytes scratch_training(const Network& n) {
  constexpr Bytes kOwn = 4664;
  return gates_of_all_steps(n) + 2 * state_in_pages(n) + kOwn;
}

Bytes scratch_inference(const Network& n, std::int64_t layer) {
  constexpr Bytes kOwn = 4872;
  constexpr Bytes kEven = 80;
  constexpr std::int64_t kLeastBatch = 2;
  Network padded = n;
  padded.batch = n.width(layer) > n.hidden ? n.batch : std::max(n.batch, kLeastBatch);
  const Bytes states = states_of_all_steps(padded, row_of(std::max(n.width(layer), n.hidden))) +
                       states_of_all_steps(padded, n.hidden);
  const Bytes gates = up(n.of(n.batch * row_of(n.gates * n.hidden)), kPage);
  return states + gates + state_in_pages(n) + kOwn + (n.width(layer) == n.hidden ? kEven : 0);
}

/// What the forward pass keeps for the backward pass: gates and states of all steps, the states of
/// what a cell reads and of what it makes, each beside its gradient.
Bytes saved_of_cell(const Network& n, std::int64_t layer) {
  return gates_of_all_steps(n) +
         3 * states_of_all_steps(n, row_of(std::max(n.width(layer), n.hidden))) +
         2 * states_of_all_steps(n, n.hidden) +
         up(n.of(n.steps * n.batch * row_of(n.hidden)), kPage);
}

/// Copies of both weights by rows of all gates; without training in whole blocks.
Bytes copied_weights(const Network& n, std::int64_t layer, bool training) {
  constexpr std::int64_t kBlock = 128;
  const std::int64_t gates = n.gates * n.hidden;
  return n.of((n.width(layer) + n.hidden) * (training ? row_of(gates) : up(gates, kBlock)));
}

/// A weight's gradient by rows of the operand, where those are not what a row may be.
Bytes turned_gradient(const Network& n, std::int64_t width) {
  return row_of(width) == width ? 0 : n.of(n.gates * n.hidden * row_of(width));
}

Bytes forward_onednn(const Network& n) {
  Meter meter;
  meter.add(n.turned_input());
  Bytes below = 0;
  for (std::int64_t layer = 0; layer < n.layers; ++layer) {
    for (std::int64_t d = 0; d < n.directions; ++d) {
      meter.add(n.made() + 2 * n.state());
      meter.touch(n.bias() + copied_weights(n, layer, false) + scratch_inference(n, layer));
    }
    if (n.directions > 1) {
      meter.add(n.directions * n.made());
      meter.remove((n.directions - 1) * n.made());  // the last is still there
    }
    meter.remove(below);
    below = (n.directions > 1 ? n.directions + 1 : 1) * n.made();
  }
  meter.add(n.last_states());
  meter.remove(n.last_states());
  meter.touch(n.turned_input() > 0 ? n.directions * n.made() : 0);
  return meter.most();
}

/// The gradient of a cell: slices of the output's, gradients of states and operands, both biases.
void differentiate_cell(Meter& meter, const Network& n, std::int64_t layer, bool first) {
  const bool slices = n.directions > 1;
  const bool turned = n.turned_input() > 0 && layer == n.layers - 1;  // what is given
  const Bytes part = (slices || turned ? n.made() : 0) + 4 * n.state() + n.bias();
  meter.add(part + n.read(layer) + n.weights(layer) + n.bias());
  meter.touch(copied_weights(n, layer, true) + n.bias() + scratch_training(n) +
              turned_gradient(n, n.width(layer)) + turned_gradient(n, n.hidden));
  meter.add(n.bias());
  meter.remove(part + 2 * n.state() + saved_of_cell(n, layer));
  meter.remove(slices || layer < n.layers - 1 ? n.made() : 0);  // the last output is a result
  if (!first) {
    return;
  }
  meter.remove((n.directions - 1) * n.read(layer));  // both gradients are added
  meter.remove(layer < n.layers - 1 ? n.directions * n.made() : 0);
  meter.remove(slices && layer > 0 ? n.directions * n.made() : 0);
}

Bytes backward_onednn(const Network& n, bool needs_input, std::size_t kept_states) {
  Meter meter;
  meter.add(n.turned_input());
  for (std::int64_t layer = 0; layer < n.layers; ++layer) {
    for (std::int64_t d = 0; d < n.directions; ++d) {
      meter.add(n.made() + 2 * n.state() + n.bias() + saved_of_cell(n, layer));
      meter.touch(copied_weights(n, layer, true) + scratch_training(n));
      meter.remove(n.bias());
    }
    meter.add(n.directions > 1 ? n.directions * n.made() : 0);
  }
  const Bytes kept = static_cast<Bytes>(kept_states) * n.layers * n.directions * n.state();
  meter.add(n.last_states());
  meter.remove(n.last_states() - kept);
  for (std::int64_t layer = n.layers - 1; layer >= 0; --layer) {
    for (std::int64_t d = n.directions - 1; d >= 0; --d) {
      differentiate_cell(meter, n, layer, d == 0);
    }
  }
  meter.remove(n.directions * n.made() + kept + n.turned_input());
  meter.touch(needs_input ? n.turned_input() : 0);
  return meter.most();
}

// Step by step ------------------------------------------------------------------------------------
//
// The allocations of ATen's RNN.cpp one after the other, and of autograd's nodes in the order in
// which the engine runs them: the youngest first. S is the state of a step.

/// All steps of a direction. Each leaves its output, and in training what its nodes save.
void run_steps(Meter& meter, const Network& n, bool training) {
  const Bytes state = n.state();
  for (std::int64_t step = 0; step < n.steps; ++step) {
    meter.add(n.gates * state);
    if (n.gates == 4) {  // two products, of which one is added to the other, tanh, output
      meter.add(2 * state);
      meter.remove(state);
      meter.add(2 * state);
      if (!training) {
        meter.remove((n.gates + (step > 0 ? 2 : 1)) * state);
      }
    } else if (n.gates == 3) {  // the new gate and the output; copies of what changes in place
      meter.add((training ? 4 : 2) * state);
      if (!training) {
        meter.remove((n.gates + 1) * state);
      }
    } else {
      meter.add(state);
      meter.remove(state);
    }
  }
}

/// Leaves the last layer's outputs and the last states; in training all that is saved.
void run_layers(Meter& meter, const Network& n, bool training) {
  Bytes below = 0;
  for (std::int64_t layer = 0; layer < n.layers; ++layer) {
    for (std::int64_t d = 0; d < n.directions; ++d) {
      meter.add(layer == 0 && training ? n.turned_input() : 0);
      meter.add(n.gates * n.made());
      meter.remove(d > 0 ? n.gates * n.made() : 0);  // those of the other direction
      run_steps(meter, n, training);
      meter.add(n.made());
    }
    if (n.directions > 1) {
      meter.add(2 * n.made());
      meter.remove(2 * n.made());
    }
    meter.remove(n.gates * n.made());
    if (!training) {
      meter.remove(n.directions * (n.steps - 1) * n.state() + below);
    }
    below = n.directions * n.made();
  }
  meter.add(n.last_states());  // joined; the single ones go where nobody saved them
  const Bytes single = n.layers * n.directions * n.state();
  meter.remove(training && n.gates == 1 ? 0 : n.states() * single);
}

Bytes forward_of_steps(const Network& n) {
  Meter meter;
  run_layers(meter, n, false);
  meter.touch(n.turned_input() > 0 ? n.directions * n.made() : 0);
  return meter.most();
}

/// Gradients of the gates of one step from that of its output; `first` is the last step in time.
void differentiate_gates(Meter& meter, const Network& n, bool first, bool last) {
  const Bytes state = n.state();
  if (n.gates == 4) {
    meter.add(2 * state);
    meter.remove(first ? 0 : state);
    meter.add(state);
    meter.remove((first ? 2 : 3) * state);
    meter.add((last ? 3 : 4) * state);
    meter.remove((last ? 1 : 2) * state);
    meter.touch(state);
    meter.remove(4 * state);
    meter.touch(4 * state);
  } else if (n.gates == 3) {
    meter.add(2 * state);
    meter.remove(state);
    meter.add((1 + (first ? 1 : 0) + (last ? 0 : 1)) * state);
    meter.remove(2 * state);
    meter.add(state);
    meter.remove(2 * state);
    meter.add(2 * state);
    meter.remove(state);
    meter.touch(state);
    meter.remove(state);
    meter.touch(state);
  } else {
    meter.add(state);
    meter.remove((first ? 1 : 2) * state);
  }
}

/// A step's gradients of the recurrent weight and bias beside their sums: the first sum is made
/// beside both, later ones in place. `below`: what is freed once no step's output needs it.
void differentiate_step(Meter& meter, const Network& n, std::int64_t number, Bytes below) {
  const bool last = number == n.steps - 1;
  const Bytes state = n.state();
  const Bytes weight = n.of(n.gates * n.hidden * n.hidden);
  differentiate_gates(meter, n, number == 0, last);
  meter.add((last ? 0 : state) + weight + n.bias());
  if (n.gates == 3) {
    meter.remove(3 * state);
  }
  if (n.gates > 1 && !last) {
    meter.remove(state);
  }
  meter.touch(number == 1 ? n.bias() : 0);
  if (!last) {
    meter.touch(n.gates == 3 ? 0 : state);
    meter.remove(n.gates == 3 ? state : 0);
  }
  meter.remove(below + (number > 0 ? n.bias() : 0));
  if (number == 1) {
    meter.touch(weight);
  }
  meter.remove(number > 0 ? weight : 0);
  if (n.gates == 3) {
    meter.touch(3 * state);
  }
}

/// The gradients of a direction's weight and of what its layer reads.
void differentiate_input(
    Meter& meter, const Network& n, std::int64_t layer, bool first, bool needs_input) {
  const Bytes read = layer > 0 || needs_input ? n.read(layer) : 0;
  const Bytes weight = n.of(n.gates * n.hidden * n.width(layer));
  meter.touch(n.gates * n.made());  // the steps' gates, joined
  if (layer == 0 && n.turned_input() > 0) {
    meter.add(n.bias() + weight + read);
    meter.remove(n.gates * n.made() + n.turned_input());
  } else {
    meter.add(read + weight + n.bias());
    meter.remove(n.gates * n.made() + (layer > 0 && first ? n.directions * n.made() : 0));
  }
  if (first && n.directions > 1 && read > 0) {
    meter.add(read);
    meter.remove(2 * read);
  }
}

Bytes backward_of_steps(const Network& n, bool needs_input, std::size_t kept_states) {
  Meter meter;
  run_layers(meter, n, true);
  const Bytes state = n.layers * n.directions * n.state();
  meter.remove(n.last_states() - static_cast<Bytes>(kept_states) * state);
  for (std::int64_t layer = n.layers - 1; layer >= 0; --layer) {
    for (std::int64_t d = n.directions - 1; d >= 0; --d) {
      for (std::int64_t number = 0; number < n.steps; ++number) {
        const bool done = d == 0 && (number == n.steps - 2 || n.steps == 1);
        const Bytes output = layer < n.layers - 1 && done ? n.directions * n.made() : 0;
        differentiate_step(meter, n, number, output);
      }
      differentiate_input(meter, n, layer, d == 0, needs_input);
    }
  }
  meter.remove(n.directions * n.made() + static_cast<Bytes>(kept_states) * state);
  meter.touch(needs_input ? n.turned_input() : 0);
  return meter.most();
}

Bytes beyond_results(const OpView& call, Bytes most) {
  Bytes results = 0;
  for (const ir::TensorType& type : call.results) {
    results += type.bytes();
  }
  return std::max<Bytes>(0, most - results);
}

}  // namespace

std::optional<Bytes> workspace_recurrent(const OpView& call) {
  const std::optional<Network> n = network_of(call);
  if (!n.has_value()) {
    return std::nullopt;
  }
  return beyond_results(call, n->on_onednn() ? forward_onednn(*n) : forward_of_steps(*n));
}

std::optional<Bytes> workspace_recurrent_backward(const OpView& call) {
  const std::optional<Network> n = network_of(call);
  if (!n.has_value()) {
    return std::nullopt;
  }
  const ir::IntList& needed = call.attributes.ints("needed");
  const bool needs_input = std::find(needed.begin(), needed.end(), 0) != needed.end();
  const std::vector<std::size_t> kept = call_kept_results(call.attributes.string("results"));
  const auto states = static_cast<std::size_t>(
      std::count_if(kept.begin(), kept.end(), [](std::size_t number) { return number > 0; }));
  return beyond_results(call,
                        n->on_onednn() ? backward_onednn(*n, needs_input, states)
                                       : backward_of_steps(*n, needs_input, states));
}

}  // namespace shardplan::ops
