#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "shardplan/ir/types.h"

namespace shardplan::frontends::onnx {

/// The element type with ONNX's number; nothing for those that our graph does not have.
[[nodiscard]] std::optional<ir::DType> dtype_of_number(std::int64_t number);
/// "FLOAT8E4M3FN", or "type 99".
[[nodiscard]] std::string type_name(std::int64_t number);

}  // namespace shardplan::frontends::onnx
