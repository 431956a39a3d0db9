// DAPPLE: A Pipelined Data Parallel Approach for Training Large Models (Fan et al., PPoPP 2021).
//
// A plan is judged by the latency L of one batch of M microbatches under early-backward scheduling.
// Transfers between stages count as stages of their own. With the pivot Q, the stage with the
// fewest bubbles:  L = sum of F up to Q  +  (M - 1)(F_Q + B_Q)  +  the longest of what each stage
// still does after that: its backward pass behind Q's and its all-reduce. Read latency().
//
// The search begins with all layers in one stage on all devices, which is plain data parallelism,
// and splits the last stage again and again: the first part gets m' devices by one of three
// placements (fresh machines first, machines in use first, spread over all), the second part the
// rest. Of all partial plans that end at the same state with the same devices in use, the
// `kKept` best are kept, each judged with the rest as one stage. Read Search::split.
//
// Costs as in the published code: an all-reduce of P bytes over n replicas takes 2P(n-1)/n at n/2
// times the bandwidth within a server, or at the collective bandwidth between servers; a transfer
// goes at the bandwidth within the server, or by the share of senders on other servers at the
// bandwidth between them.
// Deviations: kKept plans a state where the paper keeps one; deterministic ties; plain data
// parallelism may be the answer (the published code never returns it); stages need not leave equal
// replicas; at most kMostPlans are judged. As published, memory is not checked.

#include "shardplan/planners/pipeline/dapple2021.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <numeric>

#include "shardplan/planners/pipeline/cut_states.h"
#include "shardplan/problem/pipeline_objectives.h"
#include "shardplan/solvers/budget.h"

namespace shardplan::planners {
namespace {

constexpr int kMostStates = 5'000;
constexpr std::size_t kKept = 4;
constexpr int kMostDevices = 256;
constexpr std::int64_t kMostPlans = 1'000'000;  // to be judged, first splits first

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

/// Devices by server: how many of each.
using Devices = std::vector<int>;

int count(const Devices& devices) {
  return std::accumulate(devices.begin(), devices.end(), 0);
}

struct Network {
  int servers = 1;
  int of_server = 1;      // devices
  double near = 0;        // bandwidth within a server
  double far = 0;         // between servers
  double collective = 0;  // of collectives between servers
  double units = 1;       // of time, a second

  [[nodiscard]] double all_reduce(double bytes, const Devices& devices) const {
    const double n = count(devices);
    const auto in_use =
        devices.size() - at(static_cast<int>(std::count(devices.begin(), devices.end(), 0)));
    const double bandwidth = in_use > 1 ? collective : near * n / 2;
    return n < 2 ? 0 : units * 2 * bytes * (n - 1) / n / bandwidth;
  }

  [[nodiscard]] double transfer(double bytes, const Devices& from, const Devices& to) const {
    int target = -1;
    for (std::size_t server = 0; server < to.size(); ++server) {
      if (to[server] > 0) {
        if (target >= 0) {
          return units * bytes / collective;
        }
        target = static_cast<int>(server);
      }
    }
    const int away = count(from) - from[at(target)];
    return units * (away == 0 ? bytes / near : bytes * away / count(from) / far);
  }
};

/// A computation or transfer that every microbatch passes.
struct Step {
  double forward = 0;
  double backward = 0;
  double all_reduce = -1;  // transfers have none
};

double latency(const std::vector<Step>& steps, double microbatches) {
  const auto last = static_cast<int>(steps.size()) - 1;
  const auto steady = [&](int a) {
    return (microbatches - 1) * (steps[at(a)].forward + steps[at(a)].backward);
  };
  int pivot = last;
  double between = 0;  // of the steps behind `a` and before the pivot
  for (int a = last - 1; a >= 0; --a) {
    if (steady(a) > steady(pivot) + between) {
      pivot = a;
      between = 0;
    } else {
      between += steps[at(a)].forward + steps[at(a)].backward;
    }
  }
  double warm_up = 0;
  for (int a = 0; a <= pivot; ++a) {
    warm_up += steps[at(a)].forward;
  }
  double ending = 0;
  double backward = 0;
  for (int a = pivot; a >= 0; --a) {
    backward += steps[at(a)].backward;
    ending = std::max(ending, backward + std::max(0.0, steps[at(a)].all_reduce));
  }
  backward = 0;
  for (int a = pivot + 1; a <= last; ++a) {
    ending = std::max(ending, steps[at(a)].all_reduce - backward);
    backward += steps[at(a)].backward;
  }
  return warm_up + steady(pivot) + ending;
}

/// The first stages of a plan.
struct Partial {
  std::shared_ptr<const Partial> before{};
  int from = 0;  // states
  int to = 0;
  Devices devices{};          // of the last of these stages
  Devices used{};             // of all of them
  std::vector<Step> steps{};  // of all of them, transfers included, without the one out of the last
  double latency = 0;         // with the rest as one stage
};

class Search {
 public:
  Search(const CutStates& states,
         const Network& network,
         double microbatches,
         const solvers::Budget& budget)
      : states_(states), network_(network), microbatches_(microbatches), budget_(budget) {}

