// Reading guide: work() gives what one op costs, memoised over equal ops (a model repeats its
// blocks); Liveness walks the ops once in order for the bytes.
#include <algorithm>
#include <limits>
#include <unordered_map>

#include "shardplan/ops/op.h"
#include "shardplan/plan/plan.h"
#include "shardplan/sim/memory.h"
#include "shardplan/sim/sim.h"

namespace shardplan::sim {
namespace {

using ir::OpId;
using ir::Phase;
using ir::ValueId;

constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

struct OpWork {
  const ops::OpDef* def = nullptr;
  Flops flops = 0;
  Bytes traffic = 0;  ///< read and written
  Bytes workspace = 0;
};

OpWork compute_work(const ir::Graph& step, OpId id) {
  const ir::Op& op = step.op(id);
  OpWork work;
  work.def = &ops::get(op.name);
  if (work.def->view) {
    return work;
  }
  const ops::OpTypes types = ops::op_types(step, id);
  const ops::OpView view{types.inputs, types.results, op.attributes};
  work.flops = work.def->flops != nullptr ? work.def->flops(view) : 0;
  work.workspace = work.def->workspace != nullptr ? work.def->workspace(view) : 0;
  work.traffic = lower::memory_traffic(work.def->axes(view), types.inputs, types.results);
  return work;
}

void mix(std::size_t& seed, std::size_t value) {
  seed = (seed ^ value) * std::size_t{0x9E3779B97F4A7C15U};
  seed ^= seed >> 29U;
}

struct HashAttribute {
  std::size_t operator()(const ir::IntList& list) const {
    std::size_t seed = list.size();
    for (const std::int64_t x : list) {
      mix(seed, static_cast<std::size_t>(x));
    }
    return seed;
  }
  template <class T>
  std::size_t operator()(const T& value) const {
    return std::hash<T>{}(value);
  }
};

/// Ops of equal name, attributes and operand types do equal work.
class WorkTable {
 public:
  explicit WorkTable(const ir::Graph& step) : step_(step) {}

  const OpWork& work(OpId id) {
    std::vector<Entry>& bucket = table_[hash(step_.op(id))];
    for (const Entry& entry : bucket) {
      if (equal(step_.op(entry.op), step_.op(id))) {
        return entry.work;
      }
    }
    bucket.push_back({id, compute_work(step_, id)});
    return bucket.back().work;
  }

 private:
  struct Entry {
    OpId op;
    OpWork work;
  };

  [[nodiscard]] std::size_t hash(const ir::Op& op) const {
    std::size_t seed = std::hash<std::string>{}(op.name);
    for (const auto& [name, attribute] : op.attributes.entries()) {
      mix(seed, std::visit(HashAttribute{}, attribute));
    }
    for (const ValueId input : op.inputs) {
      const ir::TensorType& type = step_.type(input);
      mix(seed, static_cast<std::size_t>(type.dtype));
      mix(seed, HashAttribute{}(type.shape));
    }
    return seed;
  }

  [[nodiscard]] bool equal(const ir::Op& a, const ir::Op& b) const {
    return a.name == b.name && a.attributes == b.attributes &&
           std::equal(a.inputs.begin(),
                      a.inputs.end(),
                      b.inputs.begin(),
                      b.inputs.end(),
                      [&](ValueId x, ValueId y) { return step_.type(x) == step_.type(y); });
  }

  const ir::Graph& step_;
  std::unordered_map<std::size_t, std::vector<Entry>> table_;
};

/// The bytes that are live after each op, on one device, with frees right after the last use: the
/// same rules as lower() and simulate().
class Liveness {
 public:
  Liveness(const ir::Graph& step, const std::vector<OpWork>& work)
      : step_(step), work_(work), classes_(memory_classes(step)) {
    find_roots();
    find_last_uses();
    schedule_writes();
  }

  /// Calls visit(op index) before each op.
  template <class Visit>
  void run(Visit visit) {
    add_residents();
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      visit(i);
      run_op(i);
    }
  }

