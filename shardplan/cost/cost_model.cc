#include "shardplan/cost/cost_model.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <map>
#include <string>

#include "shardplan/cost/collectives.h"
#include "shardplan/cost/curve.h"
#include "shardplan/sharding/halo.h"

namespace shardplan::cost {
namespace {

using sharding::CollectiveKind;

constexpr std::size_t kDTypes = 8;
constexpr std::size_t kKinds = 6;

std::size_t index_of(ir::DType dtype) {
  return static_cast<std::size_t>(dtype);
}

/// Rate of a dtype, or of fp32, or the slowest known.
double rate_of(const cluster::Device& device, std::string_view dtype) {
  for (const std::string_view name : {dtype, std::string_view("f32")}) {
    if (const auto found = device.peak_flops.find(std::string(name));
        found != device.peak_flops.end()) {
      return found->second;
    }
  }
  double slowest = std::numeric_limits<double>::infinity();
  for (const auto& [name, rate] : device.peak_flops) {
    slowest = std::min(slowest, rate);
  }
  return slowest;
}

/// Arithmetic off the matrix units runs at most at the fp32 rate.
double vector_rate(const cluster::Device& device, std::string_view dtype) {
  return std::min(rate_of(device, dtype), rate_of(device, "f32"));
}

/// Times that a collective's tensor is copied on the device. An all-reduce works on a copy of its
/// input, an all-gather is unpacked unless its parts lie one after the other in the output, a
/// reduce-scatter is packed, an all-to-all both. (A slice is priced as a copy itself.)
double copies(const sharding::ReshardStep& step,
              const ir::TensorType& type,
              const cluster::DeviceMesh& mesh) {
  switch (step.kind) {
    case CollectiveKind::kAllGather: {
      // Local sizes of the dimensions outside `dim`; cut down to 1 they do not part the runs.
      std::int64_t outer = 1;
      for (int d = 0; d < step.dim; ++d) {
        outer *= sharding::largest_part(type.shape[static_cast<std::size_t>(d)],
                                        sharding::shard_count(step.to, d, mesh));
      }
      return outer == 1 ? 0 : 1;
    }
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllReduce:
      return 1;
    case CollectiveKind::kAllToAll:
      return 2;
    case CollectiveKind::kSlice:
    case CollectiveKind::kCollectivePermute:
    case CollectiveKind::kHaloExchange:
      break;
  }
  return 0;
}

}  // namespace

struct CostModel::Tables {
  Tables(cluster::Cluster c, cluster::DeviceMesh m);
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;

  [[nodiscard]] Seconds memory(double bytes) const {
    return memory_curve.empty() ? cluster.device.kernel_overhead + bytes * seconds_a_byte
                                : memory_curve(bytes);
  }

  cluster::Cluster cluster;
  cluster::DeviceMesh mesh;
  std::array<double, kDTypes> matmul_seconds_a_flop{};
  std::array<double, kDTypes> vector_seconds_a_flop{};
  std::array<Curve, kDTypes> matmul_curves{};
  double seconds_a_byte = 0;
  Curve memory_curve;
  std::map<std::string, Curve, std::less<>> kernel_curves;  ///< by op
  std::vector<LevelCurves> level_curves;                    ///< by level; `prices` point into it
  std::vector<std::array<CollectivePrice, kKinds>> prices;  ///< by set of mesh axes, by kind
};

CostModel::Tables::Tables(cluster::Cluster c, cluster::DeviceMesh m)
    : cluster(std::move(c)),
      mesh(std::move(m)),
      memory_curve(cluster.device.memory_curve),
      level_curves(cost::level_curves(cluster)) {
  const cluster::Device& device = cluster.device;
  seconds_a_byte = 1 / (device.memory_bandwidth * device.memory_efficiency);
  for (std::size_t i = 0; i < kDTypes; ++i) {
    const std::string name(ir::dtype_name(static_cast<ir::DType>(i)));
    matmul_seconds_a_flop[i] = 1 / (rate_of(device, name) * device.matmul_efficiency);
    vector_seconds_a_flop[i] = 1 / (vector_rate(device, name) * device.matmul_efficiency);
    if (const auto found = device.matmul_curve.find(name); found != device.matmul_curve.end()) {
      matmul_curves[i] = Curve(found->second);
    }
  }
  for (const auto& [name, points] : device.kernel_curves) {
    kernel_curves.emplace(name, Curve(points));
  }
  SHARDPLAN_CHECK(mesh.axes.size() <= static_cast<std::size_t>(sharding::kMaxMeshAxes));
  const CollectivePricer pricer(cluster, level_curves);
  prices.resize(std::size_t{1} << mesh.axes.size());
  for (std::uint32_t mask = 0; mask < prices.size(); ++mask) {
    const std::vector<GroupPart> parts = group_parts(cluster, mesh, mask);
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      prices[mask][kind] = pricer.price(static_cast<CollectiveKind>(kind), parts);
    }
  }
}

