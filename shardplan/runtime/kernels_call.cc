// Operators without a definition of their own: PyTorch's dispatcher runs them by name, and its
// automatic differentiation gives their gradients.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>

#include "shardplan/ops/call.h"
#include "shardplan/runtime/kernel.h"
#include "shardplan/runtime/random.h"

namespace shardplan::runtime {
namespace {

using ops::CallArgument;
using ops::CallValue;
using Tensors = std::vector<at::Tensor>;

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what);
}

/// "aten.cumsum.default" is "aten::cumsum" with the overload "".
std::optional<c10::OperatorHandle> find_operator(const std::string& target) {
  const std::size_t first = target.find('.');
  const std::size_t last = target.rfind('.');
  if (first == std::string::npos || last <= first) {
    return std::nullopt;
  }
  const std::string overload = target.substr(last + 1);
  return c10::Dispatcher::singleton().findSchema(
      {target.substr(0, first) + "::" + target.substr(first + 1, last - first - 1),
       overload == "default" ? "" : overload});
}

/// An operator's schema and its arguments, ready to run on some operands.
class Call {
 public:
  explicit Call(const ir::Attributes& attributes)
      : target_(attributes.string("target")), handle_(find(target_)) {
    Result<std::vector<CallArgument>> arguments =
        ops::parse_call_arguments(attributes.string("arguments"));
    if (!arguments.has_value()) {
      fail(arguments.error().text());
    }
    arguments_ = *std::move(arguments);
    if (attributes.has("site")) {
      site_ = attributes.integer("site");
    }
  }

  /// All result tensors one after another, lists taken apart.
  [[nodiscard]] Tensors run(const Tensors& operands, const RandomState& random) const {
    torch::jit::Stack stack;
    for (const c10::Argument& parameter : handle_.schema().arguments()) {
      const CallValue* const given = ops::find_argument(arguments_, parameter.name());
      if (given != nullptr) {
        stack.push_back(value(*given, *parameter.type(), operands));
        if (parameter.alias_info() != nullptr && parameter.alias_info()->isWrite() &&
            stack.back().isTensor()) {
          stack.back() = stack.back().toTensor().clone();  // it must not change for others
        }
      } else if (const std::optional<c10::IValue>& fallback = parameter.default_value();
                 fallback.has_value()) {
        stack.push_back(*fallback);
      } else if (parameter.type()->kind() == c10::TypeKind::OptionalType) {
        stack.emplace_back();
      } else {
        fail("argument '" + parameter.name() + "' of " + target_ + " is missing");
      }
    }
    if (site_.has_value()) {
      const std::lock_guard<std::mutex> one_at_a_time(generator_mutex());
      at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
      generator.set_current_seed(draw_seed(random, *site_));
      handle_.callBoxed(stack);
    } else {
      handle_.callBoxed(stack);
    }
    Tensors results;
    for (const c10::IValue& result : stack) {
      append(result, results);
    }
    return results;
  }

 private:
  static std::mutex& generator_mutex() {
    static std::mutex mutex;  // PyTorch has one generator a process
    return mutex;
  }

  static std::uint64_t draw_seed(const RandomState& random, std::int64_t site) {
    constexpr std::uint64_t kMix = 0x9E3779B97F4A7C15ULL;
    std::uint64_t seed = random.seed;
    for (const std::int64_t part : {random.step, random.microbatch, site}) {
      seed = (seed ^ static_cast<std::uint64_t>(part)) * kMix;
      seed ^= seed >> 29U;
    }
    return seed;
  }

  static c10::OperatorHandle find(const std::string& target) {
    const std::optional<c10::OperatorHandle> handle = find_operator(target);
    if (!handle.has_value()) {
      fail("PyTorch has no operator " + target);
    }
    return *handle;
  }

  static void append(const c10::IValue& value, Tensors& out) {
    if (value.isTensor()) {
      out.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) {
        out.push_back(tensor);
      }
    } else {
      fail("a result that is no tensor");
    }
  }

  /// A number where a tensor is expected: like a literal, it does not widen the other operand.
  static at::Tensor number_tensor(const at::Scalar& number) {
    const at::ScalarType type = number.isBoolean()         ? at::kBool
                                : number.isIntegral(false) ? at::kLong
                                                           : at::kDouble;
    at::Tensor tensor = at::scalar_tensor(number, at::TensorOptions(type));
    tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    return tensor;
  }

  [[nodiscard]] c10::IValue value(const CallValue& given,
                                  const c10::Type& type,
                                  const Tensors& operands) const {
    if (const auto* const optional = type.castRaw<c10::OptionalType>()) {
      return given.kind == CallValue::Kind::kNone
                 ? c10::IValue()
                 : value(given, *optional->getElementType(), operands);
    }
    switch (given.kind) {
      case CallValue::Kind::kNone:
        return {};
      case CallValue::Kind::kTensor:
        return operands.at(static_cast<std::size_t>(given.integer));
      case CallValue::Kind::kInt:
        if (type.kind() == c10::TypeKind::TensorType) {
          return number_tensor(given.integer);
        }
        if (type.kind() == c10::TypeKind::FloatType) {
          return static_cast<double>(given.integer);
        }
        if (type.kind() == c10::TypeKind::ListType) {  // an integer may stand for a list of one
          return c10::List<std::int64_t>({given.integer});
        }
        return given.integer;
      case CallValue::Kind::kReal:
        return type.kind() == c10::TypeKind::TensorType ? c10::IValue(number_tensor(given.real))
                                                        : c10::IValue(given.real);
      case CallValue::Kind::kBool:
        return type.kind() == c10::TypeKind::TensorType
                   ? c10::IValue(number_tensor(given.integer != 0))
                   : c10::IValue(given.integer != 0);
      case CallValue::Kind::kText:
        return given.text;
      case CallValue::Kind::kDType:
        return static_cast<std::int64_t>(
            scalar_type(ir::parse_dtype(given.text).value_or(ir::DType::kFloat32)));
      case CallValue::Kind::kList:
        break;
    }
    return list(given, type, operands);
  }

  [[nodiscard]] c10::IValue list(const CallValue& given,
                                 const c10::Type& type,
                                 const Tensors& operands) const {
    const auto* const list_type = type.castRaw<c10::ListType>();
    if (list_type == nullptr) {
      fail("an argument of " + target_ + " is a list where none is expected");
    }
    const c10::impl::GenericList out(list_type->getElementType());
    for (const CallValue& entry : given.list) {
      out.push_back(value(entry, *list_type->getElementType(), operands));
    }
    return out;
  }

  std::string target_;
  c10::OperatorHandle handle_;
  std::vector<CallArgument> arguments_;
  std::optional<std::int64_t> site_;
};

