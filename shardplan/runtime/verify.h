#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shardplan/lower/pipeline.h"
#include "shardplan/plan/plan.h"
#include "shardplan/runtime/executor.h"

namespace shardplan::runtime {

/// What a comparison of a distributed run with one device found so far.
struct Difference {
  double relative = 0;  ///< largest |a − b| over a tensor / largest |b| of it
  std::string where{};  ///< "gradient of h.0.attn.weight, step 2"
};

/// Relative difference up to which a run counts as equal to one device: 1e-9 when all trained
/// parameters are fp64, 1e-4 for fp32, 1/16 where any is narrower (8 units in the
/// last place of bf16: sums over devices are taken in bf16 too).
[[nodiscard]] double tolerance(const ir::Graph& step);

/// Compares a distributed run with the same step graph run by rank 0 alone, from the same seed: the
/// loss, every gradient, and every parameter and running statistic after every step. In fp64 the
/// two runs are independent of each other, but for gradients that are rounding noise (below), and
/// for elements of gradients that are within tolerance of their tensor and not of themselves: those
/// are taken over, since Adam makes a difference of 1e-15 beside an element of 1e-9 one of 1e-7 in
/// the update. In narrower precisions the reference takes over all of the run's gradients once they
/// have been compared: Adam divides a gradient by its own size, so the rounding of a gradient that
/// is almost zero would come back as a difference as large as the learning rate. Only rank 0 holds
/// the reference; every other rank sends the parts that differ bit by bit from those that a rank
/// before it holds of the same place. Parameters whose largest magnitude is below 1e-6 of the
/// largest of all are measured against that instead; gradients below 1e-4 of the largest gradient,
/// narrower ones than fp64 below 1e-2: they may be rounding noise around zero, such as the gradient
/// of a bias in front of a softmax or a normalisation. Those below 1e-6 are taken over, too.
/// Running statistics are measured like gradients, against the largest of them.
///
/// Without a flush the reference is one device that computes every step with the weights which the
/// schedule's passes have by then, stage by stage. Losses are compared, and in fp64 parameters and
/// running statistics after each run of steps; in narrower precisions the reference takes them over
/// (see above; there are no gradients between the steps of a run to take over instead).
class Verifier {
 public:
  /// On rank 0, sets up the reference; cheap on the others.
  /// `without_flush`: of an asynchronous schedule; outlives the verifier.
  static Result<std::unique_ptr<Verifier>> create(
      const ir::Graph& step,
      const plan::Plan& plan,
      std::int64_t rank,
      std::uint64_t seed,
      const Heartbeat& heartbeat,
      const lower::PipelineProgram* without_flush = nullptr);

  /// Runs the reference's step (on rank 0) and compares. All ranks call after each of their steps.
  /// Throws PeerLost.
  Status compare_step(const Trainer& run, double loss, const InputSource& inputs);

  [[nodiscard]] const Difference& worst() const { return worst_; }
  [[nodiscard]] const std::vector<double>& reference_losses() const { return losses_; }

 private:
  explicit Verifier(const ir::Graph& step) : step_(step) {}

  [[nodiscard]] bool is_parameter(ir::ValueId value) const;
  /// Parameters, and buffers that a step writes (running statistics).
  [[nodiscard]] bool is_compared(ir::ValueId value) const;
  /// What the reference takes over of a tensor of the run, once it has been compared.
  enum class Adopts : std::uint8_t { kNothing, kDistantElements, kAll };

  /// The reference's steps of one run without a flush; their mean loss.
  Result<double> run_delayed(const InputSource& inputs);
  Status compare_delayed(const Trainer& run, double loss, const InputSource& inputs);
  [[nodiscard]] double floor_of_statistics(const Trainer& run) const;
  void compare_residents(const Trainer& run, bool adopt);
  void compare_loss(double loss, double reference);
  /// An empty name: the difference is not judged.
  void compare_tensor(const Trainer& run,
                      const LocatedPart& located,
                      const at::Tensor& reference,
                      double floor,
                      Adopts adopts,
                      const std::string& name);
  void note(double relative, const std::string& where);

  const ir::Graph& step_;
  Heartbeat heartbeat_{};
  std::unique_ptr<lower::Program> program_{};
  std::unique_ptr<Executor> reference_{};
  std::vector<double> losses_{};
  bool adopt_gradients_ = false;
  const lower::PipelineProgram* without_flush_ = nullptr;
  Difference worst_{};
  std::int64_t steps_ = 0;
};

/// The plan of one device: no mesh, nothing sharded, nothing recomputed.
[[nodiscard]] plan::Plan one_device_plan(const ir::Graph& step, const plan::Plan& like);

}  // namespace shardplan::runtime
