#include "shardplan/runtime/collectives.h"

#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <utility>

#include "shardplan/lower/program.h"

namespace shardplan::runtime {
namespace {

using sharding::CollectiveKind;

using lower::kSlabBytes;

/// `target` = the rows of `rows` reduced, in the order of members; narrow floats sum in float.
void reduce_rows(at::Tensor target, const at::Tensor& rows, sharding::Reduction reduction) {
  if (reduction == sharding::Reduction::kMax) {
    at::amax_out(target, rows, {0});
  } else {
    at::sum_out(target, rows, at::IntArrayRef{0});
  }
}

/// places[i] = position along the cut dimension of the part of group member i. Members are in
/// ascending order of rank, parts in the order of coordinates along the step's axes.
std::vector<std::int64_t> places_of_members(const CollectiveCall& call) {
  const Ranks by_place = call.mesh.group(call.rank, call.step.axes);
  Ranks members = by_place;
  std::sort(members.begin(), members.end());
  std::vector<std::int64_t> places;
  places.reserve(members.size());
  for (const std::int64_t member : members) {
    places.push_back(std::find(by_place.begin(), by_place.end(), member) - by_place.begin());
  }
  return places;
}

/// A tensor whose dimension `dim` is made of `parts` equal parts: [outer, parts, inner].
struct Blocks {
  std::int64_t outer = 1;
  std::int64_t inner = 1;

