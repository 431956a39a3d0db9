#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "onnx_testing.h"
#include "shardplan/frontends/frontends.h"
#include "shardplan/ops/op.h"

namespace shardplan::frontends {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// x [batch, 8] -> Gemm -> Relu -> Gemm -> logits [batch, 4].
OnnxModel mlp() {
  OnnxModel model;
  model.input("x", {0, 8});
  model.floats("w1", {16, 8}, 0.5F);
  model.floats("b1", {16}, 0.25F);
  model.floats("w2", {16, 4}, 0.125F);
  auto& first = model.node("Gemm", {"x", "w1", "b1"}, {"h"});
  first.set_name("/net/net.0/Gemm");
  OnnxModel::attribute(first, "transB", 1);
  model.node("Relu", {"h"}, {"r"});
  model.node("MatMul", {"r", "w2"}, {"logits"});
  model.output("logits");
  return model;
}

Result<ir::Graph> load(const OnnxModel& model, const LoadOptions& options = {}) {
  const ModelFolder folder;
  return load_model(folder.write(model.bytes()), options);
}

Result<ir::Graph> outputs(const OnnxModel& model, const LoadOptions& options = {}) {
  const ModelFolder folder;
  return read_onnx_outputs(folder.write(model.bytes()), options);
}

std::string error_of(const OnnxModel& model, const LoadOptions& options = {}) {
  const Result<ir::Graph> graph = load(model, options);
  return graph ? "no error" : graph.error().text();
}

TEST(Onnx, MlpBecomesATrainableGraph) {
  const Result<ir::Graph> graph = load(
      mlp(), {.weights = true, .dims = {{"batch", 6}}, .loss = "cross_entropy", .target = "label"});
  ASSERT_TRUE(graph) << graph.error().text();
  EXPECT_TRUE(ops::verify(*graph));
  const ir::Value& weight = graph->value(graph->find_input("w1"));
  EXPECT_EQ(weight.kind, ir::ValueKind::kParameter);
  EXPECT_TRUE(weight.trainable);
  ASSERT_NE(weight.data, nullptr);
  float first = 0;
  std::memcpy(&first, weight.data->data(), sizeof first);
  EXPECT_EQ(first, 0.5F);
  EXPECT_EQ(to_string(graph->type(graph->find_input("x"))), "f32[6,8]");
  EXPECT_EQ(to_string(graph->type(graph->find_input("label"))), "i64[6]");
  EXPECT_EQ(to_string(graph->type(graph->outputs.at(0))), "f32[]");
  EXPECT_EQ(graph->ops().front().layer, "net.net.0");
}

TEST(Onnx, AnotherSizeIsAnotherGraph) {
  const auto hash = [](std::int64_t batch) {
    const Result<ir::Graph> graph = load(mlp(), {.dims = {{"batch", batch}}, .loss = "mse"});
    return graph ? ir::structural_hash(*graph) : graph.error().text();
  };
  EXPECT_EQ(hash(6), hash(6));
  EXPECT_NE(hash(6), hash(8));
}

TEST(Onnx, EveryLossIsAScalar) {
  for (const std::string loss : {"cross_entropy",
                                 "cross_entropy:dim=1,ignore=0,smoothing=0.1",
                                 "nll",
                                 "mse",
                                 "l1",
                                 "bce",
                                 "bce_with_logits:output=logits"}) {
    const Result<ir::Graph> graph = load(mlp(), {.dims = {{"batch", 6}}, .loss = loss});
    ASSERT_TRUE(graph) << loss << ": " << graph.error().text();
    EXPECT_EQ(to_string(graph->type(graph->outputs.at(0))), "f32[]") << loss;
  }
}

TEST(Onnx, ShapesAreComputedAwayWhileReading) {
  OnnxModel model;
  model.input("x", {0, 3, 8});
  model.integers("two", {2});
  model.integers("one", {1});
  model.integers("minus", {-1});
  model.node("Shape", {"x"}, {"shape"});
  auto& gather = model.node("Gather", {"shape", "one"}, {"rows"});
  OnnxModel::attribute(gather, "axis", 0);
  model.node("Mul", {"rows", "two"}, {"double"});
  auto& concat = model.node("Concat", {"minus", "double"}, {"wanted"});
  OnnxModel::attribute(concat, "axis", 0);
  model.node("Reshape", {"x", "wanted"}, {"y"});
  model.output("y");
  const Result<ir::Graph> graph = outputs(model, {.dims = {{"batch", 4}}});
  ASSERT_TRUE(graph) << graph.error().text();
  EXPECT_EQ(to_string(graph->type(graph->outputs.at(1))), "f32[16,6]");
  EXPECT_EQ(graph->ops().size(), 2U);
}

bool trained(const Result<ir::Graph>& graph, const std::string& name) {
  const ir::ValueId id = graph ? graph->find_input(name) : ir::ValueId{};
  return id.valid() && graph->value(id).kind == ir::ValueKind::kParameter &&
         graph->value(id).trainable;
}

TEST(Onnx, OnlyWeightsAreTrained) {
  OnnxModel model = mlp();
  model.floats("mask", {4}, -3e38F);
  model.floats("low", {}, -1.0F);
  model.floats("table", {4}, 0.5F);
  model.node("Add", {"logits", "mask"}, {"masked"});
  model.node("Mul", {"masked", "table"}, {"scaled"});
  model.node("Clip", {"scaled", "low"}, {"y"});
  model.graph().clear_output();
  model.output("y");
  const LoadOptions options{.dims = {{"batch", 6}}, .loss = "mse"};
  const Result<ir::Graph> plain = load(model, options);
  ASSERT_TRUE(plain) << plain.error().text();
  EXPECT_TRUE(trained(plain, "w1"));
  EXPECT_TRUE(trained(plain, "table"));
  EXPECT_FALSE(trained(plain, "mask"));
  EXPECT_FALSE(trained(plain, "low"));

  // Where the exporter tells the parameters, others count only inside products.
  ::onnx::StringStringEntryProto entry;
  entry.set_key("pkg.torch.export.ExportedProgram.graph_signature");
  entry.set_value("p_b1: PARAMETER target='b1'\nb_w2: BUFFER target='w2' persistent=True\n");
  constexpr int kMetadata = 16;
  ::onnx::GraphProto& graph = model.graph();
  graph.GetReflection()->MutableUnknownFields(&graph)->AddLengthDelimited(
      kMetadata, entry.SerializeAsString());
  const Result<ir::Graph> told = load(model, options);
  ASSERT_TRUE(told) << told.error().text();
  EXPECT_TRUE(trained(told, "b1"));
  EXPECT_TRUE(trained(told, "w1"));
  EXPECT_FALSE(trained(told, "w2"));
  EXPECT_FALSE(trained(told, "table"));
}

TEST(Onnx, FunctionsAreInlined) {
  OnnxModel model;
  model.input("x", {2, 8});
  model.node("Twice", {"x"}, {"y"}).set_domain("own");
  model.output("y");
  auto& function = *model.proto().add_functions();
  function.set_name("Twice");
  function.set_domain("own");
  function.add_input("a");
  function.add_output("b");
  auto& node = *function.add_node();
  node.set_op_type("Add");
  node.add_input("a");
  node.add_input("a");
  node.add_output("b");
  const Result<ir::Graph> graph = outputs(model);
  ASSERT_TRUE(graph) << graph.error().text();
  EXPECT_EQ(graph->ops().at(0).name, "add");

  node.set_op_type("Twice");
  node.set_domain("own");
  node.mutable_input()->RemoveLast();
  EXPECT_THAT(error_of(model), HasSubstr("function Twice calls itself"));
}

// Mistakes ----------------------------------------------------------------------------------------

TEST(OnnxErrors, OpenDimensionsAreListedAndUnknownOnesRefused) {
  OnnxModel model = mlp();
  auto* const dim = model.graph().mutable_input(0)->mutable_type()->mutable_tensor_type();
  dim->mutable_shape()->mutable_dim(1)->clear_dim_value();
  EXPECT_THAT(error_of(model), HasSubstr("leaves the dimensions batch, x.1 open"));
  EXPECT_THAT(error_of(mlp(), {.dims = {{"batch", 2}, {"bach", 3}}}),
              HasSubstr("did you mean 'batch'?"));
  EXPECT_THAT(error_of(mlp(), {.dims = {{"batch", 2}}}), HasSubstr("no scalar loss"));
}

TEST(OnnxErrors, UnsupportedOperatorsAreListedTogether) {
  OnnxModel model = mlp();
  model.node("Loop", {"logits"}, {"a"});
  model.node("StringNormalizer", {"a"}, {"b"});
  model.node("Fancy", {"b"}, {"c"}).set_domain("own");
  EXPECT_THAT(error_of(model),
              HasSubstr("operators Loop, StringNormalizer, own.Fancy are not supported"));
}

TEST(OnnxErrors, BrokenGraphs) {
  OnnxModel cycle;
  cycle.input("x", {2, 2});
  cycle.node("Add", {"x", "b"}, {"a"});
  cycle.node("Add", {"x", "a"}, {"b"});
  cycle.output("b");
  EXPECT_THAT(error_of(cycle), HasSubstr("'b' is not defined before this node"));

  OnnxModel twice = mlp();
  twice.node("Relu", {"x"}, {"h"});
  EXPECT_THAT(error_of(twice, {.dims = {{"batch", 2}}}), HasSubstr("'h' is defined twice"));

  OnnxModel operand;
  operand.input("x", {2, 2});
  operand.node("Add", {"x"}, {"y"});
  operand.output("y");
  EXPECT_THAT(error_of(operand), HasSubstr("operand 1 is missing"));

  OnnxModel negative;
  negative.input("x", {-3, 2});
  negative.output("x");
  EXPECT_THAT(error_of(negative), HasSubstr("impossible type"));

  OnnxModel old(4);
  old.input("x", {2, 2});
  old.output("x");
  EXPECT_THAT(error_of(old), HasSubstr("operator set 4"));
}

TEST(OnnxErrors, TensorsThatLieAboutTheirSize) {
  OnnxModel model = mlp();
  model.graph().mutable_initializer(0)->set_dims(0, std::int64_t{1} << 40);
  EXPECT_THAT(error_of(model, {.dims = {{"batch", 2}}}), HasSubstr("bytes, its type"));
  model.graph().mutable_initializer(0)->set_dims(0, -16);
  EXPECT_THAT(error_of(model, {.dims = {{"batch", 2}}}), HasSubstr("impossible shape"));

  OnnxModel expanded;
  expanded.input("x", {2, 2});
  expanded.integers("shape", {std::int64_t{1} << 40, std::int64_t{1} << 40, 2, 2});
  expanded.node("Expand", {"x", "shape"}, {"y"});
  expanded.output("y");
  EXPECT_FALSE(load(expanded));
}

TEST(OnnxErrors, ExternalDataStayInTheFolder) {
  const ModelFolder folder;
  const auto with_location = [&](const std::string& location, const std::string& offset) {
    OnnxModel model = mlp();
    auto& tensor = *model.graph().mutable_initializer(0);
    tensor.clear_float_data();
    tensor.set_data_location(::onnx::TensorProto::EXTERNAL);
    for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
             {"location", location}, {"offset", offset}, {"length", "512"}}) {
      auto& entry = *tensor.add_external_data();
      entry.set_key(key);
      entry.set_value(value);
    }
    const Result<ir::Graph> graph = load_model(
        folder.write(model.bytes()), {.weights = true, .dims = {{"batch", 2}}, .loss = "mse"});
    return graph ? std::string("read") : graph.error().text();
  };
  folder.write(std::string(520, '\0'), "data.bin");
  std::filesystem::create_symlink("/etc/hostname", folder.path() / "link");
  EXPECT_EQ(with_location("data.bin", "8"), "read");
  EXPECT_THAT(with_location("data.bin", "16"), HasSubstr("needs 512 bytes"));
  EXPECT_THAT(with_location("data.bin", "-8"), HasSubstr("offset '-8'"));
  EXPECT_THAT(with_location("gone.bin", "0"), HasSubstr("does not exist"));
  for (const std::string path : {"../data.bin", "/etc/hostname", "link", "a/../../x", ""}) {
    EXPECT_THAT(with_location(path, "0"), HasSubstr("outside of the model's folder")) << path;
  }
}

