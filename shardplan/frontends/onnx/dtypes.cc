#include "shardplan/frontends/onnx/dtypes.h"

#include <array>
#include <string_view>

namespace shardplan::frontends::onnx {

namespace {

// In the order of TensorProto.DataType, which is longer here than in the headers of Debian 12.
constexpr std::array<std::string_view, 27> kNames{
    "UNDEFINED",      "FLOAT",    "UINT8",        "INT8",           "UINT16",
    "INT16",          "INT32",    "INT64",        "STRING",         "BOOL",
    "FLOAT16",        "DOUBLE",   "UINT32",       "UINT64",         "COMPLEX64",
    "COMPLEX128",     "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2",
    "FLOAT8E5M2FNUZ", "UINT4",    "INT4",         "FLOAT4E2M1",     "FLOAT8E8M0",
    "UINT2",          "INT2"};

}  // namespace

std::optional<ir::DType> dtype_of_number(std::int64_t number) {
  switch (number) {
    case 1:
      return ir::DType::kFloat32;
    case 2:
      return ir::DType::kUInt8;
    case 6:
      return ir::DType::kInt32;
    case 7:
      return ir::DType::kInt64;
    case 9:
      return ir::DType::kBool;
    case 10:
      return ir::DType::kFloat16;
    case 11:
      return ir::DType::kFloat64;
    case 16:
      return ir::DType::kBFloat16;
    default:
      return std::nullopt;
  }
}

std::string type_name(std::int64_t number) {
  if (number < 0 || number >= static_cast<std::int64_t>(kNames.size())) {
    return "type " + std::to_string(number);
  }
  return std::string(kNames[static_cast<std::size_t>(number)]);
}

}  // namespace shardplan::frontends::onnx
