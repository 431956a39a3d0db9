#include "shardplan/problem/strategy_graph_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "shardplan/problem/inflate.h"

namespace shardplan::problem {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

solvers::CostTable table(std::vector<double> values) {
  return std::make_shared<const std::vector<double>>(std::move(values));
}

/// Three nodes, a factor of three and one of two, two rows, and every number that is hard to write.
StrategyGraphFile example() {
  StrategyGraphFile file;
  file.name = "small \"one\" µ\n";
  file.graph.nodes = {"a", "b", ""};
  file.graph.rows = {"peak", "end"};
  const auto names =
      std::make_shared<const std::vector<std::string>>(std::vector<std::string>{"cut", "whole"});
  file.graph.strategies = {names, names, nullptr};
  solvers::ConstrainedProblem& problem = file.graph.problem;
  const solvers::CostTable two = table({0.1, 1.0 / 3});
  problem.objective.unary = {two, two, table({1e-310, kInfinity, -0.0})};
  problem.objective.factors = {{{2, 0}, table({1, 2, 3, 4, 5, 6.02214076e23})},
                               {{0, 1, 2}, table({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, kInfinity})}};
  problem.rows.resize(2);
  problem.rows[0] = {{two, nullptr, nullptr}, {nullptr, nullptr}, 12.5, 1e10};
  problem.rows[1] = {{nullptr, two, table({5, 6, -7})},
                     {problem.objective.factors[0].cost, nullptr},
                     0,
                     kInfinity};
  file.cases = {{{1e9, kInfinity}, 0.25}, {{kInfinity, kInfinity}, std::nullopt}};
  file.optimum = 0.1 + 0.2;
  return file;
}

void expect_same(const solvers::CostTable& a, const solvers::CostTable& b) {
  ASSERT_EQ(a == nullptr, b == nullptr);
  if (!a) {
    return;
  }
  ASSERT_EQ(a->size(), b->size());
  for (std::size_t i = 0; i < a->size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint64_t>((*a)[i]), std::bit_cast<std::uint64_t>((*b)[i]));
  }
}

void expect_same(const std::vector<solvers::CostTable>& a,
                 const std::vector<solvers::CostTable>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    expect_same(a[i], b[i]);
  }
}

void expect_same(const StrategyGraphFile& a, const StrategyGraphFile& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.unit, b.unit);
  EXPECT_EQ(a.memory_unit, b.memory_unit);
  EXPECT_EQ(a.optimum, b.optimum);
  EXPECT_EQ(a.graph.nodes, b.graph.nodes);
  EXPECT_EQ(a.graph.rows, b.graph.rows);
  ASSERT_EQ(a.graph.strategies.size(), b.graph.strategies.size());
  for (std::size_t v = 0; v < a.graph.strategies.size(); ++v) {
    ASSERT_EQ(a.graph.strategies[v] == nullptr, b.graph.strategies[v] == nullptr);
    if (a.graph.strategies[v]) {
      EXPECT_EQ(*a.graph.strategies[v], *b.graph.strategies[v]);
    }
  }
  const solvers::ConstrainedProblem& x = a.graph.problem;
  const solvers::ConstrainedProblem& y = b.graph.problem;
  expect_same(x.objective.unary, y.objective.unary);
  ASSERT_EQ(x.objective.factors.size(), y.objective.factors.size());
  for (std::size_t f = 0; f < x.objective.factors.size(); ++f) {
    EXPECT_EQ(x.objective.factors[f].scope, y.objective.factors[f].scope);
    expect_same(x.objective.factors[f].cost, y.objective.factors[f].cost);
  }
  ASSERT_EQ(x.rows.size(), y.rows.size());
  for (std::size_t r = 0; r < x.rows.size(); ++r) {
    EXPECT_EQ(x.rows[r].limit, y.rows[r].limit);
    EXPECT_EQ(x.rows[r].constant, y.rows[r].constant);
    expect_same(x.rows[r].unary, y.rows[r].unary);
    expect_same(x.rows[r].factors, y.rows[r].factors);
  }
  ASSERT_EQ(a.cases.size(), b.cases.size());
  for (std::size_t c = 0; c < a.cases.size(); ++c) {
    EXPECT_EQ(a.cases[c].limits, b.cases[c].limits);
    EXPECT_EQ(a.cases[c].optimum, b.cases[c].optimum);
  }
}

