#include "shardplan/ops/halo.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ops_testing.h"

namespace shardplan::ops {
namespace {

TEST(Halo, HasTheRowsOfTheExampleInItsHeader) {
  const Halo one{.own_size = 16, .size = 16, .kernel = 3, .padding = 1};
  EXPECT_EQ(one.needed({4, 4}), (Rows{3, 6}));
  const Halo two{.own_size = 8, .size = 16, .kernel = 3, .stride = 2, .padding = 1};
  EXPECT_EQ(two.needed({2, 2}), (Rows{3, 5}));
  const Halo back{
      .own_size = 16, .size = 8, .kernel = 3, .stride = 2, .padding = 1, .windows = true};
  EXPECT_EQ(back.needed({4, 4}), (Rows{1, 4}));
  EXPECT_EQ(back.needed({4, 0}).size, 0);
}

/// Window by window and element by element: nothing that an own row meets is left out, and what the
/// kernel makes of so many windows holds the own rows.
TEST(Halo, HasWhateverAnOwnRowMeets) {
  std::mt19937 random(7);
  const auto upto = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  for (int round = 0; round < 3000; ++round) {
    Halo halo{
        .kernel = 1 + upto(4), .stride = 1 + upto(4), .padding = upto(5), .dilation = 1 + upto(3)};
    const Rows own{upto(12), 1 + upto(6)};
    const Rows elements = halo.needed(own);
    halo.windows = true;
    const Rows windows = halo.needed(own);
    EXPECT_GE(halo.crop(own), halo.reach() - 1);
    EXPECT_LT(halo.crop(own), halo.reach() - 1 + halo.stride);
    EXPECT_LE(halo.crop(own) - (halo.reach() - 1) + own.size, halo.made(windows.size));
    EXPECT_EQ(windows.size, halo.needed_size(own.size));
    for (std::int64_t i = -20; i < 60; ++i) {
      for (std::int64_t t = 0; t < halo.kernel; ++t) {
        const std::int64_t element = i * halo.stride - halo.padding + t * halo.dilation;
        if (i >= own.start && i < own.end()) {
          EXPECT_EQ(elements.within({element, 1}).size, 1);
        }
        if (element >= own.start && element < own.end()) {
          EXPECT_EQ(windows.within({i, 1}).size, 1);
        }
      }
    }
  }
}

ir::Attributes window(std::int64_t stride, std::int64_t padding) {
  return {{"stride", ir::IntList(2, stride)},
          {"padding", ir::IntList(2, padding)},
          {"dilation", ir::IntList(2, 1)},
          {"output_padding", ir::IntList(2, 0)},
          {"transposed", false},
          {"groups", std::int64_t{1}}};
}

TEST(Halo, IsWhereWindowsSlide) {
  EXPECT_EQ(axes_of({"convolution", {f32({4, 6, 9, 9}), f32({8, 6, 3, 3})}, window(2, 1)}),
            "n c ~h ~w, o c * * -> n o h w");
  // A window of one element needs no other; a dimension of one row cannot be cut.
  EXPECT_EQ(axes_of({"convolution", {f32({4, 6, 9, 9}), f32({8, 6, 1, 1})}, window(1, 0)}),
            "n c h w, o c * * -> n o h w");
  EXPECT_EQ(axes_of({"convolution", {f32({4, 6, 3, 9}), f32({8, 6, 3, 3})}, window(1, 0)}),
            "n c * ~w, o c * * -> n o * w");
  ir::Attributes gradient = window(2, 1);
  gradient.set("size", ir::IntList{3, 3});
  EXPECT_EQ(
      axes_of({"convolution_backward_weight", {f32({4, 8, 5, 5}), f32({4, 6, 9, 9})}, gradient}),
      "n o ~h ~w, n c h w -> o c * *");
}

TEST(Halo, OfMeansBetweenElementsIsOneOnEachSide) {
  const auto size = [](ir::IntList sizes, const char* mode) {
    return ir::Attributes{{"mode", std::string(mode)}, {"size", std::move(sizes)}};
  };
  const ir::TensorType x = f32({4, 6, 8, 9});
  EXPECT_EQ(axes_of({"resample", {x}, size({16, 27}, "nearest")}), "n c h w -> n c (h p) (w q)");
  EXPECT_EQ(axes_of({"resample", {x}, size({16, 27}, "linear")}), "n c ~h ~w -> n c (h p) (w q)");
  EXPECT_EQ(axes_of({"resample", {x}, size({16, 20}, "linear")}), "n c ~h * -> n c (h p) *");
  EXPECT_EQ(axes_of({"resample", {x}, size({16, 27}, "cubic")}), "n c * * -> n c * *");
  const Types large{f32({4, 6, 16, 9})};
  const AxisMap map =
      get("resample_backward").axes(OpView{large, std::vector{x}, size({8, 9}, "linear")});
  const int h = map.find("h");
  EXPECT_EQ(map.halos[0].needed({4, 2}), (Rows{6, 8}));  // elements 3 to 6 of 8, twice each
  EXPECT_EQ(map.least_size(h), 8);
  EXPECT_EQ(map.least_size(map.find("p")), 1);  // stays whole
}

}  // namespace
}  // namespace shardplan::ops
