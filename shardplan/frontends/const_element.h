#pragma once

#include <cstddef>
#include <cstdint>

#include "shardplan/ir/types.h"

namespace shardplan::frontends {

/// One element: an integer or truth value, or a real number.
struct Number {
  bool real = false;
  std::int64_t i = 0;
  double d = 0;

  static Number of(std::int64_t value) { return {false, value, 0}; }
  static Number of(double value) { return {true, 0, value}; }
  [[nodiscard]] double as_double() const { return real ? d : static_cast<double>(i); }
  /// Truncated; 0 for what no 64-bit integer can hold.
  [[nodiscard]] std::int64_t as_int() const;
  bool operator==(const Number& other) const;
};

/// Sums and products of integers wrap, as they do in PyTorch: archives may hold any.
[[nodiscard]] std::int64_t wrapping_sum(std::int64_t a, std::int64_t b);
[[nodiscard]] std::int64_t wrapping_product(std::int64_t a, std::int64_t b);

/// The number as an element of this type holds it; bf16 and f16 are not rounded.
[[nodiscard]] Number round_to(ir::DType dtype, const Number& value);
/// bf16 and f16, whose elements are neither read nor written here.
[[nodiscard]] bool is_narrow(ir::DType dtype);
/// One little-endian element. Precondition: the type is not narrow.
[[nodiscard]] Number read_element(ir::DType dtype, const std::byte* at);
void write_element(ir::DType dtype, const Number& value, std::byte* at);

}  // namespace shardplan::frontends
