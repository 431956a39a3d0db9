#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "shardplan/support/text.h"
#include "tests/plan/plan_testing.h"

namespace shardplan::plan {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class PlanJson : public ::testing::Test {
 protected:
  /// Error of the example after `change` was made to its JSON document.
  template <class Change>
  std::string error_after(const Change& change) {
    json document = json::parse(text_);
    change(document);
    const Result<Plan> plan = from_json(document.dump(), step_, "plan.json");
    return plan ? "" : plan.error().text();
  }

  ir::Graph step_ = example_step();
  Plan plan_ = example_plan(step_);
  std::string text_ = to_json(plan_, step_);
};

void expect_equal(const Plan& a, const Plan& b) {
  EXPECT_EQ(a.planner, b.planner);
  EXPECT_EQ(a.model, b.model);
  EXPECT_EQ(a.graph_hash, b.graph_hash);
  EXPECT_EQ(training::to_string(a.recipe.optimizer), training::to_string(b.recipe.optimizer));
  EXPECT_EQ(a.recipe.precision, b.recipe.precision);
  EXPECT_EQ(a.recipe.clip_norm, b.recipe.clip_norm);
  EXPECT_EQ(a.recipe.microbatches, b.recipe.microbatches);
  EXPECT_EQ(a.cluster, b.cluster);
  EXPECT_EQ(a.mesh, b.mesh);
  EXPECT_EQ(a.strategies, b.strategies);
  EXPECT_EQ(a.layouts, b.layouts);
  EXPECT_EQ(a.recompute, b.recompute);
  EXPECT_EQ(a.prediction.step_seconds, b.prediction.step_seconds);
  EXPECT_EQ(a.prediction.additive_seconds, b.prediction.additive_seconds);
  EXPECT_EQ(a.prediction.objective_seconds, b.prediction.objective_seconds);
  EXPECT_EQ(a.prediction.lower_bound_seconds, b.prediction.lower_bound_seconds);
  EXPECT_EQ(a.prediction.step_lower_bound_seconds, b.prediction.step_lower_bound_seconds);
  EXPECT_EQ(a.prediction.rows, b.prediction.rows);
  EXPECT_EQ(a.prediction.gap, b.prediction.gap);
  EXPECT_EQ(a.prediction.peak_bytes, b.prediction.peak_bytes);
  EXPECT_EQ(a.prediction.memory_limit, b.prediction.memory_limit);
  EXPECT_EQ(a.prediction.search_seconds, b.prediction.search_seconds);
}

TEST_F(PlanJson, RoundTrips) {
  const Result<Plan> plan = from_json(text_, step_, "plan.json");
  ASSERT_TRUE(plan) << plan.error().text();
  expect_equal(*plan, plan_);
  EXPECT_EQ(to_json(*plan, step_), text_);
}

TEST_F(PlanJson, ReadsAsPeopleWouldWriteIt) {
  const json document = json::parse(text_);
  EXPECT_EQ(document["format"], "shardplan.plan");
  EXPECT_EQ(document["version"], 1);
  EXPECT_EQ(document["recipe"]["optimizer"], "sgd:lr=0.1");
  EXPECT_EQ(document["mesh"][1], json({{"axis", "tensor"}, {"size", 2}}));
  const json layouts{{"net.0.weight", "[tensor, -]"},
                     {"net.0.weight.grad", "[tensor, -] + sum(data)"},
                     {"x", "[data, -]"}};
  EXPECT_EQ(document["layouts"], layouts);
  EXPECT_EQ(document["strategies"]["net.0"]["einsum.0"], "data=b tensor=n");
  EXPECT_EQ(document["strategies"]["net.0"]["sgd_update.7"], "tensor=a");
  EXPECT_EQ(document["strategies"]["(model)"]["sum.2"], "data=d0 tensor=d1");
}

TEST_F(PlanJson, DocumentationIsTrue) {
  const Result<std::string> page = read_file("docs/plan.md");
  ASSERT_TRUE(page) << page.error().text();
  const std::string fence = "```json\n";
  const std::size_t start = page->find(fence) + fence.size();
  const std::string example = page->substr(start, page->find("```", start) - start);
  const Result<Plan> plan = from_json(example, step_, "docs/plan.md");
  ASSERT_TRUE(plan) << plan.error().text();
  EXPECT_EQ(to_json(*plan, step_), example);
  EXPECT_EQ(plan->strategies, plan_.strategies);
  EXPECT_EQ(plan->layouts, plan_.layouts);
}

/// A real training step, every op with a random strategy that takes no partial sums (those exist
/// whatever the others do), every value with a random layout of its own.
TEST(PlanProperty, RandomPlansOfARealStepRoundTrip) {
  const Result<ir::Graph> forward = ir::parse(R"(graph "mlp" microbatches=1
%0 = parameter "h.0.weight" f32[16,8] trainable
%1 = parameter "h.1.weight" f32[8,16] trainable
%2 = input "x" f32[8,8]
%3 = einsum(%2, %0) {equation="bk,nk->bn"} : f32[8,16] layer="h.0"
%4 = relu(%3) : f32[8,16] layer="h.0"
%5 = einsum(%4, %1) {equation="bk,nk->bn"} : f32[8,8] layer="h.1"
%6 = mul(%5, %5) : f32[8,8]
%7 = sum(%6) {dims=[0,1], keepdim=false} : f32[]
output %7
)");
  ASSERT_TRUE(forward) << forward.error().text();
  training::Recipe recipe;
  recipe.clip_norm = 1.0;
  const Result<ir::Graph> step = training::build_training_step(*forward, recipe);
  ASSERT_TRUE(step) << step.error().text();
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    Plan plan;
    plan.graph_hash = ir::structural_hash(*step);
    plan.recipe = recipe;
    plan.cluster = *cluster::load_cluster("local:8");
    plan.mesh.axes = {{"m0", 2}, {"m1", 2}, {"m2", 2}};
    for (std::size_t op = 0; op < step->ops().size(); ++op) {
      ops::AxisMap map = ops::axis_map(*step, ir::OpId(op));
      map.partials.clear();
      const auto choices = sharding::enumerate_strategies(map, plan.mesh);
      plan.strategies.push_back(choices[random() % choices.size()]);
    }
    for (std::size_t v = 0; v < step->values().size(); ++v) {
      const ir::Value& value = step->values()[v];
      if (value.kind == ir::ValueKind::kOpResult || value.kind == ir::ValueKind::kConstant) {
        continue;
      }
      sharding::ShardingSpec spec;
      for (int axis = 0; axis < 3 && value.type.rank() > 0; ++axis) {
        if (random() % 2 == 0) {
          spec.shard(static_cast<int>(random() % 2), axis);
        }
      }
      plan.layouts[ir::ValueId(v)] = spec;
    }
    const Status status = check(plan, *step);
    ASSERT_TRUE(status) << "seed " << seed << ": " << status.error().text();
    const Result<Plan> again = from_json(to_json(plan, *step), *step, "plan.json");
    ASSERT_TRUE(again) << "seed " << seed << ": " << again.error().text();
    expect_equal(*again, plan);
  }
}