  /// Calls visit(value) for every storage that is there now, is no graph input and has a later use.
  template <class Visit>
  void saved(std::size_t op_index, Visit visit) const {
    for (std::size_t v = 0; v < live_.size(); ++v) {
      const bool used_later = last_use_[v] >= op_index && last_use_[v] != kNever;
      if (live_[v] > 0 && used_later && step_.values()[v].kind == ir::ValueKind::kOpResult) {
        visit(ValueId(v), live_[v]);
      }
    }
  }

  [[nodiscard]] const MemoryMeter& meter() const { return meter_; }

 private:
  void find_roots() {
    roots_.reserve(step_.values().size());
    for (std::size_t v = 0; v < step_.values().size(); ++v) {
      roots_.emplace_back(v);
    }
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      const ir::Op& op = step_.ops()[i];
      const ops::OpDef& def = *work_[i].def;
      for (std::size_t r = 0; r < op.outputs.size(); ++r) {
        if (const int operand = ops::storage_operand(def, r); operand >= 0) {
          roots_[op.outputs[r].index()] = root(op.inputs[static_cast<std::size_t>(operand)]);
        }
      }
    }
  }

  void find_last_uses() {
    last_use_.assign(step_.values().size(), 0);
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      const ir::Op& op = step_.ops()[i];
      for (const auto* ids : {&op.inputs, &op.outputs}) {
        for (const ValueId id : *ids) {
          last_use_[root(id).index()] = i;
        }
      }
    }
    if (!step_.outputs.empty()) {
      last_use_[root(step_.outputs[0]).index()] = kNever;
    }
    for (std::size_t v = 0; v < step_.values().size(); ++v) {
      if (step_.values()[v].kind != ir::ValueKind::kOpResult) {
        last_use_[v] = kNever;
      }
    }
  }

  /// A write happens once the value exists and nothing reads the old content any more.
  void schedule_writes() {
    std::vector<std::size_t> last_read(step_.values().size(), 0);
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      for (const ValueId input : step_.ops()[i].inputs) {
        last_read[input.index()] = i;
      }
    }
    for (const ir::Write& write : step_.writes) {
      const ValueId value = root(write.value);
      const ValueId target = root(write.target);
      const OpId producer = step_.value(write.value).producer;
      if (value != target && producer.valid()) {
        last_use_[value.index()] = kNever;
        writes_[std::max(producer.index(), last_read[write.target.index()])].push_back(
            {target, value});
      }
    }
  }

  void add_residents() {
    live_.assign(step_.values().size(), 0);
    for (std::size_t v = 0; v < step_.values().size(); ++v) {
      if (step_.values()[v].kind != ir::ValueKind::kOpResult) {
        allocate(ValueId(v));
      }
    }
    // From the second microbatch on, the loss of the one before is still there.
    if (step_.microbatches > 1 && !step_.outputs.empty()) {
      allocate(root(step_.outputs[0]));
    }
  }

  void run_op(std::size_t i) {
    const ir::Op& op = step_.ops()[i];
    for (const ValueId output : op.outputs) {
      if (root(output) == output) {
        allocate(output);
      }
    }
    meter_.touch(MemoryClass::kTemporary, work_[i].workspace);
    for (const auto* ids : {&op.inputs, &op.outputs}) {
      for (const ValueId id : *ids) {
        if (last_use_[root(id).index()] == i) {
          drop(root(id));
        }
      }
    }
    if (const auto found = writes_.find(i); found != writes_.end()) {
      for (const ir::Write& write : found->second) {
        hand_over(write.target, write.value);
      }
    }
  }

  void allocate(ValueId id) {
    drop(id);
    live_[id.index()] = step_.type(id).bytes();
    meter_.add(classes_[id.index()], live_[id.index()]);
  }
  void drop(ValueId id) {
    meter_.remove(classes_[id.index()], live_[id.index()]);
    live_[id.index()] = 0;
  }
  void hand_over(ValueId target, ValueId value) {
    const Bytes bytes = live_[value.index()];
    drop(target);
    drop(value);
    live_[target.index()] = bytes;
    meter_.add(classes_[target.index()], bytes);
  }

  [[nodiscard]] ValueId root(ValueId id) const { return roots_[id.index()]; }

  const ir::Graph& step_;
  const std::vector<OpWork>& work_;
  std::vector<MemoryClass> classes_;
  std::vector<ValueId> roots_;         ///< by value: owner of the storage
  std::vector<std::size_t> last_use_;  ///< by root: op index; kNever = not dropped
  std::unordered_map<std::size_t, std::vector<ir::Write>> writes_;  ///< by op: storage handed over
  std::vector<Bytes> live_;                                         ///< by root: 0 = not there
  MemoryMeter meter_;
};

