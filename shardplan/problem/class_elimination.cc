// Variable elimination over classes of choices. Read `ClassEliminationRun::run` (cheapest variable
// first), `join` (all that is known of a variable, minimised over its choices) and `multiply`.
//
// A join depends only on the tables and classes that meet, so it is remembered by their numbers:
// the equal layers of a network cost one join and a few look-ups each. Nothing is stored to walk
// back: the best choice is found again once the neighbours are known.
#include "shardplan/problem/class_elimination.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <unordered_map>
#include <utility>

#include "shardplan/problem/min_plus.h"

namespace shardplan::problem {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Time of a sum within a matrix product over that of another.
constexpr double kProductOfSum = 0.1;
/// Entries of the tables that are kept though they can be made again.
constexpr std::size_t kMostRemembered = std::size_t{1} << 23U;

using Key = std::vector<std::uint64_t>;

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    std::uint64_t hash = key.size();
    for (const std::uint64_t part : key) {
      hash ^= part + 0x9e3779b97f4a7c15ULL + (hash << 6U) + (hash >> 2U);
      hash *= 0xff51afd7ed558ccdULL;
    }
    return hash ^ (hash >> 29U);
  }
};
template <class Value>
using Memo = std::unordered_map<Key, Value, KeyHash>;

struct Table {
  std::uint64_t id = 0;
  solvers::CostTable values;
};
using TableRef = std::shared_ptr<const Table>;

struct Classes {
  std::uint64_t id = 0;
  std::vector<std::uint16_t> of;
  std::size_t count = 0;
};
using ClassesRef = std::shared_ptr<const Classes>;

/// The coarsest classes that tell apart what each of several classes tells apart.
struct Refinement {
  ClassesRef joint;
  std::vector<std::vector<std::uint16_t>> part;  ///< by input and joint class: the input's class
  std::vector<char> same;                        ///< by input: whether these are the joint classes
};
using RefinementRef = std::shared_ptr<const Refinement>;

struct Factor {
  std::vector<int> scope;
  std::vector<ClassesRef> classes;
  TableRef table;
  bool alive = true;
};

/// What a join leaves: a table over some neighbours, by their number in the join.
struct Joined {
  std::vector<int> scope;
  std::vector<ClassesRef> classes;
  TableRef table;
};
using JoinedRef = std::shared_ptr<const Joined>;

/// Factors over the same neighbours as one table, the eliminated variable last.
struct Group {
  std::vector<int> scope;           ///< numbers of neighbours, ascending
  std::vector<ClassesRef> classes;  ///< of them
  ClassesRef own;                   ///< of the eliminated variable
  TableRef table;

  [[nodiscard]] std::size_t cells() const {
    std::size_t product = 1;
    for (const ClassesRef& each : classes) {
      product *= each->count;
    }
    return product;
  }
};

bool disjoint(const std::vector<int>& a, const std::vector<int>& b) {
  return std::none_of(
      a.begin(), a.end(), [&](int v) { return std::find(b.begin(), b.end(), v) != b.end(); });
}

/// Steps an odometer, last digit first; `offset[k]` follows with `stride[k][digit]` steps given by
/// `place(k, digit, value)`.
class Odometer {
 public:
  explicit Odometer(std::vector<std::size_t> size) : size_(std::move(size)), digit_(size_.size()) {}
  [[nodiscard]] std::size_t at(std::size_t d) const { return digit_[d]; }
  void step() {
    for (std::size_t d = size_.size(); d-- > 0;) {
      if (++digit_[d] < size_[d]) {
        return;
      }
      digit_[d] = 0;
    }
  }

 private:
  std::vector<std::size_t> size_;
  std::vector<std::size_t> digit_;
};

class ClassEliminationRun {
 public:
  ClassEliminationRun(const ClassNetwork& network, double max_work)
      : network_(network), max_work_(max_work) {
    const std::size_t n = network.unary.size();
    factors_of_.resize(n);
    for (const ClassNetwork::Factor& factor : network.factors) {
      add(factor);
    }
  }

