#include "shardplan/solvers/point_filter.h"

#include <algorithm>
#include <array>
#include <limits>

#include "shardplan/solvers/vector_clones.h"

namespace shardplan::solvers {
namespace {

/// within[k] = a point of that cost and loss can be given for one of cost `low` at the least.
SHARDPLAN_VECTOR_CLONES void mark_cheap(const double* cost,
                                        const double* loss,
                                        double low,
                                        double tolerance,
                                        unsigned char* within,
                                        std::size_t count) {
  for (std::size_t k = 0; k < count; ++k) {
    const double most = tolerance > loss[k] ? tolerance : loss[k];
    within[k] = static_cast<unsigned char>(cost[k] - low <= most);
  }
}

SHARDPLAN_VECTOR_CLONES void mark_below(const double* usage,
                                        double most,
                                        unsigned char* within,
                                        std::size_t count) {
  for (std::size_t k = 0; k < count; ++k) {
    within[k] = static_cast<unsigned char>(within[k] & (usage[k] <= most ? 1U : 0U));
  }
}

}  // namespace

void PointFilter::clear() {
  size_ = 0;
  values_.clear();
  back_.clear();
}

void PointFilter::add(const std::vector<double>& point, const std::vector<int>& back) {
  values_.insert(values_.end(), point.begin(), point.end());
  back_.insert(back_.end(), back.begin(), back.end());
  ++size_;
}

void PointFilter::filter() {
  work_ += 40 * static_cast<double>(size_);
  if (size_ > 1) {
    if (dimensions_ <= 1) {
      filter_line(tolerance_);
    } else {
      filter_space(tolerance_);
    }
  }
}

/// Points in the order of usage: each is kept that is cheaper than the last kept by more than the
/// tolerance.
void PointFilter::filter_line(double tolerance) {
  keys_.clear();
  for (std::size_t p = 0; p < size_; ++p) {
    keys_.push_back({dimensions_ == 0 ? 0.0 : point(p)[3], point(p)[1], p});
  }
  std::sort(keys_.begin(), keys_.end(), [](const Key& a, const Key& b) {
    return a.first != b.first ? a.first < b.first
                              : (a.second != b.second ? a.second < b.second : a.index < b.index);
  });
  kept_.clear();
  for (const Key& key : keys_) {
    const double* const next = point(key.index);
    if (!kept_.empty()) {
      double* const last = point(kept_.back());
      const double loss = last[1] - (next[1] - next[2]);
      if (loss <= std::max(tolerance, last[2])) {
        if (loss > last[2]) {
          last[0] -= loss - last[2];
          last[2] = loss;
        }
        continue;
      }
    }
    kept_.push_back(key.index);
  }
  keep(kept_);
}

/// Points in the order of reduced cost, in which only an earlier one can dominate; each is compared
/// with those kept so far.
void PointFilter::filter_space(double tolerance) {
  keys_.clear();
  for (std::size_t p = 0; p < size_; ++p) {
    keys_.push_back({point(p)[0] + point(p)[2], point(p)[1], p});
  }
  std::sort(keys_.begin(), keys_.end(), [](const Key& a, const Key& b) {
    return a.first != b.first ? a.first < b.first
                              : (a.second != b.second ? a.second < b.second : a.index < b.index);
  });
  kept_.clear();
  columns_.resize(dimensions_ + 2);
  for (std::vector<double>& column : columns_) {
    column.clear();
  }
  last_absorber_ = 0;
  for (const Key& key : keys_) {
    if (!absorb(point(key.index), tolerance)) {
      kept_.push_back(key.index);
      add_column(key.index);
    }
  }
  keep(kept_);
}

void PointFilter::add_column(std::size_t p) {
  const double* const added = point(p);
  columns_[0].push_back(added[1]);
  columns_[1].push_back(added[2]);
  for (std::size_t d = 0; d < dimensions_; ++d) {
    columns_[2 + d].push_back(added[3 + d]);
  }
}

bool PointFilter::absorb(const double* next, double tolerance) {
  constexpr std::size_t kBlock = 64;
  const double low = next[1] - next[2];
  const auto test = [&](std::size_t k) {
    const double loss = columns_[0][k] - low;
    if (loss > std::max(tolerance, columns_[1][k])) {
      return false;
    }
    for (std::size_t d = 0; d < dimensions_; ++d) {
      if (columns_[2 + d][k] > next[3 + d]) {
        return false;
      }
    }
    double* const other = point(kept_[k]);
    if (loss > other[2]) {
      other[0] -= loss - other[2];
      other[2] = loss;
      columns_[1][k] = loss;
    }
    last_absorber_ = k;
    return true;
  };
  // What stood for the last point often stands for the next.
  if (last_absorber_ < kept_.size() && test(last_absorber_)) {
    return true;
  }
  std::array<unsigned char, kBlock> within{};
  for (std::size_t first = 0; first < kept_.size(); first += kBlock) {
    const std::size_t count = std::min(kBlock, kept_.size() - first);
    mark_cheap(columns_[0].data() + first,
               columns_[1].data() + first,
               low,
               tolerance,
               within.data(),
               count);
    for (std::size_t d = 0; d < dimensions_; ++d) {
      mark_below(columns_[2 + d].data() + first, next[3 + d], within.data(), count);
    }
    work_ += 0.2 * static_cast<double>(count * (dimensions_ + 1));
    const auto* const hit = std::find(within.data(), within.data() + count, 1);
    if (hit != within.data() + count) {
      return test(first + static_cast<std::size_t>(hit - within.data()));
    }
  }
  return false;
}

void PointFilter::keep(const std::vector<std::size_t>& kept) {
  std::vector<double> values;
  std::vector<int> back;
  values.reserve(kept.size() * stride_);
  back.reserve(kept.size() * back_size_);
  for (const std::size_t p : kept) {
    values.insert(values.end(), point(p), point(p) + stride_);
    const auto first = back_.begin() + static_cast<std::ptrdiff_t>(p * back_size_);
    back.insert(back.end(), first, first + static_cast<std::ptrdiff_t>(back_size_));
  }
  values_ = std::move(values);
  back_ = std::move(back);
  size_ = kept.size();
}

double PointFilter::limit(std::size_t most) {
  if (size_ <= most) {
    return std::numeric_limits<double>::infinity();
  }
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (std::size_t p = 0; p < size_; ++p) {
    low = std::min(low, point(p)[1]);
    high = std::max(high, point(p)[1]);
  }
  double tolerance = std::max(2 * tolerance_, (high - low) / (4 * static_cast<double>(most)));
  for (int round = 0; round < 4 && size_ > most; ++round, tolerance *= 2) {
    if (dimensions_ <= 1) {
      filter_line(tolerance);
    } else {
      filter_space(tolerance);
    }
  }
  if (size_ <= most) {
    return std::numeric_limits<double>::infinity();
  }
  kept_.resize(size_);
  for (std::size_t p = 0; p < size_; ++p) {
    kept_[p] = p;
  }
  std::nth_element(kept_.begin(),
                   kept_.begin() + static_cast<std::ptrdiff_t>(most),
                   kept_.end(),
                   [&](std::size_t a, std::size_t b) {
                     return point(a)[0] != point(b)[0] ? point(a)[0] < point(b)[0] : a < b;
                   });
  const double lost = point(kept_[most])[0];
  kept_.resize(most);
  keep(kept_);
  return lost;
}

void PointFilter::append_to(std::vector<double>& values, std::vector<int>& back) {
  keys_.clear();
  for (std::size_t p = 0; p < size_; ++p) {
    keys_.push_back({point(p)[0], point(p)[1], p});
  }
  std::sort(keys_.begin(), keys_.end(), [](const Key& a, const Key& b) {
    return a.first != b.first ? a.first < b.first : a.index < b.index;
  });
  for (const Key& key : keys_) {
    const double* const from = point(key.index);
    values.insert(values.end(), from, from + stride_);
    const auto first = back_.begin() + static_cast<std::ptrdiff_t>(key.index * back_size_);
    back.insert(back.end(), first, first + static_cast<std::ptrdiff_t>(back_size_));
  }
}

}  // namespace shardplan::solvers
