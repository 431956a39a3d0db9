#pragma once

#include <cstddef>
#include <vector>

namespace shardplan::solvers {

/// How the tables of one step are joined: over its own variable (the slowest dimension of every
/// input) and the dimensions of its scope.
struct Join {
  struct Input {
    int table = 0;                      ///< number of a factor class or of a step class
    bool is_child = false;              ///< the latter
    std::size_t choice_stride = 0;      ///< from one choice of the variable to the next
    std::vector<std::size_t> stride{};  ///< one a scope dimension; 0 where the input lacks it
  };
  int choices = 1;           ///< of the variable; 1 where there is none
  std::vector<int> sizes{};  ///< of the scope's dimensions
  std::vector<Input> inputs{};
  std::size_t entries = 1;  ///< of the result
  /// The trailing dimensions from `first_inner` on are walked as one: each input has them all,
  /// contiguous, or none of them.
  std::size_t first_inner = 0;
  std::size_t inner = 1;  ///< their entries

  /// Sets entries, first_inner and inner from the rest.
  void lay_out();
};

/// Calls visit(offsets, result_offset) for each entry of the outer dimensions of a join, offsets
/// being where each input stands there for choice 0.
template <typename Visit>
void for_each_outer(const Join& join, const Visit& visit) {
  std::vector<std::size_t> offsets(join.inputs.size(), 0);
  std::vector<int> digit(join.first_inner, 0);
  for (std::size_t at = 0; at < join.entries; at += join.inner) {
    visit(offsets, at);
    for (std::size_t d = join.first_inner; d-- > 0;) {
      const bool carry = ++digit[d] == join.sizes[d];
      const auto back = static_cast<std::size_t>(join.sizes[d] - 1);
      for (std::size_t i = 0; i < offsets.size(); ++i) {
        if (carry) {
          offsets[i] -= join.inputs[i].stride[d] * back;
        } else {
          offsets[i] += join.inputs[i].stride[d];
        }
      }
      if (!carry) {
        break;
      }
      digit[d] = 0;
    }
  }
}

/// result[s] = min over the choices c of the sum of the inputs at (c, s).
void min_plus(const Join& join, const std::vector<const double*>& inputs, double* result);

/// cluster[c][s] = outside[s] + the sum of the inputs at (c, s).
void sum_cluster(const Join& join,
                 const std::vector<const double*>& inputs,
                 const double* outside,
                 double* cluster);

/// Lowers result, laid out as input `input`, to the least of the cluster's entries that agree.
void min_onto_input(const Join& join, std::size_t input, const double* cluster, double* result);

}  // namespace shardplan::solvers
