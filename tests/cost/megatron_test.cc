#include "shardplan/cost/megatron.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "shardplan/cost/megatron_terms.h"

namespace shardplan::cost {
namespace {

using ::testing::HasSubstr;

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr MegatronSoftware kOf2021{.overlap_tensor_parallel = false, .fused_accumulation = false};

cluster::Cluster dgx(std::int64_t nodes) {
  return cluster::load_cluster("dgx-a100:" + std::to_string(nodes)).value();
}

MegatronModel gpt(std::int64_t layers, std::int64_t hidden, std::int64_t heads) {
  return {.layers = layers, .hidden = hidden, .heads = heads, .seq = 2048, .vocab = 51200};
}

/// SC'21, Table 1, with the microbatches and chunks of Megatron-LM's examples/sc21/run_table_1.sh.
struct TableOneRow {
  double billions;
  MegatronModel model;
  MegatronConfig config;
  double teraflops;  ///< a GPU's, as printed
};

std::vector<TableOneRow> table_one() {
  const auto row =
      [](double billions, MegatronModel model, std::vector<std::int64_t> c, double tf) {
        MegatronConfig config;
        config.tensor = c[0];
        config.pipeline = c[1];
        config.data = c[2];
        config.batch = c[3];
        config.microbatch = c[4];
        config.interleave = c[5];
        config.recompute = Recompute::kFull;
        config.overlap_gradients = config.pipeline == 1;  // these rows used the overlapped wrapper
        return TableOneRow{billions, model, config, tf};
      };
  return {row(1.7, gpt(24, 2304, 24), {1, 1, 32, 512, 16, 1}, 137),
          row(3.6, gpt(30, 3072, 32), {2, 1, 32, 512, 16, 1}, 138),
          row(7.5, gpt(36, 4096, 32), {4, 1, 32, 512, 16, 1}, 142),
          row(18.4, gpt(40, 6144, 48), {8, 1, 32, 1024, 8, 1}, 135),
          row(39.1, gpt(48, 8192, 64), {8, 2, 32, 1536, 4, 1}, 138),
          row(76.1, gpt(60, 10240, 80), {8, 4, 32, 1792, 2, 3}, 140),
          row(145.6, gpt(80, 12288, 96), {8, 8, 24, 2304, 2, 2}, 148),
          row(310.1, gpt(96, 16384, 128), {8, 16, 15, 2160, 1, 2}, 155),
          row(529.6, gpt(105, 20480, 128), {8, 35, 9, 2520, 1, 3}, 163),
          row(1008, gpt(128, 25600, 160), {8, 64, 6, 3072, 1, 1}, 163)};
}

TEST(MegatronAgainstPublished, EveryRowOfTableOneOfSc21Within5Percent) {
  for (const TableOneRow& row : table_one()) {
    SCOPED_TRACE(row.billions);
    const auto predicted =
        predict_megatron(row.model, dgx(row.config.devices() / 8), row.config, kOf2021);
    ASSERT_TRUE(predicted) << predicted.error().text();
    const Flops flops = hardware_flops(row.model, row.config.batch, Recompute::kFull);
    const double published =
        flops / (static_cast<double>(row.config.devices()) * row.teraflops * 1e12);
    const double error = predicted->time.total() / published - 1;
    EXPECT_LT(std::abs(error), 0.05) << error;
    EXPECT_NEAR(row.model.parameters() / 1e9, row.billions, row.billions * 0.03);
  }
}

/// K22, Table 5 and Fig. 7 (activations of the first stage).
struct TableFiveRow {
  MegatronModel model;
  MegatronConfig config;
  double full_seconds;
  double selective_seconds;
  std::vector<double> gib;  ///< none, SP, selective, both, full
  double mfu;
  double hfu;
};

std::vector<TableFiveRow> table_five() {
  const auto config =
      [](std::int64_t pp, std::int64_t v, std::int64_t microbatch, std::int64_t batch) {
        MegatronConfig c;
        c.tensor = 8;
        c.pipeline = pp;
        c.interleave = v;
        c.microbatch = microbatch;
        c.batch = batch;
        return c;
      };
  return {{gpt(48, 6144, 64),
           config(1, 1, 4, 4),
           1.42,
           1.10,
           {59.25, 39.56, 29.25, 9.56, 4.50},
           41.5,
           43.7},
          {gpt(96, 12288, 96),
           config(8, 3, 1, 64),
           18.13,
           13.75,
           {66.84, 41.41, 37.78, 12.35, 5.81},
           51.4,
           52.8},
          {gpt(105, 20480, 128),
           config(35, 3, 1, 280),
           49.05,
           37.83,
           {114.02, 66.51, 70.59, 23.08, 10.86},
           56.0,
           57.0},
          {gpt(128, 25600, 160),
           config(64, 1, 1, 512),
           94.42,
           71.49,
           {131.25, 76.56, 81.25, 26.56, 12.50},
           56.3,
           57.0}};
}

TEST(MegatronAgainstPublished, EveryStepTimeOfTableFiveWithin5Percent) {
  for (const TableFiveRow& row : table_five()) {
    MegatronConfig config = row.config;
    const cluster::Cluster cluster = dgx(config.devices() / 8);
    config.recompute = Recompute::kFull;
    const auto full = predict_megatron(row.model, cluster, config);
    ASSERT_TRUE(full) << full.error().text();
    config.recompute = Recompute::kSelective;
    config.sequence_parallel = true;
    const auto selective = predict_megatron(row.model, cluster, config);
    ASSERT_TRUE(selective) << selective.error().text();
    const double full_error = full->time.total() / row.full_seconds - 1;
    const double selective_error = selective->time.total() / row.selective_seconds - 1;
    EXPECT_LT(std::abs(full_error), 0.05) << full_error;
    EXPECT_LT(std::abs(selective_error), 0.05) << selective_error;
  }
}

/// Activations of the layers on the first stage, as K22 prints them.
TEST(MegatronAgainstPublished, ActivationsOfTheFourModelsToThePrintedDigit) {
  struct Way {
    bool sequence_parallel;
    Recompute recompute;
  };
  const std::vector<Way> ways{{false, Recompute::kNone},
                              {true, Recompute::kNone},
                              {false, Recompute::kSelective},
                              {true, Recompute::kSelective},
                              {false, Recompute::kFull}};
  for (const TableFiveRow& row : table_five()) {
    MegatronConfig config = row.config;
    for (std::size_t i = 0; i < ways.size(); ++i) {
      config.sequence_parallel = ways[i].sequence_parallel;
      config.recompute = ways[i].recompute;
      const auto predicted = predict_megatron(row.model, dgx(config.devices() / 8), config);
      ASSERT_TRUE(predicted) << predicted.error().text();
      EXPECT_TRUE(predicted->memory.first_stage);
      EXPECT_EQ(std::round(predicted->memory.activations / kGiB * 100) / 100, row.gib[i])
          << row.model.layers << " layers, way " << i;
    }
  }
}

TEST(MegatronAgainstPublished, UtilizationOfTableFive) {
  for (const TableFiveRow& row : table_five()) {
    const double allowed =
        static_cast<double>(row.config.devices()) * 312e12 * row.selective_seconds;
    EXPECT_NEAR(100 * model_flops(row.model, row.config.batch) / allowed, row.mfu, 0.2);
    EXPECT_NEAR(100 * hardware_flops(row.model, row.config.batch, Recompute::kSelective) / allowed,
                row.hfu,
                0.2);
  }
}

/// Fig. 1 of K22: 45.56 GiB of parameters, gradients and optimizer for 22B and 175B alike, by the
/// matrices of the layers; ours also has biases, norms and embeddings.
TEST(MegatronAgainstPublished, ResidentBytesOfFigureOne) {
  for (const TableFiveRow& row : {table_five()[0], table_five()[1]}) {
    const auto h = static_cast<double>(row.model.hidden);
    const auto devices = static_cast<double>(row.config.devices());
    const double matrices = 12 * static_cast<double>(row.model.layers) * h * h / devices;
    EXPECT_EQ(std::round(18 * matrices / kGiB * 100) / 100, 45.56);
    const auto predicted =
        predict_megatron(row.model, dgx(row.config.devices() / 8), row.config).value();
    const MegatronMemory& memory = predicted.memory;
    const double resident = memory.parameters + memory.gradients + memory.optimizer;
    const double embedding = 18 * (51200.0 / 8 + 2048) * h;
    EXPECT_NEAR(resident, 18 * matrices + embedding, 0.002 * resident);
  }
}

/// ZeRO's example: 7.5 B parameters on 64 replicas take 120 GB, or 31.4 GB with P_os.
TEST(MegatronAgainstPublished, SplitOptimizerOfZero) {
  MegatronConfig config;
  config.data = 64;
  config.batch = 64;
  const MegatronModel model = gpt(36, 4096, 32);
  const double scale = 7.5e9 / MegatronTerms(model, dgx(8), kOf2021).share(1, 1).most();
  const auto resident = [&](bool split) {
    config.distributed_optimizer = split;
    const MegatronMemory memory = predict_megatron(model, dgx(8), config, kOf2021)->memory;
    return scale * (memory.parameters + memory.gradients + memory.optimizer) / 1e9;
  };
  EXPECT_NEAR(resident(false), 120, 0.05);
  EXPECT_NEAR(resident(true), 31.4, 0.05);
}

TEST(Megatron, OneDeviceIsTheSumOfItsKernels) {
  const MegatronModel model = gpt(3, 1024, 16);
  MegatronConfig config;
  config.batch = 2;
  const cluster::Cluster box = dgx(1);
  const auto predicted = predict_megatron(model, box, config).value();
  const MegatronTime& time = predicted.time;
  EXPECT_EQ(time.tensor + time.pipeline + time.bubble + time.data + time.recompute, 0);
  // The products of a layer by hand; dimensions are long, so arithmetic decides.
  const auto product = [&](double m, double n, double k, double count) {
    const double ramp = m / (m + 150) * (n / (n + 150)) * (k / (k + 150));
    const double bytes = 2 * count * (m * k + k * n + m * n);
    return std::max(2 * count * m * n * k / (312e12 * 0.845 * ramp), bytes / (2.039e12 * 0.73)) +
           4e-6;
  };
  const double products = product(2048, 3072, 1024, 1) + product(2048, 1024, 1024, 1) +
                          product(2048, 4096, 1024, 1) + product(2048, 1024, 4096, 1) +
                          product(2048, 2048, 64, 16) + product(2048, 64, 2048, 16);
  const auto pass = [](double bytes) { return bytes / (2.039e12 * 0.73) + 4e-6; };
  const double elements = 2048.0 * 1024;
  const double scores = 16.0 * 2048 * 2048;
  const double passes = pass(4 * scores) + pass(5 * scores) + 2 * pass(4 * elements) +
                        2 * pass(7 * elements) + pass(16 * elements) + pass(12 * elements) +
                        pass(4 * elements);
  EXPECT_NEAR(time.forward, 2 * 3 * (products + passes), 1e-9);
  const double sbh = elements;
  EXPECT_NEAR(predicted.memory.activations, 3 * (34 * sbh + 5 * scores), 1);
  EXPECT_NEAR(predicted.memory.head, sbh + 4 * sbh + 4 * 2048.0 * 51200, 1);
  EXPECT_NEAR(predicted.memory.parameters, 2 * (model.parameters() + 2 * 1024), 1);
}

TEST(Megatron, BubbleIsTheClosedForm) {
  const MegatronModel model = gpt(48, 2048, 16);
  for (const std::int64_t interleave : {1, 2, 3}) {
    MegatronConfig config;
    config.pipeline = 8;
    config.batch = 32;
    config.interleave = interleave;
    const MegatronTime time = predict_megatron(model, dgx(1), config)->time;
    const Seconds steady = time.forward + time.backward + time.tensor + time.pipeline;
    EXPECT_NEAR(time.bubble / steady, 7.0 / 32 / static_cast<double>(interleave), 1e-12);
  }
}

TEST(Megatron, TermsOfAConfigurationAddUp) {
  for (const TableOneRow& row : table_one()) {
    MegatronConfig config = row.config;
    config.overlap_gradients = false;
    const cluster::Cluster cluster = dgx(config.devices() / 8);
    const MegatronTime plain = predict_megatron(row.model, cluster, config, kOf2021)->time;
    config.overlap_gradients = true;
    const MegatronTime overlapped = predict_megatron(row.model, cluster, config, kOf2021)->time;
    EXPECT_NEAR(plain.total() - overlapped.total(), overlapped.hidden_data, 1e-12);
    EXPECT_NEAR(plain.data, overlapped.data + overlapped.hidden_data, 1e-12);
  }
}

/// Faster parts never make a row slower, and a larger cluster does not change it.
TEST(Megatron, BetterHardwareIsNeverSlower) {
  for (const TableOneRow& row : table_one()) {
    for (const bool overlap : {false, true}) {
      MegatronConfig config = row.config;
      config.overlap_gradients = overlap;
      const auto seconds = [&](const cluster::Cluster& cluster) {
        return predict_megatron(row.model, cluster, config)->time.total();
      };
      cluster::Cluster cluster = dgx(config.devices() / 8);
      Seconds before = seconds(cluster);
      EXPECT_EQ(seconds(dgx(512)), before);
      const auto improve = [&](double& value, double factor) {
        value *= factor;
        const Seconds after = seconds(cluster);
        EXPECT_LE(after, before * (1 + 1e-12));
        before = after;
      };
      improve(cluster.device.memory_bandwidth, 1.5);
      improve(cluster.device.peak_flops["f16"], 2);
      improve(cluster.device.kernel_overhead, 0.5);
      improve(cluster.levels[0].bandwidth, 1.5);
      improve(cluster.levels[1].bandwidth, 1.5);
      improve(cluster.levels[0].latency, 0.5);
      improve(cluster.levels[1].latency, 0.5);
    }
  }
}

TEST(Megatron, SaysWhatIsWrong) {
  const MegatronModel model = gpt(12, 1024, 16);
  const auto error = [&](const MegatronModel& m, auto change) {
    MegatronConfig config;
    config.batch = 16;
    change(config);
    const auto predicted = predict_megatron(m, dgx(4), config);
    return predicted ? std::string("none") : predicted.error().text();
  };
  using C = MegatronConfig;
  EXPECT_EQ(error(model, [](C&) {}), "none");
  EXPECT_THAT(error(model, [](C& c) { c.tensor = 0; }), HasSubstr("tp must be"));
  EXPECT_THAT(error(model, [](C& c) { c.pipeline = -1; }), HasSubstr("pp must be"));
  EXPECT_THAT(error(model, [](C& c) { c.microbatch = 0; }), HasSubstr("microbatch must be"));
  EXPECT_THAT(error(model, [](C& c) { c.batch = std::int64_t{1} << 40; }), HasSubstr("batch must"));
  EXPECT_THAT(error(model, [](C& c) { c.tensor = 3; }), HasSubstr("16 heads cannot be split"));
  EXPECT_THAT(error(model, [](C& c) { c.pipeline = 5; }), HasSubstr("12 layers cannot be split"));
  EXPECT_THAT(error(model, [](C& c) { c.pipeline = 13; }), HasSubstr("more stages than layers"));
  EXPECT_THAT(error(model, [](C& c) { c.interleave = 2; }), HasSubstr("on one stage"));
  EXPECT_THAT(error(model,
                    [](C& c) {
                      c.pipeline = 4;
                      c.interleave = 6;
                    }),
              HasSubstr("more chunks than layers"));
  EXPECT_THAT(error(model,
                    [](C& c) {
                      c.pipeline = 3;
                      c.interleave = 2;
                    }),
              HasSubstr("groups of pp = 3"));
  EXPECT_THAT(error(model, [](C& c) { c.data = 3; }), HasSubstr("batch of 16 cannot be split"));
  EXPECT_THAT(error(model, [](C& c) { c.data = 32; }), HasSubstr("batch of 16 cannot be split"));
  EXPECT_THAT(error(model, [](C& c) { c.data = 33; }), HasSubstr("more devices than the 32"));
  MegatronModel odd = model;
  odd.seq = 2047;
  EXPECT_THAT(error(odd,
                    [](C& c) {
                      c.tensor = 2;
                      c.sequence_parallel = true;
                    }),
              HasSubstr("2047 positions"));
  odd.hidden = 1000;
  EXPECT_THAT(error(odd, [](C&) {}), HasSubstr("1000 hidden units cannot be split"));
  odd.hidden = 0;
  EXPECT_THAT(error(odd, [](C&) {}), HasSubstr("hidden must be"));
  cluster::Cluster cluster = dgx(1);
  cluster.device.peak_flops = {{"f32", 1e12}};
  EXPECT_THAT(predict_megatron(model, cluster, {}).error().text(), HasSubstr("no rate for f16"));
}

}  // namespace
}  // namespace shardplan::cost
