// Read `Section::open_windows`. Sections of one microbatch are handled as one list of steps, so
// that gradients are still summed while the update begins; else the microbatch section, which runs
// many times, ends with nothing in flight.
#include "shardplan/lower/overlap.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

namespace shardplan::lower {
namespace {

using sharding::CollectiveKind;

/// A gather may start when the result of the one so many gathers before comes into use: the weights
/// and biases of a layer or two.
constexpr std::size_t kGathersAhead = 4;

bool communicates(const Step& step) {
  return step.kind == StepKind::kCollective && step.collective.kind != CollectiveKind::kSlice;
}

/// Bytes of the storages that are there, step by step.
class LiveBytes {
 public:
  explicit LiveBytes(const Program& program) : program_(program), there_(program.values.size(), 0) {
    for (const Resident& resident : program.residents) {
      put(program.root(resident.local));
    }
  }

  /// While each step runs; workspaces of kernels are counted, those of collectives are not.
  std::vector<Bytes> walk(const std::vector<Step>& steps) {
    std::vector<Bytes> out;
    out.reserve(steps.size());
    for (const Step& step : steps) {
      if (step.kind == StepKind::kFree) {
        drop(program_.root(step.inputs[0]));
      } else if (step.kind == StepKind::kWrite) {
        write(program_.root(step.outputs[0]), program_.root(step.inputs[0]));
      } else {
        for (const LocalId output : step.outputs) {
          if (!program_.value(output).view_of.valid()) {
            drop(output);
            put(output);
          }
        }
      }
      out.push_back(total_ + (communicates(step) ? 0 : step.workspace));
    }
    return out;
  }

 private:
  void put(LocalId root) {
    there_[root.index()] = program_.value(root).type.bytes();
    total_ += there_[root.index()];
  }
  void drop(LocalId root) {
    total_ -= there_[root.index()];
    there_[root.index()] = 0;
  }
  void write(LocalId target, LocalId value) {
    if (target != value) {
      const Bytes bytes = there_[value.index()];
      drop(target);
      drop(value);
      there_[target.index()] = bytes;
      total_ += bytes;
    }
  }

  const Program& program_;
  std::vector<Bytes> there_;  ///< by root
  Bytes total_ = 0;
};

/// A list of steps that run one after the other, and what is put between them.
class Section {
 public:
  /// `loss_at`: the step before which the host reads the loss.
  Section(const Program& program, std::vector<Step> steps, std::vector<Bytes> live)
      : program_(program),
        steps_(std::move(steps)),
        live_(std::move(live)),
        reserved_(steps_.size(), 0),
        moved_(steps_.size(), false),
        before_(steps_.size() + 1) {
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      reserved_[i] = communicates(steps_[i]) ? steps_[i].workspace : 0;
    }
  }

  [[nodiscard]] Bytes peak() const {
    Bytes peak = 0;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      peak = std::max(peak, live_[i] + reserved_[i]);
    }
    return peak;
  }

