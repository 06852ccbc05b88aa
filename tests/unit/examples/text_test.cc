#include "examples/text.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <vector>

#include "gtest/gtest.h"

namespace backstay::example {
namespace {

constexpr size_t kContext = 4;

TEST(Sampler, EachEpochVisitsEveryPositionOnceInAnOrderOfItsOwn) {
  // 96 positions have many divisors, 97 none, 1 is the smallest text there is.
  for (const size_t positions : {size_t{96}, size_t{97}, size_t{1}}) {
    const Sampler sampler(positions + kContext, kContext, /*seed=*/3);
    ASSERT_EQ(sampler.epoch_sample_count(), positions);
    std::vector<std::vector<size_t>> orders;
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<int> visits(positions, 0);
      orders.emplace_back();
      for (uint64_t i = 0; i < positions; ++i) {
        const size_t position = sampler.Position(epoch * positions + i);
        ASSERT_GE(position, kContext);
        ASSERT_LT(position, positions + kContext);
        ++visits[position - kContext];
        orders.back().push_back(position);
      }
      EXPECT_EQ(visits, std::vector<int>(positions, 1));
    }
    if (positions > 1) {
      EXPECT_NE(orders[0], orders[1]);
      EXPECT_NE(orders[1], orders[2]);
    }
  }
}

TEST(Sampler, DependsOnNothingButItsArguments) {
  const Sampler first(1000, kContext, 5), second(1000, kContext, 5), other(1000, kContext, 6);
  int differing = 0;
  for (uint64_t sample = 0; sample < 100; ++sample) {
    EXPECT_EQ(first.Position(sample), second.Position(sample));
    differing += first.Position(sample) != other.Position(sample);
  }
  EXPECT_GT(differing, 50);
}

TEST(Sampler, RefusesATextWithoutPositions) {
  EXPECT_THROW(Sampler(kContext, kContext, 1), std::runtime_error);
  EXPECT_THROW(Sampler(0, kContext, 1), std::runtime_error);
}

TEST(LoadText, ReadsAFileWhole) {
  const auto path = std::filesystem::temp_directory_path() / "backstay_text_test";
  std::ofstream(path, std::ios::binary) << std::string("ab\0\xff\n", 5);
  EXPECT_EQ(LoadText(path.string()), (std::vector<uint8_t>{'a', 'b', 0, 0xff, '\n'}));
  std::filesystem::remove(path);
}

TEST(LoadText, NamesTheFileItCannotRead) {
  try {
    (void)LoadText("/nowhere/text");
    FAIL() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("/nowhere/text"), std::string::npos);
  }
}

}  // namespace
}  // namespace backstay::example
