#include "client/slot.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "base/unique_fd.h"

namespace backstay::client {
namespace {

constexpr uint32_t kChunkBytes = 4096;
constexpr SlotGeometry kGeometry = {.size_bytes = 4 * kChunkBytes, .chunk_bytes = kChunkBytes};

// A slot's two memory files, as the service makes them.
class Memory {
 public:
  Memory() : data_(Make(kGeometry.size_bytes)), control_(Make(kGeometry.ControlBytes())) {
    Mapping page = Mapping::Map(control_.get(), kGeometry.ControlBytes(), /*writable=*/true);
    SlotControlWriter(std::span(page.data(), kGeometry.ControlBytes()), kGeometry).Reset(1);
  }

  // Descriptors of their own, as each message brings them.
  Reply Message(int flags) const {
    Reply reply;
    for (const UniqueFd* file : {&data_, &control_}) {
      const std::string path = "/proc/self/fd/" + std::to_string(file->get());
      const ForkGuard guard;
      reply.descriptors.emplace_back(guard, ::open(path.c_str(), flags | O_CLOEXEC));
    }
    return reply;
  }

 private:
  static UniqueFd Make(uint64_t size_bytes) {
    UniqueFd file(::memfd_create("slot-test", MFD_CLOEXEC));
    EXPECT_EQ(::ftruncate(file.get(), static_cast<off_t>(size_bytes)), 0);
    return file;
  }

  UniqueFd data_;
  UniqueFd control_;
};

std::shared_ptr<const MappedSlot> TakeNew(SlotCache& cache, const Memory& memory, uint64_t id) {
  Reply reply = memory.Message(O_RDWR);
  const local::BeginReply begin = {.slot_id = id,
                                   .size_bytes = kGeometry.size_bytes,
                                   .control_bytes = kGeometry.ControlBytes(),
                                   .has_fds = true};
  auto slot = cache.Take(reply, begin, kChunkBytes);
  EXPECT_TRUE(slot.ok()) << slot.status().ToString();
  return slot.ok() ? *slot : nullptr;
}

TEST(SlotCacheTest, FindsTheMemoryThatItHasMappedByWhatItIs) {
  SlotCache cache;
  const Memory first;
  const Memory second;
  const auto first_slot = TakeNew(cache, first, 1);
  const auto second_slot = TakeNew(cache, second, 2);
  EXPECT_EQ(cache.FindMapped(first.Message(O_RDONLY), kGeometry), first_slot);
  EXPECT_EQ(cache.FindMapped(second.Message(O_RDONLY), kGeometry), second_slot);
}

TEST(SlotCacheTest, FindsNothingElse) {
  SlotCache cache;
  const Memory mine;
  const Memory other;
  ASSERT_NE(TakeNew(cache, mine, 1), nullptr);
  EXPECT_EQ(cache.FindMapped(other.Message(O_RDONLY), kGeometry), nullptr);
  EXPECT_EQ(cache.FindMapped(Reply(), kGeometry), nullptr);
  // Another layout of the same file would be another control page.
  SlotGeometry halved = kGeometry;
  halved.chunk_bytes /= 2;
  EXPECT_EQ(cache.FindMapped(mine.Message(O_RDONLY), halved), nullptr);
  cache.Drop(1, [] {});
  EXPECT_EQ(cache.FindMapped(mine.Message(O_RDONLY), kGeometry), nullptr);
}

TEST(SlotCacheTest, ADroppedSlotIsUnmappedOnceNobodyUsesIt) {
  SlotCache cache;
  const Memory memory;
  auto in_use = TakeNew(cache, memory, 1);
  int unmapped_count = 0;
  cache.Drop(1, [&] { ++unmapped_count; });
  EXPECT_EQ(unmapped_count, 0) << "a copy thread may still write there";
  in_use.reset();
  EXPECT_EQ(unmapped_count, 1);
  cache.Drop(1, [&] { ++unmapped_count; });
  EXPECT_EQ(unmapped_count, 1) << "it is not mapped here";
}

}  // namespace
}  // namespace backstay::client
