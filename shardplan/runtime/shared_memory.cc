// Every ordered pair of members has a channel: a ring of bytes in shared memory with the count of
// bytes ever written and ever read. A call moves what there is room or data for, over all its
// messages in turn, and sleeps on its member's bell, a futex that peers ring after each piece.
#include "shardplan/runtime/shared_memory.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "shardplan/runtime/collectives.h"

namespace shardplan::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kRingsOfMember = std::size_t{1} << 20;
constexpr std::size_t kLeastRing = std::size_t{64} << 10;
/// Moved at a time, so that the peer can begin with the first piece while the next is copied.
constexpr std::size_t kPiece = std::size_t{64} << 10;

struct Bell {
  alignas(kCacheLine) std::atomic<std::uint32_t> rung;
  std::atomic<std::uint32_t> sleeping;
  std::atomic<std::uint32_t> closed;
};

struct Channel {
  alignas(kCacheLine) std::atomic<std::uint64_t> written;
  alignas(kCacheLine) std::atomic<std::uint64_t> read;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// What a member tells the others of itself. Equal hosts can share memory.
struct Member {
  std::array<char, 128> host;
  std::int64_t pid;
};

std::uint64_t namespace_number(const char* path) {
  struct stat found {};
  return stat(path, &found) == 0 ? found.st_ino : 0;
}

bool wanted() {
  const char* const text = std::getenv("SHARDPLAN_SHARED_MEMORY");
  return text == nullptr || std::string_view(text) != "0";
}

/// The machine since it was started, and its name spaces (containers share a machine).
Member myself() {
  Member me{};
  me.pid = getpid();
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string host;
  if (wanted() && std::getline(file, host)) {
    host += "/" + std::to_string(namespace_number("/proc/self/ns/pid")) + "/" +
            std::to_string(namespace_number("/proc/self/ns/ipc")) + "/" +
            std::to_string(namespace_number("/dev/shm"));
    host.copy(me.host.data(), me.host.size() - 1);
  }
  return me;
}

/// What every member gives, on every member.
template <class T>
std::vector<T> tell_all(Group& group, const T& mine) {
  const auto size = static_cast<std::int64_t>(sizeof(T));
  const at::Tensor sent = at::empty({size}, at::TensorOptions(at::kByte));
  const at::Tensor all = at::empty({group.size(), size}, at::TensorOptions(at::kByte));
  std::memcpy(sent.data_ptr(), &mine, sizeof(T));
  all_gather_into(group, all, sent);
  std::vector<T> out(static_cast<std::size_t>(group.size()));
  std::memcpy(out.data(), all.const_data_ptr(), out.size() * sizeof(T));
  return out;
}

/// Memory that was mapped, until it is destroyed.
class Mapping {
 public:
  Mapping(int file, std::size_t bytes)
      : bytes_(bytes), data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)) {}
  ~Mapping() {
    if (there()) {
      munmap(data_, bytes_);
    }
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  Mapping(Mapping&&) = delete;
  Mapping& operator=(Mapping&&) = delete;
  [[nodiscard]] bool there() const { return data_ != MAP_FAILED; }
  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  std::size_t bytes_;
  void* data_;
};

/// Where things lie: a bell a member, a channel and a ring an ordered pair.
struct Places {
  std::size_t members;
  std::size_t ring;

  explicit Places(std::size_t size)
      : members(size), ring(std::max(kLeastRing, kRingsOfMember / size)) {}
  [[nodiscard]] std::size_t channels_at() const { return members * sizeof(Bell); }
  [[nodiscard]] std::size_t rings_at() const {
    return channels_at() + members * members * sizeof(Channel);
  }
  [[nodiscard]] std::size_t bytes() const { return rings_at() + members * members * ring; }
};

