#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shardplan/solvers/cost_network.h"

namespace shardplan::solvers {

/// Hash of a sequence of 64-bit words, good enough to tell a few million keys apart.
[[nodiscard]] std::uint64_t hash_words(const std::uint64_t* words, std::size_t count);

struct WordsHash {
  std::size_t operator()(const std::vector<std::uint64_t>& words) const {
    return hash_words(words.data(), words.size());
  }
};

/// Maps each distinct key to a small number: 0, 1, 2, ... in the order of first sight.
class KeyIndex {
 public:
  /// The number of the key and whether it is new.
  std::pair<int, bool> number(const std::vector<std::uint64_t>& key) {
    const auto [it, fresh] = numbers_.try_emplace(key, static_cast<int>(numbers_.size()));
    return {it->second, fresh};
  }
  [[nodiscard]] int size() const { return static_cast<int>(numbers_.size()); }

 private:
  std::unordered_map<std::vector<std::uint64_t>, int, WordsHash> numbers_;
};

/// Tables by content: equal tables get equal ids, whoever made them. Ids stay valid for the life of
/// the store. A table given by pointer is hashed once and kept alive, so that the pointer
/// identifies it afterwards.
class TableStore {
 public:
  static constexpr int kZeros = -1;  ///< id of a missing table and of one of zeros only, see `part`

  [[nodiscard]] int intern(const CostTable& table);
  /// As `intern`, but kZeros for a null table or one that holds only zeros.
  [[nodiscard]] int part(const CostTable& table);
  /// Id of table `id`, whose dimensions have the given sizes, with its dimensions reordered:
  /// dimension i of the result is dimension order[i].
  [[nodiscard]] int permuted(int id, const std::vector<int>& sizes, const std::vector<int>& order);

  [[nodiscard]] const std::vector<double>& values(int id) const {
    return *entries_[static_cast<std::size_t>(id)].table;
  }
  /// Whether every value is finite.
  [[nodiscard]] bool finite(int id) const { return entries_[static_cast<std::size_t>(id)].finite; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  struct Entry {
    CostTable table;
    bool zeros = false;
    bool finite = true;
  };
  int add(const CostTable& table);

  std::vector<Entry> entries_;
  std::unordered_multimap<std::uint64_t, int> by_hash_;
  std::unordered_map<const std::vector<double>*, std::pair<CostTable, int>> by_pointer_;
  std::unordered_map<std::vector<std::uint64_t>, int, WordsHash> permuted_;
  std::size_t bytes_ = 0;
};

}  // namespace shardplan::solvers
