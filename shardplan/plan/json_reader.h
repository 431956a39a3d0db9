#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "shardplan/support/result.h"

// Reading a JSON document that nobody vouches for. Of the room: includes the JSON library.
namespace shardplan::plan {

/// Parses a document. Errors (with `where`): syntax with line and column, a key that occurs twice
/// in one object (the library would silently drop one), text that is not UTF-8.
[[nodiscard]] Result<nlohmann::json> parse_json(std::string_view text, const std::string& where);

/// One value of a document and the way to it, for messages: "plan.json: mesh / 0 / size". Keeps a
/// pointer into the document.
class JsonValue {
 public:
  JsonValue(const nlohmann::json& value, std::string where)
      : value_(&value), place_(std::move(where)) {}

  [[nodiscard]] const std::string& place() const { return place_; }
  [[nodiscard]] Error error(std::string message) const {
    return invalid_input(std::move(message), place_);
  }

  /// The field of an object; an error when the value is no object or lacks it.
  [[nodiscard]] Result<JsonValue> field(const std::string& name) const;
  [[nodiscard]] bool has(const std::string& name) const;
  /// All fields of an object, sorted by name.
  [[nodiscard]] Result<std::vector<std::pair<std::string, JsonValue>>> fields() const;
  [[nodiscard]] Result<std::vector<JsonValue>> items() const;
  /// An error for fields that are not in `known`, with a suggestion.
  [[nodiscard]] Status only(const std::vector<std::string>& known) const;

  [[nodiscard]] Result<std::string> text() const;
  [[nodiscard]] Result<bool> boolean() const;
  [[nodiscard]] Result<std::int64_t> integer(std::int64_t low, std::int64_t high) const;
  /// A finite number of at least `low`.
  [[nodiscard]] Result<double> number(double low) const;
  [[nodiscard]] bool is_null() const { return value_->is_null(); }
  [[nodiscard]] bool is_object() const { return value_->is_object(); }

 private:
  [[nodiscard]] JsonValue child(const nlohmann::json& value,
                                const std::string& name,
                                bool first) const;
  [[nodiscard]] Error wrong_type(const std::string& expected) const;

  const nlohmann::json* value_;
  std::string place_;
  bool inner_ = false;  ///< below the top of the document
};

}  // namespace shardplan::plan
