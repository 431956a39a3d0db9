// Layer graphs: the four forms that are read, what is refused, and the objectives by hand.
#include "shardplan/problem/layer_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string>

#include "shardplan/problem/layer_graph_json.h"
#include "shardplan/problem/published_objectives.h"

namespace shardplan::problem {
namespace {

using ::testing::HasSubstr;

std::filesystem::path workloads() {
  const char* named = std::getenv("SHARDPLAN_WORKLOADS");
  const std::filesystem::path folder =
      named != nullptr ? named : std::filesystem::path("../shared/workloads");
  return std::filesystem::exists(folder) ? folder : std::filesystem::path();
}

std::string refused(const std::string& text) {
  const auto graph = parse_layer_graph(text, "graph.json");
  EXPECT_FALSE(graph) << text;
  return graph ? "" : graph.error().text();
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const std::size_t place = text.find(what);
  EXPECT_NE(place, std::string::npos) << what;
  return text.replace(place, what.size(), with);
}

const std::string piper_file = R"({
  "maxDevices": 4, "maxMemoryPerDevice": 100, "bandwidth": 10, "mbsInBatch": 8,
  "nodes": [
    {"id": 5, "name": "first", "TMPCs": {"2": [{"id": "half", "timePerSample": 3, "parameterSize": 1,
        "memoryUsageA": 2, "memoryUsageB": 3, "syncTimeFw": {}, "syncTimeBw": {"7": 4}}],
      "1": [{"id": "vanilla", "timePerSample": 5, "parameterSize": 2,
        "memoryUsageA": 4, "memoryUsageB": 6, "syncTimeFw": {}, "syncTimeBw": {"7": 0}}]}},
    {"id": 7, "TMPCs": {"1": [{"id": "vanilla", "timePerSample": 2, "parameterSize": 0,
        "memoryUsageA": 1, "memoryUsageB": 1, "syncTimeFw": {"5": 0}, "syncTimeBw": {}}]}}],
  "edges": [{"sourceId": 5, "destId": 7, "communicationCost": 9}]})";

const std::string placement_file = R"({
  "maxSizePerFPGA": 50, "maxFPGAs": 2, "maxCPUs": 1,
  "nodes": [
    {"id": 1, "supportedOnFpga": 1, "cpuLatency": 30, "fpgaLatency": 3, "isBackwardNode": false,
     "colorClass": 4, "size": 10},
    {"id": 2, "supportedOnFpga": false, "cpuLatency": 20, "fpgaLatency": 2, "isBackwardNode": 0,
     "size": 20}],
  "edges": [{"sourceId": 1, "destId": 2, "cost": 0.5, "size": 7}]})";

const std::string pipedream_file =
    "node1 -- Input -- forward_compute_time=1.000, backward_compute_time=0.000, "
    "activation_size=8.000, parameter_size=0.000\n"
    "node2 -- Conv2d(3, 64, kernel_size=(3, 3)) -- forward_compute_time=4.000, "
    "backward_compute_time=6.000, activation_size=[3.0; 4.0], parameter_size=16.000 -- stage_id=1\n"
    "\tnode1 -- node2\n";

TEST(LayerGraph, ReadsPiper) {
  const auto graph = parse_layer_graph(piper_file, "graph.json");
  ASSERT_TRUE(graph) << graph.error().text();
  EXPECT_EQ(graph->origin, "piper");
  EXPECT_EQ(graph->time_unit, "s");
  EXPECT_EQ(graph->defaults.microbatches, 8);
  ASSERT_EQ(graph->layers.size(), 2U);
  const Layer& first = graph->layers[0];
  EXPECT_EQ(first.id, "5");
  ASSERT_EQ(first.choices.size(), 2U);
  EXPECT_EQ(first.choices[0].name, "vanilla");  // by rising degree
  EXPECT_EQ(first.choices[1].degree, 2);
  EXPECT_EQ(first.choices[1].extra_out_bytes, std::vector<double>{4});
  EXPECT_TRUE(first.choices[0].extra_out_bytes.empty());
  EXPECT_EQ(graph->edges[0].bytes, 9);
}

TEST(LayerGraph, ReadsPlacementAndPipeDream) {
  const auto placement = parse_layer_graph(placement_file, "graph.json");
  ASSERT_TRUE(placement) << placement.error().text();
  EXPECT_EQ(placement->time_unit, "ms");
  const auto placed = [&](std::size_t layer) {
    return placement->layers[layer].placement.value_or(LayerPlacement{});
  };
  EXPECT_EQ(placed(0).color, 4);
  EXPECT_FALSE(placed(1).on_accelerator);
  EXPECT_EQ(placement->edges[0].transfer_time, 0.5);
  const auto profile = parse_layer_graph(pipedream_file, "graph.txt");
  ASSERT_TRUE(profile) << profile.error().text();
  EXPECT_EQ(profile->origin, "pipedream");
  EXPECT_EQ(profile->layers[1].name, "Conv2d(3, 64, kernel_size=(3, 3))");
  EXPECT_EQ(profile->layers[1].output_bytes, 7);
  EXPECT_DOUBLE_EQ(profile->layers[1].choices[0].time, 0.01);
  EXPECT_DOUBLE_EQ(profile->layers[1].choices[0].forward_time.value_or(-1), 0.004);
  EXPECT_EQ(profile->edges[0].bytes, 8);
}

