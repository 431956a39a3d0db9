#include "shardplan/runtime/executor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "shardplan/lower/pipeline.h"
#include "shardplan/ops/op.h"
#include "shardplan/runtime/collectives.h"
#include "shardplan/runtime/initial.h"
#include "shardplan/sharding/halo.h"

namespace shardplan::runtime {

using lower::LocalId;
using lower::Step;
using lower::StepKind;

Executor::Executor(const ExecutorSetup& setup)
    : memory_(setup.memory != nullptr ? *setup.memory : own_memory_),
      step_(setup.step),
      program_(setup.program),
      rank_(setup.rank),
      first_rank_(setup.first_rank),
      messenger_(setup.messenger),
      seed_(setup.seed),
      heartbeat_(setup.heartbeat) {}

Result<std::unique_ptr<Executor>> Executor::create(const ExecutorSetup& setup) {
  install_counting_allocator();
  std::unique_ptr<Executor> made(new Executor(setup));
  Executor& self = *made;
  self.views_.resize(self.program_.values.size());
  for (std::size_t i = 0; i < self.program_.values.size(); ++i) {
    const LocalId id(i);
    self.views_[self.program_.root(id).index()].push_back(id);
  }
  SHARDPLAN_RETURN_IF_ERROR(self.prepare_groups(setup.groups, setup.group_purpose));
  SHARDPLAN_RETURN_IF_ERROR(self.prepare(self.program_.microbatch, self.microbatch_));
  SHARDPLAN_RETURN_IF_ERROR(self.prepare(self.program_.update, self.update_));
  self.backward_begin_ = lower::backward_begin(self.program_);
  self.weights_begin_ = setup.weights_begin;
  self.reset_times();
  for (const std::vector<Step>* steps : {&self.program_.microbatch, &self.program_.update}) {
    if (std::any_of(steps->begin(), steps->end(), [](const Step& s) { return s.aside; })) {
      self.communication_ = std::make_unique<Background>();
    }
  }
  try {
    self.fill_residents();
    self.find_last_uses();
    self.find_views_of_residents();
  } catch (const std::exception& error) {
    return Error{ErrorCode::kRuntime,
                 std::string("weights cannot be set up: ") + error.what(),
                 "rank " + std::to_string(self.first_rank_ + self.rank_),
                 {}};
  }
  return made;
}

Status Executor::prepare_groups(GroupSource* groups, const std::string& purpose) {
  for (const Ranks& ranks : needed_groups(program_, first_rank_)) {
    if (std::find(ranks.begin(), ranks.end(), first_rank_ + rank_) == ranks.end()) {
      continue;
    }
    if (groups == nullptr) {
      return Error{ErrorCode::kRuntime, "the plan is for several ranks, but this is one", {}, {}};
    }
    SHARDPLAN_ASSIGN_OR_RETURN(groups_[ranks], groups->group(ranks, purpose));
    if (static_cast<std::int64_t>(ranks.size()) == program_.mesh.size()) {
      world_ = groups_[ranks];
    }
  }
  return {};
}

ir::TensorType Executor::part_type(LocalId id) const {
  const lower::LocalValue& value = program_.value(id);
  const ir::Shape& whole = step_.type(value.global).shape;
  return {value.type.dtype,
          sharding::widened_part_shape(value.halos, value.spec, whole, program_.mesh, rank_)};
}

bool Executor::cut_to_nothing(const Step& step) const {
  const auto nothing = [&](LocalId id) {
    return part_type(id).numel() == 0 && program_.value(id).type.numel() != 0;
  };
  return std::any_of(step.inputs.begin(), step.inputs.end(), nothing) ||
         std::any_of(step.outputs.begin(), step.outputs.end(), nothing);
}

std::vector<GlobalAxis> Executor::global_axes(const Step& step) const {
  std::vector<GlobalAxis> axes;
  if (step.positions.empty()) {
    return axes;
  }
  const ops::AxisMap map = ops::axis_map(step_, step.op);
  for (const lower::Position& position : step.positions) {
    const sharding::Range part =
        sharding::part(position.global_size, position.mesh_axes, program_.mesh, rank_);
    GlobalAxis axis{position.name, -1, part.start, part.size, position.global_size};
    for (std::size_t d = 0; d < map.results[0].size(); ++d) {
      if (map.results[0][d] == std::vector<int>{position.axis}) {
        axis.result_dim = static_cast<int>(d);
      }
    }
    axes.push_back(std::move(axis));
  }
  return axes;
}

Status Executor::prepare(const std::vector<Step>& steps, std::vector<Prepared>& prepared) {
  for (const Step& step : steps) {
    Prepared& made = prepared.emplace_back();
    if (step.kind == StepKind::kCompute) {
      const ir::Op& op = step_.op(step.op);
      if (op.attributes.has("message")) {
        made.message = static_cast<int>(op.attributes.integer("message"));
      } else {
        SHARDPLAN_RETURN_IF_ERROR(check_runnable(op));
        made.kernel = find_kernel(op.name);
      }
      made.positions = global_axes(step);
      for (const ops::Halo& halo : step.cut) {
        const LocalId operand = step.inputs[static_cast<std::size_t>(halo.input)];
        made.cut.push_back(
            sharding::cut_window(halo, program_.value(operand).spec, program_.mesh, rank_));
      }
      made.nothing = cut_to_nothing(step);
    } else if (step.kind == StepKind::kCollective &&
               step.collective.kind != sharding::CollectiveKind::kSlice) {
      Ranks ranks = program_.mesh.group(rank_, step.collective.axes);
      std::sort(ranks.begin(), ranks.end());
      for (std::int64_t& member : ranks) {
        member += first_rank_;
      }
      made.group = groups_.at(ranks);
    }
    for (const LocalId output : step.outputs) {
      made.results.push_back(part_type(output));
    }
  }
  return {};
}

void Executor::find_last_uses() {
  std::vector<Prepared*> last(program_.values.size(), nullptr);  // by root
  const auto scan = [&](const std::vector<Step>& steps, std::vector<Prepared>& prepared) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      for (const auto* ids : {&steps[i].inputs, &steps[i].outputs}) {
        for (const LocalId id : *ids) {
          last[program_.root(id).index()] = &prepared[i];
        }
      }
    }
  };
  scan(program_.microbatch, microbatch_);
  scan(program_.update, update_);
  for (const lower::Resident& gradient : program_.kept_gradients) {
    if (Prepared* use = last[program_.root(gradient.local).index()]; use != nullptr) {
      use->last_uses.push_back(gradient.local);
    }
  }
  for (const std::vector<Step>* steps : {&program_.microbatch, &program_.update}) {
    for (const Step& step : *steps) {
      if (step.kind != StepKind::kWrite) {
        continue;
      }
      // A resident has its storage: later readers may see it under its own name, but a microbatch
      // that is set aside must not keep it once the last has.
      const LocalId root = program_.root(step.inputs[0]);
      if (!resident_root_[root.index()]) {
        last[root.index()]->written.push_back(root);
      }
    }
  }
}

