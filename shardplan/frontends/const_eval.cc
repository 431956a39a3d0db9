#include "shardplan/frontends/const_eval.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "shardplan/frontends/index_space.h"

namespace shardplan::frontends {

using ir::Shape;
using ir::TensorType;

namespace {

/// The band that all operands which are not uniform have; nothing when there is none, or several.
std::optional<Band> common_band(const TensorType& type, std::span<const ConstTensor> operands) {
  std::optional<Band> common;
  for (const ConstTensor& operand : operands) {
    if (operand.uniform().has_value()) {
      continue;
    }
    if (!operand.band().has_value()) {
      return std::nullopt;
    }
    const Band band = ordered(*operand.expand(type.shape).band());
    if (common.has_value() && (common->row != band.row || common->column != band.column ||
                               common->low != band.low || common->high != band.high)) {
      return std::nullopt;
    }
    common = band;
  }
  return common;
}

}  // namespace

std::optional<ConstTensor> elementwise(
    const TensorType& type,
    std::span<const ConstTensor> operands,
    const std::function<Number(std::span<const Number>)>& function) {
  const bool fit = std::all_of(operands.begin(), operands.end(), [&](const ConstTensor& operand) {
    return operand.expands_to(type.shape);
  });
  if (!fit) {
    return std::nullopt;
  }
  if (const std::optional<Band> band = common_band(type, operands)) {
    std::vector<Number> inside;
    std::vector<Number> outside;
    for (const ConstTensor& operand : operands) {
      const std::optional<Number> value = operand.uniform();
      inside.push_back(value.value_or(operand.inside()));
      outside.push_back(value.value_or(operand.outside()));
    }
    return is_narrow(type.dtype) ? std::nullopt
                                 : std::optional(ConstTensor::banded(
                                       type, *band, function(inside), function(outside)));
  }
  std::vector<ConstTensor> wide;
  Shape compact(type.shape.size(), 1);
  for (const ConstTensor& operand : operands) {
    const std::optional<ConstTensor> plain = operand.dense();
    if (!plain.has_value()) {
      return std::nullopt;
    }
    wide.push_back(plain->expand(type.shape));
    for (std::size_t d = 0; d < compact.size(); ++d) {
      compact[d] = wide.back().varies(d) ? type.shape[d] : compact[d];
    }
  }
  const std::optional<std::size_t> count = element_count(compact, ConstTensor::kMaxElements);
  if (!count.has_value()) {
    return std::nullopt;
  }
  std::vector<Number> elements;
  elements.reserve(*count);
  std::vector<Number> values(wide.size());
  for_each_index(compact, [&](const Shape& index) {
    for (std::size_t k = 0; k < wide.size(); ++k) {
      values[k] = wide[k].at(index);
    }
    elements.push_back(function(values));
  });
  return from_compact(type, compact, std::move(elements));
}

namespace {

/// The value of each diagonal index[row] - index[column] from 1 - columns to rows - 1; nothing when
/// one of them has several.
std::optional<std::vector<Number>> diagonals(const std::vector<Number>& elements,
                                             std::int64_t rows,
                                             std::int64_t columns) {
  std::vector<std::optional<Number>> values(static_cast<std::size_t>(rows + columns - 1));
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      std::optional<Number>& value = values[static_cast<std::size_t>(i - j + columns - 1)];
      const Number& element = elements[static_cast<std::size_t>(i * columns + j)];
      if (value.has_value() && !(*value == element)) {
        return std::nullopt;
      }
      value = element;
    }
  }
  std::vector<Number> out;
  out.reserve(values.size());
  for (const std::optional<Number>& value : values) {
    out.push_back(value.value_or(Number{}));  // every diagonal has an element
  }
  return out;
}

}  // namespace

std::optional<ConstTensor> recognise_band(const ConstTensor& x) {
  std::vector<std::size_t> dims;
  for (std::size_t d = 0; d < x.shape().size(); ++d) {
    if (x.varies(d)) {
      dims.push_back(d);
    }
  }
  const std::optional<std::vector<Number>> elements =
      dims.size() == 2 && !x.band().has_value() ? x.compact_elements() : std::nullopt;
  if (!elements.has_value()) {
    return std::nullopt;
  }
  const std::int64_t columns = x.shape()[dims[1]];
  const auto values = diagonals(*elements, x.shape()[dims[0]], columns);
  if (!values.has_value()) {
    return std::nullopt;
  }
  std::vector<std::size_t> steps;  // where the value changes
  for (std::size_t k = 1; k < values->size(); ++k) {
    if (!((*values)[k] == (*values)[k - 1])) {
      steps.push_back(k);
    }
  }
  const bool two_sided = steps.size() == 2 && values->front() == values->back();
  if (steps.size() != 1 && !two_sided) {
    return std::nullopt;
  }
  Band band{.row = dims[0], .column = dims[1], .low = std::nullopt, .high = std::nullopt};
  band.low = static_cast<std::int64_t>(steps[0]) - (columns - 1);
  if (two_sided) {
    band.high = static_cast<std::int64_t>(steps[1]) - columns;
  }
  return ConstTensor::banded(x.type(), band, (*values)[steps[0]], values->front());
}

