#include "shardplan/runtime/groups.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "shardplan/runtime/collectives.h"
#include "shardplan/runtime/shared_memory.h"

namespace shardplan::runtime {
namespace {

// Pure movement does not depend on the dtype, and not every backend knows every dtype.
at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.view({-1}).view(at::kByte);
}

std::chrono::milliseconds milliseconds(Seconds seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1e3));
}

/// Runs a call of the backend; what it throws is the loss of `member`.
template <class Call>
void naming(std::int64_t member, const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    const std::string what = error.what();
    const bool late = what.find("Timed out") != std::string::npos;
    throw PeerLost(
        member, (late ? "does not answer (" : "is gone (") + what.substr(0, what.find('\n')) + ")");
  }
}

class ProcessGroupOf final : public Group {
 public:
  ProcessGroupOf(c10::intrusive_ptr<c10d::ProcessGroup> group, Ranks ranks)
      : group_(std::move(group)), ranks_(std::move(ranks)) {}

  [[nodiscard]] std::int64_t size() const override { return group_->getSize(); }
  [[nodiscard]] std::int64_t member() const override { return group_->getRank(); }
  [[nodiscard]] std::int64_t rank_of(std::int64_t member) const override {
    return ranks_[static_cast<std::size_t>(member)];
  }
  void transfer(const std::vector<Transfer>& receives,
                const std::vector<Transfer>& sends) override {
    std::vector<std::pair<std::int64_t, c10::intrusive_ptr<c10d::Work>>> works;
    for (const Transfer& message : receives) {
      if (message.tensor.numel() == 0) {
        continue;
      }
      naming(rank_of(message.member), [&] {
        std::vector<at::Tensor> tensors{bytes_of(message.tensor)};
        works.emplace_back(message.member,
                           group_->recv(tensors, static_cast<int>(message.member), kTag));
      });
    }
    for (const Transfer& message : sends) {
      if (message.tensor.numel() == 0) {
        continue;
      }
      naming(rank_of(message.member), [&] {
        std::vector<at::Tensor> tensors{bytes_of(message.tensor)};
        works.emplace_back(message.member,
                           group_->send(tensors, static_cast<int>(message.member), kTag));
      });
    }
    for (const auto& [member, work] : works) {
      naming(rank_of(member), [&waited = work] { waited->wait(); });
    }
  }
  void barrier() override {
    const at::Tensor sent = at::zeros({1}, at::TensorOptions(at::kByte));
    all_gather_into(*this, at::empty({size(), 1}, at::TensorOptions(at::kByte)), sent);
  }

 private:
  static constexpr int kTag = 0;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  Ranks ranks_;
};

class GlooGroups final : public GroupSource {
 public:
  GlooGroups(c10::intrusive_ptr<c10d::Store> store,
             std::string host,
             std::int64_t rank,
             Seconds timeout)
      : store_(std::move(store)), host_(std::move(host)), rank_(rank), timeout_(timeout) {}

  Result<std::shared_ptr<Group>> group(const Ranks& ranks, const std::string& purpose) override {
    std::string name = "shardplan" + purpose;
    for (const std::int64_t rank : ranks) {
      name += "/" + std::to_string(rank);
    }
    try {
      const auto position = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
      const auto options = c10d::ProcessGroupGloo::Options::create(milliseconds(timeout_));
      options->devices.push_back(host_.empty()
                                     ? c10d::ProcessGroupGloo::createDefaultDevice()
                                     : c10d::ProcessGroupGloo::createDeviceForHostname(host_));
      options->threads = 1;
      const auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(
          c10::make_intrusive<c10d::PrefixStore>(name, store_),
          static_cast<int>(position),
          static_cast<int>(ranks.size()),
          options);
      auto group = c10::make_intrusive<c10d::ProcessGroup>(static_cast<int>(position),
                                                           static_cast<int>(ranks.size()));
      group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, {backend});
      group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
      return wrap_process_group(group, ranks, timeout_);
    } catch (const std::exception& error) {
      return Error{ErrorCode::kRuntime,
                   "the ranks of a group did not meet: " + std::string(error.what()),
                   "group " + name,
                   {}};
    }
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::string host_;  ///< whose network device the groups use
  std::int64_t rank_;
  Seconds timeout_;
};

