// Writing a problem: one line a table, node, factor and row, so that the file can be looked at.
#include "shardplan/problem/strategy_graph_json.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>

namespace shardplan::problem {
namespace {

/// The shortest digits that read back as the same double.
void write_number(std::string& out, double value) {
  if (std::isinf(value)) {
    out += "\"inf\"";
  } else {
    fmt::format_to(std::back_inserter(out), "{}", value);
  }
}

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string limit_text(double limit) {
  return std::isinf(limit) ? "null" : fmt::format("{}", limit);
}

class Writer {
 public:
  explicit Writer(const StrategyGraphFile& file) : file_(file) {}

  std::string run() {
    const std::string nodes = write_nodes();
    const std::string factors = write_factors();
    const std::string rows = write_rows();
    std::string out = "{\n \"format\": \"shardplan.strategy_graph\",\n \"version\": 1,\n";
    out += fmt::format(" \"name\": {},\n \"unit\": {},\n \"memory_unit\": {},\n",
                       quoted(file_.name),
                       quoted(file_.unit),
                       quoted(file_.memory_unit));
    if (file_.optimum) {
      out += fmt::format(" \"optimum\": {},\n", *file_.optimum);
    }
    out +=
        list("tables", tables_) + ",\n" + list("nodes", nodes) + ",\n" + list("factors", factors);
    if (!file_.graph.rows.empty()) {
      out += ",\n" + list("rows", rows);
    }
    if (!file_.cases.empty()) {
      out += ",\n" + list("cases", write_cases());
    }
    return out + "\n}\n";
  }

 private:
  static std::string list(std::string_view name, const std::string& lines) {
    return lines.empty() ? fmt::format(" \"{}\": []", name)
                         : fmt::format(" \"{}\": [\n{}\n ]", name, lines);
  }

  static void next_line(std::string& out) { out += out.empty() ? "  " : ",\n  "; }

  /// The table's place in the pool, where it is put when it is new, told by its bits.
  std::size_t place(const solvers::CostTable& table) {
    const std::string_view bits(reinterpret_cast<const char*>(table->data()),
                                table->size() * sizeof(double));
    const auto [it, is_new] = places_.emplace(bits, places_.size());
    if (is_new) {
      next_line(tables_);
      tables_ += '[';
      for (std::size_t i = 0; i < table->size(); ++i) {
        tables_ += i == 0 ? "" : ",";
        write_number(tables_, (*table)[i]);
      }
      tables_ += ']';
    }
    return it->second;
  }

  std::string write_nodes() {
    const StrategyGraph& graph = file_.graph;
    std::string out;
    std::unordered_map<const std::vector<std::string>*, std::size_t> named;
    for (std::size_t v = 0; v < graph.problem.objective.unary.size(); ++v) {
      next_line(out);
      const bool has_name = v < graph.nodes.size() && !graph.nodes[v].empty();
      out += has_name ? fmt::format("{{\"name\": {}, ", quoted(graph.nodes[v])) : "{";
      out += fmt::format("\"cost\": {}", place(graph.problem.objective.unary[v]));
      if (v < graph.strategies.size() && graph.strategies[v]) {
        out += ", \"strategies\": ";
        const auto [it, is_new] = named.emplace(graph.strategies[v].get(), v);
        out += is_new ? nlohmann::json(*graph.strategies[v])
                            .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                      : fmt::format("{}", it->second);
      }
      out += '}';
    }
    return out;
  }

  std::string write_factors() {
    std::string out;
    for (const solvers::CostNetwork::Factor& factor : file_.graph.problem.objective.factors) {
      next_line(out);
      out += "{\"nodes\": [";
      for (std::size_t i = 0; i < factor.scope.size(); ++i) {
        out += fmt::format("{}{}", i == 0 ? "" : ",", factor.scope[i]);
      }
      out += fmt::format("], \"cost\": {}}}", place(factor.cost));
    }
    return out;
  }

  std::string write_entries(const std::vector<solvers::CostTable>& tables) {
    std::string out;
    for (std::size_t i = 0; i < tables.size(); ++i) {
      if (tables[i]) {
        out += fmt::format("{}[{},{}]", out.empty() ? "" : ",", i, place(tables[i]));
      }
    }
    return out;
  }

  std::string write_rows() {
    const StrategyGraph& graph = file_.graph;
    std::string out;
    for (std::size_t r = 0; r < graph.problem.rows.size(); ++r) {
      const solvers::ConstrainedProblem::Row& row = graph.problem.rows[r];
      next_line(out);
      out += fmt::format("{{\"name\": {}, \"limit\": {}, \"constant\": {},\n   \"nodes\": [{}]",
                         quoted(r < graph.rows.size() ? graph.rows[r] : ""),
                         limit_text(row.limit),
                         row.constant,
                         write_entries(row.unary));
      const std::string factors = write_entries(row.factors);
      out += factors.empty() ? "}" : fmt::format(",\n   \"factors\": [{}]}}", factors);
    }
    return out;
  }

  [[nodiscard]] std::string write_cases() const {
    std::string out;
    for (const StrategyGraphFile::Case& one : file_.cases) {
      next_line(out);
      out += "{\"memory_limits\": [";
      for (std::size_t r = 0; r < one.limits.size(); ++r) {
        out += (r == 0 ? "" : ", ") + limit_text(one.limits[r]);
      }
      out += one.optimum ? fmt::format("], \"optimum\": {}}}", *one.optimum) : "]}";
    }
    return out;
  }

  const StrategyGraphFile& file_;
  std::string tables_;
  std::unordered_map<std::string_view, std::size_t> places_;
};

}  // namespace

std::string to_json(const StrategyGraphFile& file) {
  return Writer(file).run();
}

}  // namespace shardplan::problem