Kernel kernel_of(const ops::OpDef& op,
                 std::span<const ir::TensorType> inputs,
                 std::span<const ir::TensorType> results,
                 Flops flops,
                 Bytes bytes) {
  const auto floating = std::find_if(inputs.begin(), inputs.end(), [](const ir::TensorType& type) {
    return ir::is_floating(type.dtype);
  });
  const ir::DType dtype = floating == inputs.end() ? results.front().dtype : floating->dtype;
  return {op.name, dtype, flops, bytes, op.matmul};
}

CostModel::CostModel(cluster::Cluster cluster, cluster::DeviceMesh mesh)
    : tables_(std::make_shared<const Tables>(std::move(cluster), std::move(mesh))) {}

Seconds CostModel::kernel(const Kernel& kernel) const {
  const Tables& t = *tables_;
  if (const auto own = t.kernel_curves.find(kernel.op); own != t.kernel_curves.end()) {
    return own->second(kernel.matmul ? kernel.flops : static_cast<double>(kernel.bytes));
  }
  const Seconds memory = t.memory(static_cast<double>(kernel.bytes));
  const std::size_t dtype = index_of(kernel.dtype);
  const Curve& curve = t.matmul_curves[dtype];
  if (kernel.matmul && !curve.empty()) {
    return std::max(curve(kernel.flops), memory);
  }
  const auto& a_flop = kernel.matmul ? t.matmul_seconds_a_flop : t.vector_seconds_a_flop;
  return std::max(t.cluster.device.kernel_overhead + kernel.flops * a_flop[dtype], memory);
}

Seconds CostModel::collective(CollectiveKind kind,
                              Bytes bytes,
                              const std::vector<int>& axes) const {
  if (kind == CollectiveKind::kSlice) {
    return tables_->memory(2 * static_cast<double>(bytes));
  }
  if (kind == CollectiveKind::kHaloExchange) {
    kind = CollectiveKind::kCollectivePermute;
  }
  std::uint32_t mask = 0;
  for (const int axis : axes) {
    mask |= 1U << static_cast<unsigned>(axis);
  }
  SHARDPLAN_CHECK(mask < tables_->prices.size()) << "collective over an axis outside the mesh";
  return tables_->prices[mask][static_cast<std::size_t>(kind)](static_cast<double>(bytes));
}

Seconds CostModel::reshard_step(const sharding::ReshardStep& step,
                                const ir::TensorType& type) const {
  if (step.kind == CollectiveKind::kHaloExchange) {
    return halo_exchange(step, type);
  }
  const bool by_output =
      step.kind == CollectiveKind::kAllGather || step.kind == CollectiveKind::kSlice;
  const sharding::ShardingSpec& spec = by_output ? step.to : step.from;
  const Bytes bytes = sharding::local_bytes(spec, type, mesh());
  const double made = std::max(0.0, copies(step, type, mesh()) - measured_copies(step));
  const double copied = made * 2 * static_cast<double>(bytes);
  return collective(step.kind, bytes, step.axes) + (copied > 0 ? tables_->memory(copied) : 0);
}

/// The rows that come in pass the slowest link as those of a permute do; what there is beside is
/// copied: the part with its halos, and rows that are packed to be sent.
Seconds CostModel::halo_exchange(const sharding::ReshardStep& step,
                                 const ir::TensorType& type) const {
  const sharding::HaloTraffic traffic = sharding::halo_traffic(step, type, mesh());
  const ir::TensorType made{type.dtype,
                            sharding::widened_shape(step.halos, step.to, type.shape, mesh())};
  const Bytes copied = made.bytes() + traffic.packed;
  return collective(step.kind, traffic.received, step.axes) +
         tables_->memory(2 * static_cast<double>(copied));
}

/// The copies that were measured together with the collective: the probe times it on parts of the
/// outermost dimension, where only an all-gather needs none.
double CostModel::measured_copies(const sharding::ReshardStep& step) const {
  std::uint32_t mask = 0;
  for (const int axis : step.axes) {
    mask |= 1U << static_cast<unsigned>(axis);
  }
  const bool measured =
      mask < tables_->prices.size() &&
      !tables_->prices[mask][static_cast<std::size_t>(step.kind)].measured.empty();
  if (!measured || step.kind == CollectiveKind::kAllGather) {
    return 0;
  }
  return step.kind == CollectiveKind::kAllToAll ? 2 : 1;
}

const cluster::Cluster& CostModel::cluster() const {
  return tables_->cluster;
}
const cluster::DeviceMesh& CostModel::mesh() const {
  return tables_->mesh;
}

sharding::StepPrice step_price(const CostModel& cost) {
  return [cost](const sharding::ReshardStep& step, const ir::TensorType& type) {
    return cost.reshard_step(step, type);
  };
}

}  // namespace shardplan::cost
