#pragma once

#include <string>

#include "shardplan/cluster/cluster.h"
#include "shardplan/cost/megatron.h"
#include "shardplan/cost/megatron_sweep.h"
#include "shardplan/support/ids.h"

/// What `shardplan predict` prints.
namespace shardplan::cli {

/// What its options name, read.
struct PredictedRun {
  std::string name{};      ///< of the model, as the user wrote it
  std::string software{};  ///< the same
  cost::MegatronModel model{};
  cluster::Cluster cluster{};
  cost::MegatronConfig config{};
  cost::MegatronSoftware switches{};
  Bytes memory = 0;
};

/// Of the configurations that take at most this much longer than the best, the one with the fewest
/// bytes is shown: the fastest lie close together, and room is worth more than a part of this.
inline constexpr double kPlateau = 0.01;

struct Swept {
  cost::MegatronSweep sweep{};
  cost::MegatronCandidate leanest{};  ///< of the plateau
  Seconds seconds = 0;                ///< of the sweep itself
};

/// "tp 8 · pp 8 in 3 chunks each · dp 1, 64 microbatches of 1, recompute none".
[[nodiscard]] std::string layout_text(const cost::MegatronConfig& config);
/// Rounded; of absurd sizes the most that 64 bits hold.
[[nodiscard]] Bytes whole_bytes(double bytes);

void print_prediction(const PredictedRun& run, const cost::MegatronPrediction& prediction);
void print_prediction_json(const PredictedRun& run, const cost::MegatronPrediction& prediction);
void print_sweep(const PredictedRun& run, const Swept& swept);
void print_sweep_json(const PredictedRun& run, const Swept& swept);

}  // namespace shardplan::cli
