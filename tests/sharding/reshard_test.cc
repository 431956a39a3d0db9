#include "shardplan/sharding/reshard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "tests/sharding/layout_testing.h"

namespace shardplan::sharding {
namespace {

using cluster::DeviceMesh;

// ---- What a step does to the parts that the ranks hold, from its documentation alone ----

std::vector<Dense> run_step(const ReshardStep& step,
                            const std::vector<Dense>& held,
                            const DeviceMesh& mesh) {
  const std::vector<std::int64_t> sources = step.kind == CollectiveKind::kCollectivePermute
                                                ? permute_sources(step, mesh)
                                                : std::vector<std::int64_t>{};
  std::vector<Dense> out;
  for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<std::int64_t> group = mesh.group(rank, step.axes);
    std::vector<Dense> theirs;
    theirs.reserve(group.size());
    for (const std::int64_t member : group) {
      theirs.push_back(held[static_cast<std::size_t>(member)]);
    }
    switch (step.kind) {
      case CollectiveKind::kHaloExchange:
        ADD_FAILURE() << "a halo is no layout";
        break;
      case CollectiveKind::kSlice:
        out.push_back(slice(held[static_cast<std::size_t>(rank)], step.dim, step.axes, rank, mesh));
        break;
      case CollectiveKind::kAllGather:
        out.push_back(concat(theirs, step.dim));
        break;
      case CollectiveKind::kReduceScatter:
        out.push_back(slice(reduce(theirs, step.reduction), step.dim, step.axes, rank, mesh));
        break;
      case CollectiveKind::kAllReduce:
        out.push_back(reduce(theirs, step.reduction));
        break;
      case CollectiveKind::kAllToAll:
        for (Dense& part : theirs) {
          part = slice(part, step.split_dim, step.axes, rank, mesh);
        }
        out.push_back(concat(theirs, step.dim));
        break;
      case CollectiveKind::kCollectivePermute: {
        const std::int64_t source = sources[static_cast<std::size_t>(rank)];
        EXPECT_NE(std::find(group.begin(), group.end(), source), group.end());
        out.push_back(held[static_cast<std::size_t>(source)]);
        break;
      }
    }
  }
  return out;
}

// ---- Which single steps lead from one layout to another: a declarative twin ----

bool is_prefix(const std::vector<int>& shorter, const std::vector<int>& longer) {
  return shorter.size() < longer.size() &&
         std::equal(shorter.begin(), shorter.end(), longer.begin());
}

std::vector<int> suffix(const std::vector<int>& list, std::size_t start) {
  return {list.begin() + static_cast<std::ptrdiff_t>(start), list.end()};
}

/// Parts of every dimension of the rank whose only coordinate other than 0 is 1 along `axis`.
std::vector<std::int64_t> unit_parts(const ShardingSpec& spec,
                                     int rank,
                                     std::size_t axis,
                                     const DeviceMesh& mesh) {
  std::vector<std::int64_t> parts;
  parts.reserve(static_cast<std::size_t>(rank));
  for (int dim = 0; dim < rank; ++dim) {
    parts.push_back(part_index(spec, dim, mesh.stride(axis), mesh));
  }
  return parts;
}

struct Difference {
  std::vector<int> shorter;    ///< dimensions where the target lacks minor cuts
  std::vector<int> longer;     ///< dimensions with more minor cuts
  bool other = false;          ///< any other difference of a dimension
  bool same_parts = true;      ///< the same parts of every dimension
  std::vector<int> reduced;    ///< partial axes of the source only
  bool grows_partial = false;  ///< the target has partial axes that the source has not
  [[nodiscard]] bool same_partial() const { return reduced.empty() && !grows_partial; }
};

std::vector<std::int64_t> sizes_of(const std::vector<int>& axes, const DeviceMesh& mesh) {
  std::vector<std::int64_t> sizes;
  sizes.reserve(axes.size());
  for (const int axis : axes) {
    sizes.push_back(mesh.axes[static_cast<std::size_t>(axis)].size);
  }
  return sizes;
}

/// Equally many equal parts, or, where they are not equal, cut by axes of the same sizes in turn.
bool same_parts(const ShardingSpec& from,
                const ShardingSpec& to,
                int dim,
                const ir::Shape& shape,
                const DeviceMesh& mesh) {
  const std::int64_t parts = shard_count(from, dim, mesh);
  return shape[static_cast<std::size_t>(dim)] % parts == 0
             ? parts == shard_count(to, dim, mesh)
             : sizes_of(from.axes_of(dim), mesh) == sizes_of(to.axes_of(dim), mesh);
}

Difference compare(const ShardingSpec& from,
                   const ShardingSpec& to,
                   const ir::Shape& shape,
                   const DeviceMesh& mesh) {
  Difference d;
  for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
    d.same_parts = d.same_parts && same_parts(from, to, dim, shape, mesh);
    const std::vector<int> a = from.axes_of(dim);
    const std::vector<int> b = to.axes_of(dim);
    if (is_prefix(b, a)) {
      d.shorter.push_back(dim);
    } else if (is_prefix(a, b)) {
      d.longer.push_back(dim);
    } else if (a != b) {
      d.other = true;
    }
  }
  for (int axis = 0; axis < static_cast<int>(mesh.axes.size()); ++axis) {
    const bool same =
        from.is_partial(axis) == to.is_partial(axis) && from.reduction(axis) == to.reduction(axis);
    if (!same && to.is_partial(axis)) {
      d.grows_partial = true;
    } else if (!same) {
      d.reduced.push_back(axis);
    }
  }
  return d;
}

