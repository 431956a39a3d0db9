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

Bytes gates_of_all_steps(const Network& n) {
  return up(n.gates * n.made(), kPage);
}

Bytes scratch_training(const Network& n) {
  constexpr Bytes kOwn = 12856;
  return gates_of_all_steps(n) + kOwn + up(n.gates * n.state(), kPage) - kPage;
}

Bytes scratch_inference(const Network& n) {
  return scratch_training(n) + n.gates * n.state() * 3 / 2 + kPage;
}

/// What the forward pass keeps for the backward pass: gates and states of all steps, the states of
/// what a cell reads and of what it makes, each beside its gradient.
Bytes saved_of_cell(const Network& n, std::int64_t layer) {
  const std::int64_t rows = (n.steps + 1) * n.batch;
  const Bytes wide = n.of(rows * std::max(n.width(layer), n.hidden));
  const Bytes own = n.of(rows * n.hidden);
  return gates_of_all_steps(n) + 3 * up(2 * wide, kPage) + 2 * up(2 * own, kPage) + up(own, kPage);
}

/// Copies of both weights: rows of all gates, in whole runs, or such that no two rows start at the
/// same place of a page.
Bytes copied_weights(const Network& n, std::int64_t layer, bool training) {
  constexpr std::int64_t kRun = 128;
  constexpr std::int64_t kApart = 1024;
  constexpr std::int64_t kShift = 16;
  std::int64_t row = n.gates * n.hidden;
  if (!training) {
    row = up(row, kRun);
  } else if (n.of(row) % kApart == 0) {
    row += kShift;
  }
  return n.of((n.width(layer) + n.hidden) * row);
}

Bytes forward_onednn(const Network& n) {
  Meter meter;
  meter.add(n.batch_first ? n.read(0) : 0);
  Bytes below = 0;
  for (std::int64_t layer = 0; layer < n.layers; ++layer) {
    for (std::int64_t d = 0; d < n.directions; ++d) {
      meter.add(n.made() + 2 * n.state());
      meter.touch(n.bias() + copied_weights(n, layer, false) + scratch_inference(n));
    }
    const Bytes joined = n.directions > 1 ? n.directions * n.made() : 0;
    meter.add(joined);
    meter.remove(below);
    below = n.directions * n.made() + joined;
  }
  meter.add(n.last_states());
  meter.touch(n.batch_first ? n.directions * n.made() : 0);
  return meter.most();
}

Bytes backward_onednn(const Network& n) {
  Meter meter;
  const Bytes joined = n.directions > 1 ? n.directions * n.made() : 0;
  meter.add(n.batch_first ? n.read(0) : 0);
  for (std::int64_t layer = 0; layer < n.layers; ++layer) {
    for (std::int64_t d = 0; d < n.directions; ++d) {
      meter.add(n.made() + 2 * n.state() + n.bias() + saved_of_cell(n, layer));
      meter.touch(copied_weights(n, layer, true) + scratch_training(n));
      meter.remove(n.bias());
    }
    meter.add(joined);
  }
  meter.add(n.last_states() + n.states() * n.state());
  for (std::int64_t layer = n.layers - 1; layer >= 0; --layer) {
    for (std::int64_t d = 0; d < n.directions; ++d) {
      const Bytes part = (n.directions > 1 ? n.made() : 0) + 4 * n.state();
      meter.add(part + n.read(layer) + n.weights(layer) + n.bias());
      meter.touch(copied_weights(n, layer, true) + 2 * n.bias() + scratch_training(n));
      meter.remove(part + n.made() + saved_of_cell(n, layer) + (d > 0 ? n.read(layer) : 0));
    }
    meter.remove(joined);
  }
  return meter.most();
}

// Step by step ------------------------------------------------------------------------------------

Bytes forward_of_steps(const Network& n) {
  Meter meter;
  Bytes below = 0;
  for (std::int64_t layer = 0; layer < n.layers; ++layer) {
    // The gates' products with x, each step's output, and all outputs together; those of one
    // direction are there while the other's begin.
    const Bytes outputs = (n.directions + 1) * n.made();
    meter.touch(n.directions * n.gates * n.made() + outputs + (n.states() - 1) * n.state());
    meter.add(n.directions * (n.made() + n.states() * n.state()));
    if (n.directions > 1) {  // joined, beside what they are made of
      meter.touch(n.gates * n.made() + 2 * n.directions * n.made());
    }
    meter.remove(below);
    below = n.directions * n.made();
  }
  meter.add(n.last_states());
  meter.touch(n.batch_first ? n.directions * n.made() : 0);
  return meter.most();
}

Bytes backward_of_steps(const Network& n) {
  const std::int64_t kept = n.gates > 1 ? 4 : 1;  // vectors of a step, beside its gates
  Meter meter;
  meter.add(n.gates == 3 ? 2 * n.made() : 0);  // gru's new gate reads what the reset gate left
  const Bytes saved = (n.gates + kept) * n.made() + n.made();
  const Bytes joined = n.directions > 1 ? n.directions * n.made() : 0;
  meter.add(n.batch_first ? n.read(0) : 0);
  meter.add(n.layers * (n.directions * saved + joined) + n.last_states());
  for (std::int64_t layer = n.layers - 1; layer >= 0; --layer) {
    for (std::int64_t d = 0; d < n.directions; ++d) {
      // The weights' gradient of a step beside their sum.
      meter.touch(2 * n.of(n.gates * n.hidden * n.hidden) + 2 * (n.gates + 1) * n.state());
      meter.remove(saved);
      meter.touch(n.gates * n.made() + n.read(layer) + n.weights(layer));
      meter.add(n.read(layer) + n.weights(layer) + 2 * n.bias() - (d > 0 ? n.read(layer) : 0));
    }
    meter.remove(joined);
  }
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
  return beyond_results(call, n->on_onednn() ? backward_onednn(*n) : backward_of_steps(*n));
}

}  // namespace shardplan::ops
