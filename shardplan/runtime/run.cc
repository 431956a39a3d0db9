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
#include "shardplan/runtime/pipeline.h"
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
  StepInputs(const ir::Graph& step, std::uint64_t seed)
      : step_(step), bounds_(lookup_bounds(step)), seed_(seed) {}

  /// Microbatches of `steps` steps, numbered through.
  void make(std::int64_t first_step, std::int64_t steps) {
    made_.clear();
    for (std::size_t i = 0; i < step_.values().size(); ++i) {
      const ir::ValueId id(i);
      const ir::Value& value = step_.value(id);
      if (value.kind != ir::ValueKind::kInput) {
        continue;
      }
      const auto parts = training::input_of_whole_batch(value.name);
      for (std::int64_t m = 0; m < steps * step_.microbatches; ++m) {
        const std::int64_t step = first_step + m / step_.microbatches;
        made_[{id, m}] = parts ? whole_batch(step_.find_input(*parts), step)
                               : draw(id, step, m % step_.microbatches);
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
    for (std::int64_t m = 0; m < step_.microbatches; ++m) {
      parts.push_back(draw(input, step_number, m));
    }
    return at::cat(parts);
  }

  const ir::Graph& step_;
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
std::vector<std::int64_t> gather_numbers(const Trainer& run, std::int64_t mine) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(run.ranks()), mine);
  if (run.world() != nullptr) {
    const at::Tensor numbers = at::empty({run.ranks()}, at::TensorOptions(at::kLong));
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
          const RunOptions& options,
          const Control& control,
          Trainer& trainer,
          Verifier* verifier)
      : options_(options),
        control_(control),
        trainer_(trainer),
        verifier_(verifier),
        inputs_(step, options.seed) {}

  Status run(RunReport& report) {
    std::vector<Seconds> seconds;
    Bytes peak = 0;
    for (int step = 0; step < options_.steps; ++step) {
      control_.report(options_.verify ? "train and verify" : "train",
                      static_cast<double>(step) / options_.steps);
      if (control_.interrupted()) {
        return Error{ErrorCode::kRuntime, "interrupted", "step " + std::to_string(step + 1), {}};
      }
      inputs_.make(step * trainer_.steps_a_run(), trainer_.steps_a_run());
      if (trainer_.world() != nullptr) {
        trainer_.world()->barrier();
      }
      trainer_.reset_peak();
      if (step == 1) {
        trainer_.reset_times();
      }
      const Clock::time_point start = Clock::now();
      SHARDPLAN_ASSIGN_OR_RETURN(const double loss, trainer_.run_step(inputs_.source()));
      seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count() /
                        static_cast<double>(trainer_.steps_a_run()));
      peak = std::max(peak, trainer_.memory().peak());
      report.losses.push_back(loss);
      if (verifier_ != nullptr) {
        SHARDPLAN_RETURN_IF_ERROR(verifier_->compare_step(trainer_, loss, inputs_.source()));
      }
    }
    report.measured_step_seconds = median_after_first(seconds);
    const double counted =
        std::max(1, options_.steps - 1) * static_cast<double>(trainer_.steps_a_run());
    for (const auto& [name, total] : trainer_.seconds_by_name()) {
      report.seconds_by_name[name] = total / counted;
    }
    report.step_seconds = std::move(seconds);
    report.measured_peak_bytes = gather_numbers(trainer_, peak);
    constexpr double kNanosecond = 1e-9;
    for (const std::int64_t nanoseconds :
         gather_numbers(trainer_, std::llround(report.measured_step_seconds / kNanosecond))) {
      report.measured_rank_seconds.push_back(static_cast<double>(nanoseconds) * kNanosecond);
    }
    return {};
  }

 private:
  const RunOptions& options_;
  const Control& control_;
  Trainer& trainer_;
  Verifier* verifier_;
  StepInputs inputs_;
};

