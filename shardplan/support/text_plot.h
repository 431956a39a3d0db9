#pragma once

#include <optional>
#include <string>
#include <vector>

namespace shardplan {

/// A point of a plot; without y it is marked by an "x" on the axis.
struct PlotPoint {
  double x = 0;
  std::optional<double> y{};
};

/// Texts of the least and largest coordinates, and of what the axes are.
struct PlotLabels {
  std::string least_x{};
  std::string most_x{};
  std::string least_y{};
  std::string most_y{};
  std::string x{};
  std::string y{};
};

struct PlotSize {
  int width = 60;
  int height = 12;
};

/// Points as "*" on linear axes in plain text, largest y on top, each line ended by a newline; ""
/// for no points. Both axes begin at the least coordinate. O(points + width · height).
[[nodiscard]] std::string scatter_plot(const std::vector<PlotPoint>& points,
                                       const PlotLabels& labels,
                                       const PlotSize& size = {});

}  // namespace shardplan
