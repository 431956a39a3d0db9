// Variable elimination over classes of choices. Read `ClassEliminationRun::run` (cheapest variable
// first), `join` (all that is known of a variable, minimised over its choices) and `multiply`.
//
// A join depends only on the tables and classes that meet, so it is remembered by their numbers:
// the equal layers of a network cost one join and a few look-ups each. Nothing is stored to walk
// back: the best choice is found again once the neighbours are known.
#include "shardplan/solvers/class_elimination.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <queue>
#include <set>
#include <unordered_map>
#include <utility>

#include "shardplan/solvers/min_plus.h"

namespace shardplan::solvers {
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
  CostTable values;
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

/// A number of mixed digits; the last one runs fastest.
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
  ClassEliminationRun(const ClassNetwork& network, const ClassOptions& options)
      : options_(options), unary_(network.unary), originals_(network.unary.size()) {
    factors_of_.resize(originals_);
    for (std::size_t v = 0; v < originals_; ++v) {
      original_.push_back(static_cast<int>(v));
    }
    for (const ClassNetwork::Factor& factor : network.factors) {
      add(factor);
    }
  }

  ClassSolution run() {
    ClassSolution solution;
    seen_.resize(originals_);
    for (std::size_t v = 0; v < originals_; ++v) {
      look_at(static_cast<int>(v));
    }
    while (!queue_.empty()) {
      const Entry entry = queue_.top();
      queue_.pop();
      const auto index = static_cast<std::size_t>(entry.variable);
      if (seen_[index].done || entry.turn != seen_[index].turn) {
        continue;
      }
      const bool splits = std::isfinite(options_.split_work);
      const bool is_new = !seen_[index].key->joined;
      const bool large = is_new && seen_[index].key->entries > room();
      if (splits && is_new && (large || seen_[index].key->sums > options_.split_work) &&
          split(entry.variable)) {
        continue;
      }
      // A variable with one neighbourhood is no larger once it is joined.
      if (seen_[index].key->sums > options_.max_work || (large && !splits)) {
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
    solution.lower_bound = total_;
    solution.choice = walk_back();
    return solution;
  }

  [[nodiscard]] bool was_split() const { return unary_.size() > originals_; }

 private:
  [[nodiscard]] std::size_t size(int v) const {
    return unary_[static_cast<std::size_t>(v)]->size();
  }

  // ---- Numbers of tables and classes ----

  TableRef number(CostTable values) {
    return std::make_shared<const Table>(Table{next_id_++, std::move(values)});
  }
  TableRef number(std::vector<double> values) {
    return number(std::make_shared<const std::vector<double>>(std::move(values)));
  }
  TableRef table_of(const CostTable& cost) {
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

  /// The factors over one set of neighbours, and in how many classes they see each.
  struct Part {
    std::vector<int> scope;
    std::vector<double> classes;  ///< by scope variable, estimated
    double own = 1;
  };

  [[nodiscard]] std::vector<Part> parts_of(int v) const {
    std::map<std::vector<int>, std::map<int, double>> known;  // scope -> variable -> classes
    for (const std::size_t f : factors_of_[static_cast<std::size_t>(v)]) {
      const Factor& factor = factors_[f];
      std::vector<int> scope = factor.scope;
      std::erase(scope, v);
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
      Part part{scope, {}, counts.at(v)};
      for (const int w : scope) {
        part.classes.push_back(counts.at(w));
      }
      parts.push_back(std::move(part));
    }
    return parts;
  }

  /// A product: its right side is what is known over one scope (and within it), its rows are all
  /// else. Neighbours on both sides are gone through one by one.
  struct Sides {
    int right = -1;      ///< part whose scope is that of the right side; -1 = no product
    double rows = 1;     ///< classes of the neighbours of the left side
    double columns = 1;  ///< classes of those of the right side alone
  };

  static bool within(const std::vector<int>& a, const std::vector<int>& b) {
    return std::includes(b.begin(), b.end(), a.begin(), a.end());
  }

  [[nodiscard]] static Sides sides_of(const std::vector<Part>& parts, std::size_t right) {
    std::map<int, double> left;
    for (const Part& part : parts) {
      for (std::size_t d = 0; d < part.scope.size() && !within(part.scope, parts[right].scope);
           ++d) {
        double& count = left.try_emplace(part.scope[d], 1.0).first->second;
        count = std::max(count, part.classes[d]);
      }
    }
    Sides sides{static_cast<int>(right), 1, 1};
    for (const auto& [w, count] : left) {
      sides.rows *= count;
    }
    for (std::size_t d = 0; d < parts[right].scope.size(); ++d) {
      sides.columns *= left.contains(parts[right].scope[d]) ? 1 : parts[right].classes[d];
    }
    return sides;
  }

  /// The product with most columns.
  [[nodiscard]] static Sides best_sides(const std::vector<Part>& parts) {
    Sides best;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Sides sides = sides_of(parts, i);
      if (sides.columns > best.columns) {
        best = sides;
      }
    }
    if (best.right < 0) {
      std::map<int, double> all;
      for (const Part& part : parts) {
        for (std::size_t d = 0; d < part.scope.size(); ++d) {
          double& count = all.try_emplace(part.scope[d], 1.0).first->second;
          count = std::max(count, part.classes[d]);
        }
      }
      for (const auto& [w, count] : all) {
        best.rows *= count;
      }
    }
    return best;
  }

  /// Entries that one more table may have.
  [[nodiscard]] double room() const {
    constexpr double kPart = 0.25;
    return kPart * (options_.max_entries - made_entries_);
  }

  /// What meets at a variable: equal for the variables of equal layers.
  struct Situation {
    double sums = -1;          ///< estimated for the join
    double entries = 0;        ///< of its table, estimated
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
      estimate(v, situation);
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

  /// About how many sums joining `v` takes, and how many entries the result has.
  void estimate(int v, Situation& situation) const {
    const std::vector<Part> parts = parts_of(v);
    const auto choices = static_cast<double>(size(v));
    if (parts.empty()) {
      situation.sums = choices;
      return;
    }
    const Sides sides = best_sides(parts);
    const double sums = sides.rows * choices * static_cast<double>(parts.size());
    situation.sums = sums;
    situation.entries = sides.rows * sides.columns;
    if (sides.right >= 0) {
      const Part& right = parts[static_cast<std::size_t>(sides.right)];
      const double product = sides.rows * right.own * sides.columns;
      situation.sums = parts.size() == 1 ? product : sums + product * kProductOfSum;
    }
  }

  // ---- Splitting ----

  /// Takes the factors over one set of neighbours off a variable, to a copy of it, and forgets that
  /// the two are one: a lower bound remains. False when all are over one set.
  bool split(int v) {
    const auto index = static_cast<std::size_t>(v);
    std::vector<int> first;  // scope of the first factor
    std::vector<std::size_t> taken;
    for (const std::size_t f : factors_of_[index]) {
      std::vector<int> scope = factors_[f].scope;
      std::erase(scope, v);
      std::sort(scope.begin(), scope.end());
      if (first.empty()) {
        first = scope;
      }
      if (!scope.empty() && scope == first) {
        taken.push_back(f);
      }
    }
    if (taken.size() == factors_of_[index].size() || taken.empty()) {
      return false;
    }
    const int copy = static_cast<int>(unary_.size());
    const CostTable half = half_of(unary_[index]);
    unary_[index] = half;
    unary_.push_back(half);
    original_.push_back(original_[index]);
    factors_of_.push_back(taken);
    seen_.emplace_back();
    for (const std::size_t f : taken) {
      std::erase(factors_of_[index], f);
      std::replace(factors_[f].scope.begin(), factors_[f].scope.end(), v, copy);
    }
    look_at(v);
    look_at(copy);
    for (const int w : neighbours_of(copy)) {
      look_at(w);
    }
    return true;
  }

  CostTable half_of(const CostTable& table) {
    CostTable& known = halves_[table.get()];
    if (!known) {
      std::vector<double> values = *table;
      for (double& value : values) {
        value /= 2;
      }
      kept_.push_back(table);
      known = std::make_shared<const std::vector<double>>(std::move(values));
    }
    return known;
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
    std::vector<int> neighbours = neighbours_of(v);
    JoinedRef& joined = situation.joined;
    if (!joined) {
      joined = join(v, ids, neighbours);
      made_entries_ += static_cast<double>(joined->table->values->size());
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
    Key key{table_of(unary_[static_cast<std::size_t>(v)])->id};
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
    TableRef made = number(transposed(*table->values, sizes, order));
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
    std::vector<double> values(from.size());
    // Columns in strips, so that the lines of the source that a strip touches stay in the cache.
    constexpr std::size_t kStrip = 8;
    for (std::size_t first = 0; first < inner; first += kStrip) {
      const std::size_t end = std::min(first + kStrip, inner);
      Odometer odometer(outer);
      for (std::size_t row = 0; row < from.size() / inner; ++row) {
        std::size_t source = 0;
        for (std::size_t d = 0; d < outer.size(); ++d) {
          source += odometer.at(d) * stride[d];
        }
        for (std::size_t c = first; c < end; ++c) {
          values[row * inner + c] = from[source + c * stride.back()];
        }
        odometer.step();
      }
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

  /// Adds up groups over some neighbours `scope`, or part of them.
  Group merge(const std::vector<Group>& groups, const std::vector<int>& scope) {
    if (groups.size() == 1) {
      return groups.front();
    }
    Key key;
    for (const Group& group : groups) {
      key.push_back(group.table->id);
      for (std::size_t d = 0; d < group.scope.size(); ++d) {
        key.push_back(static_cast<std::uint64_t>(group.scope[d]));
        key.push_back(group.classes[d]->id);
      }
      key.push_back(group.own->id);
    }
    const Rows rows = rows_of(groups, scope);
    std::vector<ClassesRef> own;
    own.reserve(groups.size());
    for (const Group& group : groups) {
      own.push_back(group.own);
    }
    const RefinementRef choices = refine(own);
    Group merged{rows.scope, {}, choices->joint, nullptr};
    for (const RefinementRef& refined : rows.refined) {
      merged.classes.push_back(refined->joint);
    }
    TableRef& slot = merged_[key];
    merged.table = slot;
    if (!merged.table) {
      std::vector<double> values(rows.count * choices->joint->count);
      Odometer odometer(rows.sizes());
      std::vector<double> sum(choices->joint->count);
      for (std::size_t row = 0; row < rows.count; ++row) {
        std::fill(sum.begin(), sum.end(), 0.0);
        add_row(rows, *choices, odometer, sum);
        std::copy(sum.begin(), sum.end(), values.data() + row * sum.size());
        odometer.step();
      }
      merged.table = number(std::move(values));
      remember(slot, merged.table);
    }
    return merged;
  }

  JoinedRef join(int v, const std::vector<std::size_t>& ids, const std::vector<int>& neighbours) {
    std::vector<double> own = *unary_[static_cast<std::size_t>(v)];
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
    std::vector<Part> parts;
    for (const auto& [scope, alike] : by_scope) {
      Part part{scope, std::vector<double>(scope.size(), 1.0), 1};
      for (const Group& group : alike) {
        for (std::size_t d = 0; d < scope.size(); ++d) {
          part.classes[d] = std::max(part.classes[d], static_cast<double>(group.classes[d]->count));
        }
      }
      parts.push_back(std::move(part));
    }
    const int right = best_sides(parts).right;
    std::vector<Group> of_right;
    std::vector<Group> left;
    for (auto& [scope, alike] : by_scope) {
      const bool is_right =
          right >= 0 && within(scope, parts[static_cast<std::size_t>(right)].scope);
      std::move(alike.begin(), alike.end(), std::back_inserter(is_right ? of_right : left));
    }
    if (of_right.empty()) {
      multiply(left, nullptr, own, *joined);
    } else {
      const Group merged = merge(of_right, parts[static_cast<std::size_t>(right)].scope);
      multiply(left, &merged, own, *joined);
    }
    return joined;
  }

  /// Rows over the neighbours of some groups.
  struct Rows {
    std::vector<const Group*> groups;
    std::vector<int> scope;
    std::vector<RefinementRef> refined;              ///< by scope variable
    std::vector<std::vector<int>> input;             ///< by group and its dimension: in `refined`
    std::vector<std::vector<std::size_t>> variable;  ///< by group and its dimension: in `scope`
    std::size_t count = 1;

    [[nodiscard]] std::vector<std::size_t> sizes() const {
      std::vector<std::size_t> out;
      out.reserve(refined.size());
      for (const RefinementRef& each : refined) {
        out.push_back(each->joint->count);
      }
      return out;
    }
  };

  /// Those in `first` come first.
  Rows rows_of(const std::vector<Group>& groups, const std::vector<int>& first) {
    Rows rows;
    std::map<std::pair<bool, int>, std::vector<ClassesRef>> classes;
    for (const Group& group : groups) {
      rows.groups.push_back(&group);
      rows.input.emplace_back();
      for (std::size_t d = 0; d < group.scope.size(); ++d) {
        const int w = group.scope[d];
        std::vector<ClassesRef>& seen =
            classes[{std::find(first.begin(), first.end(), w) == first.end(), w}];
        rows.input.back().push_back(static_cast<int>(seen.size()));
        seen.push_back(group.classes[d]);
      }
    }
    for (const auto& [w, seen] : classes) {
      rows.scope.push_back(w.second);
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

  /// The right side of a product with its neighbours that the left side has too in the left side's
  /// classes, which come first: one matrix (columns by choices' classes) for each of their states.
  struct Columns {
    std::vector<int> scope;  ///< of the columns
    std::vector<ClassesRef> classes;
    std::size_t count = 1;
    std::vector<std::vector<std::size_t>> rows{};  ///< by state and column: row of the right table
  };

  /// `rows.scope` begins with the `shared` neighbours. Their classes in `rows` tell apart what the
  /// right side tells apart.
  static Columns columns_of(const Group& right, const Rows& rows, std::size_t shared) {
    Columns columns;
    std::vector<std::size_t> stride(right.scope.size(), 1);
    for (std::size_t d = right.scope.size(); d-- > 1;) {
      stride[d - 1] = stride[d] * right.classes[d]->count;
    }
    std::vector<std::size_t> offset{0};
    for (std::size_t d = 0; d < right.scope.size(); ++d) {
      const auto end = rows.scope.begin() + static_cast<std::ptrdiff_t>(shared);
      if (std::find(rows.scope.begin(), end, right.scope[d]) != end) {
        continue;
      }
      columns.scope.push_back(right.scope[d]);
      columns.classes.push_back(right.classes[d]);
      columns.count *= right.classes[d]->count;
      std::vector<std::size_t> next;
      for (const std::size_t base : offset) {
        for (std::size_t c = 0; c < right.classes[d]->count; ++c) {
          next.push_back(base + c * stride[d]);
        }
      }
      offset = std::move(next);
    }
    std::vector<std::size_t> states{0};
    for (std::size_t k = 0; k < shared; ++k) {
      const std::size_t d = static_cast<std::size_t>(
          std::find(right.scope.begin(), right.scope.end(), rows.scope[k]) - right.scope.begin());
      const std::vector<std::uint16_t>& part = rows.refined[k]->part.back();
      std::vector<std::size_t> next;
      for (const std::size_t base : states) {
        for (const std::uint16_t c : part) {
          next.push_back(base + c * stride[d]);
        }
      }
      states = std::move(next);
    }
    for (const std::size_t state : states) {
      std::vector<std::size_t>& of_state = columns.rows.emplace_back(offset);
      for (std::size_t& row : of_state) {
        row += state;
      }
    }
    return columns;
  }

  /// Minimises the sum of the groups, of `right` (none: null) and of `own` over the choices of the
  /// eliminated variable.
  void multiply(const std::vector<Group>& groups,
                const Group* right,
                const std::vector<double>& own,
                Joined& joined) {
    std::vector<int> shared;
    for (const Group& group : groups) {
      for (const int w : group.scope) {
        const bool both =
            right != nullptr &&
            std::find(right->scope.begin(), right->scope.end(), w) != right->scope.end();
        if (both && std::find(shared.begin(), shared.end(), w) == shared.end()) {
          shared.push_back(w);
        }
      }
    }
    Rows rows = rows_of(groups, shared);
    if (!shared.empty()) {
      rows = with_classes_of(*right, groups, shared);
    }
    std::vector<ClassesRef> seen;
    seen.reserve(rows.groups.size() + 1);
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
    Odometer odometer(rows.sizes());
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
    if (right == nullptr) {
      joined.table = number(std::move(left));
      return;
    }
    const Columns columns = columns_of(*right, rows, shared.size());
    joined.scope.insert(joined.scope.end(), columns.scope.begin(), columns.scope.end());
    joined.classes.insert(joined.classes.end(), columns.classes.begin(), columns.classes.end());
    joined.table = number(shared.empty() ? min_plus_product(left, *right->table->values, depth)
                                         : products(left, *right, columns, depth));
  }

  /// One product for each state of the neighbours on both sides.
  static std::vector<double> products(const std::vector<double>& left,
                                      const Group& right,
                                      const Columns& columns,
                                      std::size_t depth) {
    const std::size_t states = columns.rows.size();
    const std::size_t entries = left.size() / states;
    std::vector<double> out;
    out.reserve(entries / depth * columns.count * states);
    for (std::size_t state = 0; state < states; ++state) {
      const auto from = left.begin() + static_cast<std::ptrdiff_t>(state * entries);
      const std::vector<double> rows(from, from + static_cast<std::ptrdiff_t>(entries));
      std::vector<double> table;
      table.reserve(columns.count * depth);
      for (const std::size_t row : columns.rows[state]) {
        const auto begin = right.table->values->begin() + static_cast<std::ptrdiff_t>(row * depth);
        table.insert(table.end(), begin, begin + static_cast<std::ptrdiff_t>(depth));
      }
      const std::vector<double> product = min_plus_product(rows, table, depth);
      out.insert(out.end(), product.begin(), product.end());
    }
    return out;
  }

  /// The rows of the left side, whose shared neighbours are told apart as the right side does too:
  /// the classes of the right side are the last input of their refinements.
  Rows with_classes_of(const Group& right,
                       const std::vector<Group>& groups,
                       const std::vector<int>& shared) {
    Rows rows = rows_of(groups, shared);
    rows.count = 1;
    for (std::size_t k = 0; k < rows.scope.size(); ++k) {
      if (k < shared.size()) {
        std::vector<ClassesRef> seen;
        for (const Group& group : groups) {
          for (std::size_t d = 0; d < group.scope.size(); ++d) {
            if (group.scope[d] == rows.scope[k]) {
              seen.push_back(group.classes[d]);
            }
          }
        }
        const auto d = std::find(right.scope.begin(), right.scope.end(), rows.scope[k]);
        seen.push_back(right.classes[static_cast<std::size_t>(d - right.scope.begin())]);
        rows.refined[k] = refine(seen);
      }
      rows.count *= rows.refined[k]->joint->count;
    }
    return rows;
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

  /// Of the copies of a variable the one that was joined last decides.
  [[nodiscard]] std::vector<int> walk_back() const {
    std::vector<int> choice(originals_, -1);
    for (std::size_t t = trail_.size(); t-- > 0;) {
      const auto v = static_cast<std::size_t>(trail_[t].variable);
      int& chosen = choice[static_cast<std::size_t>(original_[v])];
      if (chosen >= 0) {
        continue;
      }
      std::vector<double> sum = *unary_[v];
      for (const std::size_t f : trail_[t].factors) {
        add_known(factors_[f], trail_[t].variable, choice, sum);
      }
      chosen = static_cast<int>(std::min_element(sum.begin(), sum.end()) - sum.begin());
    }
    return choice;
  }

  /// Adds to each choice of `v` what a factor says of it when the other variables are known.
  void add_known(const Factor& factor,
                 int v,
                 const std::vector<int>& choice,
                 std::vector<double>& sum) const {
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
        const int w = original_[static_cast<std::size_t>(factor.scope[d])];
        base += classes.of[static_cast<std::size_t>(choice[static_cast<std::size_t>(w)])];
      }
    }
    const std::vector<std::uint16_t>& of = factor.classes[own]->of;
    for (std::size_t c = 0; c < sum.size(); ++c) {
      sum[c] += (*factor.table->values)[base + stride * of[c]];
    }
  }

  ClassOptions options_;
  std::vector<CostTable> unary_;
  std::size_t originals_;      ///< variables of the network; what follows are copies of them
  std::vector<int> original_;  ///< by variable
  std::unordered_map<const void*, CostTable> halves_;
  std::vector<CostTable> kept_;  ///< so that their addresses stay theirs
  double total_ = 0;
  std::uint64_t next_id_ = 1;
  std::vector<Factor> factors_;
  std::vector<std::vector<std::size_t>> factors_of_;
  std::vector<Trail> trail_;
  std::unordered_map<const void*, TableRef> table_by_pointer_;
  std::unordered_map<const void*, ClassesRef> classes_by_pointer_;
  Memo<RefinementRef> refinements_;
  double made_entries_ = 0;
  std::size_t remembered_ = 0;
  Memo<TableRef> laid_out_;
  Memo<TableRef> merged_;
  Memo<Situation> situations_;
  std::vector<Seen> seen_;
  std::priority_queue<Entry> queue_;
  std::uint64_t turn_ = 0;
};

/// Makes a good assignment of a relaxed one.
class Rounding {
 public:
  explicit Rounding(const ClassNetwork& network)
      : network_(network), factors_of_(network.unary.size()) {
    for (std::size_t f = 0; f < network.factors.size(); ++f) {
      for (const int v : network.factors[f].scope) {
        factors_of_[static_cast<std::size_t>(v)].push_back(f);
      }
    }
  }

  /// Improves single variables, then finds the optimum over the choices that look best of each.
  void improve(std::vector<int>& choice) const {
    constexpr int kSweeps = 4;
    for (int sweep = 0; sweep < kSweeps && sweep_once(choice); ++sweep) {
    }
    const std::vector<std::vector<int>> keep = best_of_each(choice);
    ClassOptions options;
    options.max_work = kMostWork;
    const ClassSolution best = minimise(restricted(network_, keep), options);
    if (best.solved && best.cost < evaluate(network_, choice)) {
      for (std::size_t v = 0; v < choice.size(); ++v) {
        choice[v] = keep[v][static_cast<std::size_t>(best.choice[v])];
      }
    }
  }

 private:
  static constexpr std::size_t kKept = 12;
  static constexpr double kMostWork = 3e9;

  [[nodiscard]] bool sweep_once(std::vector<int>& choice) const {
    bool any = false;
    for (std::size_t v = 0; v < choice.size(); ++v) {
      const std::vector<double> sum = sums(v, choice);
      const auto best = std::min_element(sum.begin(), sum.end());
      if (*best < sum[static_cast<std::size_t>(choice[v])]) {
        choice[v] = static_cast<int>(best - sum.begin());
        any = true;
      }
    }
    return any;
  }

  /// Costs of a variable's choices when all others stay.
  [[nodiscard]] std::vector<double> sums(std::size_t v, const std::vector<int>& choice) const {
    std::vector<double> sum = *network_.unary[v];
    for (const std::size_t f : factors_of_[v]) {
      const ClassNetwork::Factor& factor = network_.factors[f];
      std::size_t base = 0;
      std::size_t stride = 0;
      const ChoiceClasses* own = nullptr;
      for (std::size_t d = 0; d < factor.scope.size(); ++d) {
        const ChoiceClasses& classes = *factor.classes[d];
        base *= classes.count;
        stride *= classes.count;
        const auto w = static_cast<std::size_t>(factor.scope[d]);
        if (w == v) {
          own = &classes;
          stride = 1;
        } else {
          base += classes.of[static_cast<std::size_t>(choice[w])];
        }
      }
      for (std::size_t c = 0; c < sum.size(); ++c) {
        sum[c] += (*factor.cost)[base + stride * own->of[c]];
      }
    }
    return sum;
  }

  /// By variable: the choices that are best for it or for another one that is alike.
  [[nodiscard]] std::vector<std::vector<int>> best_of_each(const std::vector<int>& choice) const {
    std::map<const void*, std::set<int>> alike;
    for (std::size_t v = 0; v < choice.size(); ++v) {
      const std::vector<double> sum = sums(v, choice);
      std::vector<int> order(sum.size());
      std::iota(order.begin(), order.end(), 0);
      const std::size_t kept = std::min(kKept, order.size());
      std::partial_sort(order.begin(),
                        order.begin() + static_cast<std::ptrdiff_t>(kept),
                        order.end(),
                        [&](int a, int b) {
                          const double first = sum[static_cast<std::size_t>(a)];
                          const double second = sum[static_cast<std::size_t>(b)];
                          return first != second ? first < second : a < b;
                        });
      std::set<int>& known = alike[network_.unary[v].get()];
      known.insert(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept));
      known.insert(choice[v]);
    }
    std::vector<std::vector<int>> keep;
    keep.reserve(choice.size());
    for (const CostTable& unary : network_.unary) {
      const std::set<int>& known = alike[unary.get()];
      keep.emplace_back(known.begin(), known.end());
    }
    return keep;
  }

  const ClassNetwork& network_;
  std::vector<std::vector<std::size_t>> factors_of_;
};

}  // namespace

ClassSolution minimise(const ClassNetwork& network, const ClassOptions& options) {
  ClassEliminationRun run(network, options);
  ClassSolution solution = run.run();
  if (!solution.solved) {
    return solution;
  }
  if (!run.was_split()) {
    solution.cost = solution.lower_bound;
    return solution;
  }
  Rounding(network).improve(solution.choice);
  solution.cost = evaluate(network, solution.choice);
  return solution;
}

}  // namespace shardplan::solvers
