#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shardplan/problem/json_cursor.h"
#include "shardplan/solvers/cost_network.h"

namespace shardplan::problem {

/// A table as it stands in a file: its numbers, or a place in the list of tables.
struct TableRef {
  std::int64_t pool = -1;  ///< index into `tables`; -1: the numbers are here
  solvers::CostTable values{};
  std::size_t columns = 0;  ///< of a matrix; 0 for a flat list

  [[nodiscard]] bool given() const { return pool >= 0 || values; }
};

/// Reads tables so that equal ones are held once: by their text, which saves reading the numbers of
/// a table that was there before, and by their numbers.
class TablePool {
 public:
  enum class Shape { kList, kMatrix };
  /// `infinity`: whether entries may be infinite.
  [[nodiscard]] bool read(JsonCursor& cursor, Shape shape, bool infinity, TableRef& out);
  /// Shares a table with equal ones.
  [[nodiscard]] solvers::CostTable share(std::vector<double> values);

 private:
  [[nodiscard]] static bool read_matrix(JsonCursor& cursor,
                                        bool infinity,
                                        std::vector<double>& values,
                                        std::size_t& columns);

  std::unordered_map<std::string_view, TableRef> by_text_[4];  ///< by shape and infinity
  std::unordered_multimap<std::uint64_t, solvers::CostTable> by_values_;
};

}  // namespace shardplan::problem
