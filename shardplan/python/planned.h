#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/lower/pipeline.h"
#include "shardplan/lower/program.h"
#include "shardplan/plan/plan.h"
#include "shardplan/planners/planner.h"
#include "shardplan/runtime/groups.h"
#include "shardplan/runtime/trainer.h"
#include "shardplan/support/result.h"

namespace shardplan::python {

/// What a user asks for, as text that the command line takes too.
struct Request {
  std::string model{};      ///< path of an archive or zoo name
  std::string cluster{};    ///< preset or YAML file
  std::string planner{};    ///< "map"
  std::string optimizer{};  ///< "adamw:lr=0.001"
  std::string precision{};  ///< "model", "fp32", ...
  std::string memory{};     ///< "20GiB"; empty = the device's own
  double clip_norm = 0;
  std::int64_t microbatches = 1;
  plan::Binding binding{};  ///< what the model leaves open
};

/// A user input as the whole batch has it.
struct Input {
  std::string name{};
  ir::TensorType type{};
};

/// What explain() says of one stage; of a plan without stages there is one.
struct StageExplanation {
  std::vector<std::pair<std::string, std::int64_t>> mesh{};
  std::vector<planners::LayerExplanation> layers{};
};

/// A planned training step: graph, plan, and the program that it was lowered to.
class Planned {
 public:
  static Result<std::shared_ptr<Planned>> make(const Request& request);
  /// The same step under a plan that was made for it elsewhere (another rank, a file).
  static Result<std::shared_ptr<Planned>> read(const Request& request,
                                               const std::string& plan_json);

  [[nodiscard]] const ir::Graph& step() const { return step_; }
  [[nodiscard]] const plan::Plan& plan() const { return plan_; }
  /// Of a plan without stages.
  [[nodiscard]] const lower::Program& program() const { return program_; }
  [[nodiscard]] const std::optional<lower::PipelineProgram>& pipeline() const { return pipeline_; }
  [[nodiscard]] std::int64_t world_size() const {
    return pipeline_ ? pipeline_->ranks() : plan_.mesh.size();
  }
  /// Every rank must make them in this order.
  [[nodiscard]] std::vector<runtime::NeededGroup> needed_groups() const;
  [[nodiscard]] const std::vector<Input>& inputs() const { return inputs_; }
  [[nodiscard]] std::string json() const { return plan::to_json(plan_, step_); }
  [[nodiscard]] Result<std::vector<StageExplanation>> explain() const;

 private:
  Status load(const Request& request);
  Status lower_plan();

  ir::Graph step_{};
  training::Recipe recipe_{};
  plan::Plan plan_{};
  lower::Program program_{};
  std::optional<lower::PipelineProgram> pipeline_{};
  std::vector<Input> inputs_{};
};

/// One rank of a planned step in execution.
class Training {
 public:
  static Result<std::shared_ptr<Training>> create(std::shared_ptr<Planned> planned,
                                                  std::int64_t rank,
                                                  std::uint64_t seed,
                                                  std::unique_ptr<runtime::GroupSource> groups);

  /// One step on the whole batch, by input name. The tensors have been checked against inputs().
  Result<double> step(const std::map<std::string, at::Tensor>& batch);

  /// Parameters and buffers: every name under which the module knows them, their shape there.
  struct Weight {
    std::vector<std::string> names{};
    ir::Shape shape{};
  };
  [[nodiscard]] std::vector<Weight> weights() const;
  /// The whole tensor, in full precision where a master copy exists. All ranks must call.
  [[nodiscard]] at::Tensor gather(const std::string& name) const;
  /// Overwrites a weight, and what starts as a copy of it, by this rank's parts of `full`.
  void load(const std::string& name, const at::Tensor& full);

  /// What a checkpoint keeps of one parameter, buffer or state: this rank's part of it.
  struct Piece {
    std::string name{};
    ir::ValueKind kind = ir::ValueKind::kParameter;
    std::vector<std::string> aliases{};
    std::string copy_of{};     ///< a state that holds this parameter in full precision
    ir::Shape shape{};         ///< of the whole tensor in the step
    ir::Shape module_shape{};  ///< of the whole tensor in the module (a contiguous reshape)
    std::vector<std::int64_t> offsets{};  ///< where the part begins, in `shape`
    at::Tensor part{};                    ///< the part itself: writing to it changes the step
  };
  /// Of every such value of the step, in the graph's order; a part without elements where this rank
  /// holds none. Where several stages hold a value, the first of them saves it and each loads it.
  /// Shares memory, copies nothing.
  [[nodiscard]] std::vector<Piece> pieces(bool saving) const;
  /// Random numbers are a function of these two (and of names and places).
  [[nodiscard]] std::int64_t steps_done() const { return trainer_->steps_done(); }
  [[nodiscard]] std::uint64_t seed() const { return trainer_->seed(); }
  void resume(std::int64_t steps_done, std::uint64_t seed) { trainer_->resume(steps_done, seed); }
  [[nodiscard]] Bytes peak_bytes() const { return trainer_->memory().peak(); }

 private:
  [[nodiscard]] ir::ValueId find(const std::string& name) const;
  [[nodiscard]] Piece piece_of(ir::ValueId id, const runtime::LocatedPart& located) const;

  std::shared_ptr<Planned> planned_{};
  std::unique_ptr<runtime::Trainer> trainer_{};
};

}  // namespace shardplan::python
