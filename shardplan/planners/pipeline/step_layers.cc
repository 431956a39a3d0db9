#include "shardplan/planners/pipeline/step_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "shardplan/ops/op.h"
#include "shardplan/problem/intra_op.h"
#include "shardplan/training/stages.h"

namespace shardplan::planners {
namespace {

using ir::OpId;
using ir::Phase;
using ir::ValueId;
using ir::ValueKind;
using problem::AxisMeaning;

/// By op: whether it depends on nothing that a step changes, so that every stage has a copy.
std::vector<bool> ops_of_no_stage(const ir::Graph& step) {
  std::vector<bool> written(step.values().size(), false);
  for (const ir::Write& write : step.writes) {
    written[write.target.index()] = true;
  }
  std::vector<bool> anywhere(step.ops().size(), false);
  for (std::size_t i = 0; i < step.ops().size(); ++i) {
    const ir::Op& op = step.ops()[i];
    anywhere[i] = std::all_of(op.inputs.begin(), op.inputs.end(), [&](ValueId input) {
      const ir::Value& value = step.value(input);
      return value.kind == ValueKind::kInput || value.kind == ValueKind::kConstant ||
             (value.kind == ValueKind::kBuffer && !written[input.index()]) ||
             (value.kind == ValueKind::kOpResult && anywhere[value.producer.index()]);
    });
  }
  return anywhere;
}

void append(Segment& segment, const Segment& next) {
  segment.end = next.end;
  segment.forward += next.forward;
  segment.backward += next.backward;
}

/// Bytes of one layer as a training step of its own.
struct LayerBytes {
  double weights = 0;
  double states = 0;  ///< gradients and optimizer state
  double saved = 0;   ///< for the backward pass
  double received = 0;
};

LayerBytes bytes_of(const ir::Graph& stage) {
  LayerBytes out;
  double gradients = 0;
  double accumulators = 0;
  for (const ir::Value& value : stage.values()) {
    const auto bytes = static_cast<double>(value.type.bytes());
    out.weights += value.kind == ValueKind::kParameter ? bytes : 0;
    gradients += value.kind == ValueKind::kParameter && value.trainable ? bytes : 0;
    accumulators += value.kind == ValueKind::kAccumulator ? bytes : 0;
    out.states += value.kind == ValueKind::kState ? bytes : 0;
  }
  out.states += std::max(gradients, accumulators);
  const auto storage = [&](ValueId value) {
    while (stage.value(value).producer.valid()) {
      const ir::Op& op = stage.op(stage.value(value).producer);
      const int from = ops::storage_operand(
          ops::get(op.name), static_cast<std::size_t>(stage.value(value).result_index));
      if (from < 0) {
        break;
      }
      value = op.inputs[static_cast<std::size_t>(from)];
    }
    return value;
  };
  std::set<ValueId> saved;
  for (const ir::Op& op : stage.ops()) {
    if (op.phase == Phase::kForward && op.name == "receive") {
      out.received += static_cast<double>(stage.type(op.outputs[0]).bytes());
    }
    for (const ValueId input : op.inputs) {
      const ValueId kept = op.phase == Phase::kBackward ? storage(input) : ValueId{};
      const OpId by = kept.valid() ? stage.value(kept).producer : OpId{};
      if (by.valid() && stage.op(by).phase == Phase::kForward && saved.insert(kept).second) {
        out.saved += static_cast<double>(stage.type(kept).bytes());
      }
    }
  }
  return out;
}

/// The time of layers on t devices.
class DegreeTimes {
 public:
  DegreeTimes(const ir::Graph& step,
              const cluster::Cluster& cluster,
              const training::StagedStep& staged)
      : step_(step), cluster_(cluster), meanings_(problem::axis_meanings(step)) {
    const cost::CostModel one(cluster, {});
    for (const training::Stage& stage : staged.stages) {
      std::vector<Kernel>& layer = layers_.emplace_back();
      for (std::size_t i = 0; i < stage.graph.ops().size(); ++i) {
        const OpId id(i);
        const ir::Op& op = stage.graph.op(id);
        if (op.phase == Phase::kUpdate || op.name == "send" || op.name == "receive") {
          continue;
        }
        const OpId forward = op.phase == Phase::kForward ? id : op.source;
        Kernel& kernel = layer.emplace_back();
        kernel.forward = forward.valid() ? stage.op_of[forward.index()] : OpId{};
        kernel.phase = op.phase;
        kernel.seconds = kernel_seconds(stage.graph, id, one);
        const ops::OpTypes types = ops::op_types(stage.graph, id);
        kernel.launch = std::min(
            kernel.seconds,
            one.kernel(cost::kernel_of(ops::get(op.name), types.inputs, types.results, 0, 0)));
      }
    }
  }

