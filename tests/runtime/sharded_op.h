#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shardplan/ops/op.h"
#include "shardplan/runtime/collectives.h"
#include "shardplan/runtime/kernel.h"
#include "shardplan/sharding/halo.h"
#include "shardplan/sharding/strategy.h"

namespace shardplan::runtime {

/// What an op is, without a graph around it.
struct OpInstance {
  std::string op{};
  ops::Types inputs{};
  ops::Types results{};
  ir::Attributes attributes{};
};

/// One op on given operands over one mesh: the kernel on each rank's parts, put together as the
/// axis map says (parts side by side, partial sums added, partial maxima compared), against what
/// the kernel gives on the whole tensors. Operands that a strategy wants as partial sums are random
/// summands of the whole.
///
/// `tolerance` is relative to the largest finite magnitude of the result (at least 1), and of the
/// operands where some are summands, which cancel; for floating results; integers and booleans must
/// be equal, infinities and NaNs stand at the same places.
class ShardedOp {
 public:
  using Tensors = std::vector<at::Tensor>;

  ShardedOp(const OpInstance& op,
            Tensors inputs,
            const cluster::DeviceMesh& mesh,
            double tolerance = 1e-10)
      : op_(op), mesh_(mesh), tolerance_(tolerance), inputs_(std::move(inputs)) {
    map_ = ops::get(op.op).axes(ops::OpView{op.inputs, op.results, op.attributes});
    expected_ = find_kernel(op_.op)(
        KernelCall{clones(inputs_), op_.attributes, op_.results, {}, RandomState{}, {}});
  }

  [[nodiscard]] const ops::AxisMap& map() const { return map_; }
  [[nodiscard]] const Tensors& expected() const { return expected_; }

  /// Runs one strategy; what is not as the whole says, or nothing. Throws what kernels throw.
  [[nodiscard]] std::string difference(const sharding::Strategy& strategy) {
    const std::optional<sharding::OpLayouts> layouts = sharding::layouts(map_, strategy, mesh_);
    if (!layouts.has_value() || layouts->results.size() != op_.results.size()) {
      return "the strategy has no layouts";
    }
    run(strategy, *layouts);
    for (std::size_t r = 0; r < op_.results.size(); ++r) {
      std::string found = compare(r, layouts->results[r]);
      if (!found.empty()) {
        return found;
      }
    }
    return "";
  }

  /// The whole results, put together from the parts of the strategy that ran last.
  [[nodiscard]] const Tensors& joined() const { return joined_; }

 private:
  static Tensors clones(const Tensors& tensors) {
    Tensors out;
    for (const at::Tensor& tensor : tensors) {
      out.push_back(tensor.clone());
    }
    return out;
  }

  static sharding::ShardingSpec without_partial(sharding::ShardingSpec spec) {
    for (const int axis : spec.partial_axes()) {
      spec.replicate(axis);
    }
    return spec;
  }

  /// This rank's part; along the dimensions of halos, row by row what the windows need.
  [[nodiscard]] at::Tensor with_halos(const at::Tensor& full,
                                      sharding::ShardingSpec spec,
                                      std::int64_t rank,
                                      const std::vector<ops::Halo>& halos) const {
    at::Tensor part = full;
    for (const ops::Halo& halo : halos) {
      const ops::Rows needed = sharding::cut_window(halo, spec, mesh_, rank).needed;
      const double outside = halo.outside == ops::Outside::kZero     ? 0
                             : halo.outside == ops::Outside::kLowest ? -INFINITY
                                                                     : -1;
      ir::Shape shape = part.sizes().vec();
      shape[static_cast<std::size_t>(halo.dim)] = needed.size;
      const at::Tensor wide = at::full(shape, outside, part.options());
      for (std::int64_t i = 0; i < needed.size; ++i) {
        const std::int64_t end = part.size(halo.dim);
        std::int64_t row = needed.start + i;
        row = halo.outside == ops::Outside::kEdge ? std::clamp<std::int64_t>(row, 0, end - 1) : row;
        if (row >= 0 && row < end) {
          wide.select(halo.dim, i).copy_(part.select(halo.dim, row));
        }
      }
      part = wide;
    }
    for (const ops::Halo& halo : halos) {
      for (const int axis : spec.axes_of(halo.dim)) {
        spec.replicate(axis);
      }
    }
    return shard_of(part, spec, mesh_, rank);
  }

