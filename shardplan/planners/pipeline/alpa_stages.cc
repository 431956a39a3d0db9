#include "shardplan/planners/pipeline/alpa_stages.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace shardplan::planners {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

/// F(s, k, d): the least sum of s stages of the layers from k on that use d devices, each within a
/// bound. With one depth, s does not matter and all numbers of stages are in one table.
class Sums {
 public:
  Sums(const StageTable& table, const std::function<bool()>& stopped)
      : table_(table),
        stopped_(stopped),
        width_(at(table.devices + 1)),
        rows_(at(table.layers + 1)),
        tables_(table.depths == 1 ? 1 : at(table.layers + 1)) {}

  /// The best cut in which no stage takes more than `bound`.
  /// Nothing when it was stopped.
  StageCut within(double bound) {
    best_.assign(tables_ * rows_ * width_, kInfinity);
    best_[at(table_.layers) * width_] = 0;  // no layer, no device, no stage
    for (int stages = 1; stages <= (table_.depths == 1 ? 1 : table_.layers); ++stages) {
      for (int from = table_.layers - 1; from >= 0; --from) {
        if (stopped()) {
          return {};
        }
        for (int to = from + 1; to <= table_.layers; ++to) {
          extend(stages, from, to, bound);
        }
      }
    }
    return read(bound);
  }
  [[nodiscard]] bool stopped() const { return stopped_ && stopped_(); }

 private:
  /// Row of F for `stages` stages (with one depth: any number) from layer `from` on.
  double* row(int stages, int from) {
    return &best_[(at(table_.depths == 1 ? 0 : stages) * rows_ + at(from)) * width_];
  }

  [[nodiscard]] double time(int stages, int from, int to, int option) const {
    return table_.times[table_.index(from, to, option, table_.depths == 1 ? 0 : stages - 1)];
  }

  void extend(int stages, int from, int to, double bound) {
    double* const target = row(stages, from);
    const double* const rest = row(stages - 1, to);
    for (std::size_t o = 0; o < table_.sizes.size(); ++o) {
      const double taken = time(stages, from, to, static_cast<int>(o));
      if (taken > bound) {
        continue;
      }
      const std::size_t size = at(table_.sizes[o]);
      for (std::size_t d = size; d < width_; ++d) {
        target[d] = std::min(target[d], taken + rest[d - size]);
      }
    }
  }

  /// Follows the sums back to the stages.
  StageCut read(double bound) {
    StageCut cut;
    int stages = 0;
    for (int s = 0; s < static_cast<int>(tables_); ++s) {
      const double sum = row(s, 0)[table_.devices];
      if (sum < cut.sum) {
        cut.sum = sum;
        stages = s;
      }
    }
    int devices = table_.devices;
    for (int from = 0; cut.sum < kInfinity && from < table_.layers;) {
      const StageCut::Stage stage = next(stages, from, devices, bound);
      cut.largest = std::max(cut.largest, time(stages, stage.from, stage.to, stage.option));
      cut.stages.push_back(stage);
      devices -= table_.sizes[at(stage.option)];
      from = stage.to;
      --stages;
    }
    return cut;
  }

  StageCut::Stage next(int stages, int from, int devices, double bound) {
    const double sum = row(stages, from)[devices];
    for (int to = from + 1; to <= table_.layers; ++to) {
      for (std::size_t o = 0; o < table_.sizes.size(); ++o) {
        const double taken = time(stages, from, to, static_cast<int>(o));
        if (taken <= bound && table_.sizes[o] <= devices &&
            taken + row(stages - 1, to)[devices - table_.sizes[o]] == sum) {
          return {from, to, static_cast<int>(o)};
        }
      }
    }
    return {from, table_.layers, 0};  // unreachable: the sum came from one of them
  }

  const StageTable& table_;
  const std::function<bool()>& stopped_;
  std::size_t width_;
  std::size_t rows_;
  std::size_t tables_;
  std::vector<double> best_{};
};

}  // namespace

std::optional<StageCut> cut_stages(const StageTable& table,
                                   double microbatches,
                                   const std::function<bool()>& stopped) {
  Sums sums(table, stopped);
  const StageCut cheapest = sums.within(std::numeric_limits<double>::max());
  if (cheapest.sum == kInfinity) {
    return std::nullopt;
  }
  StageCut best = cheapest;
  const double weight = microbatches - 1;
  if (weight <= 0) {
    return best;
  }
  // The least bound that can be met, by bisection over the times below the cheapest cut's largest.
  std::vector<double> times;
  for (const double time : table.times) {
    if (time < cheapest.largest) {
      times.push_back(time);
    }
  }
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  std::size_t low = 0;
  std::size_t high = times.size();
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    const StageCut cut = sums.within(times[middle]);
    if (sums.stopped()) {
      return best;
    }
    if (cut.sum == kInfinity) {
      low = middle + 1;
      continue;
    }
    high = middle;
    if (cut.latency(microbatches) < best.latency(microbatches)) {
      best = cut;
    }
  }
  // Downwards from the largest bound that could still be better: sums only grow on the way.
  double sum = cheapest.sum;
  double bound = cheapest.largest;
  while (true) {
    bound = std::min(std::nextafter(bound, 0.0),
                     std::nextafter((best.latency(microbatches) - sum) / weight, 0.0));
    const StageCut cut = sums.within(bound);
    if (cut.sum == kInfinity) {
      return best;
    }
    if (cut.latency(microbatches) < best.latency(microbatches)) {
      best = cut;
    }
    sum = cut.sum;
    bound = std::min(bound, cut.largest);
  }
}

std::vector<int> cluster_operators(const std::vector<double>& work,
                                   const std::vector<std::vector<double>>& bytes,
                                   int clusters,
                                   double imbalance) {
  const auto count = static_cast<int>(work.size());
  std::vector<double> prefix(work.size() + 1, 0);
  std::partial_sum(work.begin(), work.end(), prefix.begin() + 1);
  const double most = std::max((1 + imbalance) * prefix.back() / clusters,
                               *std::max_element(work.begin(), work.end()));
  using Value = std::pair<double, double>;  // largest bytes, then squares of work
  const Value none = {kInfinity, kInfinity};
  const auto run = [&](double limit) {
    std::vector<std::vector<Value>> best(at(clusters + 1),
                                         std::vector<Value>(work.size() + 1, none));
    std::vector<std::vector<int>> split(at(clusters + 1), std::vector<int>(work.size() + 1, -1));
    best[0][0] = {0, 0};
    for (int r = 1; r <= clusters; ++r) {
      for (int k = r; k <= count; ++k) {
        for (int i = r - 1; i < k; ++i) {
          const double own = prefix[at(k)] - prefix[at(i)];
          const Value& before = best[at(r - 1)][at(i)];
          const Value value = {std::max(before.first, bytes[at(i)][at(k)]),
                               before.second + own * own};
          if (own <= limit && before.first < kInfinity && value < best[at(r)][at(k)]) {
            best[at(r)][at(k)] = value;
            split[at(r)][at(k)] = i;
          }
        }
      }
    }
    std::vector<int> begins;
    for (int r = clusters, k = count; r > 0 && split[at(r)][at(k)] >= 0; --r) {
      k = split[at(r)][at(k)];
      begins.insert(begins.begin(), k);
    }
    return begins;
  };
  const std::vector<int> begins = run(most);
  // Work that comes in lumps may allow no runs this even.
  return begins.size() == at(clusters) ? begins : run(kInfinity);
}

}  // namespace shardplan::planners