  void open_windows(std::size_t loss_at, Bytes limit) {
    loss_at_ = loss_at;
    limit_ = limit;
    std::vector<std::size_t> uses;  // of gathered parameters, in order
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      if (!communicates(steps_[i])) {
        continue;
      }
      std::size_t start = i;
      if (gathers_parameter(steps_[i])) {
        const bool many = uses.size() >= kGathersAhead;
        start = earliest_start(i, many ? std::min(uses[uses.size() - kGathersAhead], i) : 0);
        uses.push_back(first_use(i));
      }
      open_window(i, start);
    }
  }

  /// Steps `first` to `last` (without), with what was put between them.
  [[nodiscard]] std::vector<Step> take(std::size_t first, std::size_t last, bool end) {
    std::vector<Step> out;
    for (std::size_t i = first; i < last; ++i) {
      std::move(before_[i].begin(), before_[i].end(), std::back_inserter(out));
      if (!moved_[i]) {
        out.push_back(std::move(steps_[i]));
      }
    }
    if (end) {
      std::move(before_[last].begin(), before_[last].end(), std::back_inserter(out));
    }
    return out;
  }

 private:
  struct Window {
    std::size_t end = 0;                 ///< the step before which the collective must be done
    std::vector<std::size_t> delayed{};  ///< frees that are put off until then
    bool computes = false;               ///< something runs meanwhile
  };

  [[nodiscard]] bool gathers_parameter(const Step& step) const {
    const LocalId root = program_.root(step.inputs[0]);
    return step.collective.kind == CollectiveKind::kAllGather &&
           std::any_of(program_.residents.begin(),
                       program_.residents.end(),
                       [&](const Resident& r) { return r.local == root; });
  }

  [[nodiscard]] bool touches(const std::vector<LocalId>& ids, LocalId root) const {
    return std::any_of(
        ids.begin(), ids.end(), [&](LocalId id) { return program_.root(id) == root; });
  }

  [[nodiscard]] std::size_t first_use(std::size_t collective) const {
    const LocalId made = program_.root(steps_[collective].outputs[0]);
    std::size_t k = collective + 1;
    while (k < steps_.size() && !touches(steps_[k].inputs, made)) {
      ++k;
    }
    return k;
  }

  /// The first step from `bound` on before which collective `i` can start: what it reads is not
  /// changed from there on, and what it makes fits.
  [[nodiscard]] std::size_t earliest_start(std::size_t i, std::size_t bound) {
    const Step& step = steps_[i];
    const LocalId read = program_.root(step.inputs[0]);
    const Bytes made = program_.value(step.outputs[0]).type.bytes();
    std::size_t start = i;
    while (start > bound && !touches(steps_[start - 1].outputs, read) &&
           live_[start - 1] + made + std::max(reserved_[start - 1], step.workspace) <= limit_) {
      --start;
    }
    // One step later: where it starts, frees that were put off until there have yet to come.
    return std::min(start + 1, i);
  }

  /// How far collective `i` may run on when it starts before step `start`.
  [[nodiscard]] Window window_of(std::size_t i, std::size_t start) const {
    const Step& step = steps_[i];
    const LocalId made = program_.root(step.outputs[0]);
    const LocalId read = program_.root(step.inputs[0]);
    const bool reads = step.collective.kind != CollectiveKind::kAllReduce;  // works on its result
    const Bytes ahead = program_.value(made).type.bytes();
    Window window;
    Bytes kept = 0;
    std::size_t k = start;
    for (; k < steps_.size(); ++k) {
      const Step& now = steps_[k];
      if (k == i) {
        continue;
      }
      const bool frees = reads && now.kind == StepKind::kFree && touches(now.inputs, read);
      const bool conflict =
          touches(now.inputs, made) || touches(now.outputs, made) ||
          (reads && touches(now.outputs, read)) ||
          (reads && now.kind == StepKind::kWrite && touches(now.inputs, read)) ||
          (k == loss_at_ && program_.loss.valid() && made == program_.root(program_.loss));
      const Bytes more = frees ? program_.value(read).type.bytes() : 0;
      const Bytes bytes =
          live_[k] + (k < i ? ahead : 0) + kept + more + std::max(reserved_[k], step.workspace);
      if (conflict || bytes > limit_) {
        break;
      }
      kept += more;
      if (frees) {
        window.delayed.push_back(k);
      }
      window.computes = window.computes || now.kind == StepKind::kCompute;
    }
    window.end = k;
    return window;
  }

  void open_window(std::size_t i, std::size_t start) {
    const Window window = window_of(i, start);
    if (!window.computes || window.end <= i) {
      return;
    }
    const Step& step = steps_[i];
    const Bytes ahead = program_.value(step.outputs[0]).type.bytes();
    Bytes kept = 0;
    if (start < i) {  // it starts while all is there that was there in the step before
      live_[start - 1] += ahead;
      reserved_[start - 1] = std::max(reserved_[start - 1], step.workspace);
    }
    for (std::size_t k = start; k < window.end; ++k) {
      if (std::find(window.delayed.begin(), window.delayed.end(), k) != window.delayed.end()) {
        kept += program_.value(program_.root(step.inputs[0])).type.bytes();
      }
      live_[k] += kept + (k < i ? ahead : 0);
      reserved_[k] = std::max(reserved_[k], step.workspace);
    }
    Step wait;
    wait.kind = StepKind::kWait;
    wait.inputs = {step.outputs[0]};
    wait.op = step.op;
    wait.operand = step.operand;
    wait.phase = window.end < steps_.size() ? steps_[window.end].phase : step.phase;
    before_[window.end].push_back(std::move(wait));
    for (const std::size_t k : window.delayed) {
      before_[window.end].push_back(steps_[k]);
      moved_[k] = true;
    }
    steps_[i].aside = true;
    if (start < i) {
      before_[start].push_back(steps_[i]);
      moved_[i] = true;
    }
  }

  const Program& program_;
  std::vector<Step> steps_;
  std::vector<Bytes> live_;      ///< with what was moved so far
  std::vector<Bytes> reserved_;  ///< most workspace of collectives in flight
  std::vector<bool> moved_;      ///< now stands elsewhere
  std::vector<std::vector<Step>> before_;
  std::size_t loss_at_ = 0;
  Bytes limit_ = 0;
};

}  // namespace

void overlap_collectives(Program& program) {
  LiveBytes bytes(program);
  std::vector<Bytes> microbatch = bytes.walk(program.microbatch);
  if (program.microbatches > 1) {  // with what the first leaves behind
    microbatch = bytes.walk(program.microbatch);
  }
  std::vector<Bytes> update = bytes.walk(program.update);
  const std::size_t first = program.microbatch.size();
  const std::size_t second = program.update.size();
  if (program.microbatches == 1) {
    std::vector<Step> steps = program.microbatch;
    steps.insert(steps.end(), program.update.begin(), program.update.end());
    microbatch.insert(microbatch.end(), update.begin(), update.end());
    Section whole(program, std::move(steps), std::move(microbatch));
    whole.open_windows(first, whole.peak());
    std::vector<Step> before = whole.take(0, first, false);
    program.update = whole.take(first, first + second, true);
    program.microbatch = std::move(before);
    return;
  }
  Section passes(program, program.microbatch, std::move(microbatch));
  Section end(program, program.update, std::move(update));
  const Bytes limit = std::max(passes.peak(), end.peak());
  passes.open_windows(first, limit);
  end.open_windows(second, limit);
  program.microbatch = passes.take(0, first, true);
  program.update = end.take(0, second, true);
}

}  // namespace shardplan::lower
