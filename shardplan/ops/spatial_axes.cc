#include "shardplan/ops/spatial_axes.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace shardplan::ops {

char space_name(std::size_t d, std::size_t rank) {
  constexpr std::string_view kNames = "dhw";
  return kNames[kNames.size() - rank + d];
}

Bytes workspace_with_crop(const ir::TensorType& made,
                          const ir::TensorType& result,
                          Bytes workspace) {
  return made == result ? workspace : made.bytes() + std::max<Bytes>(0, workspace - result.bytes());
}

SpatialAxes::SpatialAxes(const ir::TensorType& elements,
                         const ir::TensorType& windows,
                         const ir::IntList& kernel,
                         const ir::IntList& stride,
                         const ir::IntList& padding,
                         const ir::IntList& dilation) {
  for (std::size_t d = 0; d < kernel.size(); ++d) {
    const char name = space_name(d, kernel.size());
    const Halo halo{.dim = static_cast<int>(d) + 2,
                    .own_size = windows.shape[d + 2],
                    .size = elements.shape[d + 2],
                    .kernel = kernel[d],
                    .stride = stride[d],
                    .padding = padding[d],
                    .dilation = dilation[d]};
    names_ += ' ';
    if (halo.own_size == 1 || halo.size == 1) {
      names_ += '*';
    } else if (halo.kernel == 1 && halo.stride == 1 && halo.padding == 0 &&
               halo.own_size == halo.size) {
      names_ += name;
    } else {
      names_ += {'~', name};
      sliding_.push_back({name, halo});
    }
  }
}

void SpatialAxes::add_halos(AxisMap& map, int input, bool windows, Outside outside) const {
  for (const Sliding& sliding : sliding_) {
    Halo halo = sliding.halo;
    halo.input = input;
    halo.outside = outside;
    halo.windows = windows;
    if (windows) {
      std::swap(halo.size, halo.own_size);
    }
    add_halo(map, std::string_view(&sliding.name, 1), halo);
  }
}

}  // namespace shardplan::ops
