#pragma once

#include <vector>

#include "shardplan/cluster/cluster.h"

namespace shardplan::cost {

/// A measured curve of seconds by size. Between points: straight lines in log-log space. Below the
/// first point: the slope of the first segment, held within [0, 1] (1 for a single point). Above
/// the last: the rate of the last point. Seconds never fall as the size grows: a point that took
/// less than a smaller one counts as that one. Size 0 takes 0 s.
class Curve {
 public:
  Curve() = default;
  /// Sizes and seconds positive, sizes growing (the cluster file reader has checked it).
  explicit Curve(const std::vector<cluster::CurvePoint>& points);

  [[nodiscard]] bool empty() const { return points_.empty(); }
  [[nodiscard]] Seconds operator()(double size) const;

 private:
  struct Point {
    double log_size;
    double log_seconds;
    double slope;  ///< to the next point; 1 at the last
  };
  std::vector<Point> points_;
  double first_slope_ = 1;
};

}  // namespace shardplan::cost
