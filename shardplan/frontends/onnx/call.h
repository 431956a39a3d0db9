#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shardplan/frontends/builder.h"
#include "shardplan/frontends/const_eval.h"
#include "shardplan/frontends/materialize.h"
#include "shardplan/frontends/onnx/model.h"

/// How ONNX's operators become ops of the graph: one row of a table an operator, one file a family.
namespace shardplan::frontends::onnx {

/// What the import of one model carries from node to node.
struct State {
  Builder& builder;
  std::unordered_map<std::string, Operand> operands{};
  /// Results of log-softmax over the last dimension, with its operand: the negative
  /// log-likelihood of one is cross-entropy.
  std::unordered_map<ir::ValueId, ir::ValueId> log_softmax_operand{};
  /// Running statistics that a node moves.
  std::vector<ir::Write> writes{};
  std::int64_t dropout_sites = 0;
};

/// One node while it is being imported: typed access to its operands by position and to its
/// attributes by name, and the place for its results. Every getter keeps the first error in the
/// builder and then returns something harmless, so a mapping checks `ok()` only before it looks
/// into shapes. Types of results are those that our ops infer.
class Call {
 public:
  Call(State& state, const Node& node, std::int64_t opset, std::string_view ours);

  [[nodiscard]] Builder& builder() { return state_.builder; }
  [[nodiscard]] State& state() { return state_; }
  [[nodiscard]] const Node& node() const { return node_; }
  [[nodiscard]] bool ok() const { return state_.builder.ok(); }
  /// Version of the operator set that the model uses.
  [[nodiscard]] std::int64_t opset() const { return opset_; }
  /// What the table's row says of the operator, usually the name of our op.
  [[nodiscard]] std::string_view ours() const { return ours_; }

  // Attributes. One that is missing has the fallback; one of another kind is an error.
  [[nodiscard]] const Attribute* attribute(std::string_view name) const;
  [[nodiscard]] bool has(std::string_view name) const { return attribute(name) != nullptr; }
  [[nodiscard]] std::int64_t integer(std::string_view name, std::int64_t fallback);
  [[nodiscard]] bool flag(std::string_view name, bool fallback);
  [[nodiscard]] double real(std::string_view name, double fallback);
  [[nodiscard]] std::string text(std::string_view name, const std::string& fallback);
  [[nodiscard]] ir::IntList integers(std::string_view name);

  // Operands.
  [[nodiscard]] std::size_t operand_count() const { return node_.inputs.size(); }
  [[nodiscard]] bool given(std::size_t index) const;
  [[nodiscard]] ir::TensorType type(std::size_t index);
  [[nodiscard]] std::int64_t rank(std::size_t index) { return type(index).rank(); }
  /// Known content, or null.
  [[nodiscard]] const ConstTensor* constant(std::size_t index) const;
  /// Of all operands, if each is known.
  [[nodiscard]] std::optional<std::vector<ConstTensor>> constants() const;
  /// The value of all elements, when they are known and equal.
  [[nodiscard]] std::optional<double> uniform(std::size_t index) const;
  /// The integers of an operand that must be known to give the graph its shapes; `what` it is.
  [[nodiscard]] ir::IntList known_integers(std::size_t index, std::string_view what);
  /// The one number of an operand that must be known; the fallback where it is left out.
  [[nodiscard]] double known_number(std::size_t index, std::string_view what, double fallback);
  /// An error unless operand `index` is there.
  void need(std::size_t index, std::string_view what);
  /// An error that says that operand `index` must be known when the model is read.
  void need_known(std::size_t index, std::string_view what);
  /// The value in the graph, in full shape.
  [[nodiscard]] ir::ValueId tensor(std::size_t index);
  /// An invalid id when the operand is left out.
  [[nodiscard]] ir::ValueId tensor_if_given(std::size_t index);
  /// All operands.
  [[nodiscard]] std::vector<ir::ValueId> tensors();