  static at::Tensor random_like(const at::Tensor& full) {
    if (full.scalar_type() == at::kBool) {
      return at::zeros_like(full);  // there are no other summands
    }
    return full.is_floating_point() ? at::randn(full.sizes(), full.options())
                                    : at::randint(0, 9, full.sizes(), full.options());
  }

  /// Each rank's part; where the layout is partial, parts that add up: random ones, and in the
  /// first of each group what is missing.
  [[nodiscard]] Tensors parts_of(const at::Tensor& full,
                                 const sharding::ShardingSpec& spec,
                                 const std::vector<ops::Halo>& halos) const {
    const std::vector<int> partial = spec.partial_axes();
    std::int64_t count = 1;
    for (const int axis : partial) {
      count *= mesh_.axes[static_cast<std::size_t>(axis)].size;
    }
    Tensors summands{count == 1 ? full : full.clone()};
    for (std::int64_t i = 1; i < count; ++i) {
      summands.push_back(random_like(full));
      if (full.scalar_type() != at::kBool) {
        summands[0].sub_(summands.back());
      }
    }
    Tensors parts;
    for (std::int64_t rank = 0; rank < mesh_.size(); ++rank) {
      const auto number = static_cast<std::size_t>(part_number(mesh_, rank, partial));
      parts.push_back(with_halos(summands[number], without_partial(spec), rank, halos));
    }
    return parts;
  }

  [[nodiscard]] std::vector<GlobalAxis> positions(const sharding::Strategy& strategy,
                                                  std::int64_t rank) const {
    std::vector<GlobalAxis> out;
    for (std::size_t a = 0; a < map_.axes.size(); ++a) {
      if (!map_.axes[a].positional) {
        continue;
      }
      std::vector<int> mesh_axes;
      for (int m = 0; m < static_cast<int>(mesh_.axes.size()); ++m) {
        if (strategy.at(m) == static_cast<int>(a)) {
          mesh_axes.push_back(m);
        }
      }
      const sharding::Range part = sharding::part(map_.axes[a].size, mesh_axes, mesh_, rank);
      GlobalAxis axis{map_.axes[a].name, -1, part.start, part.size, map_.axes[a].size};
      for (std::size_t d = 0; d < map_.results[0].size(); ++d) {
        if (map_.results[0][d] == std::vector<int>{static_cast<int>(a)}) {
          axis.result_dim = static_cast<int>(d);
        }
      }
      out.push_back(std::move(axis));
    }
    return out;
  }

