// From protobuf messages to model.h; the only file that knows protobuf.

#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>
#include <google/protobuf/unknown_field_set.h>
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include "shardplan/frontends/index_space.h"
#include "shardplan/frontends/onnx/dtypes.h"
#include "shardplan/frontends/onnx/model.h"

namespace shardplan::frontends::onnx {

namespace {

using ir::DType;

constexpr std::int64_t kMaxElements = std::int64_t{1} << 48;

std::string type_problem(std::int64_t type) {
  return fmt::format(
      "has the element type {}; bool, uint8, int32, int64, bfloat16, float16, float and double are "
      "supported",
      type_name(type));
}

/// Bytes of the UTF-8 character that starts at `at`; 0 where none does.
std::size_t character_bytes(const std::string& text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  const std::size_t count = first < 0x80   ? 1
                            : first < 0xc2 ? 0
                            : first < 0xe0 ? 2
                            : first < 0xf0 ? 3
                            : first < 0xf5 ? 4
                                           : 0;
  if (at + count > text.size()) {
    return 0;
  }
  for (std::size_t i = 1; i < count; ++i) {
    if ((byte(at + i) & 0xc0U) != 0x80U) {
      return 0;
    }
  }
  return count;
}

/// A name as messages can show it: control characters and what is no UTF-8 become '?'.
std::string shown(const std::string& name) {
  std::string out;
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t count = character_bytes(name, at);
    const bool plain = count > 1 || (count == 1 && name[at] >= ' ' && name[at] != '\x7f');
    out += plain ? name.substr(at, count) : "?";
    at += std::max<std::size_t>(count, 1);
  }
  return out;
}

template <class Names>
std::vector<std::string> shown_names(const Names& names) {
  std::vector<std::string> out;
  for (const std::string& name : names) {
    out.push_back(shown(name));
  }
  return out;
}

/// The elements of one of the typed fields as bytes of type To.
template <class To, class Field>
std::string packed(const Field& field) {
  std::string raw(static_cast<std::size_t>(field.size()) * sizeof(To), '\0');
  std::size_t at = 0;
  for (const auto element : field) {
    const auto value = static_cast<To>(element);
    std::memcpy(raw.data() + at, &value, sizeof(To));
    at += sizeof(To);
  }
  return raw;
}

std::string packed_field(const ::onnx::TensorProto& proto, DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8:
      return packed<std::uint8_t>(proto.int32_data());
    case DType::kInt32:
      return packed<std::int32_t>(proto.int32_data());
    case DType::kInt64:
      return packed<std::int64_t>(proto.int64_data());
    case DType::kBFloat16:
    case DType::kFloat16:
      return packed<std::uint16_t>(proto.int32_data());
    case DType::kFloat32:
      return packed<float>(proto.float_data());
    case DType::kFloat64:
      break;
  }
  return packed<double>(proto.double_data());
}

std::optional<std::int64_t> whole_number(const std::string& text) {
  if (text.empty() || text.size() > 18 ||
      text.find_first_not_of("0123456789") != std::string::npos) {
    return std::nullopt;
  }
  return std::stoll(text);
}

void read_external(const ::onnx::TensorProto& proto, TensorData& out) {
  External external;
  for (const auto& entry : proto.external_data()) {
    const std::optional<std::int64_t> number = whole_number(entry.value());
    if (entry.key() == "location") {
      external.location = shown(entry.value());
    } else if (entry.key() == "offset" || entry.key() == "length") {
      if (!number.has_value()) {
        out.problem =
            fmt::format("has external data with {} '{}'", shown(entry.key()), shown(entry.value()));
      }
      if (entry.key() == "offset") {
        external.offset = number.value_or(0);
      } else {
        external.length = number;
      }
    }
  }
  out.external = std::move(external);
}

