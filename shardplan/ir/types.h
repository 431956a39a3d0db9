#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shardplan/support/ids.h"

namespace shardplan::ir {

enum class DType : std::uint8_t {
  kBool,
  kUInt8,
  kInt32,
  kInt64,
  kBFloat16,
  kFloat16,
  kFloat32,
  kFloat64
};

/// Bytes of one element.
[[nodiscard]] Bytes element_bytes(DType dtype);
/// Text form: bool u8 i32 i64 bf16 f16 f32 f64.
[[nodiscard]] std::string_view dtype_name(DType dtype);
[[nodiscard]] std::optional<DType> parse_dtype(std::string_view text);
[[nodiscard]] bool is_floating(DType dtype);

using Shape = std::vector<std::int64_t>;

/// Type of a dense, contiguous (row-major) tensor. Rank 0 is a scalar.
struct TensorType {
  DType dtype = DType::kFloat32;
  Shape shape{};

  [[nodiscard]] std::int64_t rank() const { return static_cast<std::int64_t>(shape.size()); }
  /// Number of elements; 1 for a scalar. Capped at 2^60 - 1 where the product is larger.
  [[nodiscard]] std::int64_t numel() const;
  [[nodiscard]] Bytes bytes() const { return numel() * element_bytes(dtype); }
  bool operator==(const TensorType&) const = default;
};

/// Whether every dimension is at least 1 and the tensor has at most kMaxRank dimensions and fewer
/// than 2^63 bytes. numel() and bytes() are only meaningful for such types.
inline constexpr std::size_t kMaxRank = 32;
[[nodiscard]] bool is_valid(const TensorType& type);

/// "f32[8,1024,768]"; a scalar is "f32[]".
[[nodiscard]] std::string to_string(const TensorType& type);

}  // namespace shardplan::ir
