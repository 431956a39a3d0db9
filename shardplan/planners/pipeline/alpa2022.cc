// Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep Learning (Zheng et
// al., OSDI 2022), its inter-operator pass.
//
// Operators (the graph in topological order) are clustered to `layers` runs of about equal work
// with little communication, then the runs are cut into stages on submeshes: (1, 2^k) devices of a
// host, or (n, M) of n whole hosts. For the stage times t_i and B microbatches the latency is sum
// t_i + (B - 1) max t_i; a dynamic programme over (layer, devices), once for each bound on max t_i.
// Memory: constant bytes and as many microbatches in flight as stages remain. Both steps are in
// alpa_stages.h; here is what a stage costs.
//
// The intra-operator pass is the profile's: a submesh of d t devices runs all layers of the stage
// by their choice of degree t (within a host), on d copies; the fastest logical shape that fits is
// taken, with or without recomputation. A stage also takes what it receives and returns, and its
// share of the sum of gradients, 2 (d - 1)/d bytes once a batch, at the bandwidth of its submesh.
// Deviations: bounds on max t_i are not spaced out and not tried one by one (see cut_stages); the
// result is the same optimum. Of more than kMostOperators operators, clusters begin at the ends of
// runs of about equal work only.

#include "shardplan/planners/pipeline/alpa2022.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "shardplan/planners/pipeline/alpa_stages.h"
#include "shardplan/planners/pipeline/equal_stages.h"
#include "shardplan/problem/pipeline_objectives.h"
#include "shardplan/solvers/budget.h"

namespace shardplan::planners {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kImbalance = 0.5;  // of clusters, as published
constexpr int kMostClusters = 128;
constexpr int kMostOperators = 2'000;  // that are clustered one by one

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

/// How a submesh runs a stage.
struct Shape {
  int copies = 1;
  int degree = 1;
  int variant = 0;
};

class Alpa {
 public:
  explicit Alpa(const LayerRequest& request)
      : request_(request),
        options_(limits_of(request)),
        budget_(options_),
        order_(problem::topological_order(request.graph)) {
    const problem::LayerMachines& machines = request.machines;
    const bool hosts = machines.hierarchy.size() == 2;
    host_ = hosts ? machines.hierarchy[0] : machines.devices;
    near_ = machines.bandwidths.empty() ? machines.bandwidth : machines.bandwidths.front();
    far_ = machines.bandwidths.empty() ? machines.bandwidth : machines.bandwidths.back();
    for (int size = 1; size < host_; size *= 2) {
      table_.sizes.push_back(size);
    }
    for (int size = host_; size <= machines.devices; size += host_) {
      table_.sizes.push_back(size);
    }
  }

  LayerPlanResult run() {
    cluster();
    fill();
    LayerPlanResult result;
    const auto microbatches = static_cast<double>(request_.machines.microbatches);
    std::optional<StageCut> cut =
        cut_stages(table_, microbatches, [&] { return budget_.exhausted(); });
    result.limit = search_limit(budget_.limit());
    const bool stopped = result.limit != SearchLimit::kNone;
    cut = stopped && !cut ? one_stage() : cut;
    if (!cut && stopped) {
      result.explanation = "the search was stopped before it found a plan";
      return result;
    }
    if (!cut) {
      result.status = SearchStatus::kInfeasible;
      result.explanation =
          fmt::format("no stages of the {} clusters use all {} devices and fit {:.6g} bytes each",
                      table_.layers,
                      request_.machines.devices,
                      request_.machines.memory_bytes);
      return result;
    }
    result.status = stopped ? SearchStatus::kFeasible : SearchStatus::kOptimal;
    result.objective = cut->latency(microbatches);
    result.lower_bound = stopped ? -kInfinity : result.objective;
    result.best.schedule = "1f1b";
    result.best.microbatches = request_.machines.microbatches;
    int behind = static_cast<int>(cut->stages.size());
    for (const StageCut::Stage& stage : cut->stages) {
      append(result.best, stage, --behind);
    }
    return result;
  }

 private:
  /// All layers on all devices, if they fit.
  [[nodiscard]] std::optional<StageCut> one_stage() const {
    Shape shape;
    const int last = static_cast<int>(table_.sizes.size()) - 1;
    const double time = fastest(0, table_.layers, table_.devices, 0, shape);
    if (time == kInfinity || table_.sizes[at(last)] != table_.devices) {
      return std::nullopt;
    }
    StageCut cut;
    cut.stages.push_back({0, table_.layers, last});
    cut.sum = time;
    cut.largest = time;
    return cut;
  }

