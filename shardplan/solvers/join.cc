#include "shardplan/solvers/join.h"

#include <algorithm>
#include <array>
#include <limits>

#include "shardplan/solvers/vector_clones.h"

namespace shardplan::solvers {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double least(double a, double b) {
  return a < b ? a : b;
}

/// low[i] = min(low[i], shift + a[i])
SHARDPLAN_VECTOR_CLONES void lower_by_one(double* low,
                                          const double* a,
                                          double shift,
                                          std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    low[i] = least(shift + a[i], low[i]);
  }
}

/// Four rows of `a` at once, so that `low` is loaded and stored a quarter as often.
SHARDPLAN_VECTOR_CLONES void lower_by_four(
    double* low, const double* a, std::size_t stride, const double* shift, std::size_t count) {
  const double* b = a + stride;
  const double* c = b + stride;
  const double* d = c + stride;
  for (std::size_t i = 0; i < count; ++i) {
    const double first = least(shift[0] + a[i], shift[1] + b[i]);
    const double second = least(shift[2] + c[i], shift[3] + d[i]);
    low[i] = least(least(first, second), low[i]);
  }
}

SHARDPLAN_VECTOR_CLONES void lower_by_two_inputs(
    double* low, const double* a, const double* b, double shift, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    low[i] = least(shift + a[i] + b[i], low[i]);
  }
}

SHARDPLAN_VECTOR_CLONES void add(double* sum, const double* a, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    sum[i] += a[i];
  }
}

SHARDPLAN_VECTOR_CLONES void lower(double* low, const double* a, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    low[i] = least(a[i], low[i]);
  }
}

bool varies(const Join& join, std::size_t input) {
  return join.first_inner < join.sizes.size() && join.inputs[input].stride[join.first_inner] != 0;
}

/// The inner loops over all choices, where one input varies.
void lower_over_choices(double* low,
                        const double* rows,
                        std::size_t stride,
                        const std::vector<double>& shift,
                        std::size_t count) {
  const std::size_t choices = shift.size();
  std::size_t c = 0;
  for (; c + 4 <= choices; c += 4) {
    lower_by_four(low, rows + c * stride, stride, shift.data() + c, count);
  }
  for (; c < choices; ++c) {
    lower_by_one(low, rows + c * stride, shift[c], count);
  }
}

}  // namespace

void Join::lay_out() {
  entries = 1;
  for (const int size : sizes) {
    entries *= static_cast<std::size_t>(size);
  }
  first_inner = sizes.size();
  inner = 1;
  while (first_inner > 0) {
    const std::size_t next = first_inner - 1;
    const bool same = std::all_of(inputs.begin(), inputs.end(), [&](const Input& input) {
      const bool last_varies = !sizes.empty() && input.stride.back() != 0;
      return (input.stride[next] != 0) == last_varies;
    });
    if (!same) {
      break;
    }
    first_inner = next;
    inner *= static_cast<std::size_t>(sizes[next]);
  }
}

void min_plus(const Join& join, const std::vector<const double*>& inputs, double* result) {
  std::vector<std::size_t> flat;     // inputs that are constant along the inner dimensions
  std::vector<std::size_t> varying;  // the others
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    (varies(join, i) ? varying : flat).push_back(i);
  }
  const auto choices = static_cast<std::size_t>(join.choices);
  std::vector<double> shift(choices);
  std::vector<double> sum(varying.size() > 2 ? join.inner : 0);
  for_each_outer(join, [&](const std::vector<std::size_t>& offsets, std::size_t at) {
    std::fill(shift.begin(), shift.end(), 0.0);
    for (const std::size_t i : flat) {
      const double* values = inputs[i] + offsets[i];
      for (std::size_t c = 0; c < choices; ++c) {
        shift[c] += values[c * join.inputs[i].choice_stride];
      }
    }
    double* low = result + at;
    if (varying.empty()) {
      *low = *std::min_element(shift.begin(), shift.end());
      return;
    }
    std::fill(low, low + join.inner, kInfinity);
    const std::size_t a = varying[0];
    if (varying.size() == 1) {
      lower_over_choices(
          low, inputs[a] + offsets[a], join.inputs[a].choice_stride, shift, join.inner);
      return;
    }
    for (std::size_t c = 0; c < choices; ++c) {
      const auto row = [&](std::size_t i) {
        return inputs[i] + offsets[i] + c * join.inputs[i].choice_stride;
      };
      if (varying.size() == 2) {
        lower_by_two_inputs(low, row(a), row(varying[1]), shift[c], join.inner);
        continue;
      }
      std::copy_n(row(a), join.inner, sum.data());
      for (std::size_t i = 1; i < varying.size(); ++i) {
        add(sum.data(), row(varying[i]), join.inner);
      }
      lower_by_one(low, sum.data(), shift[c], join.inner);
    }
  });
}

void sum_cluster(const Join& join,
                 const std::vector<const double*>& inputs,
                 const double* outside,
                 double* cluster) {
  for_each_outer(join, [&](const std::vector<std::size_t>& offsets, std::size_t at) {
    for (std::size_t c = 0; c < static_cast<std::size_t>(join.choices); ++c) {
      double* sum = cluster + c * join.entries + at;
      std::copy_n(outside + at, join.inner, sum);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        const double* values = inputs[i] + offsets[i] + c * join.inputs[i].choice_stride;
        if (varies(join, i)) {
          add(sum, values, join.inner);
        } else {
          for (std::size_t k = 0; k < join.inner; ++k) {
            sum[k] += *values;
          }
        }
      }
    }
  });
}

void min_onto_input(const Join& join, std::size_t input, const double* cluster, double* result) {
  for_each_outer(join, [&](const std::vector<std::size_t>& offsets, std::size_t at) {
    for (std::size_t c = 0; c < static_cast<std::size_t>(join.choices); ++c) {
      const double* values = cluster + c * join.entries + at;
      double* low = result + offsets[input] + c * join.inputs[input].choice_stride;
      if (varies(join, input)) {
        lower(low, values, join.inner);
      } else {
        *low = least(*std::min_element(values, values + join.inner), *low);
      }
    }
  });
}

}  // namespace shardplan::solvers
