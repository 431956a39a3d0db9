#include "shardplan/cluster/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shardplan/support/text.h"

namespace shardplan::cluster {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string error_of(const Result<Cluster>& result) {
  return result.has_value() ? "no error" : result.error().text();
}

TEST(Presets, EveryPresetLoadsAndReadsBack) {
  for (const Preset& preset : presets()) {
    std::string name = preset.form;
    if (const std::size_t n = name.find(":N"); n != std::string::npos) {
      name.replace(n, 2, ":2");
    }
    const Result<Cluster> cluster = load_cluster(name);
    ASSERT_TRUE(cluster.has_value()) << error_of(cluster);
    EXPECT_EQ(cluster->name, name);
    const Result<Cluster> again = parse_cluster_yaml(to_yaml(*cluster), "again");
    ASSERT_TRUE(again.has_value()) << error_of(again) << to_yaml(*cluster);
    EXPECT_EQ(*again, *cluster);
  }
}

TEST(Presets, CountsAndPublishedRates) {
  const Cluster a100 = *load_cluster("dgx-a100:4");
  EXPECT_EQ(a100.device_count(), 32);
  EXPECT_EQ(a100.device.memory, Bytes{80} << 30);
  EXPECT_EQ(a100.device.peak_flops.at("bf16"), 312e12);
  EXPECT_EQ(a100.device.memory_bandwidth, 2.039e12);
  EXPECT_EQ(a100.levels[0].bandwidth, 25e9);   // 200 Gbit/s a GPU
  EXPECT_EQ(a100.levels[1].bandwidth, 300e9);  // 12 links of 25 GB/s
  EXPECT_EQ(load_cluster("dgx-h100:3")->device_count(), 24);
  EXPECT_EQ(load_cluster("8xA100-80GB")->device_count(), 8);
  const Cluster p3 = *load_cluster("p3.16xlarge:2");
  EXPECT_EQ(p3.device_count(), 16);
  EXPECT_NEAR(p3.levels[0].bandwidth * 8 * 8, 25e9, 1);  // bits of a host
  const Cluster pairs = *load_cluster("pairs8");
  EXPECT_EQ(pairs.device_count(), 8);
  EXPECT_GT(pairs.levels[1].bandwidth, 10 * pairs.levels[0].bandwidth);
  const Cluster local = *load_cluster("local:4");
  EXPECT_TRUE(local.local);
  EXPECT_EQ(local.device_count(), 4);
  EXPECT_GT(local.device.memory, 0);
  EXPECT_LE(load_cluster("local:64")->device.memory, local.device.memory / 16);
}

TEST(Presets, WrongNamesSayWhatToDo) {
  EXPECT_THAT(error_of(load_cluster("dgx-h10")), HasSubstr("did you mean dgx-h100:N?"));
  EXPECT_THAT(error_of(load_cluster("dgx-h10:2")), HasSubstr("did you mean dgx-h100:N?"));
  EXPECT_THAT(error_of(load_cluster("8xA100")), HasSubstr("presets: 8xA100-80GB"));
  EXPECT_THAT(error_of(load_cluster("")), HasSubstr("unknown cluster \"\""));
  EXPECT_THAT(error_of(load_cluster("dgx-a100")), HasSubstr("the number of nodes is missing"));
  EXPECT_THAT(error_of(load_cluster("dgx-a100:0")),
              AllOf(HasSubstr("from 1 to"), HasSubstr("found \"0\"")));
  EXPECT_THAT(error_of(load_cluster("dgx-a100:-1")), HasSubstr("found \"-1\""));
  EXPECT_THAT(error_of(load_cluster("dgx-a100:2x")), HasSubstr("found \"2x\""));
  EXPECT_THAT(error_of(load_cluster("dgx-a100:99999999999999999999")), HasSubstr("from 1 to"));
  EXPECT_THAT(error_of(load_cluster("local:x")), HasSubstr("the number of processes must be"));
  EXPECT_THAT(error_of(load_cluster("local:")), HasSubstr("found \"\""));
  EXPECT_THAT(error_of(load_cluster("local:1000000")), HasSubstr("on this machine"));
  EXPECT_THAT(error_of(load_cluster("pairs8:2")), HasSubstr("takes no count"));
  EXPECT_THAT(error_of(load_cluster("/no/such.yaml")), HasSubstr("/no/such.yaml"));
}

constexpr const char* kGood = R"(name: lab
device:
  name: X
  memory: 16GiB
  peak_flops: {bf16: 100e12, f32: 1e13}
  memory_bandwidth: 1e12
  kernel_overhead: 3e-6
  matmul_curve:
    f32: [[1e6, 1e-5], [1e9, 2e-3]]
  memory_curve: [[1000, 1e-6], [1000000, 1e-4]]
levels:
  - name: net
    fanout: 2
    bandwidth: 1e9
    efficiency: 0.9
    latency: 1e-5
    collective_curves:
      all_reduce: [[1024, 1e-4], [1048576, 1e-2]]
  - fanout: 4
    bandwidth: 1e11
    latency: 0
)";

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = kGood;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(ClusterYaml, ReadsEveryField) {
  const Result<Cluster> read = parse_cluster_yaml(kGood, "lab.yaml");
  ASSERT_TRUE(read.has_value()) << error_of(read);
  EXPECT_EQ(read->name, "lab");
  EXPECT_EQ(read->device.memory, Bytes{16} << 30);
  EXPECT_EQ(read->device.peak_flops.at("f32"), 1e13);
  EXPECT_EQ(read->device.kernel_overhead, 3e-6);
  EXPECT_EQ(read->device.matmul_efficiency, 0.8);
  EXPECT_EQ(read->device.matmul_curve.at("f32")[1], (CurvePoint{1e9, 2e-3}));
  EXPECT_EQ(read->device.memory_curve.size(), 2U);
  EXPECT_EQ(read->device_count(), 8);
  EXPECT_EQ(read->levels[0].collective_curves.at("all_reduce")[0], (CurvePoint{1024, 1e-4}));
  EXPECT_EQ(read->levels[0].efficiency, 0.9);
  EXPECT_EQ(read->levels[1].efficiency, 1.0);
  EXPECT_EQ(read->levels[1].name, "level 1");
  EXPECT_EQ(*parse_cluster_yaml(to_yaml(*read), "again"), *read);
}

