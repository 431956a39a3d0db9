// Evaluates training steps of archives on one device, by the runtime's kernels in the graph's
// order, and every op of them in every strategy over the meshes of the command line:
//
//   step_eval 2 4 2x2 2x3
//
// Reads folders from standard input, one a line; each holds model.pt2 and inputs.bin (raw content
// of the model's inputs, one after the other). Writes values.bin (the gradients of parameters and
// the new content of buffers) and values.txt (a line for each: its name and type) beside them, and
// complaints.txt. Prints a line for each folder, fields apart by tabs:
//   ok <ops> <repeated> <strategies> <wrong> <names of calls>
//   refused <message of the reader>
//   failed <message of a kernel>

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <fstream>
#include <iostream>
#include <set>

#include "graph_evaluation.h"
#include "shardplan/frontends/frontends.h"
#include "shardplan/ops/call.h"
#include "shardplan/rewrite/canonicalize.h"
#include "shardplan/support/text.h"
#include "shardplan/training/training.h"

namespace shardplan::runtime {
namespace {

Result<ir::Graph> read_step(const std::string& folder) {
  SHARDPLAN_ASSIGN_OR_RETURN(
      const ir::Graph forward,
      frontends::load_model(folder + "/model.pt2", frontends::LoadOptions{.weights = true}));
  SHARDPLAN_ASSIGN_OR_RETURN(const training::Optimizer sgd, training::parse_optimizer("sgd:lr=1"));
  SHARDPLAN_ASSIGN_OR_RETURN(
      ir::Graph step, training::build_training_step(forward, training::Recipe{.optimizer = sgd}));
  for (const ir::Op& op : step.ops()) {
    SHARDPLAN_RETURN_IF_ERROR(check_runnable(op));
  }
  return step;
}

Result<Tensors> first_values(const ir::Graph& graph, const std::string& folder) {
  SHARDPLAN_ASSIGN_OR_RETURN(const std::string inputs, read_file(folder + "/inputs.bin"));
  std::size_t offset = 0;
  Tensors values(graph.values().size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const ir::Value& value = graph.values()[i];
    if (value.data != nullptr) {
      values[i] = tensor_of(value.type, value.data->data());
    } else if (value.kind == ir::ValueKind::kInput) {
      const auto bytes = static_cast<std::size_t>(value.type.bytes());
      if (offset + bytes > inputs.size()) {
        return invalid_input("inputs.bin ends before input '" + value.name + "'");
      }
      values[i] = tensor_of(value.type, inputs.data() + offset);
      offset += bytes;
    } else if (value.kind == ir::ValueKind::kState) {
      values[i] = at::zeros(value.type.shape, at::TensorOptions(scalar_type(value.type.dtype)));
    }
  }
  if (offset != inputs.size()) {
    return invalid_input("inputs.bin holds more than the inputs of the model");
  }
  return values;
}

void write_values(const ir::Graph& graph, const Tensors& values, const std::string& folder) {
  std::ofstream content(folder + "/values.bin", std::ios::binary);
  std::ofstream names(folder + "/values.txt");
  const auto write = [&](const ir::Write& pair, ir::ValueKind kind) {
    const ir::Value& target = graph.value(pair.target);
    if (target.kind == kind) {
      const at::Tensor tensor = values[pair.value.index()].contiguous();
      names << target.name << "\t" << to_string(graph.type(pair.value)) << "\n";
      content.write(static_cast<const char*>(tensor.const_data_ptr()),
                    static_cast<std::streamsize>(tensor.nbytes()));
    }
  };
  for (const ir::Write& pair : graph.gradients) {
    write(pair, ir::ValueKind::kParameter);
  }
  for (const ir::Write& pair : graph.writes) {
    write(pair, ir::ValueKind::kBuffer);
  }
}

std::string evaluate_folder(const std::string& folder, StrategyCheck& check, bool strategies) {
  const Result<ir::Graph> graph = read_step(folder);
  if (!graph) {
    return "refused\t" + one_line(graph.error().text());
  }
  Result<Tensors> values = first_values(*graph, folder);
  if (!values) {
    return "failed\t" + one_line(values.error().text());
  }
  std::set<std::string> calls;
  const StrategyCheck::Counts before = check.counts;
  check.complaints.clear();
  try {
    evaluate(*graph, *values, [&](const ir::Op& op, const OpInstance& is, const Tensors& operands) {
      if (op.name == "call") {
        calls.insert(std::string(ops::call_name(op.attributes.string("target"))));
      }
      if (strategies) {
        check.check(is, operands, op.layer);
      }
      return run_whole(is, operands);
    });
  } catch (const std::exception& error) {
    return "failed\t" + one_line(first_line(error));
  }
  write_values(*graph, *values, folder);
  std::ofstream complaints(folder + "/complaints.txt");
  for (const std::string& complaint : check.complaints) {
    complaints << one_line(complaint) << "\n";
  }
  std::string line = "ok";
  for (const std::int64_t count : {check.counts.ops - before.ops,
                                   check.counts.repeated - before.repeated,
                                   check.counts.strategies - before.strategies,
                                   check.counts.wrong - before.wrong}) {
    line += "\t" + std::to_string(count);
  }
  line += "\t";
  for (const std::string& call : calls) {
    line += call + " ";
  }
  return line;
}

}  // namespace
}  // namespace shardplan::runtime

int main(int count, char** arguments) {
  const std::vector<std::string> meshes(arguments + 1, arguments + count);
  at::set_num_threads(1);
  shardplan::runtime::StrategyCheck check(meshes);
  for (std::string folder; std::getline(std::cin, folder);) {
    std::cout << shardplan::runtime::evaluate_folder(folder, check, !meshes.empty()) << std::endl;
  }
  return 0;
}
