// Reading guide: check_schedule and check_messages look at what is between the stages, Chains finds
// the seconds, GroupWalk the bytes.
#include "shardplan/sim/pipeline_certificate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "shardplan/cost/collectives.h"
#include "shardplan/sim/plain_count.h"

namespace shardplan::sim {
namespace {

using lower::Link;
using lower::PipelineProgram;
using lower::Program;
using lower::Step;
using lower::StepKind;
using lower::Task;
using lower::Work;

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

Error broken(std::string what, std::string where) {
  return {ErrorCode::kNotEqual, std::move(what), std::move(where), {}};
}

/// A group's list of tasks, with stages numbered as in the program.
std::vector<Task> tasks_of(const PipelineProgram& program, int group) {
  std::vector<Task> tasks = program.schedule.tasks[at(group)];
  for (Task& task : tasks) {
    task.stage = program.stage_of(task, group);
  }
  return tasks;
}

/// Every pass once, on the device that has the stage.
Status check_schedule(const PipelineProgram& program) {
  const lower::Schedule& schedule = program.schedule;
  const bool in_parts = lower::has_parts(schedule);
  std::map<std::pair<int, std::int64_t>, std::multiset<Work>> passes;
  for (int device = 0; device < schedule.devices; ++device) {
    for (const Task& task : tasks_of(program, device)) {
      if (program.device_of(task.stage) != device) {
        return broken(fmt::format("{} is on device {}", lower::task_text(task), device),
                      "schedule");
      }
      if (task.work != Work::kUpdate) {
        passes[{task.stage, task.microbatch}].insert(task.work);
      }
    }
  }
  const std::multiset<Work> whole =
      in_parts ? std::multiset<Work>{Work::kForward, Work::kBackwardInput, Work::kBackwardWeight}
               : std::multiset<Work>{Work::kForward, Work::kBackward};
  for (int stage = 0; stage < program.stages_with_copies(); ++stage) {
    for (std::int64_t m = 0; m < schedule.microbatches; ++m) {
      const bool own = schedule.pipeline_of[at(m)] == stage / schedule.stages;
      if (own && passes[{stage, m}] != whole) {
        return broken(fmt::format("stage {} does not pass over microbatch {} once forward and once "
                                  "backward",
                                  stage,
                                  m),
                      "schedule");
      }
    }
  }
  return {};
}

bool inside(const sharding::Range& part, const sharding::Range& whole) {
  return part.start >= whole.start && part.start + part.size <= whole.start + whole.size;
}

bool meet(const sharding::Range& a, const sharding::Range& b) {
  return a.start < b.start + b.size && b.start < a.start + a.size;
}

template <class Holds>
bool all_dims(const std::vector<sharding::Range>& a,
              const std::vector<sharding::Range>& b,
              const Holds& holds) {
  for (std::size_t d = 0; d < a.size(); ++d) {
    if (!holds(a[d], b[d])) {
      return false;
    }
  }
  return true;
}

std::int64_t elements(const std::vector<sharding::Range>& box) {
  std::int64_t count = 1;
  for (const sharding::Range& range : box) {
    count *= range.size;
  }
  return count;
}

/// Boxes that lie in a part, have no element in common, and as many elements as the part: they are
/// the part.
Status check_message(const PipelineProgram& program, int message) {
  const Link& link = program.links[at(message)];
  const Program& from = program.programs[at(link.from)];
  const Program& to = program.programs[at(link.to)];
  const std::string where = fmt::format("message {}", message);
  std::vector<std::vector<std::vector<sharding::Range>>> got(at(to.mesh.size()));
  for (const lower::Piece& piece : lower::pieces(program, message)) {
    const auto held =
        sharding::part(from.value(link.sent).spec, link.type.shape, from.mesh, piece.sender);
    const auto wanted =
        sharding::part(to.value(link.received).spec, link.type.shape, to.mesh, piece.receiver);
    if (!all_dims(piece.box, held, inside) || !all_dims(piece.box, wanted, inside)) {
      return broken(
          fmt::format("rank {} of stage {} sends rank {} of stage {} what one of them does "
                      "not hold",
                      piece.sender,
                      link.from,
                      piece.receiver,
                      link.to),
          where);
    }
    for (const auto& other : got[at(piece.receiver)]) {
      if (all_dims(piece.box, other, meet)) {
        return broken(
            fmt::format("rank {} of stage {} gets elements twice", piece.receiver, link.to), where);
      }
    }
    got[at(piece.receiver)].push_back(piece.box);
  }
  for (std::int64_t rank = 0; rank < to.mesh.size(); ++rank) {
    const auto wanted =
        sharding::part(to.value(link.received).spec, link.type.shape, to.mesh, rank);
    std::int64_t there = 0;
    for (const auto& box : got[at(rank)]) {
      there += elements(box);
    }
    if (there != elements(wanted)) {
      return broken(
          fmt::format(
              "rank {} of stage {} gets {} of {} elements", rank, link.to, there, elements(wanted)),
          where);
    }
  }
  return {};
}

/// Until the busiest rank has sent, or received, all its pieces.
Seconds message_seconds(const PipelineProgram& program,
                        const cluster::Cluster& cluster,
                        int message) {
  const Link& link = program.links[at(message)];
  std::vector<Seconds> busy(at(2 * program.ranks()), 0);
  for (const lower::Piece& piece : lower::pieces(program, message)) {
    const std::int64_t from = program.first_rank_of(link.from) + piece.sender;
    const std::int64_t to = program.first_rank_of(link.to) + piece.receiver;
    const Bytes bytes = elements(piece.box) * ir::element_bytes(link.type.dtype);
    const Seconds seconds = cost::message_seconds(cluster, bytes, from, to);
    busy[at(from)] += seconds;
    busy[at(program.ranks() + to)] += seconds;
  }
  return *std::max_element(busy.begin(), busy.end());
}

/// Seconds of the stages' sections and messages, in two versions: [0] least, [1] most.
class Chains {
 public:
  Chains(const PipelineProgram& program,
         const cluster::Cluster& cluster,
         const std::vector<plan::Plan>& stages,
         bool in_line)
      : program_(program), in_line_(in_line), seconds_(program.programs.size()) {
    for (int group = 0; group < program.schedule.devices; ++group) {
      tasks_.push_back(tasks_of(program, group));
    }
    for (std::size_t s = 0; s < program.programs.size(); ++s) {
      price_stage(s, cost::CostModel(stages[s].cluster, stages[s].mesh));
    }
    for (std::size_t m = 0; m < program.links.size(); ++m) {
      price_message(program.links[m], message_seconds(program, cluster, static_cast<int>(m)));
    }
  }

