#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <charconv>
#include <cstdint>
#include <exception>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "sharded_op.h"
#include "shardplan/cluster/cluster.h"
#include "shardplan/ir/graph.h"
#include "shardplan/ops/op.h"
#include "shardplan/runtime/kernel.h"
#include "shardplan/sharding/strategy.h"

namespace shardplan::runtime {

using Tensors = std::vector<at::Tensor>;

/// A copy of raw content.
inline at::Tensor tensor_of(const ir::TensorType& type, const void* bytes) {
  auto* const data = const_cast<void*>(bytes);  // NOLINT: nothing writes to it before the copy
  return at::from_blob(data, type.shape, at::TensorOptions().dtype(scalar_type(type.dtype)))
      .clone();
}

/// For lines whose fields are apart by tabs.
inline std::string one_line(std::string text) {
  for (char& c : text) {
    c = c == '\n' || c == '\t' ? ' ' : c;
  }
  return text;
}

/// What was thrown, without the trace that PyTorch puts behind it.
inline std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

inline OpInstance instance_of(const ir::Graph& graph, const ir::Op& op) {
  OpInstance out{.op = op.name, .attributes = op.attributes};
  for (const ir::ValueId input : op.inputs) {
    out.inputs.push_back(graph.type(input));
  }
  for (const ir::ValueId output : op.outputs) {
    out.results.push_back(graph.type(output));
  }
  return out;
}

/// The op by its kernel on whole operands. An operand that the kernel overwrites is copied first.
inline Tensors run_whole(const OpInstance& op, Tensors operands) {
  for (const int input : ops::get(op.op).in_place) {
    if (input >= 0) {
      at::Tensor& operand = operands[static_cast<std::size_t>(input)];
      operand = operand.clone();
    }
  }
  const Kernel kernel = find_kernel(op.op);
  SHARDPLAN_CHECK(kernel != nullptr) << op.op << " has no kernel";
  Tensors results = kernel(KernelCall{std::move(operands), op.attributes, op.results});
  for (std::size_t i = 0; i < results.size(); ++i) {
    SHARDPLAN_CHECK(results[i].sizes() == at::IntArrayRef(op.results[i].shape))
        << op.op << " gave another shape";
    SHARDPLAN_CHECK(results[i].scalar_type() == scalar_type(op.results[i].dtype))
        << op.op << " gave another type";
  }
  return results;
}

/// Evaluates a graph on one device, in its order. `values` holds what is no op result, and holds
/// everything afterwards. `run` makes the results of one op.
inline void evaluate(
    const ir::Graph& graph,
    Tensors& values,
    const std::function<Tensors(const ir::Op&, const OpInstance&, const Tensors&)>& run) {
  const c10::NoGradGuard no_gradients;
  for (const ir::Op& op : graph.ops()) {
    Tensors operands;
    for (const ir::ValueId input : op.inputs) {
      operands.push_back(values[input.index()].contiguous());
    }
    const Tensors results = run(op, instance_of(graph, op), operands);
    for (std::size_t i = 0; i < results.size(); ++i) {
      values[op.outputs[i].index()] = results[i];
    }
  }
}

/// "2x3": a mesh of two axes. Nothing but digits and x is expected.
inline cluster::DeviceMesh mesh_of(std::string_view text) {
  cluster::DeviceMesh mesh;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('x'), text.size());
    std::int64_t size = 0;
    std::from_chars(text.data(), text.data() + end, size);
    mesh.axes.push_back({"m" + std::to_string(mesh.axes.size()), size});
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return mesh;
}

inline std::string to_text(const ir::Attributes& attributes) {
  std::string text;
  for (const auto& [name, attribute] : attributes.entries()) {
    text += name + "=";
    if (const auto* const list = std::get_if<ir::IntList>(&attribute)) {
      for (const std::int64_t entry : *list) {
        text += std::to_string(entry) + ",";
      }
    } else if (const auto* const string = std::get_if<std::string>(&attribute)) {
      text += *string;
    } else if (const auto* const real = std::get_if<double>(&attribute)) {
      text += std::to_string(*real);
    } else if (const auto* const integer = std::get_if<std::int64_t>(&attribute)) {
      text += std::to_string(*integer);
    } else {
      text += std::get<bool>(attribute) ? "true" : "false";
    }
    text += " ";
  }
  return text;
}

/// Every strategy of every op that it is shown, on each of its meshes. An op that was there before
/// with equal types, attributes and integer operands is not run again.
class StrategyCheck {
 public:
  struct Counts {
    std::int64_t ops = 0;
    std::int64_t repeated = 0;
    std::int64_t strategies = 0;
    std::int64_t wrong = 0;
  };

