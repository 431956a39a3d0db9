#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>

#include "shardplan/ir/graph.h"

namespace shardplan::ir {
namespace {

using ::testing::HasSubstr;

template <class T>
Data data_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return std::make_shared<const std::vector<std::byte>>(std::move(bytes));
}

Value input(ValueKind kind, std::string name, TensorType type) {
  Value value;
  value.kind = kind;
  value.name = std::move(name);
  value.type = std::move(type);
  return value;
}

/// A graph that uses every feature of the text form.
Graph everything() {
  Graph g;
  g.name = "a \"quoted\"\n\\ name";
  g.microbatches = 4;
  Value weight = input(ValueKind::kParameter, "h.0.w\t\x01", {DType::kFloat32, {2, 3, 4}});
  weight.trainable = true;
  weight.module_shape = {2, 12};
  weight.aliases = {"lm_head.w", "a,\"b\"]"};
  const ValueId w = g.add_value(std::move(weight));
  Value buffer = input(ValueKind::kBuffer, "scale", {DType::kFloat32, {4}});
  buffer.data = data_of<float>({0.1F,
                                -0.0F,
                                std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::quiet_NaN()});
  const ValueId b = g.add_value(std::move(buffer));
  const ValueId x = g.add_value(input(ValueKind::kInput, "x", {DType::kInt64, {8}}));
  Op first;
  first.name = "two";
  first.inputs = {w, b, x, x};
  first.layer = "transformer.h.0";
  first.attributes = {{"equation", std::string("bk,nk->bn")},
                      {"eps", 1e-5},
                      {"whole", 2.0},
                      {"inf", std::numeric_limits<double>::infinity()},
                      {"dim", std::int64_t{-1}},
                      {"least", std::numeric_limits<std::int64_t>::min()},
                      {"causal", true},
                      {"shape", IntList{1, 2}},
                      {"none", IntList{}},
                      {"odd name", false}};
  const OpId two =
      g.add_op(std::move(first), {{DType::kFloat32, {}}, {DType::kFloat32, {2, 3, 4}}});
  g.value(g.op(two).outputs[1]).name = "second \"result\"";
  Value constant = input(ValueKind::kConstant, "", {DType::kBFloat16, {2}});
  constant.data = data_of<std::uint16_t>({0x3f80, 0xffff});
  const ValueId c = g.add_value(std::move(constant));
  Value moment = input(ValueKind::kState, "master", {DType::kFloat64, {2, 3, 4}});
  moment.init_from = w;
  g.add_value(std::move(moment));
  const ValueId acc = g.add_value(input(ValueKind::kAccumulator, "", {DType::kFloat32, {2, 3, 4}}));
  Op second;
  second.name = "odd op\x7f";
  second.inputs = {g.op(two).outputs[0], c};
  second.phase = Phase::kBackward;
  second.source = two;
  g.add_op(std::move(second), {{DType::kBool, {1}}});
  Op third;
  third.name = "sink";
  third.phase = Phase::kUpdate;
  g.add_op(std::move(third), {});
  // Reads an input of the graph that has a later id.
  g.op(two).inputs.push_back(
      g.add_value(input(ValueKind::kInput, "late", {DType::kFloat16, {1, 1}})));
  g.outputs = {g.op(two).outputs[0], w};
  g.writes = {{acc, g.op(two).outputs[1]}, {w, g.op(two).outputs[1]}};
  return g;
}

bool same_data(const Data& a, const Data& b) {
  return (a == nullptr) == (b == nullptr) && (a == nullptr || *a == *b);
}

void expect_equal(const Graph& a, const Graph& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.microbatches, b.microbatches);
  EXPECT_EQ(a.outputs, b.outputs);
  ASSERT_EQ(a.values().size(), b.values().size());
  for (std::size_t i = 0; i < a.values().size(); ++i) {
    const Value& v = a.values()[i];
    const Value& w = b.values()[i];
    EXPECT_TRUE(v.type == w.type && v.name == w.name && v.kind == w.kind &&
                v.producer == w.producer && v.result_index == w.result_index &&
                v.trainable == w.trainable && v.module_shape == w.module_shape &&
                v.aliases == w.aliases && v.init_from == w.init_from && same_data(v.data, w.data))
        << "value " << i;
  }
  ASSERT_EQ(a.ops().size(), b.ops().size());
  for (std::size_t i = 0; i < a.ops().size(); ++i) {
    const Op& p = a.ops()[i];
    const Op& q = b.ops()[i];
    EXPECT_TRUE(p.name == q.name && p.inputs == q.inputs && p.outputs == q.outputs &&
                p.attributes == q.attributes && p.layer == q.layer && p.phase == q.phase &&
                p.source == q.source)
        << "op " << i;
  }
  ASSERT_EQ(a.writes.size(), b.writes.size());
  for (std::size_t i = 0; i < a.writes.size(); ++i) {
    EXPECT_EQ(a.writes[i].target, b.writes[i].target);
    EXPECT_EQ(a.writes[i].value, b.writes[i].value);
  }
}

