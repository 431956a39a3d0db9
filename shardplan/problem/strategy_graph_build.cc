// What the parts of a problem file say together: sizes, indices, names.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "shardplan/problem/inflate.h"
#include "shardplan/problem/strategy_graph_reader.h"
#include "shardplan/support/text.h"

namespace shardplan::problem {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::size_t kMostChoices = 65536;  // solvers keep a choice in 16 bits
constexpr std::size_t kMostArity = 16;
/// Rows times (nodes and factors): each pair has a place in memory.
constexpr std::size_t kMostRowEntries = std::size_t{1} << 25U;

}  // namespace

Error StrategyGraphReader::error(const std::string& message, const std::string& place) const {
  return invalid_input(message, place.empty() ? where_ : where_ + ": " + place);
}

Result<StrategyGraphFile> StrategyGraphReader::build() {
  SHARDPLAN_RETURN_IF_ERROR(check_form());
  SHARDPLAN_RETURN_IF_ERROR(build_nodes());
  SHARDPLAN_RETURN_IF_ERROR(build_factors());
  SHARDPLAN_RETURN_IF_ERROR(own_form_ ? build_rows() : build_published_row());
  SHARDPLAN_RETURN_IF_ERROR(build_cases());
  return std::move(file_);
}

Status StrategyGraphReader::check_form() const {
  if (!has_nodes_) {
    return error("no problem: the field \"nodes\" is missing", "");
  }
  if (own_form_) {
    if (!has_version_) {
      return error("the field \"version\" is missing", "");
    }
    return foreign_ ? Status(*foreign_) : Status{};
  }
  if (!has_edges_) {
    return error(
        "no \"format\" (as a problem of shardplan has) and no \"edges\" (as a published instance "
        "has)",
        "");
  }
  return {};
}

Result<solvers::CostTable> StrategyGraphReader::resolve(const TableRef& ref,
                                                        std::size_t size,
                                                        std::string_view meaning,
                                                        const std::string& place) const {
  solvers::CostTable table = ref.values;
  if (ref.pool >= 0) {
    if (static_cast<std::size_t>(ref.pool) >= tables_.size()) {
      return error(fmt::format("there is no table {}; the file has {}", ref.pool, tables_.size()),
                   place);
    }
    table = tables_[static_cast<std::size_t>(ref.pool)].values;
    if (!table) {
      return error("a table is a list of numbers", fmt::format("tables / {}", ref.pool));
    }
  }
  if (size != 0 && table->size() != size) {
    return error(fmt::format("has {} numbers; expected {}, {}", table->size(), size, meaning),
                 place);
  }
  return table;
}

Status StrategyGraphReader::build_nodes() {
  StrategyGraph& graph = file_.graph;
  bool named = false;
  std::vector<std::shared_ptr<const std::vector<std::string>>> names(nodes_.size());
  for (std::size_t v = 0; v < nodes_.size(); ++v) {
    Node& node = nodes_[v];
    const std::string place = fmt::format("nodes / {}", v);
    SHARDPLAN_ASSIGN_OR_RETURN(const solvers::CostTable cost,
                               resolve(node.cost, 0, "", place + " / cost"));
    if (cost->empty() || cost->size() > kMostChoices) {
      return error(
          cost->empty()
              ? std::string("a node needs at least one strategy")
              : fmt::format("{} strategies; at most {} can be solved", cost->size(), kMostChoices),
          place + " / cost");
    }
    if (node.same_names >= static_cast<std::int64_t>(v)) {
      return error(
          fmt::format("names as those of node {}, which is not before it", node.same_names),
          place + " / strategies");
    }
    if (node.same_names >= 0) {
      names[v] = names[static_cast<std::size_t>(node.same_names)];
    } else if (!node.strategies.empty()) {
      names[v] = std::make_shared<const std::vector<std::string>>(std::move(node.strategies));
    }
    if (names[v] && names[v]->size() != cost->size()) {
      return error(fmt::format("{} names for {} strategies", names[v]->size(), cost->size()),
                   place + " / strategies");
    }
    named = named || names[v];
    graph.nodes.push_back(std::move(node.name));
    graph.problem.objective.unary.push_back(cost);
  }
  if (named) {
    graph.strategies = std::move(names);
  }
  return {};
}

Status StrategyGraphReader::build_factors() {
  solvers::CostNetwork& objective = file_.graph.problem.objective;
  const std::string_view kind = has_edges_ ? "edges" : "factors";
  for (std::size_t f = 0; f < factors_.size(); ++f) {
    const Factor& factor = factors_[f];
    const std::string place = fmt::format("{} / {}", kind, f);
    if (factor.scope.empty() || factor.scope.size() > kMostArity) {
      return error(fmt::format("joins {} nodes; expected 1 to {}", factor.scope.size(), kMostArity),
                   place);
    }
    solvers::CostNetwork::Factor out;
    std::size_t size = 1;
    std::string shape;
    for (const std::int64_t v : factor.scope) {
      if (static_cast<std::size_t>(v) >= nodes_.size()) {
        return error(fmt::format("there is no node {}; the file has {}", v, nodes_.size()), place);
      }
      const int variable = static_cast<int>(v);
      if (std::find(out.scope.begin(), out.scope.end(), variable) != out.scope.end()) {
        return error(fmt::format("joins node {} with itself; add such costs to the node", v),
                     place);
      }
      out.scope.push_back(variable);
      const std::size_t choices = objective.unary[static_cast<std::size_t>(v)]->size();
      size = size > kMostRowEntries * 64 ? size : size * choices;  // cannot overflow
      shape += fmt::format("{}{}", shape.empty() ? "" : " x ", choices);
    }
    SHARDPLAN_ASSIGN_OR_RETURN(
        out.cost, resolve(factor.cost, size, shape + " strategies", place + " / cost"));
    const std::size_t columns = objective.unary[static_cast<std::size_t>(out.scope.back())]->size();
    if (has_edges_ && factor.cost.columns != columns) {
      return error(fmt::format("matrix rows of {} numbers; expected {}, one for each strategy of "
                               "node {}",
                               factor.cost.columns,
                               columns,
                               out.scope.back()),
                   place + " / cost");
    }
    objective.factors.push_back(std::move(out));
  }
  return {};
}

