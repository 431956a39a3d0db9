#include "shardplan/runtime/collectives.h"

#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "shardplan/lower/program.h"

namespace shardplan::runtime {
namespace {

using sharding::CollectiveKind;
using sharding::Range;

using lower::kSlabBytes;

/// `target` = the rows of `rows` reduced, in the order of members; narrow floats sum in float.
void reduce_rows(at::Tensor target, const at::Tensor& rows, sharding::Reduction reduction) {
  if (reduction == sharding::Reduction::kMax) {
    at::amax_out(target, rows, {0});
  } else {
    at::sum_out(target, rows, at::IntArrayRef{0});
  }
}

/// By member of the group (in ascending order of rank): its part of a dimension of `length`
/// elements that the step's axes cut.
std::vector<Range> parts_of_members(const CollectiveCall& call, std::int64_t length) {
  Ranks members = call.mesh.group(call.rank, call.step.axes);
  std::sort(members.begin(), members.end());
  std::vector<Range> parts;
  parts.reserve(members.size());
  for (const std::int64_t member : members) {
    parts.push_back(sharding::part(length, call.step.axes, call.mesh, member));
  }
  return parts;
}

/// What lies before and after dimension `dim`, so that a tensor is [outer, length · line].
struct Blocks {
  std::int64_t outer = 1;
  std::int64_t line = 1;

  Blocks(at::IntArrayRef shape, int dim) {
    for (std::size_t d = 0; d < shape.size(); ++d) {
      outer *= static_cast<int>(d) < dim ? shape[d] : 1;
      line *= static_cast<int>(d) > dim ? shape[d] : 1;
    }
  }
};

/// A piece of an [outer, inner] matrix: whole rows, or a run in one row.
struct Slab {
  std::int64_t row = 0, rows = 0;
  Range columns{};

  /// What it is in a part with fewer columns than the largest.
  [[nodiscard]] Range in(std::int64_t inner) const {
    const std::int64_t start = std::min(columns.start, inner);
    return {start, std::min(columns.size, inner - start)};
  }
};

/// The slabs of an [outer, length · line] matrix whose columns are cut into parts: of the largest
/// part here, as large as slabs of the largest part of all ranks, `largest`, can be; times the
/// number of parts, at most kSlabBytes. In every part a slab is one run of memory.
std::vector<Slab> slabs_of(const Blocks& blocks,
                           std::int64_t length,
                           const ir::Shape& largest,
                           int dim,
                           std::int64_t bytes_of_a_column) {
  std::vector<Slab> slabs;
  const std::int64_t outer = blocks.outer;
  const std::int64_t inner = length * blocks.line;
  if (outer == 0 || inner == 0) {
    return slabs;
  }
  const std::int64_t widest = Blocks(largest, dim).line * largest[static_cast<std::size_t>(dim)];
  const std::int64_t fit = std::max<std::int64_t>(1, kSlabBytes / bytes_of_a_column);
  const std::int64_t columns = std::min(inner, fit);
  const std::int64_t rows = columns < inner ? 1 : std::max<std::int64_t>(1, fit / widest);
  for (std::int64_t row = 0; row < outer; row += rows) {
    for (std::int64_t column = 0; column < inner; column += columns) {
      slabs.push_back(
          {row, std::min(rows, outer - row), {column, std::min(columns, inner - column)}});
    }
  }
  return slabs;
}

/// `rows` · `columns` elements at the start of row i of a buffer, as a matrix.
at::Tensor room(const at::Tensor& buffer, std::size_t i, std::int64_t rows, std::int64_t columns) {
  return buffer.select(0, static_cast<std::int64_t>(i))
      .narrow(0, 0, rows * columns)
      .view({rows, columns});
}

void all_gather(const CollectiveCall& call, const at::Tensor& input, const at::Tensor& output) {
  const int dim = call.step.dim;
  const std::int64_t length = output.size(dim);
  const std::vector<Range> parts = parts_of_members(call, length);
  const auto count = static_cast<std::int64_t>(parts.size());
  const Blocks blocks(output.sizes(), dim);
  if (blocks.outer == 1) {  // parts lie one after the other
    std::vector<at::Tensor> theirs;
    theirs.reserve(parts.size());
    for (const Range& part : parts) {
      theirs.push_back(output.narrow(dim, part.start, part.size));
    }
    exchange(*call.group, theirs, std::vector<at::Tensor>(parts.size(), input));
    return;
  }
  const at::Tensor from = input.view({blocks.outer, input.size(dim) * blocks.line});
  const at::Tensor to = output.view({blocks.outer, length * blocks.line});
  for (const Slab& slab : slabs_of(blocks,
                                   sharding::largest_part(length, count),
                                   sharding::local_shape(call.step.from, call.shape, call.mesh),
                                   dim,
                                   count * input.element_size())) {
    const at::Tensor buffer = at::empty({count, slab.rows * slab.columns.size}, input.options());
    std::vector<at::Tensor> theirs;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      theirs.push_back(room(buffer, i, slab.rows, slab.in(parts[i].size * blocks.line).size));
    }
    const Range mine = slab.in(from.size(1));
    const at::Tensor sent =
        from.narrow(0, slab.row, slab.rows).narrow(1, mine.start, mine.size).contiguous();
    exchange(*call.group, theirs, std::vector<at::Tensor>(parts.size(), sent));
    const at::Tensor rows = to.narrow(0, slab.row, slab.rows);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Range there = slab.in(parts[i].size * blocks.line);
      rows.narrow(1, parts[i].start * blocks.line + there.start, there.size).copy_(theirs[i]);
    }
  }
}

