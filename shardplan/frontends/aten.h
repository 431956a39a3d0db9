#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shardplan/frontends/builder.h"
#include "shardplan/frontends/const_eval.h"
#include "shardplan/frontends/exported_program.h"
#include "shardplan/frontends/materialize.h"
#include "shardplan/ops/call.h"

/// How ATen's operators become ops of the graph: one row of a table an operator, one file a family.
namespace shardplan::frontends {

/// What the import of one archive carries from call to call.
struct ImportState {
  const ExportedProgram& program;
  Builder& builder;
  std::unordered_map<std::string, Operand> operands{};
  /// Results of log_softmax over the last dimension, with its operand: nll_loss of one is
  /// cross-entropy.
  std::unordered_map<ir::ValueId, ir::ValueId> log_softmax_operand{};
  std::int64_t dropout_sites = 0;
  /// Buffers that an operator writes in place, and their new content.
  std::vector<ir::Write> writes{};
};

/// Whether a tensor has a dimension of size 0: models make such ones to join them to others.
[[nodiscard]] bool is_without_elements(const ExportedProgram& program, const std::string& tensor);

/// One call of an ATen operator while it is being imported: typed access to its named arguments,
/// and the place for its results. Every getter keeps the first error in the builder and then
/// returns something harmless, so a mapping checks `ok()` only before it looks into shapes.
class AtenCall {
 public:
  AtenCall(ImportState& state, const ExportedNode& node);

  [[nodiscard]] Builder& builder() { return state_.builder; }
  [[nodiscard]] ImportState& state() { return state_; }
  [[nodiscard]] const ExportedNode& node() const { return node_; }
  [[nodiscard]] bool ok() const { return state_.builder.ok(); }
  /// Name of our op that the table gives for this operator.
  [[nodiscard]] std::string_view ours() const { return ours_; }
  void set_ours(std::string_view ours) { ours_ = ours; }

  // Arguments that are no tensors. An argument that is missing or None has the fallback; one of
  // another kind is an error.
  [[nodiscard]] bool given(std::string_view name) const;
  [[nodiscard]] std::int64_t integer(std::string_view name, std::int64_t fallback);
  [[nodiscard]] double real(std::string_view name, double fallback);
  [[nodiscard]] bool flag(std::string_view name, bool fallback);
  [[nodiscard]] std::string text(std::string_view name, const std::string& fallback);
  [[nodiscard]] std::vector<std::int64_t> integers(std::string_view name);
  [[nodiscard]] std::vector<double> reals(std::string_view name);
  [[nodiscard]] std::optional<ir::DType> dtype(std::string_view name);
  /// A dimension argument, counted from the front and checked against the rank.
  [[nodiscard]] std::size_t dim(std::string_view name, std::int64_t fallback, std::int64_t rank);
  /// The same for a list; an empty or missing list is all dimensions. Sorted.
  [[nodiscard]] ir::IntList dims(std::string_view name, std::int64_t rank);
  /// A number, or a tensor whose elements are all equal and known.
  [[nodiscard]] std::optional<Number> number(std::string_view name) const;

  // Tensors.
  /// Known content, or null.
  [[nodiscard]] const ConstTensor* constant(std::string_view name) const;
  /// The same, or a number as a scalar tensor (f64 or i64).
  [[nodiscard]] std::optional<ConstTensor> constant_or_number(std::string_view name) const;
  /// The number that stands for the whole operand `name`: a literal, or a constant of equal
  /// elements that the shape of the other operand, `tensor`, already covers.
  [[nodiscard]] std::optional<double> scalar_beside(std::string_view name, std::string_view tensor);
  /// All of a list, if the content of each is known.
  [[nodiscard]] std::optional<std::vector<ConstTensor>> constants(std::string_view name) const;
  /// The value in the graph, in full shape.
  [[nodiscard]] ir::ValueId tensor(std::string_view name);
  /// The same, in the dtype.
  [[nodiscard]] ir::ValueId tensor_as(std::string_view name, ir::DType dtype);
  /// An invalid id when the argument is missing or None.
  [[nodiscard]] ir::ValueId tensor_if_given(std::string_view name);
  /// All of a list but those without elements, which the graph does not have.
  [[nodiscard]] std::vector<ir::ValueId> tensors(std::string_view name);
  /// The same; an element that is missing or None is an invalid id.
  [[nodiscard]] std::vector<ir::ValueId> tensors_if_given(std::string_view name);
  /// Type of a tensor argument as the archive has it.
  [[nodiscard]] ir::TensorType type_of(std::string_view name);

