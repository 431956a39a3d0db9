// Measures this machine as the ranks of a run find it: every rank is a thread that does the same at
// the same time, so that what they take from each other (cores, memory bandwidth) is in the
// numbers.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shardplan/runtime/allocator.h"
#include "shardplan/runtime/collectives.h"
#include "shardplan/runtime/groups.h"
#include "shardplan/runtime/kernel.h"
#include "shardplan/runtime/probe_kernels.h"
#include "shardplan/runtime/runtime.h"

namespace shardplan::runtime {
namespace {

using Clock = std::chrono::steady_clock;
using cluster::CurvePoint;
using sharding::CollectiveKind;

constexpr Seconds kPatience = 60;

/// Threads that run one piece of work after the other together; rank 0's times count.
class Ranks {
 public:
  explicit Ranks(int count) : count_(count), gate_(count) {}

  /// Seconds of what `make(rank)` returns, called `repetitions` times after one to warm up: the
  /// lower quartile, since what else runs on the machine only adds. Each time is that of `calls` in
  /// a row, so that the start of the threads does not count where they wait for each other.
  Result<Seconds> time(int repetitions,
                       const std::function<std::function<void()>(std::int64_t rank)>& make,
                       int calls = 1) {
    std::vector<Seconds> seconds(static_cast<std::size_t>(repetitions));
    std::string failure;
    std::mutex mutex;
    std::vector<std::thread> threads;
    for (std::int64_t rank = 0; rank < count_; ++rank) {
      threads.emplace_back([&, rank] {
        std::function<void()> work;
        try {
          at::set_num_threads(1);
          work = make(rank);
          work();
        } catch (const std::exception& error) {
          const std::lock_guard lock(mutex);
          failure = error.what();
        }
        gate_.arrive_and_wait();
        if (!failure.empty()) {
          return;
        }
        for (Seconds& now : seconds) {
          gate_.arrive_and_wait();
          const Clock::time_point start = Clock::now();
          for (int call = 0; call < calls; ++call) {
            work();
          }
          if (rank == 0) {
            now = std::chrono::duration<double>(Clock::now() - start).count() / calls;
          }
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    if (!failure.empty()) {
      return Error{ErrorCode::kRuntime, "the probe failed: " + failure, {}, {}};
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 4];
  }

 private:
  int count_;
  std::barrier<> gate_;
};

/// Curves must rise: a point that noise put below its predecessor is lifted to it.
void append(std::vector<CurvePoint>& curve, double size, Seconds seconds) {
  const Seconds before = curve.empty() ? 0 : curve.back().seconds;
  curve.push_back({size, std::max(seconds, before)});
}

int repetitions_of(double work, double a_lot, bool quick) {
  const double fit = a_lot / std::max(1.0, work);
  return static_cast<int>(std::clamp(fit, quick ? 3.0 : 9.0, quick ? 7.0 : 25.0));
}

/// Small collectives are called many times in a row.
int calls_of(double bytes) {
  constexpr double kBytesInARow = 4 << 20;
  return static_cast<int>(std::clamp(kBytesInARow / bytes, 1.0, 32.0));
}

class Probe {
 public:
  Probe(const ProbeOptions& options, const Control& control)
      : options_(options), control_(control), ranks_(options.ranks) {}

  Result<cluster::Cluster> run() {
    // As in a run: blocks that were freed serve again, so no fresh page is asked of the system.
    install_counting_allocator();
    cluster::Cluster found;
    found.name = "probed-local:" + std::to_string(options_.ranks);
    found.local = true;
    SHARDPLAN_RETURN_IF_ERROR(measure_products(found.device));
    SHARDPLAN_RETURN_IF_ERROR(measure_memory(found.device));
    SHARDPLAN_RETURN_IF_ERROR(measure_kernels(found.device));
    if (options_.ranks > 1) {
      SHARDPLAN_RETURN_IF_ERROR(measure_links(found.levels));
    }
    return found;
  }

 private:
  [[nodiscard]] Status check_interrupt() const {
    if (control_.interrupted()) {
      return Error{ErrorCode::kRuntime, "interrupted", "probe", {}};
    }
    return {};
  }

  Status measure_products(cluster::Device& device) {
    device.name = "local process";
    device.matmul_efficiency = 1;
    const std::int64_t largest = options_.quick ? 512 : 1024;
    const std::vector<ir::DType> dtypes{
        ir::DType::kFloat32, ir::DType::kFloat64, ir::DType::kBFloat16};
    for (std::size_t i = 0; i < dtypes.size(); ++i) {
      const std::string name(ir::dtype_name(dtypes[i]));
      control_.report("matrix products in " + name, 0.15 * static_cast<double>(i));
      for (std::int64_t n = 16; n <= largest; n *= 2) {
        SHARDPLAN_RETURN_IF_ERROR(check_interrupt());
        const double flops = 2.0 * static_cast<double>(n * n * n);
        SHARDPLAN_ASSIGN_OR_RETURN(
            const Seconds seconds,
            ranks_.time(repetitions_of(flops, 2e9, options_.quick), [&](std::int64_t) {
              const at::TensorOptions options(scalar_type(dtypes[i]));
              std::vector<at::Tensor> sets;
              for (std::int64_t set = 0; set < cold_sets(2 * n * n * ir::element_bytes(dtypes[i]));
                   ++set) {
                sets.push_back(at::ones({2, n, n}, options));
              }
              return [sets, calls = std::size_t{0}]() mutable {
                const at::Tensor& next = sets[calls++ % sets.size()];
                at::mm(next[0], next[1].t());
              };
            }));
        append(device.matmul_curve[name], flops, seconds);
        device.peak_flops[name] = std::max(device.peak_flops[name], flops / seconds);
      }
    }
    return {};
  }

  Status measure_memory(cluster::Device& device) {
    device.memory = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) / options_.ranks;
    device.memory_efficiency = 1;
    control_.report("memory-bound ops", 0.45);
    const std::int64_t largest = options_.quick ? 1 << 22 : 1 << 24;
    for (std::int64_t n = 1; n <= largest; n *= 8) {
      SHARDPLAN_RETURN_IF_ERROR(check_interrupt());
      const double bytes = 12.0 * static_cast<double>(n);  // two read, one written
      SHARDPLAN_ASSIGN_OR_RETURN(
          const Seconds seconds,
          ranks_.time(repetitions_of(bytes, 4e8, options_.quick), [&](std::int64_t) {
            const at::Tensor a = at::ones({n}, at::TensorOptions(at::kFloat));
            const at::Tensor b = at::ones({n}, at::TensorOptions(at::kFloat));
            return [a, b] { at::add(a, b); };
          }));
      append(device.memory_curve, bytes, seconds);
      device.memory_bandwidth = std::max(device.memory_bandwidth, bytes / seconds);
    }
    device.kernel_overhead = device.memory_curve.front().seconds;
    return {};
  }

  Status measure_kernels(cluster::Device& device) {
    const std::int64_t largest = options_.quick ? 1 << 18 : 1 << 23;
    for (std::int64_t elements = 1 << 12; elements <= largest; elements *= 8) {
      const std::vector<KernelSample> samples = kernel_samples(elements);
      for (std::size_t i = 0; i < samples.size(); ++i) {
        SHARDPLAN_RETURN_IF_ERROR(check_interrupt());
        control_.report(samples[i].op, 0.47);
        const auto work = static_cast<double>(elements);
        SHARDPLAN_ASSIGN_OR_RETURN(const Seconds seconds,
                                   ranks_.time(repetitions_of(work, 2e7, options_.quick),
                                               [&](std::int64_t) { return work_of(samples[i]); }));
        append(device.kernel_curves[samples[i].op], size_of(samples[i]), seconds);
      }
    }
    return {};
  }

  Status measure_links(std::vector<cluster::LinkLevel>& levels) {
    cluster::LinkLevel& level = levels.emplace_back();
    level.name = "loopback";
    level.fanout = options_.ranks;
    const std::vector<std::unique_ptr<GroupSource>> sources =
        thread_groups(options_.ranks, kPatience);
    std::vector<std::shared_ptr<Group>> groups(sources.size());
    SHARDPLAN_RETURN_IF_ERROR(connect(sources, groups));
    const std::vector<CollectiveKind> kinds{CollectiveKind::kAllReduce,
                                            CollectiveKind::kAllGather,
                                            CollectiveKind::kReduceScatter,
                                            CollectiveKind::kAllToAll,
                                            CollectiveKind::kCollectivePermute};
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      control_.report(sharding::collective_name(kinds[i]), 0.5 + 0.1 * static_cast<double>(i));
      SHARDPLAN_RETURN_IF_ERROR(measure_collective(kinds[i], groups, level));
    }
    const std::vector<CurvePoint>& gather = level.collective_curves.at("all_gather");
    const double others = static_cast<double>(options_.ranks - 1);
    level.latency = gather.front().seconds / others;
    level.bandwidth =
        gather.back().size * others / static_cast<double>(options_.ranks) / gather.back().seconds;
    return {};
  }

  Status connect(const std::vector<std::unique_ptr<GroupSource>>& sources,
                 std::vector<std::shared_ptr<Group>>& groups) const {
    runtime::Ranks everyone;
    for (int rank = 0; rank < options_.ranks; ++rank) {
      everyone.push_back(rank);
    }
    std::vector<Status> made(sources.size());
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < sources.size(); ++rank) {
      threads.emplace_back([&, rank] {
        Result<std::shared_ptr<Group>> group = sources[rank]->group(everyone);
        if (group) {
          groups[rank] = *std::move(group);
        } else {
          made[rank] = group.error();
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    for (const Status& status : made) {
      SHARDPLAN_RETURN_IF_ERROR(status);
    }
    return {};
  }

  Status measure_collective(CollectiveKind kind,
                            const std::vector<std::shared_ptr<Group>>& groups,
                            cluster::LinkLevel& level) {
    const cluster::DeviceMesh mesh{{{"x", options_.ranks}}};
    const std::int64_t largest = options_.quick ? 1 << 20 : 1 << 24;
    for (std::int64_t elements = 256; elements <= largest; elements *= 8) {
      SHARDPLAN_RETURN_IF_ERROR(check_interrupt());
      // Whole tensor: a square of parts, so that every kind finds dimensions that divide.
      const std::int64_t n = options_.ranks;
      const std::int64_t columns = std::max<std::int64_t>(1, elements / (n * n));
      const ir::Shape full{n, n * columns};
      const ir::Shape rows{1, n * columns};
      const auto step = std::make_shared<sharding::ReshardStep>();
      step->kind = kind;
      step->axes = {0};
      step->dim = 0;
      if (kind == CollectiveKind::kAllGather || kind == CollectiveKind::kAllToAll) {
        step->from.shard(0, 0);
      }
      if (kind == CollectiveKind::kReduceScatter) {
        step->to.shard(0, 0);
      } else if (kind == CollectiveKind::kAllToAll) {
        step->split_dim = 1;
        step->to.shard(1, 0);
      }
      const ir::Shape input = step->from.dim_of(0) == 0 ? rows : full;
      const double bytes =
          4.0 *
          static_cast<double>(kind == CollectiveKind::kAllToAll ? n * columns : n * n * columns);
      SHARDPLAN_ASSIGN_OR_RETURN(
          const Seconds seconds,
          ranks_.time(
              repetitions_of(bytes, 4e7, options_.quick),
              [&](std::int64_t rank) -> std::function<void()> {
                const at::Tensor tensor = at::ones(input, at::TensorOptions(at::kFloat));
                Group* const group = groups[static_cast<std::size_t>(rank)].get();
                if (kind == CollectiveKind::kCollectivePermute) {
                  return [=] {
                    const at::Tensor output = at::empty(tensor.sizes(), tensor.options());
                    group->transfer({{(rank + n - 1) % n, output}}, {{(rank + 1) % n, tensor}});
                  };
                }
                return [=] { (void)run_collective({*step, mesh, rank, full, group}, tensor); };
              },
              calls_of(bytes)));
      append(level.collective_curves[std::string(sharding::collective_name(kind))], bytes, seconds);
    }
    return {};
  }

  const ProbeOptions& options_;
  const Control& control_;
  Ranks ranks_;
};

}  // namespace

Result<cluster::Cluster> probe(const ProbeOptions& options, const Control& control) {
  if (options.ranks < 1) {
    return invalid_input("a probe needs at least one rank, not " + std::to_string(options.ranks));
  }
  return Probe(options, control).run();
}

}  // namespace shardplan::runtime
