// In three passes: Placement finds the stage of every op and the owner of every parameter;
// CrossingFinder what each stage holds and which values cross; StageBuilder writes one stage's
// graph.

#include "shardplan/training/stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "shardplan/ops/op.h"
#include "shardplan/training/graph_copy.h"
#include "shardplan/training/pipeline_copies.h"
#include "shardplan/training/placement.h"
#include "shardplan/training/separate_sums.h"

namespace shardplan::training {
namespace {

using ir::OpId;
using ir::Phase;
using ir::ValueId;
using ir::ValueKind;

constexpr std::size_t kSteps =
    3;  ///< of Stage::order for an op of the step: late sends, receives, it

/// What the stages hold and which values cross.
struct Crossing {
  std::vector<std::vector<bool>> ops;         ///< [stage][op of the step]
  std::vector<std::vector<bool>> values;      ///< [stage][value that is no op result]
  std::vector<Message> messages;              ///< in the order of their producers
  std::vector<std::vector<int>> messages_of;  ///< by value: numbers
  std::vector<std::vector<OpId>> users;       ///< by value
  /// The first op of a stage that reads the value; none: the number of ops.
  [[nodiscard]] std::size_t first_reader(ValueId value, int stage) const {
    const std::vector<bool>& mine = ops[static_cast<std::size_t>(stage)];
    for (const OpId user : users[value.index()]) {
      if (mine[user.index()]) {
        return user.index();
      }
    }
    return mine.size();
  }
};

class CrossingFinder {
 public:
  CrossingFinder(const ir::Graph& step, const Placement& placement, int stages)
      : step_(step), placement_(placement), stages_(stages) {
    out_.users = step.users();
  }

  Result<Crossing> run() {
    const auto count = static_cast<std::size_t>(stages_);
    out_.ops.assign(count, std::vector<bool>(step_.ops().size(), false));
    out_.values.assign(count, std::vector<bool>(step_.values().size(), false));
    out_.messages_of.resize(step_.values().size());
    read_.assign(count, std::vector<bool>(step_.values().size(), false));
    for (int stage = 0; stage < stages_; ++stage) {
      find_content(stage);
    }
    SHARDPLAN_RETURN_IF_ERROR(find_messages());
    return std::move(out_);
  }

 private:
  /// The stage's own ops, what they need of the ops that are anywhere, and the values they read.
  void find_content(int stage) {
    const auto s = static_cast<std::size_t>(stage);
    std::vector<bool>& read = read_[s];
    for (const ir::Write& write : step_.writes) {
      if (placement_.owner(write.target) == stage) {
        out_.values[s][write.target.index()] = true;
        read[write.value.index()] = true;
      }
    }
    for (const ValueId loss : step_.outputs) {
      if (stage == placement_.stage(step_.value(loss).producer)) {
        read[loss.index()] = true;
      }
    }
    collect(stage);
    // A counter that is everywhere is written wherever it is read.
    for (const ir::Write& write : step_.writes) {
      if (placement_.owner(write.target) == Placement::kAnywhere &&
          out_.values[s][write.target.index()]) {
        read[write.value.index()] = true;
      }
    }
    collect(stage);
    for (std::size_t v = 0; v < step_.values().size(); ++v) {
      const ValueKind kind = step_.values()[v].kind;
      const bool mine = kind == ValueKind::kParameter && placement_.owner(ValueId(v)) == stage;
      const bool unread = kind == ValueKind::kBuffer && stage == 0 && out_.users[v].empty();
      out_.values[s][v] = out_.values[s][v] || mine || unread;
    }
  }

  void collect(int stage) {
    const auto s = static_cast<std::size_t>(stage);
    std::vector<bool>& read = read_[s];
    for (std::size_t i = step_.ops().size(); i-- > 0;) {
      const ir::Op& op = step_.ops()[i];
      const int where = placement_.stage(OpId(i));
      const bool needed =
          where == stage || (where == Placement::kAnywhere &&
                             std::any_of(op.outputs.begin(), op.outputs.end(), [&](ValueId output) {
                               return read[output.index()];
                             }));
      if (!needed) {
        continue;
      }
      out_.ops[s][i] = true;
      for (const ValueId input : op.inputs) {
        read[input.index()] = true;
        out_.values[s][input.index()] =
            out_.values[s][input.index()] || !step_.value(input).producer.valid();
      }
    }
  }

  /// What only the update reads is sent once, not for every microbatch.
  [[nodiscard]] Phase phase_of(ValueId value, int to) const {
    const auto t = static_cast<std::size_t>(to);
    const Phase made = step_.op(step_.value(value).producer).phase;
    const std::vector<OpId>& users = out_.users[value.index()];
    const bool in_pass = std::any_of(users.begin(), users.end(), [&](OpId user) {
      return out_.ops[t][user.index()] && step_.op(user).phase != Phase::kUpdate;
    });
    return in_pass ? made : Phase::kUpdate;
  }

