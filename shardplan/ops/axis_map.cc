#include "shardplan/ops/axis_map.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <limits>
#include <utility>

#include "shardplan/support/result.h"

namespace shardplan::ops {
namespace {

/// What the text says about an axis before sizes are known.
struct NamedAxis {
  std::string_view name;
  AxisRole role = AxisRole::kFree;
  bool marked_sum = false;
  bool positional = false;
  bool whole = false;
  bool slides = false;
  bool in_result = false;
  std::int64_t size = 0;  ///< 0 = not known yet
};

/// Parses the text of an axis map and resolves the sizes of its axes from the types.
class AxisMapParser {
 public:
  AxisMapParser(std::string_view text,
                std::span<const ir::TensorType> inputs,
                std::span<const ir::TensorType> results)
      : text_(text), inputs_(inputs), results_(results) {}

  AxisMap build() {
    const std::size_t arrow = text_.find("->");
    SHARDPLAN_CHECK(arrow != std::string_view::npos) << "no -> in axis map '" << text_ << "'";
    input_dims_ = parse_side(text_.substr(0, arrow), inputs_.size(), false);
    result_dims_ = parse_side(text_.substr(arrow + 2), results_.size(), true);
    resolve_sizes();
    return assemble();
  }

 private:
  std::vector<DimAxes> parse_side(std::string_view side, std::size_t count, bool is_result) {
    std::vector<DimAxes> tensors;
    if (count == 0) {
      return tensors;
    }
    std::size_t start = 0;
    while (true) {
      const std::size_t comma = side.find(',', start);
      tensors.push_back(parse_tensor(side.substr(start, comma - start), is_result));
      if (comma == std::string_view::npos) {
        break;
      }
      start = comma + 1;
    }
    SHARDPLAN_CHECK(tensors.size() == count)
        << "axis map '" << text_ << "' has " << tensors.size() << " tensors, the op " << count;
    return tensors;
  }

  DimAxes parse_tensor(std::string_view tensor, bool is_result) {
    DimAxes dims;
    bool merged = false;
    std::size_t i = 0;
    while (i < tensor.size()) {
      const char c = tensor[i];
      if (c == ' ' || c == '(' || c == ')') {
        if (c == '(') {
          dims.emplace_back();
        }
        merged = c == '(' || (merged && c != ')');
        ++i;
        continue;
      }
      std::size_t end = i;
      while (end < tensor.size() && tensor[end] != ' ' && tensor[end] != ')') {
        ++end;
      }
      if (!merged) {
        dims.emplace_back();
      }
      const std::string_view token = tensor.substr(i, end - i);
      if (token != "*") {
        dims.back().push_back(parse_axis(token, is_result));
      }
      i = end;
    }
    return dims;
  }

  int parse_axis(std::string_view token, bool is_result) {
    const char mark = token.front();
    const bool whole = mark == '[';
    if (whole) {
      token.remove_suffix(1);
    }
    if (std::isalnum(static_cast<unsigned char>(mark)) == 0) {
      token.remove_prefix(1);
    }
    const int index = intern(token);
    NamedAxis& named = axis(index);
    named.whole = named.whole || whole;
    named.in_result = named.in_result || is_result;
    named.marked_sum = named.marked_sum || mark == '+';
    named.positional = named.positional || mark == '@' || mark == '?';
    named.slides = named.slides || mark == '~';
    if (mark == '?') {
      named.role = AxisRole::kLookup;
    } else if (mark == '^') {
      named.role = AxisRole::kMax;
    }
    return index;
  }

  int intern(std::string_view name) {
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      if (axes_[i].name == name) {
        return static_cast<int>(i);
      }
    }
    axes_.push_back(NamedAxis{.name = name});
    return static_cast<int>(axes_.size()) - 1;
  }

  /// Finds the sizes of all axes. Dimensions of size 1 say little, since they may be broadcast: an
  /// axis that one of them names alone, and that nothing makes larger, has size 1 (one key head:
  /// the r of "(g r)" is then all heads); last, so have the parts of merged ones (one head at all).
  void resolve_sizes() {
    resolve_all();
    set_unknown_to_one(1);
    resolve_all();
    set_unknown_to_one(std::numeric_limits<std::size_t>::max());
    resolve_all();
  }

