#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "shardplan/ir/graph.h"

/// Words of the text form that its printer and its parser share.
///
///   graph "two layers" microbatches=1
///   %0 = parameter "fc.weight" f32[8,4] trainable aliases=["head.weight"]
///   %1 = input "x" f32[2,4]
///   %2 = einsum(%1, %0) {equation="bk,nk->bn"} : f32[2,8] layer="fc"
///   %3 = sum(%2) {dims=[0,1], keepdim=false} : f32[]
///   output %3
///
/// One statement a line; "//" starts a comment. Values are numbered in the order of their ids, an
/// op by its position ("source=#3"). Strings are quoted, with \" \\ \n \r \t and \xNN. Data are
/// numbers, or 0x and the bits of one element.
namespace shardplan::ir::text_form {

/// Tensors with more elements print `data=elided`.
inline constexpr std::int64_t kMaxPrintedElements = 16;

inline constexpr std::array<std::pair<ValueKind, std::string_view>, 6> kKinds{
    {{ValueKind::kInput, "input"},
     {ValueKind::kParameter, "parameter"},
     {ValueKind::kBuffer, "buffer"},
     {ValueKind::kConstant, "constant"},
     {ValueKind::kState, "state"},
     {ValueKind::kAccumulator, "accumulator"}}};

inline constexpr std::array<std::pair<Phase, std::string_view>, 3> kPhases{
    {{Phase::kForward, "forward"}, {Phase::kBackward, "backward"}, {Phase::kUpdate, "update"}}};

/// The word of `key`, or "" when the table has none.
template <class Key, std::size_t N>
constexpr std::string_view word(const std::array<std::pair<Key, std::string_view>, N>& table,
                                Key key) {
  for (const auto& [entry, text] : table) {
    if (entry == key) {
      return text;
    }
  }
  return {};
}

/// The key of `text`, if the table has it.
template <class Key, std::size_t N>
constexpr std::optional<Key> key(const std::array<std::pair<Key, std::string_view>, N>& table,
                                 std::string_view text) {
  for (const auto& [entry, word] : table) {
    if (word == text) {
      return entry;
    }
  }
  return std::nullopt;
}

/// Letters, digits, "_" and ".", not starting with a digit: what may stand without quotes.
[[nodiscard]] constexpr bool is_word_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.';
}

}  // namespace shardplan::ir::text_form
