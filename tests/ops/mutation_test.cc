// Random changes of valid ops: inference must refuse them with a message, or accept them so that
// everything else of the definition works. Nothing may abort: graphs come from files of users.

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ops_testing.h"
#include "samples.h"

namespace shardplan::ops {
namespace {

using Random = std::mt19937;

std::size_t pick(Random& random, std::size_t count) {
  return static_cast<std::size_t>(random()) % count;
}

std::int64_t odd_integer(Random& random) {
  const std::vector<std::int64_t> values{0,
                                         1,
                                         2,
                                         3,
                                         -1,
                                         64,
                                         std::int64_t{1} << 40,
                                         std::numeric_limits<std::int64_t>::max(),
                                         std::numeric_limits<std::int64_t>::min()};
  return values[pick(random, values.size())];
}

void mutate_type(Random& random, ir::TensorType& type) {
  const std::vector<ir::DType> dtypes{ir::DType::kBool,
                                      ir::DType::kInt32,
                                      ir::DType::kInt64,
                                      ir::DType::kBFloat16,
                                      ir::DType::kFloat32,
                                      ir::DType::kFloat64};
  const std::vector<std::int64_t> sizes{1, 2, 3, 4, 6, 12};
  switch (pick(random, 4)) {
    case 0:
      type.dtype = dtypes[pick(random, dtypes.size())];
      break;
    case 1:
      type.shape.push_back(sizes[pick(random, sizes.size())]);
      break;
    case 2:
      if (!type.shape.empty()) {
        type.shape.pop_back();
      }
      break;
    default:
      if (!type.shape.empty()) {
        type.shape[pick(random, type.shape.size())] = sizes[pick(random, sizes.size())];
      }
  }
}

ir::Attribute odd_attribute(Random& random) {
  switch (pick(random, 5)) {
    case 0:
      return random() % 2 == 0;
    case 1:
      return odd_integer(random);
    case 2:
      return static_cast<double>(odd_integer(random)) / 2;
    case 3:
      return std::vector<std::string>{
          "", "f32", "ab,bc->ac", ",->", "a,a->a", "bshd"}[pick(random, 6)];
    default: {
      ir::IntList list;
      for (std::size_t i = pick(random, 4); i > 0; --i) {
        list.push_back(odd_integer(random));
      }
      return list;
    }
  }
}

void mutate_attributes(Random& random, ir::Attributes& attributes) {
  if (attributes.entries().empty() || pick(random, 6) == 0) {
    attributes.set("unknown", odd_attribute(random));
    return;
  }
  const auto [name, value] = attributes.entries()[pick(random, attributes.entries().size())];
  if (const auto* const list = std::get_if<ir::IntList>(&value);
      list != nullptr && !list->empty()) {
    ir::IntList changed = *list;
    changed[pick(random, changed.size())] = odd_integer(random);
    attributes.set(name, std::move(changed));
  } else {
    attributes.set(name, odd_attribute(random));
  }
}

void mutate(Random& random, Sample& sample) {
  switch (pick(random, 4)) {
    case 0:
      mutate_attributes(random, sample.attributes);
      break;
    case 1:
      if (!sample.inputs.empty() && pick(random, 2) == 0) {
        sample.inputs.pop_back();
      } else {
        sample.inputs.push_back(f32({4, 6}));
      }
      break;
    default:
      if (!sample.inputs.empty()) {
        mutate_type(random, sample.inputs[pick(random, sample.inputs.size())]);
      }
  }
}

/// Runs every function of the definition on an op that append accepts.
bool exercise(const Sample& sample) {
  ir::Graph graph;
  ir::Op op;
  op.name = sample.op;
  op.attributes = sample.attributes;
  for (std::size_t i = 0; i < sample.inputs.size(); ++i) {
    op.inputs.push_back(graph.add_value({.type = sample.inputs[i],
                                         .name = "x" + std::to_string(i),
                                         .kind = ir::ValueKind::kInput}));
  }
  const Result<ir::OpId> id = append(graph, op);
  if (!id) {
    EXPECT_FALSE(id.error().message.empty());
    return false;
  }
  const OpDef& def = get(sample.op);
  const OpTypes types = op_types(graph, *id);
  const OpView view{types.inputs, types.results, graph.op(*id).attributes};
  EXPECT_FALSE(to_string(def.axes(view)).empty() && !types.inputs.empty());
  EXPECT_GE(flops(graph, *id), 0);
  EXPECT_GE(def.workspace == nullptr ? 0 : def.workspace(view), 0);
  if (def.gradient != nullptr && ir::is_floating(types.results[0].dtype)) {
    std::vector<ir::ValueId> gradients(types.results.size());
    gradients[0] =
        graph.add_value({.type = types.results[0], .name = "g", .kind = ir::ValueKind::kInput});
    std::vector<bool> needed;
    for (const ir::TensorType& type : types.inputs) {
      needed.push_back(ir::is_floating(type.dtype));
    }
    GradientBuilder builder(graph, *id, gradients, needed);
    def.gradient(builder);
  }
  const Status status = ops::verify(graph);
  EXPECT_TRUE(status.has_value()) << status.error().text();
  return true;
}

TEST(Mutations, AreRefusedWithAMessageOrWorkInFull) {
  Random random(20240607);
  int accepted = 0;
  int refused = 0;
  for (int round = 0; round < 200; ++round) {
    for (Sample sample : samples()) {
      for (std::size_t i = 1 + pick(random, 2); i > 0; --i) {
        mutate(random, sample);
      }
      SCOPED_TRACE(sample.op);
      ++(exercise(sample) ? accepted : refused);
    }
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace shardplan::ops
