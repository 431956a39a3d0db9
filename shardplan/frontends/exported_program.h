#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/support/result.h"

/// The content of `models/model.json` of a `.pt2` archive (schema 8 of torch.export) and of the
/// lists of weights beside it, checked and in plain types. Nothing here knows any operator.
namespace shardplan::frontends {

/// Type of a tensor as the archive has it. What Shardplan has no type for is kept as a `problem`,
/// to be reported only when the tensor is used.
struct ExportedTensor {
  ir::TensorType type;
  std::string problem;  ///< "has dtype int16", "has a dimension that is not fixed"; or empty
  bool requires_grad = false;
  ir::Shape strides;
  std::int64_t storage_offset = 0;
};

struct Argument {
  enum class Kind {
    kNone,
    kTensors,  ///< one tensor, or a list; "" stands for a missing one
    kInts,     ///< one integer, or a list
    kFloats,
    kBools,
    kText,
    kDType,  ///< `text` is our name of it, or empty; `ints` holds torch's number
    kOther   ///< devices, memory formats, layouts and what else no operator here needs
  };
  Kind kind = Kind::kNone;
  bool list = false;  ///< the archive has a list
  std::vector<std::string> tensors;
  std::vector<std::int64_t> ints;
  std::vector<double> floats;
  std::string text;     ///< kText, kDType; kOther: the kind's name in the schema
  std::string problem;  ///< "is symbolic"; or empty
};

struct ExportedNode {
  std::string target;  ///< "aten.linear.default"
  std::vector<std::pair<std::string, Argument>> inputs;
  std::vector<std::string> outputs;  ///< tensor names; a list's elements one after another
  std::string layer;                 ///< innermost module path
  bool no_grad = false;              ///< in a region under torch.no_grad()
};

struct ExportedInput {
  enum class Kind { kParameter, kBuffer, kConstant, kUser };
  Kind kind = Kind::kUser;
  std::string graph_name;
  std::string name;  ///< the user's: "transformer.wte.weight"
};

struct ExportedMutation {
  std::string buffer;  ///< user's name of a buffer
  std::string value;   ///< graph name of its new content
};

struct ExportedProgram {
  std::vector<ExportedInput> inputs;
  std::vector<ExportedNode> nodes;
  std::vector<std::string> outputs;  ///< graph names of the user's outputs; "" when not a tensor
  std::vector<ExportedMutation> mutations;
  std::unordered_map<std::string, ExportedTensor> tensors;  ///< by graph name
};

/// Where the bytes of a weight are.
struct WeightFile {
  std::string entry;  ///< "data/weights/weight_3"
  bool pickled = false;
  ExportedTensor tensor;
};
using WeightFiles = std::map<std::string, WeightFile, std::less<>>;

/// Sizes for the dimensions that the archive leaves open.
struct DimRequest {
  std::map<std::string, std::int64_t> sizes{};  ///< see bind_dims
  /// Content of `extra/shardplan_dims.json`: what the user calls a symbol; may be empty.
  std::string names{};
};

/// Every size is a number in the result, and what only computes sizes is left out. `where` names
/// the file in errors.
Result<ExportedProgram> parse_program(std::string_view json,
                                      const std::string& where,
                                      const DimRequest& dims = {});
/// `folder` is what the entries are relative to, "data/weights/".
Result<WeightFiles> parse_weight_files(std::string_view json,
                                       std::string_view folder,
                                       const std::string& where);

}  // namespace shardplan::frontends
