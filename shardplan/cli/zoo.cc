#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardplan/cli/command.h"
#include "shardplan/frontends/frontends.h"
#include "shardplan/support/text.h"

namespace shardplan::cli {

namespace {

Result<int> list_zoo(const Session& session) {
  if (session.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const frontends::ZooEntry& entry : frontends::zoo()) {
      list.push_back(
          {{"name", entry.name}, {"summary", entry.summary}, {"parameters", entry.parameters}});
    }
    print_json(list);
    return 0;
  }
  TextTable table({"name", "model", "parameters with their defaults"});
  for (const frontends::ZooEntry& entry : frontends::zoo()) {
    table.add({entry.name, entry.summary, entry.parameters});
  }
  fmt::print("{}\nUse one as MODEL, as NAME or NAME:key=value,...\n", table.text());
  return 0;
}

}  // namespace

Action add_zoo(CLI::App& /*app*/) {
  return list_zoo;
}

}  // namespace shardplan::cli
