#pragma once

#include <cstdint>

namespace shardplan::ops {

/// A run of elements along one dimension. It may begin before 0 and end past the dimension.
struct Rows {
  std::int64_t start = 0;
  std::int64_t size = 0;

  [[nodiscard]] std::int64_t end() const { return start + size; }
  /// Those that are within both.
  [[nodiscard]] Rows within(const Rows& other) const;
  bool operator==(const Rows&) const = default;
};

/// What a window sees outside of a dimension.
enum class Outside : std::uint8_t {
  kZero,
  kLowest,   ///< minus infinity
  kNoPlace,  ///< -1, where elements are places
  kEdge      ///< the outermost element, again and again
};

/// An op slides a window along an axis: for its own rows [a, b) of the axis (a dimension of a
/// result, or of another operand) it needs other rows of an operand. With window i standing on the
/// elements i · stride - padding + t · dilation, t < kernel, it needs
/// - where its own rows are windows: the elements from the first to the last under any of them,
///   (b - a - 1) · stride + reach() of them;
/// - where its own rows are elements: all windows that stand on any of them. Their number is that
///   of the worst place of a, so that it depends on b - a alone; the first one begins
///   `crop()` elements before a.
/// Rows that the operand does not have are `outside`. The kernel then runs without padding along
/// this dimension.
///
/// Example: kernel 3, stride 1, padding 1: own rows [4, 8) need [3, 9); with stride 2, own windows
/// [2, 4) need the elements [3, 8), own elements [4, 8) the windows [1, 5).
struct Halo {
  int axis = -1;              ///< of the op's AxisMap; its size is that of the own rows' dimension
  int input = 0;              ///< the operand of which more than the own part is needed
  int dim = 0;                ///< its dimension
  std::int64_t own_size = 0;  ///< of the axis
  std::int64_t size = 0;      ///< of the operand's dimension
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  std::int64_t dilation = 1;
  bool windows = false;  ///< the operand's rows are windows, the own rows elements
  Outside outside = Outside::kZero;

  [[nodiscard]] std::int64_t reach() const { return dilation * (kernel - 1) + 1; }
  [[nodiscard]] Rows needed(const Rows& own) const;
  /// Number of rows needed for so many own rows. Never less for more.
  [[nodiscard]] std::int64_t needed_size(std::int64_t own) const;
  /// Where own rows are elements: how many elements before own.start the first window of needed()
  /// begins; at least reach() - 1, less than reach() - 1 + stride.
  [[nodiscard]] std::int64_t crop(const Rows& own) const;
  /// Number of elements that windows, so many, give with a padding of reach() - 1: those of the own
  /// rows begin at crop() - (reach() - 1) of them.
  [[nodiscard]] std::int64_t made(std::int64_t count) const {
    return (count - 1) * stride - reach() + 2;
  }
  bool operator==(const Halo&) const = default;
};

/// A halo along an axis that is cut, as one rank sees it.
struct CutWindow {
  Halo halo{};
  Rows own{};
  Rows needed{};
};

}  // namespace shardplan::ops
