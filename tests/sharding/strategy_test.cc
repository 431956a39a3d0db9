#include "shardplan/sharding/strategy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "tests/sharding/layout_testing.h"

namespace shardplan::sharding {
namespace {

using cluster::DeviceMesh;
using ops::Axis;
using ops::AxisMap;
using ops::AxisRole;
using ops::DimAxes;

/// "b m k, k n -> b m n" with both partial rules.
AxisMap matmul(std::int64_t b, std::int64_t m, std::int64_t k, std::int64_t n) {
  AxisMap map;
  map.axes = {{"b", b}, {"m", m}, {"k", k, AxisRole::kSum}, {"n", n}};
  map.inputs = {{{0}, {1}, {2}}, {{2}, {3}}};
  map.results = {{{0}, {1}, {3}}};
  map.partials = {{{0}, {0}}, {{1}, {0}}};
  return map;
}

std::vector<std::string> names(const std::vector<Strategy>& strategies,
                               const AxisMap& map,
                               const DeviceMesh& mesh) {
  std::vector<std::string> out;
  out.reserve(strategies.size());
  for (const Strategy& strategy : strategies) {
    out.push_back(to_string(strategy, map, mesh));
  }
  return out;
}

std::string layouts_text(const AxisMap& map, const std::string& text, const DeviceMesh& mesh) {
  const Result<Strategy> strategy = parse_strategy(text, map, mesh);
  if (!strategy) {
    return strategy.error().text();
  }
  const std::optional<OpLayouts> found = layouts(map, *strategy, mesh);
  if (!found) {
    return "impossible: " + check_strategy(map, *strategy, mesh).error().text();
  }
  std::string out;
  for (std::size_t i = 0; i < map.inputs.size(); ++i) {
    out += (i == 0 ? "" : ", ") + to_string(found->inputs[i], map.inputs[i].size(), mesh);
  }
  out += " ->";
  for (std::size_t r = 0; r < map.results.size(); ++r) {
    out += (r == 0 ? " " : ", ") + to_string(found->results[r], map.results[r].size(), mesh);
  }
  return out;
}

TEST(Strategy, GivesTheWellKnownLayoutsOfAMatrixProduct) {
  const DeviceMesh mesh{{{"data", 2}, {"tensor", 4}}};
  const AxisMap map = matmul(8, 16, 32, 64);
  EXPECT_EQ(layouts_text(map, "replicated", mesh), "[-, -, -], [-, -] -> [-, -, -]");
  EXPECT_EQ(layouts_text(map, "data=b", mesh), "[data, -, -], [-, -] -> [data, -, -]");
  EXPECT_EQ(layouts_text(map, "data=b tensor=n", mesh),
            "[data, -, -], [-, tensor] -> [data, -, tensor]");
  EXPECT_EQ(layouts_text(map, "data=b tensor=k", mesh),
            "[data, -, tensor], [tensor, -] -> [data, -, -] + sum(tensor)");
  EXPECT_EQ(layouts_text(map, "tensor=b data=b", mesh),
            "[data·tensor, -, -], [-, -] -> [data·tensor, -, -]");
  EXPECT_EQ(layouts_text(map, "data=b tensor=partial:0", mesh),
            "[data, -, -] + sum(tensor), [-, -] -> [data, -, -] + sum(tensor)");
  EXPECT_EQ(layouts_text(map, "data=partial:0 tensor=partial:1", mesh),
            "[-, -, -] + sum(data), [-, -] + sum(tensor) -> [-, -, -] + sum(data·tensor)");
}

TEST(Strategy, RolesMakePartialResults) {
  const DeviceMesh mesh = make_mesh({2});
  AxisMap lookup;  // "?v d, b -> b d"
  lookup.axes = {{"v", 4, AxisRole::kLookup, true}, {"d", 2}, {"b", 2}};
  lookup.inputs = {{{0}, {1}}, {{2}}};
  lookup.results = {{{2}, {1}}};
  EXPECT_EQ(layouts_text(lookup, "a=v", mesh), "[a, -], [-] -> [-, -] + sum(a)");

  AxisMap maximum;  // "n ^v -> n"
  maximum.axes = {{"n", 4}, {"v", 4, AxisRole::kMax}};
  maximum.inputs = {{{0}, {1}}};
  maximum.results = {{{0}}};
  EXPECT_EQ(layouts_text(maximum, "a=v", mesh), "[-, a] -> [-] + max(a)");

  AxisMap two;  // "n v -> n v, n, v": v is summed for the second result only
  two.axes = {{"n", 4}, {"v", 4, AxisRole::kSum}};
  two.inputs = {{{0}, {1}}};
  two.results = {{{0}, {1}}, {{0}}, {{1}}};
  EXPECT_EQ(layouts_text(two, "a=v", mesh), "[-, a] -> [-, a], [-] + sum(a), [a]");
  EXPECT_EQ(layouts_text(two, "a=n", mesh), "[a, -] -> [a, -], [a], [-]");
  two.partials = {{{0}, {0, 1}}};
  EXPECT_EQ(layouts_text(two, "a=partial:0", mesh),
            "impossible: partial rule 0 does not tell what every result is");
}

TEST(Strategy, CutsMergedDimensionsFromTheMajorEnd) {
  const DeviceMesh mesh{{{"data", 2}, {"tensor", 4}}};
  AxisMap map;  // "b (h d) -> b h d"
  map.axes = {{"b", 8}, {"h", 4}, {"d", 8}};
  map.inputs = {{{0}, {1, 2}}};
  map.results = {{{0}, {1}, {2}}};
  EXPECT_EQ(layouts_text(map, "tensor=h", mesh), "[-, tensor] -> [-, tensor, -]");
  EXPECT_EQ(layouts_text(map, "data=h", mesh), "[-, data] -> [-, data, -]");
  EXPECT_EQ(layouts_text(map, "tensor=h data=d", mesh), "[-, tensor·data] -> [-, tensor, data]");
  EXPECT_EQ(
      layouts_text(map, "data=h tensor=d", mesh),
      "impossible: axis d (size 8) cannot be cut by tensor 4: dimension 1 of operand 0 merges "
      "it with a more major axis that is not cut into single elements");
  map.axes[1].size = 1;
  EXPECT_EQ(layouts_text(map, "tensor=d", mesh), "[-, tensor] -> [-, -, tensor]");
  // The same on the side of the result: "b h d -> b (h d)".
  std::swap(map.inputs, map.results);
  map.axes[1].size = 4;
  EXPECT_EQ(layouts_text(map, "tensor=d", mesh).substr(0, 10), "impossible");
  EXPECT_EQ(layouts_text(map, "tensor=h data=d", mesh), "[-, tensor, data] -> [-, tensor·data]");
}

TEST(Strategy, SaysWhatIsNotPossible) {
  const DeviceMesh mesh{{{"data", 2}, {"tensor", 4}}};
  AxisMap map = matmul(4, 3, 2, 1);
  EXPECT_EQ(layouts_text(map, "tensor=k", mesh),
            "impossible: axis k (size 2) is too small to be cut by tensor 4");
  EXPECT_EQ(layouts_text(map, "data=b tensor=b", mesh),
            "impossible: axis b (size 4) is too small to be cut by data 2 × tensor 4");
  AxisMap heads;  // "b (h d) -> b h d"
  heads.axes = {{"b", 8}, {"h", 6}, {"d", 8}};
  heads.inputs = {{{0}, {1, 2}}};
  heads.results = {{{0}, {1}, {2}}};
  EXPECT_EQ(layouts_text(heads, "tensor=h", mesh),
            "impossible: axis h (size 6) cannot be cut evenly by tensor 4, and is merged with a "
            "more minor axis");
  map.inputs[0] = {{0}, {0}};
  EXPECT_EQ(layouts_text(map, "data=b", mesh),
            "impossible: axis b (size 4) cannot be cut: operand 0 has it twice");
  Strategy wrong;
  wrong.set(0, 9);
  EXPECT_FALSE(layouts(map, wrong, mesh));
  EXPECT_EQ(check_strategy(map, wrong, mesh).error().text(),
            "mesh axis data is given to op axis 9, the op has 4");
  wrong.set(0, Strategy::kPartialBase - 5);
  EXPECT_FALSE(layouts(map, wrong, mesh));
  EXPECT_EQ(check_strategy(map, wrong, mesh).error().text(),
            "mesh axis data is given to partial rule 5, the op has 2");
}

TEST(Strategy, CutsUnevenlyWhatDoesNotDivide) {
  const DeviceMesh mesh{{{"data", 2}, {"tensor", 4}}};
  const AxisMap map = matmul(6, 3, 5, 2);
  EXPECT_EQ(layouts_text(map, "tensor=b", mesh), "[tensor, -, -], [-, -] -> [tensor, -, -]");
  EXPECT_EQ(layouts_text(map, "data=b tensor=b", mesh),
            "[data·tensor, -, -], [-, -] -> [data·tensor, -, -]");
  EXPECT_EQ(layouts_text(map, "data=m tensor=k", mesh),
            "[-, data, tensor], [tensor, -] -> [-, data, -] + sum(tensor)");
  AxisMap merged;  // "(h d) -> h d": h in single elements, then d
  merged.axes = {{"h", 2}, {"d", 7}};
  merged.inputs = {{{0, 1}}};
  merged.results = {{{0}, {1}}};
  EXPECT_EQ(layouts_text(merged, "data=h tensor=d", mesh), "[data·tensor] -> [data, tensor]");
}

TEST(Strategy, EnumeratesInAFixedOrder) {
  const DeviceMesh mesh{{{"data", 2}, {"tensor", 4}}};
  EXPECT_EQ(names(enumerate_strategies(matmul(4, 1, 1, 8), mesh), matmul(4, 1, 1, 8), mesh),
            (std::vector<std::string>{"replicated",
                                      "tensor=b",
                                      "tensor=n",
                                      "tensor=partial:0",
                                      "tensor=partial:1",
                                      "data=b",
                                      "data=b tensor=n",
                                      "data=b tensor=partial:0",
                                      "data=b tensor=partial:1",
                                      "data=n",
                                      "data=n tensor=b",
                                      "data=n tensor=n",
                                      "data=n tensor=partial:0",
                                      "data=n tensor=partial:1",
                                      "data=partial:0",
                                      "data=partial:0 tensor=b",
                                      "data=partial:0 tensor=n",
                                      "data=partial:0 tensor=partial:0",
                                      "data=partial:0 tensor=partial:1",
                                      "data=partial:1",
                                      "data=partial:1 tensor=b",
                                      "data=partial:1 tensor=n",
                                      "data=partial:1 tensor=partial:0",
                                      "data=partial:1 tensor=partial:1"}));
  EXPECT_EQ(enumerate_strategies(matmul(4, 4, 4, 4), make_mesh({1})).size(), 1U);
  EXPECT_EQ(enumerate_strategies(matmul(4, 4, 4, 4), DeviceMesh{}).size(), 1U);
  // (4 axes + 2 rules + none)^4 less what does not divide: three or more cuts of one axis of 4.
  EXPECT_EQ(enumerate_strategies(matmul(16, 16, 16, 16), make_mesh({2, 2, 2, 2})).size(), 2401U);
}

TEST(Strategy, ParsesItsTextAndNamesMistakes) {
  const DeviceMesh mesh{{{"data", 2}, {"tensor", 4}}};
  const AxisMap map = matmul(8, 16, 32, 64);
  for (const Strategy& strategy : enumerate_strategies(map, mesh)) {
    const Result<Strategy> parsed = parse_strategy(to_string(strategy, map, mesh), map, mesh);
    ASSERT_TRUE(parsed) << parsed.error().text();
    EXPECT_EQ(*parsed, strategy);
  }
  const auto error = [&](std::string_view text) {
    const Result<Strategy> strategy = parse_strategy(text, map, mesh);
    return strategy ? std::string("no error") : strategy.error().text();
  };
  EXPECT_EQ(error("tensr=b"), "no mesh axis is named \"tensr\"; did you mean \"tensor\"?");
  EXPECT_EQ(error("data=zebra"), "no axis of this op is named \"zebra\"; there are b, m, k, n");
  EXPECT_EQ(error("data"),
            "\"data\" is no choice: expected \"mesh axis=op axis\" or \"replicated\"");
  EXPECT_EQ(error("data=b data=m"), "mesh axis \"data\" is given twice in \"data=b data=m\"");
  EXPECT_EQ(error("data=partial:2"),
            "\"partial:2\" names no partial rule: the op has 2, counted from 0");
  EXPECT_NE(error("data=partial:"), "no error");
  EXPECT_NE(error("data=partial:99999999999999999999999"), "no error");
  EXPECT_NE(error(""), "no error");
  EXPECT_NE(error("replicated data=b"), "no error");
  EXPECT_EQ(*parse_strategy("  tensor=n\t data=b ", map, mesh),
            *parse_strategy("data=b tensor=n", map, mesh));
}

// ---- Twins ----

/// The mesh axes given to an op axis, in mesh order.
std::vector<int> cutters(const Strategy& strategy, int axis, const DeviceMesh& mesh) {
  std::vector<int> out;
  for (int m = 0; m < static_cast<int>(mesh.axes.size()); ++m) {
    if (strategy.at(m) == axis) {
      out.push_back(m);
    }
  }
  return out;
}

/// Which elements of an op axis a rank owns: the mesh axes given to it, in mesh order, cut it into
/// contiguous blocks.
std::set<std::int64_t> owned(const AxisMap& map,
                             const Strategy& strategy,
                             int axis,
                             std::int64_t rank,
                             const DeviceMesh& mesh) {
  const std::vector<std::int64_t> mine = elements_of(
      map.axes[static_cast<std::size_t>(axis)].size, cutters(strategy, axis, mesh), rank, mesh);
  return {mine.begin(), mine.end()};
}

/// Whether the axis is cut into parts that are less than twice as large as even ones, and evenly
/// where `dim` has axes below it.
bool worth_cutting(const AxisMap& map,
                   const Strategy& strategy,
                   const std::vector<int>& dim,
                   int axis,
                   const DeviceMesh& mesh) {
  std::int64_t parts = 1;
  for (const int m : cutters(strategy, axis, mesh)) {
    parts *= mesh.axes[static_cast<std::size_t>(m)].size;
  }
  const std::int64_t size = map.axes[static_cast<std::size_t>(axis)].size;
  return size % parts == 0 || (parts < 2 * size && axis == dim.back());
}

std::int64_t dim_size(const AxisMap& map, const std::vector<int>& dim) {
  std::int64_t size = 1;
  for (const int axis : dim) {
    size *= map.axes[static_cast<std::size_t>(axis)].size;
  }
  return size;
}

/// Which elements of a (merged) dimension a rank owns: those whose every digit it owns.
std::set<std::int64_t> owned_of_dim(const AxisMap& map,
                                    const Strategy& strategy,
                                    const std::vector<int>& dim,
                                    std::int64_t rank,
                                    const DeviceMesh& mesh) {
  std::set<std::int64_t> out;
  for (std::int64_t i = 0; i < dim_size(map, dim); ++i) {
    std::int64_t rest = i;
    bool mine = true;
    for (auto axis = dim.rbegin(); axis != dim.rend(); ++axis) {
      const std::int64_t size = map.axes[static_cast<std::size_t>(*axis)].size;
      mine = mine && owned(map, strategy, *axis, rank, mesh).contains(rest % size);
      rest /= size;
    }
    if (mine) {
      out.insert(i);
    }
  }
  return out;
}

bool is_contiguous(const std::set<std::int64_t>& set) {
  return set.empty() || *set.rbegin() - *set.begin() + 1 == static_cast<std::int64_t>(set.size());
}

/// Whether every rank's elements of every dimension are one block.
bool twin_possible(const AxisMap& map, const Strategy& strategy, const DeviceMesh& mesh) {
  for (const auto* operands : {&map.inputs, &map.results}) {
    for (const DimAxes& dims : *operands) {
      for (const std::vector<int>& dim : dims) {
        if (!std::all_of(dim.begin(), dim.end(), [&](int axis) {
              return worth_cutting(map, strategy, dim, axis, mesh);
            })) {
          return false;
        }
        for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
          if (!is_contiguous(owned_of_dim(map, strategy, dim, rank, mesh))) {
            return false;
          }
        }
      }
    }
  }
  return true;
}

void expect_blocks(const AxisMap& map,
                   const Strategy& strategy,
                   const DimAxes& dims,
                   const ShardingSpec& spec,
                   const DeviceMesh& mesh) {
  for (std::size_t d = 0; d < dims.size(); ++d) {
    const int dim = static_cast<int>(d);
    for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
      const std::set<std::int64_t> set = owned_of_dim(map, strategy, dims[d], rank, mesh);
      const Range range = part(dim_size(map, dims[d]), spec.axes_of(dim), mesh, rank);
      ASSERT_EQ(static_cast<std::int64_t>(set.size()), range.size);
      ASSERT_TRUE(set.empty() || *set.begin() == range.start);
    }
  }
}