TEST(OnnxErrors, NamesAreShownAsText) {
  OnnxModel model;
  model.input("x\xff\n", {2, 2});
  model.node("Add", {"x\xff\n", "\xc3\xa9\x1b[2J"}, {"y"});
  model.output("y");
  EXPECT_THAT(error_of(model), HasSubstr("'\xc3\xa9?[2J' is not defined before this node"));
  EXPECT_THAT(error_of(model), Not(HasSubstr("\n")));
}

TEST(OnnxErrors, DamagedFiles) {
  const ModelFolder folder;
  EXPECT_THAT(load_model(folder.write("")).error().text(), HasSubstr("no ONNX model"));
  EXPECT_THAT(load_model(folder.write("no protobuf at all")).error().text(),
              HasSubstr("no ONNX model"));
  EXPECT_FALSE(load_model((folder.path() / "missing.onnx").string()));
}

/// Random damage never crashes: it is read, or one error tells.
TEST(OnnxErrors, RandomDamage) {
  const ModelFolder folder;
  const std::string good = mlp().bytes();
  std::mt19937 random(7);
  int read = 0;
  for (int round = 0; round < 500; ++round) {
    std::string bytes = good;
    const auto damages = std::uniform_int_distribution<int>(1, 4)(random);
    for (int k = 0; k < damages; ++k) {
      const auto at = std::uniform_int_distribution<std::size_t>(0, bytes.size() - 1)(random);
      const auto byte = static_cast<char>(std::uniform_int_distribution<int>(0, 255)(random));
      switch (std::uniform_int_distribution<int>(0, 3)(random)) {
        case 0:
          bytes.erase(at, 1);
          break;
        case 1:
          bytes.insert(at, 1, byte);
          break;
        default:
          bytes[at] = byte;
      }
    }
    const Result<ir::Graph> graph = load_model(
        folder.write(bytes), {.weights = true, .dims = {{"batch", 2}}, .loss = "cross_entropy"});
    read += graph ? 1 : 0;
    if (!graph) {
      EXPECT_FALSE(graph.error().message.empty());
    }
  }
  EXPECT_GT(read, 0);
}

}  // namespace
}  // namespace shardplan::frontends