  ClassSolution run() {
    ClassSolution solution;
    const std::size_t n = factors_of_.size();
    seen_.resize(n);
    for (std::size_t v = 0; v < n; ++v) {
      look_at(static_cast<int>(v));
    }
    while (!queue_.empty()) {
      const Entry entry = queue_.top();
      queue_.pop();
      const auto index = static_cast<std::size_t>(entry.variable);
      if (seen_[index].done || entry.turn != seen_[index].turn) {
        continue;
      }
      if (seen_[index].key->sums > max_work_) {
        return solution;
      }
      seen_[index].done = true;
      const bool first = !seen_[index].key->joined;
      Situation& situation = *seen_[index].key;
      for (const int other : eliminate(entry.variable, situation)) {
        look_at(other);
      }
      for (std::size_t k = 0; first && k < situation.alike.size(); ++k) {
        look_at(situation.alike[k]);
      }
    }
    solution.solved = true;
    solution.cost = total_;
    solution.choice = walk_back();
    return solution;
  }

 private:
  [[nodiscard]] std::size_t size(int v) const {
    return network_.unary[static_cast<std::size_t>(v)]->size();
  }

  // ---- Numbers of tables and classes ----

  TableRef number(solvers::CostTable values) {
    return std::make_shared<const Table>(Table{next_id_++, std::move(values)});
  }
  TableRef number(std::vector<double> values) {
    return number(std::make_shared<const std::vector<double>>(std::move(values)));
  }
  TableRef table_of(const solvers::CostTable& cost) {
    TableRef& known = table_by_pointer_[cost.get()];
    if (!known) {
      known = number(cost);
    }
    return known;
  }
  ClassesRef classes_of(const ChoiceClasses& classes) {
    ClassesRef& known = classes_by_pointer_[&classes];
    if (!known) {
      known = std::make_shared<const Classes>(Classes{next_id_++, classes.of, classes.count});
    }
    return known;
  }

  /// Variables that the factor does not tell choices of apart are left out.
  void add(const ClassNetwork::Factor& factor) {
    Factor added;
    for (std::size_t d = 0; d < factor.scope.size(); ++d) {
      if (factor.classes[d]->count > 1) {
        added.scope.push_back(factor.scope[d]);
        added.classes.push_back(classes_of(*factor.classes[d]));
      }
    }
    if (added.scope.empty()) {
      total_ += factor.cost->front();
      return;
    }
    added.table = table_of(factor.cost);
    add(std::move(added));
  }
  void add(Factor factor) {
    for (const int v : factor.scope) {
      factors_of_[static_cast<std::size_t>(v)].push_back(factors_.size());
    }
    factors_.push_back(std::move(factor));
  }

  RefinementRef refine(const std::vector<ClassesRef>& inputs) {
    Key key;
    for (const ClassesRef& input : inputs) {
      key.push_back(input->id);
    }
    RefinementRef& known = refinements_[key];
    if (!known) {
      const std::shared_ptr<Refinement> made = make_refinement(inputs);
      for (const std::vector<std::uint16_t>& part : made->part) {
        std::size_t c = 0;
        while (c < part.size() && part[c] == c) {
          ++c;
        }
        made->same.push_back(c == part.size() ? 1 : 0);
      }
      known = made;
    }
    return known;
  }

