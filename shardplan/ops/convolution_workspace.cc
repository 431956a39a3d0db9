#include "shardplan/ops/convolution_workspace.h"

#include <algorithm>

#include "shardplan/ops/spatial_axes.h"

namespace shardplan::ops {
namespace {

using ir::TensorType;

constexpr std::int64_t kBlock = 16;  ///< channels that oneDNN keeps side by side (AVX-512)

/// The padding of the kernel: along a dimension that is cut, operands have all that is needed, and
/// what windows give beyond the own elements is left out.
ir::IntList kernel_padding(const OpView& op) {
  ir::IntList padding = op.attributes.ints("padding");
  for (const Halo& halo : op.cut) {
    padding[static_cast<std::size_t>(halo.dim) - 2] = halo.windows ? halo.reach() - 1 : 0;
  }
  return padding;
}

/// What the kernel makes of the windows, of which the result is a part.
TensorType made_of_windows(const OpView& op) {
  TensorType made = op.results[0];
  for (const Halo& halo : op.cut) {
    const auto dim = static_cast<std::size_t>(halo.dim);
    if (halo.windows) {
      made.shape[dim] = halo.made(op.inputs[0].shape[dim]);
    }
  }
  return made;
}

/// A convolution of x by a weight gives y, whichever of the three is computed.
struct Convolution {
  const ir::Attributes& attributes;
  const TensorType& x;
  const TensorType& weight;
  const TensorType& y;
  ir::IntList padding;  ///< of the kernel

  [[nodiscard]] bool transposed() const { return attributes.flag_or("transposed", false); }
  /// The side with the channels that a group's weight reads, which is y of a transposed one.
  [[nodiscard]] const TensorType& outer() const { return transposed() ? y : x; }
  [[nodiscard]] const TensorType& inner() const { return transposed() ? x : y; }
  [[nodiscard]] std::int64_t groups() const {
    return std::max<std::int64_t>(1, outer().shape[1] / std::max<std::int64_t>(1, weight.shape[1]));
  }
  [[nodiscard]] bool all(const char* name, std::int64_t value) const {
    const ir::IntList& list = attributes.ints(name);
    return std::all_of(list.begin(), list.end(), [&](std::int64_t v) { return v == value; });
  }
  [[nodiscard]] bool pads_nothing() const {
    return std::all_of(padding.begin(), padding.end(), [](std::int64_t p) { return p == 0; });
  }
  [[nodiscard]] std::int64_t kernel() const {
    std::int64_t size = 1;
    for (std::size_t d = 2; d < weight.shape.size(); ++d) {
      size *= weight.shape[d];
    }
    return size;
  }
};

/// The least multiple of `block` that is not below.
std::int64_t up(std::int64_t channels, std::int64_t block) {
  return (channels + block - 1) / block * block;
}

/// Whether ATen gives the convolution to oneDNN.
bool on_onednn(const Convolution& c) {
  if (c.x.dtype != ir::DType::kFloat32) {
    return c.x.dtype != ir::DType::kFloat64;
  }
  constexpr std::int64_t kLargeBatch = 16;
  constexpr std::int64_t kLargeInput = 20480;
  constexpr std::int64_t kLargeKernel = 3;
  const ir::Shape& w = c.weight.shape;
  const std::int64_t height = w.size() == 3 ? 1 : w[w.size() - 2];
  const bool worth = !c.all("stride", 1) || !c.all("dilation", 1) || c.x.shape[0] >= kLargeBatch ||
                     w.back() != 1 || height != 1;
  const bool enough = c.groups() > 1 || (w.back() > kLargeKernel && height > kLargeKernel) ||
                      c.x.shape[0] > 1 || c.x.numel() > kLargeInput;
  return worth && enough;
}

/// Bytes of the columns of one sample and all its groups: every window written out.
Bytes columns_of_sample(const Convolution& c) {
  std::int64_t windows = 1;
  for (std::size_t d = 2; d < c.inner().shape.size(); ++d) {
    windows *= c.inner().shape[d];
  }
  return c.outer().shape[1] * c.kernel() * windows * ir::element_bytes(c.x.dtype);
}

bool is_product(const Convolution& c) {
  return c.kernel() == 1 && c.all("stride", 1) && c.pads_nothing();
}

/// A pass of a convolution whose columns all samples have at once.
struct WholeColumns {
  bool when_plain;
  bool when_transposed;
  bool of_products;  ///< columns are written out even if they are the operand itself
};

/// Bytes of the columns that are held at a time in one group.
Bytes columns(const Convolution& c, const WholeColumns& whole) {
  const bool deep = c.x.rank() == 5;
  const Bytes sample = columns_of_sample(c) / c.groups();
  if (is_product(c) && !whole.of_products) {
    return 0;
  }
  if (c.transposed()) {
    return whole.when_transposed && !deep ? sample * c.x.shape[0] : sample;
  }
  if (!c.all("dilation", 1)) {
    return sample;
  }
  return deep || whole.when_plain ? sample * c.x.shape[0] : 0;
}

/// Groups are convolved one by one on copies of their parts, then joined; the parts of a single
/// sample lie side by side as they are.
Bytes with_groups(const Convolution& c, Bytes one_group, Bytes parts, Bytes joined) {
  if (c.x.rank() == 5 && !c.transposed() && c.all("dilation", 1)) {  // all groups at once
    return one_group * c.groups();
  }
  const Bytes copied = c.x.shape[0] == 1 ? 0 : parts / c.groups();
  return c.groups() == 1 ? one_group : std::max(joined, one_group + copied);
}

// oneDNN ------------------------------------------------------------------------------------------

/// What oneDNN takes: copies of the operands and of the result in layouts of its own, and memory
/// for the kernel itself.
struct Copies {
  Bytes src = 0;
  Bytes weight = 0;
  Bytes dst = 0;
  Bytes scratch = 0;
  [[nodiscard]] Bytes all() const { return src + weight + dst + scratch; }
};

/// A convolution as oneDNN sees it: a transposed one is that of its result, turned around.
class OneDnn {
 public:
  explicit OneDnn(const Convolution& c) : c_(c) {}

