#include "shardplan/runtime/collectives.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "ranks.h"
#include "shardplan/lower/program.h"
#include "shardplan/runtime/allocator.h"

namespace shardplan::runtime {
namespace {

using sharding::Reduction;
using sharding::ReshardStep;
using sharding::ShardingSpec;

/// This rank's content of a full tensor in a layout with partial values: of sums, member 0 holds
/// what is missing; of maxima, member 0 holds the largest.
at::Tensor content(const at::Tensor& full,
                   const ShardingSpec& spec,
                   const cluster::DeviceMesh& mesh,
                   std::int64_t rank) {
  at::Tensor part = shard_of(full, spec, mesh, rank);
  for (const int axis : spec.partial_axes()) {
    const std::int64_t n = mesh.axes[static_cast<std::size_t>(axis)].size;
    const std::int64_t c = mesh.coordinate(rank, static_cast<std::size_t>(axis));
    if (spec.reduction(axis) == Reduction::kMax) {
      part.sub_(c == 0 ? 0 : 5 * c);
    } else if (c == 0) {
      part.sub_(7 * n * (n - 1) / 2);
    } else {
      part.zero_().add_(7 * c);
    }
  }
  return part;
}

/// Whether the parts of all ranks are the full tensor in the layout `spec`.
bool is_layout_of(const at::Tensor& full,
                  const ShardingSpec& spec,
                  const cluster::DeviceMesh& mesh,
                  const std::vector<at::Tensor>& parts) {
  for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
    at::Tensor reduced;
    for (const std::int64_t member : mesh.group(rank, spec.partial_axes())) {
      const at::Tensor& part = parts[static_cast<std::size_t>(member)];
      const bool max = !spec.partial_axes().empty() &&
                       spec.reduction(spec.partial_axes().front()) == Reduction::kMax;
      reduced = !reduced.defined() ? part : max ? reduced.maximum(part) : reduced.add(part);
    }
    if (!reduced.is_contiguous() || !at::equal(reduced, shard_of(full, spec, mesh, rank))) {
      return false;
    }
  }
  return true;
}

/// Layouts that single steps reach from the replicated one and from partial ones, up to `limit`.
std::vector<ShardingSpec> some_layouts(const ir::TensorType& type,
                                       const cluster::DeviceMesh& mesh,
                                       std::size_t limit) {
  std::vector<ShardingSpec> found{ShardingSpec{}};
  for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    for (const Reduction reduction : {Reduction::kSum, Reduction::kMax}) {
      ShardingSpec partial;
      partial.make_partial(static_cast<int>(axis), reduction);
      found.push_back(partial);
    }
  }
  for (std::size_t i = 0; i < found.size() && found.size() < limit; ++i) {
    const ShardingSpec from = found[i];
    for (const ReshardStep& step : sharding::one_step_reshards(from, type, mesh)) {
      if (std::find(found.begin(), found.end(), step.to) == found.end()) {
        found.push_back(step.to);
      }
    }
  }
  return found;
}

void check_all_steps(const cluster::DeviceMesh& mesh,
                     const ir::TensorType& type,
                     std::size_t limit) {
  const at::Tensor full = at::arange(type.numel(), at::TensorOptions(at::kFloat)).view(type.shape);
  std::vector<ReshardStep> steps;
  for (const ShardingSpec& from : some_layouts(type, mesh, limit)) {
    for (const ReshardStep& step : sharding::one_step_reshards(from, type, mesh)) {
      steps.push_back(step);
    }
  }
  std::vector<std::vector<at::Tensor>> parts(
      steps.size(), std::vector<at::Tensor>(static_cast<std::size_t>(mesh.size())));
  run_ranks(mesh.size(), [&](std::int64_t rank, GroupSource& source) {
    std::map<Ranks, std::shared_ptr<Group>> groups;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      Ranks ranks = mesh.group(rank, steps[i].axes);
      std::sort(ranks.begin(), ranks.end());
      if (groups.find(ranks) == groups.end()) {
        groups[ranks] = source.group(ranks).value();
      }
      const CollectiveCall call{steps[i], mesh, rank, type.shape, groups[ranks].get()};
      parts[i][static_cast<std::size_t>(rank)] =
          run_collective(call, content(full, steps[i].from, mesh, rank));
    }
  });
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto rank = static_cast<std::size_t>(type.rank());
    EXPECT_TRUE(is_layout_of(full, steps[i].to, mesh, parts[i]))
        << sharding::collective_name(steps[i].kind) << " from "
        << to_string(steps[i].from, rank, mesh) << " to " << to_string(steps[i].to, rank, mesh);
  }
}

