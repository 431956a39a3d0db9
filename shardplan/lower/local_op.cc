#include "shardplan/lower/local_op.h"

#include <algorithm>

#include "shardplan/lower/program.h"

namespace shardplan::lower {
namespace {

void find_exchanges(const ops::AxisMap& map,
                    const ops::Types& inputs,
                    const sharding::OpLayouts& layouts,
                    const cluster::DeviceMesh& mesh,
                    LocalOp& local) {
  local.cut = sharding::cut_halos(map, layouts);
  if (local.cut.empty()) {
    return;
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const sharding::ShardingSpec& spec = layouts.inputs[i];
    auto step = sharding::halo_exchange(local.cut, static_cast<int>(i), spec, mesh);
    if (!step) {
      continue;
    }
    const ir::TensorType made{inputs[i].dtype,
                              sharding::widened_shape(step->halos, spec, inputs[i].shape, mesh)};
    const Bytes workspace = sharding::halo_traffic(*step, inputs[i], mesh).packed;
    local.inputs[i] = made;
    local.exchanges.push_back({static_cast<int>(i), std::move(*step), made, workspace});
  }
}

}  // namespace

LocalOp local_op(const ops::OpDef& def,
                 const ops::AxisMap& map,
                 const ops::OpTypes& types,
                 const ir::Attributes& attributes,
                 const sharding::OpLayouts& layouts,
                 const cluster::DeviceMesh& mesh) {
  LocalOp local{types.inputs, types.results};
  for (std::size_t i = 0; i < local.inputs.size(); ++i) {
    ir::Shape& shape = local.inputs[i].shape;
    shape = sharding::local_shape(layouts.inputs[i], shape, mesh);
  }
  for (std::size_t r = 0; r < local.results.size(); ++r) {
    ir::Shape& shape = local.results[r].shape;
    shape = sharding::local_shape(layouts.results[r], shape, mesh);
  }
  if (!map.halos.empty()) {
    find_exchanges(map, types.inputs, layouts, mesh, local);
  }
  if (!def.view) {
    const ops::OpView view{local.inputs, local.results, attributes, local.cut};
    local.flops = def.flops != nullptr ? def.flops(view) : 0;
    local.workspace = def.workspace != nullptr ? def.workspace(view) : 0;
    local.bytes = memory_traffic(map, local.inputs, local.results);
  }
  return local;
}

Bytes memory_traffic(const ops::AxisMap& map,
                     std::span<const ir::TensorType> inputs,
                     std::span<const ir::TensorType> results) {
  Bytes written = 0;
  for (const ir::TensorType& type : results) {
    written += type.bytes();
  }
  Bytes total = written;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool looked_up =
        std::any_of(map.inputs[i].begin(), map.inputs[i].end(), [&](const std::vector<int>& dim) {
          return std::any_of(dim.begin(), dim.end(), [&](int axis) {
            return map.axes[static_cast<std::size_t>(axis)].role == ops::AxisRole::kLookup;
          });
        });
    total += looked_up ? std::min(inputs[i].bytes(), written) : inputs[i].bytes();
  }
  return total;
}

}  // namespace shardplan::lower
