#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>

#include "shardplan/ir/text_form.h"

namespace shardplan::ir {

namespace {

using text_form::kKinds;
using text_form::kMaxPrintedElements;
using text_form::kPhases;

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

std::string quoted_list(const std::vector<std::string>& items) {
  std::vector<std::string> parts;
  parts.reserve(items.size());
  for (const std::string& item : items) {
    parts.push_back(quoted(item));
  }
  return fmt::format("[{}]", fmt::join(parts, ","));
}

/// `text` itself when it can stand without quotes.
std::string word_or_quoted(std::string_view text) {
  const bool plain = !text.empty() && (text.front() < '0' || text.front() > '9') &&
                     std::all_of(text.begin(), text.end(), text_form::is_word_character);
  return plain ? std::string(text) : quoted(text);
}

/// The shortest text that reads back as the same double, and never as an integer.
std::string number(double value) {
  if (!std::isfinite(value)) {
    return std::isnan(value) ? "nan" : (value < 0 ? "-inf" : "inf");
  }
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) {
    text += ".0";
  }
  return text;
}

struct AttributePrinter {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return number(value); }
  std::string operator()(const std::string& value) const { return quoted(value); }
  std::string operator()(const IntList& value) const {
    return fmt::format("[{}]", fmt::join(value, ","));
  }
};

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <class Float, class Bits>
std::string float_element(const std::byte* at) {
  const auto value = load<Float>(at);
  return std::isnan(value) ? fmt::format("{:#x}", load<Bits>(at)) : fmt::format("{}", value);
}

std::string element(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8:
      return std::to_string(static_cast<int>(*at));
    case DType::kInt32:
      return std::to_string(load<std::int32_t>(at));
    case DType::kInt64:
      return std::to_string(load<std::int64_t>(at));
    case DType::kFloat32:
      return float_element<float, std::uint32_t>(at);
    case DType::kFloat64:
      return float_element<double, std::uint64_t>(at);
    case DType::kBFloat16:
    case DType::kFloat16:
      break;
  }
  return fmt::format("{:#06x}", load<std::uint16_t>(at));
}

std::string data_text(const Value& value) {
  if (value.type.numel() > kMaxPrintedElements ||
      static_cast<Bytes>(value.data->size()) != value.type.bytes()) {
    return "elided";
  }
  const auto width = static_cast<std::size_t>(element_bytes(value.type.dtype));
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < value.data->size(); at += width) {
    parts.push_back(element(value.type.dtype, value.data->data() + at));
  }
  return fmt::format("[{}]", fmt::join(parts, ","));
}

class Printer {
 public:
  explicit Printer(const Graph& graph) : graph_(graph) {}

  std::string run() {
    append("graph {} microbatches={}\n", quoted(graph_.name), graph_.microbatches);
    for (std::size_t i = 0; i < graph_.values().size(); ++i) {
      const Value& value = graph_.values()[i];
      if (value.kind != ValueKind::kOpResult) {
        print_value(ValueId{i});
        continue;
      }
      while (next_op_ < graph_.ops().size() &&
             static_cast<std::int32_t>(next_op_) <= value.producer.value) {
        print_op(graph_.ops()[next_op_++]);
      }
    }
    while (next_op_ < graph_.ops().size()) {
      print_op(graph_.ops()[next_op_++]);
    }
    for (const ValueId output : graph_.outputs) {
      append("output %{}\n", output.value);
    }
    for (const Write& write : graph_.writes) {
      append("write %{} <- %{}\n", write.target.value, write.value.value);
    }
    for (const Write& gradient : graph_.gradients) {
      append("gradient %{} <- %{}\n", gradient.target.value, gradient.value.value);
    }
    return std::move(out_);
  }

 private:
  template <class... Args>
  void append(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  void print_value(ValueId id) {
    const Value& value = graph_.value(id);
    append("%{} = {} {} {}",
           id.value,
           text_form::word(kKinds, value.kind),
           quoted(value.name),
           to_string(value.type));
    if (value.trainable) {
      out_ += " trainable";
    }
    if (!value.module_shape.empty()) {
      append(" module_shape=[{}]", fmt::join(value.module_shape, ","));
    }
    if (!value.aliases.empty()) {
      append(" aliases={}", quoted_list(value.aliases));
    }
    if (value.init_from.valid()) {
      append(" init_from=%{}", value.init_from.value);
    }
    if (value.data != nullptr) {
      append(" data={}", data_text(value));
    }
    out_ += '\n';
  }

  void print_op(const Op& op) {
    std::vector<std::string> names;
    std::vector<std::string> types;
    bool named = false;
    for (std::size_t i = 0; i < op.outputs.size(); ++i) {
      const Value& result = graph_.value(op.outputs[i]);
      append("{}%{}", i == 0 ? "" : ", ", op.outputs[i].value);
      names.push_back(result.name);
      types.push_back(to_string(result.type));
      named = named || !result.name.empty();
    }
    append("{}{}(", op.outputs.empty() ? "" : " = ", word_or_quoted(op.name));
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      append("{}%{}", i == 0 ? "" : ", ", op.inputs[i].value);
    }
    out_ += ')';
    print_attributes(op.attributes);
    append(" : {}", fmt::join(types, ", "));
    if (named) {
      append(" names={}", quoted_list(names));
    }
    if (!op.layer.empty()) {
      append(" layer={}", quoted(op.layer));
    }
    if (op.phase != Phase::kForward) {
      append(" phase={}", text_form::word(kPhases, op.phase));
    }
    if (op.source.valid()) {
      append(" source=#{}", op.source.value);
    }
    out_ += '\n';
  }

  void print_attributes(const Attributes& attributes) {
    if (attributes.entries().empty()) {
      return;
    }
    out_ += " {";
    for (std::size_t i = 0; i < attributes.entries().size(); ++i) {
      const auto& [name, value] = attributes.entries()[i];
      append("{}{}={}",
             i == 0 ? "" : ", ",
             word_or_quoted(name),
             std::visit(AttributePrinter{}, value));
    }
    out_ += '}';
  }

  const Graph& graph_;
  std::string out_;
  std::size_t next_op_ = 0;
};

}  // namespace

std::string print(const Graph& graph) {
  return Printer(graph).run();
}

}  // namespace shardplan::ir