TEST_F(PlanJson, HeaderNeedsNoStep) {
  const Result<Plan> header = parse_header(text_, "plan.json");
  ASSERT_TRUE(header) << header.error().text();
  EXPECT_EQ(header->model, "mlp.ir");
  EXPECT_EQ(header->cluster, plan_.cluster);
  EXPECT_EQ(header->mesh, plan_.mesh);
  EXPECT_EQ(header->recipe.microbatches, 2);
}

TEST_F(PlanJson, WhatIsLeftOutIsReplicated) {
  json document = json::parse(text_);
  for (const char* const field : {"planner", "prediction", "recompute", "layouts", "strategies"}) {
    document.erase(field);
  }
  const Result<Plan> plan = from_json(document.dump(), step_, "plan.json");
  ASSERT_TRUE(plan) << plan.error().text();
  EXPECT_EQ(plan->strategies, std::vector<sharding::Strategy>(8));
  EXPECT_EQ(plan->layouts.size(), 5U);
  for (const auto& [id, spec] : plan->layouts) {
    EXPECT_TRUE(spec.fully_replicated());
  }
}

TEST_F(PlanJson, UnknownNumbersAreNull) {
  plan_.prediction.gap = std::numeric_limits<double>::infinity();
  const Result<Plan> plan = from_json(to_json(plan_, step_), step_, "plan.json");
  ASSERT_TRUE(plan) << plan.error().text();
  EXPECT_EQ(plan->prediction.gap, 0);
}

