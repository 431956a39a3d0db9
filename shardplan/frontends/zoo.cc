// The zoo: a table of families with their keys, and a table of presets, which are a family with
// other values. A name is "family", "family:key=value,..." or "preset:key=value,...".

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "shardplan/frontends/builder.h"
#include "shardplan/frontends/frontends.h"
#include "shardplan/frontends/zoo_models.h"
#include "shardplan/ops/op.h"
#include "shardplan/support/text.h"

namespace shardplan::frontends {

namespace {

enum class KeyKind {
  kCount,     ///< integer, at least 1
  kFraction,  ///< 0 <= x < 1
  kPositive,  ///< real above 0
  kFlag       ///< true or false
};

struct Key {
  std::string_view name;
  KeyKind kind;
  double value;  ///< the default; a flag is 0 or 1
  bool given = false;
};

constexpr std::int64_t kMaxCount = std::int64_t{1} << 31;
constexpr std::int64_t kMaxLayers = 100000;

/// The keys of a family with the values that a name gives them.
class Settings {
 public:
  explicit Settings(std::vector<Key> keys) : keys_(std::move(keys)) {}

  [[nodiscard]] double number(std::string_view name) const { return key(name).value; }
  /// Whether the user or the preset set it.
  [[nodiscard]] bool given(std::string_view name) const { return key(name).given; }
  [[nodiscard]] std::int64_t count(std::string_view name) const {
    return static_cast<std::int64_t>(number(name));
  }
  [[nodiscard]] bool flag(std::string_view name) const { return number(name) != 0; }

  /// "layers=12,hidden=768"; `where` names the model in errors.
  Status apply(std::string_view text, const std::string& where) {
    std::vector<std::string_view> given;
    while (!text.empty()) {
      const std::size_t comma = text.find(',');
      const std::string_view name = text.substr(0, std::min(comma, text.find('=')));
      if (std::find(given.begin(), given.end(), name) != given.end()) {
        return invalid_input(fmt::format("'{}' is given twice", name), where);
      }
      given.push_back(name);
      SHARDPLAN_RETURN_IF_ERROR(apply_one(text.substr(0, comma), where));
      text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    }
    return {};
  }

  [[nodiscard]] std::string text() const {
    std::string out;
    for (const Key& key : keys_) {
      const std::string value = key.kind == KeyKind::kFlag ? (key.value != 0 ? "true" : "false")
                                                           : fmt::format("{}", key.value);
      out += fmt::format("{}{}={}", out.empty() ? "" : ",", key.name, value);
    }
    return out;
  }

 private:
  [[nodiscard]] const Key& key(std::string_view name) const {
    const auto found = std::find_if(
        keys_.begin(), keys_.end(), [&](const Key& entry) { return entry.name == name; });
    SHARDPLAN_CHECK(found != keys_.end()) << "no key " << name;
    return *found;
  }

  Status apply_one(std::string_view entry, const std::string& where) {
    const std::size_t equals = entry.find('=');
    const std::string name(entry.substr(0, equals));
    for (Key& key : keys_) {
      if (key.name == name) {
        if (equals == std::string_view::npos) {
          return invalid_input(fmt::format("'{}' needs a value: {}=...", name, name), where);
        }
        return set(key, entry.substr(equals + 1), where);
      }
    }
    return unknown(name, where);
  }

  [[nodiscard]] Error unknown(const std::string& name, const std::string& where) const {
    std::vector<std::string> names;
    names.reserve(keys_.size());
    for (const Key& key : keys_) {
      names.emplace_back(key.name);
    }
    Error error = invalid_input(fmt::format("unknown key '{}'", name), where);
    const std::string close = suggest(name, names);
    if (!close.empty()) {
      error.notes.push_back(fmt::format("did you mean '{}'?", close));
    }
    error.notes.push_back("known keys with their values: " + text());
    return error;
  }

