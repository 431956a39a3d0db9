#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shardplan/frontends/size_expression.h"
#include "shardplan/support/result.h"

/// The dimensions that an archive of torch.export leaves open, and the sizes that the user gives
/// them.
namespace shardplan::frontends {

/// An open dimension of an input.
struct OpenDim {
  std::string place;                    ///< "ids.1"; "n" for an input that is a whole number itself
  std::string expression;               ///< "Symbol('s24', integer=True)"
  std::optional<std::int64_t> example;  ///< its size when the model was exported
};

struct SizeRange {
  std::string expression;  ///< "s24"
  std::optional<std::int64_t> least;
  std::optional<std::int64_t> most;
};

struct OpenDims {
  std::vector<OpenDim> places;
  std::vector<SizeRange> ranges;
  std::vector<std::string> guards;  ///< conditions under which the trace holds: "s24 % 2 == 0"
  std::map<std::string, std::string> names;  ///< what the user calls a symbol: s24 -> seq
};

/// A value for every symbol. `dims` names symbols by the user's names, their own, or the place of a
/// dimension, which may be an expression of one symbol: "ids.1" = 128 where ids.1 is 2*s24. An
/// error when one is left open (it lists all), when a name or size does not fit, or when the trace
/// does not hold for these sizes. `where` names the file.
[[nodiscard]] Result<SymbolValues> bind_dims(const OpenDims& open,
                                             const std::map<std::string, std::int64_t>& dims,
                                             const std::string& where);

}  // namespace shardplan::frontends
