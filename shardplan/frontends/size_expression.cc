#include "shardplan/frontends/size_expression.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>

namespace shardplan::frontends {

namespace {

using Value = std::optional<Number>;
using Values = std::vector<Number>;

constexpr int kMaxDepth = 256;

Value whole(std::int64_t value) {
  return Number::of(value);
}

Value real(double value) {
  return std::isnan(value) ? Value() : Value(Number::of(value));
}

Value truth(bool value) {
  return whole(value ? 1 : 0);
}

bool both_whole(const Number& a, const Number& b) {
  return !a.real && !b.real;
}

Value add(const Number& a, const Number& b) {
  if (!both_whole(a, b)) {
    return real(a.as_double() + b.as_double());
  }
  std::int64_t sum = 0;
  return __builtin_add_overflow(a.as_int(), b.as_int(), &sum) ? Value() : whole(sum);
}

Value multiply(const Number& a, const Number& b) {
  if (!both_whole(a, b)) {
    return real(a.as_double() * b.as_double());
  }
  std::int64_t product = 0;
  return __builtin_mul_overflow(a.as_int(), b.as_int(), &product) ? Value() : whole(product);
}

bool divides_to_overflow(std::int64_t a, std::int64_t b) {
  return b == 0 || (b == -1 && a == std::numeric_limits<std::int64_t>::min());
}

Value floor_divide(const Number& a, const Number& b) {
  if (!both_whole(a, b)) {
    return b.as_double() == 0 ? Value() : real(std::floor(a.as_double() / b.as_double()));
  }
  const std::int64_t x = a.as_int();
  const std::int64_t y = b.as_int();
  if (divides_to_overflow(x, y)) {
    return std::nullopt;
  }
  const bool rounds_up = x % y != 0 && (x < 0) != (y < 0);
  return whole(x / y - (rounds_up ? 1 : 0));
}

Value modulo(const Number& a, const Number& b) {
  const Value quotient = floor_divide(a, b);
  if (!quotient.has_value() || !both_whole(a, b)) {
    return std::nullopt;
  }
  return whole(a.as_int() - quotient->as_int() * b.as_int());
}

Value divide(const Number& a, const Number& b) {
  if (b.as_double() == 0) {
    return std::nullopt;
  }
  if (both_whole(a, b) && !divides_to_overflow(a.as_int(), b.as_int()) &&
      a.as_int() % b.as_int() == 0) {
    return whole(a.as_int() / b.as_int());
  }
  return real(a.as_double() / b.as_double());
}

Value power(const Number& base, const Number& exponent) {
  constexpr std::int64_t kMost = 64;
  if (exponent.real || base.real || exponent.as_int() > kMost) {
    return real(std::pow(base.as_double(), exponent.as_double()));
  }
  Number result = Number::of(std::int64_t{1});
  for (std::int64_t i = 0; i < std::abs(std::max(exponent.as_int(), -kMost)); ++i) {
    const Value product = multiply(result, base);
    if (!product.has_value()) {
      return std::nullopt;
    }
    result = *product;
  }
  return exponent.as_int() >= 0 ? Value(result) : divide(Number::of(std::int64_t{1}), result);
}

Value rounded(const Number& x, double (*round)(double)) {
  constexpr double kLimit = 9.0e18;
  if (!x.real) {
    return x;
  }
  const double value = round(x.as_double());
  return std::abs(value) < kLimit ? whole(static_cast<std::int64_t>(value)) : Value();
}

int compare(const Number& a, const Number& b) {
  if (both_whole(a, b)) {
    return a.as_int() < b.as_int() ? -1 : (a.as_int() > b.as_int() ? 1 : 0);
  }
  return a.as_double() < b.as_double() ? -1 : (a.as_double() > b.as_double() ? 1 : 0);
}

Value smaller(const Number& a, const Number& b) {
  return compare(a, b) <= 0 ? a : b;
}
Value larger(const Number& a, const Number& b) {
  return compare(a, b) >= 0 ? a : b;
}
Value conjunction(const Number& a, const Number& b) {
  return truth(a.as_double() != 0 && b.as_double() != 0);
}
Value disjunction(const Number& a, const Number& b) {
  return truth(a.as_double() != 0 || b.as_double() != 0);
}

/// floor((base / divisor) mod modulus), as sympy's printer of indices writes it.
Value modular_indexing(std::span<const Number> v) {
  const Value quotient = floor_divide(v[0], v[1]);
  return quotient.has_value() ? modulo(*quotient, v[2]) : Value();
}

struct Function {
  std::string_view name;
  std::size_t arity;  ///< 0: two or more, from left to right
  Value (*apply)(std::span<const Number>);
};

template <Value (*apply)(const Number&, const Number&)>
Value pairwise(std::span<const Number> v) {
  Number result = v[0];
  for (const Number& next : v.subspan(1)) {
    const Value value = apply(result, next);
    if (!value.has_value()) {
      return std::nullopt;
    }
    result = *value;
  }
  return result;
}

template <double (*round)(double)>
Value rounding(std::span<const Number> v) {
  return rounded(v[0], round);
}

double floor_of(double x) {
  return std::floor(x);
}
double ceiling_of(double x) {
  return std::ceil(x);
}
double truncated(double x) {
  return std::trunc(x);
}
double nearest(double x) {
  return std::nearbyint(x);
}

Value same(std::span<const Number> v) {
  return v[0];
}
Value to_real(std::span<const Number> v) {
  return real(v[0].as_double());
}
Value square_root(std::span<const Number> v) {
  return real(std::sqrt(v[0].as_double()));
}
Value absolute(std::span<const Number> v) {
  return compare(v[0], Number::of(std::int64_t{0})) < 0
             ? multiply(v[0], Number::of(std::int64_t{-1}))
             : Value(v[0]);
}
Value negation(std::span<const Number> v) {
  return truth(v[0].as_double() == 0);
}

constexpr std::array<Function, 40> kFunctions{{
    {"Integer", 1, same},
    {"Float", 1, to_real},
    {"Identity", 1, same},
    {"Rational", 2, pairwise<divide>},
    {"Add", 0, pairwise<add>},
    {"Mul", 0, pairwise<multiply>},
    {"Pow", 2, pairwise<power>},
    {"PowByNatural", 2, pairwise<power>},
    {"FloatPow", 2, pairwise<power>},
    {"FloorDiv", 2, pairwise<floor_divide>},
    {"CleanDiv", 2, pairwise<floor_divide>},
    {"IntTrueDiv", 2, pairwise<divide>},
    {"FloatTrueDiv", 2, pairwise<divide>},
    {"Mod", 2, pairwise<modulo>},
    {"PythonMod", 2, pairwise<modulo>},
    {"ModularIndexing", 3, modular_indexing},
    {"Max", 0, pairwise<larger>},
    {"max", 0, pairwise<larger>},
    {"Min", 0, pairwise<smaller>},
    {"min", 0, pairwise<smaller>},
    {"Abs", 1, absolute},
    {"abs", 1, absolute},
    {"ToFloat", 1, to_real},
    {"float", 1, to_real},
    {"TruncToInt", 1, rounding<truncated>},
    {"CeilToInt", 1, rounding<ceiling_of>},
    {"ceiling", 1, rounding<ceiling_of>},
    {"FloorToInt", 1, rounding<floor_of>},
    {"floor", 1, rounding<floor_of>},
    {"RoundToInt", 1, rounding<nearest>},
    {"OpaqueUnaryFn_sqrt", 1, square_root},
    {"And", 0, pairwise<conjunction>},
    {"Or", 0, pairwise<disjunction>},
    {"Not", 1, negation},
    {"Equality", 2, [](std::span<const Number> v) { return truth(compare(v[0], v[1]) == 0); }},
    {"Unequality", 2, [](std::span<const Number> v) { return truth(compare(v[0], v[1]) != 0); }},
    {"StrictLessThan", 2, [](std::span<const Number> v) { return truth(compare(v[0], v[1]) < 0); }},
    {"LessThan", 2, [](std::span<const Number> v) { return truth(compare(v[0], v[1]) <= 0); }},
    {"StrictGreaterThan",
     2,
     [](std::span<const Number> v) { return truth(compare(v[0], v[1]) > 0); }},
    {"GreaterThan", 2, [](std::span<const Number> v) { return truth(compare(v[0], v[1]) >= 0); }},
}};

/// Reads and computes at once. A part without a value is read to its end all the same, so that
/// `symbols` holds every symbol; `broken` is set where the text is no expression.
class Reader {
 public:
  Reader(std::string_view text, const SymbolValues& values) : text_(text), values_(values) {}

