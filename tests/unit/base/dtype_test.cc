#include "base/dtype.h"

#include <gtest/gtest.h>

#include <string>

namespace backstay {
namespace {

TEST(Dtype, SizesAndNamesGoWithTheNumbers) {
  EXPECT_EQ(DtypeBytes(TensorDtype::kBf16), 2u);
  EXPECT_EQ(DtypeBytes(TensorDtype::kFp8E5m2), 1u);
  EXPECT_EQ(DtypeBytes(TensorDtype::kFp32), 4u);
  EXPECT_EQ(DtypeBytes(TensorDtype::kInt64), 8u);
  EXPECT_EQ(DtypeBytes(TensorDtype::kBool), 1u);
  EXPECT_EQ(DtypeName(TensorDtype::kFp8E4m3), std::string("fp8_e4m3"));
  EXPECT_EQ(DtypeName(TensorDtype::kBool), std::string("bool"));
}

TEST(Dtype, OtherNumbersAreNone) {
  for (const uint32_t number : {0u, 13u, 257u, UINT32_MAX}) {
    EXPECT_EQ(DtypeBytes(static_cast<TensorDtype>(number)), 0u) << number;
    EXPECT_EQ(DtypeName(static_cast<TensorDtype>(number)), std::string("no dtype"));
  }
}

}  // namespace
}  // namespace backstay