std::string gzip(const std::string& text) {
  z_stream stream{};
  constexpr int kGzip = 16;
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, MAX_WBITS + kGzip, 9, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  std::string in = text;
  stream.next_in = reinterpret_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

constexpr const char* kPublished = R"({"name": "two", "unit": "s",
  "cases": [{"memory_limit": null, "optimum": 1.5}, {"memory_limit": 10.0, "lagrangian_bound": 1}],
  "edges": [{"from": 0, "to": 1, "cost": [[0, 1, 2], [3, 4, 5]]},
            {"from": 1, "to": 0, "cost": [[6, 7], [8, 9], [10, 11]]},
            {"from": 0, "to": 1, "cost": [[0, 1, 2], [3, 4, 5]]}],
  "nodes": [{"name": "a", "cost": [1, 2], "memory": [5, 6]}, {"cost": [1, 2, 3]}],
  "source": {"more": [1, {"x": null}]}})";

std::string error_of(const std::string& text) {
  const Result<StrategyGraphFile> file = parse_strategy_graph(text, "f.json");
  return file ? "" : file.error().text();
}

TEST(StrategyGraphJson, RoundTripsBitForBit) {
  const StrategyGraphFile file = example();
  const std::string text = to_json(file);
  const Result<StrategyGraphFile> read = parse_strategy_graph(text, "f.json");
  ASSERT_TRUE(read) << read.error().text() << text;
  expect_same(*read, file);
  EXPECT_EQ(to_json(*read), text);
  EXPECT_FALSE(json::parse(text, nullptr, false).is_discarded());
}

TEST(StrategyGraphJson, WritesSharedTablesOnce) {
  const json document = json::parse(to_json(example()));
  EXPECT_EQ(document["tables"].size(), 5U);
  EXPECT_EQ(document["nodes"][0]["cost"], document["nodes"][1]["cost"]);
  EXPECT_EQ(document["rows"][0]["nodes"][0][1], document["nodes"][0]["cost"]);
  EXPECT_EQ(document["nodes"][1]["strategies"], 0);
}

TEST(StrategyGraphJson, ReadsRandomProblemsBack) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    StrategyGraphFile file;
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    const auto numbers = [&](std::size_t n) {
      std::vector<double> values(n);
      for (double& value : values) {
        value = std::bit_cast<double>(random());
        value = std::abs(value) < 1e100 ? value : 1.0 / static_cast<double>(1 + below(1000));
      }
      return table(std::move(values));
    };
    const std::size_t n = below(8);
    file.graph.nodes.resize(n);
    for (std::size_t v = 0; v < n; ++v) {
      file.graph.problem.objective.unary.push_back(numbers(1 + below(4)));
    }
    for (std::size_t f = 0; n >= 2 && f < below(10); ++f) {
      const int a = static_cast<int>(below(n));
      const int b = static_cast<int>((static_cast<std::size_t>(a) + 1 + below(n - 1)) % n);
      const auto size_of = [&](int v) {
        return file.graph.problem.objective.unary[static_cast<std::size_t>(v)]->size();
      };
      file.graph.problem.objective.factors.push_back({{a, b}, numbers(size_of(a) * size_of(b))});
    }
    const Result<StrategyGraphFile> read = parse_strategy_graph(to_json(file), "f.json");
    ASSERT_TRUE(read) << "seed " << seed << ": " << read.error().text();
    expect_same(*read, file);
  }
}

TEST(StrategyGraphJson, ReadsThePublishedFormPlainAndCompressed) {
  for (const std::string& content : {std::string(kPublished), gzip(kPublished)}) {
    const Result<StrategyGraphFile> file = parse_strategy_graph(content, "f");
    ASSERT_TRUE(file) << file.error().text();
    const solvers::ConstrainedProblem& problem = file->graph.problem;
    EXPECT_EQ(file->graph.nodes, (std::vector<std::string>{"a", ""}));
    ASSERT_EQ(problem.rows.size(), 1U);
    EXPECT_EQ(problem.rows[0].limit, kInfinity);
    // Parallel edges add up, in either direction.
    EXPECT_EQ(evaluate(problem.objective, {1, 2}), 2 + 3 + 5 + 11 + 5);
    EXPECT_EQ(evaluate(problem, problem.rows[0], {1, 2}), 6);
    ASSERT_EQ(file->cases.size(), 2U);
    EXPECT_EQ(file->cases[0].limits, std::vector<double>{kInfinity});
    EXPECT_EQ(file->cases[0].optimum, 1.5);
    EXPECT_EQ(file->cases[1].limits, std::vector<double>{10});
    // Equal tables are one.
    EXPECT_EQ(problem.objective.factors[0].cost, problem.objective.factors[2].cost);
  }
}

