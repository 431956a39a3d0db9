#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shardplan/ir/graph.h"
#include "shardplan/support/result.h"

namespace shardplan::frontends {

struct LoadOptions {
  bool weights = false;  ///< read weight data too (a run needs them; planning does not)
  /// Sizes of named dimensions ("batch" = 64), for models that leave them open.
  std::map<std::string, std::int64_t> dims{};
  /// Put behind the model's output, see parse_loss; empty or "none": the first output is the loss.
  std::string loss{};
  std::string target = "target";  ///< name of the input that the loss compares with
};

/// The forward graph of MODEL: a `.pt2` archive of torch.export, an `.onnx` file, a file in the
/// text form (`.sp`), or a zoo name such as
/// "gpt:layers=12,hidden=768,heads=12,seq=1024,batch=8,vocab=50257" or
/// "mlp:layers=4,hidden=1024,batch=64". outputs[0] is the scalar loss; the graph is canonical (see
/// rewrite). Unknown names and keys get suggestions.
[[nodiscard]] Result<ir::Graph> load_model(const std::string& name_or_path,
                                           const LoadOptions& options = {});

[[nodiscard]] Result<ir::Graph> read_pt2(const std::string& path, const LoadOptions& options = {});
/// An ONNX model. Floating initializers of at least one dimension are trainable parameters, but for
/// running statistics and masks; all others are constants. Ops that depend on no input are folded
/// where shapes need them. See docs/onnx.md.
[[nodiscard]] Result<ir::Graph> read_onnx(const std::string& path, const LoadOptions& options = {});
/// The same without a loss, for evaluation: outputs[0] is a zero in its place, the outputs of the
/// model follow in its order.
[[nodiscard]] Result<ir::Graph> read_onnx_outputs(const std::string& path,
                                                  const LoadOptions& options = {});
[[nodiscard]] Result<ir::Graph> zoo_model(std::string_view name);

struct ZooEntry {
  std::string name{};
  std::string summary{};
  std::string parameters{};  ///< "layers=12,hidden=768,..." with the defaults
};
[[nodiscard]] std::vector<ZooEntry> zoo();

}  // namespace shardplan::frontends
