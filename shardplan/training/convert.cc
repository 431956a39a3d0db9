// Conversion of tensor contents between floating types.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "shardplan/training/precision.h"

namespace shardplan::training {
namespace {

/// bf16 is the upper half of f32, rounded to nearest even; a NaN stays one.
std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);
  }
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U);
}

float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
}

/// f16: sign, 5 exponent bits (bias 15), 10 fraction bits.
float from_f16(std::uint16_t bits) {
  const unsigned exponent = (bits >> 10U) & 0x1fU;
  const auto fraction = static_cast<float>(bits & 0x3ffU);
  float magnitude = 0;
  if (exponent == 0) {
    magnitude = std::ldexp(fraction, -24);
  } else if (exponent == 31) {
    magnitude = fraction == 0 ? INFINITY : NAN;
  } else {
    magnitude = std::ldexp(1024.0F + fraction, static_cast<int>(exponent) - 25);
  }
  return (bits & 0x8000U) != 0 ? -magnitude : magnitude;
}

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

double read(const std::byte* at, ir::DType dtype) {
  switch (dtype) {
    case ir::DType::kBFloat16:
      return static_cast<double>(from_bf16(load<std::uint16_t>(at)));
    case ir::DType::kFloat16:
      return static_cast<double>(from_f16(load<std::uint16_t>(at)));
    case ir::DType::kFloat32:
      return static_cast<double>(load<float>(at));
    default:
      return load<double>(at);
  }
}

void write(std::byte* at, ir::DType dtype, double value) {
  const auto single = static_cast<float>(value);
  if (dtype == ir::DType::kBFloat16) {
    const std::uint16_t bits = to_bf16(single);
    std::memcpy(at, &bits, sizeof bits);
  } else if (dtype == ir::DType::kFloat32) {
    std::memcpy(at, &single, sizeof single);
  } else {
    std::memcpy(at, &value, sizeof value);
  }
}

}  // namespace

ir::Data converted(const ir::Data& data, ir::DType from, ir::DType to) {
  if (data == nullptr || from == to) {
    return data;
  }
  SHARDPLAN_CHECK(to != ir::DType::kFloat16) << "no recipe makes f16";
  const auto from_bytes = static_cast<std::size_t>(ir::element_bytes(from));
  const auto to_bytes = static_cast<std::size_t>(ir::element_bytes(to));
  const std::size_t count = data->size() / from_bytes;
  std::vector<std::byte> out(count * to_bytes);
  for (std::size_t i = 0; i < count; ++i) {
    write(out.data() + i * to_bytes, to, read(data->data() + i * from_bytes, from));
  }
  return std::make_shared<const std::vector<std::byte>>(std::move(out));
}

}  // namespace shardplan::training
