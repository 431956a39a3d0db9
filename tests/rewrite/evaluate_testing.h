#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "shardplan/ir/graph.h"

/// A slow evaluator of small graphs, element by element in double, written from docs/ops.md: what
/// the rewrite rules are compared with. Knows the ops that random_graphs_test.cc draws.
namespace shardplan::rewrite {

struct Tensor {
  ir::Shape shape;
  std::vector<double> data;

  [[nodiscard]] std::size_t offset(const ir::Shape& index) const {
    std::int64_t at = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      at = at * shape[d] + index[d];
    }
    return static_cast<std::size_t>(at);
  }
};

/// Fills a tensor of this shape by a function of the index.
inline Tensor tabulate(const ir::Shape& shape, const std::function<double(const ir::Shape&)>& f) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    count *= size;
  }
  Tensor out{shape, std::vector<double>(static_cast<std::size_t>(count))};
  for (std::int64_t k = 0; k < count; ++k) {
    ir::Shape index(shape.size());
    std::int64_t rest = k;
    for (std::size_t d = shape.size(); d-- > 0;) {
      index[d] = rest % shape[d];
      rest /= shape[d];
    }
    out.data[static_cast<std::size_t>(k)] = f(index);
  }
  return out;
}

/// x at an index of a shape that x is broadcast to.
inline double at_broadcast(const Tensor& x, const ir::Shape& index) {
  ir::Shape own(x.shape.size());
  for (std::size_t d = 0; d < own.size(); ++d) {
    own[d] = x.shape[d] == 1 ? 0 : index[index.size() - own.size() + d];
  }
  return x.data[x.offset(own)];
}

