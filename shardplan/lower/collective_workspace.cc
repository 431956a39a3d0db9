#include <algorithm>

#include "shardplan/lower/program.h"

namespace shardplan::lower {
namespace {

using sharding::CollectiveKind;

/// A slab of `parts` parts of type [outer, inner] each: whole rows, or a piece of one row.
Bytes slab_bytes(const ir::TensorType& part, int dim, std::int64_t parts) {
  std::int64_t outer = 1;
  std::int64_t inner = 1;
  for (std::size_t d = 0; d < part.shape.size(); ++d) {
    (static_cast<int>(d) < dim ? outer : inner) *= part.shape[d];
  }
  const Bytes a_column = parts * ir::element_bytes(part.dtype);
  const std::int64_t fit = std::max<std::int64_t>(1, kSlabBytes / a_column);
  const std::int64_t columns = std::min(inner, fit);
  const std::int64_t rows = columns < inner ? 1
                                            : std::clamp(fit / std::max<std::int64_t>(inner, 1),
                                                         std::int64_t{1},
                                                         std::max<std::int64_t>(outer, 1));
  return rows * columns * a_column;
}

/// One slab to send and one to receive, cut along the longest dimension that is not split; every
/// part has the room of the largest.
Bytes all_to_all_bytes(const sharding::ReshardStep& step,
                       const ir::TensorType& input,
                       std::int64_t parts) {
  auto along = static_cast<std::size_t>(step.dim);
  for (std::size_t d = 0; d < input.shape.size(); ++d) {
    if (static_cast<int>(d) != step.split_dim && input.shape[d] > input.shape[along]) {
      along = d;
    }
  }
  const std::int64_t length = std::max<std::int64_t>(input.shape[along], 1);
  const std::int64_t split =
      std::max<std::int64_t>(input.shape[static_cast<std::size_t>(step.split_dim)], 1);
  const Bytes padded = input.bytes() / split * parts * sharding::largest_part(split, parts);
  const Bytes a_line = std::max<Bytes>(padded / length, 1);
  return 2 * a_line * std::clamp(kSlabBytes / a_line, std::int64_t{1}, length);
}

}  // namespace

Bytes collective_workspace(const sharding::ReshardStep& step,
                           const ir::TensorType& input,
                           const ir::TensorType& result,
                           const cluster::DeviceMesh& mesh) {
  std::int64_t parts = 1;
  for (const int axis : step.axes) {
    parts *= mesh.axes[static_cast<std::size_t>(axis)].size;
  }
  switch (step.kind) {
    case CollectiveKind::kAllGather: {
      const auto dim = input.shape.begin() + step.dim;
      const bool one_run =
          std::all_of(input.shape.begin(), dim, [](std::int64_t size) { return size == 1; });
      return one_run ? 0 : slab_bytes(input, step.dim, parts);
    }
    case CollectiveKind::kReduceScatter:  // one slab to send and one to receive
      return 2 * slab_bytes(result, step.dim, parts);

    case CollectiveKind::kAllToAll:
      return all_to_all_bytes(step, input, parts);
    case CollectiveKind::kAllReduce: {  // one part of a slab from every member
      const Bytes element = ir::element_bytes(input.dtype);
      const std::int64_t slab = std::min(input.numel(), kSlabBytes / element);
      return parts * ((slab + parts - 1) / parts) * element;
    }
    case CollectiveKind::kSlice:
    case CollectiveKind::kCollectivePermute:
    case CollectiveKind::kHaloExchange:  // see sharding::halo_traffic
      break;
  }
  return 0;
}

}  // namespace shardplan::lower