std::optional<ConstTensor> cumulative_sum(const TensorType& type,
                                          const ConstTensor& x,
                                          std::size_t dim) {
  const std::optional<ConstTensor> plain = x.dense();
  if (!plain.has_value()) {
    return std::nullopt;
  }
  Shape compact = plain->compact_shape();
  compact[dim] = type.shape[dim];
  const std::optional<std::size_t> count = element_count(compact, ConstTensor::kMaxElements);
  if (!count.has_value()) {
    return std::nullopt;
  }
  std::int64_t inner = 1;
  for (std::size_t d = dim + 1; d < compact.size(); ++d) {
    inner *= compact[d];
  }
  std::vector<Number> elements;
  elements.reserve(*count);
  for_each_index(compact, [&](const Shape& index) {
    Number value = plain->at(index);
    if (index[dim] > 0) {
      const Number& before = elements[elements.size() - static_cast<std::size_t>(inner)];
      value =
          value.real ? Number::of(value.d + before.d) : Number::of(wrapping_sum(value.i, before.i));
    }
    elements.push_back(value);
  });
  return from_compact(type, compact, std::move(elements));
}

std::optional<ConstTensor> concatenate(const TensorType& type,
                                       std::span<const ConstTensor> parts,
                                       std::size_t dim) {
  Shape compact(type.shape.size(), 1);
  compact[dim] = type.shape[dim];
  std::vector<ConstTensor> plain;
  for (const ConstTensor& part : parts) {
    const std::optional<ConstTensor> dense = part.dense();
    if (!dense.has_value() || dense->shape().size() != compact.size()) {
      return std::nullopt;
    }
    for (std::size_t d = 0; d < compact.size(); ++d) {
      compact[d] = d != dim && dense->varies(d) ? type.shape[d] : compact[d];
    }
    plain.push_back(*dense);
  }
  const std::optional<std::size_t> count = element_count(compact, ConstTensor::kMaxElements);
  if (!count.has_value()) {
    return std::nullopt;
  }
  std::vector<Number> elements;
  elements.reserve(*count);
  for_each_index(compact, [&](const Shape& index) {
    Shape local = index;
    std::size_t part = 0;
    while (local[dim] >= plain[part].shape()[dim]) {
      local[dim] -= plain[part++].shape()[dim];
    }
    elements.push_back(plain[part].at(local));
  });
  return from_compact(type, compact, std::move(elements));
}

std::optional<ConstTensor> gather(const TensorType& type,
                                  const ConstTensor& x,
                                  std::span<const ConstTensor> indices) {
  const std::size_t kept = x.shape().size() - indices.size();
  const std::size_t chosen = type.shape.size() - kept;
  const Shape index_shape(type.shape.begin(),
                          type.shape.begin() + static_cast<std::ptrdiff_t>(chosen));
  const std::optional<ConstTensor> source = x.dense();
  if (!source.has_value()) {
    return std::nullopt;
  }
  Shape compact(type.shape.size(), 1);
  std::vector<ConstTensor> wide;
  for (std::size_t k = 0; k < indices.size(); ++k) {
    const std::optional<ConstTensor> plain = indices[k].dense();
    if (!plain.has_value() || !plain->expands_to(index_shape)) {
      return std::nullopt;
    }
    wide.push_back(plain->expand(index_shape));
    // Along a dimension in which x does not vary, the index makes no difference.
    for (std::size_t d = 0; source->varies(k) && d < chosen; ++d) {
      compact[d] = wide.back().varies(d) ? type.shape[d] : compact[d];
    }
  }
  for (std::size_t d = 0; d < kept; ++d) {
    compact[chosen + d] = source->varies(indices.size() + d) ? type.shape[chosen + d] : 1;
  }
  const std::optional<std::size_t> count = element_count(compact, ConstTensor::kMaxElements);
  if (!count.has_value()) {
    return std::nullopt;
  }
  std::vector<Number> elements;
  elements.reserve(*count);
  bool in_range = true;
  Shape from(x.shape().size(), 0);
  for_each_index(compact, [&](const Shape& index) {
    for (std::size_t k = 0; k < wide.size(); ++k) {
      std::int64_t i = wide[k].at(std::span(index).first(chosen)).as_int();
      i += i < 0 ? x.shape()[k] : 0;
      in_range = in_range && i >= 0 && i < x.shape()[k];
      from[k] = std::clamp<std::int64_t>(i, 0, x.shape()[k] - 1);
    }
    std::copy(index.begin() + static_cast<std::ptrdiff_t>(chosen),
              index.end(),
              from.begin() + static_cast<std::ptrdiff_t>(wide.size()));
    elements.push_back(source->at(from));
  });
  return in_range ? from_compact(type, compact, std::move(elements)) : std::nullopt;
}

}  // namespace shardplan::frontends