  struct Times {
    Seconds forward = 0;
    Seconds backward = 0;
  };

  /// By layer; nothing where no product is cut.
  [[nodiscard]] std::vector<Times> times(std::int64_t degree) const {
    const cost::CostModel cost(
        cluster_, degree > 1 ? cluster::DeviceMesh{{{"tensor", degree}}} : cluster::DeviceMesh{});
    std::vector<Times> times;
    bool any = degree == 1;
    for (const std::vector<Kernel>& layer : layers_) {
      Times& of_layer = times.emplace_back();
      for (const Kernel& kernel : layer) {
        // Sums of gradients have no forward op; they are cut as the gradients are.
        const double share = kernel.forward.valid() ? share_of(kernel.forward, degree)
                                                    : 1 / static_cast<double>(degree);
        const Seconds seconds = kernel.launch + (kernel.seconds - kernel.launch) * share;
        (kernel.phase == Phase::kForward ? of_layer.forward : of_layer.backward) += seconds;
        const Bytes bytes = kernel.phase == Phase::kForward ? reduced(kernel.forward, degree) : 0;
        if (bytes > 0) {
          const Seconds sum = cost.collective(sharding::CollectiveKind::kAllReduce, bytes, {0});
          of_layer.forward += sum;
          of_layer.backward += sum;
          any = true;
        }
      }
    }
    return any ? times : std::vector<Times>{};
  }

 private:
  struct Kernel {
    OpId forward{};  ///< of the step: the op, or the one whose gradient it is
    Phase phase = Phase::kForward;
    Seconds seconds = 0;  ///< on one device
    Seconds launch = 0;   ///< of it, what no other device takes away
  };

  [[nodiscard]] double share_of(OpId id, std::int64_t degree) const {
    if (degree == 1) {
      return 1;
    }
    const std::vector<AxisMeaning>& meanings = meanings_[id.index()];
    const ops::AxisMap map = ops::axis_map(step_, id);
    for (std::size_t a = 0; a < meanings.size(); ++a) {
      const bool cut = meanings[a] == AxisMeaning::kTensor || meanings[a] == AxisMeaning::kSequence;
      if (cut && sharding::can_cut_axis(map, static_cast<int>(a), degree)) {
        return 1 / static_cast<double>(degree);
      }
    }
    return 1;
  }

  /// Bytes of the partial sums that the op leaves; 0: of none.
  [[nodiscard]] Bytes reduced(OpId id, std::int64_t degree) const {
    if (degree == 1 || !id.valid() || !ops::get(step_.op(id).name).matmul) {
      return 0;
    }
    const std::vector<AxisMeaning>& meanings = meanings_[id.index()];
    const ops::AxisMap map = ops::axis_map(step_, id);
    for (std::size_t a = 0; a < meanings.size(); ++a) {
      if (meanings[a] == AxisMeaning::kTensor && map.axes[a].role == ops::AxisRole::kSum &&
          sharding::can_cut_axis(map, static_cast<int>(a), degree)) {
        return step_.type(step_.op(id).outputs[0]).bytes();
      }
    }
    return 0;
  }

