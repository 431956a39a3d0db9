// Reading guide: Simulator::memory walks the Program once for the bytes, Simulator::times once for
// the seconds; both read the steps in program order. prepare() prices every step once, so that
// microbatches only add and compare.
#include <algorithm>

#include "shardplan/ops/op.h"
#include "shardplan/sim/memory.h"
#include "shardplan/sim/sim.h"

namespace shardplan::sim {
namespace {

using lower::LocalId;
using lower::Program;
using lower::Step;
using lower::StepKind;
using sharding::CollectiveKind;

/// What a step costs. Steps without a kernel or a message (views, frees, writes) run on no stream.
struct Price {
  enum class Stream : std::uint8_t { kNone, kCompute, kCommunication };
  Stream stream = Stream::kNone;
  Seconds seconds = 0;
};

class Simulator {
 public:
  Simulator(const Program& program,
            const ir::Graph& step,
            const cost::CostModel& cost,
            const SimOptions& options)
      : program_(program), graph_(step), cost_(cost), options_(options) {}

  Simulation run() {
    prepare(program_.microbatch, microbatch_prices_, program_.microbatches);
    prepare(program_.update, update_prices_, 1);
    times();
    memory();
    return std::move(result_);
  }

 private:
  [[nodiscard]] Price price(const Step& step) const;
  void prepare(const std::vector<Step>& steps, std::vector<Price>& prices, std::int64_t times);

  void times();
  void run_section(const std::vector<Step>& steps,
                   const std::vector<Price>& prices,
                   std::int64_t microbatch);
  void run_step(const Step& step, const Price& price, std::int64_t microbatch);
  void record(const Step& step, const Price& price, Seconds start, std::int64_t microbatch);

  void memory();
  void memory_section(const std::vector<Step>& steps);
  void memory_step(const Step& step);
  [[nodiscard]] lower::ProgramPoint point(const Step& step) const;
  void allocate(LocalId id, const Step& step);
  void drop(LocalId root);
  void write(LocalId target, LocalId value);
  void reserve();
  void finish(LocalId made);

  const Program& program_;
  const ir::Graph& graph_;
  const cost::CostModel& cost_;
  const SimOptions& options_;
  Simulation result_;

  std::vector<Price> microbatch_prices_;
  std::vector<Price> update_prices_;
  Seconds compute_free_ = 0;
  Seconds communication_free_ = 0;
  std::vector<Seconds> ready_;       ///< by local: its content is there
  std::vector<Seconds> read_until_;  ///< by root: the last reader so far is done

