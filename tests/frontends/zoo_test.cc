#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "shardplan/frontends/frontends.h"
#include "shardplan/ops/op.h"

namespace shardplan::frontends {
namespace {

using ::testing::HasSubstr;

// Sizes of the published models: GPT-2 small has 124,439,808 parameters (transformers counts them
// so), Llama 2 7B 6,738,415,616, Llama 3 8B 8,030,261,248.
TEST(Zoo, PresetsHaveThePublishedSizes) {
  const std::pair<const char*, std::int64_t> sizes[] = {
      {"gpt2-small", 124439808}, {"llama2-7b", 6738415616}, {"llama3-8b", 8030261248}};
  for (const auto& [name, count] : sizes) {
    const Result<ir::Graph> graph = zoo_model(name);
    ASSERT_TRUE(graph) << graph.error().text();
    EXPECT_EQ(graph->parameter_count(), count) << name;
    EXPECT_TRUE(ops::verify(*graph));
  }
}

TEST(Zoo, BuildsGpt3InMilliseconds) {
  const auto start = std::chrono::steady_clock::now();
  const Result<ir::Graph> graph = zoo_model("gpt3-175b");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(graph);
  EXPECT_NEAR(static_cast<double>(graph->parameter_count()), 175e9, 1e9);
  EXPECT_LT(seconds.count(), 0.2);
}

TEST(Zoo, EveryEntryBuildsFromItsListedParameters) {
  for (const ZooEntry& entry : zoo()) {
    const std::string name =
        entry.name + (entry.name.find('-') == std::string::npos ? ":" + entry.parameters : "");
    const Result<ir::Graph> graph = zoo_model(name);
    ASSERT_TRUE(graph) << name << ": " << graph.error().text();
    EXPECT_EQ(graph->type(graph->outputs.at(0)).rank(), 0);
  }
}

TEST(Zoo, DropoutSitesHaveTheirOwnSeeds) {
  const Result<ir::Graph> graph =
      zoo_model("gpt:layers=2,hidden=8,heads=2,seq=4,batch=2,vocab=11,dropout=0.1,tied=false");
  ASSERT_TRUE(graph) << graph.error().text();
  std::vector<std::int64_t> seeds;
  for (const ir::Op& op : graph->ops()) {
    if (op.name == "dropout") {
      seeds.push_back(op.attributes.integer("seed"));
    }
  }
  EXPECT_THAT(seeds, ::testing::ElementsAre(1, 2, 3, 4, 5, 6, 7));
  EXPECT_TRUE(graph->find_input("lm_head.weight").valid());
}

TEST(Zoo, KeyValueHeadsFollowHeadsUnlessGiven) {
  const Result<ir::Graph> graph = zoo_model("llama:layers=1,hidden=16,heads=4,ffn=8,vocab=5,seq=3");
  ASSERT_TRUE(graph) << graph.error().text();
  const ir::ValueId k = graph->find_input("model.layers.0.self_attn.k_proj.weight");
  EXPECT_EQ(graph->type(k).shape, (ir::Shape{16, 16}));
}

TEST(Zoo, NamesWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"gptt", "the zoo has no model 'gptt'; did you mean 'gpt'?"},
      {"gpt:layer=3", "unknown key 'layer'; did you mean 'layers'?"},
      {"gpt:layers=0", "layers=0: expected a whole number from 1"},
      {"gpt:layers=-1", "layers=-1: expected a whole number from 1"},
      {"gpt:layers=1.5", "layers=1.5: expected a whole number"},
      {"gpt:layers=1e30", "layers=1e30: expected a whole number"},
      {"gpt:layers=", "layers=: expected a whole number"},
      {"gpt:layers", "'layers' needs a value"},
      {"gpt:heads=7", "hidden=768 is not divisible by heads=7"},
      {"gpt:dropout=1", "dropout=1: expected a number from 0 to below 1"},
      {"gpt:tied=yes", "tied=yes: expected true or false"},
      {"llama:kv_heads=5", "heads=32 is not divisible by kv_heads=5"},
      {"llama:hidden=32,heads=32", "must be even"},
      {"gpt:hidden=1073741824,heads=1,vocab=2000000000", "2^63 bytes"},
  };
  for (const auto& [name, message] : cases) {
    const Result<ir::Graph> graph = zoo_model(name);
    ASSERT_FALSE(graph) << name;
    EXPECT_THAT(graph.error().text(), HasSubstr(message));
  }
}

}  // namespace
}  // namespace shardplan::frontends
