#include "shardplan/frontends/materialize.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <utility>

#include "shardplan/frontends/composites.h"

namespace shardplan::frontends {

using ir::DType;
using ir::IntList;
using ir::Shape;
using ir::ValueId;

namespace {

/// Attributes hold doubles: larger integers would be rounded.
constexpr double kExactIntegers = 9007199254740992.0;

ValueId materialize_band(Builder& b, const ConstTensor& constant) {
  const Shape compact = constant.compact_shape();
  const std::optional<Band> truth = constant.true_band();
  const Band band = truth.value_or(constant.band().value_or(Band{}));
  const ValueId mask = reshape_to(
      b, band_mask(b, compact[band.row], compact[band.column], band.low, band.high), compact);
  if (truth.has_value()) {
    return mask;
  }
  const auto value = [&](const Number& number) {
    return materialize_compact(b, ConstTensor::full({constant.type().dtype, {}}, number));
  };
  const ValueId inside = value(constant.inside());
  const ValueId outside = value(constant.outside());
  return b.emit("where", {mask, inside, outside});
}

}  // namespace

ValueId materialize_compact(Builder& b, const ConstTensor& constant) {
  const Shape compact = constant.compact_shape();
  const DType dtype = constant.type().dtype;
  const std::string dtype_text(ir::dtype_name(dtype));
  if (!ir::is_valid({dtype, compact})) {
    b.fail(unsupported(
        fmt::format("an operand {} without elements is not supported", to_string(constant.type())),
        b.layer()));
    return {};
  }
  const std::optional<Number> value = constant.uniform();
  if (value.has_value() && (value->real || std::abs(value->as_double()) <= kExactIntegers)) {
    return b.emit(
        "full", {}, {{"shape", compact}, {"value", value->as_double()}, {"dtype", dtype_text}});
  }
  if (constant.band().has_value()) {
    return materialize_band(b, constant);
  }
  const std::optional<IndexLike> index = constant.index_like();
  if (index.has_value()) {
    const ValueId iota = b.emit("iota",
                                {},
                                {{"shape", compact},
                                 {"dim", static_cast<std::int64_t>(index->dim)},
                                 {"dtype", dtype_text}});
    return index->start == 0
               ? iota
               : b.emit("add_scalar", {iota}, {{"value", static_cast<double>(index->start)}});
  }
  std::optional<std::vector<std::byte>> bytes = constant.compact_bytes();
  if (!bytes.has_value()) {
    b.fail(unsupported(
        fmt::format("a constant operand {} is too large to hold", to_string(constant.type())),
        b.layer()));
    return {};
  }
  ir::Value data;
  data.kind = ir::ValueKind::kConstant;
  data.type = {dtype, compact};
  data.data = std::make_shared<const std::vector<std::byte>>(std::move(*bytes));
  return b.add_value(std::move(data));
}

ValueId materialize(Builder& b, const ConstTensor& constant) {
  return broadcast_to(b, materialize_compact(b, constant), constant.shape());
}

ValueId cast_to(Builder& b, ValueId x, DType dtype) {
  if (!b.ok() || b.type(x).dtype == dtype) {
    return x;
  }
  return b.emit("cast", {x}, {{"dtype", std::string(ir::dtype_name(dtype))}});
}

ValueId reshape_to(Builder& b, ValueId x, const Shape& shape) {
  if (!b.ok() || b.type(x).shape == shape) {
    return x;
  }
  return b.emit("reshape", {x}, {{"shape", IntList(shape)}});
}

ValueId broadcast_to(Builder& b, ValueId x, const Shape& shape) {
  if (!b.ok() || b.type(x).shape == shape) {
    return x;
  }
  return b.emit("broadcast", {x}, {{"shape", IntList(shape)}});
}

ValueId permuted(Builder& b, ValueId x, const IntList& permutation) {
  return b.emit("transpose", {x}, {{"permutation", permutation}});
}

ValueId sliced(Builder& b,
               ValueId x,
               std::size_t dim,
               std::int64_t start,
               std::int64_t end,
               std::int64_t step) {
  if (!b.ok() || (start == 0 && step == 1 && end == b.type(x).shape[dim])) {
    return x;
  }
  return b.emit(
      "slice",
      {x},
      {{"dim", static_cast<std::int64_t>(dim)}, {"start", start}, {"end", end}, {"step", step}});
}

}  // namespace shardplan::frontends
