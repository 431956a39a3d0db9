#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shardplan/ir/graph.h"

namespace shardplan::training {

/// A dense tensor of doubles, whatever the element type in the graph.
struct Tensor {
  ir::Shape shape;
  std::vector<double> data;

  [[nodiscard]] std::size_t offset(const ir::Shape& index) const {
    std::size_t at = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      at = at * static_cast<std::size_t>(shape[d]) + static_cast<std::size_t>(index[d]);
    }
    return at;
  }
  double& at(const ir::Shape& index) { return data[offset(index)]; }
  [[nodiscard]] double at(const ir::Shape& index) const { return data[offset(index)]; }
  /// At the place that `index` of a broadcast result reads.
  [[nodiscard]] double broadcast_at(const ir::Shape& index) const {
    ir::Shape own(shape.size());
    for (std::size_t d = 0; d < shape.size(); ++d) {
      own[d] = shape[d] == 1 ? 0 : index[index.size() - shape.size() + d];
    }
    return at(own);
  }
};

inline Tensor tensor(const ir::Shape& shape, double value = 0) {
  const ir::TensorType type{ir::DType::kFloat64, shape};
  return Tensor{shape, std::vector<double>(static_cast<std::size_t>(type.numel()), value)};
}

/// Calls `body` with every index of `shape`, in row-major order.
inline void for_each(const ir::Shape& shape, const std::function<void(const ir::Shape&)>& body) {
  ir::Shape index(shape.size(), 0);
  while (true) {
    body(index);
    std::size_t d = shape.size();
    while (d > 0 && ++index[d - 1] == shape[d - 1]) {
      index[--d] = 0;
    }
    if (d == 0) {
      return;
    }
  }
}

/// Runs graphs slowly and obviously, one element at a time, in double precision: the twin that the
/// gradients are checked against. Knows the ops that these tests need.
class Interpreter {
 public:
  explicit Interpreter(const ir::Graph& graph) : graph_(graph), values_(graph.values().size()) {}

  void set(const std::string& name, Tensor value) {
    const ir::ValueId id = graph_.find_input(name);
    ASSERT_TRUE(id.valid()) << name;
    ASSERT_EQ(graph_.type(id).shape, value.shape) << name;
    values_[id.index()] = std::move(value);
  }
  /// Runs forward and backward ops.
  void run() {
    clear_accumulators();
    run(ir::Phase::kForward);
    run(ir::Phase::kBackward);
  }
  void clear_accumulators() {
    for (std::size_t i = 0; i < graph_.values().size(); ++i) {
      if (graph_.values()[i].kind == ir::ValueKind::kAccumulator) {
        values_[i] = tensor(graph_.values()[i].type.shape);
      }
    }
  }
  /// Messages by their numbers, which send writes and receive reads.
  using Messages = std::map<std::int64_t, Tensor>;
  /// The ops of one phase; with `messages` of a stage.
  void run(ir::Phase phase, Messages* messages = nullptr) {
    for (const ir::Op& op : graph_.ops()) {
      if (op.phase != phase) {
        continue;
      }
      if (op.name == "send" || op.name == "receive") {
        ASSERT_NE(messages, nullptr);
        const std::int64_t message = op.attributes.integer("message");
        if (op.name == "send") {
          ASSERT_TRUE(messages->emplace(message, in(op, 0)).second) << message;
        } else {
          ASSERT_EQ(messages->count(message), 1U) << message;
          out(op) = messages->at(message);
        }
        continue;
      }
      for (const ir::ValueId output : op.outputs) {
        values_[output.index()] = tensor(graph_.type(output).shape);
      }
      execute(op);
    }
  }
  [[nodiscard]] const Tensor& value(ir::ValueId id) const { return values_[id.index()]; }

 private:
  const Tensor& in(const ir::Op& op, std::size_t i) { return values_[op.inputs[i].index()]; }
  Tensor& out(const ir::Op& op) { return values_[op.outputs[0].index()]; }

