#include "shardplan/solvers/class_elimination.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>

#include "shardplan/solvers/elimination.h"
#include "shardplan/solvers/min_plus.h"

namespace shardplan::solvers {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Rng = std::mt19937;

int below(Rng& rng, std::size_t count) {
  return static_cast<int>(rng() % static_cast<unsigned>(count));
}

/// Small numbers of quarters, so that sums are exact in any order; now and then infinite.
double quarter(Rng& rng, bool may_forbid) {
  return may_forbid && rng() % 9 == 0 ? kInfinity : 0.25 * below(rng, 40);
}

solvers::CostTable random_table(Rng& rng, std::size_t entries, bool may_forbid) {
  std::vector<double> values(entries);
  std::generate(values.begin(), values.end(), [&] { return quarter(rng, may_forbid); });
  return std::make_shared<const std::vector<double>>(std::move(values));
}

std::shared_ptr<const ChoiceClasses> random_classes(Rng& rng, std::size_t choices) {
  ChoiceClasses classes;
  classes.count = 1 + static_cast<std::size_t>(below(rng, choices));
  for (std::size_t c = 0; c < choices; ++c) {
    classes.of.push_back(static_cast<std::uint16_t>(
        c < classes.count ? c : static_cast<std::size_t>(below(rng, classes.count))));
  }
  std::shuffle(classes.of.begin(), classes.of.end(), rng);
  return std::make_shared<const ChoiceClasses>(std::move(classes));
}

/// A network of up to `variables` variables with factors of one to three of them; equal tables and
/// classes now and then, as equal layers have them.
ClassNetwork random_network(Rng& rng, std::size_t variables, std::size_t factors, bool may_forbid) {
  ClassNetwork network;
  const std::size_t choices = 1 + static_cast<std::size_t>(below(rng, 5));
  const solvers::CostTable shared = random_table(rng, choices, false);
  for (std::size_t v = 0; v < variables; ++v) {
    const bool alike = rng() % 2 == 0;
    network.unary.push_back(
        alike ? shared
              : random_table(rng, 1 + static_cast<std::size_t>(below(rng, 5)), may_forbid));
  }
  for (std::size_t f = 0; f < factors; ++f) {
    std::vector<int> all(variables);
    for (std::size_t v = 0; v < variables; ++v) {
      all[v] = static_cast<int>(v);
    }
    std::shuffle(all.begin(), all.end(), rng);
    all.resize(std::min<std::size_t>(variables, 1 + static_cast<std::size_t>(below(rng, 3))));
    ClassNetwork::Factor factor;
    factor.scope = all;
    const bool repeat = f > 0 && rng() % 3 == 0;
    if (repeat) {
      const ClassNetwork::Factor& earlier =
          network.factors[static_cast<std::size_t>(below(rng, network.factors.size()))];
      const bool fits =
          earlier.scope.size() == all.size() &&
          std::equal(all.begin(), all.end(), earlier.scope.begin(), [&](int a, int b) {
            return network.unary[static_cast<std::size_t>(a)]->size() ==
                   network.unary[static_cast<std::size_t>(b)]->size();
          });
      if (fits) {
        factor.classes = earlier.classes;
        factor.cost = earlier.cost;
      }
    }
    if (!factor.cost) {
      std::size_t entries = 1;
      for (const int v : all) {
        factor.classes.push_back(
            random_classes(rng, network.unary[static_cast<std::size_t>(v)]->size()));
        entries *= factor.classes.back()->count;
      }
      factor.cost = random_table(rng, entries, may_forbid);
    }
    network.factors.push_back(std::move(factor));
  }
  return network;
}

TEST(ClassElimination, FindsTheOptimumOfRandomNetworks) {
  Rng rng(42);
  int finite = 0;
  for (int round = 0; round < 1500; ++round) {
    const auto variables = 1 + static_cast<std::size_t>(below(rng, 8));
    const ClassNetwork network = random_network(
        rng, variables, static_cast<std::size_t>(below(rng, 2 * variables)), rng() % 2 == 0);
    const solvers::CostNetwork expanded = expand(network);
    const auto expected = solvers::Elimination().minimise(expanded);
    const ClassSolution found = minimise(network);
    ASSERT_TRUE(expected.solved && found.solved);
    ASSERT_EQ(found.cost, expected.solution.cost) << "round " << round;
    EXPECT_EQ(evaluate(network, found.choice), found.cost) << "round " << round;
    EXPECT_EQ(solvers::evaluate(expanded, found.choice), found.cost) << "round " << round;
    EXPECT_EQ(found.lower_bound, found.cost);
    finite += std::isfinite(found.cost) ? 1 : 0;
    for (const double split_work : {1.0, 20.0, 200.0}) {
      const ClassSolution relaxed = minimise(network, {.split_work = split_work});
      ASSERT_TRUE(relaxed.solved);
      EXPECT_LE(relaxed.lower_bound, found.cost * (1 + 1e-12)) << "round " << round;
      EXPECT_GE(relaxed.cost, found.cost * (1 - 1e-12)) << "round " << round;
      EXPECT_EQ(evaluate(network, relaxed.choice), relaxed.cost);
    }
  }
  EXPECT_GT(finite, 1000);
}

TEST(ClassElimination, AChainOfEqualLayersWithSkipConnections) {
  Rng rng(7);
  const auto unary = random_table(rng, 12, false);
  const auto classes = random_classes(rng, 12);
  const auto other = random_classes(rng, 12);
  const auto step = random_table(rng, classes->count * other->count, false);
  const auto skip = random_table(rng, other->count * other->count, false);
  ClassNetwork network;
  for (int v = 0; v < 60; ++v) {
    network.unary.push_back(unary);
    if (v > 0) {
      network.factors.push_back({{v - 1, v}, {classes, other}, step});
    }
    if (v > 2) {
      network.factors.push_back({{v, v - 3}, {other, other}, skip});
    }
  }
  const ClassSolution found = minimise(network);
  EXPECT_EQ(found.cost, solvers::Elimination().minimise(expand(network)).solution.cost);
  EXPECT_EQ(evaluate(network, found.choice), found.cost);
}

TEST(ClassElimination, RefusesWhatWouldTakeTooLong) {
  Rng rng(3);
  ClassNetwork network;
  for (int v = 0; v < 4; ++v) {
    network.unary.push_back(random_table(rng, 30, false));
  }
  ChoiceClasses each;
  each.count = 30;
  for (std::uint16_t c = 0; c < 30; ++c) {
    each.of.push_back(c);
  }
  const auto classes = std::make_shared<const ChoiceClasses>(each);
  for (int v = 0; v < 4; ++v) {
    for (int w = 0; w < v; ++w) {
      network.factors.push_back({{v, w}, {classes, classes}, random_table(rng, 900, false)});
    }
  }
  EXPECT_FALSE(minimise(network, {.max_work = 1e5}).solved);
  EXPECT_TRUE(minimise(network).solved);
}

TEST(MinPlus, IsTheProductOfItsDefinition) {
  Rng rng(11);
  using Sizes = std::array<std::size_t, 3>;  // rows, depth, columns
  for (const auto& [rows, depth, columns] :
       {Sizes{1, 1, 1}, Sizes{4, 128, 16}, Sizes{5, 129, 17}, Sizes{3, 300, 33}, Sizes{70, 7, 2}}) {
    for (const unsigned forbidden : {0U, 3U, 9U, 10U}) {  // of ten
      const auto make = [&](std::size_t entries) {
        std::vector<double> out(entries);
        std::generate(out.begin(), out.end(), [&] {
          return rng() % 10 < forbidden ? kInfinity : quarter(rng, false);
        });
        return out;
      };
      const std::vector<double> left = make(rows * depth);
      const std::vector<double> right = make(columns * depth);
      const std::vector<double> out = min_plus_product(left, right, depth);
      ASSERT_EQ(out.size(), rows * columns);
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t c = 0; c < columns; ++c) {
          double least = kInfinity;
          for (std::size_t z = 0; z < depth; ++z) {
            least = std::min(least, left[r * depth + z] + right[c * depth + z]);
          }
          ASSERT_EQ(out[r * columns + c], least);
        }
      }
    }
  }
}

}  // namespace
}  // namespace shardplan::solvers