  struct Storage {
    Bytes bytes = 0;  ///< 0: not there
    MemoryClass what = MemoryClass::kTemporary;
  };
  struct InFlight {
    LocalId made;
    Bytes workspace = 0;
  };
  std::vector<InFlight> in_flight_;
  Bytes reserved_ = 0;  ///< largest workspace in flight
  std::vector<MemoryClass> classes_;
  std::vector<Storage> storage_;  ///< by root
  MemoryMeter meter_;
};

Price Simulator::price(const Step& step) const {
  if (step.kind == StepKind::kCollective) {
    const ir::TensorType& type = graph_.type(program_.value(step.inputs[0]).global);
    const bool local = step.collective.kind == CollectiveKind::kSlice;
    return {local ? Price::Stream::kCompute : Price::Stream::kCommunication,
            cost_.reshard_step(step.collective, type)};
  }
  if (step.kind != StepKind::kCompute) {
    return {};
  }
  const ops::OpDef& op = ops::get(graph_.op(step.op).name);
  if (op.view) {
    return {};
  }
  const auto types = [&](const std::vector<LocalId>& ids) {
    ops::Types out;
    out.reserve(ids.size());
    for (const LocalId id : ids) {
      out.push_back(program_.value(id).type);
    }
    return out;
  };
  return {Price::Stream::kCompute,
          cost_.kernel(cost::kernel_of(
              op, types(step.inputs), types(step.outputs), step.flops, step.bytes))};
}

void Simulator::prepare(const std::vector<Step>& steps,
                        std::vector<Price>& prices,
                        std::int64_t times) {
  prices.reserve(steps.size());
  const auto count = static_cast<double>(times);
  for (const Step& step : steps) {
    const Price p = price(step);
    (p.stream == Price::Stream::kCommunication ? result_.communication_seconds
                                               : result_.compute_seconds) += p.seconds * count;
    result_.flops += step.flops * count;
    prices.push_back(p);
  }
}

void Simulator::times() {
  ready_.assign(program_.values.size(), 0);
  read_until_.assign(program_.values.size(), 0);
  for (std::int64_t m = 0; m < program_.microbatches; ++m) {
    run_section(program_.microbatch, microbatch_prices_, m);
  }
  run_section(program_.update, update_prices_, -1);
  result_.step_seconds = std::max(compute_free_, communication_free_);
  result_.additive_seconds = result_.compute_seconds + result_.communication_seconds;
  result_.exposed_communication_seconds =
      std::max(0.0, result_.step_seconds - result_.compute_seconds);
}

void Simulator::run_section(const std::vector<Step>& steps,
                            const std::vector<Price>& prices,
                            std::int64_t microbatch) {
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    if (step.kind == StepKind::kWrite) {
      ready_[step.outputs[0].index()] = ready_[step.inputs[0].index()];
    } else if (step.kind == StepKind::kCompute || step.kind == StepKind::kCollective) {
      run_step(step, prices[i], microbatch);
    }
  }
}

void Simulator::run_step(const Step& step, const Price& price, std::int64_t microbatch) {
  Seconds start = 0;
  for (const LocalId input : step.inputs) {
    start = std::max(start, ready_[input.index()]);
  }
  // An output in place waits for those who still read the old content.
  for (const LocalId output : step.outputs) {
    if (price.stream != Price::Stream::kNone && program_.value(output).view_of.valid()) {
      start = std::max(start, read_until_[program_.root(output).index()]);
    }
  }
  Seconds end = start;
  if (price.stream != Price::Stream::kNone) {
    const bool communicates = price.stream == Price::Stream::kCommunication && options_.overlap;
    Seconds& free = communicates ? communication_free_ : compute_free_;
    start = std::max(start, free);
    end = start + price.seconds;
    free = end;
    record(step, price, start, microbatch);
  }
  for (const LocalId input : step.inputs) {
    Seconds& until = read_until_[program_.root(input).index()];
    until = std::max(until, end);
  }
  for (const LocalId output : step.outputs) {
    ready_[output.index()] = end;
  }
}

void Simulator::record(const Step& step,
                       const Price& price,
                       Seconds start,
                       std::int64_t microbatch) {
  if (!options_.timeline) {
    return;
  }
  Event event;
  event.start = start;
  event.end = start + price.seconds;
  event.communication = price.stream == Price::Stream::kCommunication;
  if (step.kind == StepKind::kCompute) {
    event.op = step.op;
    event.name = graph_.op(step.op).name;
  } else {
    event.name = sharding::collective_name(step.collective.kind);
  }
  if (step.op.valid()) {
    event.layer = graph_.op(step.op).layer;
  }
  event.phase = step.phase;
  event.recompute = step.recompute;
  event.microbatch = microbatch;
  result_.timeline.push_back(std::move(event));
}

void Simulator::memory() {
  classes_ = memory_classes(graph_);
  storage_.assign(program_.values.size(), {});
  for (const lower::Resident& resident : program_.residents) {
    Storage& storage = storage_[resident.local.index()];
    storage = {program_.value(resident.local).type.bytes(), classes_[resident.global.index()]};
    meter_.add(storage.what, storage.bytes);
  }
  // What is live after the second microbatch is what was live after the first.
  for (std::int64_t m = 0; m < std::min<std::int64_t>(program_.microbatches, 2); ++m) {
    memory_section(program_.microbatch);
  }
  memory_section(program_.update);
  result_.peak_bytes = meter_.peak();
  result_.at_peak = meter_.at_peak();
}

lower::ProgramPoint Simulator::point(const Step& step) const {
  using What = lower::ProgramPoint::What;
  if (step.kind != StepKind::kCollective) {
    return {step.op, step.recompute, What::kRun, 0};
  }
  if (step.collective.kind == CollectiveKind::kHaloExchange) {
    return {step.op, step.recompute, What::kHalo, step.operand};
  }
  if (step.operand >= 0) {
    return {step.op, step.recompute, What::kOperand, step.operand};
  }
  if (step.operand == Step::kOfWrite) {
    return {step.op, false, What::kWrite, 0};
  }
  const ir::ValueId value = program_.value(step.inputs[0]).global;
  return {step.op, step.recompute, What::kResult, graph_.value(value).result_index};
}

void Simulator::memory_section(const std::vector<Step>& steps) {
  for (const Step& step : steps) {
    const Bytes before = meter_.peak();
    meter_.watch();
    memory_step(step);
    Peak& phase = result_.phase_peaks[static_cast<std::size_t>(step.phase)];
    if (meter_.watched() > phase.bytes) {
      phase = {meter_.watched(), point(step)};
    }
    if (meter_.peak() > before) {
      result_.peak = point(step);
    }
  }
}

void Simulator::memory_step(const Step& step) {
  if (step.kind == StepKind::kFree) {
    drop(step.inputs[0]);
    return;
  }
  if (step.kind == StepKind::kWait) {
    finish(step.inputs[0]);
    return;
  }
  if (step.kind == StepKind::kWrite) {
    write(program_.root(step.outputs[0]), program_.root(step.inputs[0]));
    return;
  }
  for (const LocalId output : step.outputs) {
    if (!program_.value(output).view_of.valid()) {
      allocate(output, step);
    }
  }
  if (step.kind == StepKind::kCompute || step.collective.kind == CollectiveKind::kSlice) {
    meter_.touch(MemoryClass::kTemporary, step.workspace);
    return;
  }
  in_flight_.push_back({step.outputs[0], step.workspace});
  reserve();
  if (!step.aside) {
    finish(step.outputs[0]);
  }
}

/// One workspace serves all collectives that have not been waited for.
void Simulator::reserve() {
  Bytes most = 0;
  for (const InFlight& collective : in_flight_) {
    most = std::max(most, collective.workspace);
  }
  if (most > reserved_) {
    meter_.add(MemoryClass::kTemporary, most - reserved_);
  } else {
    meter_.remove(MemoryClass::kTemporary, reserved_ - most);
  }
  reserved_ = most;
}

void Simulator::finish(LocalId made) {
  std::erase_if(in_flight_, [&](const InFlight& collective) { return collective.made == made; });
  reserve();
}

/// A value of an earlier microbatch that is still there (the loss) goes when it is made again.
void Simulator::allocate(LocalId id, const Step& step) {
  drop(id);
  const lower::LocalValue& value = program_.value(id);
  MemoryClass what = classes_[value.global.index()];
  if (step.kind == StepKind::kCollective && what != MemoryClass::kGradients &&
      what != MemoryClass::kActivations) {
    what = MemoryClass::kTemporary;
  }
  storage_[id.index()] = {value.type.bytes(), what};
  meter_.add(what, value.type.bytes());
}

void Simulator::drop(LocalId root) {
  Storage& storage = storage_[root.index()];
  meter_.remove(storage.what, storage.bytes);
  storage.bytes = 0;
}

void Simulator::write(LocalId target, LocalId value) {
  if (target == value) {
    return;
  }
  Storage& to = storage_[target.index()];
  const Bytes bytes = storage_[value.index()].bytes;
  drop(target);
  drop(value);
  to.bytes = bytes;
  meter_.add(to.what, bytes);
}

}  // namespace

Simulation simulate(const Program& program,
                    const ir::Graph& step,
                    const cost::CostModel& cost,
                    const SimOptions& options) {
  return Simulator(program, step, cost, options).run();
}

}  // namespace shardplan::sim
