#include "shardplan/training/separate_sums.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>

#include "shardplan/ops/op.h"

namespace shardplan::training {
namespace {

using ir::OpId;
using ir::Phase;
using ir::ValueId;

class Separator {
 public:
  Separator(const ir::Graph& step, const std::vector<int>& stage_of)
      : step_(step), stage_of_(stage_of) {}

  Separated run() {
    find_sums();
    out_.step.name = step_.name;
    out_.step.microbatches = step_.microbatches;
    here_.resize(step_.values().size());
    ops_.resize(step_.ops().size());
    for (std::size_t v = 0; v < step_.values().size(); ++v) {
      const ir::Value& value = step_.values()[v];
      if (!value.producer.valid()) {
        here_[v] = out_.step.add_value(value);
        out_.value_of.push_back(ValueId(v));
      }
    }
    for (std::size_t v = 0; v < out_.step.values().size(); ++v) {
      ir::Value& value = out_.step.value(ValueId(v));
      if (value.init_from.valid()) {
        value.init_from = here_[value.init_from.index()];
      }
    }
    for (std::size_t i = 0; i < step_.ops().size(); ++i) {
      if (step_.ops()[i].phase == Phase::kUpdate) {
        add_totals();
      }
      if (const auto sum = sums_.find(OpId(i)); sum != sums_.end()) {
        add_parts(OpId(i), sum->second);
      } else if (!gone_[i]) {
        copy(OpId(i));
      }
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
    const OpId id = out_.step.add_op(std::move(op), {type});
    out_.op_of.emplace_back();
    out_.value_of.emplace_back();
    return out_.step.op(id).outputs[0];
  }

  ValueId add(ValueId a, ValueId b, Phase phase, const std::string& layer) {
    ir::Op op;
    op.name = "add";
    op.inputs = {a, b};
    op.phase = phase;
    op.layer = layer;
    return append(std::move(op), out_.step.type(a));
  }

  void add_parts(OpId id, const Parts& parts) {
    const ir::Op& old = step_.op(id);
    const ValueId accumulator = old.inputs[0];
    std::vector<ValueId> sums;
    for (const auto& [stage, terms] : parts) {
      ValueId sum = here_[terms.front().index()];
      for (std::size_t t = 1; t < terms.size(); ++t) {
        sum = add(sum, here_[terms[t].index()], Phase::kBackward, old.layer);
      }
      ValueId target = here_[accumulator.index()];
      if (!sums.empty()) {
        ir::Value value = step_.value(accumulator);
        value.name += fmt::format(".stage{}", stage);
        target = out_.step.add_value(std::move(value));
        out_.value_of.emplace_back();
      }
      ir::Op op = old;
      op.inputs = {target, sum};
      op.outputs.clear();
      sums.push_back(append(std::move(op), step_.type(accumulator)));
      out_.step.writes.push_back({target, sums.back()});
    }
    written_[accumulator] = true;
    waiting_.push_back({old.outputs[0], std::move(sums), old.layer});
  }

  void add_totals() {
    for (const Total& total : std::exchange(waiting_, {})) {
      ValueId sum = total.parts.front();
      for (std::size_t p = 1; p < total.parts.size(); ++p) {
        sum = add(sum, total.parts[p], Phase::kUpdate, total.layer);
      }
      here_[total.of.index()] = sum;
      out_.value_of[sum.index()] = total.of;
    }
  }

  void copy(OpId id) {
    const ir::Op& old = step_.op(id);
    ir::Op op = old;
    op.outputs.clear();
    for (ValueId& input : op.inputs) {
      input = here_[input.index()];
    }
    op.source = old.source.valid() ? ops_[old.source.index()] : OpId{};
    std::vector<ir::TensorType> types;
    types.reserve(old.outputs.size());
    for (const ValueId output : old.outputs) {
      types.push_back(step_.type(output));
    }
    const OpId made = out_.step.add_op(std::move(op), types);
    ops_[id.index()] = made;
    out_.op_of.push_back(id);
    for (std::size_t r = 0; r < old.outputs.size(); ++r) {
      const ValueId result = out_.step.op(made).outputs[r];
      here_[old.outputs[r].index()] = result;
      out_.step.value(result).name = step_.value(old.outputs[r]).name;
      out_.value_of.push_back(old.outputs[r]);
    }
  }

  void finish() {
    for (const ValueId output : step_.outputs) {
      out_.step.outputs.push_back(here_[output.index()]);
    }
    for (const ir::Write& write : step_.writes) {
      if (written_.find(write.target) == written_.end()) {
        out_.step.writes.push_back({here_[write.target.index()], here_[write.value.index()]});
      }
    }
    for (const ir::Write& gradient : step_.gradients) {
      const ValueId target = here_[gradient.target.index()];
      const ValueId value = here_[gradient.value.index()];
      if (target.valid() && value.valid()) {
        out_.step.gradients.push_back({target, value});
      }
    }
  }

  struct Total {
    ValueId of;  ///< the old sum
    std::vector<ValueId> parts;
    std::string layer;
  };
  const ir::Graph& step_;
  const std::vector<int>& stage_of_;
  std::map<OpId, Parts> sums_;  ///< by accumulation
  std::vector<bool> gone_;      ///< by op: an addition that is taken apart
  Separated out_;
  std::vector<ValueId> here_;        ///< by old value
  std::vector<OpId> ops_;            ///< by old op
  std::map<ValueId, bool> written_;  ///< accumulators whose writes are made
  std::vector<Total> waiting_;
};

}  // namespace

Separated separate_sums(const ir::Graph& step, const std::vector<int>& stage_of) {
  return Separator(step, stage_of).run();
}

}  // namespace shardplan::training
