#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "shardplan/cluster/cluster.h"
#include "shardplan/support/text.h"

namespace shardplan::cluster {
namespace {

constexpr std::size_t kMaxText = std::size_t{16} << 20;
constexpr std::int64_t kMaxDevices = std::int64_t{1} << 24;
constexpr Bytes kMaxMemory = Bytes{1} << 50;  // 1 PiB a device

std::vector<std::string> dtype_names() {
  return {"bf16", "f16", "f32", "f64"};
}
std::vector<std::string> collective_names() {
  return {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "collective_permute"};
}

/// Allowed interval of a number and how a message says it.
struct Range {
  double low;
  double high;
  bool low_open;
  const char* text;
};
constexpr Range kRate{0, 1e24, true, "a positive number below 1e24 a second"};
constexpr Range kSize{0, 1e24, true, "a positive number below 1e24"};
constexpr Range kEfficiency{0, 1, true, "above 0 and at most 1"};
constexpr Range kLatency{0, 60, false, "from 0 to 60 seconds"};
constexpr Range kDuration{0, 1e6, true, "a positive number of seconds"};

/// Reads a map field by field; remembers where it is for the messages.
class Reader {
 public:
  Reader(const YAML::Node& node, std::string path, std::string where)
      : node_(node), path_(std::move(path)), where_(std::move(where)) {}

  [[nodiscard]] Error error(const YAML::Node& at,
                            const std::string& field,
                            const std::string& what) const {
    const int line = at.IsDefined() ? at.Mark().line : node_.Mark().line;
    const std::string place = line >= 0 ? fmt::format("{}:{}", where_, line + 1) : where_;
    const std::string name = path_.empty() || field.empty() ? path_ + field : path_ + "." + field;
    return invalid_input(name.empty() ? what : name + " " + what, place);
  }

  /// The node is a map with only these keys, each at most once.
  [[nodiscard]] Status expect_map(const std::vector<std::string>& keys) const {
    if (!node_.IsMap()) {
      return error(node_, "", path_.empty() ? "expected a map of fields" : "must be a map");
    }
    std::vector<std::string> seen;
    for (const auto& entry : node_) {
      if (!entry.first.IsScalar()) {
        return error(entry.first, "", "has a key that is no plain text");
      }
      const std::string key = entry.first.Scalar();
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
        Error e = error(entry.first, key, "is not a known field");
        const std::string close = suggest(key, keys);
        e.notes.push_back(close.empty() ? fmt::format("known: {}", fmt::join(keys, ", "))
                                        : fmt::format("did you mean {}?", close));
        return e;
      }
      if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
        return error(entry.first, key, "is given twice");
      }
      seen.push_back(key);
    }
    return {};
  }

  [[nodiscard]] bool has(const char* key) const { return get(key).IsDefined(); }
  /// Through a const node: operator[] of a non-const one would add the key.
  [[nodiscard]] YAML::Node get(const char* key) const { return node_[key]; }
  [[nodiscard]] const YAML::Node& node() const { return node_; }
  [[nodiscard]] std::string path_of(const std::string& field) const {
    return path_.empty() ? field : path_ + "." + field;
  }
  [[nodiscard]] const std::string& where() const { return where_; }
  [[nodiscard]] Reader child(const char* key) const { return {get(key), path_of(key), where_}; }

  [[nodiscard]] Result<double> number(const YAML::Node& at,
                                      const std::string& field,
                                      const Range& range) const {
    if (!at.IsDefined()) {
      return error(at, field, fmt::format("is missing; expected {}", range.text));
    }
    const std::string text = at.IsScalar() ? at.Scalar() : "a list or map";
    double value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (!at.IsScalar() || code != std::errc{} || end != text.data() + text.size()) {
      return error(at, field, fmt::format("must be {}, found {}", range.text, quoted(at)));
    }
    const bool low = range.low_open ? value > range.low : value >= range.low;
    if (!std::isfinite(value) || !low || value > range.high) {
      return error(at, field, fmt::format("must be {}, found {}", range.text, text));
    }
    return value;
  }
  [[nodiscard]] Result<double> number(const char* key, const Range& range) const {
    return number(get(key), key, range);
  }
  [[nodiscard]] Status optional_number(const char* key, const Range& range, double& out) const {
    if (has(key)) {
      SHARDPLAN_ASSIGN_OR_RETURN(out, number(key, range));
    }
    return {};
  }

