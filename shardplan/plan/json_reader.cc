#include "shardplan/plan/json_reader.h"

#include <cmath>
#include <set>
#include <utility>

#include "shardplan/plan/labels.h"

namespace shardplan::plan {
namespace {

using nlohmann::json;

/// Long values are cut short in messages.
std::string excerpt(const json& value) {
  constexpr std::size_t kMaxShown = 40;
  if (value.is_structured()) {
    return value.is_object() ? "an object" : "a list";
  }
  const std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() <= kMaxShown ? text : text.substr(0, kMaxShown) + "...";
}

/// Remembers the keys of every object that is open, to find the ones that occur twice.
class DuplicateFinder {
 public:
  bool operator()(int /*depth*/, json::parse_event_t event, const json& parsed) {
    if (event == json::parse_event_t::object_start) {
      open_.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      open_.pop_back();
    } else if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_.back().insert(key).second && duplicate_.empty()) {
        duplicate_ = key;
      }
    }
    return true;
  }
  [[nodiscard]] const std::string& duplicate() const { return duplicate_; }

 private:
  std::vector<std::set<std::string>> open_;
  std::string duplicate_;
};

}  // namespace

Result<json> parse_json(std::string_view text, const std::string& where) {
  DuplicateFinder finder;
  try {
    json document = json::parse(
        text.begin(), text.end(), [&finder](int depth, json::parse_event_t event, json& parsed) {
          return finder(depth, event, parsed);
        });
    if (!finder.duplicate().empty()) {
      return invalid_input("field \"" + finder.duplicate() + "\" occurs twice in one object",
                           where);
    }
    return document;
  } catch (const json::exception& failure) {
    // "[json.exception.parse_error.101] parse error at line 3, column 5: ..."
    const std::string_view what = failure.what();
    const std::size_t bracket = what.find("] ");
    return invalid_input(
        "not valid JSON: " +
            std::string(bracket == std::string_view::npos ? what : what.substr(bracket + 2)),
        where);
  }
}

JsonValue JsonValue::child(const json& value, const std::string& name, bool first) const {
  JsonValue out(value, place_ + (first ? ": " : " / ") + name);
  out.inner_ = true;
  return out;
}

Error JsonValue::wrong_type(const std::string& expected) const {
  return error("expected " + expected + ", found " + excerpt(*value_));
}

bool JsonValue::has(const std::string& name) const {
  return value_->is_object() && value_->contains(name);
}

Result<JsonValue> JsonValue::field(const std::string& name) const {
  if (!value_->is_object()) {
    return wrong_type("an object");
  }
  const auto at = value_->find(name);
  if (at == value_->end()) {
    return error("field \"" + name + "\" is missing");
  }
  return child(*at, name, !inner_);
}

Result<std::vector<std::pair<std::string, JsonValue>>> JsonValue::fields() const {
  if (!value_->is_object()) {
    return wrong_type("an object");
  }
  std::vector<std::pair<std::string, JsonValue>> out;
  for (auto at = value_->begin(); at != value_->end(); ++at) {
    out.emplace_back(at.key(), child(at.value(), at.key(), !inner_));
  }
  return out;
}

Result<std::vector<JsonValue>> JsonValue::items() const {
  if (!value_->is_array()) {
    return wrong_type("a list");
  }
  std::vector<JsonValue> out;
  for (const json& item : *value_) {
    out.push_back(child(item, std::to_string(out.size()), !inner_));
  }
  return out;
}

Status JsonValue::only(const std::vector<std::string>& known) const {
  if (!value_->is_object()) {
    return wrong_type("an object");
  }
  for (auto at = value_->begin(); at != value_->end(); ++at) {
    if (std::find(known.begin(), known.end(), at.key()) == known.end()) {
      return with_suggestion(error("unknown field \"" + at.key() + "\""), at.key(), known);
    }
  }
  return {};
}

Result<bool> JsonValue::boolean() const {
  if (!value_->is_boolean()) {
    return wrong_type("true or false");
  }
  return value_->get<bool>();
}

Result<std::string> JsonValue::text() const {
  if (!value_->is_string()) {
    return wrong_type("a text");
  }
  return value_->get<std::string>();
}

Result<std::int64_t> JsonValue::integer(std::int64_t low, std::int64_t high) const {
  const std::string expected =
      "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
  if (!value_->is_number_integer()) {
    return wrong_type(expected);
  }
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (value_->is_number_unsigned() && value_->get<std::uint64_t>() > kMax) {
    return wrong_type(expected);
  }
  const auto number = value_->get<std::int64_t>();
  return number >= low && number <= high ? Result<std::int64_t>(number) : wrong_type(expected);
}

Result<double> JsonValue::number(double low) const {
  const double number = value_->is_number() ? value_->get<double>() : std::nan("");
  if (!std::isfinite(number) || number < low) {
    return wrong_type(low == 0 ? "a number that is not negative" : "a number");
  }
  return number;
}

}  // namespace shardplan::plan
