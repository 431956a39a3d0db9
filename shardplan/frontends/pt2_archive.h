#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shardplan/support/result.h"

namespace shardplan::frontends {

/// The files inside a `.pt2` archive: a zip with one top folder, whose name is left out of the
/// paths here ("models/model.json"). Read only; entries are read when asked for.
class Pt2Archive {
 public:
  static Result<Pt2Archive> open(const std::string& path);

  Pt2Archive(Pt2Archive&&) noexcept;
  Pt2Archive& operator=(Pt2Archive&&) noexcept;
  ~Pt2Archive();

  [[nodiscard]] bool has(std::string_view entry) const;
  /// Bytes of the entry when unpacked; nothing when there is no such entry.
  [[nodiscard]] std::optional<std::uint64_t> size(std::string_view entry) const;
  /// The whole entry, checked against its CRC. An error when it is missing, larger than
  /// `max_bytes`, damaged, or packed so tightly that it can only be a decompression bomb.
  [[nodiscard]] Result<std::string> read(std::string_view entry, std::uint64_t max_bytes) const;
  [[nodiscard]] Result<std::vector<std::byte>> read_bytes(std::string_view entry,
                                                          std::uint64_t max_bytes) const;

 private:
  struct State;
  explicit Pt2Archive(std::unique_ptr<State> state);

  [[nodiscard]] Error error(std::string message, std::string_view entry) const;
  template <class Container>
  Result<Container> read_as(std::string_view entry, std::uint64_t max_bytes) const;

  std::unique_ptr<State> state_;
};

}  // namespace shardplan::frontends
