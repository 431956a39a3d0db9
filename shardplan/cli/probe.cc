#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardplan/cli/command.h"
#include "shardplan/cli/session.h"
#include "shardplan/cluster/cluster.h"
#include "shardplan/support/text.h"
#ifdef SHARDPLAN_WITH_RUNTIME
#include "shardplan/runtime/runtime.h"
#endif

namespace shardplan::cli {

namespace {

struct Options {
  int ranks = 2;
  bool quick = false;
  std::string output{};
};

#ifdef SHARDPLAN_WITH_RUNTIME

nlohmann::ordered_json to_object(const cluster::Cluster& cluster) {
  nlohmann::ordered_json object;
  object["name"] = cluster.name;
  object["devices"] = cluster.device_count();
  object["memory"] = cluster.device.memory;
  object["peak_flops"] = cluster.device.peak_flops;
  object["memory_bandwidth"] = cluster.device.memory_bandwidth;
  object["yaml"] = cluster::to_yaml(cluster);
  return object;
}

void print_summary(const cluster::Cluster& cluster) {
  fmt::print("devices   {} processes, {} each\n",
             cluster.device_count(),
             human_bytes(cluster.device.memory));
  for (const auto& [dtype, rate] : cluster.device.peak_flops) {
    fmt::print("matmul    {} in {}\n", human_flops(rate) + "/s", dtype);
  }
  fmt::print("memory    {:.3g} GB/s\n", cluster.device.memory_bandwidth / 1e9);
  for (const cluster::LinkLevel& level : cluster.levels) {
    fmt::print("link      {} {:.3g} GB/s, {} a message\n",
               level.name,
               level.bandwidth / 1e9,
               human_seconds(level.latency));
  }
}

Result<int> probe(const Options& options, const Session& session) {
  SHARDPLAN_ASSIGN_OR_RETURN(
      const cluster::Cluster cluster,
      runtime::probe({.ranks = options.ranks, .quick = options.quick}, session.control));
  const std::string yaml = cluster::to_yaml(cluster);
  if (!options.output.empty()) {
    SHARDPLAN_RETURN_IF_ERROR(write_file(options.output, yaml));
  }
  clear_progress();
  if (session.json) {
    print_json(to_object(cluster));
  } else if (options.output.empty()) {
    fmt::print("{}", yaml);
  } else {
    print_summary(cluster);
    fmt::print("wrote     {}  use it: shardplan plan MODEL --cluster {}\n",
               options.output,
               options.output);
  }
  return 0;
}

#else

Result<int> probe(const Options& /*options*/, const Session& /*session*/) {
  return Error{ErrorCode::kUnsupported,
               "this build has no runtime",
               "probe",
               {"build with torch (make build) and use build/shardplan"}};
}

#endif

}  // namespace

Action add_probe(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  app.add_option("--ranks", options->ranks, "processes to measure collectives between")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_flag("--quick", options->quick, "fewer sizes and repetitions: seconds, less exact");
  app.add_option("-o,--output", options->output, "YAML file; default: print it");
  return [options](const Session& session) { return probe(*options, session); };
}

}  // namespace shardplan::cli
