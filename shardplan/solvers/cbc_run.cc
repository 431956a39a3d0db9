#include "shardplan/solvers/cbc_run.h"

#include <CbcEventHandler.hpp>
#include <CbcModel.hpp>
#include <CbcSolver.hpp>
#include <ClpEventHandler.hpp>
#include <ClpSimplex.hpp>
#include <OsiClpSolverInterface.hpp>
#include <algorithm>
#include <limits>
#include <string>

namespace shardplan::solvers {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// CBC asks between nodes, Clp between the iterations of one linear program. Once a linear program
/// was cut short, CBC's own bound may be wrong: the last one from before is kept.
class StopBetweenNodes : public CbcEventHandler {
 public:
  StopBetweenNodes(const Budget& budget, double& bound) : budget_(&budget), bound_(&bound) {}
  CbcAction event(CbcEvent what) override {
    if (budget_->exhausted()) {
      return stop;
    }
    // Sub-problems of heuristics have a parent; their bounds are their own.
    if (what == node && getModel() != nullptr && getModel()->parentModel() == nullptr) {
      *bound_ = getModel()->getBestPossibleObjValue();
    }
    return noAction;
  }
  [[nodiscard]] CbcEventHandler* clone() const override { return new StopBetweenNodes(*this); }

 private:
  const Budget* budget_;
  double* bound_;
};

class StopBetweenIterations : public ClpEventHandler {
 public:
  explicit StopBetweenIterations(const Budget& budget) : budget_(&budget) {}
  int event(Event what) override {
    constexpr int kGoOn = -1;
    constexpr int kStopped = 5;
    return what == endOfIteration && budget_->exhausted() ? kStopped : kGoOn;
  }
  [[nodiscard]] ClpEventHandler* clone() const override { return new StopBetweenIterations(*this); }

 private:
  const Budget* budget_;
};

/// `plain`: without preprocessing and cuts. Returns the bound that stood before the search was
/// stopped; -infinity: none did.
double run_model(
    CbcModel& model, const SolveOptions& options, const Budget& budget, double gap, bool plain) {
  double bound = -kInfinity;
  const StopBetweenNodes between_nodes(budget, bound);
  model.passInEventHandler(&between_nodes);
  CbcSolverUsefulData data;
  data.noPrinting_ = true;
  data.useSignalHandler_ = false;
  CbcMain0(model, data);
  model.setLogLevel(0);
  model.solver()->messageHandler()->setLogLevel(0);
  const std::string ratio = std::to_string(gap);
  const std::string seconds = std::to_string(options.time_limit);
  const std::string seed = std::to_string(options.seed % 1000000 + 1);
  std::vector<const char*> words{"cbc",
                                 "-log",
                                 "0",
                                 "-ratioGap",
                                 ratio.c_str(),
                                 "-increment",
                                 "1e-9",
                                 "-randomCbcSeed",
                                 seed.c_str()};
  if (options.time_limit > 0) {
    words.insert(words.end(), {"-timeMode", "elapsed", "-sec", seconds.c_str()});
  }
  if (plain) {
    words.insert(words.end(), {"-preprocess", "off", "-presolve", "off", "-cuts", "off"});
  }
  words.insert(words.end(), {"-solve", "-quit"});
  CbcMain1(
      static_cast<int>(words.size()), words.data(), model, [](CbcModel*, int) { return 0; }, data);
  return bound;
}

}  // namespace

CbcRun run_cbc(OsiClpSolverInterface& solver,
               const SolveOptions& options,
               const Budget& budget,
               double gap) {
  const StopBetweenIterations between_iterations(budget);
  solver.getModelPtr()->passInEventHandler(&between_iterations);
  CbcModel model(solver);
  double before_stop = run_model(model, options, budget, gap, false);
  if (model.isProvenInfeasible() && !budget.exhausted()) {
    model = CbcModel(solver);
    before_stop = run_model(model, options, budget, gap, true);
  }
  CbcRun run;
  run.finished = model.status() == 0 && !budget.exhausted();
  run.infeasible = model.isProvenInfeasible();
  const double bound = model.getBestPossibleObjValue();
  run.bound = run.finished ? bound : std::min(bound, before_stop);
  if (model.bestSolution() != nullptr) {
    run.values.assign(model.bestSolution(), model.bestSolution() + solver.getNumCols());
  }
  return run;
}

}  // namespace shardplan::solvers