std::vector<ReshardStep> steps_between(const ShardingSpec& from,
                                       const ShardingSpec& to,
                                       const ir::Shape& shape,
                                       const DeviceMesh& mesh) {
  std::vector<ReshardStep> steps;
  const auto add = [&](CollectiveKind kind,
                       std::vector<int> axes,
                       int dim,
                       int split_dim = -1,
                       Reduction reduction = Reduction::kSum) {
    steps.push_back({kind, std::move(axes), dim, split_dim, reduction, from, to});
  };
  const int rank = static_cast<int>(shape.size());
  const Difference d = compare(from, to, shape, mesh);
  if (from == to || d.grows_partial) {
    return steps;
  }
  const auto added = [&](int dim) { return suffix(to.axes_of(dim), from.axes_of(dim).size()); };
  const auto removed = [&](int dim) { return suffix(from.axes_of(dim), to.axes_of(dim).size()); };
  const std::size_t changed = d.shorter.size() + d.longer.size();
  if (!d.other && d.same_partial() && changed == 1) {
    if (d.longer.empty()) {
      add(CollectiveKind::kAllGather, removed(d.shorter[0]), d.shorter[0]);
    } else {
      add(CollectiveKind::kSlice, added(d.longer[0]), d.longer[0]);
    }
  }
  if (!d.other && d.same_partial() && d.shorter.size() == 1 && d.longer.size() == 1 &&
      removed(d.shorter[0]) == added(d.longer[0])) {
    add(CollectiveKind::kAllToAll, removed(d.shorter[0]), d.shorter[0], d.longer[0]);
  }
  if (!d.other && changed == 1 && d.longer.size() == 1 && !d.reduced.empty()) {
    std::vector<int> axes = added(d.longer[0]);
    const std::vector<int> in_order = axes;
    std::sort(axes.begin(), axes.end());
    const bool sums = std::all_of(axes.begin(), axes.end(), [&](int axis) {
      return from.reduction(axis) == Reduction::kSum;
    });
    if (axes == d.reduced && sums) {
      add(CollectiveKind::kReduceScatter, in_order, d.longer[0]);
    }
  }
  if (!d.other && changed == 0) {
    const Reduction reduction = from.reduction(d.reduced.front());
    if (std::all_of(d.reduced.begin(), d.reduced.end(), [&](int axis) {
          return from.reduction(axis) == reduction;
        })) {
      add(CollectiveKind::kAllReduce, d.reduced, -1, -1, reduction);
    }
  }
  if (d.same_parts && d.same_partial()) {
    std::vector<int> moved;
    for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis) {
      if (unit_parts(from, rank, axis, mesh) != unit_parts(to, rank, axis, mesh)) {
        moved.push_back(static_cast<int>(axis));
      }
    }
    add(CollectiveKind::kCollectivePermute, moved, -1);
  }
  return steps;
}

