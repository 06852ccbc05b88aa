#include "store/slot_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "base/units.h"
#include "store/slot_pool.h"
#include "tests/support/manual_executor.h"

namespace backstay::store {
namespace {

constexpr SlotGeometry kGeometry{8 * kMiB, 1 * kMiB};

std::unique_ptr<SlotMemory> Create(const SlotGeometry& geometry = kGeometry) {
  Result<std::unique_ptr<SlotMemory>> memory =
      MakeMemfdSlotMemoryFactory()->Create(geometry, kAnyNumaNode);
  EXPECT_TRUE(memory.ok()) << memory.status();
  return *std::move(memory);
}

TEST(MemfdSlot, IsZeroedAndTouched) {
  const auto memory = Create();
  ASSERT_EQ(memory->data().size(), kGeometry.size_bytes);
  ASSERT_GE(memory->control().size(), kGeometry.ControlBytes());
  EXPECT_TRUE(std::ranges::all_of(memory->data(), [](std::byte b) { return b == std::byte{0}; }));
  struct stat info {};
  const auto fresh = Create();
  ASSERT_EQ(::fstat(fresh->data_fd(), &info), 0);
  EXPECT_EQ(static_cast<uint64_t>(info.st_size), kGeometry.size_bytes);
  if (fresh->pages() == PageKind::kHuge) return;  // Its file does not count blocks.
  EXPECT_GE(static_cast<uint64_t>(info.st_blocks) * 512, kGeometry.size_bytes) << "not prefaulted";
}

TEST(MemfdSlot, ComesFromTheNumaNodeAskedFor) {
  const auto factory = MakeMemfdSlotMemoryFactory();
  const Result<std::unique_ptr<SlotMemory>> memory = factory->Create(kGeometry, 0);
  ASSERT_TRUE(memory.ok()) << memory.status();
  int policy = -1;
  unsigned long nodes[1024 / (8 * sizeof(unsigned long))] = {};
  const long asked = ::syscall(SYS_get_mempolicy, &policy, nodes, 1024UL, (*memory)->data().data(),
                               static_cast<unsigned long>(MPOL_F_ADDR));
  if (asked == 0) {  // Else a kernel without NUMA, or a container that forbids to ask.
    EXPECT_EQ(policy, MPOL_PREFERRED);
    EXPECT_EQ(nodes[0], 1u);
  }
  const Status none = factory->Create(kGeometry, 1000).status();
  EXPECT_EQ(none.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(none.message().find("no NUMA node 1000"), std::string::npos) << none;
  EXPECT_EQ(factory->Create(kGeometry, -2).status().code(), StatusCode::kInvalidArgument);
}

TEST(MemfdSlot, NobodyCanChangeItsSize) {
  const auto memory = Create();
  for (const int fd : {memory->data_fd(), memory->control_fd()}) {
    const int seals = ::fcntl(fd, F_GET_SEALS);
    EXPECT_EQ(seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
              F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    EXPECT_EQ(::ftruncate(fd, 0), -1);
    EXPECT_EQ(errno, EPERM);
    EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  }
}

TEST(MemfdSlot, ClientsMappingSeesTheSameBytes) {
  const auto memory = Create();
  void* mapping = ::mmap(nullptr, kGeometry.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                         memory->data_fd(), 0);
  ASSERT_NE(mapping, MAP_FAILED);
  static_cast<char*>(mapping)[12345] = 'x';
  EXPECT_EQ(memory->data()[12345], std::byte{'x'});
  ::munmap(mapping, kGeometry.size_bytes);
}

TEST(MemfdSlot, ReadOnlyDescriptorCannotBeMappedWritable) {
  const auto memory = Create();
  memory->data()[7] = std::byte{9};
  const Result<SlotMemory::ReadOnlyFds> fds = memory->OpenReadOnly();
  ASSERT_TRUE(fds.ok()) << fds.status();
  for (const UniqueFd* fd : {&fds->data, &fds->control}) {
    EXPECT_EQ(::mmap(nullptr, kSlotBytesMultiple, PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0),
              MAP_FAILED);
    EXPECT_EQ(errno, EACCES);
    EXPECT_EQ(::write(fd->get(), "x", 1), -1);
  }
  void* mapping = ::mmap(nullptr, kGeometry.size_bytes, PROT_READ, MAP_SHARED, fds->data.get(), 0);
  ASSERT_NE(mapping, MAP_FAILED);
  EXPECT_EQ(static_cast<const std::byte*>(mapping)[7], std::byte{9});
  EXPECT_EQ(::mprotect(mapping, kGeometry.size_bytes, PROT_READ | PROT_WRITE), -1);
  ::munmap(mapping, kGeometry.size_bytes);
}

TEST(MemfdSlot, ImpossibleChunkSizesAreErrors) {
  const auto factory = MakeMemfdSlotMemoryFactory();
  EXPECT_EQ(factory->Create({kMiB, 12345}, kAnyNumaNode).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(SlotDataBytes, RoundsToPages) {
  EXPECT_EQ(SlotDataBytes(0), 4 * kKiB);
  EXPECT_EQ(SlotDataBytes(1), 4 * kKiB);
  EXPECT_EQ(SlotDataBytes(4 * kKiB + 1), 8 * kKiB);
  EXPECT_EQ(SlotDataBytes(2 * kMiB + 1), 4 * kMiB);
}

// The pool with real memory, made by real threads.
TEST(MemfdSlot, PoolMakesThemOnWorkers) {
  backstay::testing::ManualExecutor executor;
  const auto factory = MakeMemfdSlotMemoryFactory();
  const FixedMemoryBudget budget(64 * kMiB);
  WorkerPool workers("slots", /*thread_count=*/2, /*queued_count_max=*/8);
  SlotPool pool({.node = NodeId("n"), .repair_reserve_bytes = 0}, executor,
                OffloadTo(workers, executor), *factory, budget);
  std::optional<Result<ReservationId>> own;
  std::optional<Result<ReservationId>> held;
  pool.Reserve({.purpose = Purpose::kOwn,
                .job = JobName("job"),
                .shard = ShardId("0"),
                .slot_bytes = 4 * kMiB,
                .slot_count = 3,
                .chunk_bytes = kChunkBytesDefault},
               [&](Result<ReservationId> id) { own = std::move(id); });
  pool.Reserve({.purpose = Purpose::kHeld,
                .job = JobName("job"),
                .shard = ShardId("1"),
                .slot_bytes = 4 * kMiB,
                .slot_count = 3,
                .chunk_bytes = kChunkBytesDefault},
               [&](Result<ReservationId> id) { held = std::move(id); });
  ASSERT_TRUE(executor.RunUntilPosted([&] { return own && held; }, std::chrono::seconds(30)));
  ASSERT_TRUE(own->ok() && held->ok());
  const Result<AcquiredSlot> slot = pool.Acquire(**own, std::nullopt);
  ASSERT_TRUE(slot.ok());
  std::memset(slot->memory->data().data(), 1, 4 * kMiB);
  EXPECT_EQ(pool.Stats().slot_count, 6u);
  pool.Release(**held);
  executor.RunFor(kSpareKeptDuration + 2 * kSpareLookInterval);
  EXPECT_EQ(pool.Stats().slot_count, 3u) << "spares go back to the system";
}

}  // namespace
}  // namespace backstay::store
