// Evaluates ONNX models on one device, forward only, by the runtime's kernels in the graph's order.
// Reads folders from standard input, one a line; each holds model.onnx, dims.txt ("name size" a
// line) and input_0.bin, ... (raw little-endian, in the order of the model's inputs). Writes
// output_0.bin, ... beside them and prints a line for each folder, fields apart by tabs:
//   ok <type of output 0> ...      refused <message of the reader>      failed <message of a
//   kernel>

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>

#include "shardplan/frontends/frontends.h"
#include "shardplan/ops/op.h"
#include "shardplan/rewrite/canonicalize.h"
#include "shardplan/runtime/kernel.h"
#include "shardplan/support/text.h"

namespace shardplan::runtime {
namespace {

at::Tensor tensor_of(const ir::TensorType& type, const void* bytes) {
  auto* const data = const_cast<void*>(bytes);  // NOLINT: nothing writes to it before the copy
  return at::from_blob(data, type.shape, at::TensorOptions().dtype(scalar_type(type.dtype)))
      .clone();
}

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

void run(const ir::Graph& graph, std::vector<at::Tensor>& values) {
  const c10::NoGradGuard no_gradients;
  for (const ir::Op& op : graph.ops()) {
    std::vector<ir::TensorType> types;
    types.reserve(op.outputs.size());
    for (const ir::ValueId output : op.outputs) {
      types.push_back(graph.type(output));
    }
    KernelCall call{.attributes = op.attributes, .results = types};
    for (const ir::ValueId input : op.inputs) {
      call.inputs.push_back(values[input.index()].contiguous());
    }
    const Kernel kernel = find_kernel(op.name);
    SHARDPLAN_CHECK(kernel != nullptr) << op.name << " has no kernel";
    const std::vector<at::Tensor> results = kernel(call);
    for (std::size_t i = 0; i < results.size(); ++i) {
      SHARDPLAN_CHECK(results[i].sizes() == at::IntArrayRef(types[i].shape))
          << op.name << " gave another shape";
      SHARDPLAN_CHECK(results[i].scalar_type() == scalar_type(types[i].dtype))
          << op.name << " gave another type";
      values[op.outputs[i].index()] = results[i];
    }
  }
}

std::string one_line(std::string text) {
  for (char& c : text) {
    c = c == '\n' || c == '\t' ? ' ' : c;
  }
  return text;
}

std::string evaluate(const std::string& folder) {
  const Result<ir::Graph> graph = read_model(folder);
  if (!graph) {
    return "refused\t" + one_line(graph.error().text());
  }
  Result<std::vector<at::Tensor>> values = first_values(*graph, folder);
  if (!values) {
    return "failed\t" + one_line(values.error().text());
  }
  try {
    run(*graph, *values);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return "failed\t" + one_line(text.substr(0, text.find('\n')));
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

int main() {
  for (std::string folder; std::getline(std::cin, folder);) {
    std::cout << shardplan::runtime::evaluate(folder) << std::endl;
  }
  return 0;
}
