#include "shardplan/frontends/open_dims.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shardplan::frontends {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Dims = std::map<std::string, std::int64_t>;

/// ids and labels of [s23, 2*s24], which the user calls batch and half.
OpenDims tokens() {
  OpenDims open;
  for (const char* const name : {"ids", "labels"}) {
    open.places.push_back({std::string(name) + ".0", "Symbol('s23', positive=True)", 4});
    open.places.push_back(
        {std::string(name) + ".1", "Mul(Integer(2), Symbol('s24', positive=True))", 8});
  }
  open.ranges = {{"s23", 2, 64}, {"s24", 2, std::nullopt}};
  open.guards = {"L['ids'].size()[0] % 2 == 0", "L['other'].size()[0] == 0"};
  open.names = {{"s23", "batch"}, {"s24", "half"}};
  return open;
}

std::string error_of(const OpenDims& open, const Dims& dims) {
  const Result<SymbolValues> values = bind_dims(open, dims, "model.pt2");
  return values ? "no error" : values.error().text();
}

TEST(OpenDims, BindsByAnyOfItsNames) {
  const SymbolValues expected{{"s23", 6}, {"s24", 5}};
  for (const Dims& dims : {Dims{{"batch", 6}, {"half", 5}},
                           Dims{{"s23", 6}, {"s24", 5}},
                           Dims{{"ids.0", 6}, {"labels.1", 10}},
                           Dims{{"batch", 6}, {"half", 5}, {"ids.1", 10}}}) {
    const Result<SymbolValues> values = bind_dims(tokens(), dims, "model.pt2");
    ASSERT_TRUE(values) << values.error().text();
    EXPECT_EQ(*values, expected);
  }
  EXPECT_TRUE(bind_dims({}, {}, "model.pt2")->empty());
}

TEST(OpenDims, ListsWhatIsOpen) {
  EXPECT_THAT(error_of(tokens(), {}),
              AllOf(HasSubstr("model.pt2: leaves the dimensions batch, half open"),
                    HasSubstr("--dim batch=N --dim half=N"),
                    HasSubstr("batch: ids.0, labels.0, 2 to 64, 4 in the example"),
                    HasSubstr("half: ids.1 (Mul(2, half))")));
  EXPECT_THAT(error_of(tokens(), {{"batch", 4}}), HasSubstr("leaves the dimension half open"));
}

TEST(OpenDims, RefusesWhatDoesNotFit) {
  EXPECT_THAT(error_of(tokens(), {{"bach", 6}}), HasSubstr("did you mean 'batch'?"));
  EXPECT_THAT(error_of(tokens(), {{"xyz", 6}}), HasSubstr("its open dimensions are batch, half"));
  EXPECT_THAT(error_of({}, {{"batch", 6}}), HasSubstr("all its dimensions are fixed"));
  EXPECT_THAT(error_of(tokens(), {{"batch", 66}, {"half", 4}}),
              HasSubstr("batch is 66, and the model was exported for 2 to 64"));
  EXPECT_THAT(error_of(tokens(), {{"batch", 4}, {"half", 1}}), HasSubstr("at least 2"));
  EXPECT_THAT(error_of(tokens(), {{"batch", 4}, {"ids.1", 7}}), HasSubstr("which cannot be 7"));
  EXPECT_THAT(error_of(tokens(), {{"batch", 4}, {"ids.0", 6}, {"half", 4}}),
              HasSubstr("which cannot be 6"));
  EXPECT_THAT(error_of(tokens(), {{"batch", 4}, {"s23", 6}, {"half", 4}}),
              HasSubstr("the size 4 and the size 6"));
  EXPECT_THAT(error_of(tokens(), {{"batch", 5}, {"half", 4}}),
              HasSubstr("holds only where ids.0 % 2 == 0, not for batch=5, half=4"));
}

}  // namespace
}  // namespace shardplan::frontends
