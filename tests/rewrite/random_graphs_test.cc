// Random graphs of the ops that rules look at: the canonical form verifies, does not change when
// made canonical again, and computes the same loss as the graph it was made from.

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "evaluate_testing.h"
#include "shardplan/ops/op.h"
#include "shardplan/rewrite/canonicalize.h"

namespace shardplan::rewrite {
namespace {

using ir::IntList;
using ir::Shape;
using ir::ValueId;

class RandomGraph {
 public:
  explicit RandomGraph(std::uint64_t seed) : random_(seed) {}

  ir::Graph build() {
    for (int i = 0; i < 4; ++i) {
      ir::Value value;
      value.kind = i < 2 ? ir::ValueKind::kParameter : ir::ValueKind::kInput;
      value.trainable = i < 2;
      value.name = "v" + std::to_string(i);
      for (std::int64_t rank = 1 + below(4); rank > 0; --rank) {
        value.type.shape.push_back(1 + below(3));
      }
      pool_.push_back(graph_.add_value(std::move(value)));
    }
    for (std::int64_t i = 4 + below(12); i > 0; --i) {
      const ValueId x = pick();
      if (graph_.type(x).rank() > 0) {
        add(x, pick());
      }
    }
    ValueId loss;
    for (std::size_t i = pool_.size() - 3; i < pool_.size(); ++i) {
      IntList dims;
      for (std::int64_t d = 0; d < graph_.type(pool_[i]).rank(); ++d) {
        dims.push_back(d);
      }
      const ValueId sum = append("sum", {pool_[i]}, {{"dims", dims}, {"keepdim", false}});
      loss = loss.valid() ? append("add", {loss, sum}, {}) : sum;
    }
    graph_.outputs = {loss};
    return std::move(graph_);
  }