  /// A sum of src under each window gives dst.
  [[nodiscard]] Bytes of_dst() const {
    if (columns_of_dst()) {
      return std::max(columns(), dst().bytes());
    }
    Copies copies = copies_of_dst();
    if (deep_channels()) {
      return std::max(copies.all() - dst().bytes(), (lies_so(dst()) ? 1 : 2) * copies.dst);
    }
    if (half() && pointwise()) {
      copies.scratch += sums_of_sample(dst());
    }
    return std::max(copies.all() - dst().bytes(), copies.dst);
  }

  /// Its transpose gives src.
  [[nodiscard]] Bytes of_src() const {
    if (columns_of_src()) {
      return std::max(columns(), src().bytes());
    }
    if (strided() && (groups() == 1 || (half() && group_block() == 0))) {
      return channels_last_src();
    }
    Copies copies = blocks(depthwise() || groups() == 1 ? kBlock : group_block());
    if (half() && pointwise()) {
      copies.scratch = sums_of_sample(src());
    }
    return std::max(copies.all() - src().bytes(), copies.src);
  }

  [[nodiscard]] Bytes of_weight() const {
    const Bytes weight = c_.weight.bytes();
    if (columns_of_weight()) {
      return columns() + kPieces * c_.weight.numel() * kSumBytes + kAlignment;
    }
    Copies copies = copies_of_weight();
    if (half()) {  // sums in f32, and a sample turned around
      const bool turns = !depthwise() && !pointwise();
      copies.scratch += copies.weight / element() * kSumBytes + kAlignment +
                        (turns ? (copies.src + copies.dst) / samples() + kTurned : 0);
    }
    return std::max(copies.all() - weight, copies.weight);
  }

 private:
  static constexpr std::int64_t kFew = 4;  ///< fewer channels stay as they are
  /// oneDNN aligns what it takes for itself.
  static constexpr Bytes kAlignment = 128;
  /// Of the weight's gradient, before they are added up.
  static constexpr Bytes kPieces = 4;
  static constexpr Bytes kSumBytes = 4;  ///< of an element of a sum
  static constexpr Bytes kTurned = Bytes{9} << 10;
  /// Of the kernels for windows that are apart, and more where the last is cut short; a few of many
  /// elements take up to 0.2 MiB.
  static constexpr Bytes kStridedScratch = (Bytes{36} << 10) + 24;
  static constexpr Bytes kUnevenScratch = Bytes{20} << 10;

  [[nodiscard]] const TensorType& src() const { return c_.outer(); }
  [[nodiscard]] const TensorType& dst() const { return c_.inner(); }
  [[nodiscard]] std::int64_t groups() const { return c_.groups(); }
  [[nodiscard]] std::int64_t in_group() const { return src().shape[1] / groups(); }
  [[nodiscard]] std::int64_t out_group() const { return dst().shape[1] / groups(); }
  [[nodiscard]] std::int64_t samples() const { return std::max<std::int64_t>(1, src().shape[0]); }
  [[nodiscard]] bool half() const { return element() < kSumBytes; }
  [[nodiscard]] Bytes element() const { return ir::element_bytes(c_.weight.dtype); }
  [[nodiscard]] bool strided() const { return !c_.all("stride", 1); }
  [[nodiscard]] bool dilated() const { return c_.kernel() > 1 && !c_.all("dilation", 1); }
  [[nodiscard]] bool depthwise() const {
    return groups() > 1 && in_group() == 1 && out_group() == 1;
  }