// ---- Prices ----

/// Arbitrary positive prices, so that odd detours win now and then.
StepPrice random_price(std::uint64_t seed) {
  return [seed](const ReshardStep& step, const ir::TensorType&) {
    std::uint64_t h = scramble(seed, step.from.hash());
    h = scramble(h, step.to.hash());
    h = scramble(h, static_cast<std::uint64_t>(step.kind));
    return 0.05 + static_cast<double>(h % 1000) / 1000.0;
  };
}

/// Latency + bytes moved at a bandwidth that differs by mesh axis; slices are nearly free.
StepPrice alpha_beta_price(const DeviceMesh& mesh, double alpha = 1) {
  return [mesh, alpha](const ReshardStep& step, const ir::TensorType& type) {
    const auto in = static_cast<double>(local_bytes(step.from, type, mesh));
    const auto out = static_cast<double>(local_bytes(step.to, type, mesh));
    double slowest = 0;
    for (const int axis : step.axes) {
      slowest = std::max(slowest, 1.0 / (1.0 + axis));
    }
    switch (step.kind) {
      case CollectiveKind::kSlice:
      case CollectiveKind::kHaloExchange:
        return 0.0;
      case CollectiveKind::kAllReduce:
        return alpha + 2 * in * slowest;
      default:
        return alpha + std::max(in, out) * slowest;
    }
  };
}

Dense counting_tensor(const ir::Shape& shape) {
  Dense out{shape, {}};
  for (std::int64_t i = 0; i < product(shape); ++i) {
    out.data.push_back(1000 + i * i + 7 * i);
  }
  return out;
}

/// Both reductions at once have no defined order; no op makes such a value.
bool is_mixed(const ShardingSpec& spec) {
  const std::vector<int> partial = spec.partial_axes();
  return std::any_of(partial.begin(), partial.end(), [&](int axis) {
    return spec.reduction(axis) != spec.reduction(partial.front());
  });
}

struct Case {
  std::vector<std::int64_t> mesh;
  ir::Shape shape;
  bool with_max = false;
};

class Reshard : public ::testing::TestWithParam<Case> {
 protected:
  DeviceMesh mesh_ = make_mesh(GetParam().mesh);
  ir::TensorType type_{ir::DType::kFloat32, GetParam().shape};
  std::vector<ShardingSpec> specs_ = fitting_layouts(type_.shape, mesh_, GetParam().with_max);
};

TEST_P(Reshard, OneStepReshardsAreTheStepsOfTheTwin) {
  const auto less = [](const ReshardStep& a, const ReshardStep& b) {
    return std::tie(a.to, a.kind, a.axes, a.dim, a.split_dim) <
           std::tie(b.to, b.kind, b.axes, b.dim, b.split_dim);
  };
  for (const ShardingSpec& from : specs_) {
    std::vector<ReshardStep> expected;
    for (const ShardingSpec& to : specs_) {
      for (const ReshardStep& step : steps_between(from, to, type_.shape, mesh_)) {
        expected.push_back(step);
      }
    }
    std::vector<ReshardStep> found = one_step_reshards(from, type_, mesh_);
    std::sort(expected.begin(), expected.end(), less);
    std::sort(found.begin(), found.end(), less);
    ASSERT_TRUE(found == expected) << to_string(from, type_.shape.size(), mesh_) << ": "
                                   << found.size() << " steps, expected " << expected.size();
  }
}

