// Operators called by their names, and the gradient of such a call.

#include "shardplan/ops/call.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "shardplan/ops/call_workspace.h"
#include "shardplan/ops/checks.h"
#include "shardplan/ops/registry.h"

namespace shardplan::ops {
namespace {

// ---- the text of arguments ----

constexpr int kMaxDepth = 4;

std::string to_string(const CallValue& value) {
  switch (value.kind) {
    case CallValue::Kind::kNone:
      return "none";
    case CallValue::Kind::kTensor:
      return "$" + std::to_string(value.integer);
    case CallValue::Kind::kInt:
      return std::to_string(value.integer);
    case CallValue::Kind::kReal: {
      std::string text = fmt::format("{}", value.real);
      if (std::isfinite(value.real) && text.find_first_of(".e") == std::string::npos) {
        text += ".0";
      }
      return text;
    }
    case CallValue::Kind::kBool:
      return value.integer != 0 ? "true" : "false";
    case CallValue::Kind::kText:
      return "'" + value.text + "'";
    case CallValue::Kind::kDType:
      return ":" + value.text;
    case CallValue::Kind::kList:
      break;
  }
  std::string out = "[";
  for (const CallValue& entry : value.list) {
    out += (out.size() > 1 ? "," : "") + to_string(entry);
  }
  return out + "]";
}

class ArgumentParser {
 public:
  explicit ArgumentParser(std::string_view text) : text_(text) {}

  Result<std::vector<CallArgument>> run() {
    std::vector<CallArgument> arguments;
    while (at_ < text_.size()) {
      const std::size_t equals = text_.find('=', at_);
      if (equals == std::string_view::npos) {
        return error("a name and '='");
      }
      CallArgument argument;
      argument.name = std::string(text_.substr(at_, equals - at_));
      at_ = equals + 1;
      SHARDPLAN_ASSIGN_OR_RETURN(argument.value, value(0));
      arguments.push_back(std::move(argument));
      if (at_ < text_.size() && !take(", ")) {
        return error("', '");
      }
    }
    return arguments;
  }

 private:
  [[nodiscard]] Error error(const std::string& expected) const {
    return invalid_input(fmt::format(
        "the arguments of a call are damaged at character {}: {} expected", at_, expected));
  }

  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) {
      return false;
    }
    at_ += word.size();
    return true;
  }

  std::string_view until(std::string_view ends) {
    const std::size_t start = at_;
    at_ = std::min(text_.find_first_of(ends, at_), text_.size());
    return text_.substr(start, at_ - start);
  }

  Result<CallValue> value(int depth) {
    CallValue out;
    if (take("[")) {
      return list(depth);
    }
    if (take("'")) {
      out.kind = CallValue::Kind::kText;
      out.text = std::string(until("'"));
      return take("'") ? Result<CallValue>(out) : error("a closing quote");
    }
    if (take(":")) {
      out.kind = CallValue::Kind::kDType;
      out.text = std::string(until(",]"));
      return ir::parse_dtype(out.text) ? Result<CallValue>(out) : error("an element type");
    }
    if (take("$")) {
      out.kind = CallValue::Kind::kTensor;
      const std::string_view word = until(",]");
      return integer(word, out.integer) ? Result<CallValue>(out) : error("a number of an operand");
    }
    const std::string_view word = until(",]");
    if (word == "none") {
      return out;
    }
    if (word == "true" || word == "false") {
      out.kind = CallValue::Kind::kBool;
      out.integer = word == "true" ? 1 : 0;
      return out;
    }
    if (integer(word, out.integer)) {
      out.kind = CallValue::Kind::kInt;
      return out;
    }
    const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), out.real);
    if (code != std::errc() || end != word.data() + word.size()) {
      return error("a value");
    }
    out.kind = CallValue::Kind::kReal;
    return out;
  }

  Result<CallValue> list(int depth) {
    CallValue out;
    out.kind = CallValue::Kind::kList;
    if (depth >= kMaxDepth) {
      return error("a list that is less deep");
    }
    while (!take("]")) {
      if (!out.list.empty() && !take(",")) {
        return error("',' or ']'");
      }
      SHARDPLAN_ASSIGN_OR_RETURN(CallValue entry, value(depth + 1));
      out.list.push_back(std::move(entry));
    }
    return out;
  }

  static bool integer(std::string_view word, std::int64_t& out) {
    const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), out);
    return code == std::errc() && end == word.data() + word.size();
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

/// Numbers of all operands that a value names.
void collect_operands(const CallValue& value, std::vector<std::int64_t>& out) {
  if (value.kind == CallValue::Kind::kTensor) {
    out.push_back(value.integer);
  }
  for (const CallValue& entry : value.list) {
    collect_operands(entry, out);
  }
}

// ---- types ----

