#include "shardplan/problem/json_cursor.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace shardplan::problem {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Larger magnitudes are mistakes, and sums of them would overflow.
constexpr double kLargest = 1e100;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// The number at the front of the text by JSON's grammar; its length is 0 when there is none.
struct Number {
  double value = 0;
  std::size_t length = 0;
};

Number read_number(std::string_view text) {
  const std::size_t first = !text.empty() && text[0] == '-' ? 1 : 0;
  if (first >= text.size() || !is_digit(text[first]) ||
      (text[first] == '0' && first + 1 < text.size() && is_digit(text[first + 1]))) {
    return {};
  }
  Number number;
  const auto [rest, failed] = std::from_chars(text.data(), text.data() + text.size(), number.value);
  number.length = static_cast<std::size_t>(rest - text.data());
  if (number.length == 0 || !is_digit(text[number.length - 1])) {
    return {};
  }
  if (failed == std::errc::result_out_of_range) {
    // Either way out of range: only the exponent's sign tells which.
    const std::string_view token = text.substr(0, number.length);
    const std::size_t exponent = token.find_first_of("eE");
    const bool tiny = exponent != std::string_view::npos && token[exponent + 1] == '-';
    number.value = tiny ? 0 : (first == 1 ? -kInfinity : kInfinity);
  }
  return number;
}

std::string excerpt(std::string_view text) {
  constexpr std::size_t kMaxShown = 40;
  return text.size() <= kMaxShown ? std::string(text)
                                  : std::string(text.substr(0, kMaxShown)) + "...";
}

}  // namespace

void JsonCursor::skip_space() {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
    ++at_;
  }
}

char JsonCursor::peek() {
  skip_space();
  if (at_ == text_.size()) {
    return 0;
  }
  return text_[at_] == '-' || is_digit(text_[at_]) ? '0' : text_[at_];
}

std::string JsonCursor::place() const {
  std::string out;
  for (const Level& level : levels_) {
    std::string part;
    if (level.list) {
      part = level.index < 0 ? "" : fmt::format("{}", level.index);
    } else if (!level.keys.empty()) {
      part = excerpt(level.keys.back());
    }
    if (!part.empty()) {
      out += out.empty() ? part : " / " + part;
    }
  }
  return out;
}

bool JsonCursor::fail(std::string message) {
  const std::string way = place();
  error_ = invalid_input(std::move(message),
                         way.empty() ? std::string(where_) : fmt::format("{}: {}", where_, way));
  return false;
}

bool JsonCursor::syntax(const std::string& message) {
  const std::string_view before = text_.substr(0, at_);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t start = before.rfind('\n');
  const std::size_t column = start == std::string_view::npos ? at_ + 1 : at_ - start;
  return fail(fmt::format("not valid JSON at line {}, column {}: {}", line, column, message));
}

bool JsonCursor::wrong(std::string_view expected) {
  std::string_view found;
  switch (peek()) {
    case 0:
      return syntax(fmt::format("the text ends where {} should be", expected));
    case '{':
      return fail(fmt::format("expected {}, found an object", expected));
    case '[':
      return fail(fmt::format("expected {}, found a list", expected));
    case '"':
      return string_token(found) &&
             fail(fmt::format("expected {}, found \"{}\"", expected, excerpt(found)));
    default:
      break;
  }
  const std::size_t end = std::min(text_.find_first_of(",]} \t\r\n", at_), text_.size());
  found = text_.substr(at_, end - at_);
  constexpr std::string_view kNoJson = "NaN and Infinity are no JSON";
  if (found == "NaN" || found == "nan" || found.ends_with("Infinity") || found.ends_with("inf")) {
    return fail(fmt::format("expected {}, found {} ({})", expected, found, kNoJson));
  }
  const bool value = read_number(found).length == found.size() || found == "true" ||
                     found == "false" || found == "null";
  return !found.empty() && value
             ? fail(fmt::format("expected {}, found {}", expected, excerpt(found)))
             : syntax(fmt::format("expected {}, found '{}'",
                                  expected,
                                  excerpt(found.empty() ? text_.substr(at_, 1) : found)));
}

bool JsonCursor::expect(char sign, std::string_view what) {
  if (peek() != sign) {
    return wrong(what);
  }
  ++at_;
  return true;
}

bool JsonCursor::enter(char bracket, std::string_view what) {
  if (!expect(bracket, what)) {
    return false;
  }
  if (levels_.size() >= static_cast<std::size_t>(kMaxDepth)) {
    return fail(fmt::format("nested deeper than {} levels", kMaxDepth));
  }
  levels_.push_back({.list = bracket == '['});
  return true;
}

bool JsonCursor::enter_object() {
  return enter('{', "an object");
}

bool JsonCursor::enter_list() {
  return enter('[', "a list");
}

/// Passes the comma before the next member, or the closing bracket.
bool JsonCursor::separator(char closing, bool& more) {
  Level& level = levels_.back();
  const char next = peek();
  more = next != closing;
  if (!more) {
    ++at_;
    levels_.pop_back();
    return true;
  }
  if (level.first) {
    level.first = false;
    return true;
  }
  if (next != ',') {
    return next == 0 ? syntax("the text ends inside a list or object; is the file whole?")
                     : syntax(fmt::format("expected ',' or '{}'", closing));
  }
  ++at_;
  return true;
}

