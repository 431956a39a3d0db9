#include "shardplan/problem/table_pool.h"

#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <utility>

namespace shardplan::problem {

solvers::CostTable TablePool::share(std::vector<double> values) {
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()),
                               values.size() * sizeof(double));
  const std::uint64_t hash = std::hash<std::string_view>{}(bytes);
  const auto [first, last] = by_values_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    const std::vector<double>& known = *it->second;
    // By bits: -0.0 has to come back as it was.
    if (known.size() == values.size() &&
        std::memcmp(known.data(), values.data(), bytes.size()) == 0) {
      return it->second;
    }
  }
  auto table = std::make_shared<const std::vector<double>>(std::move(values));
  by_values_.emplace(hash, table);
  return table;
}

bool TablePool::read_matrix(JsonCursor& cursor,
                            bool infinity,
                            std::vector<double>& values,
                            std::size_t& columns) {
  bool more = false;
  bool first = true;
  if (!cursor.enter_list()) {
    return false;
  }
  while (cursor.next_item(more) && more) {
    const std::size_t before = values.size();
    if (!cursor.numbers(values, infinity)) {
      return false;
    }
    const std::size_t found = values.size() - before;
    if (!first && found != columns) {
      return cursor.fail(
          fmt::format("a matrix row of {} numbers after rows of {}", found, columns));
    }
    columns = found;
    first = false;
  }
  return cursor.good();
}

bool TablePool::read(JsonCursor& cursor, Shape shape, bool infinity, TableRef& out) {
  auto& known = by_text_[(shape == Shape::kMatrix ? 2 : 0) + (infinity ? 1 : 0)];
  const std::string_view text = cursor.numeric_list();
  if (const auto it = known.find(text); !text.empty() && it != known.end()) {
    out = it->second;
    cursor.pass(text);
    return true;
  }
  std::vector<double> values;
  const bool good = shape == Shape::kMatrix ? read_matrix(cursor, infinity, values, out.columns)
                                            : cursor.numbers(values, infinity);
  if (!good) {
    return false;
  }
  out.values = share(std::move(values));
  if (!text.empty()) {
    known.emplace(text, out);
  }
  return true;
}

}  // namespace shardplan::problem