/// By an all-to-all and a sum here: as many bytes on the wires as a ring, in the same order of
/// members on every rank, narrow floats summed in float, and no copy of the whole tensor as Gloo
/// makes one.
void reduce_scatter(const CollectiveCall& call, const at::Tensor& input, const at::Tensor& output) {
  const int dim = call.step.dim;
  const std::int64_t length = input.size(dim);
  const std::vector<Range> parts = parts_of_members(call, length);
  const auto count = static_cast<std::int64_t>(parts.size());
  const Blocks blocks(input.sizes(), dim);
  const at::Tensor from = input.view({blocks.outer, length * blocks.line});
  const at::Tensor to = output.view({blocks.outer, output.size(dim) * blocks.line});
  for (const Slab& slab : slabs_of(blocks,
                                   sharding::largest_part(length, count),
                                   sharding::local_shape(call.step.to, call.shape, call.mesh),
                                   dim,
                                   count * input.element_size())) {
    const Range mine = slab.in(to.size(1));
    const at::Tensor buffer = at::empty({count, slab.rows * slab.columns.size}, input.options());
    const at::Tensor received = at::empty({count, slab.rows, mine.size}, input.options());
    const at::Tensor rows = from.narrow(0, slab.row, slab.rows);
    std::vector<at::Tensor> sent;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Range there = slab.in(parts[i].size * blocks.line);
      sent.push_back(room(buffer, i, slab.rows, there.size));
      sent.back().copy_(rows.narrow(1, parts[i].start * blocks.line + there.start, there.size));
    }
    exchange(*call.group, received.unbind(0), sent);
    if (mine.size > 0) {
      const at::Tensor target = to.narrow(0, slab.row, slab.rows).narrow(1, mine.start, mine.size);
      reduce_rows(target, received, call.step.reduction);
    }
  }
}

/// The dimension along which an all-to-all is best cut into slabs: the longest that is not split.
std::size_t slab_dim(const CollectiveCall& call, const ir::Shape& shape) {
  auto best = static_cast<std::size_t>(call.step.dim);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (static_cast<int>(d) != call.step.split_dim && shape[d] > shape[best]) {
      best = d;
    }
  }
  return best;
}