TEST(LayerGraph, RoundTripsBitForBit) {
  std::vector<LayerGraph> graphs;
  for (const std::string& text : {piper_file, placement_file, pipedream_file}) {
    graphs.push_back(*parse_layer_graph(text, "a \"name\""));
  }
  if (!workloads().empty()) {
    for (const char* file : {"piper/bert32a100.json",
                             "piper/resnet.json",
                             "pipedream/vgg16/graph.txt",
                             "dnn-partitioning/throughput/OperatorGraphs/bert_l-3_training.json"}) {
      const auto graph = load_layer_graph((workloads() / file).string());
      ASSERT_TRUE(graph) << graph.error().text();
      graphs.push_back(*graph);
    }
  }
  for (const LayerGraph& graph : graphs) {
    const std::string text = to_json(graph);
    EXPECT_TRUE(is_layer_graph(text));
    const auto again = parse_layer_graph(text, "again.json");
    ASSERT_TRUE(again) << again.error().text();
    EXPECT_TRUE(*again == graph) << graph.name;
    EXPECT_EQ(to_json(*again), text);
  }
}

TEST(LayerGraph, PublishedSizes) {
  if (workloads().empty()) {
    GTEST_SKIP() << "no published inputs (SHARDPLAN_WORKLOADS)";
  }
  struct Size {
    const char* file;
    std::size_t layers;
    std::size_t edges;
    double time;
  };
  for (const Size& size :
       {Size{"piper/bert32a100.json", 37, 67, 0.972864},
        Size{"piper/resnet.json", 177, 193, 462.381},
        Size{"pipedream/resnet50/graph.txt", 177, 193, 0.462381},
        Size{"dnn-partitioning/throughput/LayerGraphs/gnmt_inference.json", 96, 122, 182.563},
        Size{"dnn-partitioning/throughput/OperatorGraphs/bert_l-3_training.json",
             600,
             817,
             122.987}}) {
    const auto graph = load_layer_graph((workloads() / size.file).string());
    ASSERT_TRUE(graph) << graph.error().text();
    EXPECT_EQ(graph->layers.size(), size.layers);
    EXPECT_EQ(graph->edges.size(), size.edges);
    double time = 0;
    for (const Layer& layer : graph->layers) {
      time += layer.choices.front().time;
    }
    EXPECT_NEAR(time, size.time, size.time * 1e-5);
  }
}

TEST(LayerGraph, TellsFormsApart) {
  EXPECT_TRUE(is_layer_graph(piper_file));
  EXPECT_TRUE(is_layer_graph(placement_file));
  EXPECT_TRUE(is_layer_graph(pipedream_file));
  EXPECT_FALSE(is_layer_graph(R"({"format": "shardplan.strategy_graph", "version": 1})"));
  EXPECT_FALSE(is_layer_graph(R"({"nodes": [], "edges": []})"));
  EXPECT_FALSE(is_layer_graph(""));
  EXPECT_THAT(refused("nothing"), HasSubstr("no layer graph"));
}

TEST(LayerGraph, RefusesBadPiper) {
  EXPECT_THAT(refused(replaced(piper_file, "\"timePerSample\": 3", "\"timePerSample\": -3")),
              HasSubstr("nodes / 0 / TMPCs / 2 / 0 / timePerSample: is -3"));
  EXPECT_THAT(refused(replaced(piper_file, "\"timePerSample\": 3", "\"timePerSample\": 1e999")),
              HasSubstr("timePerSample"));
  EXPECT_THAT(refused(replaced(piper_file, "\"syncTimeFw\": {\"5\": 0}", "\"syncTimeFw\": {}")),
              HasSubstr("nothing for the predecessor '5' (first)"));
  EXPECT_THAT(
      refused(replaced(
          piper_file, "\"syncTimeFw\": {\"5\": 0}", "\"syncTimeFw\": {\"5\": 0, \"6\": 1}")),
      HasSubstr("'6' is no predecessor"));
  EXPECT_THAT(refused(replaced(piper_file, "\"id\": 7", "\"id\": 5")), HasSubstr("id '5'"));
  EXPECT_THAT(refused(replaced(piper_file, "\"destId\": 7", "\"destId\": 8")),
              HasSubstr("no layer has the id '8'"));
  EXPECT_THAT(refused(replaced(piper_file, "\"bandwidth\": 10", "\"bandwidth\": 0")),
              HasSubstr("the bandwidth is 0"));
  EXPECT_THAT(refused(replaced(piper_file, "\"mbsInBatch\": 8", "\"mbsInBatch\": 0")),
              HasSubstr("mbsInBatch"));
  EXPECT_THAT(refused(replaced(piper_file, "\"timePerSample\": 5, ", "")),
              HasSubstr("\"timePerSample\" is missing"));
  EXPECT_THAT(refused(replaced(piper_file, "{\"2\": [", "{\"two\": [")), HasSubstr("degree"));
  const std::string twice =
      "{\"sourceId\": 5, \"destId\": 7, \"communicationCost\": 9}, "
      "{\"sourceId\": 5, \"destId\": 7, \"communicationCost\": 9}";
  EXPECT_THAT(refused(replaced(
                  piper_file, "{\"sourceId\": 5, \"destId\": 7, \"communicationCost\": 9}", twice)),
              HasSubstr("twice"));
}

