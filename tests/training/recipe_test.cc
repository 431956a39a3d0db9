#include <gtest/gtest.h>

#include "shardplan/training/training.h"

namespace shardplan::training {
namespace {

TEST(ParseOptimizer, TakesTorchDefaultsForWhatIsNotGiven) {
  const Optimizer adamw = *parse_optimizer("adamw");
  EXPECT_EQ(adamw.kind, OptimizerKind::kAdamW);
  EXPECT_EQ(adamw.lr, 1e-3);
  EXPECT_EQ(adamw.weight_decay, 0.01);
  EXPECT_EQ(parse_optimizer("adam")->weight_decay, 0.0);
  const Optimizer sgd = *parse_optimizer("sgd:lr=0.1,momentum=0.9,nesterov=true");
  EXPECT_EQ(sgd.kind, OptimizerKind::kSgd);
  EXPECT_EQ(sgd.lr, 0.1);
  EXPECT_EQ(sgd.momentum, 0.9);
  EXPECT_TRUE(sgd.nesterov);
}

TEST(ParseOptimizer, ReadsWhatToStringWrites) {
  for (const char* const text : {"adamw:lr=0.001",
                                 "adam:lr=0.0003,beta2=0.95,weight_decay=0.1",
                                 "sgd:lr=0.1,momentum=0.9,dampening=0.1",
                                 "sgd:lr=0.1,momentum=0.9,nesterov=true",
                                 "adamw:lr=1e-05,weight_decay=0"}) {
    const Result<Optimizer> optimizer = parse_optimizer(text);
    ASSERT_TRUE(optimizer.has_value()) << optimizer.error().text();
    EXPECT_EQ(to_string(*optimizer), text);
    EXPECT_EQ(*parse_optimizer(to_string(*optimizer)), *optimizer);
  }
}

TEST(ParseOptimizer, SaysWhatIsWrong) {
  EXPECT_EQ(parse_optimizer("adamv").error().text(),
            "unknown optimizer 'adamv', one of sgd, adam, adamw expected; did you mean 'adam'?");
  EXPECT_EQ(parse_optimizer("adam:momentum=0.9").error().text(),
            "optimizer: unknown field 'momentum', one of lr, beta1, beta2, eps, weight_decay "
            "expected");
  EXPECT_EQ(parse_optimizer("sgd:beta1=0.9").error().text(),
            "optimizer: unknown field 'beta1', one of lr, momentum, dampening, weight_decay, "
            "nesterov expected");
  EXPECT_EQ(parse_optimizer("sgd:lr=-1").error().text(),
            "optimizer: lr is '-1', a number of at least 0 expected");
  EXPECT_EQ(parse_optimizer("adam:beta1=1").error().text(),
            "optimizer: beta1 is '1', a number of at least 0 and below 1 expected");
  EXPECT_EQ(parse_optimizer("sgd:lr").error().text(), "optimizer: 'lr' is no field=value");
  EXPECT_EQ(parse_optimizer("sgd:lr=0.1x").error().text(),
            "optimizer: lr is '0.1x', a number of at least 0 expected");
  EXPECT_EQ(parse_optimizer("sgd:nesterov=true").error().text(),
            "optimizer: nesterov needs a momentum above 0 and no dampening");
}

TEST(ParsePrecision, ReadsEveryName) {
  for (const char* const text : {"model", "fp64", "fp32", "bf16"}) {
    EXPECT_EQ(to_string(*parse_precision(text)), text);
  }
  EXPECT_EQ(parse_precision("fp16").error().text(),
            "unknown precision 'fp16', one of model, fp64, fp32, bf16 expected");
}

}  // namespace
}  // namespace shardplan::training
