#include "shardplan/planners/pipeline/placement_program.h"

#include <limits>
#include <set>
#include <utility>

namespace shardplan::planners {
namespace {

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

}  // namespace

std::vector<std::vector<int>> receivers_of(const problem::LayerGraph& graph,
                                           const PlacementGroups& groups) {
  std::set<std::pair<int, int>> known;  // of a source layer and a group that it sends to
  std::vector<std::vector<int>> receivers(groups.group_of.size());
  for (const problem::LayerEdge& edge : graph.edges) {
    const int to = groups.group_of[at(edge.target)];
    if (to != groups.group_of[at(edge.source)] && known.emplace(edge.source, to).second) {
      receivers[at(edge.source)].push_back(to);
    }
  }
  return receivers;
}

void add_contiguity(const PlacementGroups& groups,
                    const PlacementColumns& x,
                    int device,
                    solvers::MixedProgram& program) {
  const double none = -std::numeric_limits<double>::infinity();
  const auto z = static_cast<int>(program.columns.size());
  for (std::size_t g = 0; g < groups.groups.size(); ++g) {
    program.add(solvers::MixedProgram::Column{0, 0, 1, false});
  }
  for (std::size_t g = 0; g < groups.groups.size(); ++g) {
    const auto v = static_cast<int>(g);
    program.add({{{z + v, 1}, {x(v, device), -1}}, 0});
    for (const int u : groups.needs[g]) {
      program.add({{{z + v, 1}, {z + u, -1}}, none, 0});
      program.add({{{z + v, 1}, {x(v, device), -1}, {x(u, device), 1}}, none, 1});
    }
  }
}

}  // namespace shardplan::planners
