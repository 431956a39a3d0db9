#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "shardplan/frontends/frontends.h"
#include "shardplan/ops/op.h"
#include "shardplan/rewrite/canonicalize.h"
#include "shardplan/support/text.h"

namespace shardplan::frontends {

namespace {

/// What a file without a known ending holds when it is no text form at all; empty when it may be.
std::string other_kind(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) {
    return "is empty";
  }
  if (text.substr(first).starts_with("PK")) {
    return "is a zip archive whose name does not end in .pt2";
  }
  if (text[first] == '{') {
    return "is JSON (a plan?), not a model";
  }
  if (std::any_of(text.begin(), text.end(), [](char c) { return c == '\0'; })) {
    return "is binary, not a model";
  }
  return "";
}

Result<ir::Graph> read_text(const std::string& path) {
  SHARDPLAN_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  if (const std::string foreign = other_kind(text); !path.ends_with(".sp") && !foreign.empty()) {
    return invalid_input(
        fmt::format("{}; files of models are .pt2 (torch.export), .onnx or .sp (text form)",
                    foreign),
        path);
  }
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

/// Options that only some kinds of models have.
Status check_options(const std::string& model, const LoadOptions& options) {
  if (!options.dims.empty() && !model.ends_with(".pt2")) {
    return invalid_input(fmt::format("has no named dimensions, so '--dim {}=...' binds nothing",
                                     options.dims.begin()->first),
                         model);
  }
  if (!options.loss.empty() && options.loss != "none") {
    return invalid_input("returns its loss itself; --loss is for ONNX models", model);
  }
  return {};
}

Result<ir::Graph> read_any(const std::string& name_or_path, const LoadOptions& options) {
  if (name_or_path.ends_with(".onnx")) {
    return read_onnx(name_or_path, options);
  }
  SHARDPLAN_RETURN_IF_ERROR(check_options(name_or_path, options));
  if (name_or_path.ends_with(".pt2")) {
    return read_pt2(name_or_path, options);
  }
  std::error_code failure;
  if (name_or_path.ends_with(".sp") || std::filesystem::is_regular_file(name_or_path, failure)) {
    return read_text(name_or_path);
  }
  Result<ir::Graph> graph = zoo_model(name_or_path);
  if (!graph && graph.error().code == ErrorCode::kNotFound) {
    if (std::filesystem::is_directory(name_or_path, failure)) {
      return invalid_input(
          "is a directory; files of models are .pt2 (torch.export), .onnx or .sp (text form)",
          name_or_path);
    }
    Error error = std::move(graph).error();
    error.notes.emplace_back(
        "files of models end in .pt2 (torch.export), .onnx or .sp (text form)");
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