  /// What passes make and only the update reads is sent in the order of its readers, so that it
  /// need not be received long before.
  void sort_late_messages() {
    const auto is_late = [&](const Message& m) {
      return m.phase == Phase::kUpdate &&
             step_.op(step_.value(m.value).producer).phase != Phase::kUpdate;
    };
    std::vector<Message> late;
    std::copy_if(out_.messages.begin(), out_.messages.end(), std::back_inserter(late), is_late);
    std::stable_sort(late.begin(), late.end(), [&](const Message& a, const Message& b) {
      return out_.first_reader(a.value, a.to) < out_.first_reader(b.value, b.to);
    });
    auto next = late.begin();
    for (std::size_t m = 0; m < out_.messages.size(); ++m) {
      Message& message = out_.messages[m];
      message = is_late(message) ? *next++ : message;
      out_.messages_of[message.value.index()].push_back(static_cast<int>(m));
    }
  }

  Status find_messages() {
    std::map<ValueId, ValueId> new_weight;  // parameter by the value written to it
    for (const ir::Write& write : step_.writes) {
      const ir::Value& target = step_.value(write.target);
      const int owner = placement_.owner(write.target);
      for (int stage = 0; stage < stages_; ++stage) {
        const auto s = static_cast<std::size_t>(stage);
        if (owner < 0 || stage == owner || !out_.values[s][write.target.index()]) {
          continue;
        }
        if (target.kind != ValueKind::kParameter) {
          return invalid_input(
              fmt::format("stage {} writes '{}' and stage {} reads it; put the ops "
                          "that use it into one stage",
                          owner,
                          target.name,
                          stage),
              "pipeline");
        }
        new_weight[write.value] = write.target;
      }
    }
    for (const ir::Op& op : step_.ops()) {
      for (const ValueId value : op.outputs) {
        const int from = placement_.stage(step_.value(value).producer);
        const auto weight = new_weight.find(value);
        for (int to = 0; to < stages_ && from != Placement::kAnywhere; ++to) {
          const auto t = static_cast<std::size_t>(to);
          const bool mirrored =
              weight != new_weight.end() && out_.values[t][weight->second.index()];
          if (to != from && (read_[t][value.index()] || mirrored)) {
            out_.messages.push_back({from, to, phase_of(value, to), value});
          }
        }
      }
    }
    sort_late_messages();
    return {};
  }

  const ir::Graph& step_;
  const Placement& placement_;
  int stages_;
  Crossing out_{};
  std::vector<std::vector<bool>> read_;  ///< [stage][value]
};

class StageBuilder {
 public:
  StageBuilder(const ir::Graph& step,
               const Placement& placement,
               const Crossing& crossing,
               int stage,
               bool weights_later)
      : step_(step),
        placement_(placement),
        crossing_(crossing),
        stage_(stage),
        weights_later_(weights_later),
        copy_(step, &crossing.values[index()]) {}

  Result<Stage> run() {
    copy_.to().name = fmt::format("{}.stage{}", step_.name, stage_);
    place_receives();
    find_weight_ops();
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      place_ = i;
      if (step_.ops()[i].phase == Phase::kUpdate) {
        copy_weight_ops();
      }
      enter_phase(step_.ops()[i].phase);
      for (const int message : receives_before_[i]) {
        receive(message);
      }
      if (crossing_.ops[index()][i] && !weight_op_[i]) {
        copy_op(OpId(i));
      }
    }
    copy_weight_ops();
    place_ = step_.ops().size();
    enter_phase(Phase::kUpdate);
    for (const int message : receives_last_) {
      receive(message);
    }
    finish();
    SHARDPLAN_RETURN_IF_ERROR(ops::verify(out_.graph));
    return std::move(out_);
  }

 private:
  [[nodiscard]] std::size_t index() const { return static_cast<std::size_t>(stage_); }
  [[nodiscard]] const Message& message(int number) const {
    return crossing_.messages[static_cast<std::size_t>(number)];
  }

  /// Backward ops that no message of the backward phase needs.
  void find_weight_ops() {
    weight_op_.assign(step_.ops().size(), false);
    if (!weights_later_) {
      return;
    }
    std::vector<bool> awaited(step_.values().size(), false);
    for (const Message& m : crossing_.messages) {
      awaited[m.value.index()] =
          awaited[m.value.index()] || (m.from == stage_ && m.phase == Phase::kBackward);
    }
    for (std::size_t i = step_.ops().size(); i-- > 0;) {
      const ir::Op& op = step_.ops()[i];
      if (op.phase != Phase::kBackward || !crossing_.ops[index()][i]) {
        continue;
      }
      const bool needed = std::any_of(op.outputs.begin(), op.outputs.end(), [&](ValueId output) {
        return awaited[output.index()];
      });
      weight_op_[i] = !needed;
      for (const ValueId input : op.inputs) {
        awaited[input.index()] = awaited[input.index()] || needed;
      }
    }
  }

