#pragma once

#include <string>
#include <vector>

#include "shardplan/ir/attributes.h"
#include "shardplan/ops/axis_map.h"

namespace shardplan::ops {

/// Of dimension `d` of the `rank` dimensions of space: d, h and w, the last ones of these.
[[nodiscard]] char space_name(std::size_t d, std::size_t rank);

/// Bytes that a kernel on a part takes beside `result`, where it makes `made`, of which the result
/// is then cut out, and takes `workspace` beside that meanwhile.
[[nodiscard]] Bytes workspace_with_crop(const ir::TensorType& made,
                                        const ir::TensorType& result,
                                        Bytes workspace);

/// The axes of the 1 to 3 dimensions of space, after batch and channels, of an op with windows over
/// them, by their space_name(). Without a halo where a window is one element; needed whole where a
/// side has size 1.
class SpatialAxes {
 public:
  /// `elements`: a tensor on which the windows stand; `windows`: one with an element for each
  /// window. The lists have a number for each dimension of space.
  SpatialAxes(const ir::TensorType& elements,
              const ir::TensorType& windows,
              const ir::IntList& kernel,
              const ir::IntList& stride,
              const ir::IntList& padding,
              const ir::IntList& dilation);

  /// For make_axis_map: " ~h ~w", " * w".
  [[nodiscard]] const std::string& names() const { return names_; }
  /// Adds the halos of operand `input`; `windows`: it has an element for each window, and the op's
  /// own rows are elements.
  void add_halos(AxisMap& map, int input, bool windows, Outside outside = Outside::kZero) const;

 private:
  struct Sliding {
    char name;
    Halo halo;  ///< own rows are windows
  };
  std::string names_;
  std::vector<Sliding> sliding_;
};

}  // namespace shardplan::ops
