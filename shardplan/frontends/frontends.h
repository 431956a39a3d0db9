#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/support/result.h"

namespace shardplan::frontends {

struct LoadOptions {
  bool weights = false;  ///< read weight data too (a run needs them; planning does not)
};

/// The forward graph of MODEL: a `.pt2` archive of torch.export, a file in the text form (`.sp`),
/// or a zoo name such as "gpt:layers=12,hidden=768,heads=12,seq=1024,batch=8,vocab=50257" or
/// "mlp:layers=4,hidden=1024,batch=64". outputs[0] is the scalar loss; the graph is canonical (see
/// rewrite). Unknown names and keys get suggestions.
[[nodiscard]] Result<ir::Graph> load_model(const std::string& name_or_path,
                                           const LoadOptions& options = {});

[[nodiscard]] Result<ir::Graph> read_pt2(const std::string& path, const LoadOptions& options = {});
[[nodiscard]] Result<ir::Graph> zoo_model(std::string_view name);

struct ZooEntry {
  std::string name{};
  std::string summary{};
  std::string parameters{};  ///< "layers=12,hidden=768,..." with the defaults
};
[[nodiscard]] std::vector<ZooEntry> zoo();

}  // namespace shardplan::frontends
