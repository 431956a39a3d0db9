#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/support/result.h"

/// An ONNX file as plain values, so that the headers of protobuf stay in one source file. Nothing
/// here says that the model makes sense: names, sizes and order are what the file has.
namespace shardplan::frontends::onnx {

/// Where a tensor's bytes lie outside of the model's file.
struct External {
  std::string location{};  ///< path as written in the file, relative to the model's folder
  std::int64_t offset = 0;
  std::optional<std::int64_t> length;
};

/// A tensor that the file holds.
struct TensorData {
  std::string name{};
  ir::TensorType type{};
  std::string problem{};  ///< why it cannot be read: "has the element type INT8"; empty if it can
  std::string raw{};      ///< little-endian bytes of the type, unless external
  std::optional<External> external{};
};

struct Graph;

struct Attribute {
  enum class Kind : std::uint8_t {
    kInt,
    kFloat,
    kText,
    kInts,
    kFloats,
    kTexts,
    kTensor,
    kGraph,
    kOther
  };
  Kind kind = Kind::kOther;
  std::int64_t integer = 0;
  double real = 0;
  std::string text{};
  std::vector<std::int64_t> integers{};
  std::vector<double> reals{};
  std::vector<std::string> texts{};
  std::shared_ptr<const TensorData> tensor{};
  std::shared_ptr<const Graph> graph{};
  std::string reference{};  ///< in a function: the attribute of the call that gives the value
};

struct Node {
  std::string name{};
  std::string op{};      ///< "MatMul"
  std::string domain{};  ///< empty for the standard operators
  std::string
      layer{};  ///< module path as an exporter wrote it: "transformer.h.3.attn"; may be empty
  std::vector<std::string> inputs{};   ///< empty names are operands that are left out
  std::vector<std::string> outputs{};  ///< empty names are results that nobody wants
  std::map<std::string, Attribute> attributes{};
};

/// A dimension of an input: a number, or a name that the user binds, or neither.
struct Dimension {
  std::optional<std::int64_t> size;
  std::string name{};
};

struct ValueInfo {
  std::string name{};
  ir::DType dtype = ir::DType::kFloat32;
  std::vector<Dimension> dims{};
  std::string problem{};  ///< why the type cannot be read; empty if it can
};

struct Graph {
  std::vector<Node> nodes{};
  std::vector<TensorData> initializers{};
  std::vector<ValueInfo> inputs{};
  std::vector<std::string> outputs{};
  bool sparse_initializers = false;
  /// The module's names of its parameters and buffers, where the exporter wrote them down: then
  /// initializers of other names are what it computed from them, or constants.
  std::set<std::string> parameters{};
  std::set<std::string> buffers{};
};

/// A function of the model: nodes that stand for one call.
struct Function {
  std::string name{};
  std::string domain{};
  std::vector<std::string> inputs{};
  std::vector<std::string> outputs{};
  std::vector<Node> nodes{};
};

struct Model {
  std::map<std::string, std::int64_t> opsets{};  ///< version by domain; "" is the standard one
  Graph graph{};
  std::vector<Function> functions{};
};

/// Reads a file of at most 2 GiB. Only what protobuf needs to be well formed is checked, and that
/// each tensor has as many bytes as its type.
[[nodiscard]] Result<Model> read_model_file(const std::string& path);

/// The bytes of a tensor; those of an external file only from inside the model's folder.
[[nodiscard]] Result<ir::Data> read_bytes(const TensorData& tensor, const std::string& model_path);

/// The model without functions: each call replaced by the function's nodes, names made unique.
/// Functions that call themselves, or grow the model beyond a million nodes, are errors.
[[nodiscard]] Status inline_functions(Model& model, const std::string& path);

}  // namespace shardplan::frontends::onnx
