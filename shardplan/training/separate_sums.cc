#include "shardplan/training/separate_sums.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <string>
#include <utility>

#include "shardplan/training/graph_copy.h"

namespace shardplan::training {
namespace {

using ir::OpId;
using ir::Phase;
using ir::ValueId;

class Separator {
 public:
  Separator(const ir::Graph& step, const std::vector<int>& stage_of)
      : step_(step), stage_of_(stage_of), copy_(step) {}

  Separated run() {
    find_sums();
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      if (step_.ops()[i].phase == Phase::kUpdate) {
        for (const ValueId input : step_.ops()[i].inputs) {
          add_total(input);
        }
      }
      if (const auto sum = sums_.find(OpId(i)); sum != sums_.end()) {
        add_parts(OpId(i), sum->second);
      } else if (!gone_[i]) {
        copy_.keep(OpId(i));
        out_.op_of.emplace_back(i);
      }
    }
    while (!waiting_.empty()) {
      add_total(waiting_.begin()->first);
    }
    finish();
    return std::move(out_);
  }

 private:
  using Parts = std::map<int, std::vector<ValueId>>;  ///< by stage: what it adds

  /// Accumulations of sums whose terms are made in several stages.
  void find_sums() {
    gone_.assign(step_.ops().size(), false);
    const std::vector<std::vector<OpId>> users = step_.users();
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      const ir::Op& op = step_.ops()[i];
      if (op.name != "accumulate") {
        continue;
      }
      Parts parts;
      std::vector<OpId> inner;
      std::vector<ValueId> open{op.inputs[1]};
      while (!open.empty()) {
        const ValueId value = open.back();
        open.pop_back();
        const OpId producer = step_.value(value).producer;
        const ir::Op& made_by = step_.op(producer);
        const bool sum = made_by.name == "add" && !made_by.source.valid() &&
                         made_by.phase == Phase::kBackward && users[value.index()].size() == 1;
        if (sum) {
          inner.push_back(producer);
          open.insert(open.end(), made_by.inputs.rbegin(), made_by.inputs.rend());
        } else {
          parts[stage_of_[producer.index()]].push_back(value);
        }
      }
      if (parts.size() > 1) {
        sums_.emplace(OpId(i), std::move(parts));
        for (const OpId add : inner) {
          gone_[add.index()] = true;
        }
      }
    }
  }

  ValueId append(ir::Op op, const ir::TensorType& type) {
    const OpId id = copy_.to().add_op(std::move(op), {type});
    out_.op_of.emplace_back();
    return copy_.to().op(id).outputs[0];
  }

  ValueId add(ValueId a, ValueId b, Phase phase, const std::string& layer) {
    ir::Op op;
    op.name = "add";
    op.inputs = {a, b};
    op.phase = phase;
    op.layer = layer;
    return append(std::move(op), copy_.to().type(a));
  }

  void add_parts(OpId id, const Parts& parts) {
    const ir::Op& old = step_.op(id);
    const ValueId accumulator = old.inputs[0];
    std::vector<ValueId> sums;
    for (const auto& [stage, terms] : parts) {
      ValueId sum = copy_.at(terms.front());
      for (std::size_t t = 1; t < terms.size(); ++t) {
        sum = add(sum, copy_.at(terms[t]), Phase::kBackward, old.layer);
      }
      ValueId target = copy_.at(accumulator);
      if (!sums.empty()) {
        ir::Value value = step_.value(accumulator);
        value.name += fmt::format(".stage{}", stage);
        target = copy_.to().add_value(std::move(value));
      }
      ir::Op op = old;
      op.inputs = {target, sum};
      op.outputs.clear();
      sums.push_back(append(std::move(op), step_.type(accumulator)));
      copy_.to().writes.push_back({target, sums.back()});
    }
    written_.insert(accumulator);
    waiting_.emplace(old.outputs[0], Total{std::move(sums), old.layer});
  }

  /// Just before its first reader: until then nothing but the parts takes memory.
  void add_total(ValueId of) {
    const auto waiting = waiting_.find(of);
    if (waiting == waiting_.end()) {
      return;
    }
    const auto& [parts, layer] = waiting->second;
    ValueId sum = parts.front();
    for (std::size_t p = 1; p < parts.size(); ++p) {
      sum = add(sum, parts[p], Phase::kUpdate, layer);
    }
    copy_.set(of, sum);
    waiting_.erase(waiting);
  }

  void finish() {
    ir::Graph& graph = copy_.to();
    for (const ValueId output : step_.outputs) {
      graph.outputs.push_back(copy_.at(output));
    }
    for (const ir::Write& write : step_.writes) {
      if (!written_.contains(write.target)) {
        graph.writes.push_back({copy_.at(write.target), copy_.at(write.value)});
      }
    }
    for (const ir::Write& gradient : step_.gradients) {
      if (copy_.has(gradient.target) && copy_.has(gradient.value)) {
        graph.gradients.push_back({copy_.at(gradient.target), copy_.at(gradient.value)});
      }
    }
    out_.value_of = copy_.originals();
    out_.step = std::move(graph);
  }

  struct Total {
    std::vector<ValueId> parts;
    std::string layer;
  };
  const ir::Graph& step_;
  const std::vector<int>& stage_of_;
  std::map<OpId, Parts> sums_;  ///< by accumulation
  std::vector<bool> gone_;      ///< by op: an addition that is taken apart
  Separated out_;
  GraphCopy copy_;
  std::set<ValueId> written_;         ///< accumulators whose writes are made
  std::map<ValueId, Total> waiting_;  ///< by the old sum
};

}  // namespace

Separated separate_sums(const ir::Graph& step, const std::vector<int>& stage_of) {
  return Separator(step, stage_of).run();
}

}  // namespace shardplan::training
