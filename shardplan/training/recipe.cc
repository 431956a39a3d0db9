// The text forms of a recipe's parts.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "shardplan/support/text.h"
#include "shardplan/training/training.h"

namespace shardplan::training {
namespace {

/// One number of an optimizer: which kinds have it and what it may be.
struct NumberField {
  std::string_view name;
  double Optimizer::*member;
  bool for_sgd;
  bool for_adam;
  double below;  ///< must be smaller than this
};

constexpr double kUnbounded = 1e300;
constexpr std::array<NumberField, 7> kNumberFields{{
    {"lr", &Optimizer::lr, true, true, kUnbounded},
    {"momentum", &Optimizer::momentum, true, false, kUnbounded},
    {"dampening", &Optimizer::dampening, true, false, kUnbounded},
    {"beta1", &Optimizer::beta1, false, true, 1.0},
    {"beta2", &Optimizer::beta2, false, true, 1.0},
    {"eps", &Optimizer::eps, false, true, kUnbounded},
    {"weight_decay", &Optimizer::weight_decay, true, true, kUnbounded},
}};

constexpr std::array<std::pair<std::string_view, OptimizerKind>, 3> kKinds{
    {{"sgd", OptimizerKind::kSgd},
     {"adam", OptimizerKind::kAdam},
     {"adamw", OptimizerKind::kAdamW}}};

constexpr std::array<std::pair<std::string_view, Precision>, 4> kPrecisions{
    {{"model", Precision::kAsModel},
     {"fp64", Precision::kFloat64},
     {"fp32", Precision::kFloat32},
     {"bf16", Precision::kBFloat16}}};

template <class Table>
std::vector<std::string> names_of(const Table& table) {
  std::vector<std::string> names;
  names.reserve(table.size());
  for (const auto& [name, value] : table) {
    names.emplace_back(name);
  }
  return names;
}

/// The value with this name in a table, or an error that lists the names.
template <class Value, std::size_t kSize>
Result<Value> look_up(const std::array<std::pair<std::string_view, Value>, kSize>& table,
                      std::string_view name,
                      std::string_view what) {
  std::string list;
  for (const auto& [known, value] : table) {
    if (known == name) {
      return value;
    }
    list += (list.empty() ? "" : ", ") + std::string(known);
  }
  Error error{ErrorCode::kNotFound,
              fmt::format("unknown {} '{}', one of {} expected", what, name, list),
              {},
              {}};
  const std::string close = suggest(name, names_of(table));
  if (!close.empty()) {
    error.notes.push_back("did you mean '" + close + "'?");
  }
  return error;
}

bool has_field(const NumberField& field, OptimizerKind kind) {
  return kind == OptimizerKind::kSgd ? field.for_sgd : field.for_adam;
}

Status set_number(Optimizer& optimizer, const NumberField& field, std::string_view text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  if (code != std::errc{} || stop != end || !(value >= 0) || !(value < field.below)) {
    const std::string upper =
        field.below == kUnbounded ? "" : fmt::format(" and below {}", field.below);
    return invalid_input(
        fmt::format("{} is '{}', a number of at least 0{} expected", field.name, text, upper),
        "optimizer");
  }
  optimizer.*field.member = value;
  return {};
}

Status set_field(Optimizer& optimizer, std::string_view name, std::string_view text) {
  std::string known;
  for (const NumberField& field : kNumberFields) {
    if (!has_field(field, optimizer.kind)) {
      continue;
    }
    if (field.name == name) {
      return set_number(optimizer, field, text);
    }
    known += std::string(field.name) + ", ";
  }
  const bool sgd = optimizer.kind == OptimizerKind::kSgd;
  if (sgd && name == "nesterov") {
    if (text != "true" && text != "false") {
      return invalid_input(fmt::format("nesterov is '{}', true or false expected", text),
                           "optimizer");
    }
    optimizer.nesterov = text == "true";
    return {};
  }
  known += sgd ? "nesterov" : "";
  if (!sgd) {
    known.resize(known.size() - 2);
  }
  return invalid_input(fmt::format("unknown field '{}', one of {} expected", name, known),
                       "optimizer");
}

}  // namespace

Result<Optimizer> parse_optimizer(std::string_view text) {
  const std::size_t colon = text.find(':');
  SHARDPLAN_ASSIGN_OR_RETURN(const OptimizerKind kind,
                             look_up(kKinds, text.substr(0, colon), "optimizer"));
  Optimizer optimizer = default_optimizer(kind);
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  std::vector<std::string_view> given;
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const std::string_view field = rest.substr(0, comma);
    const std::size_t equals = field.find('=');
    if (equals == std::string_view::npos) {
      return invalid_input(fmt::format("'{}' is no field=value", field), "optimizer");
    }
    const std::string_view name = field.substr(0, equals);
    if (std::find(given.begin(), given.end(), name) != given.end()) {
      return invalid_input(fmt::format("{} is given twice", name), "optimizer");
    }
    given.push_back(name);
    SHARDPLAN_RETURN_IF_ERROR(set_field(optimizer, name, field.substr(equals + 1)));
    rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
  }
  if (optimizer.nesterov && (optimizer.momentum <= 0 || optimizer.dampening != 0)) {
    return invalid_input("nesterov needs a momentum above 0 and no dampening", "optimizer");
  }
  return optimizer;
}

std::string to_string(const Optimizer& optimizer) {
  const Optimizer defaults = default_optimizer(optimizer.kind);
  std::string out;
  for (const auto& [name, kind] : kKinds) {
    if (kind == optimizer.kind) {
      out = name;
    }
  }
  out += fmt::format(":lr={}", optimizer.lr);
  for (const NumberField& field : kNumberFields) {
    const double value = optimizer.*field.member;
    if (field.name != "lr" && has_field(field, optimizer.kind) && value != defaults.*field.member) {
      out += fmt::format(",{}={}", field.name, value);
    }
  }
  if (optimizer.nesterov) {
    out += ",nesterov=true";
  }
  return out;
}

Result<Precision> parse_precision(std::string_view text) {
  return look_up(kPrecisions, text, "precision");
}

std::string to_string(Precision precision) {
  for (const auto& [name, value] : kPrecisions) {
    if (value == precision) {
      return std::string(name);
    }
  }
  return "";
}

}  // namespace shardplan::training