std::unique_ptr<Mapping> open_mapping(const std::string& name, bool create, std::size_t bytes) {
  constexpr mode_t kOwnerOnly = 0600;
  const int file = shm_open(name.c_str(), create ? O_CREAT | O_EXCL | O_RDWR : O_RDWR, kOwnerOnly);
  if (file < 0) {
    return nullptr;
  }
  // Reserved now: memory that runs out later would end the process.
  const bool reserved = !create || posix_fallocate(file, 0, static_cast<off_t>(bytes)) == 0;
  auto mapping = reserved ? std::make_unique<Mapping>(file, bytes) : nullptr;
  close(file);
  return mapping != nullptr && mapping->there() ? std::move(mapping) : nullptr;
}

int futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, timespec* time) {
  return static_cast<int>(syscall(SYS_futex, &word, operation, value, time, nullptr, 0));
}

/// Also when its parent has not taken notice of it yet.
bool has_ended(pid_t pid) {
  const int process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (process < 0) {
    return errno == ESRCH;
  }
  pollfd end{process, POLLIN, 0};
  const bool ended = poll(&end, 1, 0) > 0;
  close(process);
  return ended;
}

/// Whether a signal holds the process.
bool is_stopped(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos || name_end + 2 >= line.size()) {
    return false;
  }
  return line[name_end + 2] == 'T';  // t: in a debugger, which may take its time
}

/// How long peers have been seen stopped without a break. Only time in which this process looked
/// counts: a terminal stops all ranks at once, and they need not go on at the same moment.
class Standstill {
 public:
  /// Called again and again while nothing moves; `stopped` says whether one is stopped now.
  template <class Stopped>
  bool too_long(const Stopped& stopped) {
    const Clock::time_point now = Clock::now();
    const Seconds passed = std::chrono::duration<double>(now - looked_).count();
    if (passed < kLook) {
      return false;
    }
    looked_ = now;
    seen_ = stopped() ? seen_ + std::min(passed, 2 * kLook) : 0;
    return seen_ > kPatience;
  }

 private:
  static constexpr Seconds kLook = 0.1;
  static constexpr Seconds kPatience = 5;
  Clock::time_point looked_ = Clock::now();
  Seconds seen_ = 0;
};

class SharedMemoryGroup final : public Group {
 public:
  SharedMemoryGroup(std::shared_ptr<Group> base,
                    std::unique_ptr<Mapping> mapping,
                    std::vector<Member> members,
                    Seconds timeout)
      : base_(std::move(base)),
        mapping_(std::move(mapping)),
        members_(std::move(members)),
        places_(members_.size()),
        me_(static_cast<std::size_t>(base_->member())),
        timeout_(timeout) {
    const bool a_core_each = std::thread::hardware_concurrency() >= members_.size();
    spin_ = a_core_each ? std::chrono::microseconds(100) : std::chrono::microseconds(0);
  }
  ~SharedMemoryGroup() override {
    bell(me_).closed.store(1);
    for (std::size_t peer = 0; peer < members_.size(); ++peer) {
      ring(peer);
    }
  }
  SharedMemoryGroup(const SharedMemoryGroup&) = delete;
  SharedMemoryGroup& operator=(const SharedMemoryGroup&) = delete;
  SharedMemoryGroup(SharedMemoryGroup&&) = delete;
  SharedMemoryGroup& operator=(SharedMemoryGroup&&) = delete;

  [[nodiscard]] std::int64_t size() const override { return base_->size(); }
  [[nodiscard]] std::int64_t member() const override { return base_->member(); }
  [[nodiscard]] std::int64_t rank_of(std::int64_t member) const override {
    return base_->rank_of(member);
  }

  void transfer(const std::vector<Transfer>& receives,
                const std::vector<Transfer>& sends) override {
    std::vector<Message> messages;
    messages.reserve(receives.size() + sends.size());
    for (const Transfer& t : receives) {
      messages.push_back(message(t, false));
    }
    for (const Transfer& t : sends) {
      messages.push_back(message(t, true));
    }
    Clock::time_point last_progress = Clock::now();
    Standstill standstill;
    while (true) {
      const std::uint32_t before = bell(me_).rung.load();
      const std::vector<bool> closed = closed_peers(messages);
      bool done = true;
      bool moved = false;
      for (Message& m : messages) {
        moved = move(m) || moved;
        done = done && m.left() == 0;
      }
      if (done) {
        return;
      }
      if (moved) {
        last_progress = Clock::now();
        standstill = {};
        continue;
      }
      check_peers(messages, closed, last_progress);
      check_stopped(messages, standstill);
      sleep(before);
    }
  }