constexpr std::string_view kSame = "same";
constexpr std::string_view kSkipped = "-";

std::optional<ir::DType> first_floating(Inputs inputs) {
  for (const ir::TensorType& type : inputs) {
    if (ir::is_floating(type.dtype)) {
      return type.dtype;
    }
  }
  return std::nullopt;
}

/// One entry of the attribute `results`.
Result<ir::TensorType> parse_result(std::string_view word, Inputs inputs) {
  const std::size_t open = word.find('[');
  if (open == std::string_view::npos || !word.ends_with("]")) {
    return invalid_input(fmt::format("'{}' is no type of a result", word));
  }
  const std::string_view name = word.substr(0, open);
  const std::optional<ir::DType> dtype =
      name == kSame ? first_floating(inputs) : ir::parse_dtype(name);
  if (!dtype.has_value()) {
    return invalid_input(fmt::format("'{}' is no element type of a result here", name));
  }
  ir::TensorType type{*dtype, {}};
  std::string_view sizes = word.substr(open + 1, word.size() - open - 2);
  while (!sizes.empty()) {
    const std::size_t comma = std::min(sizes.find(','), sizes.size());
    std::int64_t size = 0;
    const auto [end, code] = std::from_chars(sizes.data(), sizes.data() + comma, size);
    if (code != std::errc() || end != sizes.data() + comma) {
      return invalid_input(fmt::format("'{}' is no type of a result", word));
    }
    type.shape.push_back(size);
    sizes.remove_prefix(std::min(comma + 1, sizes.size()));
  }
  SHARDPLAN_RETURN_IF_ERROR(check_result(type));
  return type;
}

Result<Types> parse_results(std::string_view text, Inputs inputs) {
  Types types;
  while (!text.empty()) {
    const std::size_t space = std::min(text.find(' '), text.size());
    if (text.substr(0, space) != kSkipped) {
      SHARDPLAN_ASSIGN_OR_RETURN(ir::TensorType type, parse_result(text.substr(0, space), inputs));
      types.push_back(std::move(type));
    }
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  if (types.empty()) {
    return invalid_input("a call needs at least one result");
  }
  return types;
}

/// The arguments name each operand exactly once, in order.
Status check_arguments(const ir::Attributes& attributes, std::size_t operands) {
  SHARDPLAN_ASSIGN_OR_RETURN(const std::vector<CallArgument> arguments,
                             parse_call_arguments(attributes.string("arguments")));
  std::vector<std::int64_t> named;
  for (const CallArgument& argument : arguments) {
    collect_operands(argument.value, named);
  }
  if (named.size() != operands) {
    return invalid_input(
        fmt::format("the arguments name {} operands, the op has {}", named.size(), operands));
  }
  for (std::size_t i = 0; i < named.size(); ++i) {
    if (named[i] != static_cast<std::int64_t>(i)) {
      return invalid_input("the arguments do not name the operands in order");
    }
  }
  return {};
}

Result<Types> infer_call(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes,
                                             {{"target", AttributeKind::kText},
                                              {"arguments", AttributeKind::kText},
                                              {"results", AttributeKind::kText},
                                              {"site", AttributeKind::kInteger, false}}));
  SHARDPLAN_RETURN_IF_ERROR(check_arguments(attributes, inputs.size()));
  return parse_results(attributes.string("results"), inputs);
}

/// All operands of the call, then the gradients of the results that `given` lists → the gradients
/// of the operands that `needed` lists.
Result<Types> infer_call_backward(Inputs inputs, const ir::Attributes& attributes) {
  SHARDPLAN_RETURN_IF_ERROR(check_attributes(attributes,
                                             {{"target", AttributeKind::kText},
                                              {"arguments", AttributeKind::kText},
                                              {"results", AttributeKind::kText},
                                              {"given", AttributeKind::kInts},
                                              {"needed", AttributeKind::kInts},
                                              {"site", AttributeKind::kInteger, false}}));
  const ir::IntList& given = attributes.ints("given");
  const ir::IntList& needed = attributes.ints("needed");
  if (given.empty() || needed.empty() || given.size() > inputs.size()) {
    return invalid_input("a gradient of a call needs gradients of results, and gives some");
  }
  const std::size_t operands = inputs.size() - given.size();
  SHARDPLAN_RETURN_IF_ERROR(check_arguments(attributes, operands));
  SHARDPLAN_ASSIGN_OR_RETURN(const Types results,
                             parse_results(attributes.string("results"), inputs.first(operands)));
  for (std::size_t g = 0; g < given.size(); ++g) {
    if (given[g] < 0 || static_cast<std::size_t>(given[g]) >= results.size()) {
      return invalid_input("a gradient of a result that does not exist");
    }
    SHARDPLAN_RETURN_IF_ERROR(check_type(
        inputs, operands + g, results[static_cast<std::size_t>(given[g])], "the gradient"));
  }
  Types types;
  for (const std::int64_t n : needed) {
    if (n < 0 || static_cast<std::size_t>(n) >= operands) {
      return invalid_input("a gradient of an operand that does not exist");
    }
    SHARDPLAN_RETURN_IF_ERROR(check_floating(inputs, static_cast<std::size_t>(n)));
    types.push_back(inputs[static_cast<std::size_t>(n)]);
  }
  return types;
}

