#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace shardplan::ir {

using IntList = std::vector<std::int64_t>;
using Attribute = std::variant<bool, std::int64_t, double, std::string, IntList>;

/// The static arguments of an op: a small map from name to value, sorted by name, with value
/// semantics. The typed getters require the attribute to exist with that type (an op's shape
/// inference has checked it); `*_or` return a default when it does not exist.
class Attributes {
 public:
  Attributes() = default;
  Attributes(std::initializer_list<std::pair<std::string, Attribute>> entries);

  void set(std::string name, Attribute value);
  [[nodiscard]] const Attribute* find(std::string_view name) const;
  [[nodiscard]] bool has(std::string_view name) const { return find(name) != nullptr; }

  [[nodiscard]] std::int64_t integer(std::string_view name) const;
  [[nodiscard]] double number(std::string_view name) const;  ///< a double, or an integer as double
  [[nodiscard]] const std::string& string(std::string_view name) const;
  [[nodiscard]] const IntList& ints(std::string_view name) const;
  [[nodiscard]] bool flag_or(std::string_view name, bool fallback) const;
  [[nodiscard]] std::int64_t integer_or(std::string_view name, std::int64_t fallback) const;
  [[nodiscard]] double number_or(std::string_view name, double fallback) const;

  [[nodiscard]] const std::vector<std::pair<std::string, Attribute>>& entries() const {
    return entries_;
  }
  bool operator==(const Attributes&) const = default;

 private:
  std::vector<std::pair<std::string, Attribute>> entries_;
};

}  // namespace shardplan::ir
