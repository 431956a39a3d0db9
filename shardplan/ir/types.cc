#include "shardplan/ir/types.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <utility>

#include "shardplan/support/result.h"

namespace shardplan::ir {

namespace {

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  Bytes bytes;
};

constexpr std::array<DTypeInfo, 8> kDTypes{{{DType::kBool, "bool", 1},
                                            {DType::kUInt8, "u8", 1},
                                            {DType::kInt32, "i32", 4},
                                            {DType::kInt64, "i64", 8},
                                            {DType::kBFloat16, "bf16", 2},
                                            {DType::kFloat16, "f16", 2},
                                            {DType::kFloat32, "f32", 4},
                                            {DType::kFloat64, "f64", 8}}};

// Times the widest element (8 bytes) this still fits in 63 bits.
constexpr std::int64_t kNumelCap = (std::int64_t{1} << 60) - 1;

const DTypeInfo& info(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  SHARDPLAN_CHECK(index < kDTypes.size()) << "dtype " << index;
  return kDTypes[index];
}

}  // namespace

Bytes element_bytes(DType dtype) {
  return info(dtype).bytes;
}

std::string_view dtype_name(DType dtype) {
  return info(dtype).name;
}

std::optional<DType> parse_dtype(std::string_view text) {
  for (const DTypeInfo& entry : kDTypes) {
    if (entry.name == text) {
      return entry.dtype;
    }
  }
  return std::nullopt;
}

bool is_floating(DType dtype) {
  return dtype == DType::kBFloat16 || dtype == DType::kFloat16 || dtype == DType::kFloat32 ||
         dtype == DType::kFloat64;
}

std::int64_t TensorType::numel() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (size > 0 && count > kNumelCap / size) {
      return kNumelCap;
    }
    count *= size;
  }
  return count;
}

bool is_valid(const TensorType& type) {
  if (type.shape.size() > kMaxRank) {
    return false;
  }
  for (const std::int64_t size : type.shape) {
    if (size < 1) {
      return false;
    }
  }
  return type.numel() < kNumelCap;
}

std::string to_string(const TensorType& type) {
  return fmt::format("{}[{}]", dtype_name(type.dtype), fmt::join(type.shape, ","));
}

}  // namespace shardplan::ir