  [[nodiscard]] Status optional_text(const char* key, std::string& out) const {
    if (has(key)) {
      const YAML::Node at = get(key);
      if (!at.IsScalar()) {
        return error(at, key, "must be a text");
      }
      out = at.Scalar();
    }
    return {};
  }

  [[nodiscard]] static std::string quoted(const YAML::Node& at) {
    if (at.IsNull()) {
      return "nothing";
    }
    return at.IsScalar() ? "\"" + at.Scalar() + "\"" : "a list or map";
  }

 private:
  const YAML::Node node_;
  std::string path_;
  std::string where_;
};

/// A list of [size, seconds] with sizes that grow.
Result<std::vector<CurvePoint>> read_curve(const Reader& reader,
                                           const YAML::Node& list,
                                           const std::string& field) {
  if (!list.IsSequence() || list.size() == 0) {
    return reader.error(list, field, "must be a list of [size, seconds]");
  }
  std::vector<CurvePoint> curve;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const YAML::Node point = list[i];
    const std::string name = fmt::format("{}[{}]", field, i);
    if (!point.IsSequence() || point.size() != 2) {
      return reader.error(point, name, "must be [size, seconds]");
    }
    CurvePoint p;
    SHARDPLAN_ASSIGN_OR_RETURN(p.size, reader.number(point[0], name + " size", kSize));
    SHARDPLAN_ASSIGN_OR_RETURN(p.seconds, reader.number(point[1], name + " seconds", kDuration));
    if (!curve.empty() && p.size <= curve.back().size) {
      return reader.error(point, name, "must have a larger size than the point before it");
    }
    curve.push_back(p);
  }
  return curve;
}

using Curves = std::map<std::string, std::vector<CurvePoint>>;

Result<Curves> read_curves(const Reader& reader, const std::vector<std::string>& names) {
  SHARDPLAN_RETURN_IF_ERROR(reader.expect_map(names));
  Curves curves;
  for (const auto& entry : reader.node()) {
    const std::string key = entry.first.Scalar();
    SHARDPLAN_ASSIGN_OR_RETURN(curves[key], read_curve(reader, entry.second, key));
  }
  return curves;
}

/// Of ops by name; names that no op has are of no use and no harm.
Result<Curves> read_kernel_curves(const Reader& reader) {
  std::vector<std::string> names;
  if (reader.node().IsMap()) {
    for (const auto& entry : reader.node()) {
      if (entry.first.IsScalar()) {
        names.push_back(entry.first.Scalar());
      }
    }
  }
  return read_curves(reader, names);
}

Result<Bytes> read_memory(const Reader& reader) {
  const YAML::Node at = reader.get("memory");
  constexpr const char* kExpected = "a size such as 80GiB, from 1 byte to 1 PiB";
  if (!at.IsDefined()) {
    return reader.error(at, "memory", fmt::format("is missing; expected {}", kExpected));
  }
  const Result<Bytes> memory =
      at.IsScalar() ? parse_bytes(at.Scalar()) : Result<Bytes>(invalid_input("not a size"));
  if (!memory || *memory < 1 || *memory > kMaxMemory) {
    return reader.error(
        at, "memory", fmt::format("must be {}, found {}", kExpected, Reader::quoted(at)));
  }
  return *memory;
}

Result<Device> read_device(const Reader& reader) {
  SHARDPLAN_RETURN_IF_ERROR(reader.expect_map({"name",
                                               "memory",
                                               "peak_flops",
                                               "memory_bandwidth",
                                               "matmul_efficiency",
                                               "memory_efficiency",
                                               "kernel_overhead",
                                               "matmul_curve",
                                               "memory_curve",
                                               "kernel_curves"}));
  Device device;
  device.name = "device";
  SHARDPLAN_RETURN_IF_ERROR(reader.optional_text("name", device.name));
  SHARDPLAN_ASSIGN_OR_RETURN(device.memory, read_memory(reader));
  SHARDPLAN_ASSIGN_OR_RETURN(device.memory_bandwidth, reader.number("memory_bandwidth", kRate));
  SHARDPLAN_RETURN_IF_ERROR(
      reader.optional_number("matmul_efficiency", kEfficiency, device.matmul_efficiency));
  SHARDPLAN_RETURN_IF_ERROR(
      reader.optional_number("memory_efficiency", kEfficiency, device.memory_efficiency));
  SHARDPLAN_RETURN_IF_ERROR(
      reader.optional_number("kernel_overhead", kLatency, device.kernel_overhead));

  const Reader peaks = reader.child("peak_flops");
  if (!peaks.node().IsDefined()) {
    return reader.error(peaks.node(),
                        "peak_flops",
                        "is missing; expected for example {bf16: 312e12, f32: 19.5e12}");
  }
  SHARDPLAN_RETURN_IF_ERROR(peaks.expect_map(dtype_names()));
  for (const auto& entry : peaks.node()) {
    const std::string key = entry.first.Scalar();
    SHARDPLAN_ASSIGN_OR_RETURN(device.peak_flops[key], peaks.number(entry.second, key, kRate));
  }
  if (device.peak_flops.empty()) {
    return reader.error(peaks.node(), "peak_flops", "must give at least one rate");
  }
  if (reader.has("matmul_curve")) {
    SHARDPLAN_ASSIGN_OR_RETURN(device.matmul_curve,
                               read_curves(reader.child("matmul_curve"), dtype_names()));
  }
  if (reader.has("memory_curve")) {
    SHARDPLAN_ASSIGN_OR_RETURN(device.memory_curve,
                               read_curve(reader, reader.get("memory_curve"), "memory_curve"));
  }
  if (reader.has("kernel_curves")) {
    SHARDPLAN_ASSIGN_OR_RETURN(device.kernel_curves,
                               read_kernel_curves(reader.child("kernel_curves")));
  }
  return device;
}

