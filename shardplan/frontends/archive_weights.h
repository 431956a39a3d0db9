#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "shardplan/frontends/const_tensor.h"
#include "shardplan/frontends/exported_program.h"
#include "shardplan/frontends/pt2_archive.h"
#include "shardplan/ir/graph.h"
#include "shardplan/support/result.h"

namespace shardplan::frontends {

/// The contents of parameters, buffers and constants that a `.pt2` archive holds, by the user's
/// names. Read from the archive when asked for.
class ArchiveWeights {
 public:
  /// Reads the lists of weights and constants. `archive` must outlive the result.
  static Result<ArchiveWeights> create(const Pt2Archive& archive, const std::string& path);

  /// Where the tensor lies; null when the archive does not list it.
  [[nodiscard]] const WeightFile* file(std::string_view name) const;
  /// False under the meta device, where files are listed but empty.
  [[nodiscard]] bool has_data(std::string_view name) const;
  /// The bytes, row-major; an error when there are none, or not as many as the type needs.
  [[nodiscard]] Result<ir::Data> data(const std::string& name, const ir::TensorType& type) const;
  /// Content to fold constants with, of a tensor of at most 16 MiB; a mask as a band. Nothing when
  /// it is not there or has another form.
  [[nodiscard]] std::optional<ConstTensor> content(std::string_view name,
                                                   const ir::TensorType& type) const;
  /// The same for a buffer that no step changes: integers and truth values, which are positions and
  /// masks, and masks in any type, are as good as constants.
  [[nodiscard]] std::optional<ConstTensor> fixed_content(std::string_view name,
                                                         const ir::TensorType& type) const;

 private:
  ArchiveWeights(const Pt2Archive& archive, const std::string& path)
      : archive_(&archive), path_(path) {}
  Status read_list(std::string_view folder, std::string_view list);

  const Pt2Archive* archive_;
  std::string path_;
  WeightFiles files_;
};

}  // namespace shardplan::frontends
