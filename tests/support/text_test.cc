#include "shardplan/support/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>

namespace shardplan {
namespace {

using ::testing::HasSubstr;

class TextFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::temp_directory_path() / ("shardplan_text_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }
  [[nodiscard]] std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder_),
                                                  std::filesystem::directory_iterator{}));
  }

 private:
  std::filesystem::path folder_;
};

TEST(HumanBytes, ThreeDigitsInBinaryUnits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.00 KiB");
  EXPECT_EQ(human_bytes(65712999629), "61.2 GiB");
  EXPECT_EQ(human_bytes(Bytes{80} << 30), "80.0 GiB");
  EXPECT_EQ(human_bytes((Bytes{1} << 30) - 1), "1.00 GiB");
  EXPECT_EQ(human_bytes(-2048), "-2.00 KiB");
}

TEST(HumanSeconds, PicksTheUnit) {
  EXPECT_EQ(human_seconds(0), "0 s");
  EXPECT_EQ(human_seconds(0.312), "312 ms");
  EXPECT_EQ(human_seconds(0.9999), "1.00 s");
  EXPECT_EQ(human_seconds(5e-6), "5.00 µs");
  EXPECT_EQ(human_seconds(75), "75.0 s");
}

TEST(HumanCounts, ParametersAndFlops) {
  EXPECT_EQ(human_count(6.738e9), "6.74 B");
  EXPECT_EQ(human_count(124439808), "124 M");
  EXPECT_EQ(human_count(12), "12");
  EXPECT_EQ(human_flops(41.3e12), "41.3 TFLOP");
  EXPECT_EQ(human_flops(0), "0 FLOP");
}

TEST(ParseBytes, UnitsAndPlainNumbers) {
  EXPECT_EQ(*parse_bytes("20GiB"), Bytes{20} << 30);
  EXPECT_EQ(*parse_bytes("512 MiB"), Bytes{512} << 20);
  EXPECT_EQ(*parse_bytes("80GB"), 80'000'000'000);
  EXPECT_EQ(*parse_bytes("1.5e9"), 1'500'000'000);
  EXPECT_EQ(*parse_bytes("0.5kib"), 512);
  EXPECT_EQ(*parse_bytes("123"), 123);
}

TEST(ParseBytes, ErrorsNameTheText) {
  for (const char* text : {"", "GiB", "-1GiB", "20G", "1e40", "nan", "inf", "20 GiB x"}) {
    const Result<Bytes> parsed = parse_bytes(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_THAT(parsed.error().text(), HasSubstr("'" + std::string(text) + "'"));
    EXPECT_THAT(parsed.error().text(), HasSubstr("20GiB"));
  }
}

TEST(Suggest, CloseNamesOnly) {
  const std::vector<std::string> known{"megatron", "map", "zero1", "zero2", "dgx-h100"};
  EXPECT_EQ(suggest("megatrn", known), "megatron");
  EXPECT_EQ(suggest("mpa", known), "map");
  EXPECT_EQ(suggest("dgx-h10", known), "dgx-h100");
  EXPECT_EQ(suggest("zero", known), "zero1");
  EXPECT_EQ(suggest("alpa2022", known), "");
  EXPECT_EQ(suggest("", known), "");
}

TEST(TextTable, PadsAndAlignsNumbersRight) {
  TextTable table({"planner", "step", "note"});
  table.add({"dp", "312 ms", "×"});
  table.add({"megatron", "1.02 s", "longer"});
  table.add({"map", "-"});
  EXPECT_EQ(table.text(),
            "planner     step  note\n"
            "dp        312 ms  ×\n"
            "megatron  1.02 s  longer\n"
            "map            -\n");
}

TEST_F(TextFilesTest, WritesAndReadsBack) {
  const std::string binary("a\0b\n", 4);
  ASSERT_TRUE(write_file(path("x"), binary));
  EXPECT_EQ(*read_file(path("x")), binary);
  ASSERT_TRUE(write_file(path("x"), "short"));
  EXPECT_EQ(*read_file(path("x")), "short");
  EXPECT_EQ(files(), 1U);
}

TEST_F(TextFilesTest, FollowsLinksAndKeepsTheMode) {
  ASSERT_TRUE(write_file(path("real"), "old"));
  ASSERT_EQ(::chmod(path("real").c_str(), 0640), 0);
  std::filesystem::create_symlink("real", path("link"));
  ASSERT_TRUE(write_file(path("link"), "new"));
  EXPECT_TRUE(std::filesystem::is_symlink(path("link")));
  EXPECT_EQ(*read_file(path("real")), "new");
  EXPECT_EQ(std::filesystem::status(path("real")).permissions(),
            static_cast<std::filesystem::perms>(0640));
}

TEST_F(TextFilesTest, ErrorsNameThePath) {
  EXPECT_THAT(read_file(path("none")).error().text(), HasSubstr(path("none")));
  EXPECT_FALSE(read_file(path("")));  // a folder
  const Status written = write_file(path("none/x"), "x");
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, ErrorCode::kIo);
  EXPECT_THAT(written.error().text(), HasSubstr(path("none/x")));
}

TEST_F(TextFilesTest, FullDeviceIsAnErrorAndIsNotReplaced) {
  const Status written = write_file("/dev/full", "x");
  ASSERT_FALSE(written);
  EXPECT_THAT(written.error().text(), HasSubstr("No space left"));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
}

// A limit on the size of files stands for a full disk: writing stops in the middle.
TEST_F(TextFilesTest, FailedWriteLeavesTheOldFileAndNoOther) {
  ASSERT_TRUE(write_file(path("x"), "old"));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 1024;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status written = write_file(path("x"), std::string(10'000, 'x'));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_FALSE(written);
  EXPECT_EQ(*read_file(path("x")), "old");
  EXPECT_EQ(files(), 1U);
}

}  // namespace
}  // namespace shardplan