TEST_P(Reshard, EveryStepMovesTheRightParts) {
  const Dense whole = counting_tensor(type_.shape);
  for (const ShardingSpec& from : specs_) {
    if (is_mixed(from)) {
      continue;
    }
    const std::vector<Dense> held = distribute(whole, from, mesh_);
    ASSERT_TRUE(represents(held, whole, from, mesh_));
    for (const ReshardStep& step : one_step_reshards(from, type_, mesh_)) {
      EXPECT_EQ(step.from, from);
      EXPECT_TRUE(fits(step.to, type_.shape, mesh_));
      ASSERT_TRUE(represents(run_step(step, held, mesh_), whole, step.to, mesh_))
          << collective_name(step.kind) << " " << to_string(from, type_.shape.size(), mesh_)
          << " -> " << to_string(step.to, type_.shape.size(), mesh_);
    }
  }
}

TEST_P(Reshard, PathsLeadToTheTargetAndCountTheirMemory) {
  const Dense whole = counting_tensor(type_.shape);
  Resharder resharder(mesh_, random_price(3));
  for (const ShardingSpec& from : specs_) {
    if (is_mixed(from)) {
      continue;
    }
    const std::vector<Dense> source = distribute(whole, from, mesh_);
    for (const ShardingSpec& to : specs_) {
      const ReshardPath& path = resharder.path(from, to, type_);
      if (!path.possible) {
        EXPECT_TRUE(compare(from, to, type_.shape, mesh_).grows_partial);
        continue;
      }
      std::vector<Dense> held = source;
      ShardingSpec at = from;
      double price = 0;
      Bytes temporary = 0;
      for (std::size_t i = 0; i < path.steps.size(); ++i) {
        ASSERT_EQ(path.steps[i].from, at);
        at = path.steps[i].to;
        const Bytes in = local_bytes(path.steps[i].from, type_, mesh_);
        const Bytes out = local_bytes(path.steps[i].to, type_, mesh_);
        temporary = std::max(temporary, (i > 0 ? in : 0) + (i + 1 < path.steps.size() ? out : 0));
        price += resharder.cost(path.steps[i].from, at, type_).price;
        held = run_step(path.steps[i], held, mesh_);
      }
      ASSERT_EQ(at, to);
      EXPECT_NEAR(price, path.price, 1e-12 * (1 + price));  // parts of a cheapest path are cheapest
      EXPECT_EQ(path.temporary, temporary);
      ASSERT_TRUE(represents(held, whole, to, mesh_));
      EXPECT_EQ(resharder.cost(from, to, type_).temporary, temporary);
    }
  }
}

/// Prices of paths between all pairs of layouts against Floyd and Warshall over all layouts.
void expect_cheapest(const std::vector<ShardingSpec>& specs,
                     const ir::TensorType& type,
                     const DeviceMesh& mesh) {
  const std::size_t n = specs.size();
  const std::vector<StepPrice> prices{random_price(1), random_price(2), alpha_beta_price(mesh)};
  std::vector<std::vector<ReshardStep>> steps(n * n);
  for (std::size_t i = 0; i < n * n; ++i) {
    steps[i] = steps_between(specs[i / n], specs[i % n], type.shape, mesh);
  }
  for (const StepPrice& price : prices) {
    std::vector<double> best(n * n, std::numeric_limits<double>::infinity());
    for (std::size_t i = 0; i < n * n; ++i) {
      for (const ReshardStep& step : steps[i]) {
        best[i] = std::min(best[i], price(step, type));
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      best[i * n + i] = 0;
    }
    for (std::size_t k = 0; k < n; ++k) {
      for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t j = 0; j < n; ++j) {
          best[i * n + j] = std::min(best[i * n + j], best[i * n + k] + best[k * n + j]);
        }
      }
    }
    Resharder resharder(mesh, price);
    for (std::size_t i = 0; i < n * n; ++i) {
      const ReshardCost cost = resharder.cost(specs[i / n], specs[i % n], type);
      ASSERT_EQ(cost.possible, best[i] < std::numeric_limits<double>::infinity());
      if (cost.possible) {
        ASSERT_NEAR(cost.price, best[i], 1e-9 * (1 + best[i]));
      }
    }
    // All at once, in two portions, bit for bit.
    const std::span<const ShardingSpec> all(specs);
    Resharder batch(mesh, price);
    Resharder single(mesh, price);
    static_cast<void>(batch.prices(all.first(n / 2), all.last(n / 3), type));
    const std::vector<double> table = batch.prices(all, all, type);
    for (std::size_t i = 0; i < n * n; ++i) {
      ASSERT_EQ(table[i], resharder.cost(specs[i / n], specs[i % n], type).price);
      ASSERT_EQ(table[i], single.price(specs[i / n], specs[i % n], type));
    }
  }
}