/// Every op axis at most once in an operand, all axes in the inputs, some merged dimensions.
AxisMap random_map(std::mt19937& random) {
  const std::array<std::int64_t, 8> sizes{1, 2, 3, 4, 5, 6, 7, 8};
  AxisMap map;
  for (int a = 0; a < 4; ++a) {
    map.axes.push_back({std::string(1, static_cast<char>('p' + a)), sizes[random() % 8]});
  }
  const auto operand = [&] {
    std::vector<int> order{0, 1, 2, 3};
    std::shuffle(order.begin(), order.end(), random);
    DimAxes dims;
    for (const int axis : order) {
      if (dims.empty() || random() % 3 != 0) {
        dims.emplace_back();
      }
      dims.back().push_back(axis);
    }
    return dims;
  };
  map.inputs = {operand()};
  map.results = {operand()};
  return map;
}

/// All (op axes + partial rules + 1)^(mesh axes) choices, possible or not.
std::vector<Strategy> all_choices(const AxisMap& map, const DeviceMesh& mesh) {
  std::vector<Strategy> out{Strategy{}};
  for (int m = 0; m < static_cast<int>(mesh.axes.size()); ++m) {
    std::vector<Strategy> next;
    for (const Strategy& strategy : out) {
      const int rules = static_cast<int>(map.partials.size());
      for (int choice = Strategy::kNone - rules; choice < static_cast<int>(map.axes.size());
           ++choice) {
        next.push_back(strategy);
        next.back().set(m, choice);
      }
    }
    out = next;
  }
  return out;
}