bool always_draws(std::string_view name) {
  constexpr std::array<std::string_view, 20> kAlways{
      "rand",         "rand_like", "randn",      "randn_like",      "randint",
      "randint_like", "randperm",  "bernoulli",  "normal",          "normal_functional",
      "multinomial",  "poisson",   "binomial",   "uniform",         "exponential",
      "cauchy",       "geometric", "log_normal", "_standard_gamma", "_sample_dirichlet"};
  return std::find(kAlways.begin(), kAlways.end(), name) != kAlways.end();
}

// ---- axes and costs ----

bool has_axis(const DimAxes& dims, int axis) {
  return std::any_of(dims.begin(), dims.end(), [&](const std::vector<int>& dim) {
    return std::find(dim.begin(), dim.end(), axis) != dim.end();
  });
}

/// Along an axis the call is a family of independent calls, whose results stand side by side or are
/// added. Their gradients stand side by side in operands that have the axis, and add up in others.
AxisMap axes_call_backward(const OpView& op) {
  const ir::IntList& given = op.attributes.ints("given");
  const std::size_t operands = op.inputs.size() - given.size();
  const Result<Types> results =
      parse_results(op.attributes.string("results"), op.inputs.first(operands));
  SHARDPLAN_CHECK(results.has_value()) << results.error().text();
  const AxisMap forward = call_axis_map(OpView{op.inputs.first(operands), *results, op.attributes});
  AxisMap map;
  map.axes = forward.axes;
  map.inputs = forward.inputs;
  for (const std::int64_t g : given) {
    map.inputs.push_back(forward.results[static_cast<std::size_t>(g)]);
  }
  for (const std::int64_t n : op.attributes.ints("needed")) {
    map.results.push_back(forward.inputs[static_cast<std::size_t>(n)]);
  }
  for (std::size_t a = 0; a < map.axes.size(); ++a) {
    const bool everywhere =
        std::all_of(map.results.begin(), map.results.end(), [&](const DimAxes& dims) {
          return has_axis(dims, static_cast<int>(a));
        });
    map.axes[a].role = everywhere ? AxisRole::kFree : AxisRole::kSum;
  }
  PartialRule linear;
  for (std::size_t g = 0; g < given.size(); ++g) {
    linear.inputs.push_back(static_cast<int>(operands + g));
  }
  for (std::size_t r = 0; r < map.results.size(); ++r) {
    linear.results.push_back(static_cast<int>(r));
  }
  map.partials.push_back(std::move(linear));
  return map;
}

/// Nobody knows: one operation for every element that is read or made.
Flops flops_call(const OpView& op) {
  std::int64_t elements = 0;
  for (const ir::TensorType& type : op.inputs) {
    elements += type.numel();
  }
  return static_cast<Flops>(elements) + result_elements(op);
}

/// Of operators that are known; nothing else is sure to be taken.
Bytes workspace_call(const OpView& op) {
  return workspace_called(op).value_or(0);
}

/// The backward call runs the operator once more, and keeps its results and what it saves.
Bytes workspace_call_backward(const OpView& op) {
  const std::size_t operands = op.inputs.size() - op.attributes.ints("given").size();
  const Inputs given = op.inputs.subspan(operands);
  if (const std::optional<Bytes> known = workspace_called_backward(
          OpView{op.inputs.first(operands), op.results, op.attributes}, given)) {
    return *known;
  }
  Bytes bytes = 0;
  for (const ir::TensorType& type : given) {
    bytes += 2 * type.bytes();
  }
  return bytes;
}

/// A draw, or an operator that reads only the type of its operand: no gradient passes.
bool is_constant_to_autodiff(std::string_view target) {
  const std::string_view name = call_name(target);
  return always_draws(name) || name.ends_with("_like") || name.starts_with("new_");
}