TEST(TextForm, RoundTripsEveryFeature) {
  const Graph graph = everything();
  ASSERT_TRUE(verify(graph)) << verify(graph).error().text();
  const std::string text = print(graph);
  const Result<Graph> parsed = parse(text);
  ASSERT_TRUE(parsed) << parsed.error().text() << "\n" << text;
  expect_equal(graph, *parsed);
  EXPECT_EQ(print(*parsed), text);
  EXPECT_EQ(structural_hash(*parsed), structural_hash(graph));
}

TEST(TextForm, PrintsWhatThePageShows) {
  const char* const text =
      "graph \"two layers\" microbatches=1\n"
      "%0 = parameter \"fc.weight\" f32[8,4] trainable aliases=[\"head.weight\"]\n"
      "%1 = input \"x\" f32[2,4]\n"
      "%2 = einsum(%1, %0) {equation=\"bk,nk->bn\"} : f32[2,8] layer=\"fc\"\n"
      "%3 = sum(%2) {dims=[0,1], keepdim=false} : f32[]\n"
      "output %3\n";
  const Result<Graph> graph = parse(text);
  ASSERT_TRUE(graph) << graph.error().text();
  EXPECT_EQ(print(*graph), text);
  EXPECT_EQ(graph->parameter_count(), 32);
  EXPECT_EQ(graph->find_input("x"), ValueId{1});
  EXPECT_FALSE(graph->find_input("y").valid());
}

TEST(TextForm, IgnoresCommentsBlankLinesAndCarriageReturns) {
  const Result<Graph> graph =
      parse("// a comment\r\n\r\n  graph \"g\" // and one here\r\n%0=input \"//\" f32[ 1 , 2 ]");
  ASSERT_TRUE(graph) << graph.error().text();
  EXPECT_EQ(graph->value(ValueId{0}).name, "//");
}

TEST(TextForm, ElidesLargeData) {
  Graph g;
  Value constant = input(ValueKind::kConstant, "c", {DType::kFloat32, {17}});
  constant.data = data_of(std::vector<float>(17, 1.0F));
  g.add_value(std::move(constant));
  Value weight = input(ValueKind::kParameter, "w", {DType::kFloat32, {17}});
  weight.data = data_of(std::vector<float>(17, 1.0F));
  g.add_value(std::move(weight));
  const Result<Graph> parsed = parse(print(g));
  ASSERT_TRUE(parsed) << parsed.error().text();
  EXPECT_EQ(*parsed->value(ValueId{0}).data, std::vector<std::byte>(68));
  EXPECT_EQ(parsed->value(ValueId{1}).data, nullptr);
}

TEST(TextForm, HashSeesEachPart) {
  const Graph base = everything();
  std::vector<Graph> variants(8, base);
  variants[0].name = "b";
  variants[1].op(OpId{0}).attributes.set("eps", 1e-6);
  variants[2].op(OpId{0}).layer = "transformer.h.1";
  variants[3].value(ValueId{0}).type.shape = {2, 4, 3};
  variants[4].value(ValueId{0}).aliases.pop_back();
  variants[5].outputs.pop_back();
  variants[6].writes.pop_back();
  variants[7].op(OpId{0}).inputs[0] = ValueId{1};
  for (std::size_t i = 0; i < variants.size(); ++i) {
    EXPECT_NE(structural_hash(variants[i]), structural_hash(base)) << i;
  }
  Graph other_weights = base;
  other_weights.value(ValueId{1}).data = data_of<float>({1, 2, 3, 4});
  EXPECT_EQ(structural_hash(other_weights), structural_hash(base));
  EXPECT_EQ(structural_hash(base).size(), 16U);
}

struct BadText {
  const char* text;
  const char* message;
};

