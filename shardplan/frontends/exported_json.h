#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "shardplan/frontends/const_element.h"
#include "shardplan/frontends/exported_program.h"
#include "shardplan/frontends/size_expression.h"

/// The parts of torch.export's JSON that occur everywhere in it: numbers, tensors, arguments. What
/// is damaged is nothing, or a `problem` of the result.
namespace shardplan::frontends {

using Json = nlohmann::json;

/// The member, or null when `json` is no object or has none of this name.
[[nodiscard]] const Json* member(const Json& json, const char* name);
/// The single entry of an object such as {"as_int": 3}: the schema's form of a union.
[[nodiscard]] std::optional<std::pair<std::string, const Json*>> alternative(const Json& json);
[[nodiscard]] std::optional<std::string> text(const Json* json);
[[nodiscard]] std::optional<std::int64_t> integer(const Json* json);
[[nodiscard]] bool is_true(const Json* json);
/// The "name" of {"name": "x", ...}.
[[nodiscard]] std::optional<std::string> name_of(const Json& json);

/// What the symbols of sizes stand for, and the numbers that nodes compute from them.
struct Sizes {
  SymbolValues symbols{};
  std::map<std::string, Number, std::less<>> computed{};
};

/// 3, {"as_int": 3}, {"as_name": "sym_size_int"}, {"as_expr": {"expr_str": "2*s24"}}; nothing for
/// what depends on an open size or on data.
[[nodiscard]] std::optional<Number> number(const Json& json, const Sizes& sizes);

[[nodiscard]] ExportedTensor tensor_of(const Json& json, const Sizes& sizes);
[[nodiscard]] Argument argument(const Json& json, const Sizes& sizes);

}  // namespace shardplan::frontends
