#pragma once

#include <array>
#include <map>
#include <vector>

#include "shardplan/planners/experts.h"
#include "shardplan/planners/pipeline/stage_plans.h"
#include "shardplan/sim/schedule_time.h"
#include "shardplan/training/stages.h"

namespace shardplan::planners {

/// What a block costs each device of the group that has it.
struct BlockCost {
  sim::StageTimes times{};
  Bytes weights = 0;  ///< residents and the sums of gradients
  Bytes saved = 0;    ///< what a forward pass leaves for its backward pass
  Bytes passing = 0;  ///< the most beside both, in a pass
};

/// One way to run every block on a group of devices.
struct GroupOption {
  const PlannerInfo* inside = nullptr;
  cluster::DeviceMesh mesh{};
  /// By kind of block: with nothing, and with everything, run again in the backward pass.
  std::vector<std::array<BlockCost, 2>> kinds{};
};

/// The blocks of a step as stages of their own: what each costs under every expert rule and under
/// `map`, on every mesh of one or two axes. Blocks that differ in names only are one kind and are
/// planned once, so that the work does not grow with the depth of a model.
class BlockCosts {
 public:
  /// `request` outlives it. Errors: a step that cannot be cut between its blocks.
  [[nodiscard]] static Result<BlockCosts> make(const PlanRequest& request);

  [[nodiscard]] const std::vector<Segment>& blocks() const { return blocks_; }
  [[nodiscard]] std::size_t kinds() const { return of_kind_.size(); }
  [[nodiscard]] std::size_t kind(std::size_t block) const { return kind_[block]; }

  /// All ways for groups of so many devices, made when first asked for; those that leave a kind
  /// without a plan are left out. Ends early, with those that are made, when the budget does.
  [[nodiscard]] Result<const std::vector<GroupOption>*> options(std::int64_t devices,
                                                                const Budget& budget);

 private:
  explicit BlockCosts(const PlanRequest& request) : request_(request) {}
  void find_rules();
  [[nodiscard]] Result<GroupOption> option(const PlannerInfo& inside,
                                           const cluster::Cluster& part,
                                           const cluster::DeviceMesh& mesh,
                                           const Budget& budget) const;

  const PlanRequest& request_;
  std::vector<Segment> blocks_;
  std::vector<std::size_t> kind_;         ///< by block
  std::vector<training::Stage> of_kind_;  ///< the first block of each kind
  std::vector<const ExpertRule*> rules_;  ///< that have something to cut
  std::map<std::int64_t, std::vector<GroupOption>> options_;
};

}  // namespace shardplan::planners