  void cluster() {
    const auto count = static_cast<int>(order_.size());
    const int wanted = static_cast<int>(std::stod(request_.options.at("layers")));
    begins_ = runs();
    const int units = static_cast<int>(begins_.size()) - 1;
    if (wanted < units) {
      const std::vector<int> unit_of = places(begins_);
      std::vector<double> work(at(units), 0);
      for (std::size_t v = 0; v < unit_of.size(); ++v) {
        work[at(unit_of[v])] += request_.graph.layers[v].choices.front().time;
      }
      std::vector<int> begins;
      for (const int unit : cluster_operators(work, entering(units, unit_of), wanted, kImbalance)) {
        begins.push_back(begins_[at(unit)]);
      }
      begins_ = std::move(begins);
      begins_.push_back(count);
    }
    table_.layers = static_cast<int>(begins_.size()) - 1;
    bytes_ = entering(table_.layers, places(begins_));
  }

  /// Beginnings of what the operators are clustered from: each of them, or runs of about equal work
  /// where the tables of their pairs would be too large. Ends with the number of operators.
  [[nodiscard]] std::vector<int> runs() const {
    double total = 0;
    for (const problem::Layer& layer : request_.graph.layers) {
      total += layer.choices.front().time;
    }
    const auto count = static_cast<int>(order_.size());
    std::vector<int> begins = {0};
    double before = 0;
    for (int i = 1; i < count; ++i) {
      before += request_.graph.layers[at(order_[at(i - 1)])].choices.front().time;
      if (count <= kMostOperators ||
          before >= total * static_cast<double>(begins.size()) / kMostOperators) {
        begins.push_back(i);
      }
    }
    begins.push_back(count);
    return begins;
  }

  /// The run of each layer.
  [[nodiscard]] std::vector<int> places(const std::vector<int>& begins) const {
    std::vector<int> place(order_.size(), 0);
    for (std::size_t run = 0; run + 1 < begins.size(); ++run) {
      for (int i = begins[run]; i < begins[run + 1]; ++i) {
        place[at(order_[at(i)])] = static_cast<int>(run);
      }
    }
    return place;
  }

  /// bytes[i][k]: of edges into the places [i, k) from places before.
  [[nodiscard]] std::vector<std::vector<double>> entering(int count,
                                                          const std::vector<int>& place) const {
    std::vector<std::vector<double>> bytes(at(count), std::vector<double>(at(count + 1), 0));
    for (const problem::LayerEdge& edge : request_.graph.edges) {
      const int target = place[at(edge.target)];
      for (int i = place[at(edge.source)] + 1; i <= target; ++i) {
        bytes[at(i)][at(target + 1)] += edge.bytes;
      }
    }
    for (std::vector<double>& row : bytes) {
      std::partial_sum(row.begin(), row.end(), row.begin());
    }
    return bytes;
  }

  void fill() {
    const problem::LayerMachines& machines = request_.machines;
    for (const int degree : common_degrees(request_.graph)) {
      for (int variant = 0;; ++variant) {
        const std::vector<int> choices = uniform_choice(request_.graph, degree, variant);
        if (choices.empty()) {
          break;
        }
        add_sums(degree, variant, choices);
      }
    }
    table_.devices = machines.devices;
    table_.depths = machines.memory_bytes > 0 ? table_.layers : 1;
    table_.times.assign(
        table_.index(
            table_.layers - 1, table_.layers, static_cast<int>(table_.sizes.size()) - 1, 0) +
            at(table_.depths),
        kInfinity);
    for (int from = 0; from < table_.layers; ++from) {
      for (int to = from + 1; to <= table_.layers && !budget_.exhausted(); ++to) {
        for (std::size_t o = 0; o < table_.sizes.size(); ++o) {
          for (int depth = 0; depth < table_.depths; ++depth) {
            Shape shape;
            table_.times[table_.index(from, to, static_cast<int>(o), depth)] =
                fastest(from, to, table_.sizes[o], depth, shape);
          }
        }
      }
    }
  }

  /// Sums of the layers before each cluster, all with one kind of choice.
  struct Prefix {
    Shape shape{};
    std::vector<int> choices{};
    std::vector<double> time{0};
    std::vector<double> parameters{0};
    std::vector<double> in_flight{0};
    std::vector<double> constant{0};
  };

  void add_sums(int degree, int variant, const std::vector<int>& choices) {
    Prefix prefix;
    prefix.shape = {1, degree, variant};
    prefix.choices = choices;
    for (int c = 0; c < table_.layers; ++c) {
      double time = 0;
      double parameters = 0;
      double in_flight = 0;
      double constant = 0;
      for (int i = begins_[at(c)]; i < begins_[at(c + 1)]; ++i) {
        const std::size_t v = at(order_[at(i)]);
        const problem::LayerChoice& choice = request_.graph.layers[v].choices[at(choices[v])];
        time += choice.time;
        parameters += choice.parameter_bytes;
        in_flight += choice.in_flight_bytes;
        constant += choice.constant_bytes;
      }
      prefix.time.push_back(prefix.time.back() + time);
      prefix.parameters.push_back(prefix.parameters.back() + parameters);
      prefix.in_flight.push_back(prefix.in_flight.back() + in_flight);
      prefix.constant.push_back(prefix.constant.back() + constant);
    }
    sums_.push_back(std::move(prefix));
  }