  Status run(PipelineCertificate& out) {
    const lower::Schedule& schedule = program_.schedule;
    const double steps = static_cast<double>(schedule.microbatches) /
                         static_cast<double>(program_.programs.front().microbatches);
    for (const std::size_t version : {0U, 1U}) {
      SHARDPLAN_ASSIGN_OR_RETURN(const Seconds longest, longest_chain(version));
      (version == 0 ? out.least_step_seconds : out.most_step_seconds) = longest / steps;
    }
    out.additive_seconds = message_seconds_;
    for (const std::vector<Task>& tasks : tasks_) {
      for (const Task& task : tasks) {
        const PlainSeconds& of_task = of_stage(task.stage)[at(static_cast<int>(task.work))];
        out.additive_seconds += of_task.all / steps;
        out.kernel_seconds += of_task.kernels / steps;
      }
    }
    return {};
  }

 private:
  static constexpr std::size_t kWorks = 5;  // of lower::Work
  using OfStage = std::array<PlainSeconds, kWorks>;

  [[nodiscard]] const OfStage& of_stage(int stage) const { return seconds_[at(stage)]; }

  void price_stage(std::size_t s, const cost::CostModel& cost) {
    const Program& program = program_.programs[s];
    const auto price =
        [&](Work work, const std::vector<Step>& steps, std::size_t begin, std::size_t end) {
          seconds_[s][at(static_cast<int>(work))] =
              plain_seconds(program, program_.stages[s].graph, cost, steps, begin, end);
        };
    const std::size_t backward = lower::backward_begin(program);
    const std::size_t weights = program_.weights_begin[s];
    const std::size_t end = program.microbatch.size();
    price(Work::kForward, program.microbatch, 0, backward);
    price(Work::kBackward, program.microbatch, backward, end);
    price(Work::kBackwardInput, program.microbatch, backward, weights);
    price(Work::kBackwardWeight, program.microbatch, weights, end);
    price(Work::kUpdate, program.update, 0, program.update.size());
  }

