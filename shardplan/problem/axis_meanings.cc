// Which dimensions of a model are its batch, its sequence, its space, its experts, and the ones
// that tensor parallelism cuts.
#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "shardplan/ops/op.h"
#include "shardplan/problem/intra_op.h"

namespace shardplan::problem {
namespace {

using ir::OpId;
using ir::Phase;
using ir::ValueId;
using ir::ValueKind;

class Meanings {
 public:
  explicit Meanings(const ir::Graph& step) : step_(step), offset_(step.ops().size(), 0) {
    for (std::size_t i = 0; i < step.ops().size() && forward(i); ++i) {
      maps_.push_back(ops::axis_map(step, OpId(i)));
      offset_[i] = static_cast<int>(parent_.size());
      for (std::size_t a = 0; a < maps_.back().axes.size(); ++a) {
        parent_.push_back(static_cast<int>(parent_.size()));
      }
    }
    join_dimensions();
    meaning_.assign(parent_.size(), AxisMeaning::kOther);
    whole_.assign(parent_.size(), false);
    name_inputs(0, AxisMeaning::kBatch);
    name_received();
    name_experts();
    name_attention();
    name_space();
    name_inputs(1, AxisMeaning::kSequence);
    walk_products();
  }

  [[nodiscard]] std::vector<std::vector<AxisMeaning>> result() {
    std::vector<std::vector<AxisMeaning>> out(step_.ops().size());
    for (std::size_t i = 0; i < maps_.size(); ++i) {
      for (std::size_t a = 0; a < maps_[i].axes.size(); ++a) {
        out[i].push_back(at(axis(i, static_cast<int>(a))));
      }
    }
    return out;
  }

 private:
  // Forward ops come first in a step, so they are a prefix.
  [[nodiscard]] bool forward(std::size_t op) const {
    return step_.ops()[op].phase == Phase::kForward;
  }
  [[nodiscard]] int axis(std::size_t op, int a) const { return offset_[op] + a; }

  int root(int a) {
    while (parent_[static_cast<std::size_t>(a)] != a) {
      a = parent_[static_cast<std::size_t>(a)] =
          parent_[static_cast<std::size_t>(parent_[static_cast<std::size_t>(a)])];
    }
    return a;
  }
  AxisMeaning& at(int a) { return meaning_[static_cast<std::size_t>(root(a))]; }

  /// Two descriptions of one dimension are joined axis by axis, or at their most major axes when
  /// one is finer: a cut of the dimension is a cut of its most major axis.
  void join_dimensions() {
    std::unordered_map<std::int32_t, std::vector<std::vector<int>>> known;
    const auto meet = [&](ValueId value, const ops::DimAxes& dims, std::size_t op) {
      auto& mine = known[value.value];
      mine.resize(dims.size());
      for (std::size_t d = 0; d < dims.size(); ++d) {
        if (mine[d].empty()) {
          for (const int a : dims[d]) {
            mine[d].push_back(axis(op, a));
          }
          continue;
        }
        const std::size_t common = mine[d].size() == dims[d].size()
                                       ? dims[d].size()
                                       : std::min<std::size_t>(dims[d].size(), 1);
        for (std::size_t k = 0; k < common; ++k) {
          parent_[static_cast<std::size_t>(root(axis(op, dims[d][k])))] = root(mine[d][k]);
        }
      }
    };
    for (std::size_t i = 0; i < maps_.size(); ++i) {
      const ir::Op& op = step_.ops()[i];
      for (std::size_t k = 0; k < op.inputs.size(); ++k) {
        meet(op.inputs[k], maps_[i].inputs[k], i);
      }
      for (std::size_t r = 0; r < op.outputs.size(); ++r) {
        meet(op.outputs[r], maps_[i].results[r], i);
      }
    }
  }

  void name(std::size_t op, const std::vector<int>& axes, AxisMeaning meaning) {
    if (!axes.empty() && at(axis(op, axes.front())) == AxisMeaning::kOther) {
      at(axis(op, axes.front())) = meaning;
    }
  }

  /// Dimension `dim` of user inputs; of floating ones the batch only.
  void name_inputs(std::size_t dim, AxisMeaning meaning) {
    for (std::size_t i = 0; i < maps_.size(); ++i) {
      const ir::Op& op = step_.ops()[i];
      for (std::size_t k = 0; k < op.inputs.size(); ++k) {
        const ir::Value& value = step_.value(op.inputs[k]);
        const ops::DimAxes& dims = maps_[i].inputs[k];
        if (value.kind == ValueKind::kInput && dims.size() > dim &&
            (dim == 0 || !ir::is_floating(value.type.dtype))) {
          name(i, dims[dim], meaning);
        }
      }
    }
  }

