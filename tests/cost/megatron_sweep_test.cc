#include "shardplan/cost/megatron_sweep.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

namespace shardplan::cost {
namespace {

cluster::Cluster dgx(std::int64_t nodes) {
  return cluster::load_cluster("dgx-a100:" + std::to_string(nodes)).value();
}

struct Case {
  MegatronModel model;
  cluster::Cluster cluster;
  MegatronSweepOptions options;
};

std::vector<Case> cases() {
  MegatronSweepOptions old;
  old.batch = 24;
  old.software = {.overlap_tensor_parallel = false, .fused_accumulation = false};
  MegatronSweepOptions overlapped;
  overlapped.batch = 32;
  overlapped.overlap_gradients = true;
  MegatronSweepOptions plain;
  plain.batch = 36;
  cluster::Cluster pairs = cluster::load_cluster("pairs8").value();
  cluster::Cluster small = dgx(2);
  small.device.memory = Bytes{12} << 30;
  return {
      {{.layers = 12, .hidden = 1536, .heads = 12, .seq = 1000, .vocab = 50257}, small, old},
      {{.layers = 8, .hidden = 2048, .heads = 16, .seq = 2048, .vocab = 51200}, dgx(4), overlapped},
      {{.layers = 6, .hidden = 768, .heads = 6, .seq = 512, .vocab = 32000, .tied = false},
       pairs,
       plain}};
}

/// Every combination of small integers, kept if check_megatron accepts it.
std::vector<MegatronConfig> all_configs(const Case& c) {
  std::vector<MegatronConfig> configs;
  MegatronConfig config;
  config.batch = c.options.batch;
  config.overlap_gradients = c.options.overlap_gradients;
  const std::int64_t devices = c.cluster.device_count();
  const auto add = [&] {
    for (const bool sp : {false, true}) {
      for (const Recompute recompute :
           {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        for (const bool split : {false, true}) {
          config.sequence_parallel = sp;
          config.recompute = recompute;
          config.distributed_optimizer = split;
          const bool repeats = (sp && config.tensor == 1) || (split && config.data == 1);
          if (!repeats && check_megatron(c.model, c.cluster, config)) {
            configs.push_back(config);
          }
        }
      }
    }
  };
  for (config.tensor = 1; config.tensor <= devices; ++config.tensor) {
    for (config.pipeline = 1; config.pipeline * config.tensor <= devices; ++config.pipeline) {
      for (config.data = 1; config.devices() <= devices; ++config.data) {
        for (config.microbatch = 1; config.microbatch <= config.batch; ++config.microbatch) {
          for (config.interleave = 1; config.interleave <= c.model.layers; ++config.interleave) {
            add();
          }
        }
      }
    }
  }
  return configs;
}

auto key(const MegatronConfig& c) {
  return std::make_tuple(c.tensor,
                         c.pipeline,
                         c.data,
                         c.microbatch,
                         c.interleave,
                         c.sequence_parallel,
                         c.recompute,
                         c.distributed_optimizer);
}

/// The slow twin: one call of predict_megatron for each configuration.
TEST(MegatronSweep, EqualsPredictingEachConfigurationAlone) {
  for (const Case& c : cases()) {
    std::vector<MegatronCandidate> seen;
    const auto swept = sweep_megatron(
        c.model, c.cluster, c.options, [&](const MegatronCandidate& x) { seen.push_back(x); });
    ASSERT_TRUE(swept) << swept.error().text();
    std::vector<MegatronConfig> wanted = all_configs(c);
    const auto less = [](const auto& a, const auto& b) { return key(a) < key(b); };
    std::sort(wanted.begin(), wanted.end(), less);
    std::sort(seen.begin(), seen.end(), [](const auto& a, const auto& b) {
      return key(a.config) < key(b.config);
    });
    ASSERT_EQ(seen.size(), wanted.size());
    EXPECT_EQ(swept->examined, static_cast<std::int64_t>(wanted.size()));
    EXPECT_GT(wanted.size(), 1000U);
    std::int64_t fitting = 0;
    Seconds fastest = 1e300;
    double smallest = 1e300;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      ASSERT_EQ(seen[i].config, wanted[i]);
      const auto alone =
          predict_megatron(c.model, c.cluster, wanted[i], c.options.software).value();
      const Seconds seconds = alone.time.total();
      const double bytes = alone.memory.total();
      EXPECT_NEAR(seen[i].seconds, seconds, 1e-12 * seconds);
      EXPECT_NEAR(seen[i].bytes, bytes, 1e-12 * bytes);
      smallest = std::min(smallest, bytes);
      if (bytes <= static_cast<double>(c.cluster.device.memory)) {
        ++fitting;
        fastest = std::min(fastest, seconds);
      }
    }
    EXPECT_EQ(swept->fitting, fitting);
    EXPECT_GT(fitting, 0);
    ASSERT_EQ(swept->best.size(), c.options.keep);
    EXPECT_NEAR(swept->best[0].seconds, fastest, 1e-12 * fastest);
    EXPECT_NEAR(swept->smallest.bytes, smallest, 1e-12 * smallest);
    EXPECT_TRUE(std::is_sorted(swept->best.begin(),
                               swept->best.end(),
                               [](const auto& a, const auto& b) { return a.seconds < b.seconds; }));
  }
}

Seconds best(const MegatronModel& model,
             const cluster::Cluster& cluster,
             const MegatronSweepOptions& options) {
  const auto swept = sweep_megatron(model, cluster, options).value();
  return swept.best.empty() ? 1e300 : swept.best[0].seconds;
}

TEST(MegatronSweep, MoreDevicesAreNeverWorse) {
  for (const Case& c : cases()) {
    Seconds before = 1e301;
    for (const std::int64_t nodes : {1, 2, 3, 4, 8, 16, 64}) {
      const Seconds now = best(c.model, dgx(nodes), c.options);
      EXPECT_LE(now, before) << nodes;
      before = now;
    }
  }
}

TEST(MegatronSweep, MoreMemoryIsNeverWorse) {
  for (const Case& c : cases()) {
    Seconds before = 1e301;
    std::int64_t fitting = 0;
    for (double gib = 1; gib < 100; gib *= 1.3) {
      MegatronSweepOptions options = c.options;
      options.memory = gib * (1 << 30);
      const auto swept = sweep_megatron(c.model, c.cluster, options).value();
      EXPECT_GE(swept.fitting, fitting);
      fitting = swept.fitting;
      const Seconds now = swept.best.empty() ? 1e300 : swept.best[0].seconds;
      EXPECT_LE(now, before);
      before = now;
      for (const MegatronCandidate& candidate : swept.best) {
        EXPECT_LE(candidate.bytes, options.memory);
      }
    }
  }
}

TEST(MegatronSweep, MoreBandwidthIsNeverWorse) {
  for (const Case& c : cases()) {
    cluster::Cluster cluster = c.cluster;
    Seconds before = best(c.model, cluster, c.options);
    const auto improve = [&](double& rate) {
      rate *= 1.7;
      const Seconds now = best(c.model, cluster, c.options);
      EXPECT_LE(now, before);
      before = now;
    };
    for (cluster::LinkLevel& level : cluster.levels) {
      improve(level.bandwidth);
    }
    improve(cluster.device.memory_bandwidth);
    improve(cluster.device.peak_flops["f16"]);
  }
}

TEST(MegatronSweep, KeepsAsManyAsAsked) {
  Case c = cases()[1];
  c.options.keep = 3;
  const auto three = sweep_megatron(c.model, c.cluster, c.options).value();
  c.options.keep = 50;
  const auto fifty = sweep_megatron(c.model, c.cluster, c.options).value();
  ASSERT_EQ(three.best.size(), 3U);
  ASSERT_EQ(fifty.best.size(), 50U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(three.best[i].config, fifty.best[i].config);
  }
  c.options.most_tensor = 2;
  const auto narrow = sweep_megatron(c.model, c.cluster, c.options).value();
  for (const MegatronCandidate& candidate : narrow.best) {
    EXPECT_LE(candidate.config.tensor, 2);
  }
}

TEST(MegatronSweep, NothingFits) {
  Case c = cases()[0];
  c.options.memory = 1;
  const auto swept = sweep_megatron(c.model, c.cluster, c.options).value();
  EXPECT_EQ(swept.fitting, 0);
  EXPECT_TRUE(swept.best.empty());
  EXPECT_GT(swept.examined, 0);
  EXPECT_GT(swept.smallest.bytes, 1);
  c.options.batch = 0;
  EXPECT_FALSE(sweep_megatron(c.model, c.cluster, c.options));
}

TEST(MegatronSweep, StopsWithTheBestSoFar) {
  Case c = cases()[1];
  const auto whole = sweep_megatron(c.model, c.cluster, c.options).value();
  EXPECT_FALSE(whole.interrupted);
  std::atomic<bool> stop = false;
  c.options.control.interrupt = &stop;
  std::int64_t seen = 0;
  const auto swept = sweep_megatron(c.model, c.cluster, c.options, [&](const MegatronCandidate&) {
                       stop = ++seen > whole.examined / 2;
                     }).value();
  EXPECT_TRUE(swept.interrupted);
  EXPECT_EQ(swept.examined, seen);
  EXPECT_LT(swept.examined, whole.examined);
  EXPECT_EQ(swept.best.size(), c.options.keep);
  EXPECT_GE(swept.best[0].seconds, whole.best[0].seconds);
}

}  // namespace
}  // namespace shardplan::cost
