#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zip.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "shardplan/frontends/frontends.h"
#include "shardplan/ops/op.h"
#include "shardplan/support/text.h"

namespace shardplan::frontends {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string fixture(const std::string& name) {
  return "tests/frontends/fixtures/" + name + ".pt2";
}

ir::Graph load(const std::string& name, bool weights = false) {
  Result<ir::Graph> graph = load_model(fixture(name), {.weights = weights});
  EXPECT_TRUE(graph) << graph.error().text();
  return graph ? std::move(graph).value() : ir::Graph{};
}

std::vector<float> floats(const ir::Graph& graph, const std::string& name) {
  const ir::Data& data = graph.value(graph.find_input(name)).data;
  std::vector<float> out(data == nullptr ? 0 : data->size() / sizeof(float));
  if (data != nullptr) {
    std::memcpy(out.data(), data->data(), data->size());
  }
  return out;
}

int count(const ir::Graph& graph, const std::string& op) {
  return static_cast<int>(std::count_if(
      graph.ops().begin(), graph.ops().end(), [&](const ir::Op& o) { return o.name == op; }));
}

/// Name, layer and result types of each op, sorted; reshapes without layer, as rotary tables get
/// theirs where they are first used.
std::vector<std::string> described_ops(const ir::Graph& graph) {
  std::vector<std::string> lines;
  for (const ir::Op& op : graph.ops()) {
    std::string line = op.name + " " + (op.name == "reshape" ? "" : op.layer);
    for (const ir::ValueId output : op.outputs) {
      line += " " + to_string(graph.type(output));
    }
    lines.push_back(line);
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

/// A temporary copy of an archive that tests can damage.
class Archive {
 public:
  explicit Archive(const std::string& name)
      : path_((std::filesystem::temp_directory_path() /
               fmt::format("shardplan_{}_{}.pt2", name, ::getpid()))
                  .string()) {}
  ~Archive() { std::filesystem::remove(path_); }
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  void write(std::string_view bytes) const {
    std::ofstream(path_, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  /// A zip with these entries.
  void write_entries(const std::vector<std::pair<std::string, std::string>>& entries) const {
    std::filesystem::remove(path_);
    int code = 0;
    zip_t* const zip = zip_open(path_.c_str(), ZIP_CREATE, &code);
    ASSERT_NE(zip, nullptr);
    for (const auto& [name, content] : entries) {
      zip_source_t* const source = zip_source_buffer(zip, content.data(), content.size(), 0);
      ASSERT_GE(zip_file_add(zip, name.c_str(), source, 0), 0);
    }
    ASSERT_EQ(zip_close(zip), 0);
  }

 private:
  std::string path_;
};

TEST(TorchExport, MlpKeepsNamesAndWeights) {
  const ir::Graph graph = load("mlp", true);
  EXPECT_EQ(graph.type(graph.find_input("first.weight")).shape, (ir::Shape{4, 3}));
  // Stored transposed: arange(12).reshape(3, 4).t().
  EXPECT_THAT(floats(graph, "first.weight"), ElementsAre(0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11));
  EXPECT_THAT(floats(graph, "frozen"), ElementsAre(1, 1));
  EXPECT_TRUE(graph.value(graph.find_input("first.weight")).trainable);
  EXPECT_FALSE(graph.value(graph.find_input("frozen")).trainable);
  EXPECT_EQ(graph.value(graph.find_input("x")).kind, ir::ValueKind::kInput);
  EXPECT_EQ(graph.value(graph.find_input("target")).type.dtype, ir::DType::kInt64);
  EXPECT_EQ(count(graph, "einsum"), 2);
  EXPECT_EQ(graph.ops().front().layer, "first");
  EXPECT_EQ(graph.type(graph.outputs.at(0)).rank(), 0);
}

TEST(TorchExport, WeightsAreReadOnlyWhenAskedFor) {
  const ir::Graph graph = load("mlp");
  for (const ir::Value& value : graph.values()) {
    EXPECT_EQ(value.data, nullptr) << value.name;
  }
}

TEST(TorchExport, Gpt2TiesItsHeadAndSplitsItsProjection) {
  for (const char* const name : {"gpt2", "gpt2_meta"}) {
    const ir::Graph graph = load(name);
    const ir::Value& token = graph.value(graph.find_input("transformer.wte.weight"));
    EXPECT_THAT(token.aliases, ElementsAre("lm_head.weight")) << name;
    EXPECT_FALSE(graph.find_input("lm_head.weight").valid());
    // 19·16 + 8·16 + 16·48 + 48 + 16·16 + 16 + 2·16·64 + 64 + 16 + 3·32.
    EXPECT_EQ(graph.parameter_count(), 3744) << name;
    const ir::Value& attention =
        graph.value(graph.find_input("transformer.h.0.attn.c_attn.weight"));
    EXPECT_EQ(attention.type.shape, (ir::Shape{16, 3, 16}));
    EXPECT_EQ(attention.module_shape, (ir::Shape{16, 48}));
    EXPECT_EQ(count(graph, "gelu"), 1);
    EXPECT_EQ(count(graph, "dropout"), 4);
    EXPECT_EQ(count(graph, "transpose"), 0);
  }
}

// The zoo stands for the exported classes: the same ops in the same layers.
TEST(TorchExport, EqualsTheZoo) {
  const std::pair<const char*, const char*> pairs[] = {
      {"gpt2", "gpt:layers=1,hidden=16,heads=2,seq=8,batch=2,vocab=19,dropout=0.1"},
      {"llama", "llama:layers=1,hidden=16,ffn=24,heads=4,kv_heads=2,seq=8,batch=2,vocab=19"}};
  for (const auto& [name, zoo_name] : pairs) {
    const ir::Graph exported = load(name);
    const Result<ir::Graph> built = load_model(zoo_name);
    ASSERT_TRUE(built) << built.error().text();
    EXPECT_EQ(exported.parameter_count(), built->parameter_count());
    for (const ir::Value& value : built->values()) {
      if (value.kind != ir::ValueKind::kOpResult) {
        const ir::ValueId other = exported.find_input(value.name);
        ASSERT_TRUE(other.valid()) << value.name;
        EXPECT_EQ(exported.type(other), value.type) << value.name;
      }
    }
    EXPECT_EQ(described_ops(exported), described_ops(*built));
  }
}

TEST(TorchExport, LlamaGroupsItsHeadsAndFoldsItsMask) {
  const ir::Graph graph = load("llama");
  ASSERT_EQ(count(graph, "attention"), 1);
  for (const ir::Op& op : graph.ops()) {
    if (op.name == "attention") {
      EXPECT_TRUE(op.attributes.flag_or("causal", false));
      EXPECT_EQ(op.attributes.string("layout"), "bshd");
      EXPECT_EQ(op.inputs.size(), 3U);
      EXPECT_EQ(graph.type(op.inputs[1]).shape, (ir::Shape{2, 8, 2, 4}));
      EXPECT_EQ(op.layer, "model.layers.0.self_attn");
    }
  }
  for (const ir::Value& value : graph.values()) {
    EXPECT_NE(value.kind, ir::ValueKind::kConstant);
  }
}

TEST(TorchExport, MetaArchivesHaveNoWeightsToRun) {
  const Result<ir::Graph> graph = load_model(fixture("gpt2_meta"), {.weights = true});
  ASSERT_FALSE(graph);
  EXPECT_THAT(
      graph.error().text(),
      HasSubstr("'transformer.wte.weight': the archive holds no data for it; export the model"));
}

TEST(TorchExport, NamesWhatIsNotSupported) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"dynamic", "", "leaves the dimension s31 open; give it a size: --dim s31=N; s31: input.0"},
      {"no_loss", "", "first output is f32[5,2], a scalar loss is needed"}};
  for (const auto& [name, where, message] : cases) {
    const Result<ir::Graph> graph = load_model(fixture(name));
    ASSERT_FALSE(graph) << name;
    EXPECT_THAT(graph.error().text(), HasSubstr(message));
    EXPECT_THAT(graph.error().location, HasSubstr(where));
    EXPECT_THAT(graph.error().location, HasSubstr(name));
  }
}

/// The graph in the text form, without its name.
std::string text_of(ir::Graph graph) {
  graph.name.clear();
  return ir::print(graph);
}

TEST(TorchExport, BoundDimensionsGiveTheGraphOfThatSize) {
  const Result<ir::Graph> dynamic =
      load_model(fixture("gpt2_dynamic"), {.dims = {{"batch", 2}, {"seq", 8}}});
  ASSERT_TRUE(dynamic) << dynamic.error().text();
  EXPECT_EQ(text_of(*dynamic), text_of(load("gpt2")));
  const Result<ir::Graph> other =
      load_model(fixture("gpt2_dynamic"), {.dims = {{"batch", 6}, {"input_ids.1", 5}}});
  ASSERT_TRUE(other) << other.error().text();
  EXPECT_EQ(other->type(other->find_input("labels")).shape, (ir::Shape{6, 5}));
  EXPECT_THAT(load_model(fixture("gpt2_dynamic"), {.dims = {{"batch", 6}}}).error().text(),
              HasSubstr("leaves the dimension seq open"));
  EXPECT_THAT(
      load_model(fixture("gpt2_dynamic"), {.dims = {{"batch", 6}, {"seq", 9}}}).error().text(),
      HasSubstr("seq is 9, and the model was exported for 1 to 8"));
  EXPECT_THAT(load_model(fixture("gpt2"), {.dims = {{"batch", 6}}}).error().text(),
              HasSubstr("no open dimension 'batch'; all its dimensions are fixed"));
}

/// Without ops that only move elements: how views are undone differs.
std::vector<std::string> computing_ops(const ir::Graph& graph) {
  std::vector<std::string> lines = described_ops(graph);
  std::erase_if(lines, [](const std::string& line) {
    return line.starts_with("slice") || line.starts_with("reshape") ||
           line.starts_with("transpose") || line.starts_with("concat");
  });
  return lines;
}

TEST(TorchExport, InPlaceOperatorsGiveTheGraphOfFunctionalOnes) {
  const ir::Graph written = load("in_place", true);
  const ir::Graph functional = load("in_place_functional", true);
  EXPECT_EQ(written.writes.size(), 4U);
  EXPECT_EQ(computing_ops(written), computing_ops(functional));
  for (const ir::Value& value : functional.values()) {
    if (!value.name.empty() && value.data != nullptr) {
      EXPECT_EQ(*written.value(written.find_input(value.name)).data, *value.data) << value.name;
    }
  }
}

/// The graph has no tensors without elements: what joins them joins the others alone.
TEST(TorchExport, PartsWithoutElementsAreLeftOut) {
  const Result<ir::Graph> graph = load_model(fixture("empty_rest"));
  ASSERT_TRUE(graph.has_value()) << graph.error().text();
  for (const ir::Op& op : graph->ops()) {
    EXPECT_NE(op.name, "slice");
    EXPECT_NE(op.name, "concat");
  }
}

TEST(TorchExport, NoOperatorIsRefusedForHavingNoRow) {
  const Result<ir::Graph> graph = load_model(fixture("batch_norm"));
  EXPECT_TRUE(graph.has_value()) << graph.error().text();
}

TEST(TorchExport, ForeignFiles) {
  const Archive archive("foreign");
  EXPECT_THAT(read_pt2("/nonexistent/model.pt2").error().text(), HasSubstr("no readable .pt2"));
  archive.write("");
  EXPECT_FALSE(read_pt2(archive.path()));
  archive.write("not a zip at all");
  EXPECT_THAT(read_pt2(archive.path()).error().text(), HasSubstr("no readable .pt2"));
  archive.write_entries({{"archive/data.pkl", "x"}});
  EXPECT_THAT(read_pt2(archive.path()).error().text(),
              HasSubstr("was not written by torch.export.save"));
  archive.write_entries(
      {{"m/models/model.json", "{\"schema_version\": {\"major\": 7, \"minor\": 0}}"}});
  EXPECT_THAT(read_pt2(archive.path()).error().text(), HasSubstr("schema version 7"));
  for (const char* const json : {"",
                                 "{",
                                 "[]",
                                 "null",
                                 "{\"schema_version\": 8}",
                                 "\"x\"",
                                 "{\"schema_version\": {\"major\": 8}}",
                                 "{\"schema_version\": {\"major\": 8}, \"graph_module\": []}"}) {
    archive.write_entries({{"m/models/model.json", json}});
    EXPECT_FALSE(read_pt2(archive.path())) << json;
  }
  archive.write_entries({{"m/models/model.json", std::string(1 << 20, '[')}});
  EXPECT_FALSE(read_pt2(archive.path()));
}

TEST(TorchExport, DecompressionBombsAreRefused) {
  const Archive archive("bomb");
  archive.write_entries({{"m/models/model.json", std::string(std::size_t{64} << 20, ' ')}});
  ASSERT_LT(std::filesystem::file_size(archive.path()), std::uintmax_t{1} << 20);
  EXPECT_THAT(read_pt2(archive.path()).error().text(), HasSubstr("decompression bomb"));
}

TEST(TorchExport, TruncatedArchivesAreErrors) {
  const Archive archive("truncated");
  const std::string whole = read_file(fixture("mlp")).value();
  for (std::size_t length = 0; length < whole.size(); length += 211) {
    archive.write(whole.substr(0, length));
    const Result<ir::Graph> graph = load_model(archive.path(), {.weights = true});
    ASSERT_FALSE(graph) << length;
    EXPECT_FALSE(graph.error().text().empty());
  }
}

// A changed byte is found by the CRC, or by a check of the content, or does not matter; none
// crashes.
TEST(TorchExport, FlippedBitsNeverCrash) {
  const Archive archive("flipped");
  std::mt19937_64 random(7);
  for (const char* const name : {"mlp", "gpt2_meta"}) {
    const std::string whole = read_file(fixture(name)).value();
    for (int round = 0; round < 80; ++round) {
      std::string damaged = whole;
      for (int flip = 0; flip < 3; ++flip) {
        char& byte = damaged[random() % damaged.size()];
        byte = static_cast<char>(static_cast<unsigned char>(byte) ^ (1U << (random() % 8)));
      }
      archive.write(damaged);
      const Result<ir::Graph> graph = load_model(archive.path(), {.weights = true});
      EXPECT_TRUE(!graph || ops::verify(*graph));
    }
  }
}

/// The text of models/model.json of a fixture, and the other entries that the reader wants.
std::vector<std::pair<std::string, std::string>> entries_of(const std::string& path) {
  std::vector<std::pair<std::string, std::string>> entries;
  int code = 0;
  zip_t* const zip = zip_open(path.c_str(), ZIP_RDONLY, &code);
  for (zip_int64_t i = 0; zip != nullptr && i < zip_get_num_entries(zip, 0); ++i) {
    const auto index = static_cast<zip_uint64_t>(i);
    zip_stat_t stat;
    zip_stat_init(&stat);
    zip_stat_index(zip, index, 0, &stat);
    std::string content(static_cast<std::size_t>(stat.size), '\0');
    zip_file_t* const file = zip_fopen_index(zip, index, 0);
    zip_fread(file, content.data(), content.size());
    zip_fclose(file);
    entries.emplace_back(stat.name, std::move(content));
  }
  zip_discard(zip);
  return entries;
}

// The same with valid CRCs: the JSON itself is damaged, so the checks of its content are what
// holds.
TEST(TorchExport, DamagedJsonNeverCrashes) {
  const Archive archive("json");
  std::mt19937_64 random(11);
  const std::string alphabet = "0123456789-.e\"{}[],:truefalsn_as ";
  for (const char* const name : {"mlp", "llama", "in_place"}) {
    const auto entries = entries_of(fixture(name));
    for (int round = 0; round < 60; ++round) {
      auto damaged = entries;
      for (auto& [entry, content] : damaged) {
        if (entry.ends_with(".json") && !content.empty()) {
          for (std::uint64_t edit = 0; edit < 1 + random() % 3; ++edit) {
            content[random() % content.size()] = alphabet[random() % alphabet.size()];
          }
        }
      }
      archive.write_entries(damaged);
      const Result<ir::Graph> graph = load_model(archive.path(), {.weights = round % 2 == 0});
      EXPECT_TRUE(!graph || ops::verify(*graph));
    }
  }
}

// Numbers inside the JSON replaced by extreme ones: sizes, dimensions, strides, versions.
TEST(TorchExport, ExtremeNumbersNeverCrash) {
  const Archive archive("numbers");
  std::mt19937_64 random(13);
  const std::vector<std::string> extremes{"-1",
                                          "0",
                                          "9223372036854775807",
                                          "-9223372036854775808",
                                          "18446744073709551615",
                                          "1e400",
                                          "4611686018427387904",
                                          "1099511627776",
                                          "3"};
  for (const char* const name : {"mlp", "gpt2", "llama", "in_place"}) {
    const auto entries = entries_of(fixture(name));
    for (int round = 0; round < 80; ++round) {
      auto damaged = entries;
      for (auto& [entry, content] : damaged) {
        const std::size_t start = content.empty() ? 0 : random() % content.size();
        const std::size_t at = content.find("as_int", start);
        if (!entry.ends_with(".json") || at == std::string::npos) {
          continue;
        }
        const std::size_t digit = content.find_first_of("-0123456789", at);
        const std::size_t end = content.find_first_not_of("-0123456789", digit);
        if (end != std::string::npos) {
          content.replace(digit, end - digit, extremes[random() % extremes.size()]);
        }
      }
      archive.write_entries(damaged);
      const Result<ir::Graph> graph = load_model(archive.path(), {.weights = round % 2 == 0});
      EXPECT_TRUE(!graph || ops::verify(*graph));
    }
  }
}

TEST(LoadModel, ReadsTheTextForm) {
  const Archive archive("text");
  const std::string path = archive.path() + ".sp";
  const Result<ir::Graph> built = load_model("mlp:layers=2,hidden=4,input=3,classes=2,batch=5");
  ASSERT_TRUE(built) << built.error().text();
  ASSERT_TRUE(write_file(path, ir::print(*built)));
  const Result<ir::Graph> read = load_model(path);
  ASSERT_TRUE(read) << read.error().text();
  EXPECT_EQ(ir::structural_hash(*read), ir::structural_hash(*built));
  ASSERT_TRUE(write_file(path, "graph \"g\"\n%0 = nonsense() : f32[]\noutput %0\n"));
  EXPECT_THAT(load_model(path).error().text(), HasSubstr("nonsense"));
  ASSERT_TRUE(write_file(path, "graph \"g\"\n%0 = inputt \"x\" f32[]\n"));
  EXPECT_THAT(load_model(path).error().text(), HasSubstr("line 2"));
  ASSERT_TRUE(write_file(path, "graph \"g\"\n"));
  EXPECT_THAT(load_model(path).error().text(), HasSubstr("scalar loss"));
  std::filesystem::remove(path);
  EXPECT_THAT(load_model(path).error().text(), HasSubstr(path));
  EXPECT_THAT(load_model("gpt3-175").error().text(), HasSubstr("did you mean 'gpt3-175b'"));
}

}  // namespace
}  // namespace shardplan::frontends
