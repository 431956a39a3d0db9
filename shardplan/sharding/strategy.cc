#include "shardplan/sharding/strategy.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "shardplan/support/text.h"

namespace shardplan::sharding {
namespace {

using ops::AxisMap;
using ops::AxisRole;
using ops::DimAxes;

constexpr std::string_view kPartialName = "partial:";

int axis_count(const cluster::DeviceMesh& mesh) {
  return static_cast<int>(mesh.axes.size());
}

std::int64_t mesh_size(const cluster::DeviceMesh& mesh, int mesh_axis) {
  return mesh.axes[static_cast<std::size_t>(mesh_axis)].size;
}

const ops::Axis& op_axis(const AxisMap& map, int axis) {
  return map.axes[static_cast<std::size_t>(axis)];
}

bool contains(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

int occurrences(const DimAxes& dims, int axis) {
  std::int64_t count = 0;
  for (const std::vector<int>& dim : dims) {
    count += std::count(dim.begin(), dim.end(), axis);
  }
  return static_cast<int>(count);
}

/// A rule is usable only if it says what every result is.
bool covers_results(const AxisMap& map, const ops::PartialRule& rule) {
  for (std::size_t result = 0; result < map.results.size(); ++result) {
    if (!contains(rule.results, static_cast<int>(result))) {
      return false;
    }
  }
  return true;
}

/// Number of parts of an op axis.
std::int64_t cuts(const Strategy& strategy, const cluster::DeviceMesh& mesh, int axis) {
  std::int64_t count = 1;
  for (int m = 0; m < axis_count(mesh); ++m) {
    if (strategy.at(m) == axis) {
      count *= mesh_size(mesh, m);
    }
  }
  return count;
}

/// The first op axis of a merged dimension that is cut before a more major one is cut fully; -1
/// when there is none.
int cut_too_early(const AxisMap& map,
                  const std::vector<int>& dim,
                  const Strategy& strategy,
                  const cluster::DeviceMesh& mesh) {
  bool major_done = true;
  for (const int axis : dim) {
    const std::int64_t count = cuts(strategy, mesh, axis);
    if (count > 1 && !major_done) {
      return axis;
    }
    major_done = major_done && count == op_axis(map, axis).size;
  }
  return -1;
}

/// Whether a merged dimension has an axis below this one.
bool is_above_another(const AxisMap& map, int axis) {
  const auto above = [&](const std::vector<int>& dim) {
    return contains(dim, axis) && dim.back() != axis;
  };
  const auto somewhere = [&](const DimAxes& dims) {
    return std::any_of(dims.begin(), dims.end(), above);
  };
  return std::any_of(map.inputs.begin(), map.inputs.end(), somewhere) ||
         std::any_of(map.results.begin(), map.results.end(), somewhere);
}

bool choice_fits(const AxisMap& map,
                 const Strategy& strategy,
                 const cluster::DeviceMesh& mesh,
                 int choice) {
  if (choice == Strategy::kNone) {
    return true;
  }
  if (choice >= 0) {
    return choice < static_cast<int>(map.axes.size()) &&
           can_cut_axis(map, choice, cuts(strategy, mesh, choice));
  }
  const auto rule = static_cast<std::size_t>(Strategy::kPartialBase - choice);
  return rule < map.partials.size() && covers_results(map, map.partials[rule]);
}

/// Puts the mesh axes of the strategy on the dimensions of one operand or result; false when they
/// do not fit.
bool place(const AxisMap& map,
           const DimAxes& dims,
           const Strategy& strategy,
           const cluster::DeviceMesh& mesh,
           ShardingSpec& spec) {
  for (std::size_t dim = 0; dim < dims.size(); ++dim) {
    if (dims[dim].size() > 1 && cut_too_early(map, dims[dim], strategy, mesh) >= 0) {
      return false;
    }
    for (const int axis : dims[dim]) {
      for (int m = 0; m < axis_count(mesh); ++m) {
        if (strategy.at(m) != axis) {
          continue;
        }
        if (!spec.is_replicated(m)) {
          return false;
        }
        spec.shard(static_cast<int>(dim), m);
      }
    }
  }
  return true;
}

void mark_partial_input(
    const AxisMap& map, const Strategy& strategy, int input, ShardingSpec& spec, int mesh_axes) {
  for (int m = 0; m < mesh_axes; ++m) {
    if (strategy.at(m) <= Strategy::kPartialBase) {
      const auto rule = static_cast<std::size_t>(Strategy::kPartialBase - strategy.at(m));
      if (contains(map.partials[rule].inputs, input)) {
        spec.make_partial(m, Reduction::kSum);
      }
    }
  }
}

void mark_partial_result(const AxisMap& map,
                         const Strategy& strategy,
                         ShardingSpec& spec,
                         int mesh_axes) {
  for (int m = 0; m < mesh_axes; ++m) {
    const int choice = strategy.at(m);
    if (choice <= Strategy::kPartialBase) {
      spec.make_partial(m, Reduction::kSum);
    } else if (choice >= 0 && spec.is_replicated(m)) {
      const AxisRole role = op_axis(map, choice).role;
      if (role != AxisRole::kFree) {
        spec.make_partial(m, role == AxisRole::kMax ? Reduction::kMax : Reduction::kSum);
      }
    }
  }
}

/// Depth-first enumeration with the test of sizes made as early as it can fail.
class Enumeration {
 public:
  Enumeration(const AxisMap& map, const cluster::DeviceMesh& mesh) : map_(map), mesh_(mesh) {
    parts_.assign(map.axes.size(), 1);
    for (int axis = 0; axis < static_cast<int>(map.axes.size()); ++axis) {
      even_only_.push_back(is_above_another(map, axis));
      sizes_.push_back(map.least_size(axis));
    }
    for (std::size_t axis = 0; axis < map.axes.size(); ++axis) {
      if (axis_is_usable(static_cast<int>(axis))) {
        axes_.push_back(static_cast<int>(axis));
      }
    }
    for (std::size_t rule = 0; rule < map.partials.size(); ++rule) {
      if (covers_results(map, map.partials[rule])) {
        rules_.push_back(Strategy::kPartialBase - static_cast<int>(rule));
      }
    }
    collect_merged(map.inputs);
    collect_merged(map.results);
  }

  std::vector<Strategy> run() {
    visit(0);
    return std::move(found_);
  }

 private:
  [[nodiscard]] bool axis_is_usable(int axis) const {
    const auto once = [&](const DimAxes& dims) { return occurrences(dims, axis) <= 1; };
    return op_axis(map_, axis).size > 1 &&
           std::all_of(map_.inputs.begin(), map_.inputs.end(), once) &&
           std::all_of(map_.results.begin(), map_.results.end(), once);
  }

  void collect_merged(const std::vector<DimAxes>& operands) {
    for (const DimAxes& dims : operands) {
      for (const std::vector<int>& dim : dims) {
        const bool known = std::find(merged_.begin(), merged_.end(), dim) != merged_.end();
        if (dim.size() > 1 && !known) {
          merged_.push_back(dim);
        }
      }
    }
  }

  void visit(int m) {
    if (m == axis_count(mesh_)) {
      const bool possible = std::all_of(merged_.begin(), merged_.end(), [&](const auto& dim) {
        return cut_too_early(map_, dim, current_, mesh_) < 0;
      });
      if (possible) {
        found_.push_back(current_);
      }
      return;
    }
    visit(m + 1);
    const std::int64_t size = mesh_size(mesh_, m);
    if (size == 1) {
      return;
    }
    for (const int axis : axes_) {
      const auto a = static_cast<std::size_t>(axis);
      const std::int64_t length = sizes_[a];
      const std::int64_t parts = parts_[a] * size;
      if (even_only_[a] ? length % parts == 0 : can_cut(length, parts)) {
        parts_[a] = parts;
        current_.set(m, axis);
        visit(m + 1);
        parts_[a] /= size;
      }
    }
    for (const int rule : rules_) {
      current_.set(m, rule);
      visit(m + 1);
    }
    current_.set(m, Strategy::kNone);
  }

  const AxisMap& map_;
  const cluster::DeviceMesh& mesh_;
  std::vector<std::int64_t> parts_;  ///< by op axis, so far
  std::vector<bool> even_only_;      ///< by op axis, see can_cut_axis
  std::vector<std::int64_t> sizes_;  ///< by op axis
  std::vector<int> axes_;
  std::vector<int> rules_;
  std::vector<std::vector<int>> merged_;
  Strategy current_;
  std::vector<Strategy> found_;
};

std::string axis_text(const AxisMap& map, int axis) {
  return "axis " + op_axis(map, axis).name + " (size " + std::to_string(map.least_size(axis)) + ")";
}

/// "data 2 × tensor 4" of the mesh axes that cut the op axis.
std::string cutters(const Strategy& strategy, const cluster::DeviceMesh& mesh, int axis) {
  cluster::DeviceMesh cutting;
  for (int m = 0; m < axis_count(mesh); ++m) {
    if (strategy.at(m) == axis) {
      cutting.axes.push_back(mesh.axes[static_cast<std::size_t>(m)]);
    }
  }
  return cluster::to_string(cutting);
}

Status check_choice(const AxisMap& map,
                    const Strategy& strategy,
                    const cluster::DeviceMesh& mesh,
                    int m) {
  const int choice = strategy.at(m);
  if (choice_fits(map, strategy, mesh, choice)) {
    return {};
  }
  const std::string& name = mesh.axes[static_cast<std::size_t>(m)].name;
  if (choice >= static_cast<int>(map.axes.size())) {
    return invalid_input("mesh axis " + name + " is given to op axis " + std::to_string(choice) +
                         ", the op has " + std::to_string(map.axes.size()));
  }
  if (choice >= 0) {
    const bool merged = can_cut(map.least_size(choice), cuts(strategy, mesh, choice));
    return invalid_input(axis_text(map, choice) +
                         (merged ? " cannot be cut evenly by " : " is too small to be cut by ") +
                         cutters(strategy, mesh, choice) +
                         (merged ? ", and is merged with a more minor axis" : ""));
  }
  const int rule = Strategy::kPartialBase - choice;
  if (rule >= static_cast<int>(map.partials.size())) {
    return invalid_input("mesh axis " + name + " is given to partial rule " + std::to_string(rule) +
                         ", the op has " + std::to_string(map.partials.size()));
  }
  return invalid_input("partial rule " + std::to_string(rule) +
                       " does not tell what every result is");
}

Status check_operand(const AxisMap& map,
                     const Strategy& strategy,
                     const cluster::DeviceMesh& mesh,
                     const DimAxes& dims,
                     const std::string& operand) {
  for (std::size_t dim = 0; dim < dims.size(); ++dim) {
    const int early = cut_too_early(map, dims[dim], strategy, mesh);
    if (early >= 0) {
      return invalid_input(
          axis_text(map, early) + " cannot be cut by " + cutters(strategy, mesh, early) +
          ": dimension " + std::to_string(dim) + " of " + operand +
          " merges it with a more major axis that is not cut into single elements");
    }
  }
  for (int m = 0; m < axis_count(mesh); ++m) {
    const int axis = strategy.at(m);
    if (axis >= 0 && occurrences(dims, axis) > 1) {
      return invalid_input(axis_text(map, axis) + " cannot be cut: " + operand + " has it twice");
    }
  }
  return {};
}

}  // namespace

bool can_cut_axis(const AxisMap& map, int axis, std::int64_t parts) {
  const std::int64_t size = map.least_size(axis);
  return size % parts == 0 || (can_cut(size, parts) && !is_above_another(map, axis));
}

std::optional<OpLayouts> layouts(const AxisMap& map,
                                 const Strategy& strategy,
                                 const cluster::DeviceMesh& mesh) {
  const int mesh_axes = axis_count(mesh);
  for (int m = 0; m < mesh_axes; ++m) {
    if (!choice_fits(map, strategy, mesh, strategy.at(m))) {
      return std::nullopt;
    }
  }
  std::optional<OpLayouts> out(std::in_place);
  out->inputs.resize(map.inputs.size());
  out->results.resize(map.results.size());
  for (std::size_t i = 0; i < map.inputs.size(); ++i) {
    if (!place(map, map.inputs[i], strategy, mesh, out->inputs[i])) {
      return std::nullopt;
    }
    mark_partial_input(map, strategy, static_cast<int>(i), out->inputs[i], mesh_axes);
  }
  for (std::size_t r = 0; r < map.results.size(); ++r) {
    if (!place(map, map.results[r], strategy, mesh, out->results[r])) {
      return std::nullopt;
    }
    mark_partial_result(map, strategy, out->results[r], mesh_axes);
  }
  return out;
}

Status check_strategy(const AxisMap& map,
                      const Strategy& strategy,
                      const cluster::DeviceMesh& mesh) {
  for (int m = 0; m < axis_count(mesh); ++m) {
    SHARDPLAN_RETURN_IF_ERROR(check_choice(map, strategy, mesh, m));
  }
  for (std::size_t i = 0; i < map.inputs.size(); ++i) {
    SHARDPLAN_RETURN_IF_ERROR(
        check_operand(map, strategy, mesh, map.inputs[i], "operand " + std::to_string(i)));
  }
  for (std::size_t r = 0; r < map.results.size(); ++r) {
    SHARDPLAN_RETURN_IF_ERROR(
        check_operand(map, strategy, mesh, map.results[r], "result " + std::to_string(r)));
  }
  return {};
}

std::vector<Strategy> enumerate_strategies(const AxisMap& map, const cluster::DeviceMesh& mesh) {
  return Enumeration(map, mesh).run();
}

std::string to_string(const Strategy& strategy,
                      const AxisMap& map,
                      const cluster::DeviceMesh& mesh) {
  std::string out;
  for (int m = 0; m < axis_count(mesh); ++m) {
    const int choice = strategy.at(m);
    if (choice == Strategy::kNone) {
      continue;
    }
    out += out.empty() ? "" : " ";
    out += mesh.axes[static_cast<std::size_t>(m)].name + "=";
    out += choice >= 0
               ? op_axis(map, choice).name
               : std::string(kPartialName) + std::to_string(Strategy::kPartialBase - choice);
  }
  return out.empty() ? "replicated" : out;
}

namespace {

Error unknown_name(const std::string& what,
                   std::string_view name,
                   const std::vector<std::string>& known) {
  Error error = invalid_input("no " + what + " is named \"" + std::string(name) + "\"");
  // One letter is within a typo of every other one: better to list them all.
  const std::string close = name.size() > 2 ? suggest(name, known) : "";
  if (!close.empty()) {
    error.notes.push_back("did you mean \"" + close + "\"?");
    return error;
  }
  std::string list;
  for (const std::string& each : known) {
    list += (list.empty() ? "" : ", ") + each;
  }
  error.notes.push_back(known.empty() ? "there are none" : "there are " + list);
  return error;
}

Result<int> parse_mesh_axis(std::string_view name, const cluster::DeviceMesh& mesh) {
  std::vector<std::string> known;
  for (const cluster::MeshAxis& axis : mesh.axes) {
    if (axis.name == name) {
      return static_cast<int>(known.size());
    }
    known.push_back(axis.name);
  }
  return unknown_name("mesh axis", name, known);
}

Result<int> parse_choice(std::string_view text, const AxisMap& map) {
  if (text.starts_with(kPartialName)) {
    const std::string_view digits = text.substr(kPartialName.size());
    std::size_t rule = 0;
    const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), rule);
    if (code != std::errc{} || end != digits.data() + digits.size() ||
        rule >= map.partials.size()) {
      return invalid_input("\"" + std::string(text) + "\" names no partial rule: the op has " +
                           std::to_string(map.partials.size()) + ", counted from 0");
    }
    return Strategy::kPartialBase - static_cast<int>(rule);
  }
  if (const int axis = map.find(text); axis >= 0) {
    return axis;
  }
  std::vector<std::string> known;
  known.reserve(map.axes.size());
  for (const ops::Axis& axis : map.axes) {
    known.push_back(axis.name);
  }
  return unknown_name("axis of this op", text, known);
}

}  // namespace