  /// One element from those of the operands, broadcast together.
  void map(const ir::Op& op, const std::function<double(const std::vector<double>&)>& f) {
    Tensor& y = out(op);
    for_each(y.shape, [&](const ir::Shape& index) {
      std::vector<double> x;
      for (std::size_t i = 0; i < op.inputs.size(); ++i) {
        x.push_back(in(op, i).broadcast_at(index));
      }
      y.at(index) = f(x);
    });
  }

  bool execute_elementwise(const ir::Op& op) {
    using Args = const std::vector<double>&;
    const double scalar = op.attributes.number_or("value", 0);
    const std::map<std::string, std::function<double(Args)>> table{
        {"identity", [](Args x) { return x[0]; }},
        {"cast", [](Args x) { return x[0]; }},
        {"broadcast", [](Args x) { return x[0]; }},
        {"neg", [](Args x) { return -x[0]; }},
        {"abs", [](Args x) { return std::abs(x[0]); }},
        {"exp", [](Args x) { return std::exp(x[0]); }},
        {"log", [](Args x) { return std::log(x[0]); }},
        {"sqrt", [](Args x) { return std::sqrt(x[0]); }},
        {"rsqrt", [](Args x) { return 1 / std::sqrt(x[0]); }},
        {"reciprocal", [](Args x) { return 1 / x[0]; }},
        {"sin", [](Args x) { return std::sin(x[0]); }},
        {"cos", [](Args x) { return std::cos(x[0]); }},
        {"tanh", [](Args x) { return std::tanh(x[0]); }},
        {"sigmoid", [](Args x) { return 1 / (1 + std::exp(-x[0])); }},
        {"relu", [](Args x) { return std::max(x[0], 0.0); }},
        {"add", [](Args x) { return x[0] + x[1]; }},
        {"sub", [](Args x) { return x[0] - x[1]; }},
        {"mul", [](Args x) { return x[0] * x[1]; }},
        {"div", [](Args x) { return x[0] / x[1]; }},
        {"maximum", [](Args x) { return std::max(x[0], x[1]); }},
        {"minimum", [](Args x) { return std::min(x[0], x[1]); }},
        {"eq", [](Args x) { return x[0] == x[1] ? 1.0 : 0.0; }},
        {"lt", [](Args x) { return x[0] < x[1] ? 1.0 : 0.0; }},
        {"gt", [](Args x) { return x[0] > x[1] ? 1.0 : 0.0; }},
        {"where", [](Args x) { return x[0] != 0 ? x[1] : x[2]; }},
        {"accumulate", [](Args x) { return x[0] + x[1]; }},
        {"tanh_backward", [](Args x) { return x[0] * (1 - x[1] * x[1]); }},
        {"sigmoid_backward", [](Args x) { return x[0] * x[1] * (1 - x[1]); }},
        {"relu_backward", [](Args x) { return x[1] > 0 ? x[0] : 0.0; }},
        {"full", [scalar](Args) { return scalar; }},
        {"add_scalar", [scalar](Args x) { return x[0] + scalar; }},
        {"maximum_scalar", [scalar](Args x) { return std::max(x[0], scalar); }},
        {"ge_scalar", [scalar](Args x) { return x[0] >= scalar ? 1.0 : 0.0; }},
        {"gt_scalar", [scalar](Args x) { return x[0] > scalar ? 1.0 : 0.0; }},
        {"lt_scalar", [scalar](Args x) { return x[0] < scalar ? 1.0 : 0.0; }},
        {"ne_scalar", [scalar](Args x) { return x[0] != scalar ? 1.0 : 0.0; }},
        {"scale", [&op](Args x) { return x[0] * op.attributes.number("factor"); }},
        {"pow_scalar", [&op](Args x) { return std::pow(x[0], op.attributes.number("exponent")); }},
    };
    const auto found = table.find(op.name);
    if (found == table.end()) {
      return false;
    }
    map(op, found->second);
    return true;
  }

