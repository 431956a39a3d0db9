#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "shardplan/runtime/collectives.h"
#include "shardplan/runtime/executor.h"
#include "shardplan/runtime/heartbeat.h"
#include "shardplan/runtime/initial.h"
#include "shardplan/runtime/launch.h"
#include "shardplan/runtime/runtime.h"
#include "shardplan/runtime/verify.h"
#include "shardplan/training/microbatch.h"

namespace shardplan::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Seconds kLongest = 3600;  ///< others wait while rank 0 runs one device's steps
constexpr std::chrono::seconds kLetLauncherEndUs{10};
constexpr std::chrono::seconds kLetLauncherLook{1};  ///< nobody may be gone

int integer_variable(const char* name, int fallback) {
  const char* const text = std::getenv(name);
  return text == nullptr ? fallback : std::atoi(text);  // NOLINT(cert-err34-c)
}

/// All microbatches of one step, made before the clock starts.
class StepInputs {
 public:
  StepInputs(const ir::Graph& step, const lower::Program& program, std::uint64_t seed)
      : step_(step), program_(program), bounds_(lookup_bounds(step)), seed_(seed) {}

  void make(std::int64_t step_number) {
    made_.clear();
    for (const lower::Resident& resident : program_.residents) {
      const ir::Value& value = step_.value(resident.global);
      if (value.kind != ir::ValueKind::kInput) {
        continue;
      }
      if (const auto parts = training::input_of_whole_batch(value.name)) {
        const at::Tensor whole = whole_batch(step_.find_input(*parts), step_number);
        for (std::int64_t m = 0; m < program_.microbatches; ++m) {
          made_[{resident.global, m}] = whole;
        }
        continue;
      }
      for (std::int64_t m = 0; m < program_.microbatches; ++m) {
        made_[{resident.global, m}] = draw(resident.global, step_number, m);
      }
    }
  }
  [[nodiscard]] InputSource source() const {
    return [this](ir::ValueId input, std::int64_t microbatch) {
      return made_.at({input, microbatch});
    };
  }

 private:
  [[nodiscard]] at::Tensor draw(ir::ValueId input,
                                std::int64_t step_number,
                                std::int64_t microbatch) const {
    return random_input(step_, input, bounds_[input.index()], seed_, step_number, microbatch);
  }
  [[nodiscard]] at::Tensor whole_batch(ir::ValueId input, std::int64_t step_number) const {
    std::vector<at::Tensor> parts;
    for (std::int64_t m = 0; m < program_.microbatches; ++m) {
      parts.push_back(draw(input, step_number, m));
    }
    return at::cat(parts);
  }

  const ir::Graph& step_;
  const lower::Program& program_;
  std::vector<std::int64_t> bounds_;
  std::uint64_t seed_;
  std::map<std::pair<ir::ValueId, std::int64_t>, at::Tensor> made_{};
};

Result<std::unique_ptr<GroupSource>> meet(const RankInfo& rank,
                                          const RunOptions& options,
                                          bool watched) {
  const char* const host = std::getenv("MASTER_ADDR");
  // A launcher that watches us tells a hang from work better than a clock in every collective.
  const Seconds patience = watched || options.verify ? kLongest : options.timeout;
  return process_groups({.host = host == nullptr ? "127.0.0.1" : host,
                         .port = integer_variable("MASTER_PORT", 29500),
                         .listening_socket = integer_variable(kListeningSocketVariable, -1),
                         .rank = rank.rank,
                         .world_size = rank.world_size,
                         .meeting_timeout = 5 * options.timeout,
                         .collective_timeout = patience});
}

/// One number of every rank, on all ranks.
std::vector<std::int64_t> gather_numbers(const Executor& run, std::int64_t mine) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(run.program().mesh.size()), mine);
  if (run.world() != nullptr) {
    const at::Tensor numbers = at::empty({run.program().mesh.size()}, at::TensorOptions(at::kLong));
    all_gather_into(
        *run.world(), numbers, at::empty({1}, at::TensorOptions(at::kLong)).fill_(mine));
    std::memcpy(all.data(), numbers.const_data_ptr(), numbers.nbytes());
  }
  return all;
}