  /// All strategies, or of each op the one whose results are read on.
  enum class Which : std::uint8_t { kAll, kReadOn };

  explicit StrategyCheck(const std::vector<std::string>& meshes, Which which = Which::kAll)
      : which_(which) {
    for (const std::string& text : meshes) {
      meshes_.push_back(mesh_of(text));
    }
  }

  /// Takes the op's results from parts: those of the last strategy that cuts it on all axes of the
  /// first mesh, where there is one. `where` begins each complaint.
  Tensors check(const OpInstance& op, const Tensors& operands, const std::string& where) {
    ++counts.ops;
    const bool again = !seen_.insert(key(op, operands)).second;
    counts.repeated += again ? 1 : 0;
    const bool only_last = again || which_ == Which::kReadOn;
    Tensors results;
    for (const cluster::DeviceMesh& mesh : meshes_) {
      ShardedOp run(op, operands, mesh, tolerance(op));
      const std::vector<sharding::Strategy> all = sharding::enumerate_strategies(run.map(), mesh);
      const std::size_t last = last_that_cuts(all, run.map(), mesh);
      for (std::size_t s = 0; s < all.size(); ++s) {
        if (!only_last || (results.empty() && s == last)) {
          try_one(run, all[s], mesh, op, where);
        }
        if (results.empty() && s == last && run.joined().size() == op.results.size()) {
          results = run.joined();
        }
      }
      if (results.empty()) {
        results = run.expected();
      }
      if (only_last) {
        break;
      }
    }
    return results;
  }

  Counts counts{};
  std::vector<std::string> complaints{};

 private:
  void try_one(ShardedOp& run,
               const sharding::Strategy& strategy,
               const cluster::DeviceMesh& mesh,
               const OpInstance& op,
               const std::string& where) {
    std::string text;
    try {
      text = run.difference(strategy);
    } catch (const std::exception& error) {
      text = "threw " + first_line(error);
    }
    ++counts.strategies;
    if (text.empty()) {
      return;
    }
    ++counts.wrong;
    std::string types;
    for (const ir::TensorType& type : op.inputs) {
      types += to_string(type) + " ";
    }
    complaints.push_back(where + ": " + op.op + " " + types + "{" + to_text(op.attributes) + "} " +
                         ops::to_string(run.map()) + " [" +
                         sharding::to_string(strategy, run.map(), mesh) + "] of " +
                         cluster::to_string(mesh) + ": " + text);
  }

  /// Rounding of sums in another order.
  static double tolerance(const OpInstance& op) {
    double out = 1e-9;
    const auto widen = [&](const ir::TensorType& type) {
      if (type.dtype == ir::DType::kFloat32) {
        out = std::max(out, 1e-4);
      } else if (ir::is_floating(type.dtype) && type.dtype != ir::DType::kFloat64) {
        out = std::max(out, 1.0 / 8);
      }
    };
    std::for_each(op.inputs.begin(), op.inputs.end(), widen);
    std::for_each(op.results.begin(), op.results.end(), widen);
    return out;
  }

  /// One that cuts the op on all axes of the mesh; along no sum where there is such a one: logits
  /// of a million that are equal (of networks whose weights are all the same) stay so then.
  static std::size_t last_that_cuts(const std::vector<sharding::Strategy>& all,
                                    const ops::AxisMap& map,
                                    const cluster::DeviceMesh& mesh) {
    std::size_t any = 0;
    for (std::size_t s = all.size(); s-- > 0;) {
      bool cuts = true;
      bool free = true;
      for (int m = 0; m < static_cast<int>(mesh.axes.size()); ++m) {
        const int choice = all[s].at(m);
        cuts = cuts && choice >= 0;
        free =
            free && cuts && map.axes[static_cast<std::size_t>(choice)].role == ops::AxisRole::kFree;
      }
      if (free) {
        return s;
      }
      any = any == 0 && cuts ? s : any;
    }
    return any;
  }

  static std::string key(const OpInstance& op, const Tensors& operands) {
    std::string text = op.op + " " + to_text(op.attributes);
    for (const at::Tensor& operand : operands) {
      text += c10::str(operand.scalar_type(), operand.sizes());
      if (!operand.is_floating_point()) {
        const at::Tensor content = operand.contiguous();
        const std::string_view bytes(static_cast<const char*>(content.const_data_ptr()),
                                     content.nbytes());
        text += std::to_string(std::hash<std::string_view>{}(bytes));
      }
    }
    for (const ir::TensorType& type : op.results) {
      text += to_string(type);
    }
    return text;
  }

  Which which_;
  std::vector<cluster::DeviceMesh> meshes_;
  std::set<std::string> seen_;
};

}  // namespace shardplan::runtime
