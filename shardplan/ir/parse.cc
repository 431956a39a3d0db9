#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <limits>

#include "shardplan/ir/text_cursor.h"
#include "shardplan/ir/text_form.h"

namespace shardplan::ir {

namespace {

constexpr Bytes kMaxElidedBytes = Bytes{256} << 20;

/// Appends the bytes of one element; false when `token` is no such number.
template <class T>
bool append_number(std::string_view token, std::vector<std::byte>& out) {
  T value{};
  const char* const end = token.data() + token.size();
  const auto [rest, failure] = std::from_chars(token.data(), end, value);
  if (failure != std::errc() || rest != end) {
    return false;
  }
  const std::size_t at = out.size();
  out.resize(at + sizeof value);
  std::memcpy(out.data() + at, &value, sizeof value);
  return true;
}

bool append_bits(std::string_view digits, DType dtype, std::vector<std::byte>& out) {
  std::uint64_t bits = 0;
  const char* const end = digits.data() + digits.size();
  const auto [rest, failure] = std::from_chars(digits.data(), end, bits, 16);
  const auto width = static_cast<std::size_t>(element_bytes(dtype));
  if (failure != std::errc() || rest != end || (width < 8 && bits >> (8 * width) != 0)) {
    return false;
  }
  const std::size_t at = out.size();
  out.resize(at + width);
  std::memcpy(out.data() + at, &bits, width);
  return true;
}

bool append_element(std::string_view token, DType dtype, std::vector<std::byte>& out) {
  if (token.starts_with("0x")) {
    return append_bits(token.substr(2), dtype, out);
  }
  switch (dtype) {
    case DType::kBool:
      return (token == "0" || token == "1") && append_number<std::uint8_t>(token, out);
    case DType::kUInt8:
      return append_number<std::uint8_t>(token, out);
    case DType::kInt32:
      return append_number<std::int32_t>(token, out);
    case DType::kInt64:
      return append_number<std::int64_t>(token, out);
    case DType::kFloat32:
      return append_number<float>(token, out);
    case DType::kFloat64:
      return append_number<double>(token, out);
    case DType::kBFloat16:
    case DType::kFloat16:
      break;
  }
  return false;
}

class Parser {
 public:
  Result<Graph> run(std::string_view text) {
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      const std::string_view line = text.substr(0, end);
      text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
      TextCursor cursor(line, ++line_);
      if (cursor.done()) {
        continue;
      }
      SHARDPLAN_RETURN_IF_ERROR(statement(cursor));
      if (!cursor.done()) {
        return cursor.error("unexpected text at the end of the statement");
      }
    }
    if (!has_header_) {
      return invalid_input("the first statement must be: graph \"name\"", "line 1");
    }
    return finish();
  }

 private:
  Status statement(TextCursor& cursor) {
    if (!has_header_) {
      return header(cursor);
    }
    if (cursor.accept("output ")) {
      SHARDPLAN_ASSIGN_OR_RETURN(const std::int32_t id, cursor.id('%'));
      graph_.outputs.emplace_back(id);
      return {};
    }
    if (cursor.accept("write ")) {
      return pair(cursor, graph_.writes);
    }
    if (cursor.accept("gradient ")) {
      return pair(cursor, graph_.gradients);
    }
    return definition(cursor);
  }

  /// "%1 <- %2"
  static Status pair(TextCursor& cursor, std::vector<Write>& pairs) {
    SHARDPLAN_ASSIGN_OR_RETURN(const std::int32_t target, cursor.id('%'));
    SHARDPLAN_RETURN_IF_ERROR(cursor.expect("<-"));
    SHARDPLAN_ASSIGN_OR_RETURN(const std::int32_t value, cursor.id('%'));
    pairs.push_back({ValueId{target}, ValueId{value}});
    return {};
  }

  Status header(TextCursor& cursor) {
    if (!cursor.accept("graph ")) {
      return cursor.error("the first statement must be: graph \"name\"");
    }
    SHARDPLAN_ASSIGN_OR_RETURN(graph_.name, cursor.quoted_string());
    if (cursor.accept("microbatches=")) {
      SHARDPLAN_ASSIGN_OR_RETURN(graph_.microbatches, cursor.integer());
    }
    has_header_ = true;
    return {};
  }

