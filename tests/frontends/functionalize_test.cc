#include "shardplan/frontends/functionalize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shardplan/frontends/alias.h"

namespace shardplan::frontends {
namespace {

using ir::Shape;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Small programs, node by node. Tensors are f32 and contiguous.
class Program {
 public:
  explicit Program(const Shape& shape) {
    input("x", shape, ExportedInput::Kind::kUser);
    program_.outputs = {"x"};
  }
  Program& input(const std::string& name, const Shape& shape, ExportedInput::Kind kind) {
    program_.inputs.push_back({kind, name, name});
    tensor(name, shape).requires_grad = kind == ExportedInput::Kind::kParameter;
    return *this;
  }
  /// `operands`: "self" is the first one, "other" the second.
  Program& node(const std::string& target,
                const std::vector<std::string>& operands,
                const std::string& output,
                const Shape& shape,
                const std::vector<std::pair<std::string, std::int64_t>>& numbers = {}) {
    ExportedNode node;
    node.target = "aten." + target;
    node.no_grad = no_grad_;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      Argument argument;
      argument.kind = Argument::Kind::kTensors;
      argument.tensors = {operands[i]};
      node.inputs.emplace_back(i == 0 ? "self" : (target == "copy_.default" ? "src" : "other"),
                               argument);
    }
    for (const auto& [name, number] : numbers) {
      Argument argument;
      argument.kind = Argument::Kind::kInts;
      argument.ints = {number};
      node.inputs.emplace_back(name, argument);
    }
    node.outputs = {output};
    tensor(output, shape);
    program_.outputs = {output};
    program_.nodes.push_back(node);
    return *this;
  }
  Program& no_grad(bool on) {
    no_grad_ = on;
    return *this;
  }
  Program& returns(const std::string& name) {
    program_.outputs = {name};
    return *this;
  }
  [[nodiscard]] const ExportedProgram& get() const { return program_; }

 private:
  ExportedTensor& tensor(const std::string& name, const Shape& shape) {
    ExportedTensor& tensor = program_.tensors[name];
    tensor.type = {ir::DType::kFloat32, shape};
    return tensor;
  }

