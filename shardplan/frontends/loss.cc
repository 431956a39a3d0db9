#include "shardplan/frontends/loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>
#include <vector>

#include "shardplan/frontends/composites.h"
#include "shardplan/frontends/materialize.h"
#include "shardplan/support/text.h"

namespace shardplan::frontends {

using ir::Shape;
using ir::TensorType;
using ir::ValueId;

namespace {

const std::vector<std::string>& loss_names() {
  static const std::vector<std::string> names{
      "cross_entropy", "nll", "mse", "l1", "bce", "bce_with_logits"};
  return names;
}

bool has_classes(const std::string& name) {
  return name == "cross_entropy" || name == "nll";
}

Error wrong_key(const std::string& key, const std::string& loss) {
  std::vector<std::string> keys{"output"};
  if (has_classes(loss)) {
    keys.insert(keys.end(), {"dim", "ignore"});
  }
  if (loss == "cross_entropy") {
    keys.emplace_back("smoothing");
  }
  Error error = invalid_input(fmt::format("{} has no key '{}'", loss, key), "--loss");
  std::string list;
  for (const std::string& known : keys) {
    list += (list.empty() ? "" : ", ") + known;
  }
  const std::string close = suggest(key, keys);
  error.notes.push_back(close.empty() ? "its keys are " + list
                                      : fmt::format("did you mean '{}'?", close));
  return error;
}

template <class T>
bool read_number(const std::string& text, T& out) {
  const char* const end = text.data() + text.size();
  const auto [rest, failed] = std::from_chars(text.data(), end, out);
  return failed == std::errc{} && rest == end;
}

Status set_key(LossSpec& loss, const std::string& key, const std::string& value) {
  bool good = true;
  if (key == "output") {
    loss.output = value;
    good = !value.empty();
  } else if (key == "dim" && has_classes(loss.name)) {
    good = read_number(value, loss.dim);
  } else if (key == "ignore" && has_classes(loss.name)) {
    good = read_number(value, loss.ignore);
  } else if (key == "smoothing" && loss.name == "cross_entropy") {
    good = read_number(value, loss.smoothing) && loss.smoothing >= 0 && loss.smoothing < 1;
  } else {
    return wrong_key(key, loss.name);
  }
  if (!good) {
    return invalid_input(fmt::format("'{}' is no value of {}", value, key), "--loss");
  }
  return {};
}

/// Moves dimension `dim` to the end.
ValueId dim_last(Builder& b, ValueId x, std::size_t dim) {
  ir::IntList permutation;
  const std::size_t rank = b.type(x).shape.size();
  for (std::size_t d = 0; d < rank; ++d) {
    if (d != dim) {
      permutation.push_back(static_cast<std::int64_t>(d));
    }
  }
  permutation.push_back(static_cast<std::int64_t>(dim));
  return dim + 1 == rank ? x : permuted(b, x, permutation);
}

ValueId class_loss(Builder& b, const LossSpec& loss, ValueId prediction, const std::string& name) {
  const TensorType type = b.type(prediction);
  const std::int64_t dim = loss.dim < 0 ? loss.dim + type.rank() : loss.dim;
  if (dim < 0 || dim >= type.rank()) {
    b.fail(invalid_input(
        fmt::format(
            "the output is {}, which has no dimension {} of classes", to_string(type), loss.dim),
        "--loss"));
    return {};
  }
  ir::Value target;
  target.kind = ir::ValueKind::kInput;
  target.name = name;
  target.type = {ir::DType::kInt64, type.shape};
  target.type.shape.erase(target.type.shape.begin() + dim);
  const ValueId labels = b.add_value(std::move(target));
  const ValueId scores = dim_last(b, prediction, static_cast<std::size_t>(dim));
  const CrossEntropy options{.ignore_index = loss.ignore,
                             .reduction = Reduction::kMean,
                             .label_smoothing = loss.smoothing};
  return loss.name == "nll" ? negative_log_likelihood(b, scores, labels, options)
                            : cross_entropy(b, scores, labels, options);
}

/// -(t log p + (1 - t) log(1 - p)), the logarithms at least -100 as in PyTorch.
ValueId binary_cross_entropy(Builder& b, ValueId p, ValueId target) {
  const auto bounded_log = [&](ValueId x) {
    return b.emit("maximum_scalar", {b.emit("log", {x})}, {{"value", -100.0}});
  };
  const auto complement = [&](ValueId x) {
    return b.emit("add_scalar", {b.emit("neg", {x})}, {{"value", 1.0}});
  };
  const ValueId hit = b.emit("mul", {target, bounded_log(p)});
  const ValueId miss = b.emit("mul", {complement(target), bounded_log(complement(p))});
  return b.emit("neg", {b.emit("add", {hit, miss})});
}

}  // namespace

Result<LossSpec> parse_loss(const std::string& text) {
  LossSpec loss;
  const std::size_t colon = std::min(text.find(':'), text.size());
  loss.name = text.substr(0, colon);
  const std::vector<std::string>& names = loss_names();
  if (std::find(names.begin(), names.end(), loss.name) == names.end()) {
    Error error = invalid_input(fmt::format("there is no loss '{}'", loss.name), "--loss");
    const std::string close = suggest(loss.name, names);
    error.notes.push_back(close.empty()
                              ? "losses are cross_entropy, nll, mse, l1, bce and bce_with_logits; "
                                "none where the model's first output is its loss"
                              : fmt::format("did you mean '{}'?", close));
    return error;
  }
  for (std::size_t start = colon + 1; start <= text.size();) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    const std::string part = text.substr(start, end - start);
    const std::size_t equals = std::min(part.find('='), part.size());
    const std::string value = equals < part.size() ? part.substr(equals + 1) : std::string();
    SHARDPLAN_RETURN_IF_ERROR(set_key(loss, part.substr(0, equals), value));
    start = end + 1;
  }
  return loss;
}

ValueId add_loss(Builder& b, const LossSpec& loss, ValueId prediction, const std::string& target) {
  const TensorType type = b.type(prediction);
  if (!b.ok()) {
    return {};
  }
  if (!ir::is_floating(type.dtype)) {
    b.fail(invalid_input(
        fmt::format("the output is {}, a floating type is needed for a loss", to_string(type)),
        "--loss"));
    return {};
  }
  b.set_layer("");
  if (has_classes(loss.name)) {
    return class_loss(b, loss, prediction, target);
  }
  ir::Value value;
  value.kind = ir::ValueKind::kInput;
  value.name = target;
  value.type = type;
  const ValueId wanted = b.add_value(std::move(value));
  if (loss.name == "bce") {
    return mean_all(b, binary_cross_entropy(b, prediction, wanted));
  }
  if (loss.name == "bce_with_logits") {
    return mean_all(b, binary_cross_entropy_with_logits(b, prediction, wanted));
  }
  const ValueId difference = b.emit("sub", {prediction, wanted});
  return mean_all(
      b,
      loss.name == "mse" ? b.emit("mul", {difference, difference}) : b.emit("abs", {difference}));
}

}  // namespace shardplan::frontends