TensorData read_tensor(::onnx::TensorProto& proto) {
  TensorData out;
  out.name = shown(proto.name());
  const std::optional<DType> dtype = dtype_of_number(proto.data_type());
  if (!dtype.has_value()) {
    out.problem = type_problem(proto.data_type());
    return out;
  }
  out.type = {*dtype, ir::Shape(proto.dims().begin(), proto.dims().end())};
  const std::optional<std::size_t> count = element_count(out.type.shape, kMaxElements);
  if (!count.has_value() || out.type.shape.size() > ir::kMaxRank) {
    out.problem = "has an impossible shape";
    return out;
  }
  if (proto.data_location() == ::onnx::TensorProto::EXTERNAL) {
    read_external(proto, out);
    return out;
  }
  if (proto.has_segment()) {
    out.problem = "is stored in segments, which is not supported";
    return out;
  }
  out.raw =
      proto.has_raw_data() ? std::move(*proto.mutable_raw_data()) : packed_field(proto, *dtype);
  const std::size_t expected = *count * static_cast<std::size_t>(ir::element_bytes(*dtype));
  if (out.raw.size() != expected) {
    out.problem = fmt::format(
        "has {} bytes, its type {} needs {}", out.raw.size(), ir::to_string(out.type), expected);
  }
  return out;
}

Graph read_graph(::onnx::GraphProto& proto);

Attribute read_attribute(::onnx::AttributeProto& proto) {
  using Kind = Attribute::Kind;
  Attribute out;
  out.reference = proto.ref_attr_name();
  switch (proto.type()) {
    case ::onnx::AttributeProto::INT:
      out.kind = Kind::kInt;
      out.integer = proto.i();
      break;
    case ::onnx::AttributeProto::FLOAT:
      out.kind = Kind::kFloat;
      out.real = static_cast<double>(proto.f());
      break;
    case ::onnx::AttributeProto::STRING:
      out.kind = Kind::kText;
      out.text = shown(proto.s());
      break;
    case ::onnx::AttributeProto::INTS:
      out.kind = Kind::kInts;
      out.integers.assign(proto.ints().begin(), proto.ints().end());
      break;
    case ::onnx::AttributeProto::FLOATS:
      out.kind = Kind::kFloats;
      out.reals.assign(proto.floats().begin(), proto.floats().end());
      break;
    case ::onnx::AttributeProto::STRINGS:
      out.kind = Kind::kTexts;
      out.texts = shown_names(proto.strings());
      break;
    case ::onnx::AttributeProto::TENSOR:
      out.kind = Kind::kTensor;
      out.tensor = std::make_shared<const TensorData>(read_tensor(*proto.mutable_t()));
      break;
    case ::onnx::AttributeProto::GRAPH:
      out.kind = Kind::kGraph;
      out.graph = std::make_shared<const Graph>(read_graph(*proto.mutable_g()));
      break;
    default:
      break;
  }
  return out;
}

std::string with_dots(std::string path) {
  std::replace(path.begin(), path.end(), '/', '.');
  return path;
}

/// Names such as "/transformer/h.3/attn/MatMul_1" hold the path of the module.
std::string layer_in_name(const std::string& name) {
  const std::size_t last = name.rfind('/');
  if (!name.starts_with('/') || last == 0) {
    return "";
  }
  return with_dots(name.substr(1, last - 1));
}

constexpr int kNodeMetadata = 9;
constexpr int kGraphMetadata = 16;

/// Value of a key of metadata_props, a field that is younger than the headers of Debian 12.
std::string metadata(const google::protobuf::Message& proto, int number, std::string_view key) {
  const auto& fields = proto.GetReflection()->GetUnknownFields(proto);
  for (int i = 0; i < fields.field_count(); ++i) {
    const auto& field = fields.field(i);
    if (field.number() != number ||
        field.type() != google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED) {
      continue;
    }
    ::onnx::StringStringEntryProto entry;
    if (entry.ParseFromString(field.length_delimited()) && entry.key() == key) {
      return entry.value();
    }
  }
  return "";
}

/// The last but one of "['', 'transformer', 'transformer.h.0', 'linear_3']": the innermost module.
std::string innermost_scope(const std::string& list) {
  std::vector<std::string> parts;
  for (std::size_t open = list.find('\''); open != std::string::npos;) {
    const std::size_t close = list.find('\'', open + 1);
    if (close == std::string::npos) {
      break;
    }
    parts.push_back(list.substr(open + 1, close - open - 1));
    open = list.find('\'', close + 1);
  }
  return parts.size() < 2 ? std::string() : parts[parts.size() - 2];
}

