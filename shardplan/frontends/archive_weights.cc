#include "shardplan/frontends/archive_weights.h"

#include <fmt/format.h>

#include <memory>
#include <utility>
#include <vector>

#include "shardplan/frontends/const_eval.h"

namespace shardplan::frontends {

namespace {

constexpr std::uint64_t kMaxListBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kMaxFoldedBytes = std::uint64_t{16} << 20;
constexpr std::uint64_t kMaxWeightBytes = std::uint64_t{1} << 40;

ir::Shape contiguous_strides(const ir::Shape& shape) {
  ir::Shape strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * shape[d];
  }
  return strides;
}

bool is_contiguous(const ExportedTensor& tensor) {
  const ir::Shape plain = contiguous_strides(tensor.type.shape);
  if (tensor.strides.size() != plain.size()) {
    return tensor.strides.empty();
  }
  for (std::size_t d = 0; d < plain.size(); ++d) {
    if (tensor.type.shape[d] != 1 && tensor.strides[d] != plain[d]) {
      return false;
    }
  }
  return true;
}

/// Whether a strided tensor lies inside `elements` elements of storage, no element used twice.
bool fits_storage(const ExportedTensor& tensor, std::int64_t elements) {
  if (tensor.strides.size() != tensor.type.shape.size() || tensor.type.numel() > elements ||
      tensor.storage_offset < 0) {
    return false;
  }
  std::int64_t last = tensor.storage_offset;
  for (std::size_t d = 0; d < tensor.strides.size(); ++d) {
    const std::int64_t steps = tensor.type.shape[d] - 1;
    if (tensor.strides[d] < 0 || last >= elements ||
        (steps > 0 && tensor.strides[d] > (elements - 1 - last) / steps)) {
      return false;
    }
    last += steps * tensor.strides[d];
  }
  return last < elements;
}

/// Elements of a strided tensor inside its storage, row-major. Precondition: it fits.
std::vector<std::byte> gather_strided(const ExportedTensor& tensor,
                                      const std::vector<std::byte>& storage) {
  const ir::TensorType& type = tensor.type;
  const Bytes width = ir::element_bytes(type.dtype);
  std::vector<std::byte> out;
  out.reserve(static_cast<std::size_t>(type.bytes()));
  ir::Shape index(type.shape.size(), 0);
  for (std::int64_t k = 0; k < type.numel(); ++k) {
    std::int64_t at = tensor.storage_offset;
    for (std::size_t d = 0; d < index.size(); ++d) {
      at += index[d] * tensor.strides[d];
    }
    const auto start = storage.begin() + at * width;
    out.insert(out.end(), start, start + width);
    for (std::size_t d = index.size(); d-- > 0;) {
      if (++index[d] < type.shape[d]) {
        break;
      }
      index[d] = 0;
    }
  }
  return out;
}

}  // namespace

Result<ArchiveWeights> ArchiveWeights::create(const Pt2Archive& archive, const std::string& path) {
  if (archive.has("byteorder")) {
    SHARDPLAN_ASSIGN_OR_RETURN(const std::string order, archive.read("byteorder", 64));
    if (order != "little") {
      return Error{ErrorCode::kUnsupported,
                   fmt::format("its numbers have byte order '{}', little is supported", order),
                   path,
                   {}};
    }
  }
  ArchiveWeights weights(archive, path);
  SHARDPLAN_RETURN_IF_ERROR(
      weights.read_list("data/weights/", "data/weights/model_weights_config.json"));
  SHARDPLAN_RETURN_IF_ERROR(
      weights.read_list("data/constants/", "data/constants/model_constants_config.json"));
  return weights;
}

Status ArchiveWeights::read_list(std::string_view folder, std::string_view list) {
  if (!archive_->has(list)) {
    return {};
  }
  SHARDPLAN_ASSIGN_OR_RETURN(const std::string json, archive_->read(list, kMaxListBytes));
  SHARDPLAN_ASSIGN_OR_RETURN(WeightFiles found, parse_weight_files(json, folder, path_));
  files_.merge(std::move(found));
  return {};
}

const WeightFile* ArchiveWeights::file(std::string_view name) const {
  const auto found = files_.find(name);
  return found == files_.end() ? nullptr : &found->second;
}

bool ArchiveWeights::has_data(std::string_view name) const {
  const WeightFile* const where = file(name);
  return where != nullptr && archive_->size(where->entry).value_or(0) > 0;
}

Result<ir::Data> ArchiveWeights::data(const std::string& name, const ir::TensorType& type) const {
  const std::string where = fmt::format("{}: '{}'", path_, name);
  const WeightFile* const found = file(name);
  if (found == nullptr || !has_data(name)) {
    return Error{ErrorCode::kNotFound,
                 "the archive holds no data for it",
                 where,
                 {"export the model with its weights (not under the meta device)"}};
  }
  if (found->pickled) {
    return Error{ErrorCode::kUnsupported,
                 "its data are pickled, only plain tensors are supported",
                 where,
                 {}};
  }
  const ExportedTensor& tensor = found->tensor;
  if (!tensor.problem.empty() || tensor.type != type) {
    return invalid_input("its file and its type in the graph differ", where);
  }
  SHARDPLAN_ASSIGN_OR_RETURN(std::vector<std::byte> bytes,
                             archive_->read_bytes(found->entry, kMaxWeightBytes));
  const auto size = static_cast<Bytes>(bytes.size());
  const bool plain = is_contiguous(tensor) && tensor.storage_offset == 0 && size == type.bytes();
  if (!plain && !fits_storage(tensor, size / ir::element_bytes(type.dtype))) {
    return invalid_input(
        fmt::format("{} needs {} bytes, but its file has {}", to_string(type), type.bytes(), size),
        where);
  }
  return std::make_shared<const std::vector<std::byte>>(plain ? std::move(bytes)
                                                              : gather_strided(tensor, bytes));
}

std::optional<ConstTensor> ArchiveWeights::content(std::string_view name,
                                                   const ir::TensorType& type) const {
  const WeightFile* const found = file(name);
  if (found == nullptr || found->pickled || found->tensor.type != type ||
      !is_contiguous(found->tensor) ||
      archive_->size(found->entry) != static_cast<std::uint64_t>(type.bytes())) {
    return std::nullopt;
  }
  const Result<std::vector<std::byte>> bytes = archive_->read_bytes(found->entry, kMaxFoldedBytes);
  if (!bytes) {
    return std::nullopt;
  }
  std::optional<ConstTensor> known = ConstTensor::from_bytes(type, *bytes);
  if (!known.has_value()) {
    return std::nullopt;
  }
  if (std::optional<ConstTensor> band = recognise_band(*known)) {
    return band;
  }
  return known;
}

std::optional<ConstTensor> ArchiveWeights::fixed_content(std::string_view name,
                                                         const ir::TensorType& type) const {
  if (ir::is_floating(type.dtype) && type.rank() < 2) {
    return std::nullopt;
  }
  std::optional<ConstTensor> known = content(name, type);
  const bool mask = known.has_value() && known->band().has_value();
  return mask || !ir::is_floating(type.dtype) ? known : std::nullopt;
}

}  // namespace shardplan::frontends