  static Status set(Key& key, std::string_view text, const std::string& where) {
    key.given = true;
    const auto fail = [&](std::string_view expected) {
      return Status(
          invalid_input(fmt::format("{}={}: expected {}", key.name, text, expected), where));
    };
    if (key.kind == KeyKind::kFlag) {
      if (text != "true" && text != "false") {
        return fail("true or false");
      }
      key.value = text == "true" ? 1 : 0;
      return {};
    }
    double value = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, failure] = std::from_chars(text.data(), end, value);
    const bool number = failure == std::errc() && rest == end && std::isfinite(value);
    if (key.kind == KeyKind::kFraction && !(number && value >= 0 && value < 1)) {
      return fail("a number from 0 to below 1");
    }
    if (key.kind == KeyKind::kPositive && !(number && value > 0)) {
      return fail("a number above 0");
    }
    const std::int64_t limit = key.name == "layers" ? kMaxLayers : kMaxCount;
    if (key.kind == KeyKind::kCount &&
        !(number && value >= 1 && value <= static_cast<double>(limit) &&
          value == std::floor(value))) {
      return fail(fmt::format("a whole number from 1 to {}", limit));
    }
    key.value = value;
    return {};
  }

  std::vector<Key> keys_;
};

Status divides(const Settings& s, std::string_view whole, std::string_view part) {
  if (s.count(whole) % s.count(part) == 0) {
    return {};
  }
  return invalid_input(
      fmt::format("{}={} is not divisible by {}={}", whole, s.count(whole), part, s.count(part)));
}

Status mlp(const Settings& s, Builder& b, ir::Graph& graph) {
  build_mlp(b,
            graph,
            {.layers = s.count("layers"),
             .hidden = s.count("hidden"),
             .input = s.count("input"),
             .classes = s.count("classes"),
             .batch = s.count("batch")});
  return {};
}

Result<GptConfig> gpt_config(const Settings& s) {
  SHARDPLAN_RETURN_IF_ERROR(divides(s, "hidden", "heads"));
  return GptConfig{.layers = s.count("layers"),
                   .hidden = s.count("hidden"),
                   .heads = s.count("heads"),
                   .seq = s.count("seq"),
                   .batch = s.count("batch"),
                   .vocab = s.count("vocab"),
                   .dropout = s.number("dropout"),
                   .tied = s.flag("tied")};
}

Status gpt(const Settings& s, Builder& b, ir::Graph& graph) {
  SHARDPLAN_ASSIGN_OR_RETURN(const GptConfig config, gpt_config(s));
  build_gpt(b, graph, config);
  return {};
}

Status llama(const Settings& s, Builder& b, ir::Graph& graph) {
  SHARDPLAN_RETURN_IF_ERROR(divides(s, "hidden", "heads"));
  if (s.given("kv_heads")) {
    SHARDPLAN_RETURN_IF_ERROR(divides(s, "heads", "kv_heads"));
  }
  const std::int64_t head_size = s.count("hidden") / s.count("heads");
  if (head_size % 2 != 0) {
    return invalid_input(
        fmt::format("hidden / heads = {} must be even for rotary positions", head_size));
  }
  build_llama(b,
              graph,
              {.layers = s.count("layers"),
               .hidden = s.count("hidden"),
               .ffn = s.count("ffn"),
               .heads = s.count("heads"),
               .kv_heads = s.count(s.given("kv_heads") ? "kv_heads" : "heads"),
               .seq = s.count("seq"),
               .batch = s.count("batch"),
               .vocab = s.count("vocab"),
               .rope_theta = s.number("rope_theta")});
  return {};
}

struct Family {
  std::string_view name;
  std::string_view summary;
  std::vector<Key> keys;
  Status (*build)(const Settings&, Builder&, ir::Graph&);
};

struct Preset {
  std::string_view name;
  std::string_view family;
  std::string_view summary;
  std::string_view settings;
};

std::vector<Family> families() {
  using enum KeyKind;
  return {{"mlp",
           "linear layers with ReLU between them, cross-entropy loss",
           {{"layers", kCount, 4},
            {"hidden", kCount, 1024},
            {"input", kCount, 1024},
            {"classes", kCount, 1000},
            {"batch", kCount, 64}},
           mlp},
          {"gpt",
           "GPT-2 and GPT-3: decoder with learned positions, layer norm and GELU",
           {{"layers", kCount, 12},
            {"hidden", kCount, 768},
            {"heads", kCount, 12},
            {"seq", kCount, 1024},
            {"batch", kCount, 8},
            {"vocab", kCount, 50257},
            {"dropout", kFraction, 0},
            {"tied", kFlag, 1}},
           gpt},
          {"llama",
           "Llama: decoder with RMS norm, rotary positions, grouped queries and SwiGLU",
           {{"layers", kCount, 32},
            {"hidden", kCount, 4096},
            {"ffn", kCount, 11008},
            {"heads", kCount, 32},
            {"kv_heads", kCount, 32},
            {"seq", kCount, 2048},
            {"batch", kCount, 4},
            {"vocab", kCount, 32000},
            {"rope_theta", kPositive, 10000}},
           llama}};
}

constexpr Preset kPresets[] = {
    {"gpt2-small", "gpt", "GPT-2, 124 M parameters", "layers=12,hidden=768,heads=12"},
    {"gpt3-175b",
     "gpt",
     "GPT-3, 175 B parameters",
     "layers=96,hidden=12288,heads=96,seq=2048,batch=1"},
    {"llama2-7b", "llama", "Llama 2, 6.7 B parameters", "layers=32,hidden=4096,ffn=11008"},
    {"llama3-8b",
     "llama",
     "Llama 3, 8 B parameters",
     "ffn=14336,kv_heads=8,vocab=128256,rope_theta=500000,seq=8192,batch=1"},
};

/// The family of a name, and the settings that a preset gives.
struct Choice {
  Family family;
  std::string_view settings;
};

std::optional<Choice> choose(std::string_view name) {
  std::string_view family_name = name;
  std::string_view settings;
  for (const Preset& preset : kPresets) {
    if (preset.name == name) {
      family_name = preset.family;
      settings = preset.settings;
    }
  }
  for (Family& family : families()) {
    if (family.name == family_name) {
      return Choice{std::move(family), settings};
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<ZooEntry> zoo() {
  std::vector<ZooEntry> entries;
  for (const Family& family : families()) {
    entries.push_back(
        {std::string(family.name), std::string(family.summary), Settings(family.keys).text()});
  }
  for (const Preset& preset : kPresets) {
    const std::optional<Choice> choice = choose(preset.name);
    Settings settings(choice->family.keys);
    const Status status = settings.apply(preset.settings, std::string(preset.name));
    SHARDPLAN_CHECK(status.has_value()) << status.error().text();
    entries.push_back({std::string(preset.name), std::string(preset.summary), settings.text()});
  }
  return entries;
}

namespace {

/// A family with the values of its keys.
struct Named {
  Family family;
  Settings settings;
};

Result<Named> read_name(std::string_view name) {
  const std::size_t colon = name.find(':');
  const std::string base(name.substr(0, colon));
  std::optional<Choice> choice = choose(base);
  if (!choice.has_value()) {
    std::vector<std::string> names;
    for (const ZooEntry& entry : zoo()) {
      names.push_back(entry.name);
    }
    Error error{ErrorCode::kNotFound, fmt::format("the zoo has no model '{}'", base), {}, {}};
    const std::string close = suggest(base, names);
    error.notes.push_back(close.empty() ? "`shardplan zoo` lists them"
                                        : fmt::format("did you mean '{}'?", close));
    return error;
  }
  const std::string where(name);
  Settings settings(choice->family.keys);
  SHARDPLAN_RETURN_IF_ERROR(settings.apply(choice->settings, where));
  if (colon != std::string_view::npos) {
    SHARDPLAN_RETURN_IF_ERROR(settings.apply(name.substr(colon + 1), where));
  }
  return Named{std::move(choice->family), std::move(settings)};
}

Error at(Error error, std::string_view name) {
  error.location = std::string(name);
  return error;
}

}  // namespace

Result<ir::Graph> zoo_model(std::string_view name) {
  SHARDPLAN_ASSIGN_OR_RETURN(const Named named, read_name(name));
  ir::Graph graph;
  graph.name = std::string(name);
  Builder builder(graph);
  const Status built = named.family.build(named.settings, builder, graph);
  if (!built) {
    return at(built.error(), name);
  }
  SHARDPLAN_RETURN_IF_ERROR(builder.status());
  SHARDPLAN_RETURN_IF_ERROR(ops::verify(graph));
  return graph;
}

Result<GptConfig> zoo_gpt(std::string_view name) {
  SHARDPLAN_ASSIGN_OR_RETURN(const Named named, read_name(name));
  if (named.family.name != "gpt") {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("is a model of the family {}, not of gpt", named.family.name),
                 std::string(name),
                 {"write gpt:layers=..,hidden=..,heads=..,seq=..,vocab=.."}};
  }
  Result<GptConfig> config = gpt_config(named.settings);
  if (!config) {
    return at(config.error(), name);
  }
  return config;
}

}  // namespace shardplan::frontends
