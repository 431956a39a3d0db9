#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardplan/cli/command.h"
#include "shardplan/planners/planner.h"
#include "shardplan/support/text.h"

namespace shardplan::cli {

namespace {

Result<int> list_planners(const Session& session) {
  if (session.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const planners::PlannerInfo& planner : planners::registry()) {
      list.push_back({{"name", planner.name},
                      {"paper", planner.paper},
                      {"year", planner.year},
                      {"summary", planner.summary}});
    }
    print_json(list);
    return 0;
  }
  TextTable table({"name", "year", "what it does", "paper"});
  for (const planners::PlannerInfo& planner : planners::registry()) {
    table.add({std::string(planner.name),
               fmt::format("{}", planner.year),
               std::string(planner.summary),
               std::string(planner.paper)});
  }
  fmt::print("{}", table.text());
  return 0;
}

}  // namespace

Action add_planners(CLI::App& /*app*/) {
  return list_planners;
}

}  // namespace shardplan::cli