  void barrier() override {
    const at::Tensor sent = at::zeros({1}, at::TensorOptions(at::kByte));
    const at::Tensor all = at::empty({size(), 1}, at::TensorOptions(at::kByte));
    all_gather_into(*this, all, sent);
  }

 private:
  /// A message, its length in front of it, and how much of the two has been moved.
  struct Message {
    std::size_t peer;
    bool out;
    std::byte* data;
    std::size_t bytes;
    std::uint64_t length;  ///< as sent; as received, to be compared
    std::size_t moved = 0;

    [[nodiscard]] std::size_t total() const { return sizeof(length) + bytes; }
    [[nodiscard]] std::size_t left() const { return total() - moved; }
  };

  static Message message(const Transfer& t, bool out) {
    const std::size_t bytes = t.tensor.nbytes();
    return {static_cast<std::size_t>(t.member),
            out,
            static_cast<std::byte*>(t.tensor.data_ptr()),
            bytes,
            bytes};
  }

  [[nodiscard]] Bell& bell(std::size_t member) const {
    return reinterpret_cast<Bell*>(mapping_->data())[member];
  }
  [[nodiscard]] std::size_t pair(const Message& m) const {
    return m.out ? me_ * members_.size() + m.peer : m.peer * members_.size() + me_;
  }
  void ring(std::size_t member) const {
    Bell& b = bell(member);
    b.rung.fetch_add(1);
    if (b.sleeping.load() != 0) {
      futex(b.rung, FUTEX_WAKE, INT32_MAX, nullptr);
    }
  }

  /// Moves what the ring has room or data for. Whether it was anything.
  bool move(Message& m) const {
    Channel& channel =
        reinterpret_cast<Channel*>(mapping_->data() + places_.channels_at())[pair(m)];
    std::byte* const ring_data = mapping_->data() + places_.rings_at() + pair(m) * places_.ring;
    bool any = false;
    while (m.left() > 0) {
      const std::uint64_t written = channel.written.load(std::memory_order_acquire);
      const std::uint64_t read = channel.read.load(std::memory_order_acquire);
      const std::uint64_t there = written - read;
      const std::uint64_t at = m.out ? written : read;
      const std::size_t place = at % places_.ring;
      const bool header = m.moved < sizeof(m.length);
      std::byte* const mine = header ? reinterpret_cast<std::byte*>(&m.length) + m.moved
                                     : m.data + (m.moved - sizeof(m.length));
      std::size_t count = m.out ? places_.ring - there : there;
      count = std::min({count, kPiece, places_.ring - place});
      count = std::min(count, header ? sizeof(m.length) - m.moved : m.left());
      if (count == 0) {
        break;
      }
      std::memcpy(m.out ? ring_data + place : mine, m.out ? mine : ring_data + place, count);
      (m.out ? channel.written : channel.read).store(at + count, std::memory_order_release);
      m.moved += count;
      if (!header || m.left() == 0) {
        ring(m.peer);
      }
      if (m.moved == sizeof(m.length) && m.length != m.bytes) {
        throw std::runtime_error("a message of " + std::to_string(m.length) + " bytes came where " +
                                 std::to_string(m.bytes) + " were expected");
      }
      any = true;
    }
    return any;
  }

  [[nodiscard]] std::vector<bool> closed_peers(const std::vector<Message>& messages) const {
    std::vector<bool> closed;
    closed.reserve(messages.size());
    for (const Message& m : messages) {
      closed.push_back(bell(m.peer).closed.load() != 0);
    }
    return closed;
  }