/// The block of a layer; layers outside of blocks stand for themselves.
std::string_view row_name(std::string_view layer) {
  const std::string_view block = plan::block_of(layer);
  return block.empty() ? layer : block;
}

class Profiler {
 public:
  explicit Profiler(const ir::Graph& step) : step_(step) {}

  Profile run() {
    gather_work();
    count_parameters();
    std::size_t first_backward = 0;
    while (first_backward < step_.ops().size() &&
           step_.ops()[first_backward].phase == Phase::kForward) {
      ++first_backward;
    }
    Liveness liveness(step_, work_);
    liveness.run([&](std::size_t op) {
      if (op == first_backward) {
        liveness.saved(op, [&](ValueId value, Bytes bytes) { add_saved(value, bytes); });
      }
    });
    profile_.peak_bytes = liveness.meter().peak();
    profile_.at_peak = liveness.meter().at_peak();
    return std::move(profile_);
  }

 private:
  LayerProfile& row(std::string_view layer) {
    const std::string_view name = row_name(layer);
    const auto [found, inserted] = rows_.try_emplace(name, profile_.layers.size());
    if (inserted) {
      profile_.layers.emplace_back().layer = name;
    }
    return profile_.layers[found->second];
  }

  void gather_work() {
    WorkTable table(step_);
    const auto times = static_cast<double>(step_.microbatches);
    work_.reserve(step_.ops().size());
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      const ir::Op& op = step_.ops()[i];
      const OpWork& work = work_.emplace_back(table.work(OpId(i)));
      if (op.phase == Phase::kForward) {
        profile_.forward_flops += work.flops * times;
        profile_.forward_bytes += work.traffic * step_.microbatches;
        row(op.layer).forward_flops += work.flops * times;
      } else if (op.phase == Phase::kBackward) {
        profile_.backward_flops += work.flops * times;
        profile_.backward_bytes += work.traffic * step_.microbatches;
        row(op.layer).backward_flops += work.flops * times;
      }
    }
  }

  /// A parameter counts where it is first used; one that nothing uses counts in the total only.
  void count_parameters() {
    std::vector<bool> counted(step_.values().size(), false);
    for (const ir::Op& op : step_.ops()) {
      if (op.phase != Phase::kForward) {
        break;
      }
      for (const ValueId input : op.inputs) {
        if (step_.value(input).kind == ir::ValueKind::kParameter && !counted[input.index()]) {
          counted[input.index()] = true;
          row(op.layer).parameters += step_.type(input).numel();
        }
      }
    }
    for (const ir::Value& value : step_.values()) {
      if (value.kind == ir::ValueKind::kParameter) {
        profile_.parameters += value.type.numel();
        profile_.parameter_bytes += value.type.bytes();
      }
    }
  }

  void add_saved(ValueId value, Bytes bytes) {
    profile_.saved_activation_bytes += bytes;
    row(step_.op(step_.value(value).producer).layer).saved_activation_bytes += bytes;
  }

  const ir::Graph& step_;
  Profile profile_;
  std::vector<OpWork> work_;                                ///< by op
  std::unordered_map<std::string_view, std::size_t> rows_;  ///< keys point into the graph
};

}  // namespace

Profile profile(const ir::Graph& step) {
  return Profiler(step).run();
}

}  // namespace shardplan::sim
