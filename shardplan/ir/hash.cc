#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "shardplan/ir/graph.h"

namespace shardplan::ir {

namespace {

class Fnv1a {
 public:
  void bytes(const void* data, std::size_t size) {
    const auto* at = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < size; ++i) {
      state_ = (state_ ^ at[i]) * 0x100000001b3ULL;
    }
  }
  void integer(std::int64_t value) {
    // One multiplication for the whole word: eight times fewer than byte by byte, equally stable.
    state_ = (state_ ^ static_cast<std::uint64_t>(value)) * 0x100000001b3ULL;
    state_ ^= state_ >> 32;
  }
  void text(std::string_view value) {
    integer(static_cast<std::int64_t>(value.size()));
    bytes(value.data(), value.size());
  }
  void shape(const Shape& value) {
    integer(static_cast<std::int64_t>(value.size()));
    for (const std::int64_t size : value) {
      integer(size);
    }
  }
  [[nodiscard]] std::uint64_t state() const { return state_; }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325ULL;
};

struct AttributeHasher {
  Fnv1a& hash;
  void operator()(bool value) const { hash.integer(value ? 1 : 0); }
  void operator()(std::int64_t value) const { hash.integer(value); }
  void operator()(double value) const { hash.integer(std::bit_cast<std::int64_t>(value)); }
  void operator()(const std::string& value) const { hash.text(value); }
  void operator()(const IntList& value) const { hash.shape(value); }
};

void add(Fnv1a& hash, const Value& value) {
  hash.integer(static_cast<std::int64_t>(value.kind));
  hash.integer(static_cast<std::int64_t>(value.type.dtype));
  hash.shape(value.type.shape);
  hash.text(value.name);
  hash.integer(value.trainable ? 1 : 0);
  hash.shape(value.module_shape);
  hash.integer(static_cast<std::int64_t>(value.aliases.size()));
  for (const std::string& alias : value.aliases) {
    hash.text(alias);
  }
  hash.integer(value.init_from.value);
  if (value.kind == ValueKind::kConstant && value.data != nullptr) {
    hash.bytes(value.data->data(), value.data->size());
  }
}

void add(Fnv1a& hash, const Op& op) {
  hash.text(op.name);
  hash.integer(static_cast<std::int64_t>(op.inputs.size()));
  for (const ValueId input : op.inputs) {
    hash.integer(input.value);
  }
  hash.integer(static_cast<std::int64_t>(op.outputs.size()));
  for (const ValueId output : op.outputs) {
    hash.integer(output.value);
  }
  for (const auto& [name, value] : op.attributes.entries()) {
    hash.text(name);
    hash.integer(static_cast<std::int64_t>(value.index()));
    std::visit(AttributeHasher{hash}, value);
  }
  hash.text(op.layer);
  hash.integer(static_cast<std::int64_t>(op.phase));
  hash.integer(op.source.value);
}

}  // namespace

std::string structural_hash(const Graph& graph) {
  Fnv1a hash;
  hash.text(graph.name);
  hash.integer(graph.microbatches);
  hash.integer(static_cast<std::int64_t>(graph.values().size()));
  for (const Value& value : graph.values()) {
    add(hash, value);
  }
  hash.integer(static_cast<std::int64_t>(graph.ops().size()));
  for (const Op& op : graph.ops()) {
    add(hash, op);
  }
  for (const ValueId output : graph.outputs) {
    hash.integer(output.value);
  }
  for (const std::vector<Write>* pairs : {&graph.writes, &graph.gradients}) {
    for (const Write& write : *pairs) {
      hash.integer(write.target.value);
      hash.integer(write.value.value);
    }
  }
  return fmt::format("{:016x}", hash.state());
}

}  // namespace shardplan::ir