  Value run() {
    const Value value = disjunctions();
    skip_spaces();
    return broken_ || at_ != text_.size() ? Value() : value;
  }
  [[nodiscard]] std::vector<std::string> symbols() && { return std::move(symbols_); }

 private:
  void skip_spaces() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) {
      ++at_;
    }
  }

  bool take(std::string_view token) {
    skip_spaces();
    if (!text_.substr(at_).starts_with(token)) {
      return false;
    }
    at_ += token.size();
    return true;
  }

  bool take_word(std::string_view word) {
    const std::size_t start = at_;
    if (take(word) && (at_ == text_.size() || !is_name_character(text_[at_]))) {
      return true;
    }
    at_ = start;
    return false;
  }

  Value fail() {
    broken_ = true;
    at_ = text_.size();
    return std::nullopt;
  }

  static bool is_name_character(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  }

  template <class Apply>
  static Value combined(const Value& a, const Value& b, Apply apply) {
    return a.has_value() && b.has_value() ? apply(*a, *b) : Value();
  }

  Value disjunctions() {
    Value left = conjunctions();
    while (take_word("or")) {
      left = combined(left, conjunctions(), disjunction);
    }
    return left;
  }

  Value conjunctions() {
    Value left = negations();
    while (take_word("and")) {
      left = combined(left, negations(), conjunction);
    }
    return left;
  }

