// Starts the ranks of a run as copies of this program and watches over them. Read `watch`: what
// ends a run, and `blame`: which rank is named when all are silent.
#include "shardplan/runtime/launch.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "shardplan/runtime/heartbeat.h"
#include "shardplan/runtime/runtime.h"

namespace shardplan::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPoll{20};
constexpr std::chrono::milliseconds kSettle{200};  ///< other ranks' ends that come with the first
constexpr Seconds kStopPatience = 3;               ///< a stopped rank that nobody continues
constexpr Seconds kLostPatience = 3;  ///< a rank lost a peer that still seems to be there
constexpr double kStartFactor = 5;    ///< reading a model may take longer than any later silence

Error runtime_error(std::string message, std::vector<std::string> notes = {}) {
  return Error{ErrorCode::kRuntime, std::move(message), {}, std::move(notes)};
}

double since(Clock::time_point time) {
  return std::chrono::duration<double>(Clock::now() - time).count();
}

/// A socket that listens on the loopback device at `port` (0 = any free one).
Result<int> listen_at(int port) {
  const int socket_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int reuse = 1;
  setsockopt(socket_fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (bind(socket_fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(socket_fd, SOMAXCONN) != 0) {
    const std::string why = std::strerror(errno);
    close(socket_fd);
    return runtime_error("port " + std::to_string(port) + " cannot be used: " + why,
                         {"set MASTER_PORT to a free port, or unset it"});
  }
  return socket_fd;
}

int port_of(int socket_fd) {
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  getsockname(socket_fd, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin_port);
}

/// Environment of a rank: this process's, with our variables replaced.
std::vector<std::string> environment_with(
    const std::vector<std::pair<std::string, std::string>>& ours) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    const bool replaced = std::any_of(
        ours.begin(), ours.end(), [&](const auto& variable) { return variable.first == name; });
    if (!replaced) {
      all.emplace_back(text);
    }
  }
  for (const auto& [name, value] : ours) {
    std::string& entry = all.emplace_back(name);
    entry += '=';
    entry += value;
  }
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> out;
  out.reserve(words.size() + 1);
  for (std::string& word : words) {
    out.push_back(word.data());
  }
  out.push_back(nullptr);
  return out;
}

struct Child {
  pid_t pid = -1;
  std::optional<int> status{};  ///< of waitpid, when it has ended
  std::optional<Clock::time_point> stopped{};
};

/// One launched run: its processes, killed when this goes out of scope.
class Ranks {
 public:
  Ranks() = default;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  Ranks(Ranks&&) = delete;
  Ranks& operator=(Ranks&&) = delete;
  ~Ranks() { end_all(); }

  Status start(std::vector<std::string> arguments,
               std::vector<std::string> environment,
               int inherited_socket) {
    std::vector<char*> argv = pointers(arguments);
    std::vector<char*> envp = pointers(environment);
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid < 0) {
      return runtime_error(std::string("a rank cannot be started: ") + std::strerror(errno));
    }
    if (pid == 0) {
      // Only calls that are safe between fork and exec. A rank never outlives its launcher.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      // Ctrl-C reaches every process of the terminal: the launcher alone answers it, once.
      sigset_t interrupt;
      sigemptyset(&interrupt);
      sigaddset(&interrupt, SIGINT);
      sigprocmask(SIG_BLOCK, &interrupt, nullptr);
      if (getppid() != parent) {
        _exit(1);
      }
      if (inherited_socket >= 0) {
        fcntl(inherited_socket, F_SETFD, 0);
      }
      execve("/proc/self/exe", argv.data(), envp.data());
      _exit(127);
    }
    children_.push_back(Child{pid, {}, {}});
    return {};
  }

  /// Takes notice of ranks that have ended, stopped or continued.
  void collect() {
    for (Child& child : children_) {
      int status = 0;
      while (!child.status &&
             waitpid(child.pid, &status, WNOHANG | WUNTRACED | WCONTINUED) == child.pid) {
        if (WIFSTOPPED(status)) {
          child.stopped = Clock::now();
        } else if (WIFCONTINUED(status)) {
          child.stopped.reset();
        } else {
          child.status = status;
        }
      }
    }
  }

  [[nodiscard]] const std::vector<Child>& children() const { return children_; }
  [[nodiscard]] bool all_ended() const {
    return std::all_of(
        children_.begin(), children_.end(), [](const Child& c) { return c.status.has_value(); });
  }

 private:
  void end_all() {
    for (const Child& child : children_) {
      if (!child.status) {
        kill(child.pid, SIGKILL);
        waitpid(child.pid, nullptr, 0);
      }
    }
  }

  std::vector<Child> children_;
};

bool ended_badly(int status) {
  return WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) > 1);
}

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    const char* const name = sigabbrev_np(signal);
    return "was killed by signal " + std::to_string(signal) +
           (name == nullptr ? "" : std::string(" (SIG") + name + ")");
  }
  return "failed with exit code " + std::to_string(WEXITSTATUS(status));
}

struct Failure {
  int rank = 0;
  int status = 0;  ///< of waitpid
};

/// The rank that failed first of its own: killed ones before those that exited with an error,
/// because a rank that loses a peer fails too.
std::optional<Failure> first_failure(const Ranks& ranks) {
  std::optional<Failure> first;
  for (std::size_t i = 0; i < ranks.children().size(); ++i) {
    const int status = ranks.children()[i].status.value_or(0);
    const bool worse = !first || (WIFSIGNALED(status) && !WIFSIGNALED(first->status));
    if (ended_badly(status) && worse) {
      first = Failure{static_cast<int>(i), status};
    }
  }
  return first;
}