  /// The best plan: its first stages; the last stage has all that is left.
  Partial run() {
    auto start = std::make_shared<Partial>();
    start->used.assign(at(network_.servers), 0);
    start->latency = latency({stage(0, states_.last(), rest(start->used))}, microbatches_);
    best_ = *start;
    kept_.resize(at(states_.count()));
    kept_[0][start->used] = {start};
    for (int state = 0; state < states_.last() && !budget_.exhausted(); ++state) {
      for (const auto& [used, partials] : kept_[at(state)]) {
        for (const std::shared_ptr<const Partial>& partial : partials) {
          split(partial);
        }
      }
      kept_[at(state)].clear();
    }
    return best_;
  }

  [[nodiscard]] Devices rest(const Devices& used) const {
    Devices left = used;
    for (int& devices : left) {
      devices = network_.of_server - devices;
    }
    return left;
  }

  [[nodiscard]] Step stage(int from, int to, const Devices& devices) const {
    const double replicas = count(devices);
    const double forward = states_.forward_time(to) - states_.forward_time(from);
    const double time = states_.time(to) - states_.time(from);
    return {
        forward / replicas,
        (time - forward) / replicas,
        network_.all_reduce(states_.parameter_bytes(to) - states_.parameter_bytes(from), devices)};
  }

 private:
  /// By the three placements, without repetitions.
  [[nodiscard]] std::vector<Devices> placements(const Devices& used, int devices) const {
    const Devices free = rest(used);
    std::vector<Devices> all;
    for (const bool fresh : {true, false}) {
      Devices chosen(free.size(), 0);
      int missing = devices;
      for (const bool first : {true, false}) {
        for (std::size_t server = 0; server < free.size(); ++server) {
          if ((used[server] == 0) == (fresh == first)) {
            chosen[server] = std::min(missing, free[server]);
            missing -= chosen[server];
          }
        }
      }
      all.push_back(std::move(chosen));
    }
    Devices spread(free.size(), 0);
    for (int missing = devices; missing > 0;) {
      for (std::size_t server = 0; server < free.size() && missing > 0; ++server) {
        if (spread[server] < free[server]) {
          ++spread[server];
          --missing;
        }
      }
    }
    all.push_back(std::move(spread));
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }

  /// Cuts the last stage of `partial` (all that is left) in two, in every way that may be better
  /// than the best plan: no stage's time can be hidden, M - 1 times over.
  void split(const std::shared_ptr<const Partial>& partial) {
    const int free = count(rest(partial->used));
    const double steady = microbatches_ - 1;
    for (const Step& step : partial->steps) {
      if (steady * (step.forward + step.backward) >= best_.latency) {
        return;
      }
    }
    for (int replicas = 1; replicas < free; ++replicas) {
      for (const Devices& devices : placements(partial->used, replicas)) {
        Devices used = partial->used;
        std::transform(used.begin(), used.end(), devices.begin(), used.begin(), std::plus<>());
        const Devices left = rest(used);
        for (int to = partial->to + 1; to < states_.last(); ++to) {
          const double time = states_.time(to) - states_.time(partial->to);
          if (steady * time / replicas >= best_.latency) {
            break;
          }
          if (plans_ >= kMostPlans || stopped()) {
            return;
          }
          const double behind = states_.time(states_.last()) - states_.time(to);
          if (steady * behind / (free - replicas) >= best_.latency ||
              !states_.contains(to, partial->to)) {
            continue;
          }
          keep(partial, to, devices, used, left);
        }
      }
    }
  }

  [[nodiscard]] bool stopped() {
    constexpr std::int64_t kLooks = 1 << 8;
    stopped_ = stopped_ || (++looks_ % kLooks == 0 && budget_.exhausted());
    return stopped_;
  }

  void keep(const std::shared_ptr<const Partial>& before,
            int to,
            const Devices& devices,
            const Devices& used,
            const Devices& left) {
    ++plans_;
    Partial next;
    next.before = before;
    next.from = before->to;
    next.to = to;
    next.devices = devices;
    next.used = used;
    next.steps = before->steps;
    if (!next.steps.empty()) {
      next.steps.push_back(move(before->to, before->devices, devices));
    }
    next.steps.push_back(stage(before->to, to, devices));
    std::vector<Step> whole = next.steps;
    whole.push_back(move(to, devices, left));
    whole.push_back(stage(to, states_.last(), left));
    next.latency = latency(whole, microbatches_);
    if (next.latency < best_.latency) {
      best_ = next;
    }
    auto& kept = kept_[at(to)][used];
    const auto place = std::upper_bound(
        kept.begin(), kept.end(), next.latency, [](double value, const auto& other) {
          return value < other->latency;
        });
    if (place - kept.begin() < static_cast<std::ptrdiff_t>(kKept)) {
      kept.insert(place, std::make_shared<const Partial>(std::move(next)));
      kept.resize(std::min(kept.size(), kKept));
    }
  }

