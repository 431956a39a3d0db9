#include "shardplan/frontends/const_element.h"

#include <cmath>
#include <cstring>
#include <type_traits>

namespace shardplan::frontends {

using ir::DType;

namespace {

template <class T>
Number load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  if constexpr (std::is_floating_point_v<T>) {
    return Number::of(static_cast<double>(value));
  } else {
    return Number::of(static_cast<std::int64_t>(value));
  }
}

template <class T>
void store(std::byte* at, const Number& number) {
  T value;
  if constexpr (std::is_floating_point_v<T>) {
    value = static_cast<T>(number.as_double());
  } else {
    value = static_cast<T>(number.as_int());
  }
  std::memcpy(at, &value, sizeof value);
}

}  // namespace

std::int64_t Number::as_int() const {
  if (!real) {
    return i;
  }
  return std::abs(d) < 9e18 ? static_cast<std::int64_t>(d) : 0;
}

bool Number::operator==(const Number& other) const {
  return real == other.real && (real ? d == other.d : i == other.i);
}

Number round_to(DType dtype, const Number& value) {
  switch (dtype) {
    case DType::kBool:
      return Number::of(std::int64_t{value.real ? value.d != 0 : value.i != 0});
    case DType::kUInt8:
      return Number::of(std::int64_t{static_cast<std::uint8_t>(value.as_int())});
    case DType::kInt32:
      return Number::of(std::int64_t{static_cast<std::int32_t>(value.as_int())});
    case DType::kInt64:
      return Number::of(value.as_int());
    case DType::kFloat32:
      return Number::of(static_cast<double>(static_cast<float>(value.as_double())));
    case DType::kFloat64:
    case DType::kBFloat16:
    case DType::kFloat16:
      break;
  }
  return Number::of(value.as_double());
}

bool is_narrow(DType dtype) {
  return dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

std::int64_t wrapping_sum(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

std::int64_t wrapping_product(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

Number read_element(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8:
      return load<std::uint8_t>(at);
    case DType::kInt32:
      return load<std::int32_t>(at);
    case DType::kInt64:
      return load<std::int64_t>(at);
    case DType::kFloat32:
      return load<float>(at);
    case DType::kFloat64:
    case DType::kBFloat16:
    case DType::kFloat16:
      break;
  }
  return load<double>(at);
}

void write_element(DType dtype, const Number& value, std::byte* at) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8:
      store<std::uint8_t>(at, value);
      return;
    case DType::kInt32:
      store<std::int32_t>(at, value);
      return;
    case DType::kInt64:
      store<std::int64_t>(at, value);
      return;
    case DType::kFloat32:
      store<float>(at, value);
      return;
    case DType::kFloat64:
    case DType::kBFloat16:
    case DType::kFloat16:
      break;
  }
  store<double>(at, value);
}

}  // namespace shardplan::frontends
