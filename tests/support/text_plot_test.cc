#include "shardplan/support/text_plot.h"

#include <gtest/gtest.h>

namespace shardplan {
namespace {

TEST(ScatterPlot, PutsPointsWhereTheyBelong) {
  const std::vector<PlotPoint> points{{0, {}}, {1, 4.0}, {2, 2.0}, {4, 1.0}};
  const PlotLabels labels{"0 B", "4 B", "1 s", "4 s", "memory", "step"};
  EXPECT_EQ(scatter_plot(points, labels, {.width = 9, .height = 4}),
            "step\n"
            " 4 s |  *\n"
            "     |\n"
            "     |    *\n"
            " 1 s |        *\n"
            "     +x--------\n"
            "      0 B   4 B  memory\n");
}

TEST(ScatterPlot, EqualPointsLieOnOneLine) {
  const std::vector<PlotPoint> points{{1, 3.0}, {2, 3.0}};
  const std::string text = scatter_plot(points, {"1", "2", "3", "3", "x", "y"}, {5, 2});
  EXPECT_EQ(text, "y\n3 |\n3 |*   *\n  +-----\n   1   2  x\n");
}

TEST(ScatterPlot, OfNothingIsNothing) {
  EXPECT_EQ(scatter_plot({}, {}), "");
  EXPECT_EQ(scatter_plot({{1, {}}}, {}), "");
}

}  // namespace
}  // namespace shardplan
