#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shardplan/cost/cost_model.h"
#include "shardplan/lower/program.h"
#include "shardplan/support/result.h"

namespace shardplan::sim {

/// What certificates count by, apart from the simulator.

/// Instructions one after the other.
struct PlainSeconds {
  Seconds all = 0;      ///< kernels and collectives
  Seconds kernels = 0;  ///< of these, what runs on the device alone (slices too)
};
/// Of steps [begin, end).
[[nodiscard]] PlainSeconds plain_seconds(const lower::Program& program,
                                         const ir::Graph& step,
                                         const cost::CostModel& cost,
                                         const std::vector<lower::Step>& steps,
                                         std::size_t begin,
                                         std::size_t end);

/// A storage: its bytes are in the sum as long as anybody holds it.
class PlainStorage {
 public:
  PlainStorage(Bytes& sum, Bytes bytes) : sum_(sum), bytes_(bytes) { sum_ += bytes_; }
  ~PlainStorage() { sum_ -= bytes_; }
  PlainStorage(const PlainStorage&) = delete;
  PlainStorage& operator=(const PlainStorage&) = delete;
  PlainStorage(PlainStorage&&) = delete;
  PlainStorage& operator=(PlainStorage&&) = delete;
  [[nodiscard]] Bytes bytes() const { return bytes_; }

 private:
  Bytes& sum_;
  Bytes bytes_;
};

/// The storages of a program that are there. An instruction brings those of its outputs (but of
/// views) and, while it runs, its workspace; kFree takes one away; kWrite gives one to a resident,
/// and what is written goes under its own name after its last reader.
class PlainStorages {
 public:
  /// Both must outlive it. Brings the residents.
  PlainStorages(const lower::Program& program, Bytes& sum);

  /// Errors: an operand that is not there.
  Status run(const lower::Step& step);
  /// While it runs: its own, and the one that serves all collectives in flight.
  [[nodiscard]] Bytes workspace_at(const lower::Step& step);
  /// Sets all but the residents aside, under the number of a microbatch, and brings them back.
  void set_aside(std::int64_t microbatch);
  void bring_back(std::int64_t microbatch);
  /// Null where it is not there.
  [[nodiscard]] std::shared_ptr<PlainStorage> storage(lower::LocalId id) const {
    const auto found = there_.find(program_.root(id));
    return found == there_.end() ? nullptr : found->second;
  }
  /// Bytes by root.
  [[nodiscard]] std::map<lower::LocalId, Bytes> there() const;
  /// What lives on after a step: residents, the loss, gradients that were asked for.
  [[nodiscard]] Status check_rest() const;

 private:
  using There = std::map<lower::LocalId, std::shared_ptr<PlainStorage>>;
  Status execute(const lower::Step& step);
  Status bring(lower::LocalId id);

  const lower::Program& program_;
  Bytes& sum_;
  std::map<lower::LocalId, const lower::Step*> last_read_{};  ///< of what is written, by root
  There there_{};                                             ///< by root
  std::map<std::int64_t, There> aside_{};                     ///< by microbatch
  std::map<lower::LocalId, Bytes> in_flight_{};  ///< workspaces of collectives that run aside
};

}  // namespace shardplan::sim