  void copy_weight_ops() {
    if (!weights_later_ || out_.weights_begin.valid()) {
      return;
    }
    enter_phase(Phase::kBackward);
    const OpId begin(copy_.to().ops().size());
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      if (weight_op_[i]) {
        copy_op(OpId(i));
        out_.weights_begin = begin;
      }
    }
  }

  /// Messages of the update are received before their first reader here, but not out of order.
  void place_receives() {
    receives_before_.resize(step_.ops().size());
    std::map<int, std::size_t> next;  // by sender: place of the message behind
    for (auto number = static_cast<int>(crossing_.messages.size()); number-- > 0;) {
      const Message& m = message(number);
      if (m.to != stage_) {
        continue;
      }
      if (m.phase != Phase::kUpdate) {
        early_[m.phase].push_back(number);
        continue;
      }
      const auto behind = next.emplace(m.from, step_.ops().size()).first;
      behind->second = std::min(behind->second, crossing_.first_reader(m.value, stage_));
      (behind->second == step_.ops().size() ? receives_last_ : receives_before_[behind->second])
          .push_back(number);
    }
    std::reverse(receives_last_.begin(), receives_last_.end());
    for (std::vector<int>& messages : receives_before_) {
      std::reverse(messages.begin(), messages.end());
    }
    for (auto& [phase, messages] : early_) {
      std::reverse(messages.begin(), messages.end());
    }
    enter_phase(Phase::kForward);
  }

  void enter_phase(Phase phase) {
    if (phase == Phase::kUpdate) {
      std::sort(late_sends_.begin(), late_sends_.end());
      for (const int message : std::exchange(late_sends_, {})) {
        send(message, /*late=*/true);
      }
    }
    for (const int message : std::exchange(early_[phase], {})) {
      receive(message);
    }
  }

  void receive(int number) {
    const Message& m = message(number);
    const ir::TensorType& type = step_.type(m.value);
    ir::Op op;
    op.name = "receive";
    op.phase = m.phase;
    op.attributes = {{"message", std::int64_t{number}},
                     {"from", std::int64_t{m.from}},
                     {"shape", type.shape},
                     {"dtype", std::string(ir::dtype_name(type.dtype))}};
    const OpId id = copy_.to().add_op(std::move(op), {type});
    copy_.set(m.value, copy_.to().op(id).outputs[0]);
    out_.op_of.emplace_back();
    out_.order.push_back(kSteps * place_ + 1);
  }

  void copy_op(OpId original) {
    const ir::Op& from = step_.op(original);
    copy_.keep(original);
    out_.op_of.push_back(original);
    out_.order.push_back(kSteps * place_ + 2);
    for (const ValueId output : from.outputs) {
      for (const int number : crossing_.messages_of[output.index()]) {
        if (message(number).from != stage_) {
          continue;
        }
        if (message(number).phase == from.phase) {
          send(number, /*late=*/false);
        } else {
          late_sends_.push_back(number);
        }
      }
    }
  }

  void send(int number, bool late) {
    const Message& m = message(number);
    ir::Op op;
    op.name = "send";
    op.phase = m.phase;
    op.inputs = {copy_.at(m.value)};
    op.attributes = {{"message", std::int64_t{number}}, {"to", std::int64_t{m.to}}};
    copy_.to().add_op(std::move(op), {});
    out_.op_of.emplace_back();
    // Before what is received there, unless it has just been made.
    out_.order.push_back(kSteps * place_ + (late ? 0 : 2));
  }

  void finish() {
    ir::Graph& graph = copy_.to();
    for (const ValueId loss : step_.outputs) {
      if (placement_.stage(step_.value(loss).producer) == stage_) {
        graph.outputs = {copy_.at(loss)};
      }
    }
    for (const ir::Write& write : step_.writes) {
      if (copy_.has(write.target) && copy_.has(write.value)) {
        graph.writes.push_back({copy_.at(write.target), copy_.at(write.value)});
      }
    }
    for (const ir::Write& gradient : step_.gradients) {
      const bool elsewhere = step_.value(gradient.target).kind == ValueKind::kParameter &&
                             placement_.owner(gradient.target) != stage_;
      if (!elsewhere && copy_.has(gradient.target) && copy_.has(gradient.value)) {
        graph.gradients.push_back({copy_.at(gradient.target), copy_.at(gradient.value)});
      }
    }
    out_.value_of = copy_.originals();
    out_.graph = std::move(graph);
  }