TEST_F(PlanJson, ErrorsNameTheirPlace) {
  EXPECT_EQ(error_after([](json& d) { d["strategies"]["net.0"]["einsum.0"] = "dta=b"; }),
            "plan.json: strategies / net.0 / einsum.0: no mesh axis is named "
            "\"dta\"; did you mean "
            "\"data\"?");
  EXPECT_EQ(error_after([](json& d) { d["strategies"]["net.0"]["einsum.0"] = "data=n tensor=z"; }),
            "plan.json: strategies / net.0 / einsum.0: no axis of this op is "
            "named \"z\"; there are "
            "b, k, n");
  EXPECT_EQ(error_after([](json& d) { d["strategies"]["net.0"]["einsum.0"] = 7; }),
            "plan.json: strategies / net.0 / einsum.0: expected a text, found 7");
  EXPECT_EQ(error_after([](json& d) { d["strategies"]["net.0"]["einsum.1"] = "data=b"; }),
            "plan.json: strategies / net.0 / einsum.1: op 1 is \"relu.1\", not "
            "\"einsum.1\"");
  EXPECT_EQ(error_after([](json& d) { d["strategies"]["net.0"]["relu.1"] = "data=a"; }),
            "plan.json: strategies / net.0 / relu.1: this op is in layer \"net.1\"");
  EXPECT_EQ(error_after([](json& d) { d["strategies"]["net.0"]["relu.99"] = "data=a"; }),
            "plan.json: strategies / net.0 / relu.99: there is no op 99: the "
            "training step has 8 "
            "ops, counted from 0");
  EXPECT_THAT(error_after([](json& d) { d["strategies"]["net.0"]["relu"] = "data=a"; }),
              HasSubstr("\"relu\" does not name an op"));
  EXPECT_EQ(error_after([](json& d) { d["layouts"]["net.0.wight"] = "[-, -]"; }),
            "plan.json: layouts: the training step has no parameter, buffer, state, "
            "accumulator or "
            "input named \"net.0.wight\"; did you mean \"net.0.weight\"?");
  EXPECT_EQ(error_after([](json& d) { d["layouts"]["net.0.weight"] = "[tensr, -]"; }),
            "plan.json: layouts / net.0.weight: layout \"[tensr, -]\": no mesh axis "
            "is named "
            "\"tensr\" (dimension 0); did you mean \"tensor\"?");
  EXPECT_EQ(error_after([](json& d) { d["mesh"][0]["size"] = 2.5; }),
            "plan.json: mesh / 0 / size: expected a whole number from 1 to "
            "1099511627776, found "
            "2.5");
  EXPECT_EQ(error_after([](json& d) { d["mesh"][0]["size"] = 8; }),
            "plan.json: mesh: the sizes of its axes (data 8 × tensor 2) do not "
            "multiply to the 4 "
            "devices of the cluster");
  EXPECT_EQ(error_after([](json& d) { d["mesh"] = 3; }),
            "plan.json: mesh: expected a list, found 3");
  EXPECT_EQ(error_after([](json& d) { d["recompute"][0]["mode"] = "twice"; }),
            "plan.json: recompute / 0 / mode: must be \"selective\" or \"whole\"");
  EXPECT_EQ(error_after([](json& d) { d["recompute"][0] = "net.2"; }),
            "plan.json: recompute: no block is named \"net.2\"; did you mean "
            "\"net.0\"?");
  EXPECT_THAT(error_after([](json& d) { d["recipe"]["precision"] = "fp12"; }),
              StartsWith("plan.json: recipe / precision: "));
  EXPECT_EQ(error_after([](json& d) { d["recipe"].erase("optimizer"); }),
            "plan.json: recipe: field \"optimizer\" is missing");
  EXPECT_EQ(error_after([](json& d) { d["recipe"]["clip_norm"] = -1; }),
            "plan.json: recipe / clip_norm: expected a number that is not "
            "negative, found -1");
  EXPECT_EQ(error_after([](json& d) { d["prediction"]["peak_bytes"] = 1e30; }),
            "plan.json: prediction / peak_bytes: expected a whole number from 0 to "
            "9223372036854775807, found 1e+30");
  EXPECT_EQ(error_after([](json& d) { d["prediction"]["peak_bytes"] = UINT64_MAX; }),
            "plan.json: prediction / peak_bytes: expected a whole number from 0 to "
            "9223372036854775807, found 18446744073709551615");
  EXPECT_THAT(error_after([](json& d) { d["cluster"] = json::array({"name: [unclosed"}); }),
              StartsWith("plan.json: cluster"));
  EXPECT_EQ(error_after([](json& d) { d["cluster"] = "8xA100"; }),
            "plan.json: cluster: expected a list, found \"8xA100\"");
  EXPECT_EQ(error_after([](json& d) { d["strategys"] = json::object(); }),
            "plan.json: unknown field \"strategys\"; did you mean \"strategies\"?");
  EXPECT_EQ(error_after([](json& d) { d["version"] = 2; }),
            "plan.json: it is a plan of version 2, this program reads version 1");
  EXPECT_EQ(error_after([](json& d) { d["format"] = "onnx"; }),
            "plan.json: its format is \"onnx\", a plan has \"shardplan.plan\"");
  EXPECT_EQ(error_after([](json& d) { d = json::array(); }),
            "plan.json: expected an object, found a list");
  EXPECT_THAT(error_after([](json& d) { d["graph_hash"] = "0000000000000000"; }),
              StartsWith("plan.json: graph_hash: the plan was made for another "
                         "training step"));
}