Result<std::int64_t> read_fanout(const Reader& reader) {
  const YAML::Node at = reader.get("fanout");
  constexpr const char* kExpected = "a whole number of at least 1";
  if (!at.IsDefined()) {
    return reader.error(at, "fanout", fmt::format("is missing; expected {}", kExpected));
  }
  const std::string text = at.IsScalar() ? at.Scalar() : "";
  std::int64_t fanout = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), fanout);
  if (code != std::errc{} || end != text.data() + text.size() || fanout < 1) {
    return reader.error(
        at, "fanout", fmt::format("must be {}, found {}", kExpected, Reader::quoted(at)));
  }
  return fanout;
}

Result<LinkLevel> read_level(const Reader& reader, std::size_t index) {
  SHARDPLAN_RETURN_IF_ERROR(reader.expect_map(
      {"name", "fanout", "bandwidth", "efficiency", "latency", "collective_curves"}));
  LinkLevel level;
  level.name = fmt::format("level {}", index);
  SHARDPLAN_RETURN_IF_ERROR(reader.optional_text("name", level.name));
  SHARDPLAN_ASSIGN_OR_RETURN(level.fanout, read_fanout(reader));
  SHARDPLAN_ASSIGN_OR_RETURN(level.bandwidth, reader.number("bandwidth", kRate));
  SHARDPLAN_RETURN_IF_ERROR(reader.optional_number("efficiency", kEfficiency, level.efficiency));
  SHARDPLAN_ASSIGN_OR_RETURN(level.latency, reader.number("latency", kLatency));
  if (reader.has("collective_curves")) {
    SHARDPLAN_ASSIGN_OR_RETURN(level.collective_curves,
                               read_curves(reader.child("collective_curves"), collective_names()));
  }
  return level;
}

Result<std::vector<LinkLevel>> read_levels(const Reader& reader) {
  const YAML::Node list = reader.get("levels");
  if (!list.IsDefined() || !list.IsSequence() || list.size() == 0) {
    return reader.error(list,
                        "levels",
                        list.IsDefined() ? "must be a list of link levels, outermost first"
                                         : "is missing; expected a list of link levels");
  }
  std::vector<LinkLevel> levels;
  std::int64_t devices = 1;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Reader entry(list[i], fmt::format("levels[{}]", i), reader.where());
    SHARDPLAN_ASSIGN_OR_RETURN(LinkLevel level, read_level(entry, i));
    if (level.fanout > kMaxDevices / devices) {
      return entry.error(entry.get("fanout"),
                         "fanout",
                         fmt::format("{} makes more than {} devices in all, the most that is "
                                     "supported",
                                     level.fanout,
                                     kMaxDevices));
    }
    devices *= level.fanout;
    levels.push_back(std::move(level));
  }
  return levels;
}

Result<Cluster> read_cluster(const Reader& reader) {
  SHARDPLAN_RETURN_IF_ERROR(reader.expect_map({"name", "device", "levels", "local"}));
  Cluster cluster;
  cluster.name = reader.where();
  SHARDPLAN_RETURN_IF_ERROR(reader.optional_text("name", cluster.name));
  const Reader device = reader.child("device");
  if (!device.node().IsDefined()) {
    return reader.error(device.node(), "device", "is missing");
  }
  SHARDPLAN_ASSIGN_OR_RETURN(cluster.device, read_device(device));
  SHARDPLAN_ASSIGN_OR_RETURN(cluster.levels, read_levels(reader));
  if (reader.has("local")) {
    const std::string text = reader.get("local").IsScalar() ? reader.get("local").Scalar() : "";
    if (text != "true" && text != "false") {
      return reader.error(reader.get("local"), "local", "must be true or false");
    }
    cluster.local = text == "true";
  }
  return cluster;
}

