#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/plan/plan.h"
#include "shardplan/sharding/reshard.h"

namespace shardplan::lower {

using LocalId = Id<struct LocalTag>;

/// A tensor on each device. Views share the storage of another value: results of view ops, and
/// results that an op writes in place over an operand.
struct LocalValue {
  ir::TensorType type{};  ///< local shape of the largest part (sharding/spec.h: local_shape)
  sharding::ShardingSpec spec{};
  ir::ValueId global{};  ///< the graph value it is (a part of)
  LocalId view_of{};     ///< root of the storage, when it is not its own
  /// What windows need beside the part in `spec`; `type` has it. Made for one op.
  std::vector<ops::Halo> halos{};
};

/// The global place of a shard along an axis that a kernel must know (dropout, lookups, iota).
/// Start and size on a device are those of sharding::part() along `mesh_axes`.
struct Position {
  int axis = -1;       ///< index into the op's AxisMap
  std::string name{};  ///< its name there
  std::int64_t global_size = 0;
  std::int64_t local_size = 0;   ///< of the largest part
  std::vector<int> mesh_axes{};  ///< major to minor; empty: not sharded, start 0
};

enum class StepKind : std::uint8_t {
  kCompute,
  kCollective,
  kFree,   ///< drops the storage of inputs[0] (a root)
  kWrite,  ///< the resident outputs[0] takes over the storage of inputs[0]; its old storage, unless
           ///< it is the same (an update in place), is dropped. Until its last reader
           ///< inputs[0] is that storage, too
  kWait,   ///< until the collective aside that makes inputs[0] is done
};

/// One instruction, the same on every device but for the sizes of uneven parts; flops and bytes are
/// those of the largest.
struct Step {
  StepKind kind = StepKind::kCompute;
  std::vector<LocalId> inputs{};
  std::vector<LocalId> outputs{};
  // kCompute
  ir::OpId op{};                      ///< op of the step graph: name, attributes, layer
  std::vector<Position> positions{};  ///< of every positional axis of the op's AxisMap
  std::vector<ops::Halo> cut{};       ///< of every axis that is cut and along which windows slide
  bool recompute = false;             ///< (of) a second run of a forward op in the backward pass
  Flops flops = 0;                    ///< local
  Bytes bytes = 0;                    ///< local bytes read and written
  Bytes workspace = 0;                ///< local kernel temporaries
  // kCollective (kSlice included); the tensor is inputs[0] -> outputs[0]
  /// Of `op`, for which the layout changes or which gets its halos; or one of the two below.
  int operand = kOfResult;
  static constexpr int kOfResult = -1;  ///< a result of `op` changes as soon as it is made
  static constexpr int kOfWrite = -2;   ///< a result of `op` changes to be written back
  sharding::ReshardStep collective{};
  /// Runs beside what follows, until its kWait; collectives are carried out in program order. What
  /// it reads (but an all-reduce, which works on its result) and its workspace stay until then. One
  /// workspace, the largest of those in flight, serves all.
  bool aside = false;
  ir::Phase phase = ir::Phase::kForward;
};

/// A graph input that lives on the device across steps (kInput: filled for every microbatch).
struct Resident {
  LocalId local{};
  ir::ValueId global{};
};

/// What every device runs: `microbatch` steps `microbatches` times, then `update` steps once.
/// Values are defined before use; `update` also reads values of the (last) microbatch. Every
/// storage that is no resident, no loss, and no kept gradient is dropped exactly once: by a kFree
/// right after its last use, or by a kWrite that gives it to a resident.
struct Program {
  cluster::DeviceMesh mesh{};
  std::int64_t microbatches = 1;
  std::vector<LocalValue> values{};
  std::vector<Resident> residents{};
  std::vector<Step> microbatch{};
  std::vector<Step> update{};
  /// Replicated scalar, one for each microbatch; the step's loss is their mean. Invalid in a
  /// pipeline stage that does not have it.
  LocalId loss{};
  /// Gradients (before clipping, no partial sums) by parameter, when lower() was asked to keep
  /// them: their storage is not freed within the step.
  std::vector<Resident> kept_gradients{};

  [[nodiscard]] const LocalValue& value(LocalId id) const { return values[id.index()]; }
  [[nodiscard]] LocalId root(LocalId id) const {
    const LocalId view = value(id).view_of;
    return view.valid() ? view : id;
  }
};

/// A moment of a program: while an op runs, or while an operand or a result of it changes layout
/// (kWrite: to be written back; `op` is then the one after which that happens), or an operand that
/// is in its layout gets its halos.
struct ProgramPoint {
  enum class What : std::uint8_t { kRun, kOperand, kResult, kWrite, kHalo };
  ir::OpId op{};
  bool again = false;  ///< its second run
  What what = What::kRun;
  int index = 0;  ///< of the operand or result
  bool operator==(const ProgramPoint&) const = default;
};

struct LowerOptions {
  bool keep_gradients = false;  ///< for verification
  bool overlap = false;         ///< collectives beside compute, see lower/overlap.h
};

/// SPMD partitioning: local shapes, the cheapest changes of layout where a value is needed in
/// another layout than it has (prices by `price`), recomputation of the plan's blocks
/// (lower/recompute.h), and frees. A changed copy serves the ops of one reader (lower/readers.h).
/// It is made when first needed; a value with one reader that wants it no larger is changed as soon
/// as it is made. Changed parameters, and changed operands of ops that run again, are dropped after
/// the forward pass and made again in the backward pass; other changed activations are kept.
/// What an op's windows need beside its parts is fetched just before it and dropped after it
/// (lower/local_op.h), also where it runs again. Precondition: plan::check. Errors: a change of
/// layout that does not exist.
[[nodiscard]] Result<Program> lower(const ir::Graph& step,
                                    const plan::Plan& plan,
                                    const sharding::StepPrice& price,
                                    const LowerOptions& options = {});

/// Bytes a kernel reads and writes: all operands and results, but of a looked-up operand (rows of
/// an embedding) at most as much as the results.
[[nodiscard]] Bytes memory_traffic(const ops::AxisMap& map,
                                   std::span<const ir::TensorType> inputs,
                                   std::span<const ir::TensorType> results);

/// Largest piece, in bytes of all its parts, in which the runtime moves a tensor whose parts do not
/// lie one after the other in memory (one element of each part at least).
inline constexpr Bytes kSlabBytes = Bytes{4} << 20;

/// Bytes that the runtime allocates beside input and result while it runs a collective: the slabs
/// that hold its parts in one run of memory. `input` and `result` are local types of the largest
/// part; a rank with a smaller one allocates no more.
[[nodiscard]] Bytes collective_workspace(const sharding::ReshardStep& step,
                                         const ir::TensorType& input,
                                         const ir::TensorType& result,
                                         const cluster::DeviceMesh& mesh);

/// Local bytes of every resident of one kind.
[[nodiscard]] Bytes resident_bytes(const Program& program,
                                   const ir::Graph& step,
                                   ir::ValueKind kind);

/// Readable listing of the instructions, for goldens and `explain --program`.
[[nodiscard]] std::string print(const Program& program, const ir::Graph& step);

}  // namespace shardplan::lower