TEST(Strategy, LayoutsAreTheElementsThatEveryRankOwns) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const AxisMap map = random_map(random);
    const DeviceMesh mesh = make_mesh(seed % 3 == 0   ? std::vector<std::int64_t>{2, 2}
                                      : seed % 3 == 1 ? std::vector<std::int64_t>{2, 3}
                                                      : std::vector<std::int64_t>{2, 2, 2});
    for (const Strategy& strategy : all_choices(map, mesh)) {
      const std::optional<OpLayouts> found = layouts(map, strategy, mesh);
      const std::string what =
          "seed " + std::to_string(seed) + " " + to_string(strategy, map, mesh);
      ASSERT_EQ(found.has_value(), twin_possible(map, strategy, mesh)) << what;
      ASSERT_EQ(found.has_value(), check_strategy(map, strategy, mesh).has_value()) << what;
      if (found) {
        SCOPED_TRACE(what);
        expect_blocks(map, strategy, map.inputs[0], found->inputs[0], mesh);
        expect_blocks(map, strategy, map.results[0], found->results[0], mesh);
      }
    }
  }
}

TEST(Strategy, EnumerationIsAllThatIsPossible) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    AxisMap map = seed % 4 == 0 ? matmul(2, 4, 6, 8) : random_map(random);
    map.partials.push_back({{0}, {0}});
    const DeviceMesh mesh = make_mesh(seed % 2 == 0 ? std::vector<std::int64_t>{2, 3, 2}
                                                    : std::vector<std::int64_t>{4, 2});
    std::set<Strategy> expected;
    for (const Strategy& strategy : all_choices(map, mesh)) {
      if (layouts(map, strategy, mesh)) {
        expected.insert(strategy);
      }
    }
    const std::vector<Strategy> found = enumerate_strategies(map, mesh);
    EXPECT_EQ(found.front(), Strategy{});
    EXPECT_EQ(std::set<Strategy>(found.begin(), found.end()), expected) << "seed " << seed;
    EXPECT_EQ(found.size(), expected.size());
  }
}

