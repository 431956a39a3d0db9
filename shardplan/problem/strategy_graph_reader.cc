// Taking a problem file apart; what its parts mean together is in strategy_graph_build.cc.
#include "shardplan/problem/strategy_graph_reader.h"

#include <fmt/format.h>

#include <limits>

namespace shardplan::problem {
namespace {

constexpr std::string_view kFormat = "shardplan.strategy_graph";
constexpr std::int64_t kVersion = 1;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

Result<StrategyGraphFile> StrategyGraphReader::run() {
  if (!read()) {
    return cursor_.error();
  }
  return build();
}

bool StrategyGraphReader::read() {
  std::string key;
  bool more = false;
  if (!cursor_.enter_object()) {
    return false;
  }
  while (cursor_.next_field(key, more) && more) {
    bool known = true;
    if (!read_header(key, known) || (!known && !read_top(key))) {
      return false;
    }
  }
  return cursor_.good() && cursor_.at_end();
}

bool StrategyGraphReader::read_header(const std::string& key, bool& known) {
  if (key == "format") {
    return read_format();
  }
  if (key == "version") {
    std::int64_t version = 0;
    has_version_ = true;
    if (!cursor_.integer(1, std::numeric_limits<std::int32_t>::max(), version)) {
      return false;
    }
    return version == kVersion ||
           cursor_.fail(fmt::format(
               "version {} is newer than this program, which reads version {}", version, kVersion));
  }
  if (key == "name") {
    return cursor_.text(file_.name);
  }
  if (key == "unit") {
    return cursor_.text(file_.unit);
  }
  if (key == "memory_unit") {
    return cursor_.text(file_.memory_unit);
  }
  if (key == "optimum") {
    return cursor_.null() || cursor_.number(file_.optimum.emplace());
  }
  known = false;
  return true;
}

bool StrategyGraphReader::read_format() {
  std::string format;
  if (!cursor_.text(format)) {
    return false;
  }
  own_form_ = true;
  return format == kFormat ||
         cursor_.fail(fmt::format("is \"{}\"; a problem file says \"{}\"", format, kFormat));
}

bool StrategyGraphReader::read_top(const std::string& key) {
  if (key == "tables") {
    return cursor_.list(
        [this] { return read_cost(TablePool::Shape::kList, tables_.emplace_back()); });
  }
  if (key == "nodes") {
    has_nodes_ = true;
    return cursor_.list([this] { return read_node(); });
  }
  if (key == "factors") {
    return cursor_.list([this] { return read_factor(); });
  }
  if (key == "edges") {
    has_edges_ = true;
    note_foreign(key);
    return cursor_.list([this] { return read_edge(); });
  }
  if (key == "rows") {
    return cursor_.list([this] { return read_row(); });
  }
  if (key == "cases") {
    return cursor_.list([this] { return read_case(); });
  }
  return skip_foreign(key);
}

void StrategyGraphReader::note_foreign(const std::string& key) {
  if (!foreign_) {
    foreign_ =
        invalid_input(fmt::format("unknown field \"{}\"", key), where_ + ": " + cursor_.place());
  }
}

bool StrategyGraphReader::skip_foreign(const std::string& key) {
  note_foreign(key);
  return cursor_.skip();
}

bool StrategyGraphReader::read_index(std::int64_t& out) {
  return cursor_.integer(0, std::numeric_limits<std::int32_t>::max(), out);
}

bool StrategyGraphReader::read_cost(TablePool::Shape shape, TableRef& out) {
  return cursor_.peek() == '0' ? read_index(out.pool) : pool_.read(cursor_, shape, true, out);
}

bool StrategyGraphReader::read_limit(double& out) {
  if (cursor_.null()) {
    out = kInfinity;
    return true;
  }
  return cursor_.number(out);
}

bool StrategyGraphReader::read_node() {
  std::string key;
  bool more = false;
  Node& node = nodes_.emplace_back();
  if (!cursor_.enter_object()) {
    return false;
  }
  while (cursor_.next_field(key, more) && more) {
    bool good = true;
    if (key == "cost") {
      good = read_cost(TablePool::Shape::kList, node.cost);
    } else if (key == "name") {
      good = cursor_.text(node.name);
    } else if (key == "memory") {
      note_foreign(key);
      good = pool_.read(cursor_, TablePool::Shape::kList, false, node.memory);
    } else if (key == "strategies") {
      good = read_names(node);
    } else {
      good = skip_foreign(key);
    }
    if (!good) {
      return false;
    }
  }
  return cursor_.good() &&
         (node.cost.given() || cursor_.fail("a node without \"cost\", the list of its costs"));
}

bool StrategyGraphReader::read_names(Node& node) {
  if (cursor_.peek() == '0') {
    return read_index(node.same_names);
  }
  return cursor_.list([&] { return cursor_.text(node.strategies.emplace_back()); });
}

bool StrategyGraphReader::read_factor() {
  std::string key;
  bool more = false;
  bool has_scope = false;
  Factor& factor = factors_.emplace_back();
  if (!cursor_.enter_object()) {
    return false;
  }
  while (cursor_.next_field(key, more) && more) {
    bool good = true;
    if (key == "nodes") {
      has_scope = true;
      good = cursor_.list([&] { return read_index(factor.scope.emplace_back()); });
    } else if (key == "cost") {
      good = read_cost(TablePool::Shape::kList, factor.cost);
    } else {
      good = skip_foreign(key);
    }
    if (!good) {
      return false;
    }
  }
  return cursor_.good() && ((has_scope && factor.cost.given()) ||
                            cursor_.fail("a factor needs \"nodes\" and \"cost\""));
}

bool StrategyGraphReader::read_edge() {
  std::string key;
  bool more = false;
  Factor& edge = factors_.emplace_back();
  edge.scope = {-1, -1};
  if (!cursor_.enter_object()) {
    return false;
  }
  while (cursor_.next_field(key, more) && more) {
    bool good = true;
    if (key == "cost") {
      good = pool_.read(cursor_, TablePool::Shape::kMatrix, true, edge.cost);
    } else if (key == "from" || key == "to") {
      good = read_index(edge.scope[key == "from" ? 0 : 1]);
    } else {
      good = skip_foreign(key);
    }
    if (!good) {
      return false;
    }
  }
  return cursor_.good() && ((edge.scope[0] >= 0 && edge.scope[1] >= 0 && edge.cost.given()) ||
                            cursor_.fail("an edge needs \"from\", \"to\" and \"cost\""));
}

bool StrategyGraphReader::read_row() {
  std::string key;
  bool more = false;
  Row& row = rows_.emplace_back();
  row.limit = kInfinity;
  if (!cursor_.enter_object()) {
    return false;
  }
  while (cursor_.next_field(key, more) && more) {
    bool good = true;
    if (key == "name") {
      good = cursor_.text(row.name);
    } else if (key == "limit") {
      good = read_limit(row.limit);
    } else if (key == "constant") {
      good = cursor_.number(row.constant);
    } else if (key == "nodes") {
      good = read_entries(row.nodes);
    } else if (key == "factors") {
      good = read_entries(row.factors);
    } else {
      good = skip_foreign(key);
    }
    if (!good) {
      return false;
    }
  }
  return cursor_.good();
}

/// [[node or factor, table], ...]
bool StrategyGraphReader::read_entries(std::vector<Entry>& out) {
  return cursor_.list([&] {
    Entry& entry = out.emplace_back();
    int count = 0;
    const bool good = cursor_.list([&] {
      switch (count++) {
        case 0:
          return read_index(entry.first);
        case 1:
          return cursor_.peek() == '0'
                     ? read_index(entry.second.pool)
                     : pool_.read(cursor_, TablePool::Shape::kList, false, entry.second);
        default:
          return cursor_.fail("more than an index and a table");
      }
    });
    return good && (count == 2 || cursor_.fail("expected an index and a table"));
  });
}

bool StrategyGraphReader::read_case() {
  std::string key;
  bool more = false;
  Limits& out = limits_.emplace_back();
  if (!cursor_.enter_object()) {
    return false;
  }
  while (cursor_.next_field(key, more) && more) {
    if (!read_case_field(key, out)) {
      return false;
    }
  }
  return cursor_.good();
}

bool StrategyGraphReader::read_case_field(const std::string& key, Limits& out) {
  if (key == "memory_limit") {
    return read_limit(out.common.emplace());
  }
  if (key == "memory_limits") {
    out.has_each = true;
    return cursor_.list([&] { return read_limit(out.each.emplace_back()); });
  }
  if (key == "optimum") {
    return cursor_.null() || cursor_.number(out.optimum.emplace());
  }
  return skip_foreign(key);
}

}  // namespace shardplan::problem
