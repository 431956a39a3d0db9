#include <fmt/format.h>

#include <filesystem>

#include "shardplan/frontends/frontends.h"
#include "shardplan/ops/op.h"
#include "shardplan/rewrite/canonicalize.h"
#include "shardplan/support/text.h"

namespace shardplan::frontends {

namespace {

Result<ir::Graph> read_text(const std::string& path) {
  SHARDPLAN_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  Result<ir::Graph> graph = ir::parse(text);
  if (!graph) {
    Error error = std::move(graph).error();
    error.location = path + ": " + error.location;
    return error;
  }
  if (graph->outputs.empty()) {
    return invalid_input("the graph has no output, a scalar loss is needed", path);
  }
  SHARDPLAN_RETURN_IF_ERROR(ops::verify(*graph));
  return graph;
}

Result<ir::Graph> read_any(const std::string& name_or_path, const LoadOptions& options) {
  if (name_or_path.ends_with(".pt2")) {
    return read_pt2(name_or_path, options);
  }
  std::error_code failure;
  if (name_or_path.ends_with(".sp") || std::filesystem::is_regular_file(name_or_path, failure)) {
    return read_text(name_or_path);
  }
  Result<ir::Graph> graph = zoo_model(name_or_path);
  if (!graph && graph.error().code == ErrorCode::kNotFound) {
    Error error = std::move(graph).error();
    error.notes.emplace_back("files of models end in .pt2 (torch.export) or .sp (text form)");
    return error;
  }
  return graph;
}

}  // namespace

Result<ir::Graph> load_model(const std::string& name_or_path, const LoadOptions& options) {
  SHARDPLAN_ASSIGN_OR_RETURN(const ir::Graph graph, read_any(name_or_path, options));
  return rewrite::canonicalize(graph);
}

}  // namespace shardplan::frontends