  const ir::Graph& step_;
  const cluster::Cluster& cluster_;
  std::vector<std::vector<AxisMeaning>> meanings_;
  std::vector<std::vector<Kernel>> layers_;
};

/// Adds the choices of one degree, plain and recomputed.
void add_choices(const LayerBytes& bytes,
                 const DegreeTimes::Times& times,
                 int degree,
                 bool recompute,
                 bool can_recompute,
                 problem::Layer& layer) {
  problem::LayerChoice plain;
  plain.name = "plain";
  plain.degree = degree;
  plain.time = times.forward + times.backward;
  plain.forward_time = times.forward;
  plain.parameter_bytes = bytes.weights / degree;
  plain.in_flight_bytes = bytes.saved / degree;
  plain.constant_bytes = (bytes.weights + bytes.states) / degree;
  layer.choices.push_back(plain);
  if (!recompute) {
    return;
  }
  problem::LayerChoice again = plain;
  again.name = kRecomputed;
  if (can_recompute) {
    again.time += times.forward;
    again.in_flight_bytes = std::min(bytes.received, bytes.saved) / degree;
    again.constant_bytes += plain.in_flight_bytes - again.in_flight_bytes;
  }
  layer.choices.push_back(std::move(again));
}

void add_edges(const training::StagedStep& staged, problem::LayerGraph& graph) {
  std::map<std::pair<int, int>, double> edges;
  std::set<std::pair<int, ValueId>> sent;
  for (const training::Message& message : staged.messages) {
    if (message.phase != Phase::kForward || !message.value.valid()) {
      continue;
    }
    const ir::Graph& from = staged.stages[static_cast<std::size_t>(message.from)].graph;
    const std::vector<ValueId>& values =
        staged.stages[static_cast<std::size_t>(message.from)].value_of;
    const auto found = std::find(values.begin(), values.end(), message.value);
    const auto bytes = static_cast<double>(
        from.values()[static_cast<std::size_t>(found - values.begin())].type.bytes());
    edges[{message.from, message.to}] += bytes;
    if (sent.emplace(message.from, message.value).second) {
      graph.layers[static_cast<std::size_t>(message.from)].output_bytes += bytes;
    }
  }
  for (const auto& [ends, bytes] : edges) {
    graph.edges.push_back({ends.first, ends.second, bytes, {}});
  }
}

}  // namespace

std::vector<Segment> stage_segments(const ir::Graph& step, const std::vector<Segment>& segments) {
  const std::vector<bool> anywhere = ops_of_no_stage(step);
  std::vector<Segment> out;
  bool open = false;  // the last one of `out` still lacks an op of its own
  for (const Segment& segment : segments) {
    bool own = false;
    for (std::size_t i = segment.begin; i < segment.end; ++i) {
      own = own || (step.ops()[i].phase == Phase::kForward && !anywhere[i]);
    }
    if (open) {
      append(out.back(), segment);
      out.back().block = segment.block;
    } else {
      out.push_back(segment);
    }
    open = !own;
  }
  if (open && out.size() > 1) {
    const Segment last = out.back();
    out.pop_back();
    append(out.back(), last);
  }
  return out;
}

MachineLevels machine_levels(const cluster::Cluster& cluster) {
  MachineLevels out;
  for (auto level = cluster.levels.rbegin(); level != cluster.levels.rend(); ++level) {
    if (level->fanout > 1) {
      out.sizes.push_back(static_cast<int>(level->fanout));
      out.bandwidths.push_back(level->bandwidth * level->efficiency);
    }
  }
  return out;
}

Result<StepLayers> layers_of(const PlanRequest& request) {
  const ir::Graph& step = request.step;
  const auto devices = static_cast<std::size_t>(request.cluster.device_count());
  const cost::CostModel one(request.cluster, {});
  StepLayers out;
  const std::vector<Segment> blocks = segments(step, one, 0);
  out.segments = stage_segments(step, blocks);
  // More stages than this are not worth ops for layers, which cannot run again.
  constexpr std::size_t kManyBlocks = 16;
  const bool by_block = out.segments.size() >= std::min(devices, kManyBlocks);
  if (!by_block) {
    out.segments = stage_segments(step, segments(step, one, blocks.size() + 1));
  }
  std::vector<std::size_t> starts(out.segments.size());
  for (std::size_t s = 0; s < starts.size(); ++s) {
    starts[s] = s;
  }
  SHARDPLAN_ASSIGN_OR_RETURN(
      const training::StagedStep staged,
      training::split_into_stages(step, stages_of_segments(step, out.segments, starts)));
  std::vector<LayerBytes> bytes;
  for (std::size_t s = 0; s < out.segments.size(); ++s) {
    problem::Layer& layer = out.graph.layers.emplace_back();
    const ir::Op& first = step.ops()[out.segments[s].begin];
    layer.id = fmt::format("{}", s);
    layer.name = by_block ? out.segments[s].block : fmt::format("{} {}", first.layer, first.name);
    if (layer.name.empty()) {
      layer.name = s == 0 ? "begin" : s + 1 == out.segments.size() ? "end" : "between";
    }
    bytes.push_back(bytes_of(staged.stages[s].graph));
  }
  const DegreeTimes degrees(step, request.cluster, staged);
  for (std::size_t degree = 1; degree <= devices && devices % degree == 0; degree *= 2) {
    const std::vector<DegreeTimes::Times> times = degrees.times(static_cast<std::int64_t>(degree));
    for (std::size_t s = 0; s < times.size(); ++s) {
      add_choices(bytes[s],
                  times[s],
                  static_cast<int>(degree),
                  by_block,
                  !out.segments[s].block.empty(),
                  out.graph.layers[s]);
    }
  }
  add_edges(staged, out.graph);
  const MachineLevels levels = machine_levels(request.cluster);
  out.graph.defaults.devices = static_cast<int>(devices);
  out.graph.defaults.memory_bytes = static_cast<double>(memory_limit(request));
  if (!levels.bandwidths.empty()) {
    out.graph.defaults.bandwidth = levels.bandwidths.back();
  }
  out.graph.defaults.microbatches = step.microbatches;
  SHARDPLAN_RETURN_IF_ERROR(problem::check(out.graph, "the model's layers"));
  return out;
}

}  // namespace shardplan::planners
