#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "shardplan/frontends/const_element.h"
#include "shardplan/ir/types.h"

/// Tensors whose content is known while a model is read, and the few operations that models compute
/// them with: positions, causal masks, scalars. They live in the front end only.
namespace shardplan::frontends {

/// The places where low <= index[row] - index[column] <= high. A missing bound does not bind.
struct Band {
  std::size_t row = 0;
  std::size_t column = 0;
  std::optional<std::int64_t> low;
  std::optional<std::int64_t> high;
};

/// The same band with the row before the column.
[[nodiscard]] Band ordered(const Band& band);

/// Every element counter i + start along one dimension, the same along all others.
struct IndexLike {
  std::size_t dim = 0;
  std::int64_t start = 0;
};

/// A strided view of elements (stride 0 along dimensions that do not matter, so a mask of any batch
/// size costs one sequence), or a Band with one value inside and one outside, which costs nothing.
/// Cheap to copy; immutable.
class ConstTensor {
 public:
  /// Results that need more elements than this are not computed (nullopt).
  static constexpr std::int64_t kMaxElements = std::int64_t{1} << 23;

  static ConstTensor full(ir::TensorType type, Number value);
  static std::optional<ConstTensor> arange(ir::TensorType type, Number start, Number step);
  /// `inside` where the band is, `outside` elsewhere.
  static ConstTensor banded(ir::TensorType type, Band band, Number inside, Number outside);
  /// bool, true in the band.
  static ConstTensor band_mask(ir::Shape shape, Band band);
  /// From raw little-endian bytes; nothing for bf16 and f16.
  static std::optional<ConstTensor> from_bytes(const ir::TensorType& type,
                                               std::span<const std::byte> bytes);

  [[nodiscard]] const ir::TensorType& type() const { return type_; }
  [[nodiscard]] const ir::Shape& shape() const { return type_.shape; }
  [[nodiscard]] const std::optional<Band>& band() const { return band_; }
  [[nodiscard]] const Number& inside() const { return inside_; }
  [[nodiscard]] const Number& outside() const { return outside_; }
  /// The band of a mask that is true exactly in a band; row before column. Else nothing.
  [[nodiscard]] std::optional<Band> true_band() const;

  /// The value of all elements if they are equal and known to be.
  [[nodiscard]] std::optional<Number> uniform() const;
  [[nodiscard]] std::optional<IndexLike> index_like() const;
  /// Dimensions along which elements may differ (size above 1 and stride not 0).
  [[nodiscard]] bool varies(std::size_t dim) const;
  /// The shape with size 1 where the tensor does not vary.
  [[nodiscard]] ir::Shape compact_shape() const;
  /// The elements of compact_shape() in row-major order; nothing above kMaxElements.
  [[nodiscard]] std::optional<std::vector<Number>> compact_elements() const;
  /// The same as raw bytes of the dtype; nothing for bf16 and f16.
  [[nodiscard]] std::optional<std::vector<std::byte>> compact_bytes() const;
  /// Element at full coordinates. Not for a band.
  [[nodiscard]] Number at(std::span<const std::int64_t> index) const;

  // Views. Preconditions: the arguments fit the shape.
  [[nodiscard]] ConstTensor permute(std::span<const std::int64_t> permutation) const;
  /// Aligned at the right; sizes 1 and missing dimensions are stretched.
  /// Precondition: expands_to(shape).
  [[nodiscard]] ConstTensor expand(const ir::Shape& shape) const;
  /// Whether each dimension, aligned at the right, has size 1 or that of `shape`.
  [[nodiscard]] bool expands_to(const ir::Shape& shape) const;
  [[nodiscard]] std::optional<ConstTensor> reshape(const ir::Shape& shape) const;
  [[nodiscard]] std::optional<ConstTensor> slice(std::size_t dim,
                                                 std::int64_t start,
                                                 std::int64_t size,
                                                 std::int64_t step) const;
  /// The same tensor without a band in it; nothing above kMaxElements.
  [[nodiscard]] std::optional<ConstTensor> dense() const;

 private:
  friend std::optional<ConstTensor> from_compact(ir::TensorType type,
                                                 const ir::Shape& compact,
                                                 std::vector<Number> elements);

  ir::TensorType type_;
  std::shared_ptr<const std::vector<Number>> elements_;
  ir::Shape strides_;
  std::int64_t offset_ = 0;
  std::optional<Band> band_;
  Number inside_;
  Number outside_;
};

/// A tensor of `type` from the elements of `compact`, its shape with size 1 where it does not vary.
/// Rounds to the dtype. Collapses to one element when all are equal.
std::optional<ConstTensor> from_compact(ir::TensorType type,
                                        const ir::Shape& compact,
                                        std::vector<Number> elements);

}  // namespace shardplan::frontends