TEST_F(PlanJson, SyntaxErrorsNameTheLine) {
  const auto error = [&](const std::string& text) {
    return from_json(text, step_, "plan.json").error().text();
  };
  EXPECT_THAT(error("{\n  \"format\": nan\n}"), HasSubstr("not valid JSON: parse error at line 2"));
  EXPECT_THAT(error(""), StartsWith("plan.json: not valid JSON"));
  EXPECT_THAT(error(text_.substr(0, text_.size() / 2)), StartsWith("plan.json: not valid JSON"));
  EXPECT_THAT(error("{\"format\": 1e999}"), StartsWith("plan.json: not valid JSON"));
  EXPECT_THAT(error("{\"a\": \"\xff\"}"), StartsWith("plan.json: not valid JSON"));
  EXPECT_EQ(error("{\"a\": {\"x\": 1, \"y\": 2, \"x\": 3}}"),
            "plan.json: field \"x\" occurs twice in one object");
  const std::string deep(200000, '[');
  EXPECT_THAT(error(deep), StartsWith("plan.json: not valid JSON"));
  EXPECT_EQ(error(deep + std::string(200000, ']')), "plan.json: expected an object, found a list");
}

/// Every value of the document in turn is replaced by values of other types and
/// hostile sizes.
TEST_F(PlanJson, EveryFieldIsChecked) {
  const json original = json::parse(text_);
  const std::vector<json> replacements{nullptr,
                                       true,
                                       -1,
                                       0,
                                       INT64_MIN,
                                       UINT64_MAX,
                                       1e300,
                                       -0.5,
                                       "",
                                       "\xC3\xA4 odd",
                                       std::string(10000, 'x'),
                                       json::array(),
                                       json::array({json::array()}),
                                       json::object(),
                                       json::object({{"a", 1}})};
  std::size_t rejected = 0;
  const json flat = original.flatten();
  for (const auto& [pointer, value] : flat.items()) {
    for (json::json_pointer at(pointer);; at.pop_back()) {
      for (const json& replacement : replacements) {
        json document = original;
        document[at] = replacement;
        const Result<Plan> plan = from_json(document.dump(), step_, "plan.json");
        if (!plan) {
          EXPECT_THAT(plan.error().location, StartsWith("plan.json"));
          ++rejected;
        }
      }
      if (at.empty()) {
        break;
      }
    }
  }
  EXPECT_GT(rejected, flat.size() * replacements.size() / 2);
}

TEST_F(PlanJson, DamagedTextNeverCrashes) {
  std::size_t accepted = 0;
  for (std::uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    std::string text = text_;
    for (std::size_t edits = 1 + random() % 3; edits > 0; --edits) {
      const std::size_t at = random() % text.size();
      const std::size_t length = random() % 12;
      switch (random() % 4) {
        case 0:
          text.erase(at, length);
          break;
        case 1:
          text[at] = static_cast<char>(random() % 256);
          break;
        case 2:
          text.insert(at, text.substr(random() % text.size(), length));
          break;
        default:
          text.insert(at, std::to_string(random()));
      }
    }
    if (const Result<Plan> plan = from_json(text, step_, "plan.json")) {
      EXPECT_TRUE(check(*plan, step_)) << "seed " << seed;
      EXPECT_TRUE(from_json(to_json(*plan, step_), step_, "again")) << "seed " << seed;
      ++accepted;
    }
  }
  EXPECT_LT(accepted, 1500U);
}

}  // namespace
}  // namespace shardplan::plan
