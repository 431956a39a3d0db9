#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <tuple>

#include "shardplan/python/planned.h"
#include "shardplan/runtime/allocator.h"
#include "shardplan/runtime/groups.h"

// Errors become Python's: what the user can change is a ValueError, all else a RuntimeError.
namespace shardplan::python {
namespace {

namespace py = pybind11;

[[noreturn]] void raise(const Error& error) {
  if (error.code == ErrorCode::kRuntime || error.code == ErrorCode::kIo) {
    throw std::runtime_error(error.text());
  }
  throw py::value_error(error.text());
}

template <class T>
T value_or_raise(Result<T> result) {
  if (!result) {
    raise(result.error());
  }
  return *std::move(result);
}

py::list explanation_rows(const std::vector<planners::LayerExplanation>& layers) {
  py::list rows;
  for (const planners::LayerExplanation& layer : layers) {
    py::dict row;
    row["layer"] = layer.layer;
    row["choice"] = layer.choice;
    row["recomputed"] = layer.recomputed;
    row["compute_seconds"] = layer.compute_seconds;
    row["communication_seconds"] = layer.communication_seconds;
    row["parameter_bytes"] = layer.parameter_bytes;
    row["activation_bytes"] = layer.activation_bytes;
    row["next_best"] = layer.next_best;
    row["next_best_loss_seconds"] = layer.next_best_loss;
    rows.append(row);
  }
  return rows;
}

std::shared_ptr<Training> start(
    std::shared_ptr<Planned> planned,
    std::int64_t rank,
    std::uint64_t seed,
    const std::vector<
        std::tuple<runtime::Ranks, std::string, c10::intrusive_ptr<c10d::ProcessGroup>>>&
        process_groups) {
  const py::gil_scoped_release release;
  std::map<runtime::NeededGroup, std::shared_ptr<runtime::Group>> groups;
  for (const auto& [ranks, purpose, group] : process_groups) {
    groups[{ranks, purpose}] = runtime::wrap_process_group(group, ranks);
  }
  return value_or_raise(
      Training::create(std::move(planned), rank, seed, runtime::given_groups(std::move(groups))));
}

void bind_planned(py::module_& module) {
  py::class_<Planned, std::shared_ptr<Planned>>(module, "Planned")
      .def_property_readonly("json", &Planned::json)
      .def_property_readonly("planner", [](const Planned& p) { return p.plan().planner; })
      .def_property_readonly("mesh",
                             [](const Planned& p) {
                               std::vector<std::pair<std::string, std::int64_t>> axes;
                               for (const cluster::MeshAxis& axis : p.plan().mesh.axes) {
                                 axes.emplace_back(axis.name, axis.size);
                               }
                               return axes;
                             })
      .def_property_readonly("world_size", &Planned::world_size)
      .def_property_readonly("schedule",
                             [](const Planned& p) -> std::optional<std::string> {
                               return p.plan().pipeline ? std::optional(p.plan().pipeline->schedule)
                                                        : std::nullopt;
                             })
      .def_property_readonly("prediction",
                             [](const Planned& p) {
                               const plan::Prediction& predicted = p.plan().prediction;
                               py::dict out;
                               out["step_seconds"] = predicted.step_seconds;
                               out["additive_seconds"] = predicted.additive_seconds;
                               out["lower_bound_seconds"] = predicted.lower_bound_seconds;
                               out["gap"] = predicted.gap;
                               out["peak_bytes"] = predicted.peak_bytes;
                               out["memory_limit"] = predicted.memory_limit;
                               out["search_seconds"] = predicted.search_seconds;
                               return out;
                             })
      .def_property_readonly("inputs",
                             [](const Planned& p) {
                               std::vector<std::tuple<std::string, std::string, ir::Shape>> inputs;
                               for (const Input& input : p.inputs()) {
                                 inputs.emplace_back(input.name,
                                                     std::string(ir::dtype_name(input.type.dtype)),
                                                     input.type.shape);
                               }
                               return inputs;
                             })
      .def("needed_groups",
           [](const Planned& p) {
             std::vector<std::pair<runtime::Ranks, std::string>> groups;
             for (const runtime::NeededGroup& group : p.needed_groups()) {
               groups.emplace_back(group.ranks, group.purpose);
             }
             return groups;
           })
      .def("explain", [](const Planned& p) {
        std::vector<std::pair<std::vector<std::pair<std::string, std::int64_t>>, py::list>> stages;
        for (const StageExplanation& stage : value_or_raise(p.explain())) {
          stages.emplace_back(stage.mesh, explanation_rows(stage.layers));
        }
        return stages;
      });
}

const char* kind_name(ir::ValueKind kind) {
  switch (kind) {
    case ir::ValueKind::kParameter:
      return "parameter";
    case ir::ValueKind::kBuffer:
      return "buffer";
    default:
      return "state";
  }
}

py::list piece_rows(const std::vector<Training::Piece>& pieces) {
  py::list rows;
  for (const Training::Piece& piece : pieces) {
    py::dict row;
    row["name"] = piece.name;
    row["kind"] = kind_name(piece.kind);
    row["aliases"] = piece.aliases;
    row["copy_of"] = piece.copy_of;
    row["shape"] = piece.shape;
    row["module_shape"] = piece.module_shape;
    row["offsets"] = piece.offsets;
    row["part"] = piece.part;
    rows.append(row);
  }
  return rows;
}

void bind_training(py::module_& module) {
  py::class_<Training, std::shared_ptr<Training>>(module, "Training")
      .def("step",
           [](Training& training, const std::map<std::string, at::Tensor>& batch) {
             const py::gil_scoped_release release;
             return value_or_raise(training.step(batch));
           })
      .def("weights",
           [](const Training& training) {
             std::vector<std::pair<std::vector<std::string>, ir::Shape>> weights;
             for (const Training::Weight& weight : training.weights()) {
               weights.emplace_back(weight.names, weight.shape);
             }
             return weights;
           })
      .def("gather",
           [](const Training& training, const std::string& name) {
             const py::gil_scoped_release release;
             return training.gather(name);
           })
      .def("load",
           [](Training& training, const std::string& name, const at::Tensor& full) {
             const py::gil_scoped_release release;
             training.load(name, full);
           })
      .def(
          "pieces",
          [](const Training& training, bool saving) { return piece_rows(training.pieces(saving)); })
      .def("resume", &Training::resume)
      .def_property_readonly("steps_done", &Training::steps_done)
      .def_property_readonly("seed", &Training::seed)
      .def_property_readonly("peak_bytes", &Training::peak_bytes);
}

/// Counts the CPU tensors that the calling thread allocates between start and stop.
class MemoryMeter {
 public:
  void start() {
    runtime::install_counting_allocator();
    scope_ = std::make_unique<runtime::MemoryScope>(counter_);
  }
  void stop() { scope_.reset(); }
  void reset_peak() { counter_.reset_peak(); }
  [[nodiscard]] Bytes peak_bytes() const { return counter_.peak(); }