TEST(TextForm, ErrorsNameLineAndReason) {
  const BadText cases[] = {
      {"", "line 1: the first statement"},
      {"%0 = input \"x\" f32[1]", "line 1, column 1: the first statement"},
      {"graph \"g", "line 1, column 9: a string has no closing quote"},
      {"graph \"g\" microbatches=0", "must be at least 1, not 0"},
      {"graph \"g\"\n%1 = input \"x\" f32[1]",
       "line 2, column 3: values are numbered in order: expected %0"},
      {"graph \"g\"\n%0 = input \"x\" f33[1]", "unknown element type 'f33'"},
      {"graph \"g\"\n%0 = input \"x\" f32[0]", "dimensions must be at least 1"},
      {"graph \"g\"\n%0 = input \"x\" f32[-1]", "dimensions must be at least 1"},
      {"graph \"g\"\n%0 = input \"x\" f32[4294967296,4294967296]", "fewer than 2^63 bytes"},
      {"graph \"g\"\n%0 = input \"x\" f32[99999999999999999999]", "does not fit 64 bits"},
      {"graph \"g\"\n%0 = inputs \"x\" f32[1]", "expected '(' after the name of an op"},
      {"graph \"g\"\n%0 = input \"x\" f32[1] frozen", "expected trainable, module_shape="},
      {"graph \"g\"\n%0 = input \"x\" f32[1] trainable",
       "line 2: value %0 \"x\": only a parameter"},
      {"graph \"g\"\n%0 = constant \"x\" f32[2] data=[1]", "needs 8 bytes of data, not 4"},
      {"graph \"g\"\n%0 = constant \"x\" i32[1] data=[1.5]", "'1.5' is no i32 element"},
      {"graph \"g\"\n%0 = constant \"x\" bf16[1] data=[0x12345]", "'0x12345' is no bf16 element"},
      {"graph \"g\"\n%0 = constant \"x\" f32[1000000000000] data=elided", "more than 256 MiB"},
      {"graph \"g\"\n%0 = relu(%1) : f32[1]", "line 2: operand %1 does not exist"},
      {"graph \"g\"\n%0 = relu(%0) : f32[1]", "line 2: op #0 'relu': operand %0 is used before"},
      {"graph \"g\"\n%0 = relu(%99999999999) : f32[1]", "%99999999999 is not a possible number"},
      {"graph \"g\"\n%0 = relu() {a=1, a=2} : f32[1]", "an attribute is given twice"},
      {"graph \"g\"\n%0 = relu() {a=maybe} : f32[1]", "'maybe' is no attribute value"},
      {"graph \"g\"\n%0 = relu() {a=[[1]]} : f32[1]", "expected an integer"},
      {"graph \"g\"\n%0 = relu() {a=\"\\q\"} : f32[1]", "unknown escape"},
      {"graph \"g\"\n%0, %1 = relu() : f32[1]", "expected ','"},
      {"graph \"g\"\n%0 = relu() : f32[1], f32[1]", "expected names="},
      {"graph \"g\"\n%0 = relu() : f32[1] phase=sideways", "a phase is forward"},
      {"graph \"g\"\n%0 = relu() : f32[1] source=#5", "a source is an earlier op"},
      {"graph \"g\"\noutput %0", "output %0 does not exist"},
      {"graph \"g\"\n%0 = input \"x\" f32[1]\noutput %0", "must be a floating-point scalar"},
      {"graph \"g\"\nwrite %0 <- %1", "no such value"},
      {"graph \"g\"\n%0 = input \"x\" f32[1] f32", "expected trainable"},
  };
  for (const BadText& bad : cases) {
    const Result<Graph> graph = parse(bad.text);
    ASSERT_FALSE(graph) << bad.text;
    EXPECT_THAT(graph.error().text(), HasSubstr(bad.message)) << bad.text;
    EXPECT_THAT(graph.error().location, HasSubstr("line ")) << bad.text;
  }
}

// Every damaged text either parses into a graph that verifies or gives an error with a line.
TEST(TextForm, SurvivesDamagedText) {
  const std::string text = print(everything());
  std::mt19937_64 random(20240607);
  const std::string alphabet = "%\"\\[]{}(),=#0123456789abxe.-\n \t\x80";
  for (int round = 0; round < 4000; ++round) {
    std::string damaged = text;
    const auto edits = 1 + random() % 4;
    for (std::uint64_t e = 0; e < edits; ++e) {
      const std::size_t at = random() % damaged.size();
      const char c = alphabet[random() % alphabet.size()];
      if (random() % 3 == 0) {
        damaged.erase(at, 1 + random() % 8);
      } else if (random() % 2 == 0) {
        damaged.insert(at, 1, c);
      } else {
        damaged[at] = c;
      }
    }
    const Result<Graph> graph = parse(damaged);
    if (graph) {
      EXPECT_TRUE(verify(*graph));
      EXPECT_TRUE(parse(print(*graph)));
    } else {
      EXPECT_THAT(graph.error().location, HasSubstr("line "));
    }
  }
  for (std::size_t length = 0; length < text.size(); ++length) {
    (void)parse(std::string_view(text).substr(0, length));
  }
}

TEST(TextForm, SurvivesDeepAndLongText) {
  EXPECT_FALSE(parse("graph \"g\"\n%0 = relu() {a=" + std::string(1 << 20, '[') + "} : f32[1]"));
  std::string shape = "graph \"g\"\n%0 = input \"x\" f32[1";
  for (int i = 0; i < 100000; ++i) {
    shape += ",1";
  }
  const Result<Graph> graph = parse(shape + "]");
  ASSERT_FALSE(graph);
  EXPECT_LT(graph.error().text().size(), 300U);
}

}  // namespace
}  // namespace shardplan::ir