Result<Strategy> parse_strategy(std::string_view text,
                                const AxisMap& map,
                                const cluster::DeviceMesh& mesh) {
  constexpr std::string_view kSpaces = " \t\n";
  Strategy strategy;
  bool replicated = false;
  std::size_t words = 0;
  for (std::size_t start = text.find_first_not_of(kSpaces); start != std::string_view::npos;
       start = text.find_first_not_of(kSpaces, start)) {
    const std::size_t end = std::min(text.find_first_of(kSpaces, start), text.size());
    const std::string_view word = text.substr(start, end - start);
    start = end;
    ++words;
    if (word == "replicated") {
      replicated = true;
      continue;
    }
    const std::size_t equals = word.find('=');
    if (equals == std::string_view::npos) {
      return invalid_input("\"" + std::string(word) +
                           "\" is no choice: expected \"mesh axis=op axis\" or \"replicated\"");
    }
    SHARDPLAN_ASSIGN_OR_RETURN(const int mesh_axis, parse_mesh_axis(word.substr(0, equals), mesh));
    SHARDPLAN_ASSIGN_OR_RETURN(const int choice, parse_choice(word.substr(equals + 1), map));
    if (strategy.at(mesh_axis) != Strategy::kNone) {
      return invalid_input("mesh axis \"" + std::string(word.substr(0, equals)) +
                           "\" is given twice in \"" + std::string(text) + "\"");
    }
    strategy.set(mesh_axis, choice);
  }
  if (words == 0 || (replicated && words > 1)) {
    return invalid_input("\"" + std::string(text) +
                         "\" is no strategy: expected \"mesh axis=op axis ...\" or \"replicated\"");
  }
  return strategy;
}

}  // namespace shardplan::sharding
