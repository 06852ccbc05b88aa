#include "base/slot_control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

namespace backstay {
namespace {

using ::testing::HasSubstr;

constexpr SlotGeometry kGeometry{10 * kChunkBytesMin + 1, kChunkBytesMin};

class SlotControl : public ::testing::Test {
 protected:
  void SetUp() override { writer_.Reset(/*epoch=*/1); }

  std::span<std::byte> page() { return std::as_writable_bytes(std::span<uint64_t>(words_)); }
  SlotControlHeader& header() { return *reinterpret_cast<SlotControlHeader*>(page().data()); }

  std::vector<uint64_t> words_ = std::vector<uint64_t>(kGeometry.ControlBytes() / 8);
  SlotControlWriter writer_{page(), kGeometry};
};

TEST(SlotGeometry, LaysOutThePage) {
  EXPECT_EQ(kGeometry.ChunkCount(), 11u);
  EXPECT_EQ(kGeometry.ChecksumsOffsetBytes(), 112u);  // 64 + 11 * 4, rounded up to 16.
  EXPECT_EQ(kGeometry.ControlBytes(), 112u + 11 * 16);
  EXPECT_EQ(kGeometry.ChunkCountOf(0), 0u);
  EXPECT_EQ(kGeometry.ChunkCountOf(kChunkBytesMin), 1u);
  EXPECT_EQ(kGeometry.ChunkCountOf(kChunkBytesMin + 1), 2u);
  EXPECT_TRUE(kGeometry.Validate().ok());
  EXPECT_FALSE((SlotGeometry{kMiB, 0}.Validate().ok()));
  EXPECT_FALSE((SlotGeometry{kMiB, 3 * kMiB}.Validate().ok()));
  EXPECT_FALSE((SlotGeometry{uint64_t{1} << 45, kMiB}.Validate().ok()));
}

TEST_F(SlotControl, PublishedChunksAreSeenWithTheirChecksums) {
  const SlotControlView view(page(), kGeometry);
  ASSERT_TRUE(view.Validate().ok());
  writer_.Publish(1, {5, 6});
  EXPECT_FALSE(view.IsReady(0));
  EXPECT_TRUE(view.IsReady(1));
  EXPECT_FALSE(view.IsReady(2));
  EXPECT_EQ(view.Checksum(1), (Hash128{5, 6}));
  writer_.PublishFailed(10);
  EXPECT_EQ(view.State(10), ChunkState::kChunkFailed);
  writer_.Retract(1);
  EXPECT_EQ(view.State(1), ChunkState::kChunkEmpty);
  writer_.SetUsedBytes(77);
  EXPECT_EQ(view.used_bytes(), 77u);
  writer_.Reset(2);
  EXPECT_EQ(view.epoch(), 2u);
  EXPECT_EQ(view.used_bytes(), 0u);
  EXPECT_FALSE(view.IsReady(0));
}

// A header that changes under us never leads out of the page: run with the address sanitizer.
TEST_F(SlotControl, HostileHeaderIsNotFollowed) {
  const SlotControlView view(page(), kGeometry);
  std::memset(page().data(), 0xff, page().size());
  EXPECT_EQ(view.Validate().code(), StatusCode::kInvalidArgument);
  for (uint64_t chunk = 0; chunk < kGeometry.ChunkCount(); ++chunk) {
    EXPECT_EQ(view.State(chunk), ChunkState::kChunkFailed) << "an unknown number reads as failed";
    EXPECT_EQ(view.Checksum(chunk), (Hash128{UINT64_MAX, UINT64_MAX}));
  }
}

TEST_F(SlotControl, ValidateNamesWhatDiffers) {
  const SlotControlView view(page(), kGeometry);
  header().chunk_count = 12;
  EXPECT_THAT(view.Validate().message(), HasSubstr("12 chunks"));
  header().version = 9;
  EXPECT_THAT(view.Validate().message(), HasSubstr("version 9, this program speaks version 1"));
  header().magic = 0;
  EXPECT_THAT(view.Validate().message(), HasSubstr("not a slot's control page"));
}

TEST_F(SlotControl, ChunkOutOfRangeStopsTheProcess) {
  EXPECT_DEATH(writer_.Publish(11, {}), "chunk out of range");
  EXPECT_DEATH(SlotControlView(page().first(100), kGeometry), "too small");
}

// A reader that sees a chunk ready sees its bytes and checksum: run with the thread sanitizer.
TEST_F(SlotControl, ReadyMeansVisible) {
  std::vector<uint64_t> bytes(kGeometry.ChunkCount());
  std::thread writer([&] {
    for (uint64_t chunk = 0; chunk < kGeometry.ChunkCount(); ++chunk) {
      bytes[chunk] = chunk + 100;
      writer_.Publish(chunk, {chunk, chunk * 2});
    }
  });
  const SlotControlView view(page(), kGeometry);
  for (uint64_t chunk = 0; chunk < kGeometry.ChunkCount(); ++chunk) {
    while (!view.IsReady(chunk)) std::this_thread::yield();
    EXPECT_EQ(bytes[chunk], chunk + 100);
    EXPECT_EQ(view.Checksum(chunk), (Hash128{chunk, chunk * 2}));
  }
  writer.join();
}

}  // namespace
}  // namespace backstay