  // Results.
  [[nodiscard]] std::size_t result_count() const { return node_.outputs.size(); }
  /// Type of a result as the archive has it.
  [[nodiscard]] ir::TensorType result_type(std::size_t index = 0);
  void result(ir::ValueId value, std::size_t index = 0);
  void constant_result(ConstTensor value);

  /// See materialize.h.
  [[nodiscard]] ir::ValueId materialize_compact(const ConstTensor& constant);
  [[nodiscard]] ir::ValueId materialize(const ConstTensor& constant);
  /// `x` in the dtype and shape of its result: casts and reshapes where they differ.
  [[nodiscard]] ir::ValueId cast(ir::ValueId x, ir::DType dtype);
  [[nodiscard]] ir::ValueId reshape(ir::ValueId x, const ir::Shape& shape);
  [[nodiscard]] ir::ValueId permute(ir::ValueId x, const ir::IntList& permutation);

  /// Appends a `call` of the operator by its name, with all its arguments and results.
  void call_by_name();

  /// Reports that this use of the operator is not supported, or is wrong.
  void unsupported(std::string why);
  void invalid(std::string why);
  [[nodiscard]] std::int64_t next_dropout_site() { return ++state_.dropout_sites; }

 private:
  [[nodiscard]] const Argument* find(std::string_view name) const;
  [[nodiscard]] const Argument* find(std::string_view name, Argument::Kind kind);
  [[nodiscard]] std::string where() const;
  /// Whether a result is a tensor that the graph can hold: some operators give empty ones beside.
  [[nodiscard]] bool has_elements(std::size_t index) const;
  /// The argument of a `call`; appends the tensors that it names to `operands`.
  [[nodiscard]] ops::CallValue call_value(const Argument& argument,
                                          std::vector<ir::ValueId>& operands);
  [[nodiscard]] ir::ValueId value_of(const std::string& tensor_name);

  ImportState& state_;
  const ExportedNode& node_;
  std::string_view ours_;
};

/// One row of the table.
struct AtenOp {
  std::string_view target;  ///< "aten.linear.default"
  /// Appends our ops. Null: only calls that `fold` can compute are supported.
  void (*map)(AtenCall&) = nullptr;
  std::string_view ours{};  ///< what `map` needs to know which operator it is
  /// The content of the result where it is known; tried first. Null: never.
  std::optional<ConstTensor> (*fold)(AtenCall&) = nullptr;
};

[[nodiscard]] std::vector<AtenOp> aten_creation();       // aten_creation.cc
[[nodiscard]] std::vector<AtenOp> aten_elementwise();    // aten_elementwise.cc
[[nodiscard]] std::vector<AtenOp> aten_functions();      // aten_functions.cc
[[nodiscard]] std::vector<AtenOp> aten_selection();      // aten_selection.cc
[[nodiscard]] std::vector<AtenOp> aten_logic();          // aten_logic.cc
[[nodiscard]] std::vector<AtenOp> aten_shape();          // aten_shape.cc
[[nodiscard]] std::vector<AtenOp> aten_indexing();       // aten_indexing.cc
[[nodiscard]] std::vector<AtenOp> aten_embedding_bag();  // aten_embedding_bag.cc
[[nodiscard]] std::vector<AtenOp> aten_convolution();    // aten_convolution.cc
[[nodiscard]] std::vector<AtenOp> aten_matmul();         // aten_matmul.cc
[[nodiscard]] std::vector<AtenOp> aten_reduction();      // aten_reduction.cc
[[nodiscard]] std::vector<AtenOp> aten_normalization();  // aten_normalization.cc
[[nodiscard]] std::vector<AtenOp> aten_batch_norm();     // aten_batch_norm.cc
[[nodiscard]] std::vector<AtenOp> aten_pooling();        // aten_pooling.cc
[[nodiscard]] std::vector<AtenOp> aten_resample();       // aten_resample.cc
[[nodiscard]] std::vector<AtenOp> aten_attention();      // aten_attention.cc
[[nodiscard]] std::vector<AtenOp> aten_loss();           // aten_loss.cc

/// pad by the elements that are there: pairs (before, after) from the last dimension on, mode
/// "reflect", "replicate" or "circular". In aten_resample.cc.
void map_pad_by_content(AtenCall& c, const std::string& mode, const std::vector<std::int64_t>& pad);

/// All rows by target.
[[nodiscard]] std::unordered_map<std::string_view, AtenOp> aten_table();

}  // namespace shardplan::frontends
