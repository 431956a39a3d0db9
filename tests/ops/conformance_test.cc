// What every op of the registry must satisfy, on sample instances of each.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops_testing.h"
#include "samples.h"

namespace shardplan::ops {
namespace {

Types infer(const Sample& sample) {
  Result<Types> results = get(sample.op).infer(sample.inputs, sample.attributes);
  EXPECT_TRUE(results.has_value()) << sample.op << ": " << results.error().text();
  return *std::move(results);
}

TEST(EveryOp, HasASample) {
  std::set<std::string> seen;
  for (const Sample& sample : samples()) {
    seen.insert(sample.op);
  }
  for (const OpDef* const def : all()) {
    EXPECT_EQ(seen.count(std::string(def->name)), 1U) << def->name;
  }
}

/// Each dimension is the product of its axes, or has none.
void expect_fits(const AxisMap& map, const std::vector<DimAxes>& tensors, const Types& types) {
  ASSERT_EQ(tensors.size(), types.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    ASSERT_EQ(tensors[i].size(), types[i].shape.size());
    std::set<int> seen;
    for (std::size_t d = 0; d < tensors[i].size(); ++d) {
      std::int64_t product = 1;
      for (const int a : tensors[i][d]) {
        product *= map.axes[static_cast<std::size_t>(a)].size;
        EXPECT_TRUE(seen.insert(a).second) << "an axis twice in one tensor";
      }
      // Where a window slides, a dimension has a size of its own.
      const bool slides = std::any_of(map.halos.begin(), map.halos.end(), [&](const Halo& halo) {
        return tensors[i][d] == std::vector<int>{halo.axis};
      });
      EXPECT_TRUE(tensors[i][d].empty() || slides || product == types[i].shape[d]);
    }
  }
}

bool occurs(const std::vector<DimAxes>& tensors, int axis) {
  for (const DimAxes& dims : tensors) {
    for (const std::vector<int>& dim : dims) {
      if (std::find(dim.begin(), dim.end(), axis) != dim.end()) {
        return true;
      }
    }
  }
  return false;
}

TEST(EveryOp, HasAnAxisMapThatFitsItsTypes) {
  for (const Sample& sample : samples()) {
    SCOPED_TRACE(sample.op + " " + axes_of(sample));
    const Types results = infer(sample);
    const AxisMap map = get(sample.op).axes(OpView{sample.inputs, results, sample.attributes});
    expect_fits(map, map.inputs, sample.inputs);
    expect_fits(map, map.results, results);
    std::set<std::string> names;
    for (std::size_t a = 0; a < map.axes.size(); ++a) {
      const Axis& axis = map.axes[a];
      EXPECT_GT(axis.size, 1);
      EXPECT_TRUE(names.insert(axis.name).second);
      EXPECT_TRUE(occurs(map.inputs, static_cast<int>(a)) ||
                  occurs(map.results, static_cast<int>(a)));
      EXPECT_TRUE(axis.role != AxisRole::kFree || map.results.empty() ||
                  occurs(map.results, static_cast<int>(a)));
      EXPECT_TRUE(axis.role != AxisRole::kLookup || axis.positional);
    }
    for (const PartialRule& rule : map.partials) {
      for (const int i : rule.inputs) {
        EXPECT_LT(static_cast<std::size_t>(i), sample.inputs.size());
      }
      for (const int r : rule.results) {
        EXPECT_LT(static_cast<std::size_t>(r), results.size());
      }
    }
  }
}

TEST(EveryOp, OverwritesOperandsOfTheSameType) {
  for (const Sample& sample : samples()) {
    const OpDef& def = get(sample.op);
    const Types results = infer(sample);
    for (std::size_t r = 0; r < results.size() && r < def.in_place.size(); ++r) {
      EXPECT_EQ(sample.inputs[static_cast<std::size_t>(def.in_place[r])], results[r]) << sample.op;
    }
    EXPECT_GE(flops_of(sample), 0);
    if (def.workspace != nullptr) {
      EXPECT_GE(def.workspace(OpView{sample.inputs, results, sample.attributes}), 0) << sample.op;
    }
  }
}

/// The op on inputs, and gradients of all its floating operands for gradients of its first result.
TEST(EveryOp, GivesGradientsOfTheTypesOfItsOperands) {
  for (const Sample& sample : samples()) {
    const OpDef& def = get(sample.op);
    const bool from_floating =
        std::any_of(sample.inputs.begin(), sample.inputs.end(), [](const ir::TensorType& type) {
          return ir::is_floating(type.dtype);
        });
    if (def.gradient == nullptr || !from_floating || !ir::is_floating(infer(sample)[0].dtype)) {
      continue;
    }
    SCOPED_TRACE(sample.op + " " + axes_of(sample));
    ir::Graph graph;
    ir::Op op;
    op.name = sample.op;
    op.attributes = sample.attributes;
    std::vector<bool> needed;
    for (std::size_t i = 0; i < sample.inputs.size(); ++i) {
      op.inputs.push_back(graph.add_value({.type = sample.inputs[i],
                                           .name = "x" + std::to_string(i),
                                           .kind = ir::ValueKind::kInput}));
      const bool mask = sample.op == "attention" && i == 3;
      needed.push_back(ir::is_floating(sample.inputs[i].dtype) && !mask);
    }
    const ir::OpId id = append(graph, op).value();
    std::vector<ir::ValueId> gradients(graph.op(id).outputs.size());
    gradients[0] = graph.add_value(
        {.type = graph.type(graph.op(id).outputs[0]), .name = "g", .kind = ir::ValueKind::kInput});
    GradientBuilder builder(graph, id, gradients, needed);
    def.gradient(builder);
    EXPECT_EQ(builder.refusal(), "");
    const Status status = ops::verify(graph);
    EXPECT_TRUE(status.has_value()) << status.error().text();
    bool any = false;
    for (std::size_t i = 0; i < needed.size(); ++i) {
      const ir::ValueId gradient = builder.input_gradients()[i];
      any = any || gradient.valid();
      if (gradient.valid()) {
        EXPECT_EQ(graph.type(gradient), sample.inputs[i]) << "operand " << i;
      }
    }
    const std::set<std::string> flat{"sign", "floor", "ceil", "round", "trunc"};
    const bool constant = flat.contains(sample.op) || (sample.op == "pow_scalar" &&
                                                       sample.attributes.number("exponent") == 0.0);
    EXPECT_EQ(any, !constant);
    for (std::size_t i = 1; i < graph.ops().size(); ++i) {
      EXPECT_EQ(graph.ops()[i].source, id);
      EXPECT_EQ(graph.ops()[i].phase, ir::Phase::kBackward);
    }
  }
}

}  // namespace
}  // namespace shardplan::ops
