#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardplan/cli/command.h"
#include "shardplan/planners/layer_planner.h"
#include "shardplan/planners/planner.h"
#include "shardplan/support/text.h"

namespace shardplan::cli {

namespace {

nlohmann::ordered_json options_json(const planners::LayerPlannerInfo& planner) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const planners::LayerOption& option : planner.options) {
    list.push_back({{"name", option.name},
                    {"default", option.fallback},
                    {"values", option.values},
                    {"meaning", option.meaning}});
  }
  return list;
}

void print_planners_json() {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const planners::PlannerInfo& planner : planners::registry()) {
    list.push_back({{"name", planner.name},
                    {"paper", planner.paper},
                    {"year", planner.year},
                    {"summary", planner.summary},
                    {"takes", "model"}});
  }
  for (const planners::LayerPlannerInfo& planner : planners::layer_planners()) {
    list.push_back({{"name", planner.name},
                    {"paper", planner.paper},
                    {"year", planner.year},
                    {"summary", planner.summary},
                    {"takes", "layer graph"},
                    {"cannot", planner.cannot},
                    {"options", options_json(planner)}});
  }
  print_json(list);
}

Result<int> list_planners(const Session& session) {
  if (session.json) {
    print_planners_json();
    return 0;
  }
  TextTable table({"name", "year", "takes", "what it does", "paper"});
  for (const planners::PlannerInfo& planner : planners::registry()) {
    table.add({std::string(planner.name),
               fmt::format("{}", planner.year),
               "model",
               std::string(planner.summary),
               std::string(planner.paper)});
  }
  for (const planners::LayerPlannerInfo& planner : planners::layer_planners()) {
    table.add({std::string(planner.name),
               fmt::format("{}", planner.year),
               "layer graph",
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
