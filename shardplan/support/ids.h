#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace shardplan {

/// A strong integer id: an index into one kind of table, -1 when it names nothing.
/// Ids of different tags do not convert into each other.
template <class Tag>
struct Id {
  std::int32_t value = -1;

  constexpr Id() = default;
  constexpr explicit Id(std::int32_t v) : value(v) {}
  constexpr explicit Id(std::size_t v) : value(static_cast<std::int32_t>(v)) {}

  [[nodiscard]] constexpr bool valid() const { return value >= 0; }
  [[nodiscard]] constexpr std::size_t index() const { return static_cast<std::size_t>(value); }
  constexpr auto operator<=>(const Id&) const = default;
};

/// Units of every interface: bytes, seconds, floating-point operations (2 a multiply-add).
using Bytes = std::int64_t;
using Seconds = double;
using Flops = double;

}  // namespace shardplan

template <class Tag>
struct std::hash<shardplan::Id<Tag>> {
  std::size_t operator()(const shardplan::Id<Tag>& id) const noexcept {
    return std::hash<std::int32_t>{}(id.value);
  }
};