Seconds median_after_first(std::vector<Seconds> seconds) {
  if (seconds.size() > 1) {
    seconds.erase(seconds.begin());
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

/// The steps of one rank.
class RankRun {
 public:
  RankRun(const ir::Graph& step,
          const lower::Program& program,
          const RunOptions& options,
          const Control& control,
          Executor& executor,
          Verifier* verifier)
      : options_(options),
        control_(control),
        executor_(executor),
        verifier_(verifier),
        step_(step),
        inputs_(step, program, options.seed) {}

  Status run(RunReport& report) {
    std::vector<Seconds> seconds;
    Bytes peak = 0;
    for (int step = 0; step < options_.steps; ++step) {
      control_.report(options_.verify ? "train and verify" : "train",
                      static_cast<double>(step) / options_.steps);
      if (control_.interrupted()) {
        return Error{ErrorCode::kRuntime, "interrupted", "step " + std::to_string(step + 1), {}};
      }
      inputs_.make(step);
      if (executor_.world() != nullptr) {
        executor_.world()->barrier();
      }
      executor_.reset_peak();
      if (step == 1) {
        executor_.reset_times();
      }
      const Clock::time_point start = Clock::now();
      SHARDPLAN_ASSIGN_OR_RETURN(const double loss, executor_.run_step(inputs_.source()));
      seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
      peak = std::max(peak, executor_.memory().peak());
      report.losses.push_back(loss);
      if (verifier_ != nullptr) {
        SHARDPLAN_RETURN_IF_ERROR(verifier_->compare_step(executor_, loss, inputs_.source()));
      }
    }
    report.measured_step_seconds = median_after_first(seconds);
    add_times(executor_.program().microbatch, executor_.times().microbatch, report);
    add_times(executor_.program().update, executor_.times().update, report);
    report.step_seconds = std::move(seconds);
    report.measured_peak_bytes = gather_numbers(executor_, peak);
    constexpr double kNanosecond = 1e-9;
    for (const std::int64_t nanoseconds :
         gather_numbers(executor_, std::llround(report.measured_step_seconds / kNanosecond))) {
      report.measured_rank_seconds.push_back(static_cast<double>(nanoseconds) * kNanosecond);
    }
    return {};
  }

 private:
  [[nodiscard]] std::string name_of(const lower::Step& step) const {
    switch (step.kind) {
      case lower::StepKind::kCompute:
        return step_.op(step.op).name;
      case lower::StepKind::kCollective:
        return std::string(sharding::collective_name(step.collective.kind));
      case lower::StepKind::kFree:
        return "free";
      case lower::StepKind::kWrite:
        return "write";
      case lower::StepKind::kWait:
        return "wait";
    }
    return {};
  }

  void add_times(const std::vector<lower::Step>& steps,
                 const std::vector<Seconds>& times,
                 RunReport& report) const {
    const double count = std::max(1, options_.steps - 1);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      report.seconds_by_name[name_of(steps[i])] += times[i] / count;
    }
  }

  const RunOptions& options_;
  const Control& control_;
  Executor& executor_;
  Verifier* verifier_;
  const ir::Graph& step_;
  StepInputs inputs_;
};

/// Throws PeerLost.
Status train_and_compare(const ir::Graph& step,
                         const plan::Plan& plan,
                         const RunOptions& options,
                         const Control& control,
                         const Heartbeat& heartbeat,
                         Executor& executor,
                         RunReport& report) {
  std::unique_ptr<Verifier> verifier;
  if (options.verify) {
    SHARDPLAN_ASSIGN_OR_RETURN(
        verifier, Verifier::create(step, plan, executor.rank(), options.seed, heartbeat));
  }
  heartbeat(true);  // in the barrier before the first step
  SHARDPLAN_RETURN_IF_ERROR(
      RankRun(step, executor.program(), options, control, executor, verifier.get()).run(report));
  if (verifier != nullptr) {
    report.max_relative_error = verifier->worst().relative;
    report.worst_tensor = verifier->worst().where;
    report.reference_losses = verifier->reference_losses();
    const bool equal = !(report.max_relative_error > tolerance(step));
    report.ok = gather_numbers(executor, equal ? 1 : 0)[0] == 1;
  }
  return {};
}

}  // namespace

std::optional<RankInfo> rank_from_environment() {
  const char* const rank = std::getenv("RANK");
  const char* const world_size = std::getenv("WORLD_SIZE");
  if (rank == nullptr || world_size == nullptr) {
    return std::nullopt;
  }
  return RankInfo{integer_variable("RANK", 0), integer_variable("WORLD_SIZE", 1)};
}

Result<RunReport> run_rank(const ir::Graph& step,
                           const plan::Plan& plan,
                           const lower::Program& program,
                           const RankInfo& rank,
                           const RunOptions& options,
                           const Control& control) {
  if (rank.world_size != program.mesh.size()) {
    return invalid_input("the plan needs " + std::to_string(program.mesh.size()) + " ranks, not " +
                         std::to_string(rank.world_size));
  }
  at::set_num_threads(options.threads_per_rank);
  HeartbeatBoard board = HeartbeatBoard::from_environment(rank.world_size);
  const Heartbeat heartbeat = [&](bool waiting) {
    board.beat(rank.rank, waiting ? RankState::kWaiting : RankState::kComputing);
  };
  // Another rank's end is the cause of our error, or may be: a launcher that watches us names it,
  // and ends us, in this time.
  const auto blame_a_peer = [&](Error error, std::chrono::seconds patience) {
    if (board.watched()) {
      board.beat(rank.rank, RankState::kLostPeer);
      std::this_thread::sleep_for(patience);
    }
    return error;
  };
  std::unique_ptr<GroupSource> groups;
  if (rank.world_size > 1) {
    control.report("meet the other ranks", -1);
    Result<std::unique_ptr<GroupSource>> met = meet(rank, options, board.watched());
    if (!met) {
      return blame_a_peer(met.error(), kLetLauncherLook);
    }
    groups = *std::move(met);
  }
  control.report("set up weights", -1);
  Result<std::unique_ptr<Executor>> made =
      Executor::create({step, program, rank.rank, options.seed, groups.get(), heartbeat});
  if (!made) {
    return blame_a_peer(made.error(), kLetLauncherLook);
  }
  Executor& executor = **made;
  RunReport report;
  try {
    const Status done =
        train_and_compare(step, plan, options, control, heartbeat, executor, report);
    if (!done) {
      return executor.lost_a_peer() ? blame_a_peer(done.error(), kLetLauncherEndUs) : done.error();
    }
  } catch (const PeerLost& lost) {
    return blame_a_peer(
        Error{ErrorCode::kRuntime, lost.what(), "rank " + std::to_string(rank.rank), {}},
        kLetLauncherEndUs);
  }
  return report;
}

}  // namespace shardplan::runtime