void Executor::fill_residents() {
  const at::NoGradGuard no_grad;
  const MemoryScope scope(memory_);
  tensors_.resize(program_.values.size());
  resident_root_.resize(program_.values.size(), false);
  for (const lower::Resident& resident : program_.residents) {
    resident_root_[resident.local.index()] = true;
  }
  for (const lower::Resident& resident : program_.residents) {
    const sharding::ShardingSpec& spec = program_.value(resident.local).spec;
    if (step_.value(resident.global).kind != ir::ValueKind::kInput) {
      tensor(resident.local) =
          initial_shard(step_, resident.global, spec, program_.mesh, rank_, seed_);
    }
    if (heartbeat_) {
      heartbeat_(false);
    }
  }
}

void Executor::drop(LocalId root) {
  for (const LocalId id : views_[root.index()]) {
    tensor(id).reset();
  }
}

void Executor::write(LocalId target, LocalId value) {
  if (program_.root(target) == program_.root(value)) {
    return;  // updated in place
  }
  at::Tensor taken = tensor(value);
  drop(program_.root(target));
  tensor(target) = std::move(taken);
}

void Executor::keep_gradient(LocalId local) {
  for (const lower::Resident& gradient : program_.kept_gradients) {
    if (gradient.local != local) {
      continue;
    }
    finish(program_.root(local));
    Part& part = gradients_[gradient.global];
    part.spec = program_.value(local).spec;
    // An accumulator lives on: its content is copied; anything else is handed over.
    const bool resident =
        std::any_of(program_.residents.begin(), program_.residents.end(), [&](const auto& r) {
          return program_.root(r.local) == program_.root(local);
        });
    if (resident) {
      MemoryCounter aside;
      const MemoryScope scope(aside);
      part.tensor = tensor(local).clone();
      stop_counting(part.tensor.storage().mutable_data());
    } else {
      part.tensor = tensor(local);
      stop_counting(part.tensor.storage().mutable_data());
      drop(program_.root(local));
    }
  }
}