/// b m k, k n -> b m n on whatever parts a rank has.
Dense local_product(const Dense& x, const Dense& w) {
  Dense out{{x.shape[0], x.shape[1], w.shape[1]}, {}};
  for (std::int64_t i = 0; i < product(out.shape); ++i) {
    const ir::Shape at = unflatten(i, out.shape);
    std::int64_t sum = 0;
    for (std::int64_t k = 0; k < x.shape[2]; ++k) {
      sum += x.data[static_cast<std::size_t>(flatten({at[0], at[1], k}, x.shape))] *
             w.data[static_cast<std::size_t>(flatten({k, at[2]}, w.shape))];
    }
    out.data.push_back(sum);
  }
  return out;
}

TEST(Strategy, EveryStrategyOfAProductComputesTheProduct) {
  Dense x{{2, 4, 4}, {}};
  Dense w{{4, 6}, {}};
  for (std::int64_t i = 0; i < 32; ++i) {
    x.data.push_back(i % 7 - 3);
  }
  for (std::int64_t i = 0; i < 24; ++i) {
    w.data.push_back(i % 5 + i);
  }
  const Dense whole = local_product(x, w);
  const AxisMap map = matmul(2, 4, 4, 6);
  for (const DeviceMesh& mesh : {make_mesh({2, 2}), make_mesh({2, 3}), make_mesh({2, 2, 2})}) {
    for (const Strategy& strategy : enumerate_strategies(map, mesh)) {
      const std::optional<OpLayouts> found = layouts(map, strategy, mesh);
      ASSERT_TRUE(found);
      const std::vector<Dense> xs = distribute(x, found->inputs[0], mesh);
      const std::vector<Dense> ws = distribute(w, found->inputs[1], mesh);
      std::vector<Dense> held;
      for (std::size_t rank = 0; rank < xs.size(); ++rank) {
        held.push_back(local_product(xs[rank], ws[rank]));
      }
      EXPECT_TRUE(represents(held, whole, found->results[0], mesh))
          << to_string(strategy, map, mesh);
    }
  }
}

}  // namespace
}  // namespace shardplan::sharding