  void price_message(const Link& link, Seconds seconds) {
    const lower::Schedule& schedule = program_.schedule;
    const auto here = static_cast<double>(std::count(
        schedule.pipeline_of.begin(), schedule.pipeline_of.end(), link.to / schedule.stages));
    const auto microbatches = here / static_cast<double>(schedule.microbatches) *
                              static_cast<double>(program_.programs.front().microbatches);
    const bool update = link.phase == ir::Phase::kUpdate;
    message_seconds_ += seconds * (update ? 1 : microbatches);
    if (update) {
      arrivals_[link.to] += seconds;
    } else if (std::abs(link.to - link.from) == 1) {
      wires_[{link.from, link.to}] += seconds;
    }
  }

  [[nodiscard]] Seconds lasts(const Task& task, std::size_t version) const {
    const PlainSeconds& seconds = of_stage(task.stage)[at(static_cast<int>(task.work))];
    const bool all = version == 1 || in_line_;
    const Seconds own =
        all ? seconds.all : std::max(seconds.kernels, seconds.all - seconds.kernels);
    const auto arrival = arrivals_.find(task.stage);
    return own + (task.work == Work::kUpdate && arrival != arrivals_.end() ? arrival->second : 0);
  }

  /// The passes that a task needs, with the seconds that their messages take. An update of a stage
  /// with copies: the last passes of all groups that have one.
  [[nodiscard]] std::vector<std::pair<Task, Seconds>> needs(const Task& task) const {
    std::vector<std::pair<Task, Seconds>> out;
    const auto pass = [&](Work work, int stage) {
      const auto wire = wires_.find({stage, task.stage});
      const bool near = program_.device_of(stage) == program_.device_of(task.stage);
      out.push_back(
          {{work, stage, task.microbatch}, near || wire == wires_.end() ? 0 : wire->second});
    };
    const lower::Schedule& schedule = program_.schedule;
    const bool in_parts = lower::has_parts(schedule);
    const int place = task.stage % schedule.stages;
    switch (task.work) {
      case Work::kForward:
        if (place > 0) {
          pass(Work::kForward, task.stage - 1);
        }
        break;
      case Work::kBackward:
      case Work::kBackwardInput:
        pass(Work::kForward, task.stage);
        if (place + 1 < schedule.stages) {
          pass(in_parts ? Work::kBackwardInput : Work::kBackward, task.stage + 1);
        }
        break;
      case Work::kBackwardWeight:
        pass(Work::kBackwardInput, task.stage);
        break;
      case Work::kUpdate:
        for (int copy = 0; copy < schedule.pipelines && schedule.pipelines > 1; ++copy) {
          out.emplace_back(last_pass(program_.device_of(copy * schedule.stages + place)), 0);
        }
        break;
    }
    return out;
  }

  [[nodiscard]] const Task& last_pass(int group) const {
    const std::vector<Task>& tasks = tasks_[at(group)];
    return *std::find_if(
        tasks.rbegin(), tasks.rend(), [](const Task& task) { return task.work != Work::kUpdate; });
  }

  using Pass = std::tuple<Work, int, std::int64_t>;
  static Pass pass_of(const Task& task) { return {task.work, task.stage, task.microbatch}; }

  /// When each pass ends is a number that only grows, up to the longest chain before it; a chain
  /// has no more tasks than there are.
  Result<Seconds> longest_chain(std::size_t version) const {
    std::map<Pass, Seconds> ends;
    std::size_t tasks = 0;
    for (const std::vector<Task>& list : tasks_) {
      tasks += list.size();
    }
    for (std::size_t round = 0; round <= tasks; ++round) {
      bool moved = false;
      Seconds longest = 0;
      for (const std::vector<Task>& list : tasks_) {
        Seconds free = 0;
        for (const Task& task : list) {
          Seconds start = free;
          for (const auto& [needed, wire] : needs(task)) {
            start = std::max(start, ends[pass_of(needed)] + wire);
          }
          free = start + lasts(task, version);
          Seconds& end = ends[pass_of(task)];
          moved = moved || free > end;
          end = std::max(end, free);
        }
        longest = std::max(longest, free);
      }
      if (!moved) {
        return longest;
      }
    }
    return broken("its tasks wait for each other in a circle", "schedule");
  }