  /// Sets the unknown axes of dimensions of at most `most` axes to 1. After resolve_all, a
  /// dimension of one unknown axis has size 1.
  void set_unknown_to_one(std::size_t most) {
    for (const std::vector<DimAxes>* const side : {&input_dims_, &result_dims_}) {
      for (const DimAxes& tensor : *side) {
        for (const std::vector<int>& dim : tensor) {
          for (const int a : dim) {
            if (dim.size() <= most && axis(a).size == 0) {
              axis(a).size = 1;
            }
          }
        }
      }
    }
  }

  /// Until a round over all tensors finds no size more.
  void resolve_all() {
    while (resolve_round()) {
    }
  }

  bool resolve_round() {
    bool changed = false;
    for (std::size_t i = 0; i < input_dims_.size(); ++i) {
      changed = resolve_tensor(input_dims_[i], inputs_[i]) || changed;
    }
    for (std::size_t i = 0; i < result_dims_.size(); ++i) {
      changed = resolve_tensor(result_dims_[i], results_[i]) || changed;
    }
    return changed;
  }

  NamedAxis& axis(int index) { return axes_[static_cast<std::size_t>(index)]; }

  /// A dimension with one axis of unknown size gives that size.
  bool resolve_tensor(const DimAxes& dims, const ir::TensorType& type) {
    SHARDPLAN_CHECK(dims.size() == type.shape.size())
        << "axis map '" << text_ << "' does not have the rank of " << ir::to_string(type);
    bool changed = false;
    for (std::size_t d = 0; d < dims.size(); ++d) {
      if (type.shape[d] == 1 || dims[d].empty()) {
        continue;
      }
      if (dims[d].size() == 1 && axis(dims[d].front()).slides) {
        changed = changed || axis(dims[d].front()).size == 0;
        axis(dims[d].front()).size = type.shape[d];
        continue;
      }
      std::int64_t known = 1;
      NamedAxis* unknown = nullptr;
      std::size_t unknowns = 0;
      for (const int a : dims[d]) {
        if (axis(a).size == 0) {
          unknown = &axis(a);
          ++unknowns;
        } else {
          known *= axis(a).size;
        }
      }
      if (unknowns == 1) {
        SHARDPLAN_CHECK(known > 0 && type.shape[d] % known == 0)
            << "axis map '" << text_ << "' does not fit " << ir::to_string(type);
        unknown->size = type.shape[d] / known;
        changed = true;
      } else if (unknowns == 0) {
        SHARDPLAN_CHECK(known == type.shape[d])
            << "axis map '" << text_ << "' does not fit " << ir::to_string(type);
      }
    }
    return changed;
  }

  AxisMap assemble() {
    AxisMap map;
    std::vector<int> place(axes_.size(), -1);
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      const NamedAxis& named = axes_[i];
      if (named.size == 1 || named.whole) {
        continue;
      }
      place[i] = static_cast<int>(map.axes.size());
      AxisRole role = named.role;
      if (named.marked_sum || (role == AxisRole::kFree && !named.in_result)) {
        role = AxisRole::kSum;
      }
      map.axes.push_back(Axis{std::string(named.name), named.size, role, named.positional});
    }
    for (std::size_t i = 0; i < input_dims_.size(); ++i) {
      map.inputs.push_back(placed(input_dims_[i], inputs_[i], place));
    }
    for (std::size_t i = 0; i < result_dims_.size(); ++i) {
      map.results.push_back(placed(result_dims_[i], results_[i], place));
    }
    return map;
  }

  /// A dimension keeps its axes only when all that have a size are shardable: a part that is needed
  /// whole makes the dimension whole.
  DimAxes placed(const DimAxes& dims, const ir::TensorType& type, const std::vector<int>& place) {
    DimAxes out(dims.size());
    for (std::size_t d = 0; d < dims.size(); ++d) {
      const bool whole =
          std::any_of(dims[d].begin(), dims[d].end(), [&](int a) { return axis(a).whole; });
      if (type.shape[d] == 1 || whole) {
        continue;
      }
      for (const int a : dims[d]) {
        if (place[static_cast<std::size_t>(a)] >= 0) {
          out[d].push_back(place[static_cast<std::size_t>(a)]);
        }
      }
    }
    return out;
  }

