#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "shardplan/cost/cost_model.h"
#include "shardplan/ir/graph.h"
#include "shardplan/lower/pipeline.h"
#include "shardplan/plan/plan.h"
#include "shardplan/sim/sim.h"
#include "shardplan/support/progress.h"
#include "shardplan/support/result.h"
#include "shardplan/training/training.h"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace shardplan::cli {

/// What every command gets besides its own options.
struct Session {
  bool json = false;                   ///< --json: one object on standard output, nothing else
  std::vector<std::string> arguments;  ///< of the program, without its name
  Control control{};                   ///< progress on standard error; Ctrl-C asks to stop
};

/// A Control whose progress goes to standard error: on a terminal as a line that is rewritten,
/// elsewhere as a line now and then; nothing at all in the first second elsewhere. The first Ctrl-C
/// sets the interrupt flag, the second ends the program.
[[nodiscard]] Control watch_terminal();

/// Removes a progress line that is still shown, before anything else is printed.
void clear_progress();

/// Prints the object with --json's indentation and a newline.
void print_json(const nlohmann::ordered_json& object);
/// JSON has no infinity.
[[nodiscard]] nlohmann::ordered_json number_or_null(double number);

/// A count of operations, which the code keeps as a double, as the whole number that it is; as the
/// double where 64 bits cannot hold it.
[[nodiscard]] nlohmann::ordered_json whole(Flops flops);

/// Refuses texts that are no finite number of at least `least`.
[[nodiscard]] CLI::Validator number_at_least(double least);

/// An error for an argument that was not given: "plan needs a MODEL; ...".
[[nodiscard]] Status require(const std::string& value,
                             const std::string& command,
                             const std::string& what);

/// Seconds of a steady clock, for differences.
[[nodiscard]] Seconds now();

/// A model as the user names it, with what its file leaves open.
struct ModelOptions {
  std::string model{};
  std::vector<std::string> dims{};  ///< "batch=64"
  std::string loss{};
  std::string target = "target";
};
void add_model_options(CLI::App& app, ModelOptions& options);
/// Sizes of dimensions are at least 1, each name is given once.
[[nodiscard]] Result<plan::Binding> read_binding(const ModelOptions& options);
/// The model's forward graph.
[[nodiscard]] Result<ir::Graph> load_model(const std::string& model,
                                           const plan::Binding& binding,
                                           bool weights);

/// The options of a training recipe as the user writes them.
inline constexpr std::string_view kAuto = "auto";
struct RecipeOptions {
  std::string optimizer = "adamw";
  std::string precision = "model";
  std::string microbatches = "1";  ///< or "auto", where a command searches for their number
  double clip_norm = 0;
};
void add_recipe_options(CLI::App& app, RecipeOptions& options);
[[nodiscard]] Result<training::Recipe> read_recipe(const RecipeOptions& options);

/// A plan file with all that follows from it.
struct LoadedPlan {
  plan::Plan plan{};
  ir::Graph step{};
  lower::Program program{};  ///< without a pipeline
  std::optional<lower::PipelineProgram> pipeline{};

  [[nodiscard]] std::int64_t ranks() const {
    return pipeline ? pipeline->ranks() : plan.mesh.size();
  }
};
struct LoadPlanOptions {
  bool weights = false;         ///< read weights, and fail when the model's file has none
  bool keep_gradients = false;  ///< see lower::LowerOptions
};
/// Reads the plan, rebuilds the training step from the model that it names, checks one against the
/// other, and lowers. The model's path is taken from the working directory, else from the plan's.
[[nodiscard]] Result<LoadedPlan> load_plan(const std::string& path,
                                           const LoadPlanOptions& options = {});

[[nodiscard]] cost::CostModel cost_model_of(const plan::Plan& plan);

/// What the simulator says of a loaded plan.
struct Predicted {
  sim::Simulation simulation{};
  std::vector<Bytes> peak_bytes{};  ///< by rank
  std::string trace{};              ///< in Chrome's format, where a timeline was asked for
};
[[nodiscard]] Result<Predicted> predict(const LoadedPlan& loaded, bool timeline);

/// "data 2 × tensor 4"; of a pipeline "2 stages of data 2, 1f1b".
[[nodiscard]] std::string shape_text(const plan::Plan& plan);

}  // namespace shardplan::cli
