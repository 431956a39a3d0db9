#include "shardplan/ops/call_workspace.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "shardplan/ops/call.h"
#include "shardplan/ops/checks.h"
#include "shardplan/ops/recurrent_workspace.h"

namespace shardplan::ops {
namespace {

using ir::TensorType;

constexpr Bytes kIndex = 4;  ///< a pivot or a status of LAPACK

Bytes bytes_of(Inputs types) {
  Bytes bytes = 0;
  for (const TensorType& type : types) {
    bytes += type.bytes();
  }
  return bytes;
}

/// A call and its arguments.
class Call {
 public:
  Call(const OpView& op, std::vector<CallArgument> arguments, Inputs given)
      : op_(op), arguments_(std::move(arguments)), given_(given) {}

  [[nodiscard]] Inputs operands() const { return op_.inputs; }
  [[nodiscard]] const TensorType& operand(std::size_t i) const { return op_.inputs[i]; }
  [[nodiscard]] Bytes element() const { return ir::element_bytes(operand(0).dtype); }
  /// Of what the op makes: results, or gradients of operands.
  [[nodiscard]] Bytes made() const { return bytes_of(op_.results); }
  [[nodiscard]] std::size_t count_made() const { return op_.results.size(); }
  [[nodiscard]] const TensorType& result() const { return op_.results[0]; }
  /// Of a gradient: those of the results, which are of the size of the results themselves.
  [[nodiscard]] const TensorType& given() const { return given_[0]; }

  [[nodiscard]] std::int64_t integer(std::string_view name, std::int64_t otherwise) const {
    const CallValue* const value = find_argument(arguments_, name);
    return value == nullptr || value->kind != CallValue::Kind::kInt ? otherwise : value->integer;
  }
  [[nodiscard]] double number(std::string_view name, double otherwise) const {
    const CallValue* const value = find_argument(arguments_, name);
    if (value == nullptr || value->kind == CallValue::Kind::kNone) {
      return otherwise;
    }
    return value->kind == CallValue::Kind::kReal ? value->real
                                                 : static_cast<double>(value->integer);
  }
  [[nodiscard]] bool gives(std::string_view name) const {
    const CallValue* const value = find_argument(arguments_, name);
    return value != nullptr && value->kind != CallValue::Kind::kNone;
  }

 private:
  const OpView& op_;
  std::vector<CallArgument> arguments_;
  Inputs given_;
};

// Distances ---------------------------------------------------------------------------------------

/// Two differences and two distances of each row; the result is the mean of one of them.
Bytes triplet(const Call& c) {
  const TensorType& x = c.operand(0);
  const std::int64_t rows = x.numel() / std::max<std::int64_t>(1, x.shape.back());
  return (2 * x.numel() + 2 * rows) * c.element();
}
Bytes triplet_forward(const Call& c) {
  return triplet(c) - c.made();
}
Bytes triplet_backward(const Call& c) {
  const TensorType& x = c.operand(0);
  return triplet(c) + c.given().bytes() + x.numel() / std::max<std::int64_t>(1, x.shape.back());
}

/// [batch..., m, d] and [batch..., k, d]; whether ATen takes the distances from a product.
struct Distances {
  std::int64_t batch = 1;
  std::int64_t m = 1;
  std::int64_t k = 1;
  std::int64_t d = 1;
  bool by_product = false;