void Executor::fill_inputs(const InputSource& inputs) {
  for (const lower::Resident& resident : program_.residents) {
    if (step_.value(resident.global).kind != ir::ValueKind::kInput) {
      continue;
    }
    drop(resident.local);
    const at::Tensor full = inputs(resident.global, microbatch_number_);
    const MemoryScope scope(memory_);
    tensor(resident.local) =
        shard_of(full, program_.value(resident.local).spec, program_.mesh, rank_);
  }
}

void Executor::run_compute(const Step& step, const Prepared& prepared) {
  KernelCall call{
      {},
      step_.op(step.op).attributes,
      prepared.results,
      prepared.positions,
      RandomState{seed_, random_step_ >= 0 ? random_step_ : steps_done_, microbatch_number_},
      prepared.cut};
  for (const LocalId input : step.inputs) {
    call.inputs.push_back(tensor(input));
  }
  std::vector<at::Tensor> results;
  if (prepared.nothing) {
    std::vector<sharding::ShardingSpec> layouts;
    layouts.reserve(step.outputs.size());
    for (const LocalId output : step.outputs) {
      layouts.push_back(program_.value(output).spec);
    }
    results = results_of_nothing(step_.op(step.op).name, call, layouts);
  } else {
    results = prepared.kernel(call);
  }
  for (std::size_t i = 0; i < step.outputs.size(); ++i) {
    SHARDPLAN_CHECK(results[i].is_contiguous() &&
                    results[i].sizes() == at::IntArrayRef(prepared.results[i].shape) &&
                    results[i].scalar_type() == scalar_type(prepared.results[i].dtype))
        << "kernel of " << step_.op(step.op).name << " made result " << i
        << " of another type than " << to_string(prepared.results[i]);
    tensor(step.outputs[i]) = std::move(results[i]);
  }
}

/// The main thread allocates, so that memory follows the program and not the clock; the other one
/// moves bytes. Its own temporaries are not counted: reserve() has charged them.
void Executor::start_collective(const Step& step, const Prepared& prepared) {
  const ir::Shape& whole = step_.type(program_.value(step.outputs[0]).global).shape;
  const CollectiveCall call{step.collective, program_.mesh, rank_, whole, prepared.group.get()};
  at::Tensor input = tensor(step.inputs[0]).contiguous();
  const at::Tensor output = result_storage(call, input);
  if (step.collective.kind == sharding::CollectiveKind::kAllReduce) {
    output.copy_(input);
    input = output;
  }
  tensor(step.outputs[0]) = output;
  in_flight_.push_back({program_.root(step.outputs[0]), 0, step.workspace});
  reserve();
  in_flight_.back().number = communication_->start([call, input, output] {
    const at::NoGradGuard no_grad;
    run_collective_into(call, input, output);
  });
}

void Executor::reserve() {
  Bytes most = 0;
  for (const InFlight& collective : in_flight_) {
    most = std::max(most, collective.workspace);
  }
  memory_.add(most - reserved_);
  reserved_ = most;
}

void Executor::finish(LocalId root) {
  const auto found = std::find_if(
      in_flight_.begin(), in_flight_.end(), [&](const InFlight& c) { return c.made == root; });
  if (found == in_flight_.end()) {
    return;
  }
  communication_->wait(found->number);
  in_flight_.erase(found);
  reserve();
}