std::int64_t product(const ir::Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

void all_to_all(const CollectiveCall& call, const at::Tensor& input, const at::Tensor& output) {
  const auto dim = static_cast<std::size_t>(call.step.dim);
  const auto split = static_cast<std::size_t>(call.step.split_dim);
  const std::vector<Range> joined = parts_of_members(call, output.size(call.step.dim));
  const std::vector<Range> cut = parts_of_members(call, input.size(call.step.split_dim));
  const auto count = static_cast<std::int64_t>(cut.size());
  // The largest message between any ranks, by which all cut alike.
  ir::Shape largest = sharding::local_shape(call.step.from, call.shape, call.mesh);
  largest[split] = sharding::largest_part(largest[split], count);
  const std::size_t along = slab_dim(call, largest);
  const auto a = static_cast<std::int64_t>(along);
  const std::int64_t length = largest[along];
  largest[along] = 1;
  const std::int64_t line = product(largest);
  const std::int64_t lines = std::max<std::int64_t>(
      1, kSlabBytes / std::max<std::int64_t>(1, count * line * input.element_size()));
  for (std::int64_t first = 0; first < length && line > 0; first += lines) {
    const Slab slab{0, 1, {first, std::min(lines, length - first)}};
    const auto run = [&](std::int64_t part) {
      return slab.in(along == dim ? part : input.size(a));
    };
    const at::Tensor outgoing = at::empty({count, slab.columns.size * line}, input.options());
    const at::Tensor incoming = at::empty({count, slab.columns.size * line}, input.options());
    const auto message = [&](const at::Tensor& buffer, std::size_t i, const at::Tensor& like) {
      return room(buffer, i, 1, like.numel()).view(like.sizes());
    };
    const auto target = [&](std::size_t i) {
      const Range there = run(joined[i].size);
      return output.narrow(call.step.dim, joined[i].start, joined[i].size)
          .narrow(a, there.start, there.size);
    };
    const Range mine = run(input.size(call.step.dim));
    const at::Tensor source = input.narrow(a, mine.start, mine.size);
    std::vector<at::Tensor> sent;
    std::vector<at::Tensor> received;
    for (std::size_t i = 0; i < cut.size(); ++i) {
      const at::Tensor piece = source.narrow(call.step.split_dim, cut[i].start, cut[i].size);
      sent.push_back(message(outgoing, i, piece));
      sent.back().copy_(piece);
      received.push_back(message(incoming, i, target(i)));
    }
    exchange(*call.group, received, sent);
    for (std::size_t i = 0; i < cut.size(); ++i) {
      target(i).copy_(received[i]);
    }
  }
}

/// Number of the part that a rank holds under a layout, along every dimension.
std::vector<std::int64_t> parts_of(const CollectiveCall& call,
                                   const sharding::ShardingSpec& spec,
                                   std::int64_t rank) {
  std::vector<std::int64_t> parts;
  for (std::size_t d = 0; d < call.shape.size(); ++d) {
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
void permute(const CollectiveCall& call, const at::Tensor& input, const at::Tensor& output) {
  const sharding::ShardingSpec& before = call.step.from;
  const sharding::ShardingSpec& after = call.step.to;
  Ranks members = call.mesh.group(call.rank, call.step.axes);
  std::sort(members.begin(), members.end());
  const auto held = parts_of(call, before, call.rank);
  const auto wanted = parts_of(call, after, call.rank);
  if (held == wanted) {
    output.copy_(input);
    return;
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
  call.group->transfer({{from, output}}, {{to, input}});
}

// ---- halos ----

/// What a rank has, or needs, of the whole tensor, by dimension.
using Box = std::vector<ops::Rows>;

struct HaloBoxes {
  Box held;
  Box needed;  ///< beyond the tensor too
};

HaloBoxes boxes_of(const CollectiveCall& call, std::int64_t rank) {
  HaloBoxes boxes;
  for (const Range& range : sharding::part(call.step.from, call.shape, call.mesh, rank)) {
    boxes.held.push_back({range.start, range.size});
  }
  boxes.needed = boxes.held;
  for (const ops::Halo& halo : call.step.halos) {
    boxes.needed[static_cast<std::size_t>(halo.dim)] =
        sharding::cut_window(halo, call.step.from, call.mesh, rank).needed;
  }
  return boxes;
}

Box common(const Box& a, const Box& b) {
  Box out;
  for (std::size_t d = 0; d < a.size(); ++d) {
    out.push_back(a[d].within(b[d]));
  }
  return out;
}

bool is_empty(const Box& box) {
  return std::any_of(box.begin(), box.end(), [](const ops::Rows& r) { return r.size == 0; });
}

/// The box as a view of a tensor that is all of `whole`.
at::Tensor view_of(const at::Tensor& tensor, const Box& whole, const Box& box) {
  at::Tensor view = tensor;
  for (std::size_t d = 0; d < box.size(); ++d) {
    view = view.narrow(static_cast<std::int64_t>(d), box[d].start - whole[d].start, box[d].size);
  }
  return view;
}

double value_outside(ops::Outside outside) {
  switch (outside) {
    case ops::Outside::kZero:
      return 0;
    case ops::Outside::kLowest:
      return -std::numeric_limits<double>::infinity();
    case ops::Outside::kNoPlace:
    case ops::Outside::kEdge:
      break;
  }
  return -1;
}

/// When all that is inside has come.
void fill_outside(const CollectiveCall& call, const Box& needed, const at::Tensor& output) {
  for (const ops::Halo& halo : call.step.halos) {
    const ops::Rows& rows = needed[static_cast<std::size_t>(halo.dim)];
    const std::int64_t before = std::clamp<std::int64_t>(-rows.start, 0, rows.size);
    const std::int64_t after = std::clamp<std::int64_t>(rows.end() - halo.size, 0, rows.size);
    const at::Tensor first = output.narrow(halo.dim, 0, before);
    const at::Tensor last = output.narrow(halo.dim, rows.size - after, after);
    if (halo.outside == ops::Outside::kEdge && before + after < rows.size) {
      first.copy_(output.narrow(halo.dim, before, 1).expand_as(first));
      last.copy_(output.narrow(halo.dim, rows.size - after - 1, 1).expand_as(last));
    } else {
      first.fill_(value_outside(halo.outside));
      last.fill_(value_outside(halo.outside));
    }
  }
}

/// Every rank gets each row from the one rank of the group that has it.
void exchange_halos(const CollectiveCall& call, const at::Tensor& input, const at::Tensor& output) {
  Ranks members = call.mesh.group(call.rank, call.step.axes);
  std::sort(members.begin(), members.end());
  const HaloBoxes mine = boxes_of(call, call.rank);
  std::vector<Transfer> receives;
  std::vector<Transfer> sends;
  std::vector<at::Tensor> targets;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const HaloBoxes theirs = boxes_of(call, members[i]);
    const Box from = common(mine.needed, theirs.held);
    const Box to = common(theirs.needed, mine.held);
    if (members[i] == call.rank) {
      if (!is_empty(from)) {
        view_of(output, mine.needed, from).copy_(view_of(input, mine.held, from));
      }
      continue;
    }
    const auto member = static_cast<std::int64_t>(i);
    if (!is_empty(from)) {
      targets.push_back(view_of(output, mine.needed, from));
      receives.push_back({member, at::empty(targets.back().sizes(), output.options())});
    }
    if (!is_empty(to)) {
      const at::Tensor rows = view_of(input, mine.held, to);
      sends.push_back({member, at::empty(rows.sizes(), input.options())});
      sends.back().tensor.copy_(rows);
    }
  }
  call.group->transfer(receives, sends);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    targets[i].copy_(receives[i].tensor);
  }
  fill_outside(call, mine.needed, output);
}

}  // namespace

void exchange(Group& group,
              const std::vector<at::Tensor>& outputs,
              const std::vector<at::Tensor>& inputs) {
  std::vector<Transfer> receives;
  std::vector<Transfer> sends;
  for (std::int64_t i = 1; i < group.size(); ++i) {
    const std::int64_t from = (group.member() + group.size() - i) % group.size();
    const std::int64_t to = (group.member() + i) % group.size();
    receives.push_back({from, outputs[static_cast<std::size_t>(from)]});
    sends.push_back({to, inputs[static_cast<std::size_t>(to)]});
  }
  const auto me = static_cast<std::size_t>(group.member());
  outputs[me].copy_(inputs[me]);
  group.transfer(receives, sends);
}

void all_gather_into(Group& group, const at::Tensor& output, const at::Tensor& input) {
  const at::Tensor row = input.view({-1});
  exchange(group,
           output.view({group.size(), row.numel()}).unbind(0),
           std::vector<at::Tensor>(static_cast<std::size_t>(group.size()), row));
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
    const Range range = sharding::part(full.size(d), spec.axes_of(static_cast<int>(d)), mesh, rank);
    part = part.narrow(d, range.start, range.size);
  }
  return part;
}

