#include "shardplan/frontends/pt2_archive.h"

#include <fmt/format.h>
#include <zip.h>

#include <map>
#include <utility>

namespace shardplan::frontends {

namespace {

// torch.export stores without compression. Another writer may compress, but JSON and weights never
// shrink by more than this.
constexpr std::uint64_t kMaxRatio = 200;
constexpr std::uint64_t kRatioFreeBytes = 1 << 20;
constexpr zip_int64_t kMaxEntries = 1 << 20;

struct Entry {
  zip_uint64_t index = 0;
  std::uint64_t bytes = 0;
  std::uint64_t packed_bytes = 0;
};

struct Closer {
  void operator()(zip_t* zip) const { zip_discard(zip); }
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};

std::string open_message(int code) {
  zip_error_t error;
  zip_error_init_with_code(&error, code);
  std::string text = zip_error_strerror(&error);
  zip_error_fini(&error);
  return text;
}

}  // namespace

struct Pt2Archive::State {
  std::string path;
  std::unique_ptr<zip_t, Closer> zip;
  std::map<std::string, Entry, std::less<>> entries;
};

Pt2Archive::Pt2Archive(std::unique_ptr<State> state) : state_(std::move(state)) {}
Pt2Archive::Pt2Archive(Pt2Archive&&) noexcept = default;
Pt2Archive& Pt2Archive::operator=(Pt2Archive&&) noexcept = default;
Pt2Archive::~Pt2Archive() = default;

Result<Pt2Archive> Pt2Archive::open(const std::string& path) {
  auto state = std::make_unique<State>();
  state->path = path;
  int code = 0;
  state->zip.reset(zip_open(path.c_str(), ZIP_RDONLY, &code));
  if (state->zip == nullptr) {
    return Error{code == ZIP_ER_NOENT ? ErrorCode::kNotFound : ErrorCode::kInvalidInput,
                 fmt::format("is no readable .pt2 archive ({})", open_message(code)),
                 path,
                 {"write one with shardplan.export or torch.export.save"}};
  }
  const zip_int64_t count = zip_get_num_entries(state->zip.get(), 0);
  if (count > kMaxEntries) {
    return invalid_input(fmt::format("has {} entries, more than any .pt2 archive", count), path);
  }
  for (zip_int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<zip_uint64_t>(i);
    zip_stat_t stat;
    zip_stat_init(&stat);
    constexpr zip_uint64_t kNeeded = ZIP_STAT_NAME | ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE;
    if (zip_stat_index(state->zip.get(), index, 0, &stat) != 0 ||
        (stat.valid & kNeeded) != kNeeded) {
      return invalid_input(fmt::format("entry {} of the archive is damaged", i), path);
    }
    const std::string_view name = stat.name;
    const std::size_t slash = name.find('/');
    if (slash != std::string_view::npos) {
      state->entries[std::string(name.substr(slash + 1))] = {index, stat.size, stat.comp_size};
    }
  }
  return Pt2Archive(std::move(state));
}

bool Pt2Archive::has(std::string_view entry) const {
  return state_->entries.contains(entry);
}

std::optional<std::uint64_t> Pt2Archive::size(std::string_view entry) const {
  const auto found = state_->entries.find(entry);
  if (found == state_->entries.end()) {
    return std::nullopt;
  }
  return found->second.bytes;
}

Error Pt2Archive::error(std::string message, std::string_view entry) const {
  return invalid_input(std::move(message), fmt::format("{}: {}", state_->path, entry));
}

template <class Container>
Result<Container> Pt2Archive::read_as(std::string_view entry, std::uint64_t max_bytes) const {
  const auto found = state_->entries.find(entry);
  if (found == state_->entries.end()) {
    return error("the archive has no such entry", entry);
  }
  const Entry& info = found->second;
  if (info.bytes > max_bytes) {
    return error(fmt::format("has {} bytes, at most {} are possible here", info.bytes, max_bytes),
                 entry);
  }
  if (info.bytes > kRatioFreeBytes && info.bytes / kMaxRatio > info.packed_bytes) {
    return error(fmt::format("unpacks from {} to {} bytes, which looks like a decompression bomb",
                             info.packed_bytes,
                             info.bytes),
                 entry);
  }
  const std::unique_ptr<zip_file_t, Closer> file(zip_fopen_index(state_->zip.get(), info.index, 0));
  if (file == nullptr) {
    return error(fmt::format("cannot be read ({})", zip_strerror(state_->zip.get())), entry);
  }
  Container content(static_cast<std::size_t>(info.bytes), typename Container::value_type{});
  std::size_t done = 0;
  while (done < content.size()) {
    const zip_int64_t got = zip_fread(file.get(), content.data() + done, content.size() - done);
    if (got <= 0) {
      break;
    }
    done += static_cast<std::size_t>(got);
  }
  // Reading past the end is what makes libzip compare the CRC.
  char past_end = 0;
  if (done < content.size() || zip_fread(file.get(), &past_end, 1) != 0) {
    return error("is truncated or damaged", entry);
  }
  return content;
}

Result<std::string> Pt2Archive::read(std::string_view entry, std::uint64_t max_bytes) const {
  return read_as<std::string>(entry, max_bytes);
}

Result<std::vector<std::byte>> Pt2Archive::read_bytes(std::string_view entry,
                                                      std::uint64_t max_bytes) const {
  return read_as<std::vector<std::byte>>(entry, max_bytes);
}

}  // namespace shardplan::frontends