  Blocks(const ir::Shape& part_shape, int dim) {
    for (std::size_t d = 0; d < part_shape.size(); ++d) {
      (static_cast<int>(d) < dim ? outer : inner) *= part_shape[d];
    }
  }
};

/// Calls body(row, rows, column, columns) for slabs of an [outer, inner] part that are contiguous
/// in it and, times the number of parts, at most kSlabBytes.
template <class Body>
void for_each_slab(const Blocks& blocks, std::int64_t bytes_of_all_parts, const Body& body) {
  const std::int64_t fit = std::max<std::int64_t>(1, kSlabBytes / bytes_of_all_parts);
  const std::int64_t columns = std::min(blocks.inner, fit);
  const std::int64_t rows =
      columns < blocks.inner ? 1 : std::max<std::int64_t>(1, fit / blocks.inner);
  for (std::int64_t row = 0; row < blocks.outer; row += rows) {
    for (std::int64_t column = 0; column < blocks.inner; column += columns) {
      body(row,
           std::min(rows, blocks.outer - row),
           column,
           std::min(columns, blocks.inner - column));
    }
  }
}

bool in_order(const std::vector<std::int64_t>& places) {
  return std::is_sorted(places.begin(), places.end());
}

at::Tensor all_gather(const CollectiveCall& call, const at::Tensor& input) {
  const std::vector<std::int64_t> places = places_of_members(call);
  const auto parts = static_cast<std::int64_t>(places.size());
  at::Tensor output = at::empty(call.result_shape, input.options());
  const Blocks blocks(input.sizes().vec(), call.step.dim);
  if (blocks.outer == 1 && in_order(places)) {
    all_gather_into(*call.group, output, input);
    return output;
  }
  const at::Tensor from = input.view({blocks.outer, blocks.inner});
  const at::Tensor to = output.view({blocks.outer, parts, blocks.inner});
  for_each_slab(
      blocks,
      parts * input.element_size(),
      [&](std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
        const at::Tensor slab = at::empty({parts, rows, columns}, input.options());
        all_gather_into(
            *call.group, slab, from.narrow(0, row, rows).narrow(1, column, columns).contiguous());
        const at::Tensor target = to.narrow(0, row, rows).narrow(2, column, columns);
        for (std::int64_t i = 0; i < parts; ++i) {
          target.select(1, places[static_cast<std::size_t>(i)]).copy_(slab.select(0, i));
        }
      });
  return output;
}

/// By an all-to-all and a sum here: as many bytes on the wires as a ring, in the same order of
/// members on every rank, narrow floats summed in float, and no copy of the whole tensor as Gloo
/// makes one.
at::Tensor reduce_scatter(const CollectiveCall& call, const at::Tensor& input) {
  const std::vector<std::int64_t> places = places_of_members(call);
  const auto parts = static_cast<std::int64_t>(places.size());
  at::Tensor output = at::empty(call.result_shape, input.options());
  const Blocks blocks(call.result_shape, call.step.dim);
  const at::Tensor from = input.view({blocks.outer, parts, blocks.inner});
  const at::Tensor to = output.view({blocks.outer, blocks.inner});
  for_each_slab(
      blocks,
      parts * input.element_size(),
      [&](std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
        const at::Tensor sent = at::empty({parts, rows, columns}, input.options());
        const at::Tensor received = at::empty({parts, rows, columns}, input.options());
        const at::Tensor source = from.narrow(0, row, rows).narrow(2, column, columns);
        for (std::int64_t i = 0; i < parts; ++i) {
          sent.select(0, i).copy_(source.select(1, places[static_cast<std::size_t>(i)]));
        }
        all_to_all_into(*call.group, received, sent);
        // A slab is one run of memory in the output.
        const at::Tensor target = to.narrow(0, row, rows).narrow(1, column, columns);
        reduce_rows(target, received, call.step.reduction);
      });
  return output;
}

/// The dimension along which an all-to-all is best cut into slabs: the longest that is not split.
std::int64_t slab_dim(const CollectiveCall& call, const at::Tensor& input) {
  std::int64_t best = call.step.dim;
  for (std::int64_t d = 0; d < input.dim(); ++d) {
    if (d != call.step.split_dim && input.size(d) > input.size(best)) {
      best = d;
    }
  }
  return best;
}

at::Tensor all_to_all(const CollectiveCall& call, const at::Tensor& input) {
  const std::vector<std::int64_t> places = places_of_members(call);
  const auto parts = static_cast<std::int64_t>(places.size());
  const int dim = call.step.dim;
  const int split = call.step.split_dim;
  at::Tensor output = at::empty(call.result_shape, input.options());
  const std::int64_t split_length = input.size(split) / parts;
  const std::int64_t part_length = input.size(dim);
  const std::int64_t along = slab_dim(call, input);
  const std::int64_t bytes_a_line = input.numel() / input.size(along) * input.element_size();
  const std::int64_t lines =
      std::max<std::int64_t>(1, kSlabBytes / std::max<std::int64_t>(1, bytes_a_line));
  for (std::int64_t first = 0; first < input.size(along); first += lines) {
    const std::int64_t count = std::min(lines, input.size(along) - first);
    const at::Tensor source = input.narrow(along, first, count);
    std::vector<std::int64_t> shape = source.sizes().vec();
    shape[static_cast<std::size_t>(split)] = split_length;
    shape.insert(shape.begin(), parts);
    const at::Tensor sent = at::empty(shape, input.options());
    const at::Tensor received = at::empty(shape, input.options());
    for (std::int64_t i = 0; i < parts; ++i) {
      const std::int64_t place = places[static_cast<std::size_t>(i)];
      sent.select(0, i).copy_(source.narrow(split, place * split_length, split_length));
    }
    all_to_all_into(*call.group, received, sent);
    for (std::int64_t i = 0; i < parts; ++i) {
      const std::int64_t place = places[static_cast<std::size_t>(i)];
      const at::Tensor target = output.narrow(dim, place * part_length, part_length);
      target.narrow(along, first, count).copy_(received.select(0, i));
    }
  }
  return output;
}

/// Number of the part that a rank holds under a layout, along every dimension.
std::vector<std::int64_t> parts_of(const CollectiveCall& call,
                                   const sharding::ShardingSpec& spec,
                                   std::int64_t rank) {
  std::vector<std::int64_t> parts;
  for (std::size_t d = 0; d < call.result_shape.size(); ++d) {
    parts.push_back(part_number(call.mesh, rank, spec.axes_of(static_cast<int>(d))));
  }
  return parts;
}

/// Members that have `part` under `have` and not under `other`, ascending.
std::vector<std::int64_t> members_with(const CollectiveCall& call,
                                       const Ranks& members,
                                       const std::vector<std::int64_t>& part,
                                       const sharding::ShardingSpec& have,
                                       const sharding::ShardingSpec& other) {
  std::vector<std::int64_t> found;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (parts_of(call, have, members[i]) == part && parts_of(call, other, members[i]) != part) {
      found.push_back(static_cast<std::int64_t>(i));
    }
  }
  return found;
}

/// Who gets the part that this rank holds, and from whom its new part comes. Where several members
/// hold the same part, whoever keeps its part keeps it, and the others are paired in order.
at::Tensor permute(const CollectiveCall& call, const at::Tensor& input) {
  const sharding::ShardingSpec& before = call.step.from;
  const sharding::ShardingSpec& after = call.step.to;
  Ranks members = call.mesh.group(call.rank, call.step.axes);
  std::sort(members.begin(), members.end());
  const auto held = parts_of(call, before, call.rank);
  const auto wanted = parts_of(call, after, call.rank);
  if (held == wanted) {
    return input.clone(at::MemoryFormat::Contiguous);
  }
  const std::int64_t me = std::find(members.begin(), members.end(), call.rank) - members.begin();
  const auto partner = [&](const std::vector<std::int64_t>& mine,
                           const std::vector<std::int64_t>& others) {
    const auto place = std::find(mine.begin(), mine.end(), me) - mine.begin();
    SHARDPLAN_CHECK(mine.size() == others.size()) << "the layouts of a permutation are not one";
    return others[static_cast<std::size_t>(place)];
  };
  const std::int64_t to = partner(members_with(call, members, held, before, after),
                                  members_with(call, members, held, after, before));
  const std::int64_t from = partner(members_with(call, members, wanted, after, before),
                                    members_with(call, members, wanted, before, after));
  at::Tensor output = at::empty(call.result_shape, input.options());
  call.group->transfer({{from, output}}, {{to, input}});
  return output;
}

}  // namespace

