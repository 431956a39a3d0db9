#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shardplan/support/ids.h"
#include "shardplan/support/result.h"

namespace shardplan {

/// "61.2 GiB", "312 ms", "41.3 TFLOP", "6.74 B": three significant digits, binary units for bytes.
[[nodiscard]] std::string human_bytes(Bytes bytes);
[[nodiscard]] std::string human_seconds(Seconds seconds);
[[nodiscard]] std::string human_flops(Flops flops);
[[nodiscard]] std::string human_count(double count);

/// "20GiB", "512MiB", "1.5e9", "80GB" (decimal), plain bytes. Errors name the text.
[[nodiscard]] Result<Bytes> parse_bytes(std::string_view text);

/// The closest of `known` by edit distance when it is close enough to be a typo; else "".
[[nodiscard]] std::string suggest(std::string_view name, const std::vector<std::string>& known);

/// A plain text table: columns padded, numbers (first character a digit) aligned right.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) : rows_{std::move(header)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  [[nodiscard]] std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// Whole file; the error names the path.
[[nodiscard]] Result<std::string> read_file(const std::string& path);
/// Writes to a temporary file beside `path`, then renames: never leaves a half-written file.
[[nodiscard]] Status write_file(const std::string& path, std::string_view content);

}  // namespace shardplan
