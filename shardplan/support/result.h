#pragma once

#include <cstdlib>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace shardplan {

/// What kind of failure an Error reports; the command line maps kInfeasible and kNotEqual to exit
/// code 1 ("the answer is no") and all others to 2 ("wrong use or input").
enum class ErrorCode {
  kInvalidInput,
  kNotFound,
  kUnsupported,
  kIo,
  kInfeasible,
  kNotEqual,
  kRuntime
};

/// A failure that a user can act on: what was found, where, and what to do about it.
struct Error {
  ErrorCode code = ErrorCode::kInvalidInput;
  std::string message;               ///< one sentence: what was found and what was expected
  std::string location;              ///< file, op, tensor dimension or mesh axis; may be empty
  std::vector<std::string> notes{};  ///< what to try

  /// "location: message" followed by "; note" for each note.
  [[nodiscard]] std::string text() const {
    std::string out = location.empty() ? message : location + ": " + message;
    for (const std::string& note : notes) {
      out += "; " + note;
    }
    return out;
  }
};

inline Error invalid_input(std::string message, std::string location = {}) {
  return Error{ErrorCode::kInvalidInput, std::move(message), std::move(location), {}};
}
inline Error unsupported(std::string message, std::string location = {}) {
  return Error{ErrorCode::kUnsupported, std::move(message), std::move(location), {}};
}

/// Either a value or an Error: the subset of std::expected that Shardplan uses.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool has_value() const { return std::holds_alternative<T>(state_); }
  explicit operator bool() const { return has_value(); }
  [[nodiscard]] const T& value() const& { return std::get<T>(state_); }
  [[nodiscard]] T& value() & { return std::get<T>(state_); }
  [[nodiscard]] T&& value() && { return std::get<T>(std::move(state_)); }
  const T& operator*() const& { return value(); }
  T& operator*() & { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  const T* operator->() const { return &value(); }
  T* operator->() { return &value(); }
  [[nodiscard]] const Error& error() const& { return std::get<Error>(state_); }
  [[nodiscard]] Error&& error() && { return std::get<Error>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

/// A Result without a value: success or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : state_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool has_value() const { return std::holds_alternative<std::monostate>(state_); }
  explicit operator bool() const { return has_value(); }
  [[nodiscard]] const Error& error() const& { return std::get<Error>(state_); }
  [[nodiscard]] Error&& error() && { return std::get<Error>(std::move(state_)); }

 private:
  std::variant<std::monostate, Error> state_;
};

using Status = Result<void>;

namespace internal {
/// Collects the message of a failed SHARDPLAN_CHECK and aborts at the end of the statement.
class CheckFailure {
 public:
  CheckFailure(const char* condition, const char* file, int line);
  [[noreturn]] ~CheckFailure();
  CheckFailure(const CheckFailure&) = delete;
  CheckFailure& operator=(const CheckFailure&) = delete;
  template <class T>
  CheckFailure& operator<<(const T& part) {
    stream_ << part;
    return *this;
  }

 private:
  std::ostringstream stream_;
};
}  // namespace internal

}  // namespace shardplan

#define SHARDPLAN_CONCAT_INNER(a, b) a##b
#define SHARDPLAN_CONCAT(a, b) SHARDPLAN_CONCAT_INNER(a, b)

/// Returns the Error of `expr` (a Status or Result) from the enclosing function, if it has one.
#define SHARDPLAN_RETURN_IF_ERROR(expr)                      \
  do {                                                       \
    if (auto shardplan_status = (expr); !shardplan_status) { \
      return std::move(shardplan_status).error();            \
    }                                                        \
  } while (false)

// `lhs` may declare a variable and `result` names one: neither can stand in parentheses.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define SHARDPLAN_ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                                    \
  if (!result) {                                           \
    return std::move(result).error();                      \
  }                                                        \
  lhs = std::move(result).value()
// NOLINTEND(bugprone-macro-parentheses)

/// `lhs = value of expr`, or returns the Error of `expr` from the enclosing function.
#define SHARDPLAN_ASSIGN_OR_RETURN(lhs, expr) \
  SHARDPLAN_ASSIGN_OR_RETURN_IMPL(SHARDPLAN_CONCAT(shardplan_result_, __LINE__), lhs, expr)

/// Aborts with the condition, the place and the streamed text when an invariant of the code is
/// broken. Never reachable from user input.
#define SHARDPLAN_CHECK(condition) \
  switch (0)                       \
  case 0:                          \
  default:                         \
    if (condition)                 \
      [[likely]];                  \
    else                           \
      ::shardplan::internal::CheckFailure(#condition, __FILE__, __LINE__)
