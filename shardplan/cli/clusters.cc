#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardplan/cli/command.h"
#include "shardplan/cluster/cluster.h"
#include "shardplan/support/text.h"

namespace shardplan::cli {

namespace {

Result<int> list_clusters(const Session& session) {
  if (session.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const cluster::Preset& preset : cluster::presets()) {
      list.push_back({{"name", preset.form}, {"summary", preset.summary}});
    }
    print_json(list);
    return 0;
  }
  TextTable table({"name", "cluster"});
  for (const cluster::Preset& preset : cluster::presets()) {
    table.add({preset.form, preset.summary});
  }
  fmt::print("{}\nUse one as --cluster, or a YAML file (shardplan probe writes one).\n",
             table.text());
  return 0;
}

}  // namespace

Action add_clusters(CLI::App& /*app*/) {
  return list_clusters;
}

}  // namespace shardplan::cli
