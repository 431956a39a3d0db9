#include "shardplan/runtime/verify.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace shardplan::runtime {
namespace {

// By hand: 2 · lr where the gradient is noise beside its largest element, tolerance · 2 · lr there.
TEST(AdamAllowance, FollowsTheSizeOfTheGradient) {
  const at::Tensor gradient = at::tensor({1.0, -1e-2, 1e-4, -1e-8, 0.0}, at::kDouble);
  const at::Tensor allowance = adam_allowance(gradient, 1e-3, 1e-4);
  const std::vector<double> expected{2e-7, 2e-5, 2e-3, 2e-3, 2e-3};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(allowance[static_cast<std::int64_t>(i)].item<double>(), expected[i], 1e-12) << i;
  }
}

TEST(AdamAllowance, NothingWithoutAGradient) {
  EXPECT_EQ(adam_allowance(at::zeros({3}, at::kFloat), 1e-3, 1e-4).abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace shardplan::runtime