 private:
  // Tensors that were counted may outlive the meter.
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory)
  runtime::MemoryCounter& counter_ = *new runtime::MemoryCounter();
  std::unique_ptr<runtime::MemoryScope> scope_;
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.doc() = "Shardplan's C++ core; use it through the package shardplan.";
  bind_planned(module);
  bind_training(module);
  py::class_<MemoryMeter>(module, "MemoryMeter")
      .def(py::init<>())
      .def("start", &MemoryMeter::start)
      .def("stop", &MemoryMeter::stop)
      .def("reset_peak", &MemoryMeter::reset_peak)
      .def_property_readonly("peak_bytes", &MemoryMeter::peak_bytes);
  module.def(
      "plan",
      [](const std::string& model,
         const std::string& cluster,
         const std::string& planner,
         const std::string& optimizer,
         const std::string& precision,
         const std::string& memory,
         double clip_norm,
         std::int64_t microbatches,
         const std::map<std::string, std::int64_t>& dims,
         const std::string& loss,
         const std::string& target) {
        const py::gil_scoped_release release;
        return value_or_raise(Planned::make({model,
                                             cluster,
                                             planner,
                                             optimizer,
                                             precision,
                                             memory,
                                             clip_norm,
                                             microbatches,
                                             {dims, loss, target}}));
      },
      py::arg("model"),
      py::arg("cluster"),
      py::arg("planner"),
      py::arg("optimizer"),
      py::arg("precision"),
      py::arg("memory"),
      py::arg("clip_norm"),
      py::arg("microbatches"),
      py::arg("dims") = std::map<std::string, std::int64_t>{},
      py::arg("loss") = "",
      py::arg("target") = "");
  module.def("read_plan",
             [](const std::string& model,
                const std::string& optimizer,
                const std::string& precision,
                double clip_norm,
                std::int64_t microbatches,
                const std::string& json) {
               const py::gil_scoped_release release;
               return value_or_raise(Planned::read({.model = model,
                                                    .optimizer = optimizer,
                                                    .precision = precision,
                                                    .clip_norm = clip_norm,
                                                    .microbatches = microbatches},
                                                   json));
             });
  module.def("start", &start);
}

}  // namespace shardplan::python