  const PipelineProgram& program_;
  bool in_line_;
  std::vector<std::vector<Task>> tasks_{};  ///< by group
  std::vector<OfStage> seconds_;
  std::map<std::pair<int, int>, Seconds> wires_{};  ///< by stages
  std::map<int, Seconds> arrivals_{};               ///< of the update's messages, by receiver
  Seconds message_seconds_ = 0;
};

/// The bytes of one group of devices.
class GroupWalk {
 public:
  GroupWalk(const PipelineProgram& program, int group)
      : program_(program), group_(group), tasks_(tasks_of(program, group)) {
    for (int stage = 0; stage < program.stages_with_copies(); ++stage) {
      if (program.device_of(stage) == group) {
        stages_.emplace(stage, PlainStorages(program.programs[at(stage)], bytes_));
      }
    }
    peak_.bytes = bytes_;
    peak_.group = group;
    if (!tasks_.empty()) {
      peak_.task = tasks_.front();
    }
  }

  Result<PipelineCertificate::Peak> run() {
    for (number_ = 0; number_ < tasks_.size(); ++number_) {
      SHARDPLAN_RETURN_IF_ERROR(run_task(tasks_[number_]));
    }
    if (program_.schedule.synchronous) {
      for (const lower::UpdateRun& run : lower::update_runs(program_, group_)) {
        SHARDPLAN_RETURN_IF_ERROR(run_steps({Work::kUpdate, run.stage}, run.begin, run.end));
      }
    }
    for (auto& [stage, storages] : stages_) {
      const Status rest = storages.check_rest();
      if (!rest) {
        return broken(rest.error().message, fmt::format("stage {}", stage));
      }
    }
    return peak_;
  }

 private:
  Status run_task(const Task& task) {
    const Program& program = program_.programs[at(task.stage)];
    const std::size_t backward = lower::backward_begin(program);
    const std::size_t weights = program_.weights_begin[at(task.stage)];
    const std::size_t end = program.microbatch.size();
    PlainStorages& storages = stages_.at(task.stage);
    if (task.work == Work::kBackward || task.work == Work::kBackwardInput ||
        task.work == Work::kBackwardWeight) {
      storages.bring_back(task.microbatch);
    }
    switch (task.work) {
      case Work::kForward:
        SHARDPLAN_RETURN_IF_ERROR(run_steps(task, 0, backward));
        break;
      case Work::kBackward:
        return run_steps(task, backward, end);
      case Work::kBackwardInput:
        SHARDPLAN_RETURN_IF_ERROR(run_steps(task, backward, weights));
        break;
      case Work::kBackwardWeight:
        return run_steps(task, weights, end);
      case Work::kUpdate:
        if (program_.schedule.synchronous) {
          return {};
        }
        keep_weights(task.stage);
        return run_steps(task, 0, program.update.size());
    }
    storages.set_aside(task.microbatch);
    return {};
  }

  /// Old weights stay as long as a later pass computes with them.
  void keep_weights(int stage) {
    const Program& program = program_.programs[at(stage)];
    const ir::Graph& graph = program_.stages[at(stage)].graph;
    Bytes written = 0;
    for (const lower::Resident& resident : program.residents) {
      for (const ir::Write& write : graph.writes) {
        if (write.target == resident.global &&
            graph.value(resident.global).kind == ir::ValueKind::kParameter) {
          written += program.value(resident.local).type.bytes();
          break;
        }
      }
    }
    auto& old = old_weights_[stage];
    std::int64_t& version = version_[stage];
    if (used_later(stage, version)) {
      old[version] = std::make_shared<PlainStorage>(bytes_, written);
    }
    ++version;
    std::erase_if(old, [&](const auto& entry) { return !used_later(stage, entry.first); });
  }

