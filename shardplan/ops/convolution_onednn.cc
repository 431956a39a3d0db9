#include "shardplan/ops/convolution_onednn.h"

namespace shardplan::ops {
namespace {

using ir::TensorType;

constexpr std::int64_t kBlock = 16;  ///< channels that oneDNN keeps side by side (AVX-512)

/// The least multiple of `block` that is not below.
std::int64_t up(std::int64_t channels, std::int64_t block) {
  return (channels + block - 1) / block * block;
}

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
      const Bytes aligned = half() ? kAlignment + (c_.transposed() ? kAlignment : 0) : 0;
      return columns() + kPieces * c_.weight.numel() * kSumBytes + kAlignment + aligned;
    }
    Copies copies = copies_of_weight();
    if (half()) {  // sums in f32, and a sample turned around
      copies.scratch += copies.weight / element() * kSumBytes + kAlignment + turned(copies) +
                        (c_.transposed() ? kAlignment : 0);
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
  static constexpr Bytes kTurned = (Bytes{8} << 10) + 260;
  /// Of the kernels for windows that are apart, and more where the last is cut short; a few of many
  /// elements take up to 0.2 MiB.
  static constexpr Bytes kStridedScratch = (Bytes{36} << 10) + 24;
  static constexpr Bytes kUnevenScratch = Bytes{20} << 10;
  static constexpr Bytes kStridedNarrowScratch = (Bytes{32} << 10) + 24;
  static constexpr Bytes kUnevenNarrowScratch = Bytes{12} << 10;

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
      return deep_channels() || dilated() || !narrow() || low();
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
  /// Whether a padded src has so few rows that some windows are above and below it at once.
  [[nodiscard]] bool low() const {
    const std::size_t rank = src().shape.size();
    if (rank < 4 || c_.padding[rank - 4] == 0) {
      return false;
    }
    const std::int64_t stride = c_.attributes.ints("stride")[rank - 4];
    return src().shape[rank - 2] < c_.weight.shape[rank - 2] + stride - 1;
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
  [[nodiscard]] Copies flat(std::int64_t channels) const {
    Copies out = blocks(kBlock);
    out.src = 0;
    out.weight = channels * up(dst().shape[1], kBlock) * c_.kernel() * element();
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
    return src().shape[1] < kBlock ? flat(up(src().shape[1], half() ? 2 : 1)) : blocks(kBlock);
  }

  /// Elements of a sample's channel whose rows are padded and rounded up.
  [[nodiscard]] static std::int64_t places(const TensorType& type,
                                           std::int64_t padding,
                                           std::int64_t unit) {
    std::int64_t rows = 1;
    for (std::size_t d = 2; d + 1 < type.shape.size(); ++d) {
      rows *= type.shape[d];
    }
    return rows * (up(type.shape.back(), unit) + up(padding, unit));
  }

  /// Bytes of a sample's src and dst in pairs of bf16, for the gradient of the weight.
  [[nodiscard]] Bytes turned(const Copies& copies) const {
    constexpr std::int64_t kPair = 2;
    if (depthwise()) {
      return 0;
    }
    const std::int64_t in = copies.src == 0 ? 0 : up(src().shape[1], kBlock);
    const std::int64_t out = up(dst().shape[1], kBlock);
    if (!pointwise()) {
      const std::int64_t unit = kPair * c_.attributes.ints("stride").back();
      const std::int64_t pads = std::max(2 * c_.padding.back(), unit);
      return (in * places(src(), pads, unit) + out * places(dst(), 0, kPair)) * element() + kTurned;
    }
    constexpr std::int64_t kLarge = 14;
    const ir::Shape& shape = dst().shape;
    const std::int64_t height = shape.size() > 3 ? shape[shape.size() - 2] : 1;
    if (shape.back() > kLarge && height > kLarge) {
      return 0;
    }
    std::int64_t windows = 1;
    for (std::size_t d = 2; d < shape.size(); ++d) {
      windows *= shape[d];
    }
    return (in + out) * up(windows, kPair) * element() + 2 * kAlignment;
  }

  [[nodiscard]] Copies copies_of_weight() const {
    if (pointwise()) {
      return points();
    }
    if (groups() > 1) {
      return blocks(depthwise() ? kBlock : group_block());
    }
    if (src().shape[1] < (half() ? kBlock : kFew)) {
      return flat(src().shape[1]);
    }
    return blocks(in_halves() ? kBlock / 2 : kBlock);
  }

  /// Whether channels come last in memory as it is.
  [[nodiscard]] static bool lies_so(const TensorType& type) {
    const ir::Shape& s = type.shape;
    return s[1] == 1 || std::all_of(s.begin() + 2, s.end(), [](std::int64_t n) { return n == 1; });
  }

  /// What the kernel keeps for itself: of bf16, sums of a row of src and a block of channels.
  [[nodiscard]] Bytes strided_scratch() const {
    const std::int64_t stride = c_.attributes.ints("stride").back();
    const std::int64_t width = src().shape.back();
    const bool even = width % stride == 0;
    if (!half()) {
      return kStridedScratch + (even ? 0 : kUnevenScratch);
    }
    const std::int64_t block = std::min(up(in_group(), kBlock), 4 * kBlock);
    return kStridedNarrowScratch + (even ? 0 : kUnevenNarrowScratch) +
           (width + stride - 1) / stride * block * kSumBytes;
  }

  /// Where windows are apart, src is made with its channels last, and is brought into order after.
  [[nodiscard]] Bytes channels_last_src() const {
    const std::int64_t block = in_group() > kBlock ? 2 * kBlock : kBlock;
    Copies copies{.src = src().bytes(), .dst = lies_so(dst()) ? 0 : dst().bytes()};
    copies.weight = groups() * up(in_group(), block) * up(out_group(), half() ? 2 : 1) *
                    c_.kernel() * element();
    copies.scratch = strided_scratch() + (c_.transposed() ? kAlignment : 0);
    return std::max(copies.all() - src().bytes(), (lies_so(src()) ? 1 : 2) * src().bytes());
  }

  const Convolution& c_;
};

}  // namespace

Bytes onednn_workspace_of_dst(const Convolution& c) {
  return OneDnn(c).of_dst();
}
Bytes onednn_workspace_of_src(const Convolution& c) {
  return OneDnn(c).of_src();
}
Bytes onednn_workspace_of_weight(const Convolution& c) {
  return OneDnn(c).of_weight();
}

}  // namespace shardplan::ops