  const ir::Graph& step_;
  const Placement& placement_;
  const Crossing& crossing_;
  int stage_;
  bool weights_later_;
  std::vector<bool> weight_op_;  ///< by op of the step
  GraphCopy copy_;
  Stage out_;
  std::map<Phase, std::vector<int>> early_;  ///< messages of phases that have not begun
  std::size_t place_ = 0;                    ///< op of the step in progress
  std::vector<int> late_sends_;  ///< messages of the update whose values are made before it
  std::vector<std::vector<int>> receives_before_;
  std::vector<int> receives_last_;
};

Result<int> count_stages(const ir::Graph& step, const std::vector<int>& forward_stage) {
  if (forward_stage.size() != step.ops().size()) {
    return invalid_input(
        fmt::format("{} ops have a stage, of {}", forward_stage.size(), step.ops().size()),
        "pipeline");
  }
  std::vector<bool> there;
  for (std::size_t i = 0; i < forward_stage.size(); ++i) {
    if (step.ops()[i].phase != Phase::kForward) {
      continue;
    }
    if (forward_stage[i] < 0 || static_cast<std::size_t>(forward_stage[i]) >= step.ops().size()) {
      return invalid_input(fmt::format("stage {} does not exist", forward_stage[i]),
                           ops::describe(step.ops()[i]));
    }
    const auto stage = static_cast<std::size_t>(forward_stage[i]);
    there.resize(std::max(there.size(), stage + 1), false);
    there[stage] = true;
  }
  const auto missing = std::find(there.begin(), there.end(), false);
  if (missing != there.end()) {
    return invalid_input(fmt::format("stage {} has no op", missing - there.begin()), "pipeline");
  }
  return static_cast<int>(there.size());
}

Result<StagedStep> split(const ir::Graph& step,
                         const Placement& placement,
                         int count,
                         bool weights_later) {
  SHARDPLAN_ASSIGN_OR_RETURN(const Crossing crossing, CrossingFinder(step, placement, count).run());
  StagedStep out;
  out.messages = crossing.messages;
  for (int stage = 0; stage < count; ++stage) {
    SHARDPLAN_ASSIGN_OR_RETURN(Stage made,
                               StageBuilder(step, placement, crossing, stage, weights_later).run());
    out.stages.push_back(std::move(made));
  }
  return out;
}

/// Says of what was cut from another step, whose ops and values were those, what it is of the
/// first.
void name_originals(const std::vector<OpId>& op_of,
                    const std::vector<ValueId>& value_of,
                    StagedStep& staged) {
  for (Stage& stage : staged.stages) {
    for (OpId& op : stage.op_of) {
      op = op.valid() ? op_of[op.index()] : op;
    }
    for (ValueId& value : stage.value_of) {
      value = value.valid() ? value_of[value.index()] : value;
    }
  }
  for (Message& message : staged.messages) {
    message.value = message.value.valid() ? value_of[message.value.index()] : message.value;
  }
}

/// `count`: stages.
Result<StagedStep> split_step(const ir::Graph& step,
                              const std::vector<int>& forward_stage,
                              int count,
                              bool weights_later) {
  Placement whole(step, forward_stage);
  SHARDPLAN_RETURN_IF_ERROR(whole.run());
  if (step.microbatches == 1) {
    return split(step, whole, count, weights_later);
  }
  const Separated separated = separate_sums(step, whole.stages());
  std::vector<int> stages;
  stages.reserve(separated.op_of.size());
  for (const OpId op : separated.op_of) {
    stages.push_back(op.valid() ? forward_stage[op.index()] : 0);
  }
  Placement placement(separated.step, stages);
  SHARDPLAN_RETURN_IF_ERROR(placement.run());
  SHARDPLAN_ASSIGN_OR_RETURN(StagedStep out,
                             split(separated.step, placement, count, weights_later));
  name_originals(separated.op_of, separated.value_of, out);
  return out;
}

}  // namespace

Result<StagedStep> split_into_stages(const ir::Graph& step,
                                     const std::vector<int>& forward_stage,
                                     bool weights_later,
                                     int pipelines) {
  SHARDPLAN_ASSIGN_OR_RETURN(const int count, count_stages(step, forward_stage));
  if (pipelines == 1) {
    return split_step(step, forward_stage, count, weights_later);
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const PipelineCopies copies, copy_passes(step, pipelines));
  std::vector<int> stages;
  stages.reserve(copies.op_of.size());
  for (std::size_t i = 0; i < copies.op_of.size(); ++i) {
    const OpId op = copies.op_of[i];
    const bool forward = op.valid() && step.op(op).phase == Phase::kForward;
    stages.push_back(forward ? forward_stage[op.index()] + copies.pipeline_of[i] * count : 0);
  }
  SHARDPLAN_ASSIGN_OR_RETURN(StagedStep out,
                             split_step(copies.step, stages, count * pipelines, weights_later));
  name_originals(copies.op_of, copies.value_of, out);
  return out;
}

}  // namespace shardplan::training