TEST(LayerGraph, RefusesOtherBadInput) {
  EXPECT_THAT(refused(replaced(pipedream_file, "\tnode1 -- node2", "\tnode1 -- node3")),
              HasSubstr("line 3"));
  EXPECT_THAT(
      refused(replaced(pipedream_file, "forward_compute_time=4.000", "forward_compute_time=nan")),
      HasSubstr("forward_compute_time is 'nan'"));
  EXPECT_THAT(refused(replaced(pipedream_file, "parameter_size=16.000", "size=16")),
              HasSubstr("'parameter_size' is missing"));
  EXPECT_THAT(refused(pipedream_file + "\tnode2 -- node1\n"),
              HasSubstr("circle: 'node1' (Input) -> 'node2'"));
  EXPECT_THAT(refused(replaced(placement_file, "\"supportedOnFpga\": 1", "\"supportedOnFpga\": 2")),
              HasSubstr("supportedOnFpga"));
  const std::string own = to_json(*parse_layer_graph(piper_file, "x"));
  EXPECT_THAT(refused(replaced(own, "\"time_unit\": \"s\"", "\"time_unit\": \"min\"")),
              HasSubstr("unit of time"));
  EXPECT_THAT(refused(replaced(own, "\"time_unit\": \"s\",\n", "")),
              HasSubstr("\"time_unit\" is missing"));
  EXPECT_THAT(refused(replaced(own, "\"version\": 1", "\"version\": 2")), HasSubstr("newer"));
  EXPECT_THAT(refused(replaced(own, "\"origin\"", "\"orign\"")), HasSubstr("unknown field"));
}

TEST(LayerGraph, ClonesFollowTheirOriginal) {
  const LayerGraph graph = *parse_layer_graph(piper_file, "x");
  const auto deeper = with_clones(graph, "5", 2);
  ASSERT_TRUE(deeper);
  ASSERT_TRUE(check(*deeper, "x")) << check(*deeper, "x").error().text();
  EXPECT_EQ(deeper->layers.size(), 4U);
  EXPECT_EQ(topological_order(*deeper), (std::vector<int>{0, 2, 3, 1}));
  EXPECT_FALSE(with_clones(graph, "6", 1));
}

TEST(PublishedObjectives, PiperByHand) {
  const LayerGraph graph = *parse_layer_graph(piper_file, "x");
  LayerMachines machines;
  machines.devices = 4;
  machines.memory_bytes = 100;
  machines.bandwidth = 10;
  machines.microbatches = 8;
  LayerPlan plan;
  plan.stages.resize(2);
  plan.stages[0] = {{0}, {1}, 1, 2, false, 0, 0, {}};
  plan.stages[1] = {{1}, {0}, 2, 1, false, 0, 0, {}};
  // 3 + 2 * (9 + 4) / 10 and 2 / 2 + 2 * 9 / 2 / 10
  EXPECT_DOUBLE_EQ(*piper_objective(graph, machines, plan, {}), 5.6);
  plan.stages[1].replicas = 3;
  EXPECT_THAT(piper_objective(graph, machines, plan, {}).error().text(), HasSubstr("divide"));
  plan.stages[1].replicas = 4;
  EXPECT_THAT(piper_objective(graph, machines, plan, {}).error().text(), HasSubstr("devices"));
  plan.stages[1].replicas = 1;
  machines.memory_bytes = 6;  // 2 in flight: 2 * 2 + 3
  EXPECT_THAT(piper_objective(graph, machines, plan, {}).error().text(), HasSubstr("bytes"));
  machines.memory_bytes = 7;
  EXPECT_TRUE(piper_objective(graph, machines, plan, {}));
  std::swap(plan.stages[0], plan.stages[1]);
  EXPECT_THAT(piper_objective(graph, machines, plan, {}).error().text(), HasSubstr("runs before"));
}

TEST(PublishedObjectives, PlacementByHand) {
  const LayerGraph graph = *parse_layer_graph(placement_file, "x");
  LayerMachines machines;
  machines.devices = 1;
  machines.cpus = 1;
  LayerPlan plan;
  plan.stages.resize(2);
  plan.stages[0].layers = {0};
  plan.stages[1].layers = {1};
  plan.stages[1].on_cpu = true;
  EXPECT_DOUBLE_EQ(*dnn_partitioning_objective(graph, machines, plan, {}), 20);
  plan.stages[1].on_cpu = false;
  EXPECT_THAT(dnn_partitioning_objective(graph, machines, plan, {}).error().text(),
              HasSubstr("no accelerator"));
  plan.stages.resize(1);
  EXPECT_THAT(dnn_partitioning_objective(graph, machines, plan, {}).error().text(),
              HasSubstr("in no stage"));
}

}  // namespace
}  // namespace shardplan::problem
