#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shardplan/lower/program.h"
#include "shardplan/ops/op.h"
#include "shardplan/sim/memory.h"

namespace shardplan::sim {

/// Bytes on a meter, for as long as somebody holds them.
class Charge {
 public:
  Charge(MemoryMeter& meter, MemoryClass what, Bytes bytes)
      : meter_(meter), what_(what), bytes_(bytes) {
    meter_.add(what_, bytes_);
  }
  ~Charge() { meter_.remove(what_, bytes_); }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  Charge(Charge&&) = delete;
  Charge& operator=(Charge&&) = delete;

  /// The same bytes, as something else.
  void turn_into(MemoryClass what) {
    meter_.remove(what_, bytes_);
    what_ = what;
    meter_.add(what_, bytes_);
  }

 private:
  MemoryMeter& meter_;
  MemoryClass what_;
  Bytes bytes_;
};

/// The types of values of a program, in this order.
[[nodiscard]] ops::Types types_of(const lower::Program& program,
                                  const std::vector<lower::LocalId>& ids);

/// The storages of a program on one device, instruction by instruction, as the runtime has them.
/// Gradients that were asked for (Program::kept_gradients) are handed over after their last use.
class ProgramMemory {
 public:
  /// Brings the residents. All must outlive it.
  ProgramMemory(const lower::Program& program, const ir::Graph& step, MemoryMeter& meter);

  void run(const lower::Step& step);

  /// Sets aside everything but residents, under the number of a microbatch, and brings it back.
  void keep(std::int64_t microbatch);
  void bring_back(std::int64_t microbatch);
  /// The storage of a value, to be held on to by others.
  [[nodiscard]] std::shared_ptr<Charge> storage(lower::LocalId id) const {
    return storage_[program_.root(id).index()];
  }

 private:
  void find_last_uses();
  void execute(const lower::Step& step);
  void allocate(lower::LocalId id, const lower::Step& step);
  void drop(lower::LocalId root) { storage_[root.index()].reset(); }
  void write(lower::LocalId target, lower::LocalId value);
  void reserve();
  void finish(lower::LocalId made);

  struct InFlight {
    lower::LocalId made;
    Bytes workspace = 0;
  };

  const lower::Program& program_;
  MemoryMeter& meter_;
  std::vector<MemoryClass> classes_;              ///< by value of the step
  std::vector<bool> resident_;                    ///< by root
  std::vector<std::shared_ptr<Charge>> storage_;  ///< by root
  std::map<std::int64_t, std::vector<std::shared_ptr<Charge>>> kept_;
  /// Roots of gradients that are handed over after a step, and of what residents hold since then.
  std::unordered_map<const lower::Step*, std::vector<lower::LocalId>> ended_after_;
  std::vector<InFlight> in_flight_;
  Bytes reserved_ = 0;  ///< largest workspace in flight
};

}  // namespace shardplan::sim