  /// Nothing moved: will it ever? What a peer wrote before it closed has been read by now.
  void check_peers(const std::vector<Message>& messages,
                   const std::vector<bool>& closed,
                   Clock::time_point last_progress) const {
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const Message& m = messages[i];
      if (m.left() == 0) {
        continue;
      }
      const bool gone = closed[i] || has_ended(static_cast<pid_t>(members_[m.peer].pid));
      const bool late =
          std::chrono::duration<double>(Clock::now() - last_progress).count() > timeout_;
      if (gone || late) {
        throw PeerLost(rank_of(static_cast<std::int64_t>(m.peer)),
                       gone ? "is gone" : "does not answer");
      }
    }
  }

  void check_stopped(const std::vector<Message>& messages, Standstill& standstill) const {
    std::size_t found = me_;
    const bool too_long = standstill.too_long([&] {
      const auto stopped = std::find_if(messages.begin(), messages.end(), [&](const Message& m) {
        return m.left() > 0 && is_stopped(static_cast<pid_t>(members_[m.peer].pid));
      });
      found = stopped == messages.end() ? me_ : stopped->peer;
      return found != me_;
    });
    if (too_long) {
      throw PeerLost(rank_of(static_cast<std::int64_t>(found)),
                     "was stopped by a signal and not continued");
    }
  }

  /// Until the bell has been rung since it stood at `before`, a tenth of a second at most.
  void sleep(std::uint32_t before) const {
    Bell& mine = bell(me_);
    const Clock::time_point end = Clock::now() + spin_;
    while (Clock::now() < end) {
      if (mine.rung.load() != before) {
        return;
      }
    }
    constexpr long kTenthOfASecond = 100'000'000;
    timespec time{0, kTenthOfASecond};
    mine.sleeping.fetch_add(1);
    if (mine.rung.load() == before) {
      futex(mine.rung, FUTEX_WAIT, before, &time);
    }
    mine.sleeping.fetch_sub(1);
  }

  std::shared_ptr<Group> base_;
  std::unique_ptr<Mapping> mapping_;
  std::vector<Member> members_;
  Places places_;
  std::size_t me_;
  Seconds timeout_;
  std::chrono::microseconds spin_{};
};

}  // namespace

std::shared_ptr<Group> shared_memory_group(std::shared_ptr<Group> base, Seconds timeout) {
  if (base->size() < 2) {
    return base;
  }
  std::vector<Member> members = tell_all(*base, myself());
  const bool here = std::all_of(members.begin(), members.end(), [&](const Member& m) {
    return m.host[0] != 0 && m.host == members[0].host;
  });
  if (!here) {
    return base;
  }
  std::array<char, 64> name{};
  const bool first = base->member() == 0;
  if (first) {
    const auto now = std::chrono::system_clock::now().time_since_epoch().count();
    const std::string text = "/shardplan-" + std::to_string(getpid()) + "-" +
                             std::to_string(reinterpret_cast<std::uintptr_t>(base.get())) + "-" +
                             std::to_string(now % 1'000'000'000);
    text.copy(name.data(), name.size() - 1);
  }
  const std::size_t bytes = Places(members.size()).bytes();
  std::unique_ptr<Mapping> mapping;
  if (first) {
    mapping = open_mapping(name.data(), true, bytes);
  }
  name = tell_all(*base, name)[0];
  if (!first) {
    mapping = open_mapping(name.data(), false, bytes);
  }
  const std::vector<std::uint8_t> mapped =
      tell_all(*base, static_cast<std::uint8_t>(mapping != nullptr ? 1 : 0));
  if (first) {
    shm_unlink(name.data());
  }
  if (std::find(mapped.begin(), mapped.end(), 0) != mapped.end()) {
    return base;
  }
  return std::make_shared<SharedMemoryGroup>(
      std::move(base), std::move(mapping), std::move(members), timeout);
}

}  // namespace shardplan::runtime
