#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "shardplan/solvers/cost_network.h"

namespace shardplan::solvers {

/// How a factor sees the choices of a variable: choices of one class are the same to it.
struct ChoiceClasses {
  std::vector<std::uint16_t> of{};  ///< class of each choice, < count
  std::size_t count = 0;
};

/// A CostNetwork whose tables are over classes of choices: an edge between ops sees
/// layouts, of which there are far fewer than choices. Equal tables and classes are shared by
/// pointer.
struct ClassNetwork {
  struct Factor {
    std::vector<int> scope{};  ///< distinct variables, in the order of the table's dimensions
    std::vector<std::shared_ptr<const ChoiceClasses>> classes{};  ///< one a scope variable
    CostTable cost{};                                             ///< row-major over classes
  };
  std::vector<CostTable> unary{};  ///< one a variable; its size is the number of choices
  std::vector<Factor> factors{};
};

/// Sum of all tables for one assignment.
[[nodiscard]] double evaluate(const ClassNetwork& network, const std::vector<int>& choice);

/// The network with some choices of each variable only: `keep` has ascending lists of them, by
/// variable; variables with the same unary table must have the same list. Shares what was shared.
[[nodiscard]] ClassNetwork restricted(const ClassNetwork& network,
                                      const std::vector<std::vector<int>>& keep);

/// A factor's table over the choices of its scope.
[[nodiscard]] std::vector<double> expand(const ClassNetwork::Factor& factor);

/// The same costs over choices. Memory grows with the products of choices.
[[nodiscard]] CostNetwork expand(const ClassNetwork& network);

}  // namespace shardplan::solvers
