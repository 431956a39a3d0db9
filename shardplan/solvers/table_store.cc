#include "shardplan/solvers/table_store.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace shardplan::solvers {
namespace {

std::uint64_t mix(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x9fb21c651e98df25ULL;
  return hash ^ (hash >> 29U);
}

std::uint64_t hash_values(const std::vector<double>& values) {
  static_assert(sizeof(double) == sizeof(std::uint64_t));
  std::vector<std::uint64_t> words(values.size());
  std::memcpy(words.data(), values.data(), values.size() * sizeof(double));
  return hash_words(words.data(), words.size());
}

}  // namespace

std::uint64_t hash_words(const std::uint64_t* words, std::size_t count) {
  // Four lanes, because one would wait for each of its multiplications.
  std::array<std::uint64_t, 4> lanes = {count, 1, 2, 3};
  std::size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (std::size_t lane = 0; lane < 4; ++lane) {
      lanes[lane] = mix(lanes[lane], words[i + lane]);
    }
  }
  for (; i < count; ++i) {
    lanes[0] = mix(lanes[0], words[i]);
  }
  return mix(mix(mix(lanes[0], lanes[1]), lanes[2]), lanes[3]);
}

int TableStore::add(const CostTable& table) {
  const std::uint64_t hash = hash_values(*table);
  const auto [first, last] = by_hash_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    if (values(it->second) == *table) {
      return it->second;
    }
  }
  Entry entry;
  entry.table = table;
  entry.zeros = std::all_of(table->begin(), table->end(), [](double v) { return v == 0; });
  entry.finite =
      std::all_of(table->begin(), table->end(), [](double v) { return std::isfinite(v); });
  entries_.push_back(std::move(entry));
  bytes_ += table->size() * sizeof(double);
  by_hash_.emplace(hash, static_cast<int>(entries_.size()) - 1);
  return static_cast<int>(entries_.size()) - 1;
}

int TableStore::intern(const CostTable& table) {
  auto& slot = by_pointer_[table.get()];
  if (!slot.first) {
    slot = {table, add(table)};
  }
  return slot.second;
}

int TableStore::part(const CostTable& table) {
  if (!table) {
    return kZeros;
  }
  const int id = intern(table);
  return entries_[static_cast<std::size_t>(id)].zeros ? kZeros : id;
}

int TableStore::permuted(int id, const std::vector<int>& sizes, const std::vector<int>& order) {
  if (id == kZeros || std::is_sorted(order.begin(), order.end())) {
    return id;
  }
  std::vector<std::uint64_t> key{static_cast<std::uint64_t>(id)};
  for (std::size_t i = 0; i < order.size(); ++i) {
    key.push_back(static_cast<std::uint64_t>(sizes[i]));
    key.push_back(static_cast<std::uint64_t>(order[i]));
  }
  const auto known = permuted_.find(key);
  if (known != permuted_.end()) {
    return known->second;
  }
  const std::size_t arity = order.size();
  std::vector<std::size_t> stride(arity, 1);  // of the source's dimensions
  for (std::size_t i = arity - 1; i-- > 0;) {
    stride[i] = stride[i + 1] * static_cast<std::size_t>(sizes[i + 1]);
  }
  const std::vector<double>& source = values(id);
  std::vector<double> target(source.size());
  std::vector<int> digit(arity, 0);
  std::size_t at = 0;
  for (double& value : target) {
    value = source[at];
    for (std::size_t i = arity; i-- > 0;) {
      const auto from = static_cast<std::size_t>(order[i]);
      at += stride[from];
      if (++digit[i] < sizes[from]) {
        break;
      }
      at -= stride[from] * static_cast<std::size_t>(digit[i]);
      digit[i] = 0;
    }
  }
  const int result = add(std::make_shared<const std::vector<double>>(std::move(target)));
  permuted_.emplace(std::move(key), result);
  return result;
}

}  // namespace shardplan::solvers
