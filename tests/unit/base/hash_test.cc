#include "base/hash.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/hash_kernels.h"
#include "base/random.h"

namespace backstay {
namespace {

std::vector<std::byte> RandomBytes(size_t size_bytes, uint64_t seed) {
  SeededRandom random(seed);
  const std::string text = random.Bytes(size_bytes);
  std::vector<std::byte> bytes(size_bytes);
  std::memcpy(bytes.data(), text.data(), size_bytes);
  return bytes;
}

std::vector<internal::NamedHashKernels> KernelSets() {
  internal::NamedHashKernels sets[internal::kHashKernelSetsMax];
  const size_t count = internal::SupportedHashKernels(sets);
  return {sets, sets + count};
}

// Around every border of the algorithm: XXH3's short forms (16, 128, 240), stripes of 64, blocks of
// 1024, streaming from 256 KiB on.
std::vector<size_t> BorderSizes() {
  std::vector<size_t> sizes;
  for (const size_t border :
       {0, 4, 8, 16, 64, 128, 240, 1024, 1088, 2048, 8192, 256 * 1024, 1024 * 1024}) {
    for (int delta = -1; delta <= 1; ++delta) {
      if (border != 0 || delta >= 0) sizes.push_back(border + delta);
    }
  }
  sizes.push_back(300'003);
  return sizes;
}

TEST(Hash, MatchesPublishedVectors) {
  // From xxHash's own test suite: XXH3_128bits of the empty input with seed 0.
  EXPECT_EQ(HashBytes(std::string_view()).ToHex(), "99aa06d3014798d86001c324468d497f");
}

TEST(Hash, BytesAndHexAreCanonical) {
  const Hash128 hash{.low = 0x0011223344556677, .high = 0x8899aabbccddeeff};
  EXPECT_EQ(hash.ToHex(), "8899aabbccddeeff0011223344556677");
  const std::string bytes = hash.ToByteString();
  ASSERT_EQ(bytes.size(), 16u);
  EXPECT_EQ(static_cast<uint8_t>(bytes[0]), 0x88);
  EXPECT_EQ(static_cast<uint8_t>(bytes[15]), 0x77);
  EXPECT_EQ(Hash128::FromBytes(bytes), hash);
  EXPECT_EQ(Hash128::FromBytes(bytes.substr(1)), std::nullopt);
  EXPECT_EQ(Hash128::FromBytes(bytes + "x"), std::nullopt);
}

TEST(Hash, EveryInstructionSetGivesTheSameHash) {
  const std::vector<std::byte> bytes = RandomBytes(1024 * 1024 + 64, 1);
  for (const size_t size_bytes : BorderSizes()) {
    for (const size_t offset : {0, 1, 63}) {
      uint64_t expected[2];
      internal::kBaselineHashKernels.hash(bytes.data() + offset, size_bytes, expected);
      for (const auto& set : KernelSets()) {
        uint64_t hash[2];
        set.kernels->hash(bytes.data() + offset, size_bytes, hash);
        EXPECT_TRUE(hash[0] == expected[0] && hash[1] == expected[1])
            << set.name << " " << size_bytes;
      }
    }
  }
}

// Goal:   the copy is exact, stays inside of its target and hashes as the plain hash does.
// Method:  every instruction set, border sizes, aligned and unaligned ends, guard bytes around the
//          target.
TEST(Hash, CopyIsExactAndHashed) {
  constexpr size_t kGuardBytes = 64;
  const std::vector<std::byte> source = RandomBytes(1024 * 1024 + 64, 2);
  std::vector<std::byte> room(source.size() + 4 * kGuardBytes);
  void* start = room.data() + kGuardBytes;
  size_t space = room.size() - kGuardBytes;
  auto* aligned = static_cast<std::byte*>(std::align(64, source.size(), start, space));
  for (const size_t size_bytes : BorderSizes()) {
    for (const size_t offset : {0, 1, 32}) {
      uint64_t expected[2];
      internal::kBaselineHashKernels.hash(source.data() + offset, size_bytes, expected);
      for (const auto& set : KernelSets()) {
        SCOPED_TRACE(std::string(set.name) + " " + std::to_string(size_bytes) + " at " +
                     std::to_string(offset));
        for (const size_t target_offset : {size_t{0}, offset}) {
          std::fill(room.begin(), room.end(), std::byte{0xa5});
          std::byte* target = aligned + target_offset;
          uint64_t hash[2];
          set.kernels->copy_and_hash(target, source.data() + offset, size_bytes, hash);
          EXPECT_TRUE(hash[0] == expected[0] && hash[1] == expected[1]);
          EXPECT_EQ(std::memcmp(target, source.data() + offset, size_bytes), 0);
          EXPECT_EQ(target[-1], std::byte{0xa5});
          EXPECT_EQ(target[size_bytes], std::byte{0xa5});
        }
      }
    }
  }
}

TEST(Hash, PublicFunctionsAgree) {
  const std::vector<std::byte> source = RandomBytes(700'001, 3);
  std::vector<std::byte> target(source.size());
  EXPECT_EQ(CopyAndHash(target, source), HashBytes(source));
  EXPECT_EQ(target, source);
}

TEST(HashDeathTest, SizesMustMatch) {
  std::vector<std::byte> target(1);
  const std::vector<std::byte> source(2);
  EXPECT_DEATH(CopyAndHash(target, source), "target of the source's size");
}

// Goal:   the hash is that of the stored bytes, whatever a writer does to the source meanwhile.
// Method:  a thread that rewrites the source without pause; each copy is hashed again afterwards.
//          The data race is the subject, so this is left out under the thread sanitizer
//          (hash_test.cc is built without it there).
TEST(Hash, HashIsThatOfTheCopyUnderAWriter) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the race is the subject of this test; the thread sanitizer would report it";
#endif
  std::vector<std::byte> source = RandomBytes(512 * 1024, 4);
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> rounds = 0;
  std::thread writer([&] {
    volatile auto* words = reinterpret_cast<uint64_t*>(source.data());
    for (uint64_t round = 1; !stop; ++round) {
      for (size_t i = 0; i < source.size() / 8; ++i) words[i] = round * 0x9e3779b97f4a7c15ULL + i;
      rounds = round;
    }
  });
  std::vector<std::byte> target(source.size());
  int copies = 0;
  while (copies < 200 || rounds < 50) {
    for (const auto& set : KernelSets()) {
      uint64_t hash[2];
      uint64_t expected[2];
      set.kernels->copy_and_hash(target.data(), source.data(), target.size(), hash);
      set.kernels->hash(target.data(), target.size(), expected);
      EXPECT_TRUE(hash[0] == expected[0] && hash[1] == expected[1]) << set.name;
    }
    ++copies;
  }
  stop = true;
  writer.join();
}

}  // namespace
}  // namespace backstay