TEST(StrategyGraphJson, SaysWhatIsWrongWithAPublishedInstance) {
  const auto after = [](const auto& change) {
    json document = json::parse(kPublished);
    change(document);
    return error_of(document.dump());
  };
  EXPECT_EQ(after([](json& d) { d["edges"][0]["to"] = 2; }),
            "f.json: edges / 0: there is no node 2; the file has 2");
  EXPECT_EQ(after([](json& d) { d["edges"][0]["to"] = 0; }),
            "f.json: edges / 0: joins node 0 with itself; add such costs to the node");
  EXPECT_EQ(after([](json& d) { d["edges"][0]["to"] = -1; }),
            "f.json: edges / 0 / to: expected a whole number from 0 to 2147483647, found -1");
  EXPECT_EQ(after([](json& d) {
              d["edges"][0]["cost"][1] = {1, 2};
            }),
            "f.json: edges / 0 / cost / 1: a matrix row of 2 numbers after rows of 3");
  EXPECT_EQ(after([](json& d) {
              d["edges"][0]["cost"] = {{1, 2}, {3, 4}, {5, 6}};
            }),
            "f.json: edges / 0 / cost: matrix rows of 2 numbers; expected 3, one for each strategy "
            "of node 1");
  EXPECT_EQ(after([](json& d) { d["edges"][0]["cost"][1][2] = "x"; }),
            "f.json: edges / 0 / cost / 1 / 2: expected a number or \"inf\", found \"x\"");
  EXPECT_EQ(after([](json& d) { d["nodes"][0]["memory"] = {1}; }),
            "f.json: nodes / 0 / memory: has 1 numbers; expected 2, one for each strategy");
  EXPECT_EQ(after([](json& d) { d["nodes"][0]["memory"][0] = "inf"; }),
            "f.json: nodes / 0 / memory / 0: expected a number, found \"inf\"");
  EXPECT_EQ(after([](json& d) { d["nodes"][0]["cost"] = json::array(); }),
            "f.json: nodes / 0 / cost: a node needs at least one strategy");
  EXPECT_EQ(after([](json& d) { d["nodes"][1] = json::object(); }),
            "f.json: nodes / 1: a node without \"cost\", the list of its costs");
  EXPECT_THAT(after([](json& d) { d.erase("edges"); }), HasSubstr("no \"format\""));
  EXPECT_THAT(after([](json& d) { d.erase("nodes"); }), HasSubstr("\"nodes\" is missing"));
}

TEST(StrategyGraphJson, SaysWhatIsWrongWithOurForm) {
  const auto after = [](const auto& change) {
    json document = json::parse(to_json(example()));
    change(document);
    return error_of(document.dump());
  };
  EXPECT_EQ(after([](json&) {}), "");
  EXPECT_THAT(after([](json& d) { d["format"] = "shardplan.plan"; }),
              HasSubstr("is \"shardplan.plan\"; a problem file says"));
  EXPECT_THAT(after([](json& d) { d["version"] = 2; }), HasSubstr("version 2 is newer"));
  EXPECT_THAT(after([](json& d) { d.erase("version"); }), HasSubstr("\"version\" is missing"));
  EXPECT_EQ(after([](json& d) { d["nodes"][1]["costs"] = 1; }),
            "f.json: nodes / 1 / costs: unknown field \"costs\"");
  EXPECT_EQ(after([](json& d) { d["nodes"][0]["cost"] = 99; }),
            "f.json: nodes / 0 / cost: there is no table 99; the file has 5");
  EXPECT_EQ(after([](json& d) { d["factors"][0]["cost"] = d["nodes"][0]["cost"]; }),
            "f.json: factors / 0 / cost: has 2 numbers; expected 6, 3 x 2 strategies");
  EXPECT_THAT(after([](json& d) { d["factors"][0]["nodes"] = json::array(); }),
              HasSubstr("joins 0 nodes"));
  EXPECT_THAT(after([](json& d) { d["factors"][0]["nodes"] = {0, 0}; }), HasSubstr("with itself"));
  EXPECT_THAT(after([](json& d) { d["rows"][0]["nodes"][0] = {0}; }),
              HasSubstr("expected an index and a table"));
  EXPECT_THAT(after([](json& d) { d["rows"][0]["nodes"][0][0] = 7; }), HasSubstr("no 7 of the"));
  EXPECT_THAT(after([](json& d) { d["rows"][0]["nodes"].push_back(d["rows"][0]["nodes"][0]); }),
              HasSubstr("twice"));
  EXPECT_THAT(after([](json& d) {
                d["rows"][1]["nodes"][0][1] = {"inf", 2};
              }),
              HasSubstr("found \"inf\""));
  EXPECT_THAT(after([](json& d) { d["cases"][0]["memory_limits"] = {1}; }),
              HasSubstr("1 limits for 2 rows"));
  EXPECT_THAT(after([](json& d) { d["nodes"][0]["strategies"] = {"one"}; }),
              HasSubstr("1 names for 2 strategies"));
  EXPECT_THAT(after([](json& d) { d["nodes"][0]["strategies"] = 0; }), HasSubstr("not before it"));
}

