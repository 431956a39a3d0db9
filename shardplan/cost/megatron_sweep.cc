#include "shardplan/cost/megatron_sweep.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "shardplan/cost/megatron_terms.h"

// Read examine_interleaves() first: the innermost loops. Around it, from the outside in: tensor
// (tables of layers by microbatch), pipeline (parameters), data (placement, gradients), microbatch
// (sending), interleave.

namespace shardplan::cost {
namespace {

constexpr std::array kRecomputes{Recompute::kNone, Recompute::kSelective, Recompute::kFull};

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> small;
  std::vector<std::int64_t> large;
  for (std::int64_t d = 1; d <= n / d; ++d) {
    if (n % d == 0) {
      small.push_back(d);
      if (d != n / d) {
        large.push_back(n / d);
      }
    }
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

/// Of one kind of recomputation, for one layer and microbatch.
struct RecomputeRow {
  Seconds layer = 0;     ///< forward, backward, collectives, and what is run again
  Seconds backward = 0;  ///< the part behind which gradients can be reduced
  double kept = 0;
  double working = 0;
};

/// Of one microbatch size, with or without sequence parallelism.
struct LayerRow {
  std::array<RecomputeRow, kRecomputes.size()> recompute{};
  Seconds accumulate = 0;
  Seconds received = 0;
  Seconds ends_of_one_stage = 0;
  Seconds ends_of_more = 0;
  double embedding_bytes = 0;
  double head_bytes = 0;
};

/// [sequence parallelism]
using LayerRows = std::array<LayerRow, 2>;

LayerRow make_row(const MegatronTerms& terms,
                  std::int64_t tensor,
                  const std::vector<GroupPart>& parts,
                  std::int64_t microbatch,
                  bool sequence_parallel) {
  const MegatronLayerTime time = terms.layer_time(tensor, parts, microbatch, sequence_parallel);
  LayerRow row;
  for (std::size_t i = 0; i < kRecomputes.size(); ++i) {
    const Recompute recompute = kRecomputes[i];
    const MegatronLayerBytes bytes =
        terms.layer_bytes(tensor, microbatch, sequence_parallel, recompute);
    const Seconds backward = time.backward + time.backward_tensor + time.recomputed(recompute) +
                             time.recomputed_tensor(recompute);
    row.recompute[i] = {
        time.forward + time.forward_tensor + backward, backward, bytes.kept, bytes.recomputed};
    row.embedding_bytes = bytes.embedding;
    row.head_bytes = bytes.head;
  }
  row.accumulate = time.accumulate;
  row.received = time.received;
  row.ends_of_one_stage = time.head + time.embedding;
  row.ends_of_more = std::max(time.head, time.embedding);
  return row;
}

/// Layers by microbatch (an index into the divisors of the batch), for one tensor degree and one
/// placement of its groups.
struct LayerTable {
  std::vector<GroupPart> parts{};
  std::vector<LayerRows> rows{};
};

bool same_parts(const std::vector<GroupPart>& a, const std::vector<GroupPart>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.level == y.level && x.size == y.size;
  });
}

/// Of one (tensor, pipeline, data), without and with a split optimizer.
struct AfterRow {
  Seconds reduce = 0;
  Seconds rest = 0;  ///< gathering, the tie and the update
  double first_resident = 0;
  double last_resident = 0;
  double first_copies = 0;
  double last_copies = 0;
};

bool better(const MegatronCandidate& a, const MegatronCandidate& b) {
  const auto key = [](const MegatronCandidate& x) {
    const MegatronConfig& c = x.config;
    return std::make_tuple(x.seconds,
                           c.devices(),
                           x.bytes,
                           c.tensor,
                           c.pipeline,
                           c.interleave,
                           c.microbatch,
                           c.recompute,
                           c.sequence_parallel,
                           c.distributed_optimizer);
  };
  return key(a) < key(b);
}

/// Keeps the best; the worst kept one sets the bar that most candidates fail.
class Best {
 public:
  Best(std::size_t keep, double memory) : keep_(keep), memory_(memory) {}

  void add(const MegatronConfig& config, Seconds seconds, double bytes) {
    ++sweep_.examined;
    if (sweep_.examined == 1 || bytes < sweep_.smallest.bytes) {
      sweep_.smallest = {config, seconds, bytes};
    }
    if (bytes > memory_) {
      return;
    }
    ++sweep_.fitting;
    std::vector<MegatronCandidate>& best = sweep_.best;
    if (keep_ == 0 || (best.size() == keep_ && seconds > best.back().seconds)) {
      return;
    }
    const MegatronCandidate candidate{config, seconds, bytes};
    best.insert(std::upper_bound(best.begin(), best.end(), candidate, better), candidate);
    if (best.size() > keep_) {
      best.pop_back();
    }
  }