  void run(const sharding::Strategy& strategy, const sharding::OpLayouts& layouts) {
    const std::vector<ops::Halo> cut = sharding::cut_halos(map_, layouts);
    std::vector<Tensors> parts;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      std::vector<ops::Halo> halos;
      std::copy_if(cut.begin(), cut.end(), std::back_inserter(halos), [&](const ops::Halo& halo) {
        return halo.input == static_cast<int>(i);
      });
      parts.push_back(parts_of(inputs_[i], layouts.inputs[i], halos));
    }
    const bool summed = std::any_of(
        layouts.inputs.begin(), layouts.inputs.end(), [](const sharding::ShardingSpec& spec) {
          return !spec.partial_axes().empty();
        });
    summed_ = 0;
    for (const at::Tensor& input : inputs_) {
      summed_ = summed ? std::max(summed_, largest(input)) : 0;
    }
    found_.clear();
    for (std::int64_t rank = 0; rank < mesh_.size(); ++rank) {
      Tensors operands;
      for (const Tensors& input : parts) {
        operands.push_back(input[static_cast<std::size_t>(rank)]);
      }
      ops::Types local = op_.results;
      bool nothing = std::any_of(
          operands.begin(), operands.end(), [](const at::Tensor& t) { return t.numel() == 0; });
      for (std::size_t r = 0; r < local.size(); ++r) {
        local[r].shape = sharding::part_shape(layouts.results[r], local[r].shape, mesh_, rank);
        nothing = nothing || local[r].numel() == 0;
      }
      std::vector<ops::CutWindow> windows;
      for (const ops::Halo& halo : cut) {
        const auto operand = static_cast<std::size_t>(halo.input);
        windows.push_back(sharding::cut_window(halo, layouts.inputs[operand], mesh_, rank));
      }
      const KernelCall call{
          operands, op_.attributes, local, positions(strategy, rank), RandomState{}, windows};
      found_.push_back(nothing ? results_of_nothing(op_.op, call, layouts.results)
                               : find_kernel(op_.op)(call));
    }
  }

  /// Adds (or takes the maximum of) the parts of each group and compares with the whole.
  [[nodiscard]] std::string compare(std::size_t r, const sharding::ShardingSpec& spec) {
    const std::vector<int> partial = spec.partial_axes();
    joined_.resize(op_.results.size());
    joined_[r] = at::empty_like(expected_[r]);
    for (std::int64_t rank = 0; rank < mesh_.size(); ++rank) {
      at::Tensor sum;
      for (const std::int64_t member : mesh_.group(rank, partial)) {
        const at::Tensor& part = found_[static_cast<std::size_t>(member)][r];
        if (!sum.defined()) {
          sum = part.clone();
        } else if (spec.reduction(partial.front()) == sharding::Reduction::kMax) {
          sum = sum.maximum(part);
        } else {
          sum.add_(part);
        }
      }
      const at::Tensor want = shard_of(expected_[r], without_partial(spec), mesh_, rank);
      if (sum.sizes() != want.sizes() || sum.scalar_type() != want.scalar_type()) {
        return place(r, rank) + " has another type";
      }
      if (want.numel() == 0) {
        continue;
      }
      if (std::string text = unequal(sum, want); !text.empty()) {
        return place(r, rank) + " " + text;
      }
      shard_view(joined_[r], without_partial(spec), mesh_, rank).copy_(sum);
    }
    return "";
  }

  static std::string place(std::size_t result, std::int64_t rank) {
    return "result " + std::to_string(result) + " on rank " + std::to_string(rank);
  }

  static double largest(const at::Tensor& tensor) {
    return tensor.to(at::kDouble).abs().nan_to_num(0, 0, 0).max().item<double>();
  }

  [[nodiscard]] std::string unequal(const at::Tensor& found, const at::Tensor& want) const {
    if (!want.is_floating_point()) {
      return found.equal(want) ? "" : "differs";
    }
    const at::Tensor a = found.to(at::kDouble);
    const at::Tensor b = want.to(at::kDouble);
    if (!a.isnan().equal(b.isnan()) || !a.isposinf().equal(b.isposinf()) ||
        !a.isneginf().equal(b.isneginf())) {
      return "has infinities or NaNs at other places";
    }
    const double size = std::max(largest(b), summed_);
    const double worst = a.sub(b).abs().nan_to_num(0, 0, 0).max().item<double>();
    return worst <= tolerance_ * std::max(1.0, size) ? "" : "differs by " + std::to_string(worst);
  }

  const OpInstance& op_;
  const cluster::DeviceMesh& mesh_;
  double tolerance_;
  Tensors inputs_;
  ops::AxisMap map_;
  Tensors expected_;
  double summed_ = 0;  ///< largest magnitude of operands, where the strategy has partial ones
  std::vector<Tensors> found_;  ///< results by rank
  Tensors joined_;
};

}  // namespace shardplan::runtime
