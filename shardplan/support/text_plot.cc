#include "shardplan/support/text_plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shardplan {
namespace {

/// Coordinates from least to largest, over so many columns or rows.
class Axis {
 public:
  Axis(const std::vector<double>& values, int cells)
      : least_(*std::min_element(values.begin(), values.end())),
        range_(*std::max_element(values.begin(), values.end()) - least_),
        last_(cells - 1) {}

  [[nodiscard]] std::size_t cell(double value) const {
    return range_ > 0 ? static_cast<std::size_t>(std::lround((value - least_) / range_ * last_))
                      : 0;
  }

 private:
  double least_;
  double range_;
  double last_;
};

std::string padded(const std::string& text, std::size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

}  // namespace

std::string scatter_plot(const std::vector<PlotPoint>& points,
                         const PlotLabels& labels,
                         const PlotSize& size) {
  std::vector<double> xs;
  std::vector<double> ys;
  for (const PlotPoint& point : points) {
    xs.push_back(point.x);
    if (point.y) {
      ys.push_back(*point.y);
    }
  }
  if (ys.empty()) {
    return "";
  }
  const Axis across(xs, size.width);
  const Axis up(ys, size.height);
  const auto width = static_cast<std::size_t>(size.width);
  const auto height = static_cast<std::size_t>(size.height);
  std::vector<std::string> rows(height, std::string(width, ' '));
  std::string axis(width, '-');
  for (const PlotPoint& point : points) {
    const std::size_t column = across.cell(point.x);
    if (point.y) {
      rows[height - 1 - up.cell(*point.y)][column] = '*';
    } else {
      axis[column] = 'x';
    }
  }
  const std::size_t margin =
      std::max({labels.y.size(), labels.most_y.size(), labels.least_y.size()});
  std::string out = labels.y + "\n";
  for (std::size_t row = 0; row < height; ++row) {
    const std::string& label = row + 1 == height ? labels.least_y : labels.most_y;
    const bool named = row == 0 || row + 1 == height;
    rows[row].erase(rows[row].find_last_not_of(' ') + 1);
    out += padded(named ? label : "", margin) + " |" + rows[row] + "\n";
  }
  out += padded("", margin) + " +" + axis + "\n";
  const std::size_t used = labels.least_x.size() + labels.most_x.size();
  out += padded("", margin) + "  " + labels.least_x +
         std::string(width > used ? width - used : 1, ' ') + labels.most_x + "  " + labels.x + "\n";
  return out;
}

}  // namespace shardplan