  /// In a pipeline stage the batch comes in messages, as their first dimension in all but a few
  /// models (what is made of weights alone is sent as well); a wrong name costs a rule of experts
  /// some time, and nothing else.
  void name_received() {
    for (std::size_t i = 0; i < maps_.size(); ++i) {
      if (step_.ops()[i].name == "receive" && !maps_[i].results[0].empty()) {
        name(i, maps_[i].results[0][0], AxisMeaning::kBatch);
      }
    }
  }

  void name_experts() {
    for (std::size_t i = 0; i < maps_.size(); ++i) {
      const ir::Op& op = step_.ops()[i];
      for (std::size_t k = 0; op.name == "einsum" && k < 2; ++k) {
        if (step_.value(op.inputs[k]).kind != ValueKind::kParameter) {
          continue;
        }
        for (const std::vector<int>& dim : maps_[i].inputs[k]) {
          if (maps_[i].axes[static_cast<std::size_t>(dim.empty() ? 0 : dim.front())].role ==
                  ops::AxisRole::kFree &&
              has(maps_[i].inputs[1 - k], dim)) {
            name(i, dim, AxisMeaning::kExpert);
          }
        }
      }
    }
  }

  [[nodiscard]] static bool has(const ops::DimAxes& dims, const std::vector<int>& axes) {
    return !axes.empty() && std::find(dims.begin(), dims.end(), axes) != dims.end();
  }

  void name_attention() {
    for (std::size_t i = 0; i < maps_.size(); ++i) {
      const ir::Op& op = step_.ops()[i];
      if (op.name != "attention") {
        continue;
      }
      const bool heads_last = op.attributes.string("layout") == "bshd";
      name(i, maps_[i].inputs[0][heads_last ? 1 : 2], AxisMeaning::kSequence);
      name(i, maps_[i].inputs[1][heads_last ? 2 : 1], AxisMeaning::kTensor);
    }
  }

  void name_space() {
    for (std::size_t i = 0; i < maps_.size(); ++i) {
      if (step_.ops()[i].name == "convolution") {
        name(i, maps_[i].inputs[0][2], AxisMeaning::kSpace);
      }
    }
  }

  void walk_products() {
    for (std::size_t i = 0; i < maps_.size(); ++i) {
      const ir::Op& op = step_.ops()[i];
      if (op.name != "einsum") {
        continue;
      }
      for (std::size_t k = 0; k < 2; ++k) {
        if (step_.value(op.inputs[k]).kind == ValueKind::kParameter) {
          name_product(i, k);
          break;
        }
      }
    }
  }

  void name_product(std::size_t i, std::size_t weight) {
    const ops::AxisMap& map = maps_[i];
    bool cut = false;
    int widest = -1;
    for (const std::vector<int>& dim : map.inputs[weight]) {
      for (const int a : dim) {
        const auto& described = map.axes[static_cast<std::size_t>(a)];
        if (described.role == ops::AxisRole::kSum) {
          cut = cut || at(axis(i, a)) == AxisMeaning::kTensor;
        } else if (at(axis(i, a)) != AxisMeaning::kExpert &&
                   !whole_[static_cast<std::size_t>(root(axis(i, a)))] &&
                   (widest < 0 ||
                    described.size > map.axes[static_cast<std::size_t>(widest)].size)) {
          widest = a;
        }
      }
    }
    for (const std::vector<int>& dim : map.inputs[weight]) {
      for (const int a : dim) {
        const bool output = map.axes[static_cast<std::size_t>(a)].role != ops::AxisRole::kSum;
        if (at(axis(i, a)) == AxisMeaning::kOther && output == cut) {
          whole_[static_cast<std::size_t>(root(axis(i, a)))] = true;
        }
      }
    }
    if (!cut && widest >= 0) {
      name(i, {widest}, AxisMeaning::kTensor);
    }
  }

  const ir::Graph& step_;
  std::vector<ops::AxisMap> maps_;
  std::vector<int> offset_;
  std::vector<int> parent_;
  std::vector<AxisMeaning> meaning_;
  std::vector<bool> whole_;
};

}  // namespace

std::vector<std::vector<AxisMeaning>> axis_meanings(const ir::Graph& step) {
  return Meanings(step).result();
}

}  // namespace shardplan::problem