TEST(Collectives, EveryStepBetweenLayoutsGivesWhatSlicingGives) {
  check_all_steps({{{"a", 2}, {"b", 2}}}, {ir::DType::kFloat32, {4, 8, 4}}, 60);
  check_all_steps({{{"a", 2}, {"b", 3}}}, {ir::DType::kFloat32, {6, 12}}, 60);
  check_all_steps({{{"a", 2}, {"b", 2}, {"c", 2}}}, {ir::DType::kFloat32, {8, 16}}, 30);
}

TEST(Collectives, EveryStepBetweenUnevenLayoutsGivesWhatSlicingGives) {
  check_all_steps({{{"a", 4}}}, {ir::DType::kFloat32, {6, 5, 7}}, 60);
  check_all_steps({{{"a", 2}, {"b", 2}}}, {ir::DType::kFloat32, {3, 6, 5}}, 60);
  check_all_steps({{{"a", 2}, {"b", 3}}}, {ir::DType::kFloat32, {7, 10}}, 60);
  check_all_steps({{{"a", 2}, {"b", 2}, {"c", 2}}}, {ir::DType::kFloat32, {7, 11}}, 30);
}

// Larger than a slab, so that rows and columns are cut.
TEST(Collectives, SlabsCoverLargeTensors) {
  const cluster::DeviceMesh mesh{{{"a", 2}}};
  check_all_steps(mesh, {ir::DType::kFloat32, {2, 2, 900000}}, 10);
  check_all_steps(mesh, {ir::DType::kFloat32, {1000, 2500}}, 10);
  check_all_steps(mesh, {ir::DType::kFloat32, {3, 3, 600001}}, 10);
  check_all_steps(mesh, {ir::DType::kFloat32, {1001, 2501}}, 10);
}

TEST(Collectives, GatherMovesEveryDtype) {
  const cluster::DeviceMesh mesh{{{"a", 2}}};
  run_ranks(2, [&](std::int64_t rank, GroupSource& source) {
    const std::shared_ptr<Group> group = source.group({0, 1}).value();
    for (const at::ScalarType dtype : {at::kBool, at::kLong, at::kBFloat16, at::kDouble}) {
      const at::Tensor full = at::arange(6, at::TensorOptions(at::kLong)).to(dtype);
      ReshardStep step;
      step.kind = sharding::CollectiveKind::kAllGather;
      step.axes = {0};
      step.dim = 0;
      step.from.shard(0, 0);
      const ir::Shape shape{6};
      const at::Tensor result = run_collective({step, mesh, rank, shape, group.get()},
                                               shard_of(full, step.from, mesh, rank));
      EXPECT_TRUE(at::equal(result, full));
    }
  });
}

TEST(Collectives, ReductionsKnowNarrowFloatsAndIntegers) {
  run_ranks(2, [&](std::int64_t rank, GroupSource& source) {
    const std::shared_ptr<Group> group = source.group({0, 1}).value();
    for (const at::ScalarType dtype :
         {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble, at::kInt, at::kLong}) {
      const at::Tensor mine = at::arange(4, at::TensorOptions(at::kLong)).add_(rank).to(dtype);
      const at::Tensor sum = mine.clone();
      all_reduce_in_place(*group, sum, Reduction::kSum);
      EXPECT_EQ(sum[3].item<double>(), 7) << c10::toString(dtype);
      const at::Tensor max = mine.clone();
      all_reduce_in_place(*group, max, Reduction::kMax);
      EXPECT_EQ(max[3].item<double>(), 4) << c10::toString(dtype);
    }
  });
}

