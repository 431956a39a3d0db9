#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>
#include <thread>

#include "shardplan/cluster/cluster.h"
#include "shardplan/support/text.h"

// Rates are the peaks of the makers' data sheets; the efficiencies and kernel_overhead say what of
// them is reachable.
//   A100: NVIDIA A100 Tensor Core GPU data sheet (SXM4 80 GB, and PCIe 80 GB for pairs8);
//         DGX A100 data sheet: NVSwitch, 8 ConnectX HDR adapters (200 Gbit/s) for 8 GPUs.
//   H100: NVIDIA H100 data sheet (SXM5, dense rates); DGX H100: 8 ConnectX-7 (400 Gbit/s).
//   V100: NVIDIA V100 data sheet (SXM2 16 GB); Amazon EC2 P3: 25 Gbit/s for p3.16xlarge.
//   The reachable parts of the A100 fit Megatron-LM's published step times (docs/models.md).

namespace shardplan::cluster {
namespace {

constexpr Bytes kGiB = Bytes{1} << 30;
constexpr std::int64_t kMaxNodes = 1 << 16;

Device a100_sxm() {
  Device d;
  d.name = "A100-SXM4-80GB";
  d.memory = 80 * kGiB;
  d.peak_flops = {{"bf16", 312e12}, {"f16", 312e12}, {"f32", 19.5e12}, {"f64", 19.5e12}};
  d.memory_bandwidth = 2.039e12;
  d.matmul_efficiency = 0.845;
  d.memory_efficiency = 0.73;
  d.kernel_overhead = 4e-6;
  return d;
}

Device a100_pcie() {
  Device d = a100_sxm();
  d.name = "A100-PCIe-80GB";
  d.memory_bandwidth = 1.935e12;
  return d;
}

Device h100_sxm() {
  Device d;
  d.name = "H100-SXM5-80GB";
  d.memory = 80 * kGiB;
  d.peak_flops = {{"bf16", 989e12}, {"f16", 989e12}, {"f32", 67e12}, {"f64", 67e12}};
  d.memory_bandwidth = 3.35e12;
  d.matmul_efficiency = 0.75;
  d.memory_efficiency = 0.75;
  d.kernel_overhead = 4e-6;
  return d;
}

/// No bf16 in hardware: such products run at the fp32 rate.
Device v100_sxm() {
  Device d;
  d.name = "V100-SXM2-16GB";
  d.memory = 16 * kGiB;
  d.peak_flops = {{"bf16", 15.7e12}, {"f16", 125e12}, {"f32", 15.7e12}, {"f64", 7.8e12}};
  d.memory_bandwidth = 900e9;
  d.matmul_efficiency = 0.75;
  d.memory_efficiency = 0.8;
  d.kernel_overhead = 5e-6;
  return d;
}

LinkLevel link(
    std::string name, std::int64_t fanout, double bandwidth, double efficiency, Seconds latency) {
  LinkLevel level;
  level.name = std::move(name);
  level.fanout = fanout;
  level.bandwidth = bandwidth;
  level.efficiency = efficiency;
  level.latency = latency;
  return level;
}

Cluster make_8xa100(std::int64_t /*count*/) {
  return {"8xA100-80GB", a100_sxm(), {link("NVLink", 8, 300e9, 0.63, 2e-6)}, false};
}

Cluster make_dgx_a100(std::int64_t nodes) {
  return {"dgx-a100:" + std::to_string(nodes),
          a100_sxm(),
          {link("InfiniBand", nodes, 25e9, 0.75, 5e-6), link("NVLink", 8, 300e9, 0.63, 2e-6)},
          false};
}

Cluster make_dgx_h100(std::int64_t nodes) {
  return {"dgx-h100:" + std::to_string(nodes),
          h100_sxm(),
          {link("InfiniBand", nodes, 50e9, 0.75, 5e-6), link("NVLink", 8, 450e9, 0.63, 2e-6)},
          false};
}

/// Six NVLink2 bricks of 25 GB/s a GPU; the 25 Gbit/s of a host are shared by its 8 GPUs.
Cluster make_p3(std::int64_t nodes) {
  return {"p3.16xlarge:" + std::to_string(nodes),
          v100_sxm(),
          {link("Ethernet", nodes, 25e9 / 8 / 8, 0.8, 30e-6), link("NVLink", 8, 150e9, 0.8, 3e-6)},
          false};
}

/// Pair and cross-pair rates as measured on such a box by the alpha-beta detector of MAP's
/// authors (ColossalAI): 211 GB/s within a pair, 14 GB/s across, alpha about 19 µs across.
Cluster make_pairs8(std::int64_t /*count*/) {
  return {"pairs8",
          a100_pcie(),
          {link("PCIe", 4, 14e9, 1, 19e-6), link("NVLink", 2, 211e9, 1, 5e-6)},
          false};
}

std::int64_t core_count() {
  return std::max<std::int64_t>(std::thread::hardware_concurrency(), 1);
}

Bytes physical_memory() {
  const std::int64_t pages = sysconf(_SC_PHYS_PAGES);
  const std::int64_t page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? pages * page : 4 * kGiB;
}

/// Typical of one thread a process on a server CPU (float32 products of 100 GFLOP/s a core,
/// streams of some GB/s, Gloo over loopback at 2 GB/s and 60 µs a message); processes beyond the
/// cores share them. `shardplan probe` measures the machine instead.
Cluster make_local(std::int64_t processes) {
  const double share =
      std::min(1.0, static_cast<double>(core_count()) / static_cast<double>(processes));
  Device d;
  d.name = "CPU process";
  d.memory = physical_memory() / processes;
  d.peak_flops = {{"bf16", 100e9 * share},
                  {"f16", 50e9 * share},
                  {"f32", 100e9 * share},
                  {"f64", 55e9 * share}};
  d.memory_bandwidth = 8e9;
  d.matmul_efficiency = 0.9;
  d.memory_efficiency = 0.7;
  d.kernel_overhead = 5e-6;
  return {"local:" + std::to_string(processes),
          std::move(d),
          {link("loopback", processes, 2e9 * std::sqrt(share), 1, 60e-6)},
          true};
}

struct PresetRow {
  const char* base;
  const char* count;  ///< what N counts; empty when the preset takes none
  const char* summary;
  Cluster (*make)(std::int64_t count);
};

constexpr PresetRow kPresets[] = {
    {"8xA100-80GB", "", "one box of 8 A100 80 GB on NVSwitch", make_8xa100},
    {"dgx-a100", "nodes", "N DGX A100: 8 A100 80 GB each, 200 Gbit/s a GPU between", make_dgx_a100},
    {"dgx-h100", "nodes", "N DGX H100: 8 H100 80 GB each, 400 Gbit/s a GPU between", make_dgx_h100},
    {"p3.16xlarge", "nodes", "N EC2 p3.16xlarge: 8 V100 16 GB each, 25 Gbit/s a host", make_p3},
    {"pairs8", "", "8 A100 80 GB PCIe with NVLink only within four pairs", make_pairs8},
    {"local", "processes", "N processes on this machine, Gloo over loopback", make_local},
};

std::string form_of(const PresetRow& row) {
  return *row.count == '\0' ? row.base : std::string(row.base) + ":N";
}

const PresetRow* find_row(std::string_view base) {
  const auto* row = std::find_if(
      std::begin(kPresets), std::end(kPresets), [&](const auto& r) { return base == r.base; });
  return row == std::end(kPresets) ? nullptr : row;
}

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  const bool complete = end == text.data() + text.size();
  return error == std::errc{} && complete ? std::optional(n) : std::nullopt;
}

Result<Cluster> make_preset(const PresetRow& row, std::optional<std::string_view> count) {
  const std::string form = form_of(row);
  if (*row.count == '\0') {
    if (count) {
      return Error{ErrorCode::kInvalidInput,
                   "takes no count, found \":" + std::string(*count) + "\"",
                   "cluster " + form,
                   {"write " + form}};
    }
    return row.make(1);
  }
  const std::string where = "cluster " + form;
  if (!count) {
    return Error{ErrorCode::kInvalidInput,
                 std::string("the number of ") + row.count + " is missing",
                 where,
                 {"write for example " + std::string(row.base) + ":2"}};
  }
  const std::optional<std::int64_t> n = whole_number(*count);
  const bool local = std::string_view(row.base) == "local";
  const std::int64_t most = local ? std::max<std::int64_t>(64, 8 * core_count()) : kMaxNodes;
  if (!n || *n < 1 || *n > most) {
    return Error{ErrorCode::kInvalidInput,
                 "the number of " + std::string(row.count) + " must be a whole number from 1 to " +
                     std::to_string(most) + (local ? " on this machine" : "") + ", found \"" +
                     std::string(*count) + "\"",
                 where,
                 {"write for example " + std::string(row.base) + ":2"}};
  }
  return row.make(*n);
}

bool looks_like_path(const std::string& name) {
  const std::filesystem::path path(name);
  std::error_code ignored;
  return name.find('/') != std::string::npos || path.extension() == ".yaml" ||
         path.extension() == ".yml" || std::filesystem::exists(path, ignored);
}

Error unknown_cluster(const std::string& name, std::string_view base) {
  std::vector<std::string> bases;
  std::string forms;
  for (const PresetRow& row : kPresets) {
    bases.emplace_back(row.base);
    forms += (forms.empty() ? "" : ", ") + form_of(row);
  }
  Error error{ErrorCode::kNotFound,
              "unknown cluster \"" + name + "\": neither a preset nor a file",
              "",
              {}};
  if (const std::string close = suggest(base, bases); !close.empty()) {
    error.notes.push_back("did you mean " + form_of(*find_row(close)) + "?");
  }
  error.notes.push_back("presets: " + forms + "; or give a YAML file");
  return error;
}

}  // namespace

std::vector<Preset> presets() {
  std::vector<Preset> out;
  for (const PresetRow& row : kPresets) {
    out.push_back({form_of(row), row.summary});
  }
  return out;
}

Result<Cluster> load_cluster(const std::string& name_or_path) {
  const std::size_t colon = name_or_path.rfind(':');
  const std::string_view name = name_or_path;
  const std::string_view base = name.substr(0, colon);
  if (const PresetRow* row = find_row(base)) {
    return make_preset(
        *row, colon == std::string::npos ? std::nullopt : std::optional(name.substr(colon + 1)));
  }
  if (looks_like_path(name_or_path)) {
    SHARDPLAN_ASSIGN_OR_RETURN(const std::string text, read_file(name_or_path));
    return parse_cluster_yaml(text, name_or_path);
  }
  return unknown_cluster(name_or_path, base);
}

}  // namespace shardplan::cluster
