#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "shardplan/ir/graph.h"

namespace shardplan::ir {
namespace {

using ::testing::HasSubstr;

Graph valid_graph() {
  Result<Graph> graph = parse(R"(graph "g"
%0 = parameter "w" f32[2,3] trainable
%1 = input "x" f32[2,3]
%2 = mul(%0, %1) : f32[2,3] layer="block.0"
%3 = sum(%2) {dims=[0,1]} : f32[]
%4 = accumulator "" f32[2,3]
output %3
write %4 <- %2
)");
  EXPECT_TRUE(graph);
  return std::move(graph).value();
}

void expect_error(const Graph& graph, const char* message) {
  const Status status = verify(graph);
  ASSERT_FALSE(status) << message;
  EXPECT_THAT(status.error().text(), HasSubstr(message));
}

TEST(Verify, AcceptsAValidGraph) {
  EXPECT_TRUE(verify(valid_graph()));
}

TEST(Verify, NamesOpAndLayer) {
  Graph g = valid_graph();
  g.op(OpId{0}).inputs[1] = ValueId{3};
  expect_error(g, "op #0 'mul' of layer block.0: operand %3 is used before it is defined");
  g.op(OpId{0}).inputs[1] = ValueId{17};
  expect_error(g, "operand %17 does not exist");
  g.op(OpId{0}).inputs[1] = ValueId{};
  expect_error(g, "operand %-1 does not exist");
}

TEST(Verify, ResultsHaveOneProducer) {
  Graph g = valid_graph();
  g.op(OpId{1}).outputs[0] = ValueId{2};
  expect_error(g, "result %2 has another producer");
  g = valid_graph();
  g.op(OpId{1}).outputs.clear();
  expect_error(g, "no op has this value as a result");
  g = valid_graph();
  g.value(ValueId{1}).producer = OpId{0};
  expect_error(g, "exactly the results of ops have a producer");
}

TEST(Verify, FieldsFitTheKind) {
  Graph g = valid_graph();
  g.value(ValueId{1}).aliases = {"y"};
  expect_error(g, "only parameters and buffers have a module shape or aliases");
  g = valid_graph();
  g.value(ValueId{0}).module_shape = {5};
  expect_error(g, "module shape f32[5] and type f32[2,3] differ");
  g = valid_graph();
  g.value(ValueId{0}).type.dtype = DType::kInt64;
  expect_error(g, "a trainable parameter must be floating point");
  g = valid_graph();
  g.value(ValueId{4}).init_from = ValueId{0};
  expect_error(g, "init_from is for a state");
  g = valid_graph();
  g.value(ValueId{1}).kind = ValueKind::kConstant;
  expect_error(g, "a constant must hold data");
  g = valid_graph();
  g.value(ValueId{1}).data = std::make_shared<const std::vector<std::byte>>(24);
  expect_error(g, "only constants, parameters, buffers and states hold data");
  g = valid_graph();
  g.value(ValueId{0}).data = std::make_shared<const std::vector<std::byte>>(23);
  expect_error(g, "f32[2,3] needs 24 bytes of data, not 23");
}

TEST(Verify, NamesAreUnique) {
  Graph g = valid_graph();
  g.value(ValueId{1}).name = "w";
  expect_error(g, "the name is taken by another value");
  g = valid_graph();
  g.value(ValueId{1}).name.clear();
  expect_error(g, "need a name");
  g = valid_graph();
  g.value(ValueId{0}).aliases = {"w"};
  expect_error(g, "the alias \"w\" is empty or taken");
}

TEST(Verify, WritesMatch) {
  Graph g = valid_graph();
  g.writes.push_back(g.writes[0]);
  expect_error(g, "is written twice");
  g = valid_graph();
  g.writes[0].value = ValueId{3};
  expect_error(g, "is f32[2,3] but the value written to it is f32[]");
  g = valid_graph();
  g.writes[0].target = ValueId{1};
  expect_error(g, "only parameters, buffers, states and accumulators can be written");
}

TEST(Verify, SizesCannotOverflow) {
  Graph g = valid_graph();
  g.value(ValueId{1}).type.shape = {std::numeric_limits<std::int64_t>::max(), 2};
  expect_error(g, "fewer than 2^63 bytes");
  g = valid_graph();
  g.value(ValueId{1}).type.shape = {std::int64_t{1} << 59};
  expect_error(g, "more than 2^60 bytes together");
}

TEST(Types, SizesAndText) {
  EXPECT_EQ(to_string(TensorType{}), "f32[]");
  EXPECT_EQ(to_string(TensorType{DType::kBFloat16, {8, 1024}}), "bf16[8,1024]");
  EXPECT_EQ((TensorType{DType::kBFloat16, {8, 1024}}.bytes()), 16384);
  EXPECT_EQ((TensorType{DType::kBool, {}}.bytes()), 1);
  EXPECT_FALSE(parse_dtype("float").has_value());
  for (const DType dtype : {DType::kBool,
                            DType::kUInt8,
                            DType::kInt32,
                            DType::kInt64,
                            DType::kBFloat16,
                            DType::kFloat16,
                            DType::kFloat32,
                            DType::kFloat64}) {
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
  }
}

TEST(Attributes, SortedWithTypedGetters) {
  Attributes a{{"z", std::int64_t{3}}, {"a", 1.5}};
  a.set("m", true);
  a.set("z", std::int64_t{4});
  EXPECT_EQ(a.entries().size(), 3U);
  EXPECT_EQ(a.entries()[0].first, "a");
  EXPECT_EQ(a.integer("z"), 4);
  EXPECT_EQ(a.number("z"), 4.0);
  EXPECT_EQ(a.number_or("a", 0), 1.5);
  EXPECT_EQ(a.number_or("b", 7.5), 7.5);
  EXPECT_TRUE(a.flag_or("m", false));
  EXPECT_EQ(a.integer_or("b", 9), 9);
  EXPECT_EQ(a, (Attributes{{"a", 1.5}, {"m", true}, {"z", std::int64_t{4}}}));
}

TEST(Graph, UsersAreListedOnceForEachOp) {
  Graph g = valid_graph();
  g.op(OpId{0}).inputs = {ValueId{0}, ValueId{0}};
  const auto users = g.users();
  EXPECT_EQ(users[0], std::vector<OpId>{OpId{0}});
  EXPECT_TRUE(users[1].empty());
  EXPECT_EQ(users[2], std::vector<OpId>{OpId{1}});
}

}  // namespace
}  // namespace shardplan::ir