Status StrategyGraphReader::build_rows() {
  if (!rows_.empty() && (nodes_.size() + factors_.size()) > kMostRowEntries / rows_.size()) {
    return error(fmt::format("{} rows over {} nodes and {} factors are too many",
                             rows_.size(),
                             nodes_.size(),
                             factors_.size()),
                 "rows");
  }
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    SHARDPLAN_RETURN_IF_ERROR(build_row(r));
  }
  return {};
}

Status StrategyGraphReader::build_row(std::size_t r) {
  const solvers::CostNetwork& objective = file_.graph.problem.objective;
  Row& row = rows_[r];
  solvers::ConstrainedProblem::Row out;
  out.limit = row.limit;
  out.constant = row.constant;
  out.unary.resize(nodes_.size());
  out.factors.resize(factors_.size());
  const auto place_in = [&](const std::vector<Entry>& entries,
                            std::vector<solvers::CostTable>& tables,
                            std::string_view kind,
                            const auto& shape_of) -> Status {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const auto& [index, ref] = entries[i];
      const std::string place = fmt::format("rows / {} / {} / {}", r, kind, i);
      if (static_cast<std::size_t>(index) >= tables.size()) {
        return error(fmt::format("there is no {} of the {}", index, kind), place);
      }
      solvers::CostTable& slot = tables[static_cast<std::size_t>(index)];
      if (slot) {
        return error(fmt::format("{} of the {} occurs twice in a row", index, kind), place);
      }
      const std::size_t size = shape_of(static_cast<std::size_t>(index));
      SHARDPLAN_ASSIGN_OR_RETURN(slot, resolve(ref, size, "as its costs", place));
      if (!std::all_of(slot->begin(), slot->end(), [](double x) { return std::isfinite(x); })) {
        return error("memory must be finite; forbid a strategy by its cost", place);
      }
    }
    return {};
  };
  SHARDPLAN_RETURN_IF_ERROR(place_in(
      row.nodes, out.unary, "nodes", [&](std::size_t v) { return objective.unary[v]->size(); }));
  SHARDPLAN_RETURN_IF_ERROR(place_in(row.factors, out.factors, "factors", [&](std::size_t f) {
    return objective.factors[f].cost->size();
  }));
  file_.graph.rows.push_back(row.name.empty() ? fmt::format("row {}", r) : std::move(row.name));
  file_.graph.problem.rows.push_back(std::move(out));
  return {};
}

Status StrategyGraphReader::build_published_row() {
  solvers::ConstrainedProblem::Row row;
  row.limit = kInfinity;
  bool given = false;
  for (std::size_t v = 0; v < nodes_.size(); ++v) {
    solvers::CostTable& slot = row.unary.emplace_back();
    if (nodes_[v].memory.given()) {
      given = true;
      SHARDPLAN_ASSIGN_OR_RETURN(slot,
                                 resolve(nodes_[v].memory,
                                         file_.graph.problem.objective.unary[v]->size(),
                                         "one for each strategy",
                                         fmt::format("nodes / {} / memory", v)));
    }
  }
  if (given) {
    row.factors.resize(factors_.size());
    file_.graph.rows.emplace_back("memory");
    file_.graph.problem.rows.push_back(std::move(row));
  }
  return {};
}

Status StrategyGraphReader::build_cases() {
  const std::size_t rows = file_.graph.rows.size();
  for (std::size_t c = 0; c < limits_.size(); ++c) {
    const Limits& given = limits_[c];
    const std::string place = fmt::format("cases / {}", c);
    if (given.common && given.has_each) {
      return error("has both \"memory_limit\" and \"memory_limits\"", place);
    }
    if (given.has_each && given.each.size() != rows) {
      return error(fmt::format("{} limits for {} rows", given.each.size(), rows),
                   place + " / memory_limits");
    }
    if (given.common && *given.common != kInfinity && rows == 0) {
      return error("a memory limit, and no node has memory", place + " / memory_limit");
    }
    StrategyGraphFile::Case out;
    out.optimum = given.optimum;
    out.limits =
        given.has_each ? given.each : std::vector<double>(rows, given.common.value_or(kInfinity));
    file_.cases.push_back(std::move(out));
  }
  return {};
}

Result<StrategyGraphFile> parse_strategy_graph(std::string_view content, const std::string& where) {
  if (is_gzip(content)) {
    SHARDPLAN_ASSIGN_OR_RETURN(const std::string text, inflate_gzip(content, where));
    return StrategyGraphReader(text, where).run();
  }
  return StrategyGraphReader(content, where).run();
}

Result<StrategyGraphFile> load_strategy_graph(const std::string& path) {
  SHARDPLAN_ASSIGN_OR_RETURN(const std::string content, read_file(path));
  return parse_strategy_graph(content, path);
}

}  // namespace shardplan::problem
