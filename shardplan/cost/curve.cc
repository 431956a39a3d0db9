#include "shardplan/cost/curve.h"

#include <algorithm>
#include <cmath>

namespace shardplan::cost {

Curve::Curve(const std::vector<cluster::CurvePoint>& points) {
  Seconds highest = 0;
  points_.reserve(points.size());
  for (const cluster::CurvePoint& p : points) {
    highest = std::max(highest, p.seconds);
    points_.push_back({std::log(p.size), std::log(highest), 1});
  }
  for (std::size_t i = 0; i + 1 < points_.size(); ++i) {
    points_[i].slope = (points_[i + 1].log_seconds - points_[i].log_seconds) /
                       (points_[i + 1].log_size - points_[i].log_size);
  }
  if (points_.size() > 1) {
    first_slope_ = std::clamp(points_.front().slope, 0.0, 1.0);
  }
}

Seconds Curve::operator()(double size) const {
  if (size <= 0 || points_.empty()) {
    return 0;
  }
  const double x = std::log(size);
  const auto after = std::upper_bound(
      points_.begin(), points_.end(), x, [](double v, const Point& p) { return v < p.log_size; });
  const Point& base = after == points_.begin() ? points_.front() : *(after - 1);
  const double slope = after == points_.begin() ? first_slope_ : base.slope;
  return std::exp(base.log_seconds + slope * (x - base.log_size));
}

}  // namespace shardplan::cost