  std::string_view text_;
  std::span<const ir::TensorType> inputs_;
  std::span<const ir::TensorType> results_;
  std::vector<NamedAxis> axes_;
  std::vector<DimAxes> input_dims_;
  std::vector<DimAxes> result_dims_;
};

/// "a", "b", ... "z", "a1", "b1", ...
std::string letter_name(std::size_t i) {
  constexpr std::size_t kLetters = 26;
  std::string name(1, static_cast<char>('a' + i % kLetters));
  if (i >= kLetters) {
    name += std::to_string(i / kLetters);
  }
  return name;
}

int add_letter_axis(AxisMap& map, std::int64_t size) {
  map.axes.push_back(Axis{letter_name(map.axes.size()), size, AxisRole::kFree, false});
  return static_cast<int>(map.axes.size()) - 1;
}

/// Factors the dimensions [i0, i1) of the input and [j0, j1) of the result, whose products are
/// equal, into common axes; leaves them whole when they have no common factorisation.
void factor_group(AxisMap& map,
                  const ir::Shape& input,
                  std::pair<std::size_t, std::size_t> input_range,
                  const ir::Shape& result,
                  std::pair<std::size_t, std::size_t> result_range) {
  AxisMap factored = map;
  auto [i, input_end] = input_range;
  auto [j, result_end] = result_range;
  std::int64_t input_left = i < input_end ? input[i] : 1;
  std::int64_t result_left = j < result_end ? result[j] : 1;
  while (i < input_end && j < result_end) {
    const std::int64_t factor = std::min(input_left, result_left);
    if (input_left % factor != 0 || result_left % factor != 0) {
      return;
    }
    if (factor > 1) {
      const int axis = add_letter_axis(factored, factor);
      factored.inputs[0][i].push_back(axis);
      factored.results[0][j].push_back(axis);
    }
    input_left /= factor;
    result_left /= factor;
    if (input_left == 1 && ++i < input_end) {
      input_left = input[i];
    }
    if (result_left == 1 && ++j < result_end) {
      result_left = result[j];
    }
  }
  map = std::move(factored);
}

bool slides(const AxisMap& map, int axis) {
  return std::any_of(
      map.halos.begin(), map.halos.end(), [&](const Halo& halo) { return halo.axis == axis; });
}

void append_tensor(std::string& out,
                   const AxisMap& map,
                   const DimAxes& dims,
                   std::vector<bool>& seen) {
  for (std::size_t d = 0; d < dims.size(); ++d) {
    out += d == 0 ? "" : " ";
    if (dims[d].empty()) {
      out += '*';
    }
    out += dims[d].size() > 1 ? "(" : "";
    for (std::size_t k = 0; k < dims[d].size(); ++k) {
      const auto a = static_cast<std::size_t>(dims[d][k]);
      const Axis& axis = map.axes[a];
      out += k == 0 ? "" : " ";
      if (!seen[a]) {
        seen[a] = true;
        const bool in_result =
            std::any_of(map.results.begin(), map.results.end(), [&](const DimAxes& result) {
              return std::any_of(result.begin(), result.end(), [&](const std::vector<int>& dim) {
                return std::find(dim.begin(), dim.end(), static_cast<int>(a)) != dim.end();
              });
            });
        if (axis.role == AxisRole::kLookup) {
          out += '?';
        } else if (axis.role == AxisRole::kMax) {
          out += '^';
        } else if (slides(map, static_cast<int>(a))) {
          out += '~';
        } else if (axis.positional) {
          out += '@';
        } else if (axis.role == AxisRole::kSum && in_result) {
          out += '+';
        }
      }
      out += axis.name;
    }
    out += dims[d].size() > 1 ? ")" : "";
  }
}

}  // namespace

int AxisMap::find(std::string_view axis) const {
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].name == axis) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