  /// Time of clusters [from, to) on `size` devices when `behind` stages follow, and how.
  double fastest(int from, int to, int size, int behind, Shape& shape) const {
    const auto of = [&](const std::vector<double>& sums) { return sums[at(to)] - sums[at(from)]; };
    const double units = request_.graph.units_per_transfer_second;
    const double limit = request_.machines.memory_bytes;
    double best = kInfinity;
    for (const Prefix& prefix : sums_) {
      const int degree = prefix.shape.degree;
      if (size % degree != 0 || degree > host_) {
        continue;
      }
      const int copies = size / degree;
      const double d = copies;
      const double memory = of(prefix.constant) + (behind + 1) * of(prefix.in_flight) / d;
      if (limit > 0 && memory > limit) {
        continue;
      }
      const double time = of(prefix.time) / d + 2 * bytes_[at(from)][at(to)] / d / far_ * units +
                          2 * (d - 1) / d * of(prefix.parameters) / (size <= host_ ? near_ : far_) *
                              units / static_cast<double>(request_.machines.microbatches);
      if (time < best) {
        best = time;
        shape = {copies, degree, prefix.shape.variant};
      }
    }
    return best;
  }

  void append(problem::LayerPlan& plan, const StageCut::Stage& cut, int behind) const {
    Shape shape;
    problem::LayerStage& stage = plan.stages.emplace_back();
    stage.time = fastest(cut.from, cut.to, table_.sizes[at(cut.option)], behind, shape);
    stage.replicas = shape.copies;
    stage.degree = shape.degree;
    const auto prefix = std::find_if(sums_.begin(), sums_.end(), [&](const Prefix& one) {
      return one.shape.degree == shape.degree && one.shape.variant == shape.variant;
    });
    for (int i = begins_[at(cut.from)]; i < begins_[at(cut.to)]; ++i) {
      stage.layers.push_back(order_[at(i)]);
      stage.choices.push_back(prefix->choices[at(order_[at(i)])]);
    }
    stage.memory_bytes = prefix->constant[at(cut.to)] - prefix->constant[at(cut.from)] +
                         (behind + 1) *
                             (prefix->in_flight[at(cut.to)] - prefix->in_flight[at(cut.from)]) /
                             shape.copies;
  }

  const LayerRequest& request_;
  solvers::SolveOptions options_;
  solvers::Budget budget_;
  std::vector<int> order_;
  int host_ = 1;
  double near_ = 0;
  double far_ = 0;
  std::vector<int> begins_{};                 // of the clusters in `order_`, and its length
  std::vector<std::vector<double>> bytes_{};  // that enter the clusters [i, k)
  std::vector<Prefix> sums_{};
  StageTable table_{};
};

Result<LayerPlanResult> solve(const LayerRequest& request) {
  SHARDPLAN_RETURN_IF_ERROR(require_both_passes(request.graph, "alpa"));
  const problem::LayerMachines& machines = request.machines;
  if (machines.hierarchy.size() > 2) {
    return unsupported("alpa knows devices of a host and hosts, no third level", "--hierarchy");
  }
  if (machines.microbatches < 1) {
    return invalid_input("alpa needs the microbatches of a batch", "--microbatches");
  }
  if (machines.bandwidths.empty() && machines.bandwidth <= 0) {
    return invalid_input("alpa needs a bandwidth", "--bandwidth");
  }
  const double layers = std::stod(request.options.at("layers"));
  if (layers < 1 || layers > kMostClusters) {
    return invalid_input(
        fmt::format("{} layers to cluster to; alpa takes 1 to {}", layers, kMostClusters),
        "--option");
  }
  if (common_degrees(request.graph).empty()) {
    return unsupported("alpa needs a degree of tensor parallelism that all layers have",
                       request.graph.name);
  }
  return Alpa(request).run();
}

}  // namespace

LayerPlannerInfo alpa_planner() {
  return {
      "alpa",
      "Zheng et al., Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep "
      "Learning",
      2022,
      "clusters of operators, cut into stages on submeshes, by its dynamic programme",
      "choices that differ between layers of a stage, microbatch sizes, skips past a stage",
      "a batch",
      {{"layers", "16", {}, "clusters that the operators are brought to"}},
      &solve,
      &problem::alpa_objective};
}

}  // namespace shardplan::planners
