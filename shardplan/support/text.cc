#include "shardplan/support/text.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <numeric>
#include <span>
#include <system_error>

namespace shardplan {

namespace {

struct Unit {
  double size;
  std::string_view name;
};

constexpr double kKi = 1024.0;

/// Three significant digits without an exponent: 6.74, 61.2, 312, 1020.
std::string three_digits(double value) {
  const double magnitude = std::abs(value);
  if (magnitude >= 99.95) {
    return fmt::format("{:.0f}", value);
  }
  return magnitude >= 9.995 ? fmt::format("{:.1f}", value) : fmt::format("{:.2f}", value);
}

/// `value` in the largest unit that leaves at least 1; units are ordered from large to small. A
/// value that would round up to a thousand of a unit goes to the next one ("1 s", not "1000 ms").
std::string in_units(double value, std::span<const Unit> units, double step) {
  if (value == 0) {
    return fmt::format("0 {}", units.back().name);
  }
  const double rounding = step - 0.5;
  for (std::size_t i = 0; i + 1 < units.size(); ++i) {
    if (std::abs(value) / units[i + 1].size >= rounding) {
      return fmt::format("{} {}", three_digits(value / units[i].size), units[i].name);
    }
  }
  return fmt::format("{} {}", three_digits(value / units.back().size), units.back().name);
}

/// Terminal columns of UTF-8 text in which every character is one column wide.
std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) >> 6) != 2; }));
}

bool looks_numeric(std::string_view cell) {
  if (cell.size() > 1 && (cell[0] == '-' || cell[0] == '+')) {
    cell.remove_prefix(1);
  }
  return !cell.empty() && std::isdigit(static_cast<unsigned char>(cell[0])) != 0;
}

Error io_error(const std::string& path, std::string_view action, int number) {
  return Error{ErrorCode::kIo,
               fmt::format("cannot {}: {}", action, std::generic_category().message(number)),
               path,
               {}};
}

/// Writes everything to an open file; 0 or the errno of the first failure.
int write_all(int file, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = ::write(file, content.data(), content.size());
    if (written < 0) {
      if (errno == EINTR) {
        continue;
      }
      return errno;
    }
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

/// Devices and pipes ("/dev/stdout") cannot be replaced by a rename: they are written in place.
Status write_in_place(const std::string& path, std::string_view content) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) {
    return io_error(path, "open for writing", errno);
  }
  const int failed = write_all(file, content);
  ::close(file);
  return failed == 0 ? Status{} : Status{io_error(path, "write", failed)};
}

