#include "shardplan/ir/attributes.h"

#include <algorithm>

#include "shardplan/support/result.h"

namespace shardplan::ir {

namespace {

template <class T>
const T& require(const Attribute* attribute, std::string_view name) {
  SHARDPLAN_CHECK(attribute != nullptr) << "attribute '" << name << "' is missing";
  const T* const value = std::get_if<T>(attribute);
  SHARDPLAN_CHECK(value != nullptr) << "attribute '" << name << "' has another type";
  return *value;
}

}  // namespace

Attributes::Attributes(std::initializer_list<std::pair<std::string, Attribute>> entries) {
  for (const auto& [name, value] : entries) {
    set(name, value);
  }
}

void Attributes::set(std::string name, Attribute value) {
  const auto at = std::lower_bound(
      entries_.begin(), entries_.end(), name, [](const auto& entry, const auto& key) {
        return entry.first < key;
      });
  if (at != entries_.end() && at->first == name) {
    at->second = std::move(value);
    return;
  }
  entries_.emplace(at, std::move(name), std::move(value));
}

const Attribute* Attributes::find(std::string_view name) const {
  for (const auto& [key, value] : entries_) {
    if (key == name) {
      return &value;
    }
  }
  return nullptr;
}

std::int64_t Attributes::integer(std::string_view name) const {
  return require<std::int64_t>(find(name), name);
}

double Attributes::number(std::string_view name) const {
  const Attribute* const value = find(name);
  if (value != nullptr && std::holds_alternative<std::int64_t>(*value)) {
    return static_cast<double>(std::get<std::int64_t>(*value));
  }
  return require<double>(value, name);
}

const std::string& Attributes::string(std::string_view name) const {
  return require<std::string>(find(name), name);
}

const IntList& Attributes::ints(std::string_view name) const {
  return require<IntList>(find(name), name);
}

bool Attributes::flag_or(std::string_view name, bool fallback) const {
  const Attribute* const value = find(name);
  return value == nullptr ? fallback : require<bool>(value, name);
}

std::int64_t Attributes::integer_or(std::string_view name, std::int64_t fallback) const {
  return has(name) ? integer(name) : fallback;
}

double Attributes::number_or(std::string_view name, double fallback) const {
  return has(name) ? number(name) : fallback;
}

}  // namespace shardplan::ir
