#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "shardplan/frontends/onnx/model.h"

namespace shardplan::frontends::onnx {

namespace {

namespace fs = std::filesystem;

/// The file of external data, which must lie inside the model's folder, links followed.
Result<fs::path> external_file(const External& external,
                               const std::string& model_path,
                               const std::string& where) {
  const auto outside = [&] {
    return invalid_input(fmt::format("its data lie in '{}', which is outside of the model's folder",
                                     external.location),
                         where);
  };
  const fs::path relative(external.location);
  if (external.location.empty() || external.location.find('\0') != std::string::npos ||
      relative.is_absolute()) {
    return outside();
  }
  std::error_code failure;
  const fs::path parent = fs::path(model_path).parent_path();
  const fs::path folder = fs::canonical(parent.empty() ? fs::path(".") : parent, failure);
  if (failure) {
    return invalid_input("its folder cannot be read", model_path);
  }
  const fs::path file = fs::weakly_canonical(folder / relative, failure);
  const auto [end, unused] = std::mismatch(folder.begin(), folder.end(), file.begin(), file.end());
  if (failure || end != folder.end()) {
    return outside();
  }
  if (!fs::is_regular_file(file, failure)) {
    return Error{ErrorCode::kNotFound,
                 fmt::format("its data file '{}' does not exist", external.location),
                 where,
                 {"keep the files of a model together"}};
  }
  return file;
}

}  // namespace

Result<ir::Data> read_bytes(const TensorData& tensor, const std::string& model_path) {
  const std::string where = fmt::format("{}: '{}'", model_path, tensor.name);
  auto bytes = std::make_shared<std::vector<std::byte>>();
  if (!tensor.external.has_value()) {
    bytes->resize(tensor.raw.size());
    std::memcpy(bytes->data(), tensor.raw.data(), tensor.raw.size());
    return ir::Data(std::move(bytes));
  }
  const External& external = *tensor.external;
  SHARDPLAN_ASSIGN_OR_RETURN(const fs::path path, external_file(external, model_path, where));
  const Bytes needed = tensor.type.bytes();
  std::error_code failure;
  const auto size = static_cast<std::int64_t>(fs::file_size(path, failure));
  if (failure || external.offset > size || needed > size - external.offset ||
      external.length.value_or(needed) != needed) {
    return invalid_input(
        fmt::format("{} needs {} bytes, '{}' has {} of which {} from byte {} are its own",
                    ir::to_string(tensor.type),
                    needed,
                    external.location,
                    failure ? 0 : size,
                    external.length.value_or(needed),
                    external.offset),
        where);
  }
  std::ifstream file(path, std::ios::binary);
  file.seekg(external.offset);
  bytes->resize(static_cast<std::size_t>(needed));
  file.read(reinterpret_cast<char*>(bytes->data()), needed);  // NOLINT
  if (!file) {
    return Error{ErrorCode::kIo, fmt::format("cannot read '{}'", external.location), where, {}};
  }
  return ir::Data(std::move(bytes));
}

}  // namespace shardplan::frontends::onnx