  /// One element a window; windows that are apart must cover all of src.
  [[nodiscard]] bool pointwise() const {
    if (groups() > 1 || c_.kernel() > 1 || !c_.pads_nothing()) {
      return false;
    }
    return !strided() || (src().rank() < 5 && covered());
  }
  [[nodiscard]] bool covered() const {
    const ir::IntList& stride = c_.attributes.ints("stride");
    for (std::size_t d = 2; d < src().shape.size(); ++d) {
      if (dst().shape[d] * stride[d - 2] != src().shape[d]) {
        return false;
      }
    }
    return true;
  }

  /// The largest block that divides the channels of a group on both sides, or 0.
  [[nodiscard]] std::int64_t group_block() const {
    for (const std::int64_t block : {kBlock, kBlock / 2, kBlock / 4}) {
      if (in_group() % block == 0 && out_group() % block == 0) {
        return block;
      }
    }
    return 0;
  }

  /// A volume's channels each by themselves: made with its channels last, its gradients by columns.
  [[nodiscard]] bool deep_channels() const { return depthwise() && src().rank() == 5; }
  /// Where there is no kernel for blocks, columns are multiplied.
  [[nodiscard]] bool columns_of_dst() const {
    if (depthwise()) {
      return deep_channels() && dilated();
    }
    return groups() > 1 && group_block() == 0;
  }
  [[nodiscard]] bool columns_of_src() const {
    if (deep_channels()) {
      return true;
    }
    if (dilated() && (strided() || groups() > 1)) {
      return true;
    }
    if (half() && strided()) {
      return false;
    }
    constexpr std::int64_t kWidest = 16;
    if (!depthwise() && !strided() && width() > kWidest) {
      return true;
    }
    return groups() > 1 && !depthwise() && group_block() == 0;
  }
  [[nodiscard]] bool columns_of_weight() const {
    if (depthwise()) {
      return deep_channels() || dilated() || !narrow();
    }
    constexpr std::int64_t kWidest = 14;
    const bool by_halves = groups() > 1 ? group_block() < kBlock : in_halves();
    if (width() > (by_halves ? kWidest - 1 : kWidest)) {
      return true;
    }
    if (groups() > 1) {
      return dilated() || group_block() < (half() ? kBlock : kBlock / 2);
    }
    const bool apart = strided() && src().rank() > 3;
    if (half() && src().shape[1] < kBlock && !pointwise()) {
      return dst().shape[1] % kBlock != 0 || (dilated() && apart);
    }
    const bool padded_volume = src().rank() == 5 && !c_.pads_nothing();
    return (dilated() && (apart || in_halves())) || (padded_volume && in_halves());
  }
  [[nodiscard]] std::int64_t width() const { return c_.weight.shape.back(); }
  /// Windows of at most three elements a dimension that leave none out.
  [[nodiscard]] bool narrow() const {
    constexpr std::int64_t kWidest = 3;
    const ir::Shape& w = c_.weight.shape;
    const ir::IntList& stride = c_.attributes.ints("stride");
    for (std::size_t d = 2; d < w.size(); ++d) {
      if (w[d] > kWidest || stride[d - 2] > w[d]) {
        return false;
      }
    }
    return true;
  }
  /// Whether src has too few channels for whole blocks and too many to stay as it is.
  [[nodiscard]] bool in_halves() const { return src().shape[1] >= kFew && src().shape[1] < kBlock; }

  /// Bytes of the columns of a sample and group; of a volume, those of one slice.
  [[nodiscard]] Bytes columns() const {
    const ir::Shape& shape = dst().shape;
    std::int64_t windows = 1;
    for (std::size_t d = shape.size() == 5 ? 3 : 2; d < shape.size(); ++d) {
      windows *= shape[d];
    }
    return in_group() * c_.kernel() * windows * element() + kAlignment;
  }

  /// Of bf16, sums are kept in f32 for one sample.
  [[nodiscard]] static Bytes sums_of_sample(const TensorType& type) {
    const std::int64_t of_sample = type.numel() / std::max<std::int64_t>(1, type.shape[0]);
    const std::int64_t channels = std::max<std::int64_t>(1, type.shape[1]);
    return of_sample / channels * up(channels, kBlock) * kSumBytes + kAlignment;
  }

  [[nodiscard]] static Bytes in_blocks(const TensorType& type, std::int64_t block) {
    const std::int64_t channels = std::max<std::int64_t>(1, type.shape[1]);
    return type.bytes() / channels * up(channels, block);
  }