  [[nodiscard]] bool used_later(int stage, std::int64_t version) const {
    return std::any_of(
        tasks_.begin() + static_cast<std::ptrdiff_t>(number_), tasks_.end(), [&](const Task& task) {
          return task.work != Work::kUpdate && task.stage == stage &&
                 task.weight_version == version;
        });
  }

  Status run_steps(const Task& task, std::size_t begin, std::size_t end) {
    const Program& program = program_.programs[at(task.stage)];
    const ir::Graph& graph = program_.stages[at(task.stage)].graph;
    PlainStorages& storages = stages_.at(task.stage);
    const bool update = task.work == Work::kUpdate;
    const std::vector<Step>& steps = update ? program.update : program.microbatch;
    for (std::size_t i = begin; i < end; ++i) {
      const bool sends =
          steps[i].kind == StepKind::kCompute && graph.op(steps[i].op).name == "send";
      const std::shared_ptr<PlainStorage> held =
          sends ? storages.storage(steps[i].inputs[0]) : nullptr;
      const Status ran = storages.run(steps[i]);
      if (!ran) {
        return broken(ran.error().message, fmt::format("stage {}", task.stage));
      }
      const Bytes now = bytes_ + storages.workspace_at(steps[i]);
      if (now > peak_.bytes) {
        peak_ = {now, group_, task, update, i};
      }
      if (sends) {
        const auto message = graph.op(steps[i].op).attributes.integer("message");
        send(program_.links[at(message)], held, update);
      }
    }
    return {};
  }

  /// What the newest room − 1 tasks before this one sent there may still wait.
  void send(const Link& link, std::shared_ptr<PlainStorage> storage, bool update) {
    auto& channel = sent_[{link.from, link.to}];
    if (!update) {
      std::set<std::size_t> before;
      for (const auto& [task, held] : channel) {
        before.insert(task);
      }
      before.erase(number_);
      while (static_cast<std::int64_t>(before.size()) >= program_.room(link)) {
        const std::size_t oldest = *before.begin();
        before.erase(oldest);
        std::erase_if(channel, [&](const auto& entry) { return entry.first == oldest; });
      }
    }
    channel.emplace_back(number_, std::move(storage));
  }

  const PipelineProgram& program_;
  int group_;
  std::vector<Task> tasks_;
  std::size_t number_ = 0;  ///< of the task in the group's list
  PipelineCertificate::Peak peak_{};
  Bytes bytes_ = 0;  // outlives the storages
  std::map<int, PlainStorages> stages_{};
  std::map<std::pair<int, int>, std::vector<std::pair<std::size_t, std::shared_ptr<PlainStorage>>>>
      sent_{};  ///< by stages: number of the task
  std::map<int, std::map<std::int64_t, std::shared_ptr<PlainStorage>>> old_weights_{};
  std::map<int, std::int64_t> version_{};
};

}  // namespace

Result<PipelineCertificate> certify_pipeline(const PipelineProgram& program,
                                             const cluster::Cluster& cluster,
                                             const std::vector<plan::Plan>& stages,
                                             bool in_line) {
  SHARDPLAN_RETURN_IF_ERROR(check_schedule(program));
  for (std::size_t m = 0; m < program.links.size(); ++m) {
    SHARDPLAN_RETURN_IF_ERROR(check_message(program, static_cast<int>(m)));
  }
  PipelineCertificate out;
  out.messages = program.links.size();
  SHARDPLAN_RETURN_IF_ERROR(Chains(program, cluster, stages, in_line).run(out));
  for (int group = 0; group < program.schedule.devices; ++group) {
    SHARDPLAN_ASSIGN_OR_RETURN(const PipelineCertificate::Peak peak,
                               GroupWalk(program, group).run());
    out.peak_bytes.push_back(peak.bytes);
    if (peak.bytes > out.peak.bytes) {
      out.peak = peak;
    }
    for (const Task& task : program.schedule.tasks[at(group)]) {
      out.passes += task.work == Work::kUpdate ? 0 : 1;
    }
  }
  return out;
}

}  // namespace shardplan::sim