  [[nodiscard]] Step move(int state, const Devices& from, const Devices& to) const {
    const double bytes = states_.cut_bytes(state);
    return {network_.transfer(bytes, from, to), network_.transfer(bytes, to, from), -1};
  }

  const CutStates& states_;
  const Network& network_;
  double microbatches_;
  const solvers::Budget& budget_;
  Partial best_{};
  std::int64_t plans_ = 0;  // that were judged
  std::int64_t looks_ = 0;  // at splits
  bool stopped_ = false;
  /// By state and devices in use, the best first.
  std::vector<std::map<Devices, std::vector<std::shared_ptr<const Partial>>>> kept_{};
};

Result<Network> read_network(const LayerRequest& request) {
  const problem::LayerMachines& machines = request.machines;
  if (machines.hierarchy.size() > 2) {
    return unsupported("dapple knows devices of a server and servers, no third level",
                       "--hierarchy");
  }
  if (machines.devices > kMostDevices) {
    return unsupported(fmt::format("dapple places single devices, {} at most; there are {}",
                                   kMostDevices,
                                   machines.devices),
                       "--devices");
  }
  if (machines.microbatches < 1) {
    return invalid_input("dapple needs the microbatches of a batch", "--microbatches");
  }
  Network network;
  network.units = request.graph.units_per_transfer_second;
  if (machines.hierarchy.size() == 2) {
    network.of_server = machines.hierarchy[0];
    network.servers = machines.hierarchy[1];
    network.near = machines.bandwidths[0];
    network.far = machines.bandwidths[1];
  } else {
    network.servers = machines.devices;
    network.far = machines.bandwidths.empty() ? machines.bandwidth : machines.bandwidths[0];
    network.near = network.far;
  }
  const double factor = std::stod(request.options.at("collective"));
  if (network.far <= 0 || factor <= 0) {
    return invalid_input("dapple needs a positive bandwidth", "--bandwidth");
  }
  network.collective = factor * network.far;
  return network;
}

/// Numbers of devices: the first free ones of each server.
std::vector<int> numbers(const Devices& devices, const Network& network, Devices& taken) {
  std::vector<int> all;
  for (std::size_t server = 0; server < devices.size(); ++server) {
    for (int i = 0; i < devices[server]; ++i) {
      all.push_back(static_cast<int>(server) * network.of_server + taken[server]);
      ++taken[server];
    }
  }
  return all;
}

Result<LayerPlanResult> solve(const LayerRequest& request) {
  const solvers::SolveOptions options = limits_of(request);
  const solvers::Budget budget(options);
  SHARDPLAN_ASSIGN_OR_RETURN(const Network network, read_network(request));
  SHARDPLAN_ASSIGN_OR_RETURN(const CutStates states,
                             CutStates::create(request.graph, "dapple", kMostStates));
  Search search(states, network, static_cast<double>(request.machines.microbatches), budget);
  const Partial best = search.run();
  std::vector<const Partial*> parts;
  for (const Partial* part = &best; part->before; part = part->before.get()) {
    parts.push_back(part);
  }
  std::reverse(parts.begin(), parts.end());
  LayerPlanResult result;
  result.status = SearchStatus::kFeasible;
  result.limit = search_limit(budget.limit());
  result.objective = best.latency;
  result.best.schedule = "dapple";
  result.best.microbatches = request.machines.microbatches;
  Devices taken(at(network.servers), 0);
  const auto append = [&](int from, int to, const Devices& devices) {
    problem::LayerStage& stage = result.best.stages.emplace_back();
    stage.layers = states.layers(from, to);
    stage.replicas = count(devices);
    stage.devices = numbers(devices, network, taken);
    const Step step = search.stage(from, to, devices);
    stage.time = step.forward + step.backward;
  };
  for (const Partial* part : parts) {
    append(part->from, part->to, part->devices);
  }
  append(best.to, states.last(), search.rest(best.used));
  return result;
}

}  // namespace

LayerPlannerInfo dapple_planner() {
  return {"dapple",
          "Fan et al., DAPPLE: A Pipelined Data Parallel Approach for Training Large Models",
          2021,
          "replicated stages and their devices, for the latency of one synchronous batch",
          "memory, tensor parallelism, recomputation, more than two levels of machines",
          "a batch",
          {{"collective",
            "3",
            {},
            "how many times the bandwidth between servers collectives reach; 3 as published"}},
          &solve,
          &problem::dapple_objective};
}

}  // namespace shardplan::planners