// 256 + 1 is 256 in bf16: a sum that were rounded after each rank would stay there.
TEST(Collectives, NarrowFloatsAreSummedInFloat) {
  const cluster::DeviceMesh mesh{{{"a", 4}}};
  run_ranks(mesh.size(), [&](std::int64_t rank, GroupSource& source) {
    const std::shared_ptr<Group> group = source.group({0, 1, 2, 3}).value();
    const at::Tensor mine =
        at::full({8}, rank == 0 ? 256 : 1, at::TensorOptions().dtype(at::kBFloat16));
    const at::Tensor sum = mine.clone();
    all_reduce_in_place(*group, sum, Reduction::kSum);
    EXPECT_EQ(sum[7].item<double>(), 260);
    ShardingSpec parts;
    parts.make_partial(0, Reduction::kSum);
    const ir::TensorType type{ir::DType::kBFloat16, {8}};
    for (const ReshardStep& step : sharding::one_step_reshards(parts, type, mesh)) {
      const at::Tensor result = run_collective({step, mesh, rank, type.shape, group.get()}, mine);
      EXPECT_EQ(result[0].item<double>(), 260);
    }
  });
}

/// Every row that a window needs, from whichever rank has it, and as many bytes beside it as said.
void check_halo_exchange(const ReshardStep& step,
                         const ir::TensorType& type,
                         const cluster::DeviceMesh& mesh) {
  const at::Tensor whole =
      at::arange(ir::TensorType(type).numel(), at::TensorOptions(at::kDouble)).view(type.shape);
  std::vector<Bytes> packed(static_cast<std::size_t>(mesh.size()));
  run_ranks(mesh.size(), [&](std::int64_t rank, GroupSource& source) {
    Ranks ranks = mesh.group(rank, step.axes);
    std::sort(ranks.begin(), ranks.end());
    const auto group = source.group(ranks).value();
    const at::Tensor mine = shard_of(whole, step.from, mesh, rank);
    MemoryCounter counter;
    const MemoryScope scope(counter);
    const at::Tensor got = run_collective({step, mesh, rank, type.shape, group.get()}, mine);
    packed[static_cast<std::size_t>(rank)] = counter.peak() - static_cast<Bytes>(got.nbytes());
    at::Tensor rest = got;
    at::Tensor expected = whole;
    sharding::ShardingSpec spec = step.from;
    for (const ops::Halo& halo : step.halos) {
      const ops::Rows needed = sharding::cut_window(halo, step.from, mesh, rank).needed;
      const ops::Rows there = needed.within({0, halo.size});
      ASSERT_EQ(got.size(halo.dim), needed.size);
      EXPECT_EQ(rest.sum().item<double>(),
                rest.narrow(halo.dim, there.start - needed.start, there.size).sum().item<double>());
      rest = rest.narrow(halo.dim, there.start - needed.start, there.size);
      expected = expected.narrow(halo.dim, there.start, there.size);
      for (const int axis : spec.axes_of(halo.dim)) {
        spec.replicate(axis);
      }
    }
    EXPECT_TRUE(rest.equal(shard_of(expected, spec, mesh, rank)));
  });
  EXPECT_EQ(*std::max_element(packed.begin(), packed.end()),
            sharding::halo_traffic(step, type, mesh).packed);
}