  [[nodiscard]] MegatronSweep result(bool interrupted) && {
    sweep_.interrupted = interrupted;
    return std::move(sweep_);
  }

 private:
  std::size_t keep_;
  double memory_;
  MegatronSweep sweep_{};
};

/// `See` is called with (config, seconds, bytes) of every configuration.
template <class See>
class Sweeper {
 public:
  Sweeper(const MegatronModel& model,
          const cluster::Cluster& cluster,
          const MegatronSweepOptions& options,
          See see)
      : terms_(model, cluster, options.software),
        options_(options),
        devices_(cluster.device_count()),
        batch_divisors_(divisors(options.batch)),
        layer_divisors_(divisors(model.layers)),
        see_(see) {
    config_.batch = options.batch;
    config_.overlap_gradients = options.overlap_gradients;
  }

  /// Whether it came to the end.
  bool run() {
    const std::int64_t most =
        options_.most_tensor > 0 ? std::min(options_.most_tensor, devices_) : devices_;
    for (const std::int64_t tensor : divisors(terms_.model().heads)) {
      if (tensor > most) {
        break;
      }
      config_.tensor = tensor;
      options_.control.report("sweep", -1);
      layer_tables_.clear();
      for (const std::int64_t pipeline : layer_divisors_) {
        if (pipeline > devices_ / tensor) {
          break;
        }
        config_.pipeline = pipeline;
        if (!examine_data()) {
          return false;
        }
      }
    }
    return true;
  }

 private:
  bool examine_data() {
    const MegatronShare share = terms_.share(config_.tensor, config_.pipeline);
    for (const std::int64_t data : batch_divisors_) {
      if (data > devices_ / config_.tensor / config_.pipeline) {
        break;
      }
      if (options_.control.interrupted()) {
        return false;
      }
      config_.data = data;
      const MegatronPlacement placement =
          terms_.place(config_.tensor, config_.pipeline, config_.data);
      const std::size_t splits = data > 1 ? 2 : 1;
      for (std::size_t split = 0; split < splits; ++split) {
        after_[split] = make_after(share, placement, split == 1);
      }
      const LayerTable& layers = table_of(placement.tensor);
      const std::vector<CollectivePrice> links = terms_.links(placement.pipeline);
      for (std::size_t i = 0; i < batch_divisors_.size(); ++i) {
        config_.microbatch = batch_divisors_[i];
        if (config_.microbatch > options_.batch / data) {
          break;
        }
        if ((options_.batch / data) % config_.microbatch == 0) {
          examine_interleaves(
              layers.rows[i], terms_.send(config_.tensor, links, config_.microbatch), splits);
        }
      }
    }
    return true;
  }

  AfterRow make_after(const MegatronShare& share, const MegatronPlacement& placement, bool split) {
    const MegatronDataTime time = terms_.data_time(share, placement, config_.data, split);
    const double own = split ? 1 / number(config_.data) : 1;
    const double resident = 2 + terms_.software().gradient_bytes() + 12 * own;
    const double copies = terms_.software().fused_accumulation ? 0 : 4 * own;
    return {time.reduce,
            time.gather + time.tie + time.optimizer,
            resident * share.first,
            resident * share.last,
            copies * share.first,
            copies * share.last};
  }

  const LayerTable& table_of(const std::vector<GroupPart>& parts) {
    for (const LayerTable& table : layer_tables_) {
      if (same_parts(table.parts, parts)) {
        return table;
      }
    }
    LayerTable table{parts, std::vector<LayerRows>(batch_divisors_.size())};
    for (std::size_t i = 0; i < batch_divisors_.size(); ++i) {
      for (std::size_t sp = 0; sp < table.rows[i].size(); ++sp) {
        table.rows[i][sp] = make_row(terms_, config_.tensor, parts, batch_divisors_[i], sp == 1);
      }
    }
    return layer_tables_.emplace_back(std::move(table));
  }