  explicit Distances(const Call& c) {
    constexpr std::int64_t kFew = 25;
    constexpr std::int64_t kAlways = 1;
    constexpr std::int64_t kNever = 2;
    const ir::Shape& a = c.operand(0).shape;
    const ir::Shape& b = c.operand(1).shape;
    m = a[a.size() - 2];
    k = b[b.size() - 2];
    d = a.back();
    batch = c.operand(0).numel() / std::max<std::int64_t>(1, m * d);
    const std::int64_t mode = c.integer("compute_mode", 0);
    by_product =
        c.number("p", 2.0) == 2.0 && mode != kNever && (mode == kAlways || m > kFew || k > kFew);
  }
};

/// Both operands with their squares and a column of ones.
Bytes cdist_forward(const Call& c) {
  const Distances s(c);
  return s.by_product ? s.batch * (s.m + s.k) * (s.d + 2) * c.element() : 0;
}
Bytes cdist_backward(const Call& c) {
  const Distances s(c);
  if (!s.by_product) {  // the second operand's gradient is that of the distances turned around
    return c.count_made() > 1 ? 3 * c.given().bytes() : c.given().bytes();
  }
  const std::int64_t all = s.batch * (2 * s.m * s.k + (s.m + s.k) * (3 * s.d + 1));
  return std::max<Bytes>(0, all * c.element() - c.made());
}

// Linear algebra ----------------------------------------------------------------------------------

/// A copy of [batch..., n, n] with pivots, and what LAPACK's factors are called by.
Bytes factors(const Call& c) {
  const TensorType& a = c.operand(0);
  const std::int64_t n = std::max<std::int64_t>(1, a.shape.back());
  const std::int64_t batch = a.numel() / (n * n);
  constexpr Bytes kOwn = 12;
  return a.bytes() + batch * (n * (kIndex + 1) + kIndex) + kOwn;
}
/// The gradient of an inverse is a product of three.
Bytes inverse_backward(const Call& c) {
  return 3 * c.given().bytes();
}
/// The factors and their pivots, a copy of them, and a solution.
Bytes solve_backward(const Call& c) {
  const TensorType& a = c.operand(0);
  const Bytes pivots = a.numel() / std::max<std::int64_t>(1, a.shape.back()) * kIndex;
  return 2 * a.bytes() + c.given().bytes() + pivots;
}

// Cells -------------------------------------------------------------------------------------------

/// Gates from x and from the state, and their sums.
Bytes lstm_cell(const Call& c) {
  constexpr Bytes kStates = 6;
  return kStates * c.operand(1).bytes();
}
Bytes gru_cell_forward(const Call& c) {
  constexpr Bytes kStates = 7;
  return kStates * c.operand(1).bytes();
}
/// At its end, or before there is a gradient of a weight.
Bytes gru_cell_backward(const Call& c) {
  constexpr Bytes kEnd = 4;
  constexpr Bytes kStart = 13;
  return std::max(kEnd * c.given().bytes(), kStart * c.given().bytes() - c.made());
}
Bytes rnn_cell(const Call& c) {
  return 2 * c.operand(1).bytes();
}

// Others ------------------------------------------------------------------------------------------

/// x1 [batch, i], x2 [batch, j], weight [o, i, j]: one output at a time, and a column of it.
Bytes bilinear_forward(const Call& c) {
  const TensorType& x2 = c.operand(1);
  return x2.bytes() + x2.bytes() / std::max<std::int64_t>(1, x2.shape.back());
}
/// All pairs of features of each sample, or the weight's gradient beside one output's.
Bytes bilinear_backward(const Call& c) {
  const TensorType& x1 = c.operand(0);
  const ir::Shape& w = c.operand(2).shape;
  const std::int64_t rows = x1.numel() / std::max<std::int64_t>(1, x1.shape.back());
  const std::int64_t pairs = w[1] * w[2];
  const std::int64_t all = 2 * x1.numel() + w[0] + std::max(rows * pairs, (w[0] + 1) * pairs);
  return std::max<Bytes>(0, c.given().bytes() + all * c.element() - c.made());
}

/// The result, its product with the gradient, that one's sum and two more; and where x is zero.
Bytes cumprod_backward(const Call& c) {
  return 4 * c.given().bytes() + c.given().numel();
}

/// The grid before it is transformed: three numbers for two.
Bytes affine_grid_forward(const Call& c) {
  return c.result().bytes() * 3 / 2;
}
Bytes affine_grid_backward(const Call& c) {
  const ir::Shape& grid = c.given().shape;
  const std::int64_t longest = *std::max_element(grid.begin() + 1, grid.end() - 1);
  return c.given().bytes() * 5 / 2 + (3 * longest + 2) * c.element() - c.made();
}

/// Norms along the first dimension are kept once, along others in f32 or f64 besides.
Bytes weight_norm_forward(const Call& c) {
  return (c.integer("dim", 0) == 0 ? 1 : 2) * c.operand(1).bytes();
}
Bytes weight_norm_backward(const Call& c) {
  return c.given().bytes() + (c.integer("dim", 0) == 0 ? 1 : 4) * c.operand(1).bytes();
}

/// Counts and the edges of the bins.
Bytes histc_forward(const Call& c) {
  return 2 * c.result().bytes() + c.element();
}

/// The operand with what is put before and after it, joined.
Bytes diff_forward(const Call& c) {
  return c.gives("prepend") || c.gives("append") ? bytes_of(c.operands()) : 0;
}

/// The result alone; where an operand was broadcast, its gradient before the sum as well.
Bytes product_backward(const Call& c) {
  const bool spread = std::any_of(c.operands().begin(), c.operands().end(), [&](const auto& type) {
    return type.numel() != c.given().numel();
  });
  return (spread ? 2 : 1) * c.given().bytes();
}
Bytes only_result(const Call& c) {
  return c.given().bytes();
}
Bytes nothing(const Call& /*call*/) {
  return 0;
}

/// An operator, its least operands, and what it takes.
struct Row {
  std::string_view name;
  std::size_t operands;
  Bytes (*forward)(const Call&);
  Bytes (*backward)(const Call&);
};

constexpr std::array<Row, 17> kRows{{
    {"_weight_norm", 2, weight_norm_forward, weight_norm_backward},
    {"affine_grid_generator", 1, affine_grid_forward, affine_grid_backward},
    {"bilinear", 3, bilinear_forward, bilinear_backward},
    {"cdist", 2, cdist_forward, cdist_backward},
    {"cumprod", 1, nothing, cumprod_backward},
    {"diff", 1, diff_forward, nullptr},
    {"grid_sampler", 2, nothing, only_result},
    {"gru_cell", 2, gru_cell_forward, gru_cell_backward},
    {"histc", 1, histc_forward, nullptr},
    {"linalg_inv", 1, factors, inverse_backward},
    {"linalg_solve", 2, factors, solve_backward},
    {"lstm_cell", 2, lstm_cell, lstm_cell},
    {"multiply", 2, nothing, product_backward},
    {"rnn_relu_cell", 2, rnn_cell, rnn_cell},
    {"rnn_tanh_cell", 2, rnn_cell, rnn_cell},
    {"scatter", 2, nothing, only_result},
    {"triplet_margin_loss", 3, triplet_forward, triplet_backward},
}};

/// Null where the operator is not known.
const Row* row_of(const OpView& call) {
  const std::string_view name = call_name(call.attributes.string("target"));
  const auto* const row =
      std::find_if(kRows.begin(), kRows.end(), [&](const Row& r) { return r.name == name; });
  return row == kRows.end() || call.inputs.size() < row->operands ? nullptr : row;
}

std::optional<Bytes> known(const OpView& op, Inputs given, Bytes (*formula)(const Call&)) {
  if (formula == nullptr || op.results.empty()) {
    return std::nullopt;
  }
  Result<std::vector<CallArgument>> arguments =
      parse_call_arguments(op.attributes.string("arguments"));
  if (!arguments.has_value()) {
    return std::nullopt;
  }
  return std::max<Bytes>(0, formula(Call(op, *std::move(arguments), given)));
}

}  // namespace

std::optional<Bytes> workspace_called(const OpView& call) {
  if (const std::optional<Bytes> cells = workspace_recurrent(call)) {
    return cells;
  }
  const Row* const row = row_of(call);
  return row == nullptr ? std::nullopt : known(call, {}, row->forward);
}

std::optional<Bytes> workspace_called_backward(const OpView& call, Inputs given) {
  if (const std::optional<Bytes> cells = workspace_recurrent_backward(call)) {
    return cells;
  }
  const Row* const row = row_of(call);
  return row == nullptr || given.empty() ? std::nullopt : known(call, given, row->backward);
}

}  // namespace shardplan::ops
