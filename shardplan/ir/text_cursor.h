#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shardplan/ir/attributes.h"
#include "shardplan/ir/types.h"
#include "shardplan/support/result.h"

namespace shardplan::ir {

/// Reads the tokens of one line of the text form, left to right; blanks before a token are skipped.
/// Errors name the line and the column.
class TextCursor {
 public:
  TextCursor(std::string_view line, std::size_t line_number)
      : text_(line), line_number_(line_number) {}

  /// True at the end of the line or at a comment.
  [[nodiscard]] bool done();
  /// Consumes `token` if it comes next.
  bool accept(std::string_view token);
  Status expect(std::string_view token);

  /// A bare word of letters, digits, "_" and "."; empty when none comes next.
  std::string_view word();
  /// A bare word or a quoted string, not empty.
  Result<std::string> name(std::string_view what);
  Result<std::string> quoted_string();
  Result<std::int64_t> integer();
  /// The characters up to the next blank, comma or bracket; never empty.
  Result<std::string_view> number_token();
  /// What follows "%" or "#": a number that fits an id.
  Result<std::int32_t> id(char sigil);
  /// "f32[8,4]"
  Result<TensorType> type();
  /// "[1,2]"
  Result<IntList> ints();
  /// ["a","b"]
  Result<std::vector<std::string>> strings();
  Result<Attribute> attribute();

  [[nodiscard]] Error error(std::string message) const;

 private:
  void skip_blanks();
  Status escape(std::string& out);
  Result<Attribute> number_attribute();

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t line_number_;
};

}  // namespace shardplan::ir
