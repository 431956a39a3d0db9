#include "shardplan/ir/text_cursor.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <utility>

#include "shardplan/ir/text_form.h"

namespace shardplan::ir {

namespace {

/// Enough of a token to recognise it, without echoing a hostile line whole.
constexpr std::size_t kShownCharacters = 40;

int hex_digit(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  if (c >= 'a' && c <= 'f') {
    return c - 'a' + 10;
  }
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

}  // namespace

Error TextCursor::error(std::string message) const {
  return invalid_input(std::move(message),
                       fmt::format("line {}, column {}", line_number_, at_ + 1));
}

void TextCursor::skip_blanks() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r')) {
    ++at_;
  }
}

bool TextCursor::done() {
  skip_blanks();
  return at_ == text_.size() || text_.substr(at_).starts_with("//");
}

bool TextCursor::accept(std::string_view token) {
  skip_blanks();
  if (!text_.substr(at_).starts_with(token)) {
    return false;
  }
  at_ += token.size();
  return true;
}

Status TextCursor::expect(std::string_view token) {
  if (accept(token)) {
    return {};
  }
  const std::string_view found = text_.substr(at_, kShownCharacters);
  return error(
      fmt::format("expected '{}' but found {}",
                  token,
                  found.empty() ? std::string("the end of the line") : fmt::format("'{}'", found)));
}

std::string_view TextCursor::word() {
  skip_blanks();
  const std::size_t start = at_;
  while (at_ < text_.size() && text_form::is_word_character(text_[at_])) {
    ++at_;
  }
  return text_.substr(start, at_ - start);
}

Result<std::string> TextCursor::name(std::string_view what) {
  skip_blanks();
  if (at_ < text_.size() && text_[at_] == '"') {
    return quoted_string();
  }
  const std::string_view found = word();
  if (found.empty()) {
    return error(fmt::format("expected {}", what));
  }
  return std::string(found);
}

Status TextCursor::escape(std::string& out) {
  if (at_ == text_.size()) {
    return error("a string ends in a backslash");
  }
  const char c = text_[at_++];
  switch (c) {
    case '"':
    case '\\':
      out += c;
      return {};
    case 'n':
      out += '\n';
      return {};
    case 'r':
      out += '\r';
      return {};
    case 't':
      out += '\t';
      return {};
    case 'x': {
      const int high = at_ < text_.size() ? hex_digit(text_[at_]) : -1;
      const int low = at_ + 1 < text_.size() ? hex_digit(text_[at_ + 1]) : -1;
      if (high < 0 || low < 0) {
        return error("\\x needs two hexadecimal digits");
      }
      out += static_cast<char>(high * 16 + low);
      at_ += 2;
      return {};
    }
    default:
      return error("unknown escape in a string; known are \\\" \\\\ \\n \\r \\t \\xNN");
  }
}

Result<std::string> TextCursor::quoted_string() {
  SHARDPLAN_RETURN_IF_ERROR(expect("\""));
  std::string out;
  while (at_ < text_.size()) {
    const char c = text_[at_++];
    if (c == '"') {
      return out;
    }
    if (c == '\\') {
      SHARDPLAN_RETURN_IF_ERROR(escape(out));
    } else {
      out += c;
    }
  }
  return error("a string has no closing quote");
}

Result<std::string_view> TextCursor::number_token() {
  skip_blanks();
  const std::size_t start = at_;
  while (at_ < text_.size() &&
         std::string_view(" \t\r,[](){}").find(text_[at_]) == std::string_view::npos) {
    ++at_;
  }
  if (at_ == start) {
    return error("expected a number");
  }
  return text_.substr(start, at_ - start);
}

