#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shardplan/frontends/const_element.h"

/// Expressions over the sizes that an archive leaves open, in the two notations of torch.export:
/// constructors, "Mul(Integer(2), Symbol('s24', integer=True))", and Python,
/// "2*s24 >= L['ids'].size()[1] // 2", where the size of an input is the symbol "ids.1".
namespace shardplan::frontends {

using SymbolValues = std::map<std::string, std::int64_t, std::less<>>;

/// The value, truth as 0 or 1, with Python's rounding of // and %. Nothing when a symbol has no
/// value, something is divided by zero, leaves 64 bits, or is no expression of this kind.
[[nodiscard]] std::optional<Number> evaluate_size(std::string_view expression,
                                                  const SymbolValues& symbols);
/// The same where the value is a whole number.
[[nodiscard]] std::optional<std::int64_t> whole_size(std::string_view expression,
                                                     const SymbolValues& symbols);

/// The symbols in it, each once, in the order in which they stand; what cannot be read has those
/// before the damage.
[[nodiscard]] std::vector<std::string> symbols_of(std::string_view expression);

}  // namespace shardplan::frontends
