#include "tools/nearest.h"

#include <gtest/gtest.h>

namespace backstay::tools {
namespace {

TEST(NearestName, FindsATypingError) {
  EXPECT_EQ(NearestName("layer.3.wieght", {"layer.1.bias", "layer.3.weight", "step"}),
            "layer.3.weight");
}

TEST(NearestName, SaysNothingWhenNothingIsNear) {
  EXPECT_EQ(NearestName("abc", {"xyz", "quite-else"}), "");
}

TEST(NearestName, OfNothing) {
  EXPECT_EQ(NearestName("", {}), "");
  EXPECT_EQ(NearestName("a", {}), "");
}

}  // namespace
}  // namespace backstay::tools
