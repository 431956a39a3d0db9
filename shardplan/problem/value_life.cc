// The rules of lower() for one value and one of its readers, as intervals of time. Read `life_of`.
#include "shardplan/problem/value_life.h"

#include <algorithm>

namespace shardplan::problem {

using ir::Phase;

std::vector<Moment> ValueUse::moments() const {
  const auto after = [](Moment moment, Moment step) { return moment < 0 ? moment : moment + step; };
  const Moment settled = Timeline::result(0, result);
  std::vector<Moment> out{made, own_end, after(made, settled)};
  for (const Moment moment : again) {
    out.insert(out.end(), {moment, after(moment, settled)});
  }
  for (const ValueRead& read : reads) {
    out.insert(out.end(), {read.change, read.end, read.view_forward, read.view_update});
    for (const Moment moment : read.again) {
      out.insert(out.end(), {moment, after(moment, Timeline::operand(0, read.operand))});
    }
    out.insert(out.end(), read.view_backward.begin(), read.view_backward.end());
  }
  return out;
}

namespace {

/// From the moment a copy is first needed to the moment it is last read, in one part of the step.
struct Need {
  Moment change = -1;
  Moment end = -1;

  void add(Moment from, Moment to) {
    change = change < 0 ? from : std::min(change, from);
    end = std::max(end, to);
  }
  [[nodiscard]] bool any() const { return change >= 0; }
};

struct Needs {
  Need forward;
  Need backward;
  Need update;
  bool forward_only = false;  ///< the copy of the forward pass is dropped with its reader's results

  [[nodiscard]] Moment last() const { return std::max({forward.end, backward.end, update.end}); }
};

void add_read(const ValueRead& read, std::size_t how, Needs& needs) {
  switch (read.phase) {
    case Phase::kForward: {
      Moment end = std::max(read.end, read.view_forward);
      const bool view_stays = read.view && !read.view_dropped[how];
      if (view_stays) {
        end = std::max({end, read.view_backward[how], read.view_update});
      }
      needs.forward.add(read.change, end);
      needs.forward_only = read.member[how];
      if (read.again[how] >= 0 && !view_stays) {
        needs.backward.add(Timeline::operand(read.again[how], read.operand),
                           std::max(read.again[how], read.view_backward[how]));
      }
      break;
    }
    case Phase::kBackward:
      needs.backward.add(read.change,
                         std::max({read.end, read.view_backward[how], read.view_update}));
      break;
    case Phase::kUpdate:
      needs.update.add(read.change, std::max(read.end, read.view_update));
      break;
  }
}

/// One life of a value: from when it is made (again) to its last use.
class Life {
 public:
  Life(const ValueUse& use, Moment begin, std::pair<Moment, Moment>& original, ValueLife& out)
      : use_(use), original_(original), out_(out) {
    original_ = {begin, begin};
  }

  void read_as_made(Moment end) { original_.second = std::max(original_.second, end); }

  void changed(std::size_t read, const Needs& needs, bool forward, bool backward) {
    Need first = forward ? needs.forward : Need{};
    Need second = backward ? needs.backward : Need{};
    if (first.any() && second.any() && !use_.parameter && !needs.forward_only) {
      first.end = std::max(first.end, second.end);
      second = {};
    }
    add(read, first, use_.made_in == Phase::kUpdate);
    add(read, second, use_.made_in == Phase::kUpdate);
    if (backward) {
      add(read, needs.update, true);
    }
  }

  /// The copy that is made right after the value.
  void settle(Moment end) {
    const Moment at = Timeline::result(original_.first, use_.result);
    read_as_made(at);
    out_.copies.push_back({0, at, std::max(at, end), use_.made_in == Phase::kUpdate});
  }

 private:
  void add(std::size_t read, const Need& need, bool in_update) {
    if (need.any()) {
      read_as_made(need.change);
      out_.copies.push_back({read, need.change, need.end, in_update});
    }
  }

  const ValueUse& use_;
  std::pair<Moment, Moment>& original_;
  ValueLife& out_;
};

}  // namespace

ValueLife life_of(const ValueUse& use,
                  int made,
                  std::span<const int> layouts,
                  bool no_larger,
                  int producer,
                  int reader) {
  const auto from = static_cast<std::size_t>(producer);
  const auto to = static_cast<std::size_t>(reader);
  ValueLife out;
  const bool dropped = use.dropped[from];
  const bool twice = dropped && use.again[from] >= 0;
  Life first(use, use.made, out.original[0], out);
  std::pair<Moment, Moment> none{-1, -2};
  Life second(use, use.again[from], twice ? out.original[1] : none, out);
  (dropped ? second : first).read_as_made(use.own_end);

  const bool same = std::all_of(
      layouts.begin(), layouts.end(), [&](int layout) { return layout == layouts.front(); });
  const bool settled = use.settles && same && layouts.front() != made && no_larger;
  std::vector<bool> seen(layouts.size(), false);
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    if (seen[i]) {
      continue;
    }
    Needs needs;
    for (std::size_t k = i; k < layouts.size(); ++k) {
      if (use.reads[k].reader == use.reads[i].reader && layouts[k] == layouts[i]) {
        seen[k] = true;
        add_read(use.reads[k], to, needs);
      }
    }
    if (settled) {
      first.settle(dropped ? needs.forward.end : needs.last());
      if (twice) {
        second.settle(std::max(needs.backward.end, needs.update.end));
      }
    } else if (layouts[i] == made) {
      first.read_as_made(dropped ? needs.forward.end : needs.last());
      second.read_as_made(std::max(needs.backward.end, needs.update.end));
    } else if (dropped) {
      first.changed(i, needs, true, false);
      if (twice) {
        second.changed(i, needs, false, true);
      }
    } else {
      first.changed(i, needs, true, true);
    }
  }
  return out;
}

}  // namespace shardplan::problem
