#pragma once

#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "shardplan/planners/evaluate.h"

namespace shardplan::planners {

/// A run of forward ops that a cut may not divide: the ops from one change of block to the next.
struct Segment {
  std::string block{};    ///< "" between blocks
  std::size_t begin = 0;  ///< ops of the step
  std::size_t end = 0;
  Seconds forward = 0;  ///< of one microbatch on one device: kernels only
  Seconds backward = 0;
};

/// The forward ops of a step in segments, in their order. Where the step has fewer blocks than
/// `least` segments, every op is one. O(ops).
[[nodiscard]] std::vector<Segment> segments(const ir::Graph& step,
                                            const cost::CostModel& cost,
                                            std::size_t least);

/// Seconds of the whole kernel of an op on one device; 0 for views.
[[nodiscard]] Seconds kernel_seconds(const ir::Graph& step,
                                     ir::OpId id,
                                     const cost::CostModel& cost);

/// Everything that a stage's plan depends on, as text: equal for stages that differ in names only,
/// as the layers of a transformer do. O(graph).
[[nodiscard]] std::string stage_shape(const ir::Graph& stage);

/// What a method says of one stage.
struct StageShape {
  std::int64_t devices = 1;
  const PlannerInfo* inside = nullptr;        ///< plans the stage; null: the one of StagePlans
  std::optional<cluster::DeviceMesh> mesh{};  ///< nothing: the choice of `inside`
};

/// How a step is cut, before its stages are planned.
struct StageCut {
  std::string schedule = "1f1b";
  bool weights_later = false;   ///< of a schedule with the backward pass in two parts
  int groups = 1;               ///< of devices
  std::vector<int> stage_of{};  ///< by op of the step, see training::split_into_stages
  std::int64_t steps = 1;       ///< without a flush, of an asynchronous schedule
  int pipelines = 1;            ///< copies of the stages on the same groups, see plan::Pipeline
  int forward_group = 1;        ///< likewise
  /// By stage, of all pipelines; the devices of a group's stages are equal. Empty: groups of equal
  /// size.
  std::vector<StageShape> shapes{};
  /// The blocks that run again, all of them whole; nothing: those that `inside` chooses.
  std::optional<std::vector<std::string>> recompute{};
};

/// The stage of every op, when stage i has the segments from starts[i] (starts[0] = 0) to the next.
[[nodiscard]] std::vector<int> stages_of_segments(const ir::Graph& step,
                                                  const std::vector<Segment>& segments,
                                                  const std::vector<std::size_t>& starts);

/// Starts of `stages` runs of segments whose longest takes least time, forward and backward
/// together. Precondition: at least as many segments. As even_cut().
[[nodiscard]] std::vector<std::size_t> balanced_starts(const std::vector<Segment>& segments,
                                                       int stages);

/// Plans every stage by `inside` on its part of the cluster, and simulates the whole. Keeps stage
/// plans: stages that differ in names only are planned once, whichever cut they come from.
class StagePlans {
 public:
  /// Both must outlive it.
  StagePlans(const PlanRequest& request, const PlannerInfo& inside);
  ~StagePlans();
  StagePlans(const StagePlans&) = delete;
  StagePlans& operator=(const StagePlans&) = delete;
  StagePlans(StagePlans&&) = delete;
  StagePlans& operator=(StagePlans&&) = delete;

  /// What several microbatches in flight leave in memory is found by simulating, and taken off the
  /// limit that a stage is planned within, until the pipeline fits or no stage does. Errors: a
  /// cluster that does not divide, a schedule without this shape, a step that cannot be cut there.
  [[nodiscard]] Result<Candidate> plan(const StageCut& cut);
  /// The same within what is left of a budget. A stage that takes `worth` or more alone makes the
  /// step as long: then there is no plan.
  [[nodiscard]] Result<Candidate> plan(const StageCut& cut,
                                       const Budget& budget,
                                       Seconds worth = std::numeric_limits<Seconds>::infinity());
  /// A plan of the cut with those of its stages planned by `inside`, on any mesh, that are faster
  /// so, within what the rest of the pipeline leaves them of the memory: stages of one shape have
  /// the room of the fullest.
  [[nodiscard]] Result<Candidate> improve(const StageCut& cut,
                                          const Candidate& made,
                                          const Budget& budget);

 private:
  /// Devices, planner inside, mesh.
  using Kind = std::tuple<std::int64_t, std::string, std::string>;
  [[nodiscard]] Result<class StagePlanner*> planner(const StageShape& shape);

  const PlanRequest& request_;
  const PlannerInfo& inside_;
  std::map<Kind, std::unique_ptr<class StagePlanner>> planners_;
};

}  // namespace shardplan::planners