Node read_node(::onnx::NodeProto& proto) {
  Node out;
  out.name = shown(proto.name());
  out.op = shown(proto.op_type());
  out.domain = proto.domain() == "ai.onnx" ? std::string() : shown(proto.domain());
  const std::string scopes = metadata(proto, kNodeMetadata, "pkg.torch.onnx.name_scopes");
  out.layer = scopes.empty() ? layer_in_name(out.name) : shown(innermost_scope(scopes));
  out.inputs = shown_names(proto.input());
  out.outputs = shown_names(proto.output());
  for (auto& attribute : *proto.mutable_attribute()) {
    out.attributes[shown(attribute.name())] = read_attribute(attribute);
  }
  return out;
}

ValueInfo read_input(const ::onnx::ValueInfoProto& proto) {
  ValueInfo out;
  out.name = shown(proto.name());
  if (!proto.type().has_tensor_type()) {
    out.problem = "is no tensor";
    return out;
  }
  const auto& type = proto.type().tensor_type();
  const std::optional<DType> dtype = dtype_of_number(type.elem_type());
  if (!dtype.has_value()) {
    out.problem = type_problem(type.elem_type());
    return out;
  }
  out.dtype = *dtype;
  if (!type.has_shape()) {
    out.problem = "has no shape, not even the number of its dimensions";
  }
  for (const auto& dim : type.shape().dim()) {
    Dimension dimension;
    if (dim.has_dim_value()) {
      dimension.size = dim.dim_value();
    } else {
      dimension.name = shown(dim.dim_param());
    }
    out.dims.push_back(std::move(dimension));
  }
  return out;
}

/// Lines such as "p_fc_weight: PARAMETER target='fc.weight'".
void read_signature(const std::string& text, Graph& out) {
  const auto collect = [&](std::string_view kind, std::set<std::string>& names) {
    const std::string start = ": " + std::string(kind) + " target='";
    for (std::size_t at = text.find(start); at != std::string::npos; at = text.find(start, at)) {
      at += start.size();
      names.insert(text.substr(at, std::min(text.find('\'', at), text.size()) - at));
    }
  };
  collect("PARAMETER", out.parameters);
  collect("BUFFER", out.buffers);
}

Graph read_graph(::onnx::GraphProto& proto) {
  Graph out;
  for (auto& node : *proto.mutable_node()) {
    out.nodes.push_back(read_node(node));
  }
  for (auto& tensor : *proto.mutable_initializer()) {
    out.initializers.push_back(read_tensor(tensor));
  }
  for (const auto& input : proto.input()) {
    out.inputs.push_back(read_input(input));
  }
  for (const auto& output : proto.output()) {
    out.outputs.push_back(shown(output.name()));
  }
  read_signature(
      metadata(proto, kGraphMetadata, "pkg.torch.export.ExportedProgram.graph_signature"), out);
  out.sparse_initializers = proto.sparse_initializer_size() > 0;
  return out;
}

Function read_function(::onnx::FunctionProto& proto) {
  Function out;
  out.name = shown(proto.name());
  out.domain = shown(proto.domain());
  out.inputs = shown_names(proto.input());
  out.outputs = shown_names(proto.output());
  for (auto& node : *proto.mutable_node()) {
    out.nodes.push_back(read_node(node));
  }
  return out;
}

}  // namespace

Result<Model> read_model_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) {
    return Error{ErrorCode::kNotFound, "cannot be read", path, {}};
  }
  if (static_cast<std::int64_t>(file.tellg()) > std::numeric_limits<std::int32_t>::max()) {
    return Error{ErrorCode::kInvalidInput,
                 "is larger than the 2 GiB that an ONNX file can have",
                 path,
                 {"save the model with external data"}};
  }
  file.seekg(0);
  ::onnx::ModelProto proto;
  google::protobuf::io::IstreamInputStream stream(&file);
  google::protobuf::io::CodedInputStream coded(&stream);
  coded.SetTotalBytesLimit(std::numeric_limits<std::int32_t>::max());
  if (!proto.ParseFromCodedStream(&coded) || !coded.ConsumedEntireMessage()) {
    return invalid_input("is damaged, or is no ONNX model", path);
  }
  if (!proto.has_graph()) {
    return invalid_input("is damaged, or is no ONNX model: it holds no graph", path);
  }
  Model out;
  for (const auto& opset : proto.opset_import()) {
    out.opsets[opset.domain() == "ai.onnx" ? std::string() : opset.domain()] = opset.version();
  }
  for (auto& function : *proto.mutable_functions()) {
    out.functions.push_back(read_function(function));
  }
  out.graph = read_graph(*proto.mutable_graph());
  return out;
}

}  // namespace shardplan::frontends::onnx