/// Contiguous, with the expected element type, in storage that no operand shares.
at::Tensor as_result(at::Tensor tensor, const ir::TensorType& type, const Tensors& operands) {
  // PyTorch has tensors of zeros that hold no memory: the gradient of sgn is one.
  if (!tensor.defined() || tensor._is_zerotensor()) {
    return at::zeros(type.shape, at::TensorOptions(scalar_type(type.dtype)));
  }
  if (tensor.sizes() != at::IntArrayRef(type.shape)) {
    fail("the operator made a tensor of another shape than the model says");
  }
  tensor = tensor.detach().resolve_neg().to(scalar_type(type.dtype)).contiguous();
  for (const at::Tensor& operand : operands) {
    if (operand.is_alias_of(tensor)) {
      return tensor.clone();
    }
  }
  // A part of a larger tensor would keep all of it.
  const bool whole = tensor.storage().nbytes() == tensor.nbytes();
  return whole ? tensor : tensor.clone();
}

/// The operator's results that the op has.
Tensors kept(const ir::Attributes& attributes, const Tensors& all) {
  Tensors out;
  for (const std::size_t number : ops::call_kept_results(attributes.string("results"))) {
    if (number >= all.size()) {
      fail(attributes.string("target") + " gave too few results");
    }
    out.push_back(all[number]);
  }
  return out;
}

Tensors call(const KernelCall& call) {
  const Tensors made = kept(call.attributes, Call(call.attributes).run(call.inputs, call.random));
  Tensors results;
  Tensors taken = call.inputs;
  for (std::size_t r = 0; r < call.results.size(); ++r) {
    results.push_back(as_result(made[r], call.results[r], taken));
    taken.push_back(results.back());
  }
  return results;
}

/// Runs the operator again, recording, and differentiates it.
Tensors call_backward(const KernelCall& call) {
  const ir::IntList& given = call.attributes.ints("given");
  const ir::IntList& needed = call.attributes.ints("needed");
  const std::size_t count = call.inputs.size() - given.size();
  Tensors operands;
  for (std::size_t i = 0; i < count; ++i) {
    operands.push_back(call.inputs[i].detach());
  }
  Tensors leaves;
  for (const std::int64_t n : needed) {
    const at::Tensor& operand = operands[static_cast<std::size_t>(n)];
    operand.requires_grad_(true);
    leaves.push_back(operand);
  }
  Tensors outputs;
  Tensors output_gradients;
  Tensors gradients;
  {
    const at::AutoGradMode recording(true);
    const Tensors made = kept(call.attributes, Call(call.attributes).run(operands, call.random));
    for (std::size_t g = 0; g < given.size(); ++g) {
      const at::Tensor& output = made.at(static_cast<std::size_t>(given[g]));
      if (output.requires_grad()) {
        outputs.push_back(output);
        output_gradients.push_back(call.inputs[count + g].to(output.scalar_type()));
      }
    }
    gradients = outputs.empty() ? Tensors(leaves.size())
                                : torch::autograd::grad(
                                      outputs, leaves, output_gradients, std::nullopt, false, true);
  }
  Tensors results;
  Tensors taken = call.inputs;
  for (std::size_t r = 0; r < call.results.size(); ++r) {
    results.push_back(as_result(gradients[r], call.results[r], taken));
    taken.push_back(results.back());
  }
  return results;
}

}  // namespace

Status check_runnable(const ir::Op& op) {
  if (find_kernel(op.name) == nullptr) {
    return Error{ErrorCode::kUnsupported, "the runtime has no kernel", ops::describe(op), {}};
  }
  const bool calls = op.name == "call" || op.name == "call_backward";
  if (!calls || find_operator(op.attributes.string("target")).has_value()) {
    return {};
  }
  return Error{
      ErrorCode::kUnsupported,
      "PyTorch has no operator of this name here: code that was not loaded registers it",
      ops::describe(op),
      {"train in a Python process that has imported it, by shardplan.parallelize, or write "
       "the model without it"}};
}

std::vector<KernelEntry> call_kernels() {
  return {{"call", call}, {"call_backward", call_backward}};
}

}  // namespace shardplan::runtime