TEST(StrategyGraphJson, RefusesTextThatIsNoJson) {
  EXPECT_THAT(error_of(""), HasSubstr("the text ends where an object should be"));
  EXPECT_THAT(error_of("[]"), HasSubstr("expected an object, found a list"));
  EXPECT_THAT(error_of("{} x"), HasSubstr("after the end"));
  EXPECT_THAT(error_of("{\"nodes\": [{\"cost\": [NaN]}]}"), HasSubstr("found NaN"));
  EXPECT_THAT(error_of("{\"nodes\": [{\"cost\": [1e400]}]}"), HasSubstr("out of range"));
  EXPECT_THAT(error_of("{\"nodes\": [{\"cost\": [-Infinity]}]}"), HasSubstr("-Infinity"));
  EXPECT_THAT(error_of("{\"nodes\": [{\"cost\": [01]}]}"), HasSubstr("line 1, column 22"));
  EXPECT_THAT(error_of("{\"nodes\": [{\"cost\": [1,]}]}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of("{\"nodes\": [], \"nodes\": []}"), HasSubstr("occurs twice"));
  EXPECT_THAT(error_of("{\"name\": \"\xff\"}"), HasSubstr("UTF-8"));
  EXPECT_THAT(error_of("{\"x\": " + std::string(100000, '[')), HasSubstr("nested deeper than 64"));
  EXPECT_THAT(error_of(std::string(100000, '{')), HasSubstr("expected a text"));
}

TEST(StrategyGraphJson, RefusesDamagedGzip) {
  const std::string whole = gzip(kPublished);
  for (std::size_t size = 2; size < whole.size(); ++size) {
    EXPECT_THAT(error_of(whole.substr(0, size)), HasSubstr("truncated")) << size;
  }
  EXPECT_THAT(error_of(whole + "rest"), HasSubstr("gzip data are damaged"));
  const Result<std::string> twice = inflate_gzip(whole + whole, "f");
  ASSERT_TRUE(twice);
  EXPECT_EQ(*twice, std::string(kPublished) + kPublished);
  const std::string bomb = gzip(std::string(std::size_t{100} << 20U, ' '));
  EXPECT_LT(bomb.size(), 200000U);
  EXPECT_THAT(error_of(bomb), HasSubstr("too much for a problem"));
}

/// Every text of this kind is read or refused, and never more than that.
TEST(StrategyGraphJson, SurvivesDamage) {
  const std::string own = to_json(example());
  const std::string odd[] = {
      "-1", "1e999", "null", "[", "]", "{", "\"inf\"", "9223372036854775808", ""};
  for (unsigned seed = 0; seed < 4000; ++seed) {
    std::mt19937_64 random(seed);
    std::string text = seed % 2 == 0 ? own : kPublished;
    if (seed % 8 == 7) {
      text = gzip(text);
    }
    for (unsigned k = 0; k <= random() % 3; ++k) {
      const std::size_t at = random() % text.size();
      const std::size_t length = 1 + random() % 4;
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, length);
          break;
        default:
          text.replace(at, length, odd[random() % std::size(odd)]);
      }
    }
    const Result<StrategyGraphFile> file = parse_strategy_graph(text, "f.json");
    if (!file) {
      EXPECT_THAT(file.error().text(), StartsWith("f.json")) << "seed " << seed;
    } else {
      // What was accepted can be evaluated and written.
      const std::vector<int> first(file->graph.problem.objective.unary.size(), 0);
      EXPECT_FALSE(std::isnan(evaluate(file->graph.problem.objective, first))) << "seed " << seed;
      EXPECT_TRUE(parse_strategy_graph(to_json(*file), "f.json")) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace shardplan::problem