TEST_P(Reshard, PathsAreTheCheapestOfAll) {
  expect_cheapest(specs_, type_, mesh_);
}

TEST(Resharder, IsExactOnFourAxes) {
  const DeviceMesh mesh = make_mesh({2, 2, 2, 2});
  const ir::TensorType type{ir::DType::kFloat32, {8, 4}};
  expect_cheapest(fitting_layouts(type.shape, mesh), type, mesh);
}

INSTANTIATE_TEST_SUITE_P(SmallMeshes,
                         Reshard,
                         ::testing::Values(Case{{2, 2}, {4, 4}, true},
                                           Case{{2, 2}, {4, 2, 4}},
                                           Case{{2, 2}, {6, 3}},
                                           Case{{2, 2}, {}, true},
                                           Case{{2, 3}, {6, 6}, true},
                                           Case{{2, 3}, {6, 4}},
                                           Case{{2, 4, 2}, {8, 8}},
                                           Case{{2, 2, 2}, {8, 4}},
                                           Case{{2, 2, 2}, {4, 4, 2}}));

INSTANTIATE_TEST_SUITE_P(UnevenParts,
                         Reshard,
                         ::testing::Values(Case{{4}, {6, 5}, true},
                                           Case{{2, 2}, {6, 7}, true},
                                           Case{{2, 2}, {3, 5, 2}},
                                           Case{{2, 3}, {7, 10}, true},
                                           Case{{3, 2}, {5, 9}},
                                           Case{{2, 2, 2}, {7, 6}}));

TEST(Resharder, KnowsTheClassics) {
  const DeviceMesh mesh{{{"data", 2}, {"tensor", 4}}};
  const ir::TensorType type{ir::DType::kFloat32, {16, 16}};
  Resharder resharder(mesh, alpha_beta_price(mesh, 1e6));
  const auto names = [&](const std::string& from, const std::string& to) {
    std::string out;
    const ReshardPath& path =
        resharder.path(*parse_spec(from, 2, mesh), *parse_spec(to, 2, mesh), type);
    for (const ReshardStep& step : path.steps) {
      out += (out.empty() ? "" : " ") + std::string(collective_name(step.kind));
    }
    return path.possible ? out : "impossible";
  };
  EXPECT_EQ(names("[data, -]", "[data, -]"), "");
  EXPECT_EQ(names("[data, -]", "[-, -]"), "all_gather");
  EXPECT_EQ(names("[-, -]", "[data, tensor]"), "slice slice");
  EXPECT_EQ(names("[-, tensor]", "[tensor, -]"), "all_to_all");
  EXPECT_EQ(names("[-, -] + sum(tensor)", "[-, -]"), "all_reduce");
  EXPECT_EQ(names("[-, -] + sum(tensor)", "[tensor, -]"), "reduce_scatter");
  EXPECT_EQ(names("[-, -] + sum(data·tensor)", "[-, -]"), "all_reduce");
  EXPECT_EQ(names("[-, -] + max(tensor)", "[tensor, -]"), "all_reduce slice");
  EXPECT_EQ(names("[data·tensor, -]", "[-, -]"), "all_gather");
  EXPECT_EQ(names("[data·tensor, -]", "[tensor·data, -]"), "collective_permute");
  EXPECT_EQ(names("[-, -]", "[-, -] + sum(data)"), "impossible");
  EXPECT_EQ(names("[-, -] + max(data)", "[-, -] + sum(data)"), "impossible");
  EXPECT_EQ(names("[-, -] + sum(data·tensor)", "[tensor, -] + sum(data)"), "reduce_scatter");
}