Result<std::int64_t> TextCursor::integer() {
  skip_blanks();
  std::int64_t value = 0;
  const char* const begin = text_.data() + at_;
  const auto [end, failure] = std::from_chars(begin, text_.data() + text_.size(), value);
  if (failure != std::errc()) {
    return error(failure == std::errc::result_out_of_range ? "the integer does not fit 64 bits"
                                                           : "expected an integer");
  }
  at_ += static_cast<std::size_t>(end - begin);
  return value;
}

Result<std::int32_t> TextCursor::id(char sigil) {
  SHARDPLAN_RETURN_IF_ERROR(expect(std::string_view(&sigil, 1)));
  SHARDPLAN_ASSIGN_OR_RETURN(const std::int64_t value, integer());
  if (value < 0 || value > std::numeric_limits<std::int32_t>::max()) {
    return error(fmt::format("{}{} is not a possible number", sigil, value));
  }
  return static_cast<std::int32_t>(value);
}

Result<TensorType> TextCursor::type() {
  const std::string_view text = word();
  const std::optional<DType> dtype = parse_dtype(text);
  if (!dtype.has_value()) {
    return error(
        fmt::format("unknown element type '{}'; known are bool u8 i32 i64 bf16 f16 f32 f64",
                    text.substr(0, kShownCharacters)));
  }
  SHARDPLAN_ASSIGN_OR_RETURN(Shape shape, ints());
  TensorType type{*dtype, std::move(shape)};
  if (!is_valid(type)) {
    return error(fmt::format(
        "type {} is not possible: dimensions must be at least 1, with at most {} of them and "
        "fewer than 2^63 bytes in all",
        type.shape.size() > kMaxRank ? std::string(text) + "[...]" : to_string(type),
        kMaxRank));
  }
  return type;
}

Result<IntList> TextCursor::ints() {
  SHARDPLAN_RETURN_IF_ERROR(expect("["));
  IntList list;
  if (accept("]")) {
    return list;
  }
  do {
    SHARDPLAN_ASSIGN_OR_RETURN(const std::int64_t value, integer());
    list.push_back(value);
  } while (accept(","));
  SHARDPLAN_RETURN_IF_ERROR(expect("]"));
  return list;
}

Result<std::vector<std::string>> TextCursor::strings() {
  SHARDPLAN_RETURN_IF_ERROR(expect("["));
  std::vector<std::string> list;
  if (accept("]")) {
    return list;
  }
  do {
    SHARDPLAN_ASSIGN_OR_RETURN(std::string value, quoted_string());
    list.push_back(std::move(value));
  } while (accept(","));
  SHARDPLAN_RETURN_IF_ERROR(expect("]"));
  return list;
}

Result<Attribute> TextCursor::attribute() {
  skip_blanks();
  if (at_ < text_.size() && text_[at_] == '"') {
    SHARDPLAN_ASSIGN_OR_RETURN(std::string value, quoted_string());
    return Attribute(std::move(value));
  }
  if (at_ < text_.size() && text_[at_] == '[') {
    SHARDPLAN_ASSIGN_OR_RETURN(IntList value, ints());
    return Attribute(std::move(value));
  }
  return number_attribute();
}

Result<Attribute> TextCursor::number_attribute() {
  SHARDPLAN_ASSIGN_OR_RETURN(const std::string_view token, number_token());
  if (token == "true" || token == "false") {
    return Attribute(token == "true");
  }
  const char* const end = token.data() + token.size();
  std::int64_t integral = 0;
  if (std::from_chars(token.data(), end, integral).ptr == end) {
    if (std::from_chars(token.data(), end, integral).ec != std::errc()) {
      return error("the integer does not fit 64 bits");
    }
    return Attribute(integral);
  }
  double value = 0;
  const auto [rest, failure] = std::from_chars(token.data(), end, value);
  if (failure != std::errc() || rest != end) {
    return error(
        fmt::format("'{}' is no attribute value: expected true, false, a number, a string or a "
                    "list of integers",
                    token.substr(0, kShownCharacters)));
  }
  return Attribute(value);
}

}  // namespace shardplan::ir
