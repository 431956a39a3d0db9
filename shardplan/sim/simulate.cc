// Reading guide: Simulator::memory walks the Program once for the bytes, Simulator::times once for
// the seconds; both read the steps in program order. prepare() prices every step once, so that
// microbatches only add and compare.
#include <algorithm>

#include "shardplan/lower/pipeline.h"
#include "shardplan/ops/op.h"
#include "shardplan/sim/program_memory.h"
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

  SectionTimes sections(std::size_t weights_begin) {
    prepare(program_.microbatch, microbatch_prices_, 1);
    prepare(program_.update, update_prices_, 1);
    const std::size_t backward = lower::backward_begin(program_);
    SectionTimes out;
    out.forward = seconds_of(program_.microbatch, microbatch_prices_, 0, backward);
    out.backward =
        seconds_of(program_.microbatch, microbatch_prices_, backward, program_.microbatch.size());
    out.backward_input =
        seconds_of(program_.microbatch, microbatch_prices_, backward, weights_begin);
    out.backward_weight = seconds_of(
        program_.microbatch, microbatch_prices_, weights_begin, program_.microbatch.size());
    out.update = seconds_of(program_.update, update_prices_, 0, program_.update.size());
    out.compute = result_.compute_seconds;
    out.flops = result_.flops;
    return out;
  }

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
  struct Steps {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  void run_section(const std::vector<Step>& steps,
                   const std::vector<Price>& prices,
                   Steps part,
                   std::int64_t microbatch);
  Seconds seconds_of(const std::vector<Step>& steps,
                     const std::vector<Price>& prices,
                     std::size_t begin,
                     std::size_t end);
  void run_step(const Step& step, const Price& price, std::int64_t microbatch);
  void record(const Step& step, const Price& price, Seconds start, std::int64_t microbatch);

  void memory();
  void memory_section(const std::vector<Step>& steps, ProgramMemory& memory);
  [[nodiscard]] lower::ProgramPoint point(const Step& step) const;

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
  return {Price::Stream::kCompute,
          cost_.kernel(cost::kernel_of(op,
                                       types_of(program_, step.inputs),
                                       types_of(program_, step.outputs),
                                       step.flops,
                                       step.bytes))};
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
    run_section(program_.microbatch, microbatch_prices_, {0, program_.microbatch.size()}, m);
  }
  run_section(program_.update, update_prices_, {0, program_.update.size()}, -1);
  result_.step_seconds = std::max(compute_free_, communication_free_);
  result_.additive_seconds = result_.compute_seconds + result_.communication_seconds;
  result_.exposed_communication_seconds =
      std::max(0.0, result_.step_seconds - result_.compute_seconds);
}

void Simulator::run_section(const std::vector<Step>& steps,
                            const std::vector<Price>& prices,
                            Steps part,
                            std::int64_t microbatch) {
  for (std::size_t i = part.begin; i < part.end; ++i) {
    const Step& step = steps[i];
    if (step.kind == StepKind::kWrite) {
      ready_[step.outputs[0].index()] = ready_[step.inputs[0].index()];
    } else if (step.kind == StepKind::kCompute || step.kind == StepKind::kCollective) {
      run_step(step, prices[i], microbatch);
    }
  }
}

/// From a standstill to the end of both streams.
Seconds Simulator::seconds_of(const std::vector<Step>& steps,
                              const std::vector<Price>& prices,
                              std::size_t begin,
                              std::size_t end) {
  compute_free_ = 0;
  communication_free_ = 0;
  ready_.assign(program_.values.size(), 0);
  read_until_.assign(program_.values.size(), 0);
  run_section(steps, prices, {begin, end}, 0);
  return std::max(compute_free_, communication_free_);
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
  ProgramMemory memory(program_, graph_, meter_);
  // What is live after the second microbatch is what was live after the first.
  for (std::int64_t m = 0; m < std::min<std::int64_t>(program_.microbatches, 2); ++m) {
    memory_section(program_.microbatch, memory);
  }
  memory_section(program_.update, memory);
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

void Simulator::memory_section(const std::vector<Step>& steps, ProgramMemory& memory) {
  for (const Step& step : steps) {
    const Bytes before = meter_.peak();
    meter_.watch();
    memory.run(step);
    Peak& phase = result_.phase_peaks[static_cast<std::size_t>(step.phase)];
    if (meter_.watched() > phase.bytes) {
      phase = {meter_.watched(), point(step)};
    }
    if (meter_.peak() > before) {
      result_.peak = point(step);
    }
  }
}

}  // namespace

SectionTimes section_times(const Program& program,
                           std::size_t weights_begin,
                           const ir::Graph& step,
                           const cost::CostModel& cost,
                           const SimOptions& options) {
  return Simulator(program, step, cost, options).sections(weights_begin);
}

Simulation simulate(const Program& program,
                    const ir::Graph& step,
                    const cost::CostModel& cost,
                    const SimOptions& options) {
  return Simulator(program, step, cost, options).run();
}

}  // namespace shardplan::sim