void Executor::finish_all() {
  while (!in_flight_.empty()) {
    finish(in_flight_.front().made);
  }
}

void Executor::run_collective_step(const Step& step, const Prepared& prepared) {
  if (communication_ != nullptr && prepared.group != nullptr) {
    start_collective(step, prepared);
    if (!step.aside) {
      finish(program_.root(step.outputs[0]));
    }
    return;
  }
  const ir::Shape& whole = step_.type(program_.value(step.outputs[0]).global).shape;
  const CollectiveCall call{step.collective, program_.mesh, rank_, whole, prepared.group.get()};
  tensor(step.outputs[0]) = run_collective(call, tensor(step.inputs[0]).contiguous());
}

Error Executor::failure(const Step& step, const std::string& what) const {
  std::string doing = step.kind == StepKind::kWait ? "a collective aside" : "write";
  if (step.kind == StepKind::kCollective) {
    doing = sharding::collective_name(step.collective.kind);
  }
  std::string layer;
  if (step.op.valid()) {
    const ir::Op& op = step_.op(step.op);
    doing = step.kind == StepKind::kCompute ? op.name : doing + " for " + op.name;
    layer = op.layer.empty() ? "" : ", layer " + op.layer;
  }
  return Error{ErrorCode::kRuntime,
               doing + " failed: " + what.substr(0, what.find('\n')),
               "rank " + std::to_string(first_rank_ + rank_) + ", step " +
                   std::to_string(steps_done_) + layer,
               {}};
}

void Executor::run_instruction(const Step& step, const Prepared& prepared) {
  switch (step.kind) {
    case StepKind::kCompute:
      if (prepared.message >= 0) {
        run_message(step, prepared);
      } else {
        run_compute(step, prepared);
      }
      break;
    case StepKind::kCollective:
      run_collective_step(step, prepared);
      break;
    case StepKind::kFree:
      drop(program_.root(step.inputs[0]));
      break;
    case StepKind::kWrite:
      write(step.outputs[0], step.inputs[0]);
      break;
    case StepKind::kWait:
      finish(program_.root(step.inputs[0]));
      break;
  }
  for (const LocalId gradient : prepared.last_uses) {
    keep_gradient(gradient);
  }
  for (const LocalId written : prepared.written) {
    drop(written);
  }
}

void Executor::reset_times() {
  times_.microbatch.assign(program_.microbatch.size(), 0);
  times_.update.assign(program_.update.size(), 0);
}

Status Executor::run_section(const Section& section, std::size_t begin, std::size_t end_of_part) {
  using Clock = std::chrono::steady_clock;
  const auto& [steps, prepared, times] = section;
  Clock::time_point start = Clock::now();
  for (std::size_t i = begin; i < end_of_part; ++i) {
    if (heartbeat_) {
      heartbeat_(prepared[i].group != nullptr || prepared[i].message >= 0 ||
                 steps[i].kind == StepKind::kWait);
    }
    try {
      run_instruction(steps[i], prepared[i]);
    } catch (const PeerLost& lost) {
      lost_a_peer_ = true;
      return failure(steps[i], lost.what());
    } catch (const std::exception& error) {
      return failure(steps[i], error.what());
    }
    const Clock::time_point end = Clock::now();
    times[i] += std::chrono::duration<double>(end - start).count();
    start = end;
  }
  return {};
}

Result<double> Executor::run_step(const InputSource& inputs) {
  SHARDPLAN_ASSIGN_OR_RETURN(const double loss, forward_and_backward(inputs));
  SHARDPLAN_RETURN_IF_ERROR(run_update());
  return loss;
}

Result<double> Executor::run_microbatches(const InputSource& inputs) {
  SHARDPLAN_ASSIGN_OR_RETURN(const double loss, forward_and_backward(inputs));
  try {
    finish_all();
  } catch (const std::exception& error) {
    return failure(program_.microbatch.back(), error.what());
  }
  return loss;
}

void Executor::begin_step() {
  gradients_.clear();
  clear_accumulators();
}