class GivenGroups final : public GroupSource {
 public:
  explicit GivenGroups(std::map<NeededGroup, std::shared_ptr<Group>> groups)
      : groups_(std::move(groups)) {}
  Result<std::shared_ptr<Group>> group(const Ranks& ranks, const std::string& purpose) override {
    const auto found = groups_.find({ranks, purpose});
    if (found == groups_.end()) {
      return Error{
          ErrorCode::kRuntime, "no process group was given for these ranks" + purpose, {}, {}};
    }
    return found->second;
  }

 private:
  std::map<NeededGroup, std::shared_ptr<Group>> groups_;
};

}  // namespace

std::shared_ptr<Group> wrap_process_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                          Ranks ranks,
                                          Seconds timeout) {
  return shared_memory_group(std::make_shared<ProcessGroupOf>(group, std::move(ranks)), timeout);
}

std::unique_ptr<GroupSource> given_groups(std::map<NeededGroup, std::shared_ptr<Group>> groups) {
  return std::make_unique<GivenGroups>(std::move(groups));
}

Result<std::unique_ptr<GroupSource>> process_groups(const Rendezvous& at) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(at.port);
  options.isServer = at.rank == 0;
  options.numWorkers = static_cast<std::size_t>(at.world_size);
  options.waitWorkers = true;
  options.timeout = milliseconds(at.meeting_timeout);
  if (at.rank == 0 && at.listening_socket >= 0) {
    options.masterListenFd = at.listening_socket;
  }
  const bool here = at.host == "127.0.0.1" || at.host == "localhost";
  try {
    c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::TCPStore>(at.host, options);
    // Of several machines each uses the device that its own name leads to.
    return std::unique_ptr<GroupSource>(std::make_unique<GlooGroups>(
        std::move(store), here ? "127.0.0.1" : "", at.rank, at.collective_timeout));
  } catch (const std::exception& error) {
    const std::string what = error.what();
    return Error{ErrorCode::kRuntime,
                 "the ranks cannot meet at " + at.host + ":" + std::to_string(at.port) + ": " +
                     what.substr(0, what.find('\n')),
                 "rank " + std::to_string(at.rank),
                 {"if the port is busy, set MASTER_PORT to a free one"}};
  }
}

std::vector<std::unique_ptr<GroupSource>> thread_groups(std::int64_t count,
                                                        Seconds collective_timeout) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::unique_ptr<GroupSource>> sources;
  for (std::int64_t rank = 0; rank < count; ++rank) {
    sources.push_back(std::make_unique<GlooGroups>(store, "127.0.0.1", rank, collective_timeout));
  }
  return sources;
}

std::vector<Ranks> needed_groups(const lower::Program& program, std::int64_t first_rank) {
  std::set<std::vector<int>> axes;
  for (const std::vector<lower::Step>* section : {&program.microbatch, &program.update}) {
    for (const lower::Step& step : *section) {
      if (step.kind == lower::StepKind::kCollective &&
          step.collective.kind != sharding::CollectiveKind::kSlice) {
        std::vector<int> sorted = step.collective.axes;
        std::sort(sorted.begin(), sorted.end());
        axes.insert(sorted);
      }
    }
  }
  std::set<Ranks> groups;
  Ranks world;
  for (std::int64_t rank = 0; rank < program.mesh.size(); ++rank) {
    world.push_back(first_rank + rank);
    for (const std::vector<int>& span : axes) {
      Ranks ranks = program.mesh.group(rank, span);
      std::sort(ranks.begin(), ranks.end());
      for (std::int64_t& member : ranks) {
        member += first_rank;
      }
      groups.insert(std::move(ranks));
    }
  }
  groups.insert(std::move(world));
  std::vector<Ranks> ordered;
  std::copy_if(groups.begin(), groups.end(), std::back_inserter(ordered), [](const Ranks& ranks) {
    return ranks.size() > 1;
  });
  return ordered;
}

}  // namespace shardplan::runtime