bool JsonCursor::next_item(bool& more) {
  if (!separator(']', more)) {
    return false;
  }
  if (more) {
    ++levels_.back().index;
  }
  return true;
}

bool JsonCursor::next_field(std::string& key, bool& more) {
  if (!separator('}', more)) {
    return false;
  }
  if (!more) {
    key.clear();
    return true;
  }
  if (!text(key)) {
    return false;
  }
  std::vector<std::string>& keys = levels_.back().keys;
  constexpr std::size_t kMaxFields = 1000;
  if (std::find(keys.begin(), keys.end(), key) != keys.end()) {
    return fail(fmt::format("field \"{}\" occurs twice in one object", excerpt(key)));
  }
  if (keys.size() == kMaxFields) {
    return fail(fmt::format("an object has more than {} fields", kMaxFields));
  }
  keys.push_back(key);
  return expect(':', "':'");
}

bool JsonCursor::string_token(std::string_view& token) {
  const std::size_t start = at_ + 1;
  for (std::size_t end = start; end < text_.size(); ++end) {
    if (text_[end] == '\\') {
      ++end;
    } else if (text_[end] == '"') {
      token = text_.substr(start, end - start);
      at_ = end + 1;
      return true;
    }
  }
  return syntax("a text has no end");
}

bool JsonCursor::text(std::string& out) {
  if (peek() != '"') {
    return wrong("a text");
  }
  const std::size_t start = at_;
  std::string_view token;
  if (!string_token(token)) {
    return false;
  }
  const bool plain = std::all_of(
      token.begin(), token.end(), [](char c) { return c >= 0x20 && c < 0x7f && c != '\\'; });
  if (plain) {
    out = token;
    return true;
  }
  // Escapes and UTF-8 are the library's.
  const nlohmann::json parsed =
      nlohmann::json::parse(text_.substr(start, at_ - start), nullptr, false);
  if (!parsed.is_string()) {
    at_ = start;
    return syntax("a text that is not UTF-8, or has a wrong escape");
  }
  out = parsed.get<std::string>();
  return true;
}

bool JsonCursor::word(std::string_view expected) {
  if (!text_.substr(at_).starts_with(expected)) {
    return false;
  }
  at_ += expected.size();
  return true;
}

bool JsonCursor::number(double& out, bool infinity) {
  const char next = peek();
  if (infinity && (word("\"inf\"") || word("Infinity"))) {
    out = kInfinity;
    return true;
  }
  const std::string_view expected = infinity ? "a number or \"inf\"" : "a number";
  if (next != '0') {
    return wrong(expected);
  }
  const Number number = read_number(text_.substr(at_));
  if (number.length == 0) {
    return wrong(expected);
  }
  if (std::abs(number.value) > kLargest) {
    return fail(fmt::format("the number {} is out of range: at most {:g}{}",
                            excerpt(text_.substr(at_, number.length)),
                            kLargest,
                            infinity ? "; write \"inf\" for what is forbidden" : ""));
  }
  out = number.value;
  at_ += number.length;
  return true;
}

bool JsonCursor::integer(std::int64_t low, std::int64_t high, std::int64_t& out) {
  const std::string expected = fmt::format("a whole number from {} to {}", low, high);
  if (peek() != '0') {
    return wrong(expected);
  }
  const Number number = read_number(text_.substr(at_));
  const std::string_view token = text_.substr(at_, number.length);
  const auto [rest, failed] = std::from_chars(token.data(), token.data() + token.size(), out);
  if (number.length == 0 || failed != std::errc{} || rest != token.data() + token.size() ||
      out < low || out > high) {
    return wrong(expected);
  }
  at_ += number.length;
  return true;
}

bool JsonCursor::numbers(std::vector<double>& out, bool infinity) {
  return list([&] {
    double value = 0;
    if (!number(value, infinity)) {
      return false;
    }
    out.push_back(value);
    return true;
  });
}

bool JsonCursor::null() {
  return peek() == 'n' && word("null");
}

bool JsonCursor::skip() {
  const std::size_t base = levels_.size();
  do {
    bool more = true;
    std::string key;
    if (levels_.size() > base) {
      const bool good = levels_.back().list ? next_item(more) : next_field(key, more);
      if (!good) {
        return false;
      }
    }
    if (!more) {
      continue;
    }
    double value = 0;
    switch (peek()) {
      case '{':
        if (!enter_object()) {
          return false;
        }
        break;
      case '[':
        if (!enter_list()) {
          return false;
        }
        break;
      case '"':
        if (!text(key)) {
          return false;
        }
        break;
      case '0':
        if (!number(value)) {
          return false;
        }
        break;
      default:
        if (!word("true") && !word("false") && !word("null")) {
          return wrong("a value");
        }
    }
  } while (levels_.size() > base);
  return true;
}

bool JsonCursor::at_end() {
  return peek() == 0 || syntax("text after the end of the document");
}

std::string_view JsonCursor::numeric_list() {
  if (peek() != '[') {
    return {};
  }
  int depth = 0;
  for (std::size_t end = at_; end < text_.size(); ++end) {
    const char c = text_[end];
    if (c == '[') {
      ++depth;
    } else if (c == ']') {
      if (--depth == 0) {
        return text_.substr(at_, end + 1 - at_);
      }
    } else if (c == '{' || c == '"') {
      return {};
    }
  }
  return {};
}

}  // namespace shardplan::problem