void Executor::clear_accumulators() {
  const at::NoGradGuard no_grad;
  for (const lower::Resident& resident : program_.residents) {
    if (step_.value(resident.global).kind == ir::ValueKind::kAccumulator) {
      tensor(resident.local).zero_();
    }
  }
}

Result<double> Executor::forward_and_backward(const InputSource& inputs) {
  const at::NoGradGuard no_grad;
  begin_step();
  const LocalId last_loss = program_.root(program_.loss);
  if (!resident_root_[last_loss.index()]) {
    drop(last_loss);  // it would count in this step's peak
  }
  double loss = 0;
  for (microbatch_number_ = 0; microbatch_number_ < program_.microbatches; ++microbatch_number_) {
    fill_inputs(inputs);
    const MemoryScope scope(memory_);
    SHARDPLAN_RETURN_IF_ERROR(run_section(
        {program_.microbatch, microbatch_, times_.microbatch}, 0, program_.microbatch.size()));
    loss += tensor(program_.loss).item<double>();
  }
  return loss / static_cast<double>(program_.microbatches);
}

Status Executor::run_update() {
  return run_update(0, program_.update.size());
}

Status Executor::run_update(std::size_t begin, std::size_t end) {
  const at::NoGradGuard no_grad;
  const MemoryScope scope(memory_);
  SHARDPLAN_RETURN_IF_ERROR(run_section({program_.update, update_, times_.update}, begin, end));
  steps_done_ += end == program_.update.size() ? 1 : 0;
  return {};
}

std::map<std::string, Seconds> Executor::seconds_by_name() const {
  std::map<std::string, Seconds> seconds;
  const auto add = [&](const std::vector<Step>& steps, const std::vector<Seconds>& times) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      seconds[name_of(steps[i])] += times[i];
    }
  };
  add(program_.microbatch, times_.microbatch);
  add(program_.update, times_.update);
  return seconds;
}

std::string Executor::name_of(const Step& step) const {
  switch (step.kind) {
    case StepKind::kCompute:
      return step_.op(step.op).name;
    case StepKind::kCollective:
      return std::string(sharding::collective_name(step.collective.kind));
    case StepKind::kFree:
      return "free";
    case StepKind::kWrite:
      return "write";
    case StepKind::kWait:
      return "wait";
  }
  return {};
}

std::vector<LocatedPart> Executor::residents() const {
  std::vector<LocatedPart> parts;
  for (const lower::Resident& resident : program_.residents) {
    if (lives_on(step_.value(resident.global))) {
      parts.push_back({resident.global,
                       {tensors_[resident.local.index()], program_.value(resident.local).spec},
                       &program_.mesh,
                       first_rank_});
    }
  }
  return parts;
}

std::vector<LocatedPart> Executor::trained_gradients() const {
  std::vector<LocatedPart> parts;
  parts.reserve(gradients_.size());
  for (const auto& [parameter, part] : gradients_) {
    parts.push_back({parameter, part, &program_.mesh, first_rank_});
  }
  return parts;
}

std::map<ir::ValueId, Executor::Part> Executor::gradients_before_update() const {
  std::map<ir::ValueId, Part> all = gradients_;
  for (const lower::Resident& gradient : program_.kept_gradients) {
    const at::Tensor& now = tensors_[gradient.local.index()];
    if (now.defined() && all.find(gradient.global) == all.end()) {
      all[gradient.global] = {now, program_.value(gradient.local).spec};
    }
  }
  return all;
}

Executor::Part Executor::resident(ir::ValueId value) const {
  for (const lower::Resident& resident : program_.residents) {
    if (resident.global == value) {
      return {tensors_[resident.local.index()], program_.value(resident.local).spec};
    }
  }
  SHARDPLAN_CHECK(false) << "value %" << value.value << " does not live across steps";
  return {};
}

void Executor::set_resident(ir::ValueId value, const at::Tensor& full) {
  const at::NoGradGuard no_grad;
  const Part part = resident(value);
  part.tensor.copy_(shard_view(full, part.spec, program_.mesh, rank_));
}

}  // namespace shardplan::runtime