void gradient_call(GradientBuilder& b) {
  if (is_constant_to_autodiff(b.attributes().string("target"))) {
    return;
  }
  std::vector<ir::ValueId> operands;
  ir::IntList given;
  ir::IntList needed;
  for (std::size_t i = 0; i < b.input_count(); ++i) {
    operands.push_back(b.input(i));
    if (b.needed(i) && ir::is_floating(b.type(b.input(i)).dtype)) {
      needed.push_back(static_cast<std::int64_t>(i));
    }
  }
  for (std::size_t r = 0; r < b.output_count(); ++r) {
    if (b.output_gradient(r).valid()) {
      given.push_back(static_cast<std::int64_t>(r));
      operands.push_back(b.output_gradient(r));
    }
  }
  if (needed.empty()) {
    return;
  }
  ir::Attributes attributes = b.attributes();
  attributes.set("given", given);
  attributes.set("needed", needed);
  const std::vector<ir::ValueId> gradients =
      b.emit_all("call_backward", std::move(operands), std::move(attributes));
  for (std::size_t n = 0; n < needed.size(); ++n) {
    b.set_input_gradient(static_cast<std::size_t>(needed[n]), gradients[n]);
  }
}

}  // namespace

std::string to_string(const std::vector<CallArgument>& arguments) {
  std::string out;
  for (const CallArgument& argument : arguments) {
    out += (out.empty() ? "" : ", ") + argument.name + "=" + to_string(argument.value);
  }
  return out;
}

Result<std::vector<CallArgument>> parse_call_arguments(std::string_view text) {
  return ArgumentParser(text).run();
}

std::string call_results_text(const std::vector<std::optional<ir::TensorType>>& results,
                              const Types& inputs) {
  const std::optional<ir::DType> floating = first_floating(inputs);
  std::string out;
  for (const std::optional<ir::TensorType>& type : results) {
    out += out.empty() ? "" : " ";
    if (!type.has_value()) {
      out += kSkipped;
      continue;
    }
    out += type->dtype == floating ? kSame : ir::dtype_name(type->dtype);
    out += list_sizes(type->shape);
  }
  return out;
}

std::vector<std::size_t> call_kept_results(std::string_view results) {
  std::vector<std::size_t> kept;
  for (std::size_t number = 0; !results.empty(); ++number) {
    const std::size_t space = std::min(results.find(' '), results.size());
    if (results.substr(0, space) != kSkipped) {
      kept.push_back(number);
    }
    results.remove_prefix(std::min(space + 1, results.size()));
  }
  return kept;
}

ir::Attributes call_attributes(std::string_view target,
                               const std::vector<CallArgument>& arguments,
                               const Types& inputs,
                               const std::vector<std::optional<ir::TensorType>>& results) {
  return {{"target", std::string(target)},
          {"arguments", to_string(arguments)},
          {"results", call_results_text(results, inputs)}};
}

std::string_view call_name(std::string_view target) {
  const std::size_t first = target.find('.');
  const std::size_t last = target.rfind('.');
  return first == std::string_view::npos || last <= first
             ? target
             : target.substr(first + 1, last - first - 1);
}

const CallValue* find_argument(const std::vector<CallArgument>& arguments, std::string_view name) {
  const auto found = std::find_if(
      arguments.begin(), arguments.end(), [&](const CallArgument& a) { return a.name == name; });
  return found == arguments.end() ? nullptr : &found->value;
}

bool draws_random_numbers(std::string_view target, const std::vector<CallArgument>& arguments) {
  // These draw when they train, and those with a probability when it is not 0.
  constexpr std::array<std::string_view, 14> kSometimes{
      "rrelu",
      "rrelu_with_noise",
      "alpha_dropout",
      "feature_dropout",
      "feature_alpha_dropout",
      "native_dropout",
      "lstm",
      "gru",
      "rnn_tanh",
      "rnn_relu",
      "scaled_dot_product_attention",
      "_scaled_dot_product_flash_attention_for_cpu",
      "_fused_dropout",
      "rrelu_with_noise_functional"};
  const std::string_view name = call_name(target);
  if (always_draws(name)) {
    return true;
  }
  if (std::find(kSometimes.begin(), kSometimes.end(), name) == kSometimes.end()) {
    return false;
  }
  const CallValue* const train = find_argument(arguments, "train");
  const bool trains =
      train == nullptr || train->kind != CallValue::Kind::kBool || train->integer != 0;
  for (const std::string_view probability : {"dropout", "dropout_p", "p"}) {
    if (const CallValue* const value = find_argument(arguments, probability)) {
      return trains && (value->real != 0 || value->integer != 0);
    }
  }
  return trains && name.find("scaled_dot_product") == std::string_view::npos;
}

std::vector<OpDef> call_ops() {
  return {
      {.name = "call",
       .summary = "an operator of PyTorch by its name",
       .infer = infer_call,
       .axes = call_axis_map,
       .flops = flops_call,
       .workspace = workspace_call,
       .gradient = gradient_call},
      {.name = "call_backward",
       .summary = "gradient of a call, by PyTorch's automatic differentiation",
       .infer = infer_call_backward,
       .axes = axes_call_backward,
       .flops = flops_call,
       .workspace = workspace_call_backward},
  };
}

}  // namespace shardplan::ops