TEST(Collectives, HalosComeFromWhoeverHasThem) {
  install_counting_allocator();
  const cluster::DeviceMesh mesh{{{"a", 3}, {"b", 2}}};
  const ir::TensorType type{ir::DType::kFloat64, {2, 3, 11, 8}};
  // Rows: a window of 3; one that reaches over several parts; one of few elements of each part.
  const std::vector<ops::Halo> rows{
      {.dim = 2, .own_size = 11, .size = 11, .kernel = 3, .padding = 1},
      {.dim = 2, .own_size = 12, .size = 11, .kernel = 4, .padding = 5, .dilation = 3},
      {.dim = 2, .own_size = 6, .size = 11, .kernel = 1, .stride = 2},
      {.dim = 2,
       .own_size = 21,
       .size = 11,
       .kernel = 3,
       .stride = 2,
       .padding = 1,
       .windows = true}};
  const ops::Halo columns{
      .dim = 3, .own_size = 8, .size = 8, .kernel = 2, .padding = 1, .dilation = 2};
  const auto check = [&](const std::vector<ops::Halo>& halos, const ShardingSpec& spec) {
    const auto exchange = sharding::halo_exchange(halos, 0, spec, mesh);
    if (!exchange) {
      ADD_FAILURE() << "no exchange";
      return;
    }
    check_halo_exchange(*exchange, type, mesh);
  };
  for (const ops::Halo& halo : rows) {
    ShardingSpec one;
    one.shard(2, 0);
    ShardingSpec both = one;
    both.shard(2, 1);
    ShardingSpec two = one;
    two.shard(3, 1);
    check({halo}, one);
    check({halo}, both);
    check({halo, columns}, two);
  }
}

// What lower() says a collective allocates beside its input and result is what it allocates.
TEST(Collectives, AllocateWhatTheProgramSays) {
  install_counting_allocator();
  const cluster::DeviceMesh mesh{{{"a", 2}, {"b", 2}}};
  for (const ir::Shape& shape : {ir::Shape{8, 64, 16},
                                 ir::Shape{4, 1024, 1024},
                                 ir::Shape{5, 1025, 1023},
                                 ir::Shape{6, 99, 1030}}) {
    const ir::TensorType type{ir::DType::kFloat32, shape};
    std::vector<ReshardStep> steps;
    for (const ShardingSpec& from : some_layouts(type, mesh, 12)) {
      for (const ReshardStep& step : sharding::one_step_reshards(from, type, mesh)) {
        steps.push_back(step);
      }
    }
    run_ranks(mesh.size(), [&](std::int64_t rank, GroupSource& source) {
      std::map<Ranks, std::shared_ptr<Group>> groups;
      MemoryCounter counter;
      for (const ReshardStep& step : steps) {
        Ranks ranks = mesh.group(rank, step.axes);
        std::sort(ranks.begin(), ranks.end());
        if (groups.find(ranks) == groups.end()) {
          groups[ranks] = source.group(ranks).value();
        }
        const MemoryScope scope(counter);
        const ir::TensorType before{type.dtype, sharding::local_shape(step.from, shape, mesh)};
        const ir::TensorType after{type.dtype, sharding::local_shape(step.to, shape, mesh)};
        const ir::Shape mine = sharding::part_shape(step.from, shape, mesh, rank);
        const at::Tensor input = at::ones(mine, at::TensorOptions(at::kFloat));
        counter.reset_peak();
        (void)run_collective({step, mesh, rank, shape, groups[ranks].get()}, input);
        const Bytes allocated = counter.peak() - before.bytes() - after.bytes();
        const Bytes said = lower::collective_workspace(step, before, after, mesh);
        SCOPED_TRACE(std::string(sharding::collective_name(step.kind)) + " from " +
                     to_string(before) + " to " + to_string(after));
        EXPECT_LE(allocated, said + 4096);
        if (rank == 0) {
          EXPECT_NEAR(static_cast<double>(allocated), static_cast<double>(said), 4096);
        }
      }
    });
  }
}

}  // namespace
}  // namespace shardplan::runtime