at::Tensor shard_of(const at::Tensor& full,
                    const sharding::ShardingSpec& spec,
                    const cluster::DeviceMesh& mesh,
                    std::int64_t rank) {
  return shard_view(full, spec, mesh, rank).clone(at::MemoryFormat::Contiguous);
}

at::Tensor result_storage(const CollectiveCall& call, const at::Tensor& input) {
  return at::empty(
      call.step.kind == CollectiveKind::kAllReduce ? input.sizes().vec() : call.result_shape(),
      input.options());
}

void run_collective_into(const CollectiveCall& call,
                         const at::Tensor& input,
                         const at::Tensor& output) {
  switch (call.step.kind) {
    case CollectiveKind::kSlice: {
      const Range mine =
          sharding::part(input.size(call.step.dim), call.step.axes, call.mesh, call.rank);
      output.copy_(input.narrow(call.step.dim, mine.start, mine.size));
      return;
    }
    case CollectiveKind::kAllGather:
      return all_gather(call, input, output);
    case CollectiveKind::kReduceScatter:
      return reduce_scatter(call, input, output);
    case CollectiveKind::kAllReduce:
      return all_reduce_in_place(*call.group, output, call.step.reduction);
    case CollectiveKind::kAllToAll:
      return all_to_all(call, input, output);
    case CollectiveKind::kCollectivePermute:
      return permute(call, input, output);
    case CollectiveKind::kHaloExchange:
      return exchange_halos(call, input, output);
  }
  SHARDPLAN_CHECK(false) << "collective out of range";
}

at::Tensor run_collective(const CollectiveCall& call, const at::Tensor& input) {
  at::Tensor output = result_storage(call, input);
  if (call.step.kind == CollectiveKind::kAllReduce) {
    output.copy_(input);
  }
  run_collective_into(call, input, output);
  return output;
}

}  // namespace shardplan::runtime
