#include "shardplan/training/broadcasts.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "shardplan/ops/op.h"

namespace shardplan::training {
namespace {

class BroadcastSimplifier {
 public:
  explicit BroadcastSimplifier(ir::Graph& graph)
      : graph_(graph), readers_(graph.values().size(), 0) {
    for (const ir::Op& op : graph.ops()) {
      for (const ir::ValueId input : op.inputs) {
        ++readers_[input.index()];
      }
    }
    for (const ir::ValueId output : graph.outputs) {
      ++readers_[output.index()];
    }
    for (const ir::Write& write : graph.writes) {
      ++readers_[write.value.index()];
    }
  }

  void run() {
    for (std::size_t i = 0; i < graph_.ops().size(); ++i) {
      const ir::OpId id{i};
      if (!ops::get(graph_.op(id).name).elementwise) {
        continue;
      }
      if (graph_.op(id).inputs.size() == 1) {
        exchange(id);
      } else {
        skip(id);
      }
    }
    // A gradient that was broadcast is now known before its broadcast only.
    const auto changed = [&](const ir::Write& gradient) {
      return graph_.type(gradient.target).shape != graph_.type(gradient.value).shape;
    };
    graph_.gradients.erase(
        std::remove_if(graph_.gradients.begin(), graph_.gradients.end(), changed),
        graph_.gradients.end());
  }

 private:
  /// The broadcast that makes a value, or an invalid id.
  [[nodiscard]] ir::OpId broadcast_of(ir::ValueId value) const {
    const ir::OpId producer = graph_.value(value).producer;
    const bool found = producer.valid() && graph_.op(producer).name == "broadcast";
    return found ? producer : ir::OpId{};
  }

  /// f(broadcast(x)) = broadcast(f(x)): the two ops change places.
  void exchange(ir::OpId id) {
    const ir::ValueId wide = graph_.op(id).inputs.front();
    const ir::OpId broadcast = broadcast_of(wide);
    if (!broadcast.valid() || readers_[wide.index()] > 1) {
      return;
    }
    ir::Op& first = graph_.op(broadcast);
    ir::Op& second = graph_.op(id);
    std::swap(first.name, second.name);
    std::swap(first.attributes, second.attributes);
    std::swap(first.layer, second.layer);
    std::swap(first.source, second.source);
    ir::TensorType& type = graph_.value(wide).type;
    type.shape = graph_.type(first.inputs.front()).shape;
    type.dtype = graph_.type(second.outputs.front()).dtype;
  }

  void skip(ir::OpId id) {
    for (std::size_t k = 0; k < graph_.op(id).inputs.size(); ++k) {
      const ir::ValueId wide = graph_.op(id).inputs[k];
      const ir::OpId broadcast = broadcast_of(wide);
      if (!broadcast.valid()) {
        continue;
      }
      const ir::ValueId source = graph_.op(broadcast).inputs.front();
      ops::Types inputs = ops::op_types(graph_, id).inputs;
      inputs[k] = graph_.type(source);
      ir::Op& op = graph_.op(id);
      const Result<ops::Types> results = ops::get(op.name).infer(inputs, op.attributes);
      if (results && results->front() == graph_.type(op.outputs.front())) {
        op.inputs[k] = source;
        --readers_[wide.index()];
        ++readers_[source.index()];
      }
    }
  }

  ir::Graph& graph_;
  std::vector<int> readers_;  ///< by value
};

}  // namespace

void simplify_broadcasts(ir::Graph& graph) {
  BroadcastSimplifier(graph).run();
}

}  // namespace shardplan::training
