#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>

namespace shardplan::runtime {

/// Philox 4x32 with 10 rounds: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as
/// 1, 2, 3", SC 2011, with the paper's constants. A pure function of counter and key, so an element
/// gets the same number on whichever device its shard lies.
[[nodiscard]] constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                                            std::array<std::uint32_t, 2> key) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9;
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter[0];
    const std::uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32U) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32U) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key = {key[0] + kWeyl0, key[1] + kWeyl1};
  }
  return counter;
}

/// One stream of random numbers, addressed by index: `key` says whose (a tensor, a dropout site),
/// `draw` which time (step and microbatch).
class RandomStream {
 public:
  RandomStream(std::uint64_t key, std::uint64_t draw) : key_(key), draw_(draw) {}

  /// Uniform in [0, 2^32); four neighbours share one Philox call, which is cached.
  [[nodiscard]] std::uint32_t bits(std::uint64_t index) {
    const std::uint64_t block = index / 4;
    if (block != block_) {
      block_ = block;
      lanes_ = philox({low(block), high(block), low(draw_), high(draw_)}, {low(key_), high(key_)});
    }
    return lanes_[index % 4];
  }

  /// Standard normal by Box and Muller (1958), in double; two numbers an index.
  [[nodiscard]] double normal(std::uint64_t index) {
    const double u = (bits(2 * index) + 1.0) * 0x1p-32;  // (0, 1]
    const double v = bits(2 * index + 1) * 0x1p-32;
    return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
  }

 private:
  static constexpr std::uint32_t low(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
  static constexpr std::uint32_t high(std::uint64_t x) {
    return static_cast<std::uint32_t>(x >> 32U);
  }

  std::uint64_t key_;
  std::uint64_t draw_;
  std::uint64_t block_ = ~std::uint64_t{0};
  std::array<std::uint32_t, 4> lanes_{};
};

/// A key from a seed and a name: FNV-1a over the name, mixed with the seed (splitmix64's
/// finaliser).
[[nodiscard]] constexpr std::uint64_t random_key(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  hash ^= seed + 0x9e3779b97f4a7c15;
  hash = (hash ^ (hash >> 30U)) * 0xbf58476d1ce4e5b9;
  hash = (hash ^ (hash >> 27U)) * 0x94d049bb133111eb;
  return hash ^ (hash >> 31U);
}

}  // namespace shardplan::runtime