  /// "%1 = input ..." or "%1, %2 = op(...)" or "op(...)".
  Status definition(TextCursor& cursor) {
    std::size_t results = 0;
    if (cursor.accept("%")) {
      do {
        SHARDPLAN_ASSIGN_OR_RETURN(const std::int64_t id, cursor.integer());
        const auto expected = static_cast<std::int64_t>(graph_.values().size() + results);
        if (id != expected) {
          return cursor.error(
              fmt::format("values are numbered in order: expected %{}, not %{}", expected, id));
        }
        ++results;
      } while (cursor.accept(",") && cursor.accept("%"));
      SHARDPLAN_RETURN_IF_ERROR(cursor.expect("="));
    }
    SHARDPLAN_ASSIGN_OR_RETURN(std::string name,
                               cursor.name("a statement: output, write, or %N = ..."));
    if (!cursor.accept("(")) {
      return input_value(cursor, name, results);
    }
    return op(cursor, std::move(name), results);
  }

  Status input_value(TextCursor& cursor, const std::string& kind_name, std::size_t results) {
    const std::optional<ValueKind> kind = text_form::key(text_form::kKinds, kind_name);
    if (!kind.has_value() || results != 1) {
      return cursor.error(
          "expected '(' after the name of an op, or one of input, parameter, buffer, constant, "
          "state, accumulator after a single '%N ='");
    }
    Value value;
    value.kind = *kind;
    SHARDPLAN_ASSIGN_OR_RETURN(value.name, cursor.quoted_string());
    SHARDPLAN_ASSIGN_OR_RETURN(value.type, cursor.type());
    while (!cursor.done()) {
      SHARDPLAN_RETURN_IF_ERROR(value_field(cursor, value));
    }
    graph_.add_value(std::move(value));
    value_lines_.push_back(line_);
    return {};
  }

  Status value_field(TextCursor& cursor, Value& value) {
    if (cursor.accept("trainable")) {
      value.trainable = true;
      return {};
    }
    if (cursor.accept("module_shape=")) {
      SHARDPLAN_ASSIGN_OR_RETURN(value.module_shape, cursor.ints());
      return {};
    }
    if (cursor.accept("aliases=")) {
      SHARDPLAN_ASSIGN_OR_RETURN(value.aliases, cursor.strings());
      return {};
    }
    if (cursor.accept("init_from=")) {
      SHARDPLAN_ASSIGN_OR_RETURN(const std::int32_t id, cursor.id('%'));
      value.init_from = ValueId{id};
      return {};
    }
    if (cursor.accept("data=")) {
      return data(cursor, value);
    }
    return cursor.error(
        "expected trainable, module_shape=, aliases=, init_from= or data= after the type");
  }

  Status data(TextCursor& cursor, Value& value) {
    if (cursor.accept("elided")) {
      if (value.kind != ValueKind::kConstant) {
        return {};
      }
      elided_bytes_ += std::min(value.type.bytes(), kMaxElidedBytes);
      if (elided_bytes_ >= kMaxElidedBytes) {
        return cursor.error("elided constants have more than 256 MiB together");
      }
      value.data = std::make_shared<const std::vector<std::byte>>(
          static_cast<std::size_t>(value.type.bytes()));
      return {};
    }
    SHARDPLAN_RETURN_IF_ERROR(cursor.expect("["));
    std::vector<std::byte> bytes;
    if (!cursor.accept("]")) {
      do {
        SHARDPLAN_ASSIGN_OR_RETURN(const std::string_view token, cursor.number_token());
        if (!append_element(token, value.type.dtype, bytes)) {
          return cursor.error(fmt::format(
              "'{}' is no {} element", token.substr(0, 40), dtype_name(value.type.dtype)));
        }
      } while (cursor.accept(","));
      SHARDPLAN_RETURN_IF_ERROR(cursor.expect("]"));
    }
    value.data = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
    return {};
  }

  Status op(TextCursor& cursor, std::string name, std::size_t results) {
    Op op;
    op.name = std::move(name);
    SHARDPLAN_ASSIGN_OR_RETURN(std::vector<ValueId> inputs, operands(cursor));
    SHARDPLAN_ASSIGN_OR_RETURN(op.attributes, attributes(cursor));
    SHARDPLAN_RETURN_IF_ERROR(cursor.expect(":"));
    std::vector<TensorType> types;
    while (types.size() < results) {
      if (!types.empty()) {
        SHARDPLAN_RETURN_IF_ERROR(cursor.expect(","));
      }
      SHARDPLAN_ASSIGN_OR_RETURN(TensorType type, cursor.type());
      types.push_back(std::move(type));
    }
    std::vector<std::string> names;
    while (!cursor.done()) {
      SHARDPLAN_RETURN_IF_ERROR(op_field(cursor, op, names));
    }
    if (!names.empty() && names.size() != results) {
      return cursor.error(fmt::format("{} names for {} results", names.size(), results));
    }
    // An op may read inputs of the graph that come later: operands are set when all values are
    // known.
    const OpId id = graph_.add_op(std::move(op), types);
    for (std::size_t i = 0; i < names.size(); ++i) {
      graph_.value(graph_.op(id).outputs[i]).name = std::move(names[i]);
    }
    operands_.push_back({line_, std::move(inputs)});
    value_lines_.resize(graph_.values().size(), line_);
    return {};
  }