 private:
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n));
  }
  ValueId pick() { return pool_[random_() % pool_.size()]; }

  ValueId append(std::string name, std::vector<ValueId> inputs, ir::Attributes attributes) {
    ir::Op op;
    op.name = std::move(name);
    op.inputs = std::move(inputs);
    op.attributes = std::move(attributes);
    const Result<ir::OpId> id = ops::append(graph_, std::move(op));
    return id ? graph_.op(*id).outputs[0] : ValueId{};
  }

  /// One op on x (and y), if what was drawn fits.
  void add(ValueId x, ValueId y) {
    const Shape shape = graph_.type(x).shape;
    const std::int64_t rank = graph_.type(x).rank();
    const std::int64_t dim = below(rank);
    ValueId result;
    switch (below(13)) {
      case 0:
        result = append("transpose", {x}, {{"permutation", permutation(rank)}});
        break;
      case 1:
        result = append("reshape", {x}, {{"shape", other_shape(shape)}});
        break;
      case 2:
        result = append("broadcast", {x}, {{"shape", wider_shape(shape)}});
        break;
      case 3: {
        const std::int64_t size = shape[static_cast<std::size_t>(dim)];
        const std::int64_t start = below(size);
        const std::int64_t end = start + 1 + below(size - start);
        result = append("slice",
                        {x},
                        {{"dim", dim}, {"start", start}, {"end", end}, {"step", std::int64_t{1}}});
        break;
      }
      case 4:
        result = append("concat", {x, y}, {{"dim", dim}});
        break;
      case 5:
        result = append("softmax", {x}, {{"dim", dim}});
        break;
      case 6:
        result =
            append("layer_norm",
                   {x},
                   {{"dims", 1 + below(rank)}, {"eps", 1e-5}, {"weight", false}, {"bias", false}});
        break;
      case 7:
        result = append("einsum", {x, y}, {{"equation", equation(shape, graph_.type(y).shape)}});
        break;
      case 8:
        result = append("dropout", {x}, {{"p", 0.5}, {"seed", ++sites_}});
        break;
      case 9:
        result = append("attention",
                        {x, y, y},
                        {{"layout", std::string(below(2) == 0 ? "bshd" : "bhsd")},
                         {"causal", true},
                         {"scale", 1.0},
                         {"mask", false}});
        break;
      case 10:
        result = append(
            "pad", {x}, {{"dim", dim}, {"before", below(2)}, {"after", below(2)}, {"value", 0.0}});
        break;
      case 11:
        result = append_unary(x);
        break;
      default: {
        constexpr const char* kNames[] = {"add", "sub", "mul", "maximum"};
        result = append(kNames[below(4)], {x, y}, {});
      }
    }
    if (result.valid()) {
      pool_.push_back(result);
    }
  }

  ValueId append_unary(ValueId x) {
    constexpr const char* kNames[] = {"neg", "tanh", "sigmoid", "silu"};
    switch (below(4)) {
      case 0:
        return append("gelu", {x}, {{"approximate", std::string("tanh")}});
      case 1:
        return append("scale", {x}, {{"factor", below(2) == 0 ? 1.0 : 0.5}});
      default:
        return append(kNames[below(4)], {x}, {});
    }
  }

  IntList permutation(std::int64_t rank) {
    IntList list;
    for (std::int64_t d = 0; d < rank; ++d) {
      list.insert(list.begin() + below(d + 1), d);
    }
    return list;
  }

  IntList other_shape(Shape shape) {
    const auto at = static_cast<std::ptrdiff_t>(below(static_cast<std::int64_t>(shape.size())));
    if (shape.size() > 1 && below(2) == 0) {
      shape[1] *= shape[0];
      shape.erase(shape.begin());
    } else {
      shape.insert(shape.begin() + at, 1);
    }
    return shape;
  }

  IntList wider_shape(Shape shape) {
    for (std::int64_t& size : shape) {
      size = size == 1 ? 1 + below(3) : size;
    }
    if (below(2) == 0) {
      shape.insert(shape.begin(), 2);
    }
    return shape;
  }

  /// Some dimensions of equal size shared, in the result or not.
  std::string equation(const Shape& a, const Shape& b) {
    const std::string x = std::string("abcd").substr(0, std::min<std::size_t>(a.size(), 4));
    std::string y;
    std::string result;
    for (std::size_t d = 0; d < b.size(); ++d) {
      const auto at = static_cast<std::size_t>(below(static_cast<std::int64_t>(x.size())));
      const bool shared = a[at] == b[d] && y.find(x[at]) == std::string::npos;
      y += shared ? x[at] : static_cast<char>('e' + d);
    }
    for (const char letter : x + y) {
      const bool contracted =
          x.find(letter) != std::string::npos && y.find(letter) != std::string::npos;
      if (result.find(letter) == std::string::npos && (!contracted || below(3) == 0)) {
        result.insert(result.begin() + below(static_cast<std::int64_t>(result.size()) + 1), letter);
      }
    }
    return x + "," + y + "->" + result;
  }

  std::mt19937_64 random_;
  ir::Graph graph_;
  std::vector<ValueId> pool_;
  std::int64_t sites_ = 0;
};

TEST(RandomGraphs, CanonicalFormComputesTheSame) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    const ir::Graph graph = RandomGraph(seed).build();
    ASSERT_TRUE(ops::verify(graph)) << ops::verify(graph).error().text();
    const Result<ir::Graph> canonical = canonicalize(graph);
    ASSERT_TRUE(canonical) << canonical.error().text() << "\n" << ir::print(graph);
    const Status status = ops::verify(*canonical);
    ASSERT_TRUE(status) << status.error().text() << "\n" << ir::print(graph);
    const Result<ir::Graph> again = canonicalize(*canonical);
    ASSERT_TRUE(again);
    ASSERT_EQ(ir::print(*again), ir::print(*canonical)) << ir::print(graph);
    const double expected = evaluate(graph);
    ASSERT_NEAR(evaluate(*canonical), expected, 1e-9 * (1 + std::abs(expected)))
        << "seed " << seed << "\n"
        << ir::print(graph) << "->\n"
        << ir::print(*canonical);
  }
}

}  // namespace
}  // namespace shardplan::rewrite