  Value negations() {
    if (!take_word("not")) {
      return comparisons();
    }
    const Nesting nesting(*this);
    const Value value = nesting.too_deep() ? fail() : negations();
    return value.has_value() ? truth(value->as_double() == 0) : Value();
  }

  /// One of the comparisons that may stand here; nothing when none does.
  std::optional<bool (*)(int)> comparison() {
    struct Sign {
      std::string_view text;
      bool (*holds)(int);
    };
    constexpr std::array<Sign, 6> kSigns{{{"==", [](int c) { return c == 0; }},
                                          {"!=", [](int c) { return c != 0; }},
                                          {"<=", [](int c) { return c <= 0; }},
                                          {">=", [](int c) { return c >= 0; }},
                                          {"<", [](int c) { return c < 0; }},
                                          {">", [](int c) { return c > 0; }}}};
    for (const Sign& sign : kSigns) {
      if (take(sign.text)) {
        return sign.holds;
      }
    }
    return std::nullopt;
  }

  Value comparisons() {
    Value left = sums();
    Value result;
    bool any = false;
    while (const auto holds = comparison()) {
      const Value right = sums();
      const Value here = combined(left, right, [&](const Number& a, const Number& b) {
        return truth((*holds)(compare(a, b)));
      });
      result = any ? combined(result, here, conjunction) : here;
      any = true;
      left = right;
    }
    return any ? result : left;
  }

  Value sums() {
    Value left = products();
    while (true) {
      if (take("+")) {
        left = combined(left, products(), add);
      } else if (take("-")) {
        const Value right = products();
        left = combined(left, negative(right), add);
      } else {
        return left;
      }
    }
  }

  static Value negative(const Value& value) {
    return value.has_value() ? multiply(*value, Number::of(std::int64_t{-1})) : Value();
  }

  Value products() {
    Value left = signs();
    while (true) {
      if (take("//")) {
        left = combined(left, signs(), floor_divide);
      } else if (take("/")) {
        left = combined(left, signs(), divide);
      } else if (take("%")) {
        left = combined(left, signs(), modulo);
      } else if (take("*")) {
        left = combined(left, signs(), multiply);
      } else {
        return left;
      }
    }
  }

  Value signs() {
    const Nesting nesting(*this);
    if (nesting.too_deep()) {
      return fail();
    }
    if (take("-")) {
      return negative(signs());
    }
    const Value base = atom();
    return take("**") ? combined(base, signs(), power) : base;
  }

  Value atom() {
    skip_spaces();
    if (at_ == text_.size()) {
      return fail();
    }
    const char c = text_[at_];
    if (take("(")) {
      const Value inner = disjunctions();
      return take(")") ? inner : fail();
    }
    if (c == '\'' || c == '"') {
      return parse_number(quoted());
    }
    if (std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '.') {
      return number();
    }
    return is_name_character(c) ? named() : fail();
  }

  static Value parse_number(std::string_view text) {
    std::int64_t integer = 0;
    const char* const end = text.data() + text.size();
    if (const auto [rest, error] = std::from_chars(text.data(), end, integer);
        error == std::errc{} && rest == end) {
      return whole(integer);
    }
    double value = 0;
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    return error == std::errc{} && rest == end ? real(value) : Value();
  }

  Value number() {
    const std::size_t start = at_;
    while (at_ < text_.size() && (is_name_character(text_[at_]) || text_[at_] == '.')) {
      ++at_;
    }
    const Value value = parse_number(text_.substr(start, at_ - start));
    return value.has_value() ? value : fail();
  }

