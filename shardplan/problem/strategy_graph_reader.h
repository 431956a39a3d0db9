#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardplan/problem/json_cursor.h"
#include "shardplan/problem/strategy_graph_json.h"
#include "shardplan/problem/table_pool.h"

namespace shardplan::problem {

/// Reads both forms of a problem file: read() takes the text apart in whatever order its fields
/// come, build() then checks what they say together.
class StrategyGraphReader {
 public:
  StrategyGraphReader(std::string_view text, const std::string& where)
      : where_(where), cursor_(text, where_) {}
  [[nodiscard]] Result<StrategyGraphFile> run();

 private:
  struct Node {
    std::string name;
    TableRef cost{};
    TableRef memory{};
    std::vector<std::string> strategies{};
    std::int64_t same_names = -1;  ///< the node whose names of strategies these are
  };
  struct Factor {
    std::vector<std::int64_t> scope{};
    TableRef cost{};
  };
  using Entry = std::pair<std::int64_t, TableRef>;  ///< of a node or factor
  struct Row {
    std::string name;
    double limit = 0;
    double constant = 0;
    std::vector<Entry> nodes{};
    std::vector<Entry> factors{};
  };
  struct Limits {
    std::optional<double> common{};
    std::vector<double> each{};
    bool has_each = false;
    std::optional<double> optimum{};
  };

  // Reading; false: the cursor has the error.
  [[nodiscard]] bool read();
  [[nodiscard]] bool read_top(const std::string& key);
  [[nodiscard]] bool read_header(const std::string& key, bool& known);
  [[nodiscard]] bool read_format();
  [[nodiscard]] bool read_node();
  [[nodiscard]] bool read_names(Node& node);
  [[nodiscard]] bool read_factor();
  [[nodiscard]] bool read_edge();
  [[nodiscard]] bool read_row();
  [[nodiscard]] bool read_entries(std::vector<Entry>& out);
  [[nodiscard]] bool read_case();
  [[nodiscard]] bool read_case_field(const std::string& key, Limits& out);
  [[nodiscard]] bool read_cost(TablePool::Shape shape, TableRef& out);
  [[nodiscard]] bool read_limit(double& out);
  [[nodiscard]] bool read_index(std::int64_t& out);
  /// Passes a field that our own form does not have; the published one may have more than we know.
  [[nodiscard]] bool skip_foreign(const std::string& key);
  void note_foreign(const std::string& key);

  // Building.
  [[nodiscard]] Result<StrategyGraphFile> build();
  [[nodiscard]] Status check_form() const;
  [[nodiscard]] Status build_nodes();
  [[nodiscard]] Status build_factors();
  [[nodiscard]] Status build_rows();
  [[nodiscard]] Status build_row(std::size_t r);
  [[nodiscard]] Status build_published_row();
  [[nodiscard]] Status build_cases();
  [[nodiscard]] Result<solvers::CostTable> resolve(const TableRef& ref,
                                                   std::size_t size,
                                                   std::string_view meaning,
                                                   const std::string& place) const;
  [[nodiscard]] Error error(const std::string& message, const std::string& place) const;

  std::string where_;
  JsonCursor cursor_;
  TablePool pool_;
  bool own_form_ = false;
  bool has_version_ = false;
  bool has_edges_ = false;
  bool has_nodes_ = false;
  std::optional<Error> foreign_{};  ///< the first field that our own form does not have
  std::vector<TableRef> tables_;
  std::vector<Node> nodes_;
  std::vector<Factor> factors_;
  std::vector<Row> rows_;
  std::vector<Limits> limits_;
  StrategyGraphFile file_;
};

}  // namespace shardplan::problem