  void execute(const ir::Op& op) {
    if (execute_elementwise(op)) {
      return;
    }
    const std::map<std::string, void (Interpreter::*)(const ir::Op&)> table{
        {"reshape", &Interpreter::reshape},
        {"transpose", &Interpreter::transpose},
        {"slice", &Interpreter::slice},
        {"pad", &Interpreter::pad},
        {"concat", &Interpreter::concat},
        {"sum", &Interpreter::reduce},
        {"max", &Interpreter::reduce},
        {"cumsum", &Interpreter::cumsum},
        {"einsum", &Interpreter::einsum},
        {"sum_exp", &Interpreter::sum_exp},
        {"label_score", &Interpreter::label_score},
        {"label_score_backward", &Interpreter::label_score_backward},
        {"embedding", &Interpreter::embedding},
        {"embedding_backward", &Interpreter::embedding_backward},
        {"softmax", &Interpreter::softmax},
        {"softmax_backward", &Interpreter::softmax_backward},
    };
    const auto found = table.find(op.name);
    ASSERT_TRUE(found != table.end()) << op.name;
    (this->*found->second)(op);
  }

  static std::size_t dim(const ir::Op& op) {
    return static_cast<std::size_t>(op.attributes.integer("dim"));
  }

  void reshape(const ir::Op& op) { out(op).data = in(op, 0).data; }

  void transpose(const ir::Op& op) {
    const ir::IntList& permutation = op.attributes.ints("permutation");
    for_each(out(op).shape, [&](const ir::Shape& index) {
      ir::Shape from(index.size());
      for (std::size_t d = 0; d < index.size(); ++d) {
        from[static_cast<std::size_t>(permutation[d])] = index[d];
      }
      out(op).at(index) = in(op, 0).at(from);
    });
  }

  void slice(const ir::Op& op) {
    for_each(out(op).shape, [&](const ir::Shape& index) {
      ir::Shape from = index;
      from[dim(op)] =
          op.attributes.integer("start") + index[dim(op)] * op.attributes.integer("step");
      out(op).at(index) = in(op, 0).at(from);
    });
  }

  void pad(const ir::Op& op) {
    for_each(in(op, 0).shape, [&](const ir::Shape& index) {
      ir::Shape to = index;
      to[dim(op)] += op.attributes.integer("before");
      out(op).at(to) = in(op, 0).at(index);
    });
  }

