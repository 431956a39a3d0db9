#include "shardplan/problem/inflate.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <limits>

#include "shardplan/support/text.h"

namespace shardplan::problem {
namespace {

/// Numbers as text shrink by a factor of 20 to 60; a file that grows this much is a trap.
constexpr std::size_t kLargestRatio = 400;
constexpr std::size_t kHarmless = std::size_t{64} << 20U;

/// zlib's state, which needs an end.
class Inflater {
 public:
  explicit Inflater(std::string_view content) {
    constexpr int kGzipOnly = 16;
    ready_ = inflateInit2(&stream_, MAX_WBITS + kGzipOnly) == Z_OK;
    // zlib's interface predates const; it does not write to its input.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
    left_ = content.size();
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  [[nodiscard]] bool ready() const { return ready_; }

  /// Appends what the next piece of the input gives; zlib's code.
  int more(std::string& out) {
    if (stream_.avail_in == 0) {
      const std::size_t piece = std::min<std::size_t>(left_, std::numeric_limits<uInt>::max());
      stream_.avail_in = static_cast<uInt>(piece);
      left_ -= piece;
    }
    const std::size_t start = out.size();
    out.resize(start + kChunk);
    stream_.next_out = reinterpret_cast<Bytef*>(out.data() + start);
    stream_.avail_out = static_cast<uInt>(kChunk);
    const int code = inflate(&stream_, Z_NO_FLUSH);
    out.resize(out.size() - stream_.avail_out);
    return code;
  }

  /// Whether input is left after the end of a member; then makes ready for the next one.
  bool next_member() {
    if (left_ == 0 && stream_.avail_in == 0) {
      return false;
    }
    inflateReset(&stream_);
    return true;
  }

 private:
  static constexpr std::size_t kChunk = std::size_t{1} << 18U;
  z_stream stream_{};
  std::size_t left_ = 0;
  bool ready_ = false;
};

}  // namespace

bool is_gzip(std::string_view content) {
  return content.size() >= 2 && content[0] == '\x1f' && content[1] == '\x8b';
}

Result<std::string> inflate_gzip(std::string_view content,
                                 const std::string& where,
                                 std::size_t most) {
  Inflater inflater(content);
  if (!inflater.ready()) {
    return Error{ErrorCode::kRuntime, "zlib could not start", where, {}};
  }
  std::string out;
  while (true) {
    const int code = inflater.more(out);
    if (out.size() > most ||
        (out.size() > kHarmless && out.size() / kLargestRatio > content.size())) {
      return invalid_input(
          fmt::format("the {} of gzip inflate to more than {}, too much for a problem; inflate the "
                      "file yourself if it is sound",
                      human_bytes(static_cast<Bytes>(content.size())),
                      human_bytes(static_cast<Bytes>(std::min(out.size(), most)))),
          where);
    }
    if (code == Z_STREAM_END) {
      if (!inflater.next_member()) {
        return out;
      }
    } else if (code == Z_BUF_ERROR) {
      return invalid_input("the gzip data end too early; the file is truncated", where);
    } else if (code != Z_OK) {
      return invalid_input("the gzip data are damaged", where);
    }
  }
}

}  // namespace shardplan::problem