  static Result<std::vector<ValueId>> operands(TextCursor& cursor) {
    std::vector<ValueId> inputs;
    if (cursor.accept(")")) {
      return inputs;
    }
    do {
      SHARDPLAN_ASSIGN_OR_RETURN(const std::int32_t id, cursor.id('%'));
      inputs.emplace_back(id);
    } while (cursor.accept(","));
    SHARDPLAN_RETURN_IF_ERROR(cursor.expect(")"));
    return inputs;
  }

  static Result<Attributes> attributes(TextCursor& cursor) {
    Attributes attributes;
    if (!cursor.accept("{") || cursor.accept("}")) {
      return attributes;
    }
    do {
      SHARDPLAN_ASSIGN_OR_RETURN(std::string name, cursor.name("the name of an attribute"));
      if (attributes.has(name)) {
        return cursor.error("an attribute is given twice");
      }
      SHARDPLAN_RETURN_IF_ERROR(cursor.expect("="));
      SHARDPLAN_ASSIGN_OR_RETURN(Attribute value, cursor.attribute());
      attributes.set(std::move(name), std::move(value));
    } while (cursor.accept(","));
    SHARDPLAN_RETURN_IF_ERROR(cursor.expect("}"));
    return attributes;
  }

  static Status op_field(TextCursor& cursor, Op& op, std::vector<std::string>& names) {
    if (cursor.accept("names=")) {
      SHARDPLAN_ASSIGN_OR_RETURN(names, cursor.strings());
      return {};
    }
    if (cursor.accept("layer=")) {
      SHARDPLAN_ASSIGN_OR_RETURN(op.layer, cursor.quoted_string());
      return {};
    }
    if (cursor.accept("phase=")) {
      const std::optional<Phase> phase = text_form::key(text_form::kPhases, cursor.word());
      if (!phase.has_value()) {
        return cursor.error("a phase is forward, backward or update");
      }
      op.phase = *phase;
      return {};
    }
    if (cursor.accept("source=")) {
      SHARDPLAN_ASSIGN_OR_RETURN(const std::int32_t id, cursor.id('#'));
      op.source = OpId{id};
      return {};
    }
    return cursor.error("expected names=, layer=, phase= or source= after the types of an op");
  }

  Result<Graph> finish() {
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      for (const ValueId input : operands_[i].inputs) {
        if (input.index() >= graph_.values().size()) {
          return invalid_input(fmt::format("operand %{} does not exist", input.value),
                               fmt::format("line {}", operands_[i].line));
        }
      }
      graph_.op(OpId{i}).inputs = std::move(operands_[i].inputs);
    }
    Status status = verify(graph_);
    if (!status) {
      return located(std::move(status).error());
    }
    return std::move(graph_);
  }

  /// Adds the line to an error of the verifier, which names values ("%3") and ops ("#3").
  [[nodiscard]] Error located(Error error) const {
    const std::string& where = error.location;
    const std::size_t at = where.find_first_of("%#");
    std::size_t index = 0;
    if (at != std::string::npos) {
      std::from_chars(where.data() + at + 1, where.data() + where.size(), index);
      const bool op = where[at] == '#';
      const std::size_t line = op && index < operands_.size()       ? operands_[index].line
                               : !op && index < value_lines_.size() ? value_lines_[index]
                                                                    : line_;
      error.location = fmt::format("line {}: {}", line, where);
    } else {
      error.location = fmt::format("line {}: {}", line_, where);
    }
    return error;
  }

  struct Operands {
    std::size_t line = 0;
    std::vector<ValueId> inputs;
  };

  Graph graph_;
  std::vector<Operands> operands_;        // of each op
  std::vector<std::size_t> value_lines_;  // of each value
  std::size_t line_ = 0;
  Bytes elided_bytes_ = 0;
  bool has_header_ = false;
};

}  // namespace

Result<Graph> parse(std::string_view text) {
  return Parser().run(text);
}

}  // namespace shardplan::ir