  ExportedProgram program_;
  bool no_grad_ = false;
};

/// "relu.default(add)" for each node, then the outputs. Numbers behind the names of values that
/// were made by the pass are left out.
std::vector<std::string> lines(const Program& program) {
  const Result<ExportedProgram> pure = functionalize(program.get(), "model.pt2");
  if (!pure) {
    return {pure.error().text()};
  }
  std::vector<std::string> out;
  for (const ExportedNode& node : pure->nodes) {
    std::string line = node.outputs.front() + " = " + node.target.substr(5) + "(";
    for (const auto& [name, argument] : node.inputs) {
      for (const std::string& tensor : argument.tensors) {
        line += (line.ends_with('(') ? "" : ", ") + tensor;
      }
    }
    out.push_back(line + ")");
  }
  for (const std::string& output : pure->outputs) {
    out.push_back("return " + output);
  }
  for (const ExportedMutation& mutation : pure->mutations) {
    out.push_back(mutation.buffer + " becomes " + mutation.value);
  }
  return out;
}

TEST(Functionalize, LeavesFunctionalProgramsAlone) {
  EXPECT_THAT(lines(Program({2, 3}).node("relu.default", {"x"}, "relu", {2, 3})),
              ElementsAre("relu = relu.default(x)", "return relu"));
}

TEST(Functionalize, LaterReadersSeeTheResult) {
  Program program({2, 3});
  program.node("exp.default", {"x"}, "e", {2, 3})
      .node("relu_.default", {"e"}, "relu_", {2, 3})
      .node("add.Tensor", {"e", "relu_"}, "sum", {2, 3});
  EXPECT_THAT(lines(program),
              ElementsAre("e = exp.default(x)",
                          "e.1 = relu.default(e)",
                          "sum = add.Tensor(e.1, e.1)",
                          "return sum"));
}

TEST(Functionalize, WritesOfViewsGoBackIntoTheBase) {
  Program program({4, 3});
  program.node("exp.default", {"x"}, "e", {4, 3})
      .node("transpose.int", {"e"}, "t", {3, 4}, {{"dim0", 0}, {"dim1", 1}})
      .node("slice.Tensor", {"t"}, "s", {2, 4}, {{"dim", 0}, {"start", 1}, {"end", 3}})
      .node("mul_.Tensor", {"s", "s"}, "m", {2, 4})
      .returns("e");
  EXPECT_THAT(lines(program),
              ElementsAre("e = exp.default(x)",
                          "t = transpose.int(e)",
                          "s = slice.Tensor(t)",
                          "s.1 = mul.Tensor(s, s)",
                          "t.2 = slice_scatter.default(t, s.1)",
                          "e.3 = transpose.int(t.2)",
                          "return e.3"));
}

TEST(Functionalize, ViewsAreMadeAgainAfterWritesOfTheBase) {
  Program program({4, 3});
  program.node("exp.default", {"x"}, "e", {4, 3})
      .node("view.default", {"e"}, "v", {12})
      .node("select.int", {"v"}, "s", {}, {{"dim", 0}, {"index", 2}})
      .node("zero_.default", {"e"}, "z", {4, 3})
      .node("neg.default", {"s"}, "n", {});
  EXPECT_THAT(lines(program),
              ElementsAre("e = exp.default(x)",
                          "v = view.default(e)",
                          "s = select.int(v)",
                          "e.1 = zeros_like.default(e)",
                          "v.2 = view.default(e.1)",
                          "s.3 = select.int(v.2)",
                          "n = neg.default(s.3)",
                          "return n"));
}

TEST(Functionalize, CopiesReplaceTheContent) {
  Program program({4, 3});
  program.input("y", {3}, ExportedInput::Kind::kUser)
      .node("exp.default", {"x"}, "e", {4, 3})
      .node("copy_.default", {"e", "y"}, "c", {4, 3});
  EXPECT_THAT(lines(program),
              ElementsAre("e = exp.default(x)", "e.1 = copy.default(e, y)", "return e.1"));
}

TEST(Functionalize, BuffersThatAreWrittenBecomeMutations) {
  Program program({3});
  program.input("seen", {3}, ExportedInput::Kind::kBuffer)
      .node("add_.Tensor", {"seen", "x"}, "a", {3})
      .node("mul.Tensor", {"seen", "x"}, "m", {3});
  EXPECT_THAT(lines(program),
              ElementsAre("seen.1 = add.Tensor(seen, x)",
                          "m = mul.Tensor(seen.1, x)",
                          "return m",
                          "seen becomes seen.1"));
}

TEST(Functionalize, RegionsWithoutGradientsDetachWhatLeavesThem) {
  Program program({3});
  program.input("w", {3}, ExportedInput::Kind::kParameter)
      .input("seen", {3}, ExportedInput::Kind::kBuffer)
      .node("mul.Tensor", {"x", "w"}, "m", {3})
      .no_grad(true)
      .node("exp.default", {"m"}, "e", {3})
      .node("add_.Tensor", {"seen", "e"}, "s", {3})
      .node("neg.default", {"x"}, "p", {3})
      .no_grad(false)
      .node("mul.Tensor", {"seen", "p"}, "q", {3})
      .node("add.Tensor", {"q", "seen"}, "r", {3});
  EXPECT_THAT(lines(program),
              ElementsAre("m = mul.Tensor(x, w)",
                          "e = exp.default(m)",
                          "seen.1 = add.Tensor(seen, e)",
                          "p = neg.default(x)",
                          "seen.2 = detach.default(seen.1)",
                          "q = mul.Tensor(seen.2, p)",
                          "r = add.Tensor(q, seen.2)",
                          "return r",
                          "seen becomes seen.1"));
  program.no_grad(true).node("mul_.Tensor", {"m", "x"}, "y", {3});
  EXPECT_THAT(lines(program), ElementsAre(HasSubstr("where gradients do not follow")));
}

TEST(Functionalize, RefusesByName) {
  Program expanded({3});
  expanded.node("exp.default", {"x"}, "e", {3})
      .node("expand.default", {"e"}, "v", {2, 3})
      .node("relu_.default", {"v"}, "r", {2, 3});
  EXPECT_THAT(
      lines(expanded),
      ElementsAre(AllOf(
          HasSubstr("aten.relu_.default changes a tensor in place through aten.expand.default"),
          HasSubstr("run_decompositions({})"))));
  Program strided({3});
  strided.node("exp.default", {"x"}, "e", {3})
      .node("as_strided.default", {"e"}, "v", {2})
      .node("relu_.default", {"e"}, "r", {3})
      .node("neg.default", {"v"}, "n", {2});
  EXPECT_THAT(lines(strided), ElementsAre(HasSubstr("reads a aten.as_strided.default")));
  EXPECT_THAT(lines(Program({3}).node("relu_.default", {"x"}, "r", {3})),
              ElementsAre(HasSubstr("the model changes its input 'x' in place")));
  EXPECT_THAT(lines(Program({3, 1})
                        .node("exp.default", {"x"}, "e", {3, 1})
                        .node("squeeze_.default", {"e"}, "r", {3})),
              ElementsAre(HasSubstr("changes the form of a tensor in place")));
}

TEST(Alias, KnowsWhichReshapesCopy) {
  EXPECT_TRUE(can_view({2, 3, 4}, {12, 4, 1}, {6, 4}));
  EXPECT_TRUE(can_view({2, 3, 4}, {12, 4, 1}, {3, 8}));
  EXPECT_TRUE(can_view({3, 2, 4}, {4, 12, 1}, {3, 2, 2, 2}));
  EXPECT_FALSE(can_view({3, 2, 4}, {4, 12, 1}, {6, 4}));
  EXPECT_FALSE(can_view({4, 3}, {1, 4}, {12}));
  EXPECT_TRUE(can_view({4, 1, 3}, {3, 77, 1}, {12}));
  EXPECT_TRUE(can_view({}, {}, {1, 1}));
  EXPECT_TRUE(can_view({1}, {5}, {}));
}

TEST(Alias, FindsTheFunctionalOperator) {
  EXPECT_EQ(functional_target("aten.add_.Tensor"), "aten.add.Tensor");
  EXPECT_EQ(functional_target("aten.__ior__.Scalar"), "aten.__or__.Scalar");
  EXPECT_EQ(functional_target("aten.__and__.Tensor"), std::nullopt);
  EXPECT_EQ(functional_target("aten.add.Tensor"), std::nullopt);
  EXPECT_EQ(functional_target("higher_order.cond"), std::nullopt);
  EXPECT_EQ(target_without_out("aten.mv.out"), "aten.mv.default");
  EXPECT_EQ(target_without_out("aten.div.out"), "aten.div.Tensor");
  EXPECT_EQ(target_without_out("aten.pow.Tensor_Scalar_out"), "aten.pow.Tensor_Scalar");
}

}  // namespace
}  // namespace shardplan::frontends