/// Makes a file that did not exist, and puts the content on the disk. 0 or errno.
int write_new(const std::string& path, mode_t mode, std::string_view content) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (file < 0) {
    return errno;
  }
  int failed = write_all(file, content);
  // Some file systems tell of a full disk only here.
  if (failed == 0 && ::fsync(file) != 0) {
    failed = errno;
  }
  if (::close(file) != 0 && failed == 0) {
    failed = errno;
  }
  return failed;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1);
  std::vector<std::size_t> previous(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(previous.begin(), previous.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({previous[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before.swap(previous);
    previous.swap(row);
  }
  return previous[b.size()];
}

}  // namespace

std::string human_bytes(Bytes bytes) {
  static constexpr std::array<Unit, 6> kUnits{{{kKi * kKi * kKi * kKi * kKi, "PiB"},
                                               {kKi * kKi * kKi * kKi, "TiB"},
                                               {kKi * kKi * kKi, "GiB"},
                                               {kKi * kKi, "MiB"},
                                               {kKi, "KiB"},
                                               {1, "B"}}};
  if (std::abs(static_cast<double>(bytes)) < kKi) {
    return fmt::format("{} B", bytes);
  }
  return in_units(static_cast<double>(bytes), kUnits, kKi);
}

std::string human_seconds(Seconds seconds) {
  static constexpr std::array<Unit, 4> kUnits{{{1, "s"}, {1e-3, "ms"}, {1e-6, "µs"}, {1e-9, "ns"}}};
  return seconds == 0 ? "0 s" : in_units(seconds, kUnits, 1000);
}

std::string human_flops(Flops flops) {
  static constexpr std::array<Unit, 7> kUnits{{{1e18, "EFLOP"},
                                               {1e15, "PFLOP"},
                                               {1e12, "TFLOP"},
                                               {1e9, "GFLOP"},
                                               {1e6, "MFLOP"},
                                               {1e3, "kFLOP"},
                                               {1, "FLOP"}}};
  return in_units(flops, kUnits, 1000);
}

std::string human_count(double count) {
  static constexpr std::array<Unit, 4> kUnits{{{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "k"}}};
  if (std::abs(count) < 1000) {
    return count == std::floor(count) ? fmt::format("{:.0f}", count) : three_digits(count);
  }
  return in_units(count, kUnits, 1000);
}

Result<Bytes> parse_bytes(std::string_view text) {
  const auto wrong = [&](std::string_view what) {
    return invalid_input(fmt::format(
        "'{}' {}; write a size such as 20GiB, 512MiB, 80GB or plain bytes", text, what));
  };
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, failed] = std::from_chars(text.data(), end, number);
  if (failed != std::errc{} || !std::isfinite(number)) {
    return wrong("is not a size in bytes");
  }
  if (number < 0) {
    return wrong("is negative");
  }
  std::string unit(rest, end);
  std::erase(unit, ' ');
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  static constexpr std::array<Unit, 10> kUnits{{{1, ""},
                                                {1, "b"},
                                                {1e3, "kb"},
                                                {1e6, "mb"},
                                                {1e9, "gb"},
                                                {1e12, "tb"},
                                                {kKi, "kib"},
                                                {kKi * kKi, "mib"},
                                                {kKi * kKi * kKi, "gib"},
                                                {kKi * kKi * kKi * kKi, "tib"}}};
  const auto* const found = std::find_if(
      kUnits.begin(), kUnits.end(), [&](const Unit& candidate) { return candidate.name == unit; });
  if (found == kUnits.end()) {
    return wrong("has an unknown unit");
  }
  const double bytes = std::round(number * found->size);
  if (bytes >= static_cast<double>(std::numeric_limits<Bytes>::max())) {
    return wrong("is too large");
  }
  return static_cast<Bytes>(bytes);
}

namespace {

std::string lower_case(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return out;
}

}  // namespace

std::string suggest(std::string_view name, const std::vector<std::string>& known) {
  // A third of the letters may be wrong; more would suggest words that have little in common.
  std::size_t best = std::max<std::size_t>(1, name.size() / 3) + 1;
  std::string found;
  for (const std::string& candidate : known) {
    // Letters of the wrong case are no mistakes: MAP is map.
    const std::size_t distance = edit_distance(lower_case(name), lower_case(candidate));
    if (distance < best) {
      best = distance;
      found = candidate;
    }
  }
  return found;
}

std::string TextTable::text() const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], columns_of(row[i]));
    }
  }
  std::vector<bool> right(widths.size(), false);
  for (std::size_t i = 0; i < widths.size(); ++i) {
    bool any = false;
    right[i] = std::all_of(rows_.begin() + 1, rows_.end(), [&](const auto& row) {
      const bool blank = i >= row.size() || row[i].empty() || row[i] == "-";
      any = any || !blank;
      return blank || looks_numeric(row[i]);
    });
    right[i] = right[i] && any;
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - columns_of(row[i]), ' ');
      line += i == 0 ? "" : "  ";
      line += right[i] ? padding + row[i] : row[i] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

Result<std::string> read_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return io_error(path, "open", errno);
  }
  std::string content;
  constexpr std::size_t kChunk = std::size_t{1} << 20;
  while (true) {
    const std::size_t start = content.size();
    content.resize(start + kChunk);
    const ssize_t got = ::read(file, content.data() + start, kChunk);
    const int failed = errno;
    content.resize(start + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && failed == EINTR) {
      continue;
    }
    if (got <= 0) {
      ::close(file);
      return got == 0 ? Result<std::string>{std::move(content)}
                      : Result<std::string>{io_error(path, "read", failed)};
    }
  }
}

Status write_file(const std::string& path, std::string_view content) {
  struct stat existing {};
  const bool exists = ::stat(path.c_str(), &existing) == 0;
  if (exists && !S_ISREG(existing.st_mode)) {
    return write_in_place(path, content);
  }
  // A link keeps pointing to the file, whose content is replaced.
  std::string target = path;
  if (exists) {
    std::error_code failed;
    const std::filesystem::path resolved = std::filesystem::canonical(path, failed);
    target = failed ? path : resolved.string();
  }
  const std::string temporary = fmt::format("{}.{}.tmp", target, ::getpid());
  ::unlink(temporary.c_str());
  int failed = write_new(temporary, exists ? existing.st_mode & 0777 : 0666, content);
  if (failed == 0 && std::rename(temporary.c_str(), target.c_str()) != 0) {
    failed = errno;
  }
  if (failed != 0) {
    ::unlink(temporary.c_str());
    return io_error(path, "write", failed);
  }
  return {};
}

}  // namespace shardplan