/// Throws PeerLost.
Status train_and_compare(const ir::Graph& step,
                         const plan::Plan& plan,
                         const RunOptions& options,
                         const Control& control,
                         const Heartbeat& heartbeat,
                         const lower::PipelineProgram* without_flush,
                         Trainer& trainer,
                         RunReport& report) {
  std::unique_ptr<Verifier> verifier;
  if (options.verify) {
    SHARDPLAN_ASSIGN_OR_RETURN(
        verifier,
        Verifier::create(step, plan, trainer.rank(), options.seed, heartbeat, without_flush));
  }
  heartbeat(true);  // in the barrier before the first step
  SHARDPLAN_RETURN_IF_ERROR(RankRun(step, options, control, trainer, verifier.get()).run(report));
  if (verifier != nullptr) {
    report.max_relative_error = verifier->worst().relative;
    report.worst_tensor = verifier->worst().where;
    report.reference_losses = verifier->reference_losses();
    const bool equal = !(report.max_relative_error > tolerance(step));
    report.ok = gather_numbers(trainer, equal ? 1 : 0)[0] == 1;
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

namespace {

/// Makes this rank's trainer, with groups from there and a heartbeat.
using MakeTrainer = std::function<Result<std::unique_ptr<Trainer>>(GroupSource* groups,
                                                                   const Heartbeat& heartbeat)>;

Result<RunReport> run_ranks(const ir::Graph& step,
                            const plan::Plan& plan,
                            std::int64_t ranks,
                            const MakeTrainer& make,
                            const lower::PipelineProgram* without_flush,
                            const RankInfo& rank,
                            const RunOptions& options,
                            const Control& control) {
  if (rank.world_size != ranks) {
    return invalid_input("the plan needs " + std::to_string(ranks) + " ranks, not " +
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
  Result<std::unique_ptr<Trainer>> made = make(groups.get(), heartbeat);
  if (!made) {
    return blame_a_peer(made.error(), kLetLauncherLook);
  }
  Trainer& trainer = **made;
  RunReport report;
  try {
    const Status done =
        train_and_compare(step, plan, options, control, heartbeat, without_flush, trainer, report);
    if (!done) {
      return trainer.lost_a_peer() ? blame_a_peer(done.error(), kLetLauncherEndUs) : done.error();
    }
  } catch (const PeerLost& lost) {
    return blame_a_peer(
        Error{ErrorCode::kRuntime, lost.what(), "rank " + std::to_string(rank.rank), {}},
        kLetLauncherEndUs);
  }
  return report;
}

}  // namespace

Result<RunReport> run_rank(const ir::Graph& step,
                           const plan::Plan& plan,
                           const lower::Program& program,
                           const RankInfo& rank,
                           const RunOptions& options,
                           const Control& control) {
  const MakeTrainer make = [&](GroupSource* groups,
                               const Heartbeat& heartbeat) -> Result<std::unique_ptr<Trainer>> {
    SHARDPLAN_ASSIGN_OR_RETURN(
        std::unique_ptr<Executor> made,
        Executor::create({step, program, rank.rank, options.seed, groups, heartbeat}));
    return std::unique_ptr<Trainer>(std::move(made));
  };
  return run_ranks(step, plan, program.mesh.size(), make, nullptr, rank, options, control);
}

Result<RunReport> run_rank(const ir::Graph& step,
                           const plan::Plan& plan,
                           const lower::PipelineProgram& program,
                           const RankInfo& rank,
                           const RunOptions& options,
                           const Control& control) {
  const MakeTrainer make = [&](GroupSource* groups, const Heartbeat& heartbeat) {
    return PipelineTrainer::create({program, rank.rank, options.seed, groups, heartbeat});
  };
  const lower::PipelineProgram* const without_flush =
      program.schedule.synchronous ? nullptr : &program;
  return run_ranks(step, plan, program.ranks(), make, without_flush, rank, options, control);
}

}  // namespace shardplan::runtime