inline double unary(const ir::Op& op, double x) {
  const std::string& name = op.name;
  if (name == "scale") {
    return x * op.attributes.number("factor");
  }
  if (name == "add_scalar") {
    return x + op.attributes.number("value");
  }
  if (name == "pow_scalar") {
    return std::pow(x, op.attributes.number("exponent"));
  }
  if (name == "neg") {
    return -x;
  }
  if (name == "tanh") {
    return std::tanh(x);
  }
  const double sigmoid = 1 / (1 + std::exp(-x));
  if (name == "sigmoid" || name == "silu") {
    return name == "silu" ? x * sigmoid : sigmoid;
  }
  // gelu by tanh
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

inline double binary(const std::string& name, double a, double b) {
  return name == "add" ? a + b : name == "sub" ? a - b : name == "mul" ? a * b : std::max(a, b);
}

/// Σ over all letters that the result lacks, by trying every value of every letter.
inline Tensor einsum(const std::string& equation,
                     const Tensor& a,
                     const Tensor& b,
                     const ir::Shape& shape) {
  const std::size_t comma = equation.find(',');
  const std::size_t arrow = equation.find("->");
  const std::string terms[3] = {equation.substr(0, comma),
                                equation.substr(comma + 1, arrow - comma - 1),
                                equation.substr(arrow + 2)};
  std::map<char, std::int64_t> sizes;
  for (std::size_t d = 0; d < terms[0].size(); ++d) {
    sizes[terms[0][d]] = a.shape[d];
  }
  for (std::size_t d = 0; d < terms[1].size(); ++d) {
    sizes[terms[1][d]] = b.shape[d];
  }
  ir::Shape space;
  std::string letters;
  for (const auto& [letter, size] : sizes) {
    letters += letter;
    space.push_back(size);
  }
  Tensor out = tabulate(shape, [](const ir::Shape&) { return 0.0; });
  tabulate(space, [&](const ir::Shape& index) {
    const auto pick = [&](const std::string& term) {
      ir::Shape picked;
      for (const char letter : term) {
        picked.push_back(index[letters.find(letter)]);
      }
      return picked;
    };
    out.data[out.offset(pick(terms[2]))] +=
        a.data[a.offset(pick(terms[0]))] * b.data[b.offset(pick(terms[1]))];
    return 0.0;
  });
  return out;
}

/// (x - mean) / sqrt(variance + eps) or softmax over the last `count` dimensions, or over dimension
/// `dim`.
inline Tensor normalized(const Tensor& x,
                         const std::function<bool(const ir::Shape&, const ir::Shape&)>& same_row,
                         const std::function<double(const std::vector<double>&, double)>& f) {
  return tabulate(x.shape, [&](const ir::Shape& index) {
    std::vector<double> row;
    tabulate(x.shape, [&](const ir::Shape& other) {
      if (same_row(index, other)) {
        row.push_back(x.data[x.offset(other)]);
      }
      return 0.0;
    });
    return f(row, x.data[x.offset(index)]);
  });
}

inline double standardized(const std::vector<double>& row, double x) {
  double mean = 0;
  for (const double value : row) {
    mean += value / static_cast<double>(row.size());
  }
  double variance = 0;
  for (const double value : row) {
    variance += (value - mean) * (value - mean) / static_cast<double>(row.size());
  }
  return (x - mean) / std::sqrt(variance + 1e-5);
}

inline double share(const std::vector<double>& row, double x) {
  double sum = 0;
  for (const double value : row) {
    sum += std::exp(value);
  }
  return std::exp(x) / sum;
}

inline Tensor attention(const ir::Op& op, const std::vector<Tensor>& in) {
  const bool last = op.attributes.string("layout") == "bshd";
  const std::size_t h = last ? 2 : 1;
  const std::size_t s = last ? 1 : 2;
  const std::int64_t repeat = in[0].shape[h] / in[1].shape[h];
  ir::Shape shape = in[0].shape;
  shape[3] = in[2].shape[3];
  return tabulate(shape, [&](const ir::Shape& index) {
    double sum = 0;
    double value = 0;
    for (std::int64_t k = 0; k < in[1].shape[s]; ++k) {
      if (op.attributes.flag_or("causal", false) && k > index[s]) {
        continue;
      }
      ir::Shape q_at = index;
      ir::Shape k_at = index;
      k_at[h] /= repeat;
      k_at[s] = k;
      double score = 0;
      for (std::int64_t d = 0; d < in[0].shape[3]; ++d) {
        q_at[3] = k_at[3] = d;
        score += in[0].data[in[0].offset(q_at)] * in[1].data[in[1].offset(k_at)];
      }
      k_at[3] = index[3];
      const double weight = std::exp(score * op.attributes.number("scale"));
      sum += weight;
      value += weight * in[2].data[in[2].offset(k_at)];
    }
    return value / sum;
  });
}

inline Tensor moved(const ir::Op& op, const std::vector<Tensor>& in, const ir::Shape& shape) {
  const Tensor& x = in[0];
  const auto dim = static_cast<std::size_t>(op.attributes.integer_or("dim", 0));
  return tabulate(shape, [&](const ir::Shape& index) {
    ir::Shape from = index;
    if (op.name == "transpose") {
      for (std::size_t d = 0; d < index.size(); ++d) {
        from[static_cast<std::size_t>(op.attributes.ints("permutation")[d])] = index[d];
      }
    } else if (op.name == "slice") {
      from[dim] = op.attributes.integer("start") + index[dim] * op.attributes.integer("step");
    } else if (op.name == "pad") {
      from[dim] -= op.attributes.integer("before");
      if (from[dim] < 0 || from[dim] >= x.shape[dim]) {
        return op.attributes.number("value");
      }
    } else if (op.name == "concat") {
      std::size_t part = 0;
      while (from[dim] >= in[part].shape[dim]) {
        from[dim] -= in[part++].shape[dim];
      }
      return in[part].data[in[part].offset(from)];
    } else {
      return at_broadcast(x, index);
    }
    return x.data[x.offset(from)];
  });
}

inline Tensor sum_over(const ir::Op& op, const Tensor& x, const ir::Shape& shape) {
  const ir::IntList& dims = op.attributes.ints("dims");
  const bool keep = op.attributes.flag_or("keepdim", false);
  Tensor out = tabulate(shape, [](const ir::Shape&) { return 0.0; });
  tabulate(x.shape, [&](const ir::Shape& index) {
    ir::Shape to;
    for (std::size_t d = 0; d < index.size(); ++d) {
      const bool reduced =
          std::find(dims.begin(), dims.end(), static_cast<std::int64_t>(d)) != dims.end();
      if (!reduced) {
        to.push_back(index[d]);
      } else if (keep) {
        to.push_back(0);
      }
    }
    out.data[out.offset(to)] += x.data[x.offset(index)];
    return 0.0;
  });
  return out;
}

inline Tensor evaluate_op(const ir::Op& op, const std::vector<Tensor>& in, const ir::Shape& shape) {
  const std::string& name = op.name;
  if (name == "reshape") {
    return {shape, in[0].data};
  }
  if (name == "einsum") {
    return einsum(op.attributes.string("equation"), in[0], in[1], shape);
  }
  if (name == "softmax") {
    const auto dim = static_cast<std::size_t>(op.attributes.integer("dim"));
    return normalized(
        in[0],
        [dim](ir::Shape a, const ir::Shape& b) {
          a[dim] = b[dim];
          return a == b;
        },
        share);
  }
  if (name == "layer_norm") {
    const auto leading =
        in[0].shape.size() - static_cast<std::size_t>(op.attributes.integer("dims"));
    return normalized(
        in[0],
        [leading](const ir::Shape& a, const ir::Shape& b) {
          return std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(leading), b.begin());
        },
        standardized);
  }
  if (name == "attention") {
    return attention(op, in);
  }
  if (name == "sum") {
    return sum_over(op, in[0], shape);
  }
  if (name == "dropout") {
    // Any function of seed and global index will do.
    const auto seed = static_cast<double>(op.attributes.integer("seed"));
    Tensor out{shape, in[0].data};
    for (std::size_t k = 0; k < out.data.size(); ++k) {
      out.data[k] *= 1 + std::sin(seed + static_cast<double>(k));
    }
    return out;
  }
  if (name == "add" || name == "sub" || name == "mul" || name == "maximum") {
    return tabulate(shape, [&](const ir::Shape& index) {
      return binary(name, at_broadcast(in[0], index), at_broadcast(in[1], index));
    });
  }
  if (name == "transpose" || name == "slice" || name == "pad" || name == "concat" ||
      name == "broadcast") {
    return moved(op, in, shape);
  }
  return tabulate(shape,
                  [&](const ir::Shape& index) { return unary(op, at_broadcast(in[0], index)); });
}

/// The loss, with inputs and parameters drawn by their names.
inline double evaluate(const ir::Graph& graph) {
  std::vector<Tensor> values(graph.values().size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const ir::Value& value = graph.values()[i];
    if (value.kind != ir::ValueKind::kOpResult) {
      std::mt19937_64 random(std::hash<std::string>{}(value.name));
      values[i] = tabulate(value.type.shape, [&](const ir::Shape&) {
        return static_cast<double>(random() % 2001) / 1000.0 - 1.0;
      });
    }
  }
  for (const ir::Op& op : graph.ops()) {
    std::vector<Tensor> in;
    for (const ir::ValueId input : op.inputs) {
      in.push_back(values[input.index()]);
    }
    values[op.outputs[0].index()] = evaluate_op(op, in, graph.type(op.outputs[0]).shape);
  }
  return values[graph.outputs.at(0).index()].data[0];
}

}  // namespace shardplan::rewrite