/// Shortest text that reads back as the same double.
std::string number_text(double value) {
  return fmt::format("{}", value);
}

void emit_curve(YAML::Emitter& out, const std::vector<CurvePoint>& curve) {
  out << YAML::BeginSeq;
  for (const CurvePoint& point : curve) {
    out << YAML::Flow << YAML::BeginSeq << number_text(point.size) << number_text(point.seconds)
        << YAML::EndSeq;
  }
  out << YAML::EndSeq;
}

void emit_curves(YAML::Emitter& out, const char* key, const Curves& curves) {
  if (curves.empty()) {
    return;
  }
  out << YAML::Key << key << YAML::Value << YAML::BeginMap;
  for (const auto& [name, curve] : curves) {
    out << YAML::Key << name << YAML::Value;
    emit_curve(out, curve);
  }
  out << YAML::EndMap;
}

void emit_text(YAML::Emitter& out, const char* key, const std::string& text) {
  out << YAML::Key << key << YAML::Value << YAML::DoubleQuoted << text;
}

void emit_number(YAML::Emitter& out, const char* key, double value) {
  out << YAML::Key << key << YAML::Value << number_text(value);
}

void emit_device(YAML::Emitter& out, const Device& device) {
  out << YAML::Key << "device" << YAML::Value << YAML::BeginMap;
  emit_text(out, "name", device.name);
  out << YAML::Key << "memory" << YAML::Value << device.memory;
  out << YAML::Key << "peak_flops" << YAML::Value << YAML::BeginMap;
  for (const auto& [dtype, rate] : device.peak_flops) {
    emit_number(out, dtype.c_str(), rate);
  }
  out << YAML::EndMap;
  emit_number(out, "memory_bandwidth", device.memory_bandwidth);
  emit_number(out, "matmul_efficiency", device.matmul_efficiency);
  emit_number(out, "memory_efficiency", device.memory_efficiency);
  emit_number(out, "kernel_overhead", device.kernel_overhead);
  emit_curves(out, "matmul_curve", device.matmul_curve);
  if (!device.memory_curve.empty()) {
    out << YAML::Key << "memory_curve" << YAML::Value;
    emit_curve(out, device.memory_curve);
  }
  emit_curves(out, "kernel_curves", device.kernel_curves);
  out << YAML::EndMap;
}

}  // namespace

Result<Cluster> parse_cluster_yaml(std::string_view text, const std::string& where) {
  if (text.size() > kMaxText) {
    return invalid_input("is larger than the 16 MiB that a cluster file may have", where);
  }
  try {
    const YAML::Node root = YAML::Load(std::string(text));
    if (!root.IsDefined() || root.IsNull()) {
      return invalid_input("is empty; expected the fields name, device and levels", where);
    }
    return read_cluster(Reader(root, "", where));
  } catch (const YAML::Exception& e) {
    const std::string place =
        e.mark.is_null() ? where : fmt::format("{}:{}", where, e.mark.line + 1);
    return invalid_input("is not valid YAML: " + e.msg, place);
  } catch (const std::exception& e) {
    return invalid_input(std::string("is not valid YAML: ") + e.what(), where);
  }
}

std::string to_yaml(const Cluster& cluster) {
  YAML::Emitter out;
  out << YAML::BeginMap;
  emit_text(out, "name", cluster.name);
  emit_device(out, cluster.device);
  out << YAML::Key << "levels" << YAML::Value << YAML::BeginSeq;
  for (const LinkLevel& level : cluster.levels) {
    out << YAML::BeginMap;
    emit_text(out, "name", level.name);
    out << YAML::Key << "fanout" << YAML::Value << level.fanout;
    emit_number(out, "bandwidth", level.bandwidth);
    emit_number(out, "efficiency", level.efficiency);
    emit_number(out, "latency", level.latency);
    emit_curves(out, "collective_curves", level.collective_curves);
    out << YAML::EndMap;
  }
  out << YAML::EndSeq;
  out << YAML::Key << "local" << YAML::Value << cluster.local;
  out << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

}  // namespace shardplan::cluster