  std::shared_ptr<Refinement> make_refinement(const std::vector<ClassesRef>& inputs) {
    auto made = std::make_shared<Refinement>();
    made->part.resize(inputs.size());
    const bool same = std::all_of(inputs.begin(), inputs.end(), [&](const ClassesRef& input) {
      return input->id == inputs.front()->id;
    });
    if (same) {
      made->joint = inputs.front();
      for (std::vector<std::uint16_t>& part : made->part) {
        for (std::size_t c = 0; c < made->joint->count; ++c) {
          part.push_back(static_cast<std::uint16_t>(c));
        }
      }
      return made;
    }
    auto joint = std::make_shared<Classes>();
    joint->id = next_id_++;
    std::map<std::vector<std::uint16_t>, std::uint16_t> seen;
    std::vector<std::uint16_t> tuple(inputs.size());
    for (std::size_t choice = 0; choice < inputs.front()->of.size(); ++choice) {
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        tuple[i] = inputs[i]->of[choice];
      }
      const auto [it, fresh] = seen.emplace(tuple, static_cast<std::uint16_t>(seen.size()));
      joint->of.push_back(it->second);
      for (std::size_t i = 0; fresh && i < inputs.size(); ++i) {
        made->part[i].push_back(tuple[i]);
      }
    }
    joint->count = seen.size();
    made->joint = std::move(joint);
    return made;
  }

  // ---- The order ----

  /// What is estimated of the factors over one set of neighbours.
  struct Part {
    std::vector<int> scope;
    double cells = 1;
    double own = 1;
  };

  [[nodiscard]] std::vector<Part> parts_of(int v) const {
    std::map<std::vector<int>, std::map<int, double>> known;  // scope -> variable -> classes
    for (const std::size_t f : factors_of_[static_cast<std::size_t>(v)]) {
      const Factor& factor = factors_[f];
      std::vector<int> scope;
      for (const int w : factor.scope) {
        if (w != v) {
          scope.push_back(w);
        }
      }
      std::sort(scope.begin(), scope.end());
      std::map<int, double>& counts = known[scope];
      for (std::size_t d = 0; d < factor.scope.size(); ++d) {
        const int w = factor.scope[d];
        double& count = counts.try_emplace(w, 1.0).first->second;
        count = std::min(count * static_cast<double>(factor.classes[d]->count),
                         static_cast<double>(size(w)));
      }
    }
    std::vector<Part> parts;
    for (const auto& [scope, counts] : known) {
      if (scope.empty()) {
        continue;
      }
      Part part{scope, 1, 1};
      for (const auto& [w, count] : counts) {
        (w == v ? part.own : part.cells) *= count;
      }
      parts.push_back(std::move(part));
    }
    return parts;
  }

  struct ScopeCells {
    std::vector<int> scope;
    double cells;
  };

  /// What meets at a variable: equal for the variables of equal layers.
  struct Situation {
    double sums = -1;          ///< estimated for the join
    JoinedRef joined{};        ///< once it is made
    std::size_t count = 0;     ///< variables that are in it now
    std::vector<int> alike{};  ///< variables that have been in it
  };
  struct Seen {
    Situation* key = nullptr;
    std::uint64_t turn = 0;  ///< of its valid entry in the queue
    bool done = false;
  };
  /// Least sums first, those of a join shared among the variables that it will serve.
  struct Entry {
    double sums = 0;
    int variable = 0;
    std::uint64_t turn = 0;
    bool operator<(const Entry& other) const {
      return sums != other.sums ? sums > other.sums : variable > other.variable;
    }
  };

  /// Puts a variable into the queue anew.
  void look_at(int v) {
    Seen& seen = seen_[static_cast<std::size_t>(v)];
    if (seen.done) {
      return;
    }
    if (seen.key != nullptr) {
      --seen.key->count;
    }
    const std::vector<std::size_t>& ids = factors_of_[static_cast<std::size_t>(v)];
    Situation& situation = situations_[key_of(v, ids, neighbours_of(v))];
    if (situation.sums < 0) {
      situation.sums = estimate(v);
    }
    if (seen.key != &situation) {
      seen.key = &situation;
      situation.alike.push_back(v);
    }
    ++situation.count;
    seen.turn = ++turn_;
    const double sums =
        situation.joined ? 0 : situation.sums / static_cast<double>(situation.count);
    queue_.push({sums, v, seen.turn});
  }

  /// About how many sums joining `v` takes.
  [[nodiscard]] double estimate(int v) const {
    const std::vector<Part> parts = parts_of(v);
    const auto choices = static_cast<double>(size(v));
    if (parts.size() < 2) {
      return parts.empty() ? choices : parts.front().cells * parts.front().own;
    }
    const int last = widest(parts);
    std::set<int> met;
    double rows = 1;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (static_cast<int>(i) == last) {
        continue;
      }
      const bool fresh = std::none_of(
          parts[i].scope.begin(), parts[i].scope.end(), [&](int w) { return met.contains(w); });
      rows *= fresh ? parts[i].cells : 1;
      for (const int w : parts[i].scope) {
        rows *= fresh || met.contains(w) ? 1 : static_cast<double>(size(w));
      }
      met.insert(parts[i].scope.begin(), parts[i].scope.end());
    }
    const double sums = rows * choices * static_cast<double>(parts.size());
    if (last < 0) {
      return sums;
    }
    const Part& right = parts[static_cast<std::size_t>(last)];
    return sums + rows * right.own * right.cells * kProductOfSum;
  }

  /// The part with most cells among those that share no neighbour with another; -1 = none.
  template <class Parts>
  [[nodiscard]] static int widest(const Parts& parts) {
    int last = -1;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (separate(parts, i) &&
          (last < 0 || cells_of(parts[i]) > cells_of(parts[static_cast<std::size_t>(last)]))) {
        last = static_cast<int>(i);
      }
    }
    return last;
  }
  static double cells_of(const Part& part) { return part.cells; }
  static double cells_of(const ScopeCells& scope) { return scope.cells; }

  template <class Parts>
  [[nodiscard]] static bool separate(const Parts& parts, std::size_t i) {
    for (std::size_t k = 0; k < parts.size(); ++k) {
      if (k != i && !disjoint(parts[k].scope, parts[i].scope)) {
        return false;
      }
    }
    return true;
  }

  // ---- Joining ----

  struct Trail {
    int variable;
    std::vector<std::size_t> factors;
  };

  /// Neighbours in the order of a variable's factors.
  [[nodiscard]] std::vector<int> neighbours_of(int v) const {
    std::vector<int> neighbours;
    for (const std::size_t f : factors_of_[static_cast<std::size_t>(v)]) {
      for (const int w : factors_[f].scope) {
        if (w != v && std::find(neighbours.begin(), neighbours.end(), w) == neighbours.end()) {
          neighbours.push_back(w);
        }
      }
    }
    return neighbours;
  }

  /// Joins all factors of `v`; returns its neighbours.
  std::vector<int> eliminate(int v, Situation& situation) {
    const std::vector<std::size_t> ids = factors_of_[static_cast<std::size_t>(v)];
    const std::vector<int> neighbours = neighbours_of(v);
    JoinedRef& joined = situation.joined;
    if (!joined) {
      joined = join(v, ids, neighbours);
    }
    for (const std::size_t f : ids) {
      factors_[f].alive = false;
    }
    for (const int w : neighbours) {
      std::erase_if(factors_of_[static_cast<std::size_t>(w)],
                    [&](std::size_t f) { return !factors_[f].alive; });
    }
    trail_.push_back({v, ids});
    if (joined->scope.empty()) {
      total_ += joined->table->values->front();
    } else {
      Factor rest;
      for (const int k : joined->scope) {
        rest.scope.push_back(neighbours[static_cast<std::size_t>(k)]);
      }
      rest.classes = joined->classes;
      rest.table = joined->table;
      add(std::move(rest));
    }
    return neighbours;
  }

  static int place(const std::vector<int>& neighbours, int w) {
    const auto it = std::find(neighbours.begin(), neighbours.end(), w);
    return it == neighbours.end() ? -1 : static_cast<int>(it - neighbours.begin());
  }

  [[nodiscard]] Key key_of(int v,
                           const std::vector<std::size_t>& ids,
                           const std::vector<int>& neighbours) {
    Key key{table_of(network_.unary[static_cast<std::size_t>(v)])->id};
    for (const std::size_t f : ids) {
      const Factor& factor = factors_[f];
      key.push_back(factor.table->id);
      for (std::size_t d = 0; d < factor.scope.size(); ++d) {
        key.push_back(static_cast<std::uint64_t>(place(neighbours, factor.scope[d]) + 1));
        key.push_back(factor.classes[d]->id);
      }
    }
    return key;
  }

  /// A factor's table with its dimensions in another order; `order[d]` is the source of dimension
  /// d.
  TableRef lay_out(const TableRef& table,
                   const std::vector<std::size_t>& sizes,
                   const std::vector<std::size_t>& order) {
    if (std::is_sorted(order.begin(), order.end())) {
      return table;
    }
    Key key{table->id};
    key.insert(key.end(), sizes.begin(), sizes.end());
    key.insert(key.end(), order.begin(), order.end());
    TableRef& slot = laid_out_[key];
    if (slot) {
      return slot;
    }
    const TableRef made = number(transposed(*table->values, sizes, order));
    remember(slot, made);
    return made;
  }

  static std::vector<double> transposed(const std::vector<double>& from,
                                        const std::vector<std::size_t>& sizes,
                                        const std::vector<std::size_t>& order) {
    std::vector<std::size_t> stride(order.size());
    std::vector<std::size_t> outer;
    for (std::size_t d = 0; d < order.size(); ++d) {
      outer.push_back(sizes[order[d]]);
      stride[d] = 1;
      for (std::size_t s = order[d] + 1; s < sizes.size(); ++s) {
        stride[d] *= sizes[s];
      }
    }
    const std::size_t inner = outer.back();
    outer.pop_back();
    std::vector<double> values;
    values.reserve(from.size());
    Odometer odometer(outer);
    for (std::size_t row = 0; row < from.size() / inner; ++row) {
      std::size_t source = 0;
      for (std::size_t d = 0; d < outer.size(); ++d) {
        source += odometer.at(d) * stride[d];
      }
      for (std::size_t c = 0; c < inner; ++c) {
        values.push_back(from[source + c * stride.back()]);
      }
      odometer.step();
    }
    return values;
  }

  /// Keeps a table that can be made again, up to a limit for all of them.
  void remember(TableRef& slot, const TableRef& table) {
    slot = table;
    remembered_ += table->values->size();
    if (remembered_ > kMostRemembered) {
      laid_out_.clear();
      merged_.clear();
      remembered_ = 0;
    }
  }

  /// One factor as a group.
  Group group_of(int v, std::size_t f, const std::vector<int>& neighbours) {
    const Factor& factor = factors_[f];
    std::vector<std::pair<int, std::size_t>> foreign;  // neighbour, dimension
    std::vector<std::size_t> sizes;
    std::size_t own = 0;
    for (std::size_t d = 0; d < factor.scope.size(); ++d) {
      sizes.push_back(factor.classes[d]->count);
      if (factor.scope[d] == v) {
        own = d;
      } else {
        foreign.emplace_back(place(neighbours, factor.scope[d]), d);
      }
    }
    std::sort(foreign.begin(), foreign.end());
    Group group;
    std::vector<std::size_t> order;
    for (const auto& [w, d] : foreign) {
      group.scope.push_back(w);
      group.classes.push_back(factor.classes[d]);
      order.push_back(d);
    }
    order.push_back(own);
    group.own = factor.classes[own];
    group.table = lay_out(factor.table, sizes, order);
    return group;
  }

  /// Adds up groups over the same neighbours.
  Group merge(const std::vector<Group>& groups) {
    if (groups.size() == 1) {
      return groups.front();
    }
    Key key;
    for (const Group& group : groups) {
      key.push_back(group.table->id);
      for (const ClassesRef& each : group.classes) {
        key.push_back(each->id);
      }
      key.push_back(group.own->id);
    }
    const std::size_t arity = groups.front().scope.size();
    std::vector<RefinementRef> refined;
    for (std::size_t d = 0; d <= arity; ++d) {
      std::vector<ClassesRef> inputs;
      for (const Group& group : groups) {
        inputs.push_back(d < arity ? group.classes[d] : group.own);
      }
      refined.push_back(refine(inputs));
    }
    Group merged;
    merged.scope = groups.front().scope;
    for (std::size_t d = 0; d < arity; ++d) {
      merged.classes.push_back(refined[d]->joint);
    }
    merged.own = refined[arity]->joint;
    TableRef& slot = merged_[key];
    merged.table = slot;
    if (!merged.table) {
      merged.table = number(add_up(groups, refined));
      remember(slot, merged.table);
    }
    return merged;
  }

  static std::vector<double> add_up(const std::vector<Group>& groups,
                                    const std::vector<RefinementRef>& refined) {
    const std::size_t arity = refined.size() - 1;
    const std::size_t own = refined[arity]->joint->count;
    std::vector<std::size_t> sizes;
    std::size_t rows = 1;
    for (std::size_t d = 0; d < arity; ++d) {
      sizes.push_back(refined[d]->joint->count);
      rows *= sizes.back();
    }
    std::vector<double> values(rows * own, 0.0);
    Odometer odometer(sizes);
    for (std::size_t row = 0; row < rows; ++row) {
      double* to = values.data() + row * own;
      for (std::size_t g = 0; g < groups.size(); ++g) {
        std::size_t at = 0;
        for (std::size_t d = 0; d < arity; ++d) {
          at = at * groups[g].classes[d]->count + refined[d]->part[g][odometer.at(d)];
        }
        const double* from = groups[g].table->values->data() + at * groups[g].own->count;
        if (refined[arity]->same[g] != 0) {
          add_to(to, from, own);
          continue;
        }
        const std::uint16_t* part = refined[arity]->part[g].data();
        for (std::size_t c = 0; c < own; ++c) {
          to[c] += from[part[c]];
        }
      }
      odometer.step();
    }
    return values;
  }

  JoinedRef join(int v, const std::vector<std::size_t>& ids, const std::vector<int>& neighbours) {
    std::vector<double> own = *network_.unary[static_cast<std::size_t>(v)];
    std::map<std::vector<int>, std::vector<Group>> by_scope;
    for (const std::size_t f : ids) {
      Group group = group_of(v, f, neighbours);
      if (group.scope.empty()) {
        for (std::size_t c = 0; c < own.size(); ++c) {
          own[c] += (*group.table->values)[group.own->of[c]];
        }
      } else {
        by_scope[group.scope].push_back(std::move(group));
      }
    }
    auto joined = std::make_shared<Joined>();
    if (by_scope.empty()) {
      joined->table = number(std::vector<double>{*std::min_element(own.begin(), own.end())});
      return joined;
    }
    // The right side of the product is one table; the left side adds up its rows as it goes.
    std::vector<ScopeCells> scopes;
    for (const auto& [scope, alike] : by_scope) {
      double cells = 1;
      for (const Group& group : alike) {
        cells = std::max(cells, static_cast<double>(group.cells()));
      }
      scopes.push_back({scope, cells});
    }
    const int last = widest(scopes);
    std::optional<Group> right;
    std::vector<Group> left;
    for (auto& [scope, alike] : by_scope) {
      if (last >= 0 && scope == scopes[static_cast<std::size_t>(last)].scope) {
        right = merge(alike);
      } else {
        std::move(alike.begin(), alike.end(), std::back_inserter(left));
      }
    }
    multiply(left, right ? &*right : nullptr, own, *joined);
    return joined;
  }

  /// What the rows of a product are made of: all groups but the last one.
  struct Rows {
    std::vector<const Group*> groups;
    std::vector<int> scope;
    std::vector<RefinementRef> refined;              ///< by scope variable
    std::vector<std::vector<int>> input;             ///< by group and its dimension: in `refined`
    std::vector<std::vector<std::size_t>> variable;  ///< by group and its dimension: in `scope`
    std::size_t count = 1;
  };

  Rows rows_of(const std::vector<Group>& groups) {
    Rows rows;
    std::map<int, std::vector<ClassesRef>> classes;
    for (const Group& group : groups) {
      rows.groups.push_back(&group);
      rows.input.emplace_back();
      for (std::size_t d = 0; d < group.scope.size(); ++d) {
        std::vector<ClassesRef>& seen = classes[group.scope[d]];
        rows.input.back().push_back(static_cast<int>(seen.size()));
        seen.push_back(group.classes[d]);
      }
    }
    for (const auto& [w, seen] : classes) {
      rows.scope.push_back(w);
      rows.refined.push_back(refine(seen));
      rows.count *= rows.refined.back()->joint->count;
    }
    for (const Group* group : rows.groups) {
      rows.variable.emplace_back();
      for (const int w : group->scope) {
        rows.variable.back().push_back(static_cast<std::size_t>(
            std::find(rows.scope.begin(), rows.scope.end(), w) - rows.scope.begin()));
      }
    }
    return rows;
  }

  /// Minimises the sum of the groups, of `right` (none: null) and of `own` over the choices of the
  /// eliminated variable.
  void multiply(const std::vector<Group>& groups,
                const Group* right,
                const std::vector<double>& own,
                Joined& joined) {
    const Rows rows = rows_of(groups);
    std::vector<ClassesRef> seen;
    for (const Group* group : rows.groups) {
      seen.push_back(group->own);
    }
    if (right != nullptr) {
      seen.push_back(right->own);
    }
    const RefinementRef choices = refine(seen);
    std::vector<double> least(choices->joint->count, kInfinity);
    for (std::size_t c = 0; c < own.size(); ++c) {
      double& entry = least[choices->joint->of[c]];
      entry = std::min(entry, own[c]);
    }
    const std::size_t depth = right == nullptr ? 1 : right->own->count;
    const std::uint16_t* to = right == nullptr ? nullptr : choices->part.back().data();
    if (right != nullptr && rows.groups.empty()) {
      joined.scope = right->scope;
      joined.classes = right->classes;
      joined.table = number(least_of_rows(*right, *choices, least));
      return;
    }
    std::vector<double> left(rows.count * depth, kInfinity);
    std::vector<std::size_t> sizes;
    for (const RefinementRef& refined : rows.refined) {
      sizes.push_back(refined->joint->count);
    }
    Odometer odometer(sizes);
    std::vector<double> sum(least.size());
    const bool each = right != nullptr && choices->same.back() != 0;
    for (std::size_t row = 0; row < rows.count; ++row) {
      sum = least;
      add_row(rows, *choices, odometer, sum);
      if (each) {
        std::copy(sum.begin(), sum.end(), left.data() + row * depth);
      } else {
        lower_classes(sum, to, left.data() + row * depth);
      }
      odometer.step();
    }
    joined.scope = rows.scope;
    for (const RefinementRef& refined : rows.refined) {
      joined.classes.push_back(refined->joint);
    }
    if (right != nullptr) {
      joined.scope.insert(joined.scope.end(), right->scope.begin(), right->scope.end());
      joined.classes.insert(joined.classes.end(), right->classes.begin(), right->classes.end());
    }
    joined.table =
        number(right == nullptr ? std::move(left) : min_plus(left, *right->table->values, depth));
  }

  /// The product of one group and a vector.
  static std::vector<double> least_of_rows(const Group& group,
                                           const Refinement& choices,
                                           const std::vector<double>& least) {
    const std::size_t depth = group.own->count;
    std::vector<double> of_class(depth, kInfinity);
    for (std::size_t c = 0; c < least.size(); ++c) {
      double& entry = of_class[choices.part[0][c]];
      entry = std::min(entry, least[c]);
    }
    std::vector<double> out;
    out.reserve(group.cells());
    for (auto row = group.table->values->begin(); row != group.table->values->end();
         row += static_cast<std::ptrdiff_t>(depth)) {
      out.push_back(least_sum(of_class.data(), &*row, depth));
    }
    return out;
  }

  /// Lowers the entry of each choice's class (`to` null: all are one class).
  static void lower_classes(const std::vector<double>& sum,
                            const std::uint16_t* to,
                            double* entry) {
    if (to == nullptr) {
      *entry = *std::min_element(sum.begin(), sum.end());
      return;
    }
    for (std::size_t c = 0; c < sum.size(); ++c) {
      double& lowest = entry[to[c]];
      lowest = sum[c] < lowest ? sum[c] : lowest;
    }
  }

  static void add_row(const Rows& rows,
                      const Refinement& choices,
                      const Odometer& odometer,
                      std::vector<double>& sum) {
    for (std::size_t g = 0; g < rows.groups.size(); ++g) {
      const Group& group = *rows.groups[g];
      std::size_t at = 0;
      for (std::size_t d = 0; d < group.scope.size(); ++d) {
        const std::size_t variable = rows.variable[g][d];
        const auto input = static_cast<std::size_t>(rows.input[g][d]);
        at = at * group.classes[d]->count +
             rows.refined[variable]->part[input][odometer.at(variable)];
      }
      const double* from = group.table->values->data() + at * group.own->count;
      const std::uint16_t* part = choices.part[g].data();
      if (choices.same[g] != 0) {
        add_to(sum.data(), from, sum.size());
      } else {
        for (std::size_t c = 0; c < sum.size(); ++c) {
          sum[c] += from[part[c]];
        }
      }
    }
  }

  [[nodiscard]] std::vector<int> walk_back() const {
    std::vector<int> choice(factors_of_.size(), 0);
    for (std::size_t t = trail_.size(); t-- > 0;) {
      const auto v = static_cast<std::size_t>(trail_[t].variable);
      std::vector<double> sum = *network_.unary[v];
      for (const std::size_t f : trail_[t].factors) {
        add_known(factors_[f], trail_[t].variable, choice, sum);
      }
      choice[v] = static_cast<int>(std::min_element(sum.begin(), sum.end()) - sum.begin());
    }
    return choice;
  }

  /// Adds to each choice of `v` what a factor says of it when the other variables are known.
  static void add_known(const Factor& factor,
                        int v,
                        const std::vector<int>& choice,
                        std::vector<double>& sum) {
    std::size_t base = 0;
    std::size_t stride = 0;
    std::size_t own = 0;
    for (std::size_t d = 0; d < factor.scope.size(); ++d) {
      const Classes& classes = *factor.classes[d];
      base *= classes.count;
      stride *= classes.count;
      if (factor.scope[d] == v) {
        own = d;
        stride = 1;
      } else {
        base +=
            classes.of[static_cast<std::size_t>(choice[static_cast<std::size_t>(factor.scope[d])])];
      }
    }
    const std::vector<std::uint16_t>& of = factor.classes[own]->of;
    for (std::size_t c = 0; c < sum.size(); ++c) {
      sum[c] += (*factor.table->values)[base + stride * of[c]];
    }
  }

  const ClassNetwork& network_;
  double max_work_;
  double total_ = 0;
  std::uint64_t next_id_ = 1;
  std::vector<Factor> factors_;
  std::vector<std::vector<std::size_t>> factors_of_;
  std::vector<Trail> trail_;
  std::unordered_map<const void*, TableRef> table_by_pointer_;
  std::unordered_map<const void*, ClassesRef> classes_by_pointer_;
  Memo<RefinementRef> refinements_;
  std::size_t remembered_ = 0;
  Memo<TableRef> laid_out_;
  Memo<TableRef> merged_;
  Memo<Situation> situations_;
  std::vector<Seen> seen_;
  std::priority_queue<Entry> queue_;
  std::uint64_t turn_ = 0;
};

}  // namespace

ClassSolution minimise(const ClassNetwork& network, double max_work) {
  return ClassEliminationRun(network, max_work).run();
}

}  // namespace shardplan::problem
