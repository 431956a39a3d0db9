#include "shardplan/sim/certificate.h"

#include <map>

#include "shardplan/sim/plain_count.h"

namespace shardplan::sim {
namespace {

using lower::LocalId;
using lower::Program;
using lower::Step;

class Walk {
 public:
  Walk(const Program& program, const ir::Graph& graph, const cost::CostModel& cost)
      : program_(program), graph_(graph), cost_(cost), storages_(program, bytes_) {}

  Result<Certificate> run() {
    certificate_.peak_bytes = bytes_;
    count_seconds(program_.microbatch, static_cast<double>(program_.microbatches));
    count_seconds(program_.update, 1);
    for (std::int64_t m = 0; m < program_.microbatches; ++m) {
      const std::map<LocalId, Bytes> before = storages_.there();
      SHARDPLAN_RETURN_IF_ERROR(section(program_.microbatch, false));
      if (storages_.there() == before) {
        break;
      }
    }
    SHARDPLAN_RETURN_IF_ERROR(section(program_.update, true));
    SHARDPLAN_RETURN_IF_ERROR(storages_.check_rest());
    return certificate_;
  }

 private:
  void count_seconds(const std::vector<Step>& steps, double times) {
    const PlainSeconds seconds = plain_seconds(program_, graph_, cost_, steps, 0, steps.size());
    certificate_.additive_seconds += seconds.all * times;
    certificate_.kernel_seconds += seconds.kernels * times;
  }

  Status section(const std::vector<Step>& steps, bool update) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      SHARDPLAN_RETURN_IF_ERROR(storages_.run(steps[i]));
      const Bytes now = bytes_ + storages_.workspace_at(steps[i]);
      if (now > certificate_.peak_bytes) {
        certificate_.peak_bytes = now;
        certificate_.peak_in_update = update;
        certificate_.peak_step = i;
      }
    }
    return {};
  }

  const Program& program_;
  const ir::Graph& graph_;
  const cost::CostModel& cost_;
  Certificate certificate_;
  Bytes bytes_ = 0;  // outlives the storages
  PlainStorages storages_;
};

}  // namespace

Result<Certificate> certify(const Program& program,
                            const ir::Graph& step,
                            const cost::CostModel& cost) {
  return Walk(program, step, cost).run();
}

}  // namespace shardplan::sim