TEST(ClusterYaml, ErrorsNameTheFieldAndTheLine) {
  struct Case {
    std::string text;
    std::string expected;
  };
  const std::vector<Case> cases = {
      {replaced("bandwidth: 1e9", "bandwidth: -1"),
       "lab.yaml:14: levels[0].bandwidth must be a positive number below 1e24 a second, found -1"},
      {replaced("bandwidth: 1e9", "bandwidth: 0"), "levels[0].bandwidth must be a positive"},
      {replaced("bandwidth: 1e9", "bandwidth: .inf"), "found \".inf\""},
      {replaced("bandwidth: 1e9", "bandwidth: inf"), "found inf"},
      {replaced("bandwidth: 1e9", "bandwidth: nan"), "found nan"},
      {replaced("bandwidth: 1e9", "bandwidth: fast"), "found \"fast\""},
      {replaced("bandwidth: 1e9", "bandwidth: [1]"), "found a list or map"},
      {replaced("bandwidth: 1e9", "bandwidth:"), "found nothing"},
      {replaced("bandwidth: 1e9", "bandwith: 1e9"),
       "levels[0].bandwith is not a known field; did you mean bandwidth?"},
      {replaced("    bandwidth: 1e9\n", ""), "levels[0].bandwidth is missing"},
      {replaced("efficiency: 0.9", "efficiency: 90"),
       "levels[0].efficiency must be above 0 and at most 1, found 90"},
      {replaced("fanout: 2", "fanout: 0"), "levels[0].fanout must be a whole number"},
      {replaced("fanout: 2", "fanout: 2.5"), "found \"2.5\""},
      {replaced("fanout: 2", "fanout: 9000000000000000000"), "more than 16777216 devices"},
      {replaced("latency: 0", "latency: -1e-6"), "levels[1].latency must be from 0 to 60"},
      {replaced("    latency: 0\n", ""), "levels[1].latency is missing"},
      {replaced("memory: 16GiB", "memory: lots"), "device.memory must be a size such as 80GiB"},
      {replaced("memory: 16GiB", "memory: 0"), "device.memory must be a size"},
      {replaced("memory: 16GiB", "memory: 9e99"), "device.memory must be a size"},
      {replaced("  memory: 16GiB\n", ""), "device.memory is missing"},
      {replaced("f32: 1e13", "f32: 0"), "device.peak_flops.f32 must be a positive"},
      {replaced("f32: 1e13", "fp32: 1e13"), "device.peak_flops.fp32 is not a known field"},
      {replaced("{bf16: 100e12, f32: 1e13}", "{}"), "peak_flops must give at least one rate"},
      {replaced("[1e9, 2e-3]", "[1e6, 2e-3]"), "must have a larger size"},
      {replaced("[1e9, 2e-3]", "[1e9]"), "must be [size, seconds]"},
      {replaced("all_reduce:", "allreduce:"), "did you mean all_reduce?"},
      {replaced("name: lab\n", "name: lab\nname: lab\n"), "name is given twice"},
      {replaced("name: lab\n", "local: perhaps\n"), "local must be true or false"},
      {replaced("kernel_overhead: 3e-6", "matmul_efficiency: 1.5"), "above 0 and at most 1"},
      {"", "is empty"},
      {"just text", "expected a map of fields"},
      {"a: [1, 2", "is not valid YAML"},
      {"name: x\ndevice: 3\nlevels: []", "device must be a map"},
      {"name: x", "device is missing"},
      {"? [a, b]\n: 1", "key that is no plain text"},
      {std::string(100000, '['), "is not valid YAML"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(error_of(parse_cluster_yaml(c.text, "lab.yaml")), HasSubstr(c.expected))
        << c.text.substr(0, 600);
  }
}

TEST(ClusterYaml, NoPrefixCrashes) {
  const std::string good = kGood;
  for (std::size_t n = 0; n < good.size(); ++n) {
    std::string changed = good;
    changed[n] = static_cast<char>(changed[n] ^ 0x15);
    (void)parse_cluster_yaml(good.substr(0, n), "cut");
    (void)parse_cluster_yaml(changed, "changed");
  }
}

}  // namespace
}  // namespace shardplan::cluster
