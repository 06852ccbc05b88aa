#include "client/tensor.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>

namespace backstay::client {
namespace {

// Goal:   gathering and scattering any range of any layout agrees with plain index arithmetic.
// Method: random shapes, permuted and padded strides, element sizes and ranges, from a fixed seed.
TEST(StridedMemory, AgreesWithIndexArithmetic) {
  std::mt19937_64 random(20240501);
  for (int round = 0; round < 500; ++round) {
    SCOPED_TRACE(round);
    const uint64_t element = uint64_t{1} << (random() % 4);
    const size_t dimensions = random() % 5;
    std::vector<uint64_t> shape(dimensions);
    for (uint64_t& size : shape) size = 1 + random() % 5;
    std::vector<size_t> order(dimensions);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<int64_t> strides(dimensions);
    int64_t next = 1;
    for (const size_t dimension : order) {
      strides[dimension] = next;
      next *= static_cast<int64_t>(shape[dimension] + random() % 2);
    }
    std::vector<std::byte> buffer(static_cast<size_t>(next) * element + element);
    for (std::byte& byte : buffer) byte = static_cast<std::byte>(random());
    uint64_t count = 1;
    for (const uint64_t size : shape) count *= size;
    std::vector<std::byte> expected;
    for (uint64_t i = 0; i < count; ++i) {
      uint64_t rest = i;
      int64_t at = 0;
      for (size_t d = dimensions; d-- > 0;) {
        at += static_cast<int64_t>(rest % shape[d]) * strides[d];
        rest /= shape[d];
      }
      const auto from = buffer.begin() + at * static_cast<int64_t>(element);
      expected.insert(expected.end(), from, from + static_cast<int64_t>(element));
    }
    Result<StridedMemory> memory = StridedMemory::Make("t", buffer.data(), element, shape, strides);
    ASSERT_TRUE(memory.ok());
    ASSERT_EQ(memory->size_bytes(), expected.size());
    EXPECT_FALSE(memory->Overlaps());
    const uint64_t first = random() % count;
    const uint64_t some = random() % (count - first) + 1;
    std::vector<std::byte> out(some * element);
    memory->Gather(first * element, out);
    ASSERT_EQ(std::memcmp(out.data(), expected.data() + first * element, out.size()), 0);
    // Scattering back what is there changes nothing, zeroes change exactly the range.
    const std::vector<std::byte> before = buffer;
    memory->Scatter(first * element, out);
    ASSERT_EQ(buffer, before);
    memory->Scatter(first * element, std::vector<std::byte>(out.size()));
    std::vector<std::byte> all(expected.size());
    memory->Gather(0, all);
    std::fill_n(expected.begin() + static_cast<ptrdiff_t>(first * element), out.size(),
                std::byte{0});
    ASSERT_EQ(all, expected);
  }
}

TEST(StridedMemory, FindsMemoryThatIsSharedBetweenElements) {
  float data[64] = {};
  const auto make = [&](std::vector<uint64_t> shape, std::vector<int64_t> strides) {
    return *StridedMemory::Make("t", data, 4, shape, strides);
  };
  EXPECT_TRUE(make({4, 4}, {0, 1}).Overlaps());  // Broadcast.
  EXPECT_TRUE(make({4, 4}, {2, 1}).Overlaps());
  EXPECT_FALSE(make({4, 4}, {4, 1}).Overlaps());
  EXPECT_FALSE(make({4, 4}, {1, 4}).Overlaps());
  EXPECT_FALSE(make({1, 4}, {0, 1}).Overlaps());  // A stride that is never taken.
  EXPECT_TRUE(make({4, 4}, {4, 1}).contiguous());
  EXPECT_FALSE(make({4, 4}, {8, 2}).contiguous());
}

TEST(Tensor, CountsWithoutOverflow) {
  const uint64_t large = uint64_t{1} << 33;
  EXPECT_EQ(ElementCount(std::vector<uint64_t>{large, large}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(*ElementCount(std::vector<uint64_t>{large, 0, large, large}), 0u);
  EXPECT_EQ(*ElementCount({}), 1u);
}

}  // namespace
}  // namespace backstay::client
