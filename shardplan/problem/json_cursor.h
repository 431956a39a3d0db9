#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardplan/support/result.h"

namespace shardplan::problem {

/// Reads a JSON text from front to back without building a tree: problem files are megabytes of
/// numbers. Trusts nothing.
///
/// Every function returns false when the text is not what was asked for; error() then tells what
/// was found and where, as "file.json: nodes / 3 / cost: expected a number, found a text". Nothing
/// may be read after an error. Linear time.
class JsonCursor {
 public:
  /// `text` and `where` (the file) must outlive the cursor.
  JsonCursor(std::string_view text, std::string_view where) : text_(text), where_(where) {}

  /// An object is read as: enter_object(), then field() until it gives an empty key with true.
  /// Every field's value must be read or skipped. Keys that occur twice are errors.
  [[nodiscard]] bool enter_object();
  [[nodiscard]] bool next_field(std::string& key, bool& more);

  /// A list is read as: enter_list(), then next_item() until `more` is false.
  [[nodiscard]] bool enter_list();
  [[nodiscard]] bool next_item(bool& more);
  /// All of that, where `item` reads an item and returns whether it could.
  template <class Item>
  [[nodiscard]] bool list(const Item& item) {
    bool more = false;
    if (!enter_list()) {
      return false;
    }
    while (next_item(more) && more) {
      if (!item()) {
        return false;
      }
    }
    return good();
  }

  [[nodiscard]] bool text(std::string& out);
  /// A finite number; "inf" and Infinity are taken as infinity where `infinity` allows it.
  [[nodiscard]] bool number(double& out, bool infinity = false);
  [[nodiscard]] bool integer(std::int64_t low, std::int64_t high, std::int64_t& out);
  /// A list of numbers, appended.
  [[nodiscard]] bool numbers(std::vector<double>& out, bool infinity = false);
  /// Reads a null, if it is one.
  [[nodiscard]] bool null();
  /// Any value, of any depth up to kMaxDepth.
  [[nodiscard]] bool skip();
  /// Only white space may follow.
  [[nodiscard]] bool at_end();

  /// What comes next: one of { [ " 0 (a number) t f n, or 0 at the end of the text.
  [[nodiscard]] char peek();
  /// The text of the list that comes next, unread, when it holds nothing but numbers and lists of
  /// them; else empty. Equal texts are equal tables.
  [[nodiscard]] std::string_view numeric_list();
  /// Moves behind a list whose text is known.
  void pass(std::string_view list) { at_ += list.size(); }

  /// Ends the reading with an error at the current place.
  bool fail(std::string message);
  [[nodiscard]] bool good() const { return error_.message.empty(); }
  [[nodiscard]] const Error& error() const { return error_; }
  /// The way to the value that is being read: "nodes / 3 / cost".
  [[nodiscard]] std::string place() const;

  static constexpr int kMaxDepth = 64;

 private:
  struct Level {
    bool list = false;
    bool first = true;
    std::int64_t index = -1;          ///< of a list
    std::vector<std::string> keys{};  ///< of an object, so far
  };

  void skip_space();
  [[nodiscard]] bool expect(char sign, std::string_view what);
  [[nodiscard]] bool enter(char bracket, std::string_view what);
  [[nodiscard]] bool separator(char closing, bool& more);
  [[nodiscard]] bool word(std::string_view expected);
  [[nodiscard]] bool string_token(std::string_view& token);
  bool wrong(std::string_view expected);
  bool syntax(const std::string& message);

  std::string_view text_;
  std::string_view where_;
  std::size_t at_ = 0;
  std::vector<Level> levels_;
  Error error_{};
};

}  // namespace shardplan::problem
