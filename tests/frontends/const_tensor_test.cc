#include "shardplan/frontends/const_tensor.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <utility>

#include "shardplan/frontends/const_eval.h"

namespace shardplan::frontends {
namespace {

using ir::DType;
using ir::Shape;
using ir::TensorType;

Number n(std::int64_t value) {
  return Number::of(value);
}

/// The value, which the test expects to be there.
template <class T>
T must(std::optional<T> x) {
  EXPECT_TRUE(x.has_value());
  return std::move(x).value_or(T{});
}

ConstTensor arange(std::int64_t count) {
  return must(ConstTensor::arange({DType::kInt64, {count}}, n(0), n(1)));
}

/// All elements in row-major order, read one by one: the slow twin.
std::vector<std::int64_t> elements(const ConstTensor& x) {
  const ConstTensor plain = must(x.dense());
  std::vector<std::int64_t> out;
  Shape index(x.shape().size(), 0);
  for (std::int64_t k = 0; k < x.type().numel(); ++k) {
    out.push_back(plain.at(index).as_int());
    for (std::size_t d = index.size(); d-- > 0;) {
      if (++index[d] < x.shape()[d]) {
        break;
      }
      index[d] = 0;
    }
  }
  return out;
}

TEST(ConstTensor, ViewsCostNothing) {
  const ConstTensor row = must(arange(4).reshape({1, 4}));
  const ConstTensor wide = row.expand({1000000, 3, 4});
  EXPECT_EQ(wide.compact_shape(), (Shape{1, 1, 4}));
  EXPECT_EQ(must(wide.compact_elements()).size(), 4U);
  EXPECT_EQ(must(wide.index_like()).dim, 2U);
  const ConstTensor part = must(wide.slice(2, 1, 2, 2));
  EXPECT_EQ(must(part.compact_elements()).at(1), n(3));
  const std::vector<std::int64_t> order{2, 0, 1};
  EXPECT_EQ(wide.permute(order).shape(), (Shape{4, 1000000, 3}));
}

TEST(ConstTensor, ReshapesMergeAndCut) {
  const ConstTensor table = must(arange(6).reshape({2, 3}));
  EXPECT_EQ(elements(table), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5}));
  const std::vector<std::int64_t> order{1, 0};
  const ConstTensor turned = table.permute(order);
  EXPECT_EQ(elements(must(turned.reshape({6}))), (std::vector<std::int64_t>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(elements(must(turned.reshape({3, 1, 2}))), elements(turned));
}

TEST(ConstTensor, CumulativeSumMatchesALoop) {
  const ConstTensor x = must(arange(24).reshape({2, 3, 4}));
  for (std::size_t dim = 0; dim < 3; ++dim) {
    const ConstTensor sum = must(cumulative_sum(x.type(), x, dim));
    Shape index(3, 0);
    for (index[0] = 0; index[0] < 2; ++index[0]) {
      for (index[1] = 0; index[1] < 3; ++index[1]) {
        for (index[2] = 0; index[2] < 4; ++index[2]) {
          std::int64_t expected = 0;
          Shape before = index;
          for (before[dim] = 0; before[dim] <= index[dim]; ++before[dim]) {
            expected += x.at(before).i;
          }
          EXPECT_EQ(sum.at(index), n(expected));
        }
      }
    }
  }
}

TEST(ConstTensor, GatherIgnoresIndicesThatMakeNoDifference) {
  const ConstTensor x = must(arange(5).reshape({1, 5})).expand({64, 5});
  const std::vector<ConstTensor> indices{must(arange(64).reshape({64, 1})),
                                         must(arange(5).reshape({1, 5}))};
  const ConstTensor y = must(gather({DType::kInt64, {64, 5}}, x, indices));
  EXPECT_EQ(y.compact_shape(), (Shape{1, 5}));
  EXPECT_EQ(must(y.index_like()).start, 0);
  const std::vector<ConstTensor> outside{must(arange(64).reshape({64, 1})),
                                         must(arange(6).reshape({1, 6}))};
  EXPECT_FALSE(gather({DType::kInt64, {64, 6}}, x, outside).has_value());
}

TEST(ConstTensor, ConcatenateJoins) {
  const std::vector<ConstTensor> parts{arange(2), arange(3)};
  EXPECT_EQ(elements(must(concatenate({DType::kInt64, {5}}, parts, 0))),
            (std::vector<std::int64_t>{0, 1, 0, 1, 2}));
}

TEST(ConstTensor, FloatsAreRoundedToTheirType) {
  const ConstTensor third = ConstTensor::full({DType::kFloat32, {}}, Number::of(1.0 / 3.0));
  EXPECT_EQ(must(third.uniform()).d, static_cast<double>(1.0F / 3.0F));
}

TEST(ConstTensor, LargeResultsAreNotComputed) {
  const ConstTensor a = must(arange(5000).reshape({5000, 1})).expand({5000, 5000});
  const ConstTensor b = arange(5000).expand({5000, 5000});
  const std::vector<ConstTensor> operands{a, b};
  const auto sum = elementwise({DType::kInt64, {5000, 5000}},
                               operands,
                               [](std::span<const Number> v) { return n(v[0].i + v[1].i); });
  EXPECT_FALSE(sum.has_value());
}

// A band against its elements, through every operation that keeps bands.
TEST(ConstTensor, BandsEqualTheirElements) {
  std::mt19937_64 random(3);
  const auto bound = [&]() -> std::optional<std::int64_t> {
    return random() % 3 == 0 ? std::nullopt
                             : std::optional(static_cast<std::int64_t>(random() % 9) - 4);
  };
  for (int round = 0; round < 300; ++round) {
    const auto rows = static_cast<std::int64_t>(2 + random() % 5);
    const auto columns = static_cast<std::int64_t>(2 + random() % 5);
    const Band band{.row = 1, .column = 2, .low = bound(), .high = bound()};
    const ConstTensor mask = ConstTensor::band_mask({2, rows, columns}, band);
    std::vector<std::int64_t> expected;
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < columns; ++j) {
          const bool low = !band.low.has_value() || i - j >= *band.low;
          const bool high = !band.high.has_value() || i - j <= *band.high;
          expected.push_back(low && high ? 1 : 0);
        }
      }
    }
    ASSERT_EQ(elements(mask), expected);
    const std::vector<ConstTensor> operand{mask};
    const ConstTensor inverse = must(
        elementwise(mask.type(), operand, [](std::span<const Number> v) { return n(1 - v[0].i); }));
    for (std::size_t k = 0; k < expected.size(); ++k) {
      ASSERT_EQ(elements(inverse)[k], 1 - expected[k]);
    }
    if (const std::optional<Band> truth = inverse.true_band()) {
      EXPECT_EQ(elements(ConstTensor::band_mask(mask.shape(), *truth)), elements(inverse));
    }
    const std::vector<std::int64_t> turn{2, 0, 1};
    EXPECT_EQ(elements(mask.permute(turn)), elements(must(mask.dense()).permute(turn)));
    EXPECT_EQ(elements(must(mask.reshape({2, 1, rows, columns}))), expected);
    if (const std::optional<ConstTensor> again = recognise_band(must(mask.dense()))) {
      EXPECT_EQ(elements(*again), expected);
    } else {
      EXPECT_TRUE(must(mask.dense()).uniform().has_value() || (band.low && band.high));
    }
  }
}

TEST(ConstTensor, OtherMasksAreNoBands) {
  const std::byte one{1};
  const std::byte zero{0};
  const std::vector<std::byte> checkers{one, zero, one, zero, one, zero, one, zero, one};
  const ConstTensor x = must(ConstTensor::from_bytes({DType::kBool, {3, 3}}, checkers));
  EXPECT_FALSE(recognise_band(x).has_value());
  std::vector<std::byte> dented{one, zero, zero, one, one, zero, zero, one, one};
  EXPECT_TRUE(recognise_band(must(ConstTensor::from_bytes({DType::kBool, {3, 3}}, dented))));
  dented[3] = zero;
  EXPECT_FALSE(recognise_band(must(ConstTensor::from_bytes({DType::kBool, {3, 3}}, dented))));
}

}  // namespace
}  // namespace shardplan::frontends
