#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shardplan/cluster/cluster.h"
#include "shardplan/ir/graph.h"
#include "shardplan/sharding/strategy.h"
#include "shardplan/support/result.h"
#include "shardplan/training/training.h"

namespace shardplan::plan {

/// A moment at which memory binds: a little more of it there would make the step faster.
struct BindingRow {
  std::string where{};         ///< the op that runs then
  Bytes bytes = 0;             ///< of the plan then
  double seconds_per_gib = 0;  ///< by which the bound falls for each GiB more (Lagrange multiplier)
  bool operator==(const BindingRow&) const = default;
};

/// Numbers that came with a plan: predictions by the simulator, the search, its proof.
struct Prediction {
  Seconds step_seconds = 0;         ///< simulated
  Seconds additive_seconds = 0;     ///< sum of all kernels and collectives
  Seconds objective_seconds = 0;    ///< least additive time of all plans found within the limit
  Seconds lower_bound_seconds = 0;  ///< no plan of the search space has a smaller additive time
  double gap = 0;                   ///< objective / lower bound − 1
  Seconds step_lower_bound_seconds = 0;  ///< none has a smaller simulated time
  std::vector<BindingRow> rows{};        ///< of the proof
  Bytes peak_bytes = 0;                  ///< of the fullest device
  Bytes memory_limit = 0;                ///< that the plan was made for; 0 = none
  Seconds search_seconds = 0;
};

/// How much of a block's forward pass runs again in the backward pass, instead of being kept.
enum class Recompute : std::uint8_t {
  kNone,
  kSelective,  ///< the ops that run on no matrix units: norms, activations, masks, additions
  kWhole,      ///< every op
};

struct RecomputedBlock {
  std::string block{};  ///< "transformer.h.3"
  Recompute how = Recompute::kWhole;
  bool operator==(const RecomputedBlock&) const = default;
};

/// What the user added to a model file that leaves it open: see frontends::LoadOptions.
struct Binding {
  std::map<std::string, std::int64_t> dims{};  ///< sizes of named dimensions
  std::string loss{};                          ///< behind the model's output; empty: its own
  std::string target{};                        ///< the input that the loss compares with
  bool operator==(const Binding&) const = default;
};

struct Plan;

/// The cut of a step into stages, each with a plan of its own.
struct Pipeline {
  std::string schedule{};       ///< lower/schedule.h
  int devices = 1;              ///< groups of devices that share the stages
  std::vector<int> stage_of{};  ///< by OpId of the step: the stage of forward ops; others are 0
  /// The backward pass in two parts, see training::split_into_stages: for schedules that have both.
  bool weights_later = false;
  /// Steps that an asynchronous schedule takes without a flush; 1: of a synchronous one.
  std::int64_t steps = 1;
  /// Copies of the model that share the groups and the microbatches (Chimera: 2); a group has a
  /// stage of each.
  int pipelines = 1;
  /// Forward passes of a stage that follow each other (Chimera's forward doubling: 2).
  int forward_group = 1;
  /// Of the stages' own steps (training/stages.h), those of one pipeline after the other, on the
  /// devices of one group.
  std::vector<Plan> stages;
};

/// Who computes which piece of which tensor: a strategy for every op of the training step, a layout
/// for every value that lives across ops of a step (parameters, states, buffers, inputs), and what
/// is recomputed. Holds ids into the step graph with hash `graph_hash`, no pointers.
struct Plan {
  std::string planner{};
  std::string model{};       ///< path or zoo name, as the user wrote it
  Binding binding{};         ///< of the model
  std::string graph_hash{};  ///< of the training step (ir::structural_hash)
  training::Recipe recipe{};
  cluster::Cluster cluster{};
  cluster::DeviceMesh mesh{};
  std::vector<sharding::Strategy> strategies{};  ///< by OpId, all ops of the step
  /// Of graph inputs that are no constants; replicated where there is no entry.
  std::map<ir::ValueId, sharding::ShardingSpec> layouts{};
  std::vector<RecomputedBlock> recompute{};  ///< the blocks that are not kept whole
  /// With a pipeline, the stages' plans say what else would stand here: the mesh, strategies,
  /// layouts and what is recomputed are then theirs, and empty here.
  std::optional<Pipeline> pipeline{};
  Prediction prediction{};
};

/// The cluster of one stage: so many devices of the whole one, each as fast as there. Where they
/// do not fill groups of its levels (12 of dgx-a100:2), all of them are taken to be joined by links
/// of the outermost level. Errors: more devices than there are.
[[nodiscard]] Result<cluster::Cluster> stage_cluster(const cluster::Cluster& whole,
                                                     std::int64_t devices);

/// A block is the part of a layer path up to its first number: "transformer.h.3.attn.c_attn" is in
/// block "transformer.h.3"; paths without a number are in no block ("").
[[nodiscard]] std::string_view block_of(std::string_view layer);

/// Whether the plan fits this step, so that it can be lowered: a mesh that fills the cluster, the
/// step's hash, one possible strategy an op, layouts of graph inputs that exist and fit (partial
/// sums only of accumulators), no reader that needs a partial sum which nobody leaves, blocks that
/// exist. Of a pipeline: a cut that training::split_into_stages takes, and the same of every
/// stage's plan for its stage. The error's location names the part ("strategies /
/// transformer.h.0.attn / einsum.42"). Shares no code with planners. O(ops · stages).
[[nodiscard]] Status check(const Plan& plan, const ir::Graph& step);

/// Versioned JSON, readable and editable, described in docs/plan.md: mesh, layouts by value name,
/// strategies by layer and op as text ("data=b tensor=n"); what is replicated is left out.
/// Precondition: check(). from_json(to_json(plan)) equals the plan, but for layouts that it lacked.
[[nodiscard]] std::string to_json(const Plan& plan, const ir::Graph& step);
/// Header fields only (model, recipe, cluster, mesh), enough to rebuild the step graph. `where`
/// (usually the path) begins the locations of errors.
[[nodiscard]] Result<Plan> parse_header(std::string_view json, const std::string& where);
/// Everything, checked against the step.
[[nodiscard]] Result<Plan> from_json(std::string_view json,
                                     const ir::Graph& step,
                                     const std::string& where);

}  // namespace shardplan::plan