  void examine_interleaves(const LayerRows& rows, Seconds send, std::size_t splits) {
    const std::int64_t pipeline = config_.pipeline;
    const std::int64_t microbatches = config_.microbatches();
    const bool sequence = config_.tensor > 1 && terms_.model().seq % config_.tensor == 0;
    const bool chunks = pipeline > 1 && microbatches % pipeline == 0;
    for (const std::int64_t interleave : layer_divisors_) {
      if (interleave > 1 && (!chunks || interleave > terms_.model().layers / pipeline)) {
        break;
      }
      if ((terms_.model().layers / pipeline) % interleave != 0) {
        continue;
      }
      config_.interleave = interleave;
      const MegatronInFlight in_flight = megatron_in_flight(pipeline, interleave, microbatches);
      for (std::size_t sp = 0; sp < (sequence ? 2 : 1); ++sp) {
        config_.sequence_parallel = sp == 1;
        examine_row(rows[sp], in_flight, send, splits);
      }
    }
  }

  /// The six configurations that differ in recomputation and in the split of the optimizer.
  void examine_row(const LayerRow& row,
                   const MegatronInFlight& in_flight,
                   Seconds send,
                   std::size_t splits) {
    const bool one_stage = config_.pipeline == 1;
    const double m = number(config_.microbatches());
    const double v = number(config_.interleave);
    const double layers = number(terms_.model().layers) / number(config_.pipeline);
    const double turns = m + (number(config_.pipeline) - 1) / v;
    const Seconds accumulate = config_.microbatches() > 1 ? row.accumulate : 0;
    const Seconds exchange = one_stage ? 0 : 2 * v * (send + row.received);
    const Seconds ends = m * (one_stage ? row.ends_of_one_stage : row.ends_of_more);
    const double first_ends =
        in_flight.inputs * row.embedding_bytes + (one_stage ? row.head_bytes : 0);
    for (std::size_t i = 0; i < kRecomputes.size(); ++i) {
      const RecomputeRow& kind = row.recompute[i];
      config_.recompute = kRecomputes[i];
      const Seconds step = turns * (layers * (kind.layer + accumulate) + exchange) + ends;
      const Seconds hidden = options_.overlap_gradients ? layers * (kind.backward + accumulate) : 0;
      const double first = in_flight.first * layers * kind.kept + kind.working + first_ends;
      const double last =
          one_stage ? first : in_flight.last * layers * kind.kept + kind.working + row.head_bytes;
      for (std::size_t split = 0; split < splits; ++split) {
        const AfterRow& after = after_[split];
        config_.distributed_optimizer = split == 1;
        see_(config_,
             step + std::max(0.0, after.reduce - hidden) + after.rest,
             std::max(after.first_resident + std::max(first, after.first_copies),
                      after.last_resident + std::max(last, after.last_copies)));
      }
    }
  }

  MegatronTerms terms_;
  MegatronSweepOptions options_;
  std::int64_t devices_;
  std::vector<std::int64_t> batch_divisors_;
  std::vector<std::int64_t> layer_divisors_;
  See see_;
  MegatronConfig config_{};
  std::vector<LayerTable> layer_tables_{};
  std::array<AfterRow, 2> after_{};
};

template <class See>
Result<MegatronSweep> sweep(const MegatronModel& model,
                            const cluster::Cluster& cluster,
                            const MegatronSweepOptions& options,
                            const See& also) {
  SHARDPLAN_RETURN_IF_ERROR(check_megatron(model, cluster));
  SHARDPLAN_RETURN_IF_ERROR(count_in_range("batch", options.batch));
  const double memory = options.memory > 0 ? options.memory : number(cluster.device.memory);
  Best best(options.keep, memory);
  const auto see = [&](const MegatronConfig& config, Seconds seconds, double bytes) {
    best.add(config, seconds, bytes);
    also(config, seconds, bytes);
  };
  Sweeper sweeper(model, cluster, options, see);
  const bool finished = sweeper.run();
  return std::move(best).result(!finished);
}

}  // namespace

Result<MegatronSweep> sweep_megatron(const MegatronModel& model,
                                     const cluster::Cluster& cluster,
                                     const MegatronSweepOptions& options) {
  return sweep(model, cluster, options, [](const MegatronConfig&, Seconds, double) {});
}

Result<MegatronSweep> sweep_megatron(const MegatronModel& model,
                                     const cluster::Cluster& cluster,
                                     const MegatronSweepOptions& options,
                                     const std::function<void(const MegatronCandidate&)>& show) {
  return sweep(
      model, cluster, options, [&](const MegatronConfig& config, Seconds seconds, double bytes) {
        show({config, seconds, bytes});
      });
}

}  // namespace shardplan::cost