std::int64_t AxisMap::least_size(int axis) const {
  std::int64_t least = axes[static_cast<std::size_t>(axis)].size;
  const auto merged_with = [&](const Halo& halo, const std::vector<int>& dim) {
    return halo.axis != axis && std::find(dim.begin(), dim.end(), axis) != dim.end() &&
           std::find(dim.begin(), dim.end(), halo.axis) != dim.end();
  };
  for (const Halo& halo : halos) {
    const std::vector<int>& dim =
        inputs[static_cast<std::size_t>(halo.input)][static_cast<std::size_t>(halo.dim)];
    least = halo.axis == axis ? std::min(least, halo.size) : least;
    least = merged_with(halo, dim) ? 1 : least;
    for (const DimAxes& result : results) {
      const bool merged = std::any_of(
          result.begin(), result.end(), [&](const auto& own) { return merged_with(halo, own); });
      least = merged ? 1 : least;
    }
  }
  return least;
}

AxisMap make_axis_map(std::string_view text,
                      std::span<const ir::TensorType> inputs,
                      std::span<const ir::TensorType> results,
                      std::vector<PartialRule> partials) {
  AxisMap map = AxisMapParser(text, inputs, results).build();
  map.partials = std::move(partials);
  return map;
}

void add_halo(AxisMap& map, std::string_view axis, Halo halo) {
  halo.axis = map.find(axis);
  SHARDPLAN_CHECK(halo.axis >= 0) << "no axis " << axis << " to slide along";
  map.axes[static_cast<std::size_t>(halo.axis)].size = halo.own_size;
  map.halos.push_back(halo);
}

AxisMap elementwise_axis_map(std::span<const ir::TensorType> inputs,
                             std::span<const ir::TensorType> results,
                             std::vector<PartialRule> partials) {
  SHARDPLAN_CHECK(!results.empty()) << "an elementwise op has a result";
  const ir::Shape& shape = results[0].shape;
  AxisMap map;
  std::vector<int> axis_of(shape.size(), -1);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] > 1) {
      axis_of[d] = add_letter_axis(map, shape[d]);
    }
  }
  const auto aligned = [&](const ir::TensorType& type) {
    SHARDPLAN_CHECK(type.shape.size() <= shape.size())
        << ir::to_string(type) << " does not broadcast to " << ir::to_string(results[0]);
    const std::size_t skipped = shape.size() - type.shape.size();
    DimAxes dims(type.shape.size());
    for (std::size_t d = 0; d < dims.size(); ++d) {
      if (type.shape[d] > 1) {
        SHARDPLAN_CHECK(type.shape[d] == shape[skipped + d])
            << ir::to_string(type) << " does not broadcast to " << ir::to_string(results[0]);
        dims[d].push_back(axis_of[skipped + d]);
      }
    }
    return dims;
  };
  std::transform(inputs.begin(), inputs.end(), std::back_inserter(map.inputs), aligned);
  std::transform(results.begin(), results.end(), std::back_inserter(map.results), aligned);
  map.partials = std::move(partials);
  return map;
}

AxisMap reshape_axis_map(const ir::TensorType& input, const ir::TensorType& result) {
  AxisMap map;
  map.inputs.emplace_back(input.shape.size());
  map.results.emplace_back(result.shape.size());
  map.partials.push_back(PartialRule{{0}, {0}});
  if (input.numel() == 0) {
    return map;
  }
  // A group is a shortest run of dimensions on both sides with equal products; size-1 dimensions
  // join whichever group they touch and get no axis.
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < input.shape.size() && j < result.shape.size()) {
    const std::size_t i0 = i;
    const std::size_t j0 = j;
    std::int64_t input_product = input.shape[i++];
    std::int64_t result_product = result.shape[j++];
    while (input_product != result_product) {
      if (input_product < result_product) {
        input_product *= input.shape[i++];
      } else {
        result_product *= result.shape[j++];
      }
    }
    factor_group(map, input.shape, {i0, i}, result.shape, {j0, j});
  }
  return map;
}

std::string to_string(const AxisMap& map) {
  std::string out;
  std::vector<bool> seen(map.axes.size(), false);
  for (std::size_t i = 0; i < map.inputs.size(); ++i) {
    out += i == 0 ? "" : ", ";
    append_tensor(out, map, map.inputs[i], seen);
  }
  out += map.inputs.empty() ? "-> " : " -> ";
  for (std::size_t i = 0; i < map.results.size(); ++i) {
    out += i == 0 ? "" : ", ";
    append_tensor(out, map, map.results[i], seen);
  }
  return out;
}

}  // namespace shardplan::ops