  /// All in blocks of so many channels.
  [[nodiscard]] Copies blocks(std::int64_t block) const {
    Copies out{.src = in_blocks(src(), block), .dst = in_blocks(dst(), block)};
    if (depthwise()) {
      out.weight = up(groups(), block) * c_.kernel() * element();
    } else {
      out.weight =
          groups() * up(in_group(), block) * up(out_group(), block) * c_.kernel() * element();
    }
    return out;
  }

  /// A src of few channels stays as it is.
  [[nodiscard]] Copies flat() const {
    Copies out = blocks(kBlock);
    out.src = 0;
    out.weight = src().shape[1] * up(dst().shape[1], kBlock) * c_.kernel() * element();
    return out;
  }

  /// Points that are apart are gathered first, those of one sample.
  [[nodiscard]] Copies points() const {
    Copies out = blocks(kBlock);
    if (strided()) {
      const Bytes sample = dst().bytes() / samples();
      out.scratch =
          up(src().shape[1], kBlock) * (sample / std::max<std::int64_t>(1, dst().shape[1])) +
          kAlignment;
    }
    return out;
  }

  [[nodiscard]] Copies copies_of_dst() const {
    if (pointwise()) {
      return points();
    }
    if (deep_channels()) {
      Copies out = blocks(kBlock);
      out.src = src().bytes();
      out.dst = dst().bytes();
      return out;
    }
    if (groups() > 1) {
      return blocks(depthwise() ? kBlock : group_block());
    }
    return src().shape[1] < kBlock ? flat() : blocks(kBlock);
  }

  [[nodiscard]] Copies copies_of_weight() const {
    if (pointwise()) {
      return points();
    }
    if (groups() > 1) {
      return blocks(depthwise() ? kBlock : group_block());
    }
    if (src().shape[1] < (half() ? kBlock : kFew)) {
      return flat();
    }
    return blocks(in_halves() ? kBlock / 2 : kBlock);
  }

  /// Whether channels come last in memory as it is.
  [[nodiscard]] static bool lies_so(const TensorType& type) {
    const ir::Shape& s = type.shape;
    return s[1] == 1 || std::all_of(s.begin() + 2, s.end(), [](std::int64_t n) { return n == 1; });
  }

  /// Where windows are apart, src is made with its channels last, and is brought into order after.
  [[nodiscard]] Bytes channels_last_src() const {
    const std::int64_t block = in_group() > kBlock ? 2 * kBlock : kBlock;
    Copies copies{.src = src().bytes(), .dst = lies_so(dst()) ? 0 : dst().bytes()};
    copies.weight = groups() * up(in_group(), block) * up(out_group(), half() ? 2 : 1) *
                    c_.kernel() * element();
    const bool even = src().shape.back() % c_.attributes.ints("stride").back() == 0;
    copies.scratch =
        kStridedScratch + (even ? 0 : kUnevenScratch) + (c_.transposed() ? kAlignment : 0);
    return std::max(copies.all() - src().bytes(), (lies_so(src()) ? 1 : 2) * src().bytes());
  }

  const Convolution& c_;
};

Bytes workspace_of_convolution(const Convolution& c) {
  if (!on_onednn(c)) {
    return with_groups(c, columns(c, {true, true, c.transposed()}), c.x.bytes(), c.y.bytes());
  }
  return c.transposed() ? OneDnn(c).of_src() : OneDnn(c).of_dst();
}

Bytes workspace_of_backward_input(const Convolution& c) {
  if (!on_onednn(c)) {
    return with_groups(c,
                       columns(c, {false, false, !c.transposed() && c.x.rank() == 5}),
                       c.x.bytes() + c.y.bytes(),
                       c.x.bytes());
  }
  return c.transposed() ? OneDnn(c).of_dst() : OneDnn(c).of_src();
}

}  // namespace

Bytes workspace_convolution(const OpView& op) {
  const TensorType made = made_of_windows(op);
  const Convolution c{op.attributes, op.inputs[0], op.inputs[1], made, kernel_padding(op)};
  return workspace_with_crop(made, op.results[0], workspace_of_convolution(c));
}

Bytes workspace_convolution_backward_input(const OpView& op) {
  const TensorType made = made_of_windows(op);
  const Convolution c{op.attributes, made, op.inputs[1], op.inputs[0], kernel_padding(op)};
  return workspace_with_crop(made, op.results[0], workspace_of_backward_input(c));
}

Bytes workspace_convolution_backward_weight(const OpView& op) {
  const Convolution c{op.attributes, op.inputs[1], op.results[0], op.inputs[0], kernel_padding(op)};
  if (!on_onednn(c)) {
    return with_groups(
        c, columns(c, {true, false, false}), c.x.bytes() + c.y.bytes(), c.weight.bytes());
  }
  return OneDnn(c).of_weight();
}

}  // namespace shardplan::ops
