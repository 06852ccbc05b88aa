#include "base/units.h"

#include <gtest/gtest.h>

namespace backstay {
namespace {

TEST(Units, BytesReadWell) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.0 KiB");
  EXPECT_EQ(FormatBytes(512 * kMiB), "512.0 MiB");
  EXPECT_EQ(FormatBytes(3 * 1024 * kGiB * 1024), "3072.0 TiB");
}

TEST(Units, RoundingNeverLosesTheRest) {
  EXPECT_EQ(RoundUp(0, 8), 0u);
  EXPECT_EQ(RoundUp(9, 8), 16u);
  EXPECT_EQ(CeilDiv(9, 8), 2u);
  EXPECT_EQ(CeilDiv(UINT64_MAX, 1), UINT64_MAX);
}

}  // namespace
}  // namespace backstay
