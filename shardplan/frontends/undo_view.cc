#include "shardplan/frontends/undo_view.h"

#include "shardplan/frontends/const_element.h"
#include "shardplan/frontends/node_arguments.h"

namespace shardplan::frontends {

namespace {

ir::TensorType type_of(const ExportedProgram& program, const std::string& name) {
  const auto found = program.tensors.find(name);
  return found == program.tensors.end() ? ir::TensorType{} : found->second.type;
}

std::int64_t dim_size(const ir::TensorType& type, std::int64_t dim) {
  const std::int64_t at = dim < 0 ? dim + type.rank() : dim;
  return at < 0 || at >= type.rank() ? 0 : type.shape[static_cast<std::size_t>(at)];
}

std::vector<std::int64_t> inverse_permutation(const ExportedNode& permute) {
  const Argument* const dims = argument_of(permute, "dims");
  const std::size_t rank = dims == nullptr ? 0 : dims->ints.size();
  std::vector<std::int64_t> inverse(rank, 0);
  for (std::size_t d = 0; d < rank; ++d) {
    const std::int64_t from =
        dims->ints[d] + (dims->ints[d] < 0 ? static_cast<std::int64_t>(rank) : 0);
    if (from >= 0 && static_cast<std::size_t>(from) < rank) {
      inverse[static_cast<std::size_t>(from)] = static_cast<std::int64_t>(d);
    }
  }
  return inverse;
}

/// Where the parts before the `result`-th of a split end.
std::int64_t split_start(const ExportedNode& view,
                         std::size_t result,
                         std::int64_t dim,
                         const ExportedProgram& program) {
  std::int64_t start = 0;
  for (std::size_t i = 0; i < result; ++i) {
    start = wrapping_sum(start, dim_size(type_of(program, view.outputs[i]), dim));
  }
  return start;
}

/// Target and place of the scatter that undoes a cut.
void add_place(const ExportedNode& view,
               Alias alias,
               std::size_t result,
               const ExportedProgram& program,
               ExportedNode& node) {
  const auto add = [&node](const char* name, std::int64_t value) {
    node.inputs.emplace_back(name, int_argument(value));
  };
  if (alias == Alias::kDiagonal) {
    node.target = "aten.diagonal_scatter.default";
    add("offset", int_of(view, "offset", 0));
    add("dim1", int_of(view, "dim1", 0));
    add("dim2", int_of(view, "dim2", 1));
    return;
  }
  const std::int64_t dim = int_of(view, "dim", 0);
  add("dim", dim);
  if (alias == Alias::kSelect || alias == Alias::kUnbind) {
    node.target = "aten.select_scatter.default";
    add("index",
        alias == Alias::kSelect ? int_of(view, "index", 0) : static_cast<std::int64_t>(result));
    return;
  }
  node.target = "aten.slice_scatter.default";
  const std::int64_t size = dim_size(type_of(program, first_operand(view)), dim);
  std::int64_t start = int_of(view, "start", 0);
  std::int64_t end = int_of(view, "end", size);
  if (alias == Alias::kNarrow) {
    start = start < 0 ? start + size : start;
    end = wrapping_sum(start, int_of(view, "length", 0));
  } else if (alias == Alias::kSplit) {
    start = split_start(view, result, dim, program);
    end = wrapping_sum(start, dim_size(type_of(program, view.outputs[result]), dim));
  }
  add("start", start);
  add("end", end);
  add("step", alias == Alias::kSlice ? int_of(view, "step", 1) : 1);
}

}  // namespace

bool shows_a_part(Alias alias) {
  switch (alias) {
    case Alias::kSlice:
    case Alias::kNarrow:
    case Alias::kSelect:
    case Alias::kSplit:
    case Alias::kUnbind:
    case Alias::kDiagonal:
      return true;
    default:
      return false;
  }
}

std::optional<ExportedNode> undo_view(const ExportedNode& view,
                                      Alias alias,
                                      std::size_t result,
                                      const std::string& whole,
                                      const std::string& value,
                                      const ExportedProgram& program) {
  ExportedNode node;
  const ir::TensorType type = type_of(program, first_operand(view));
  if (shows_a_part(alias)) {
    node.inputs = {{"self", tensor_argument(whole)}, {"src", tensor_argument(value)}};
    add_place(view, alias, result, program, node);
    return node;
  }
  node.inputs = {{"self", tensor_argument(value)}};
  if (alias == Alias::kReshape) {
    node.target = "aten.view.default";
    node.inputs.emplace_back("size", ints_argument(type.shape));
    return node;
  }
  node.target = view.target;
  if (alias == Alias::kPermute) {
    node.inputs.emplace_back("dims", ints_argument(inverse_permutation(view)));
    return node;
  }
  if (alias == Alias::kTranspose) {
    node.inputs = view.inputs;
    replace_first_operand(node, value);
    return node;
  }
  if (alias == Alias::kExpand && type_of(program, view.outputs[result]).shape == type.shape) {
    node.target = "aten.alias.default";
    return node;
  }
  return std::nullopt;
}

}  // namespace shardplan::frontends
