#include "shardplan/ops/registry.h"

#include <algorithm>
#include <iterator>

namespace shardplan::ops {
namespace {

std::vector<OpDef> joined_families() {
  std::vector<OpDef> table;
  for (const auto family :
       {unary_ops,         binary_ops,     shape_ops,     reduction_ops, einsum_ops,
        normalization_ops, batch_norm_ops, attention_ops, embedding_ops, indexing_ops,
        convolution_ops,   pooling_ops,    resample_ops,  function_ops,  selection_ops,
        loss_ops,          random_ops,     grouped_ops,   call_ops,      optimizer_ops,
        transfer_ops}) {
    std::vector<OpDef> rows = family();
    std::move(rows.begin(), rows.end(), std::back_inserter(table));
  }
  std::sort(
      table.begin(), table.end(), [](const OpDef& a, const OpDef& b) { return a.name < b.name; });
  return table;
}

const std::vector<OpDef>& sorted_table() {
  static const std::vector<OpDef> table = joined_families();
  return table;
}

}  // namespace

const OpDef* find(std::string_view name) {
  const std::vector<OpDef>& table = sorted_table();
  const auto row = std::lower_bound(
      table.begin(), table.end(), name, [](const OpDef& def, std::string_view wanted) {
        return def.name < wanted;
      });
  return row != table.end() && row->name == name ? &*row : nullptr;
}

const OpDef& get(std::string_view name) {
  const OpDef* const def = find(name);
  SHARDPLAN_CHECK(def != nullptr) << "no op '" << name << "'";
  return *def;
}

std::vector<const OpDef*> all() {
  std::vector<const OpDef*> out;
  for (const OpDef& def : sorted_table()) {
    out.push_back(&def);
  }
  return out;
}

}  // namespace shardplan::ops