  /// A dimension, counted from the front and checked against the rank.
  [[nodiscard]] std::size_t dim(std::int64_t number, std::int64_t rank);
  /// The same for a list; sorted, each once.
  [[nodiscard]] ir::IntList dims(ir::IntList numbers, std::int64_t rank);
  /// The attribute `axes`, or the operand at `index` in newer operator sets; nothing when
  /// neither is given.
  [[nodiscard]] std::optional<ir::IntList> axes(std::size_t index);

  // Results.
  [[nodiscard]] std::size_t result_count() const { return node_.outputs.size(); }
  [[nodiscard]] bool wants(std::size_t index) const;
  void result(ir::ValueId value, std::size_t index = 0);
  void constant_result(ConstTensor value, std::size_t index = 0);

  /// Reports that this use of the operator is not supported, or is wrong.
  void unsupported(std::string why);
  void invalid(std::string why);
  [[nodiscard]] std::int64_t next_dropout_site() { return ++state_.dropout_sites; }

 private:
  [[nodiscard]] const Attribute* attribute(std::string_view name, Attribute::Kind kind);
  [[nodiscard]] const Operand* operand(std::size_t index) const;
  [[nodiscard]] std::string where() const;

  State& state_;
  const Node& node_;
  std::int64_t opset_;
  std::string_view ours_;
};

/// One row of the table.
struct Row {
  std::string_view op;  ///< "MatMul"
  /// Appends our ops. Null: only calls that `fold` can compute are supported.
  void (*map)(Call&) = nullptr;
  std::string_view ours{};  ///< what `map` needs to know which operator it is
  /// Computes results whose content is known and says whether it did; tried first. Null: never.
  bool (*fold)(Call&) = nullptr;
};

[[nodiscard]] std::vector<Row> elementwise_rows();    // elementwise.cc
[[nodiscard]] std::vector<Row> activation_rows();     // activation.cc
[[nodiscard]] std::vector<Row> logic_rows();          // logic.cc
[[nodiscard]] std::vector<Row> creation_rows();       // creation.cc
[[nodiscard]] std::vector<Row> shape_rows();          // shape.cc
[[nodiscard]] std::vector<Row> cutting_rows();        // cutting.cc
[[nodiscard]] std::vector<Row> indexing_rows();       // indexing.cc
[[nodiscard]] std::vector<Row> product_rows();        // product.cc
[[nodiscard]] std::vector<Row> reduction_rows();      // reduction.cc
[[nodiscard]] std::vector<Row> normalization_rows();  // normalization.cc
[[nodiscard]] std::vector<Row> loss_rows();           // loss.cc
[[nodiscard]] std::vector<Row> convolution_rows();    // convolution.cc
[[nodiscard]] std::vector<Row> pooling_rows();        // pooling.cc
[[nodiscard]] std::vector<Row> attention_rows();      // attention.cc
[[nodiscard]] std::vector<Row> recurrent_rows();      // recurrent.cc
[[nodiscard]] std::vector<Row> resize_rows();         // resize.cc
[[nodiscard]] std::vector<Row> scatter_rows();        // scatter.cc
[[nodiscard]] std::vector<Row> spatial_rows();        // spatial.cc
[[nodiscard]] std::vector<Row> called_rows();         // called.cc

/// Whether a node of an old operator set says at which axis its second operand stands.
[[nodiscard]] bool stands_at_axis(Call& c);
/// Operand 1 of an elementwise operator beside operand 0. Before operator set 7 the attributes
/// `broadcast` and `axis` say where its dimensions stand; since then they are aligned at the right.
[[nodiscard]] ir::ValueId second_operand(Call& c);

/// Indices of which negative ones count from the end of `size` elements.
[[nodiscard]] ir::ValueId wrapped(Builder& b, ir::ValueId indices, std::int64_t size);

/// All rows by operator.
[[nodiscard]] std::unordered_map<std::string_view, Row> table();

}  // namespace shardplan::frontends::onnx
