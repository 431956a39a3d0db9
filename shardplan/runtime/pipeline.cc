#include "shardplan/runtime/pipeline.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "shardplan/runtime/collectives.h"

namespace shardplan::runtime {

Result<std::unique_ptr<Trainer>> PipelineTrainer::create(const PipelineSetup& setup) {
  std::unique_ptr<PipelineTrainer> made(new PipelineTrainer(setup.program, setup.rank));
  SHARDPLAN_RETURN_IF_ERROR(made->set_up(setup));
  return std::unique_ptr<Trainer>(std::move(made));
}

namespace {

constexpr const char* kWorld = "/world";

std::string purpose_of_stage(int stage) {
  return "/stage/" + std::to_string(stage);
}

Ranks all_ranks(const lower::PipelineProgram& program) {
  Ranks all(static_cast<std::size_t>(program.ranks()));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  return all;
}

}  // namespace

std::vector<NeededGroup> needed_groups(const lower::PipelineProgram& program) {
  std::vector<NeededGroup> all;
  if (program.ranks() > 1) {
    all.push_back({all_ranks(program), kWorld});
  }
  for (NeededGroup& group : message_groups(program)) {
    all.push_back(std::move(group));
  }
  for (std::size_t s = 0; s < program.programs.size(); ++s) {
    const auto stage = static_cast<int>(s);
    for (Ranks& ranks : needed_groups(program.programs[s], program.first_rank_of(stage))) {
      all.push_back({std::move(ranks), purpose_of_stage(stage)});
    }
  }
  return all;
}

/// Groups are made in the same order on all ranks: that of all ranks, those between stages, those
/// inside them.
Status PipelineTrainer::set_up(const PipelineSetup& setup) {
  seed_ = setup.seed;
  if (program_.ranks() > 1) {
    if (setup.groups == nullptr) {
      return Error{ErrorCode::kRuntime, "the plan is for several ranks, but this is one", {}, {}};
    }
    SHARDPLAN_ASSIGN_OR_RETURN(world_, setup.groups->group(all_ranks(program_), kWorld));
  }
  const int here = program_.device_of_rank(rank_);
  update_runs_ = lower::update_runs(program_, here);
  std::vector<int> mine;
  for (int stage = 0; stage < program_.stages_with_copies(); ++stage) {
    if (program_.device_of(stage) == here) {
      mine.push_back(stage);
    }
  }
  SHARDPLAN_ASSIGN_OR_RETURN(messenger_, Messenger::create(program_, rank_, setup.groups));
  for (const int stage : mine) {
    const auto s = static_cast<std::size_t>(stage);
    ExecutorSetup of_stage{program_.stages[s].graph,
                           program_.programs[s],
                           rank_ - program_.first_rank_of(stage),
                           setup.seed,
                           setup.groups,
                           setup.heartbeat};
    of_stage.first_rank = program_.first_rank_of(stage);
    of_stage.weights_begin = program_.weights_begin[s];
    of_stage.messenger = messenger_.get();
    of_stage.memory = &memory_;
    of_stage.group_purpose = purpose_of_stage(stage);
    SHARDPLAN_ASSIGN_OR_RETURN(stages_[stage], Executor::create(of_stage));
  }
  return {};
}

Result<double> PipelineTrainer::run_task(const lower::Task& task, const InputSource& inputs) {
  const int stage = program_.stage_of(task, program_.device_of_rank(rank_));
  Executor& executor = *stages_.at(stage);
  const std::vector<ir::ValueId>& value_of =
      program_.stages[static_cast<std::size_t>(stage)].value_of;
  const InputSource of_stage = [&](ir::ValueId input, std::int64_t microbatch) {
    return inputs(value_of[input.index()], microbatch);
  };
  messenger_->begin_task(true);
  const std::int64_t microbatches = program_.programs.front().microbatches;
  executor.set_random_step(steps_done_ + task.microbatch / microbatches);
  const bool stale = task.work != lower::Work::kUpdate && task.weight_version != version_[stage];
  if (stale) {
    executor.exchange_weights(task.weight_version);
  }
  Result<double> loss = run_pass(executor, task, of_stage);
  if (stale) {
    executor.exchange_weights(task.weight_version);
  }
  return loss;
}

Result<double> PipelineTrainer::run_pass(Executor& executor,
                                         const lower::Task& task,
                                         const InputSource& of_stage) {
  switch (task.work) {
    case lower::Work::kForward:
      SHARDPLAN_RETURN_IF_ERROR(executor.run_forward(of_stage, task.microbatch));
      return 0.0;
    case lower::Work::kBackward:
      return executor.run_backward(of_stage, task.microbatch);
    case lower::Work::kUpdate:
      return 0.0;  // run_step
    case lower::Work::kBackwardInput:
      SHARDPLAN_RETURN_IF_ERROR(executor.run_backward_inputs(of_stage, task.microbatch));
      return 0.0;
    case lower::Work::kBackwardWeight:
      return executor.run_backward_weights(of_stage, task.microbatch);
  }
  return 0.0;
}

Result<double> PipelineTrainer::run_step(const InputSource& inputs) {
  for (const auto& [stage, executor] : stages_) {
    executor->begin_step();
    version_[stage] = 0;
  }
  double loss = 0;
  const auto device = static_cast<std::size_t>(program_.device_of_rank(rank_));
  const std::vector<lower::Task>& tasks = program_.schedule.tasks[device];
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    if (tasks[t].work != lower::Work::kUpdate) {
      SHARDPLAN_ASSIGN_OR_RETURN(const double of_task, run_task(tasks[t], inputs));
      loss += of_task;
    } else if (!program_.schedule.synchronous) {
      SHARDPLAN_RETURN_IF_ERROR(run_stale_update(t, tasks[t].stage));
    }
  }
  if (program_.schedule.synchronous) {
    SHARDPLAN_RETURN_IF_ERROR(run_updates());
  }
  for (const auto& [stage, executor] : stages_) {
    executor->drop_all_weights();
  }
  steps_done_ += steps_a_run();
  try {
    messenger_->finish();
    return loss_everywhere(loss) / static_cast<double>(program_.schedule.microbatches);
  } catch (const PeerLost& lost) {
    lost_a_peer_ = true;
    return Error{ErrorCode::kRuntime, lost.what(), "rank " + std::to_string(rank_), {}};
  }
}

