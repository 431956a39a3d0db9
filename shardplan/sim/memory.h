#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/sim/sim.h"

namespace shardplan::sim {

/// The entries of MemoryBreakdown.
enum class MemoryClass : std::uint8_t {
  kParameters,
  kGradients,
  kOptimizer,
  kActivations,
  kInputs,
  kTemporary
};
inline constexpr std::size_t kMemoryClasses = 6;

/// Class of every value of a training step. Graph inputs by their kind. Op results: gradients are
/// those of parameters (Graph::gradients, what update ops read of the backward pass, what
/// accumulators add up, and what is a view of these); activations are results of forward ops; all
/// else is temporary. O(graph).
[[nodiscard]] std::vector<MemoryClass> memory_classes(const ir::Graph& step);

/// Counts bytes by class and remembers the moment of the peak (the first one, on a tie).
class MemoryMeter {
 public:
  void add(MemoryClass what, Bytes bytes) {
    live_[static_cast<std::size_t>(what)] += bytes;
    total_ += bytes;
    watched_ = std::max(watched_, total_);
    if (total_ > peak_) {
      peak_ = total_;
      at_peak_ = live_;
    }
  }
  void remove(MemoryClass what, Bytes bytes) {
    live_[static_cast<std::size_t>(what)] -= bytes;
    total_ -= bytes;
  }
  /// Bytes that are there only for a moment.
  void touch(MemoryClass what, Bytes bytes) {
    add(what, bytes);
    remove(what, bytes);
  }

  /// Forgets what was watched before.
  void watch() { watched_ = total_; }
  /// The most bytes since watch().
  [[nodiscard]] Bytes watched() const { return watched_; }

  [[nodiscard]] Bytes peak() const { return peak_; }
  [[nodiscard]] MemoryBreakdown at_peak() const;

 private:
  std::array<Bytes, kMemoryClasses> live_{};
  std::array<Bytes, kMemoryClasses> at_peak_{};
  Bytes total_ = 0;
  Bytes peak_ = 0;
  Bytes watched_ = 0;
};

}  // namespace shardplan::sim