void all_gather_into(Group& group, const at::Tensor& output, const at::Tensor& input) {
  const at::Tensor rows = output.view({group.size(), -1});
  const at::Tensor row = input.view({-1});
  std::vector<Transfer> receives;
  std::vector<Transfer> sends;
  for (std::int64_t i = 1; i < group.size(); ++i) {
    const std::int64_t from = (group.member() + group.size() - i) % group.size();
    receives.push_back({from, rows.select(0, from)});
    sends.push_back({(group.member() + i) % group.size(), row});
  }
  rows.select(0, group.member()).copy_(row);
  group.transfer(receives, sends);
}

void all_to_all_into(Group& group, const at::Tensor& output, const at::Tensor& input) {
  std::vector<Transfer> receives;
  std::vector<Transfer> sends;
  for (std::int64_t i = 1; i < group.size(); ++i) {
    const std::int64_t from = (group.member() + group.size() - i) % group.size();
    const std::int64_t to = (group.member() + i) % group.size();
    receives.push_back({from, output.select(0, from)});
    sends.push_back({to, input.select(0, to)});
  }
  output.select(0, group.member()).copy_(input.select(0, group.member()));
  group.transfer(receives, sends);
}

void all_reduce_in_place(Group& group, const at::Tensor& tensor, sharding::Reduction reduction) {
  const at::Tensor flat = tensor.view({-1});
  const std::int64_t most = std::max<std::int64_t>(1, kSlabBytes / tensor.element_size());
  for (std::int64_t first = 0; first < flat.numel(); first += most) {
    const at::Tensor slab = flat.narrow(0, first, std::min(most, flat.numel() - first));
    const std::int64_t length = (slab.numel() + group.size() - 1) / group.size();
    // Member i reduces part i for all; the last parts may be shorter or empty.
    const auto part = [&](std::int64_t i) {
      const std::int64_t start = std::min(i * length, slab.numel());
      return slab.narrow(0, start, std::min(length, slab.numel() - start));
    };
    const at::Tensor mine = part(group.member());
    const at::Tensor received = at::empty({group.size(), mine.numel()}, tensor.options());
    std::vector<Transfer> collect;
    std::vector<Transfer> give;
    std::vector<Transfer> take;
    std::vector<Transfer> spread;
    for (std::int64_t i = 1; i < group.size(); ++i) {
      const std::int64_t other = (group.member() + i) % group.size();
      if (mine.numel() > 0) {
        collect.push_back({other, received.select(0, other)});
        spread.push_back({other, mine});
      }
      if (part(other).numel() > 0) {
        give.push_back({other, part(other)});
        take.push_back({other, part(other)});
      }
    }
    received.select(0, group.member()).copy_(mine);
    group.transfer(collect, give);
    if (mine.numel() > 0) {
      reduce_rows(mine, received, reduction);
    }
    group.transfer(take, spread);
  }
}

std::int64_t part_number(const cluster::DeviceMesh& mesh,
                         std::int64_t rank,
                         const std::vector<int>& axes) {
  std::int64_t number = 0;
  for (const int axis : axes) {
    const auto a = static_cast<std::size_t>(axis);
    number = number * mesh.axes[a].size + mesh.coordinate(rank, a);
  }
  return number;
}

at::Tensor shard_view(const at::Tensor& full,
                      const sharding::ShardingSpec& spec,
                      const cluster::DeviceMesh& mesh,
                      std::int64_t rank) {
  at::Tensor part = full;
  for (std::int64_t d = 0; d < full.dim(); ++d) {
    const std::vector<int> axes = spec.axes_of(static_cast<int>(d));
    std::int64_t parts = 1;
    for (const int axis : axes) {
      parts *= mesh.axes[static_cast<std::size_t>(axis)].size;
    }
    const std::int64_t length = full.size(d) / parts;
    part = part.narrow(d, part_number(mesh, rank, axes) * length, length);
  }
  return part;
}

at::Tensor shard_of(const at::Tensor& full,
                    const sharding::ShardingSpec& spec,
                    const cluster::DeviceMesh& mesh,
                    std::int64_t rank) {
  return shard_view(full, spec, mesh, rank).clone(at::MemoryFormat::Contiguous);
}

at::Tensor run_collective(const CollectiveCall& call, const at::Tensor& input) {
  switch (call.step.kind) {
    case CollectiveKind::kSlice: {
      const std::int64_t length = call.result_shape[static_cast<std::size_t>(call.step.dim)];
      const std::int64_t start = part_number(call.mesh, call.rank, call.step.axes) * length;
      return input.narrow(call.step.dim, start, length).clone(at::MemoryFormat::Contiguous);
    }
    case CollectiveKind::kAllGather:
      return all_gather(call, input);
    case CollectiveKind::kReduceScatter:
      return reduce_scatter(call, input);
    case CollectiveKind::kAllReduce: {
      at::Tensor output = input.clone(at::MemoryFormat::Contiguous);
      all_reduce_in_place(*call.group, output, call.step.reduction);
      return output;
    }
    case CollectiveKind::kAllToAll:
      return all_to_all(call, input);
    case CollectiveKind::kCollectivePermute:
      return permute(call, input);
  }
  SHARDPLAN_CHECK(false) << "collective out of range";
  return {};
}

}  // namespace shardplan::runtime