/// Updates come last in synchronous schedules, and those of all stages together.
Status PipelineTrainer::run_updates() {
  messenger_->begin_task(false);
  for (const lower::UpdateRun& run : update_runs_) {
    SHARDPLAN_RETURN_IF_ERROR(stages_.at(run.stage)->run_update(run.begin, run.end));
  }
  return {};
}

/// Keeps the old weights as long as a later pass computes with them.
Status PipelineTrainer::run_stale_update(std::size_t task, int stage) {
  Executor& executor = *stages_.at(stage);
  std::int64_t& version = version_[stage];
  for (std::int64_t old = 0; old < version; ++old) {
    if (!uses_.after(task, stage, old)) {
      executor.drop_weights(old);
    }
  }
  if (uses_.after(task, stage, version)) {
    executor.stash_weights(version);
  }
  messenger_->begin_task(false);
  SHARDPLAN_RETURN_IF_ERROR(executor.run_update());
  executor.clear_accumulators();
  ++version;
  return {};
}

std::int64_t PipelineTrainer::steps_a_run() const {
  return program_.schedule.microbatches / program_.programs.front().microbatches;
}

/// Every rank of a stage with the loss has the same, that of its pipeline's microbatches; the
/// others have 0.
double PipelineTrainer::loss_everywhere(double mine) const {
  if (world_ == nullptr) {
    return mine;
  }
  const at::Tensor all = at::empty({ranks()}, at::TensorOptions(at::kDouble));
  all_gather_into(*world_, all, at::empty({1}, at::TensorOptions(at::kDouble)).fill_(mine));
  const auto* const losses = static_cast<const double*>(all.const_data_ptr());
  double loss = 0;
  std::set<std::int64_t> counted;
  for (int stage = 0; stage < program_.stages_with_copies(); ++stage) {
    const std::int64_t rank = program_.first_rank_of(stage);
    if (program_.programs[static_cast<std::size_t>(stage)].loss.valid() &&
        counted.insert(rank).second) {
      loss += losses[rank];
    }
  }
  return loss;
}

LocatedPart PipelineTrainer::located(int stage, const lower::Resident& resident) const {
  const auto s = static_cast<std::size_t>(stage);
  const lower::Program& program = program_.programs[s];
  LocatedPart out;
  out.value = program_.stages[s].value_of[resident.global.index()];
  out.part.spec = program.value(resident.local).spec;
  out.mesh = &program.mesh;
  out.first_rank = program_.first_rank_of(stage);
  return out;
}

std::vector<LocatedPart> PipelineTrainer::residents() const {
  std::vector<LocatedPart> all;
  for (int stage = 0; stage < program_.stages_with_copies(); ++stage) {
    const auto s = static_cast<std::size_t>(stage);
    for (const lower::Resident& resident : program_.programs[s].residents) {
      if (!lives_on(program_.stages[s].graph.value(resident.global))) {
        continue;
      }
      all.push_back(located(stage, resident));
      if (const auto mine = stages_.find(stage); mine != stages_.end()) {
        all.back().part.tensor = mine->second->resident(resident.global).tensor;
      }
    }
  }
  return all;
}

void PipelineTrainer::set_resident(ir::ValueId value, const at::Tensor& full) {
  for (const auto& [stage, executor] : stages_) {
    const auto s = static_cast<std::size_t>(stage);
    for (const lower::Resident& resident : program_.programs[s].residents) {
      if (program_.stages[s].value_of[resident.global.index()] == value) {
        executor->set_resident(resident.global, full);
      }
    }
  }
}

void PipelineTrainer::resume(std::int64_t steps_done, std::uint64_t seed) {
  steps_done_ = steps_done;
  seed_ = seed;
  for (const auto& [stage, executor] : stages_) {
    executor->resume(steps_done, seed);
  }
}

std::vector<LocatedPart> PipelineTrainer::trained_gradients() const {
  std::vector<LocatedPart> all;
  for (int stage = 0; stage < program_.stages_with_copies(); ++stage) {
    const auto s = static_cast<std::size_t>(stage);
    for (const lower::Resident& gradient : program_.programs[s].kept_gradients) {
      all.push_back(located(stage, gradient));
      if (const auto mine = stages_.find(stage); mine != stages_.end()) {
        all.back().part.tensor = mine->second->gradients().at(gradient.global).tensor;
      }
    }
  }
  return all;
}

std::map<std::string, Seconds> PipelineTrainer::seconds_by_name() const {
  std::map<std::string, Seconds> all;
  for (const auto& [stage, executor] : stages_) {
    for (const auto& [name, seconds] : executor->seconds_by_name()) {
      all[name] += seconds;
    }
  }
  return all;
}

void PipelineTrainer::reset_times() {
  for (const auto& [stage, executor] : stages_) {
    executor->reset_times();
  }
}

bool PipelineTrainer::lost_a_peer() const {
  return lost_a_peer_ || std::any_of(stages_.begin(), stages_.end(), [](const auto& stage) {
           return stage.second->lost_a_peer();
         });
}

}  // namespace shardplan::runtime