  std::string_view quoted() {
    skip_spaces();
    const char quote = text_[at_];
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) {
      fail();
      return {};
    }
    const std::string_view content = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return content;
  }

  bool at_quote() {
    skip_spaces();
    return at_ < text_.size() && (text_[at_] == '\'' || text_[at_] == '"');
  }

  Value symbol(std::string name) {
    const auto found = values_.find(name);
    const Value value = found == values_.end() ? Value() : whole(found->second);
    if (std::find(symbols_.begin(), symbols_.end(), name) == symbols_.end()) {
      symbols_.push_back(std::move(name));
    }
    return value;
  }

  Value named() {
    const std::size_t start = at_;
    while (at_ < text_.size() && is_name_character(text_[at_])) {
      ++at_;
    }
    const std::string_view name = text_.substr(start, at_ - start);
    if (name == "True" || name == "true" || name == "False" || name == "false") {
      return truth(name == "True" || name == "true");
    }
    if (take("[")) {
      return name == "L" ? input_size() : fail();
    }
    if (!take("(")) {
      return symbol(std::string(name));
    }
    if (name == "Symbol") {
      const std::string symbol_name(at_quote() ? quoted() : std::string_view());
      return arguments().has_value() && !broken_ ? symbol(symbol_name) : Value();
    }
    const std::optional<Values> given = arguments();
    return given.has_value() ? applied(name, *given) : Value();
  }

  /// Up to the closing parenthesis; keyword arguments say nothing about the value. Nothing when
  /// one has no value.
  std::optional<Values> arguments() {
    std::optional<Values> values{std::in_place};
    while (!take(")")) {
      if (take(",")) {
        continue;
      }
      if (broken_ || at_ >= text_.size()) {
        fail();
        return std::nullopt;
      }
      const bool keyword = take_keyword();
      const Value value = disjunctions();
      if (keyword) {
        continue;
      }
      if (!value.has_value()) {
        values.reset();
      } else if (values.has_value()) {
        values->push_back(*value);
      }
    }
    return values;
  }

  bool take_keyword() {
    skip_spaces();
    std::size_t end = at_;
    while (end < text_.size() && is_name_character(text_[end])) {
      ++end;
    }
    if (end == at_ || end + 1 >= text_.size() || text_[end] != '=' || text_[end + 1] == '=') {
      return false;
    }
    at_ = end + 1;
    return true;
  }

  static Value applied(std::string_view name, const Values& given) {
    const auto* const function = std::find_if(
        kFunctions.begin(), kFunctions.end(), [&](const Function& f) { return f.name == name; });
    if (function == kFunctions.end() || given.empty() ||
        (function->arity != 0 && function->arity != given.size())) {
      return std::nullopt;
    }
    return function->apply(given);
  }

  /// After "L[": 'ids'].size()[1]
  Value input_size() {
    if (!at_quote()) {
      return fail();
    }
    std::string name(quoted());
    if (!take("]")) {
      return fail();
    }
    if (!take(".size()[")) {
      return symbol(std::move(name));
    }
    const std::size_t start = at_;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0) {
      ++at_;
    }
    name += "." + std::string(text_.substr(start, at_ - start));
    return take("]") ? symbol(std::move(name)) : fail();
  }

  /// Counts how deep the reader is inside the text, against nesting that would fill the stack.
  class Nesting {
   public:
    explicit Nesting(Reader& reader) : reader_(reader) { ++reader_.depth_; }
    ~Nesting() { --reader_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;
    [[nodiscard]] bool too_deep() const { return reader_.depth_ > kMaxDepth; }

   private:
    Reader& reader_;
  };

  std::string_view text_;
  const SymbolValues& values_;
  std::size_t at_ = 0;
  int depth_ = 0;
  bool broken_ = false;
  std::vector<std::string> symbols_;
};

}  // namespace

std::optional<Number> evaluate_size(std::string_view expression, const SymbolValues& symbols) {
  return Reader(expression, symbols).run();
}

std::optional<std::int64_t> whole_size(std::string_view expression, const SymbolValues& symbols) {
  const Value value = evaluate_size(expression, symbols);
  if (!value.has_value()) {
    return std::nullopt;
  }
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (value->real && (std::trunc(value->as_double()) != value->as_double() ||
                      std::abs(value->as_double()) > kExact)) {
    return std::nullopt;
  }
  return value->as_int();
}

std::vector<std::string> symbols_of(std::string_view expression) {
  const SymbolValues none;
  Reader reader(expression, none);
  static_cast<void>(reader.run());
  return std::move(reader).symbols();
}

}  // namespace shardplan::frontends