TEST(Resharder, FindsTheHierarchicalAllReduce) {
  // The inner links are twice as fast: reduce there first, so that the outer ones carry a quarter.
  const DeviceMesh mesh{{{"data", 2}, {"tensor", 4}}};
  const ir::TensorType type{ir::DType::kFloat32, {16, 16}};
  Resharder resharder(mesh, alpha_beta_price(mesh));
  const ReshardPath& path =
      resharder.path(*parse_spec("[-, -] + sum(data·tensor)", 2, mesh), ShardingSpec{}, type);
  ASSERT_EQ(path.steps.size(), 3U);
  EXPECT_EQ(path.steps[0].kind, CollectiveKind::kReduceScatter);
  EXPECT_EQ(path.steps[0].axes, std::vector<int>{1});
  EXPECT_EQ(path.steps[1].kind, CollectiveKind::kAllReduce);
  EXPECT_EQ(path.steps[1].axes, std::vector<int>{0});
  EXPECT_EQ(path.steps[2].kind, CollectiveKind::kAllGather);
  EXPECT_DOUBLE_EQ(path.price, (1 + 512.0) + (1 + 2 * 256.0) + (1 + 512.0));
  EXPECT_EQ(path.temporary, 256 + 256);
}

TEST(Resharder, TellsWhenALayoutDoesNotFit) {
  const DeviceMesh mesh = make_mesh({6, 2});
  Resharder resharder(mesh, alpha_beta_price(mesh));
  ShardingSpec cut;
  cut.shard(0, 0);
  EXPECT_FALSE(resharder.path(ShardingSpec{}, cut, {ir::DType::kFloat32, {3}}).possible);
  EXPECT_FALSE(resharder.path(cut, ShardingSpec{}, {ir::DType::kFloat32, {3}}).possible);
  EXPECT_TRUE(resharder.path(cut, ShardingSpec{}, {ir::DType::kFloat32, {4}}).possible);
}

TEST(Resharder, ForbiddenStepsAreNotTaken) {
  const DeviceMesh mesh = make_mesh({2});
  const StepPrice no_gather = [](const ReshardStep& step, const ir::TensorType&) {
    return step.kind == CollectiveKind::kAllGather ? std::numeric_limits<double>::infinity() : 1.0;
  };
  Resharder resharder(mesh, no_gather);
  ShardingSpec cut;
  cut.shard(0, 0);
  EXPECT_FALSE(resharder.path(cut, ShardingSpec{}, {ir::DType::kFloat32, {4}}).possible);
  EXPECT_TRUE(resharder.path(ShardingSpec{}, cut, {ir::DType::kFloat32, {4}}).possible);
}

TEST(Resharder, AnswersDoNotDependOnEarlierQuestions) {
  const DeviceMesh mesh = make_mesh({2, 2, 2});
  const ir::TensorType type{ir::DType::kFloat32, {8, 8}};
  const std::vector<ShardingSpec> specs = fitting_layouts(type.shape, mesh);
  const StepPrice unit = [](const ReshardStep&, const ir::TensorType&) { return 1.0; };
  Resharder warm(mesh, unit);
  for (const ShardingSpec& from : specs) {
    static_cast<void>(warm.cost(from, ShardingSpec{}, type));
  }
  for (std::size_t i = 0; i < specs.size(); i += 3) {
    Resharder fresh(mesh, unit);
    for (std::size_t j = 0; j < specs.size(); j += 5) {
      const ReshardPath& a = warm.path(specs[i], specs[j], type);
      const ReshardPath& b = fresh.path(specs[i], specs[j], type);
      ASSERT_EQ(a.possible, b.possible);
      ASSERT_TRUE(a.steps == b.steps);
    }
  }
}

}  // namespace
}  // namespace shardplan::sharding