/// Which rank keeps the others waiting: one that a signal stopped, else one that is not in a
/// collective, else the one furthest behind.
int blame(const HeartbeatBoard& board, const Ranks& ranks) {
  int worst = 0;
  const auto key = [&](int rank) {
    const Child& child = ranks.children()[static_cast<std::size_t>(rank)];
    const bool waits = board.of(rank).state.load() == RankState::kWaiting ||
                       board.of(rank).state.load() == RankState::kLostPeer ||
                       child.status.has_value();
    return std::tuple(!child.stopped.has_value(), waits, board.of(rank).count.load());
  };
  for (int rank = 1; rank < static_cast<int>(ranks.children().size()); ++rank) {
    worst = key(rank) < key(worst) ? rank : worst;
  }
  return worst;
}

/// Silence of all ranks together.
class Silence {
 public:
  bool longer_than(Seconds limit, const HeartbeatBoard& board, int ranks) {
    std::uint64_t beats = 0;
    bool starting = false;
    for (int rank = 0; rank < ranks; ++rank) {
      beats += board.of(rank).count.load();
      starting = starting || board.of(rank).state.load() == RankState::kStarting;
    }
    if (beats != beats_) {
      beats_ = beats;
      since_ = Clock::now();
    }
    return since(since_) > (starting ? kStartFactor * limit : limit);
  }

 private:
  std::uint64_t beats_ = 0;
  Clock::time_point since_ = Clock::now();
};

std::optional<int> stopped_rank(const Ranks& ranks) {
  for (std::size_t i = 0; i < ranks.children().size(); ++i) {
    const Child& child = ranks.children()[i];
    if (!child.status && child.stopped && since(*child.stopped) > kStopPatience) {
      return static_cast<int>(i);
    }
  }
  return std::nullopt;
}

bool lost_a_peer(const HeartbeatBoard& board, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    if (board.of(rank).state.load() == RankState::kLostPeer) {
      return true;
    }
  }
  return false;
}

Result<int> watch(Ranks& ranks,
                  const HeartbeatBoard& board,
                  const RunOptions& options,
                  const Control& control) {
  const int count = static_cast<int>(ranks.children().size());
  Silence silence;
  std::optional<Clock::time_point> lost;
  while (true) {
    ranks.collect();
    if (std::optional<Failure> failure = first_failure(ranks)) {
      std::this_thread::sleep_for(kSettle);
      ranks.collect();
      failure = first_failure(ranks).value_or(*failure);
      return runtime_error("rank " + std::to_string(failure->rank) + " " +
                           how_it_ended(failure->status) + "; the other ranks were ended");
    }
    if (ranks.all_ended()) {
      return WEXITSTATUS(ranks.children().front().status.value_or(0));
    }
    if (control.interrupted()) {
      return runtime_error("interrupted; all ranks were ended");
    }
    if (const std::optional<int> rank = stopped_rank(ranks)) {
      return runtime_error("rank " + std::to_string(*rank) +
                           " was stopped by a signal and not continued; all ranks were ended");
    }
    if (lost_a_peer(board, count) && !lost) {
      lost = Clock::now();
    }
    if (lost && since(*lost) > kLostPatience) {
      return runtime_error("rank " + std::to_string(blame(board, ranks)) +
                           " does not answer the others; all ranks were ended");
    }
    if (silence.longer_than(options.timeout, board, count)) {
      return runtime_error(
          "rank " + std::to_string(blame(board, ranks)) + " hangs: no progress for " +
              std::to_string(static_cast<int>(options.timeout)) + " s; all ranks were ended",
          {"allow longer silence with --timeout"});
    }
    std::this_thread::sleep_for(kPoll);
  }
}

}  // namespace

Result<int> launch_local(int world_size,
                         const std::vector<std::string>& arguments,
                         const RunOptions& options,
                         const Control& control) {
  if (world_size < 1) {
    return invalid_input("a run needs at least one rank, not " + std::to_string(world_size));
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const HeartbeatBoard board, HeartbeatBoard::create(world_size));
  const char* const wanted = std::getenv("MASTER_PORT");
  const int wanted_port = wanted == nullptr ? 0 : std::atoi(wanted);  // NOLINT(cert-err34-c)
  constexpr int kLargestPort = 65535;
  if (wanted_port < 0 || wanted_port > kLargestPort) {
    return invalid_input("is " + std::string(wanted) + "; a port is a number from 1 to 65535",
                         "MASTER_PORT");
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const int listening, listen_at(wanted_port));
  std::vector<std::string> words{"shardplan"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  Ranks ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    std::vector<std::pair<std::string, std::string>> ours{
        {"RANK", std::to_string(rank)},
        {"LOCAL_RANK", std::to_string(rank)},
        {"WORLD_SIZE", std::to_string(world_size)},
        {"MASTER_ADDR", "127.0.0.1"},
        {"MASTER_PORT", std::to_string(port_of(listening))},
        {"OMP_NUM_THREADS", std::to_string(options.threads_per_rank)},
        {HeartbeatBoard::kVariable, std::to_string(board.descriptor())}};
    if (rank == 0) {
      ours.emplace_back(kListeningSocketVariable, std::to_string(listening));
    }
    const Status started = ranks.start(words, environment_with(ours), rank == 0 ? listening : -1);
    if (!started) {
      close(listening);
      return started.error();
    }
  }
  close(listening);
  return watch(ranks, board, options, control);
}

}  // namespace shardplan::runtime
