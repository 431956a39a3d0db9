// Evaluates ONNX models, forward only, by the runtime's kernels in the graph's order: on one
// device, or with meshes on the command line
//
//   onnx_eval [--one] 4 2x2
//
// every op in every strategy over them, held against the op on whole tensors; what is read on are
// results put together from the parts of the first mesh. With --one no other strategy is run. Reads
// folders from standard input, one a line; each holds model.onnx, dims.txt ("name size" a line) and
// input_0.bin, ... (raw little-endian, in the order of the model's inputs). Writes output_0.bin,
// ... beside them and prints a line for each folder, fields apart by tabs:
//   ok <type of output 0> ...      refused <message of the reader>      failed <message of a
//   kernel>
// With meshes, strategies.txt holds "<ops> <repeated> <strategies> <wrong>" and a line for each
// strategy that differs.

#include <ATen/Parallel.h>

#include <fstream>
#include <iostream>

#include "graph_evaluation.h"
#include "shardplan/frontends/frontends.h"
#include "shardplan/rewrite/canonicalize.h"
#include "shardplan/support/text.h"

namespace shardplan::runtime {
namespace {

Result<ir::Graph> read_model(const std::string& folder) {
  frontends::LoadOptions options{.weights = true};
  std::ifstream dims(folder + "/dims.txt");
  std::string name;
  for (std::int64_t size = 0; dims >> name >> size;) {
    options.dims[name] = size;
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const ir::Graph graph,
                             frontends::read_onnx_outputs(folder + "/model.onnx", options));
  return rewrite::canonicalize(graph);
}

/// Inputs from their files, weights and constants from the graph.
Result<std::vector<at::Tensor>> first_values(const ir::Graph& graph, const std::string& folder) {
  std::vector<at::Tensor> values(graph.values().size());
  int inputs = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const ir::Value& value = graph.values()[i];
    if (value.data != nullptr) {
      values[i] = tensor_of(value.type, value.data->data());
    } else if (value.kind == ir::ValueKind::kInput) {
      SHARDPLAN_ASSIGN_OR_RETURN(const std::string bytes,
                                 read_file(folder + "/input_" + std::to_string(inputs++) + ".bin"));
      if (static_cast<Bytes>(bytes.size()) != value.type.bytes()) {
        return invalid_input("input '" + value.name + "' is " + to_string(value.type) +
                             " but has " + std::to_string(bytes.size()) + " bytes");
      }
      values[i] = tensor_of(value.type, bytes.data());
    }
  }
  return values;
}

void write_strategies(const StrategyCheck& check, const std::string& folder) {
  std::ofstream file(folder + "/strategies.txt");
  const StrategyCheck::Counts& counts = check.counts;
  file << counts.ops << " " << counts.repeated << " " << counts.strategies << " " << counts.wrong
       << "\n";
  for (const std::string& complaint : check.complaints) {
    file << one_line(complaint) << "\n";
  }
}

std::string evaluate_folder(const std::string& folder,
                            const std::vector<std::string>& meshes,
                            StrategyCheck::Which which) {
  const Result<ir::Graph> graph = read_model(folder);
  if (!graph) {
    return "refused\t" + one_line(graph.error().text());
  }
  Result<std::vector<at::Tensor>> values = first_values(*graph, folder);
  if (!values) {
    return "failed\t" + one_line(values.error().text());
  }
  try {
    StrategyCheck check(meshes, which);
    evaluate(*graph, *values, [&](const ir::Op& op, const OpInstance& is, const Tensors& operands) {
      return meshes.empty() ? run_whole(is, operands) : check.check(is, operands, op.layer);
    });
    if (!meshes.empty()) {
      write_strategies(check, folder);
    }
  } catch (const std::exception& error) {
    return "failed\t" + one_line(first_line(error));
  }
  std::string line = "ok";
  for (std::size_t i = 1; i < graph->outputs.size(); ++i) {
    const at::Tensor result = (*values)[graph->outputs[i].index()].contiguous();
    std::ofstream file(folder + "/output_" + std::to_string(i - 1) + ".bin", std::ios::binary);
    file.write(static_cast<const char*>(result.const_data_ptr()),
               static_cast<std::streamsize>(result.nbytes()));
    line += "\t" + to_string(graph->type(graph->outputs[i]));
  }
  return line;
}

}  // namespace
}  // namespace shardplan::runtime

int main(int count, char** arguments) {
  using shardplan::runtime::StrategyCheck;
  std::vector<std::string> meshes(arguments + 1, arguments + count);
  StrategyCheck::Which which = StrategyCheck::Which::kAll;
  if (!meshes.empty() && meshes.front() == "--one") {
    meshes.erase(meshes.begin());
    which = StrategyCheck::Which::kReadOn;
  }
  at::set_num_threads(1);
  for (std::string folder; std::getline(std::cin, folder);) {
    std::cout << shardplan::runtime::evaluate_folder(folder, meshes, which) << std::endl;
  }
  return 0;
}
