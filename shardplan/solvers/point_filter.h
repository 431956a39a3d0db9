#pragma once

#include <cstddef>
#include <vector>

namespace shardplan::solvers {

/// A set of points (reduced cost less loss, cost, loss, usages) from which those go that another
/// one can stand for: one of no larger usages whose cost is larger by no more than the tolerance.
/// Its loss then covers the difference.
class PointFilter {
 public:
  /// `back_size`: numbers kept beside each point.
  PointFilter(std::size_t dimensions, std::size_t back_size)
      : dimensions_(dimensions), stride_(dimensions + 3), back_size_(back_size) {}

  void set_tolerance(double tolerance) { tolerance_ = tolerance; }
  void clear();
  void add(const std::vector<double>& point, const std::vector<int>& back);
  [[nodiscard]] std::size_t size() const { return size_; }
  /// Comparisons made so far, about a nanosecond each.
  [[nodiscard]] double work() const { return work_; }

  void filter();
  /// Leaves at most `most` points, after a filter. Returns the least reduced cost, less loss, among
  /// those that no other could stand for; infinity when there was none.
  double limit(std::size_t most);
  /// In ascending order of the reduced cost less loss.
  void append_to(std::vector<double>& values, std::vector<int>& back);

 private:
  [[nodiscard]] double* point(std::size_t p) { return values_.data() + p * stride_; }
  void filter_line(double tolerance);
  void filter_space(double tolerance);
  /// Whether a kept point can stand for this one; that point, then, carries the loss.
  bool absorb(const double* next, double tolerance);
  void add_column(std::size_t p);
  void keep(const std::vector<std::size_t>& kept);

  std::size_t dimensions_;
  std::size_t stride_;
  std::size_t back_size_;
  double tolerance_ = 0;
  std::size_t size_ = 0;
  double work_ = 0;
  std::vector<double> values_;
  std::vector<int> back_;
  // Scratch.
  struct Key {
    double first;
    double second;
    std::size_t index;
  };
  std::vector<Key> keys_;
  std::vector<std::size_t> kept_;
  std::vector<std::vector<double>> columns_;  ///< of the kept: cost, loss, usages
  std::size_t last_absorber_ = 0;
};

}  // namespace shardplan::solvers