  void concat(const ir::Op& op) {
    std::int64_t start = 0;
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      for_each(in(op, i).shape, [&](const ir::Shape& index) {
        ir::Shape to = index;
        to[dim(op)] += start;
        out(op).at(to) = in(op, i).at(index);
      });
      start += in(op, i).shape[dim(op)];
    }
  }

  void reduce(const ir::Op& op) {
    const ir::IntList& dims = op.attributes.ints("dims");
    Tensor& y = out(op);
    const bool maximum = op.name == "max";
    std::fill(y.data.begin(), y.data.end(), maximum ? -INFINITY : 0.0);
    for_each(in(op, 0).shape, [&](const ir::Shape& index) {
      ir::Shape to;
      for (std::size_t d = 0; d < index.size(); ++d) {
        if (!std::binary_search(dims.begin(), dims.end(), static_cast<std::int64_t>(d))) {
          to.push_back(index[d]);
        } else if (op.attributes.flag_or("keepdim", false)) {
          to.push_back(0);
        }
      }
      const double x = in(op, 0).at(index);
      y.at(to) = maximum ? std::max(y.at(to), x) : y.at(to) + x;
    });
  }

  void cumsum(const ir::Op& op) {
    for_each(out(op).shape, [&](const ir::Shape& index) {
      double total = 0;
      ir::Shape from = index;
      for (from[dim(op)] = 0; from[dim(op)] <= index[dim(op)]; ++from[dim(op)]) {
        total += in(op, 0).at(from);
      }
      out(op).at(index) = total;
    });
  }

  void einsum(const ir::Op& op) {
    const std::string& text = op.attributes.string("equation");
    const std::string a = text.substr(0, text.find(','));
    const std::string b = text.substr(a.size() + 1, text.find("->") - a.size() - 1);
    const std::string y = text.substr(text.find("->") + 2);
    std::string letters = a;
    ir::Shape sizes = in(op, 0).shape;
    for (std::size_t d = 0; d < b.size(); ++d) {
      if (letters.find(b[d]) == std::string::npos) {
        letters += b[d];
        sizes.push_back(in(op, 1).shape[d]);
      }
    }
    for_each(sizes, [&](const ir::Shape& index) {
      const auto pick = [&](const std::string& term) {
        ir::Shape place;
        for (const char letter : term) {
          place.push_back(index[letters.find(letter)]);
        }
        return place;
      };
      out(op).at(pick(y)) += in(op, 0).at(pick(a)) * in(op, 1).at(pick(b));
    });
  }

  void sum_exp(const ir::Op& op) {
    for_each(in(op, 0).shape, [&](const ir::Shape& index) {
      const ir::Shape row(index.begin(), index.end() - 1);
      out(op).at(row) += std::exp(in(op, 0).at(index) - in(op, 1).at(row));
    });
  }

  void label_score(const ir::Op& op) {
    for_each(out(op).shape, [&](const ir::Shape& row) {
      const auto target = static_cast<std::int64_t>(in(op, 1).at(row));
      if (target != op.attributes.integer("ignore_index")) {
        ir::Shape label = row;
        label.push_back(target);
        out(op).at(row) = in(op, 0).at(label) - in(op, 2).at(row);
      }
    });
  }

  void label_score_backward(const ir::Op& op) {
    for_each(out(op).shape, [&](const ir::Shape& index) {
      const ir::Shape row(index.begin(), index.end() - 1);
      const auto target = static_cast<std::int64_t>(in(op, 2).at(row));
      if (target != op.attributes.integer("ignore_index")) {
        const double onehot = target == index.back() ? 1 : 0;
        const double p = std::exp(in(op, 1).at(index) - in(op, 3).at(row));
        out(op).at(index) = in(op, 0).at(row) * (onehot - p);
      }
    });
  }

  void embedding(const ir::Op& op) {
    for_each(out(op).shape, [&](const ir::Shape& index) {
      const ir::Shape ids(index.begin(), index.end() - 1);
      const auto row = static_cast<std::int64_t>(in(op, 1).at(ids));
      out(op).at(index) = in(op, 0).at({row, index.back()});
    });
  }

  void embedding_backward(const ir::Op& op) {
    for_each(in(op, 0).shape, [&](const ir::Shape& index) {
      const ir::Shape ids(index.begin(), index.end() - 1);
      const auto row = static_cast<std::int64_t>(in(op, 1).at(ids));
      out(op).at({row, index.back()}) += in(op, 0).at(index);
    });
  }

  /// Σ over the dim of f(index), for every element.
  double along(const ir::Op& op,
               ir::Shape index,
               const std::function<double(const ir::Shape&)>& f) {
    double total = 0;
    for (index[dim(op)] = 0; index[dim(op)] < out(op).shape[dim(op)]; ++index[dim(op)]) {
      total += f(index);
    }
    return total;
  }

  void softmax(const ir::Op& op) {
    const Tensor& x = in(op, 0);
    for_each(x.shape, [&](const ir::Shape& index) {
      const double total = along(op, index, [&](const ir::Shape& i) { return std::exp(x.at(i)); });
      out(op).at(index) = std::exp(x.at(index)) / total;
    });
  }

  void softmax_backward(const ir::Op& op) {
    const Tensor& g = in(op, 0);
    const Tensor& y = in(op, 1);
    for_each(y.shape, [&](const ir::Shape& index) {
      const double mean = along(op, index, [&](const ir::Shape& i) { return g.at(i) * y.at(i); });
      out(op).at(index) = y.at(index) * (g.at(index) - mean);
    });
  }

  const ir::Graph& graph_;
  std::vector<Tensor> values_;
};

}  // namespace shardplan::training
