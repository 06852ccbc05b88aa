#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "store/shard_table.h"
#include "store/slot_pool.h"
#include "tests/support/heap_slot_memory.h"
#include "tests/support/manual_executor.h"

namespace backstay::store::testing {

inline constexpr uint32_t kChunk = 4 * kKiB;

// A pool with slots on the heap and a budget that tests set.
class PoolTest : public ::testing::Test {
 protected:
  static ReservationRequest Request(Purpose purpose, uint64_t slot_bytes, uint32_t slot_count,
                                    std::string job = "job", std::string shard = "3") {
    return {.purpose = purpose,
            .job = JobName(std::move(job)),
            .shard = ShardId(std::move(shard)),
            .slot_bytes = slot_bytes,
            .slot_count = slot_count,
            .chunk_bytes = kChunk};
  }

  // What a slot for `slot_bytes` costs.
  static uint64_t Footprint(uint64_t slot_bytes) {
    return SlotFootprintBytes({SlotDataBytes(slot_bytes), kChunk});
  }

  Result<ReservationId> Reserve(const ReservationRequest& request) {
    std::optional<Result<ReservationId>> answer;
    pool_.Reserve(request, [&](Result<ReservationId> id) { answer = std::move(id); });
    EXPECT_FALSE(answer.has_value()) << "a completion inside its call";
    executor_.RunUntilIdle();
    return answer.value_or(Result<ReservationId>(Unavailable("no answer")));
  }

  Status Resize(ReservationId id, uint64_t slot_bytes, uint32_t slot_count) {
    std::optional<Status> answer;
    pool_.Resize(id, slot_bytes, slot_count, [&](Status status) { answer = std::move(status); });
    executor_.RunUntilIdle();
    return answer.value_or(Unavailable("no answer"));
  }

  static constexpr ClientId kAlice{1};
  static constexpr ClientId kBob{2};

  backstay::testing::ManualExecutor executor_;
  backstay::testing::HeapSlotMemoryFactory factory_;
  FixedMemoryBudget budget_{64 * kMiB};
  SlotPool pool_{{.node = NodeId("n"), .repair_reserve_bytes = 0},
                 executor_,
                 OffloadOnto(executor_),
                 factory_,
                 budget_};
};

// With a table, and what a client and a peer do to a shard.
class TableTest : public PoolTest {
 protected:
  static ShardName Name(uint64_t step, uint64_t generation = 1, std::string shard = "3") {
    return {JobName("job"), {Generation(generation), Step(step)}, ShardId(std::move(shard))};
  }

  static std::byte Pattern(uint64_t step, uint64_t at) {
    return static_cast<std::byte>(step * 31 + at * 7 + at / kChunk);
  }

  static ShardContents Contents(uint64_t size_bytes) {
    ShardContents contents;
    contents.tensors.push_back({.name = "weights",
                                .dtype = Dtype::kUint8,
                                .shape = {size_bytes},
                                .global_shape = {size_bytes},
                                .slice = WholeSlice{},
                                .offset_bytes = 0,
                                .size_bytes = size_bytes});
    return contents;
  }

  Result<const Shard*> Begin(const ShardName& name, ReservationId reservation,
                             std::optional<ClientId> client = kAlice) {
    return table_.Begin({.name = name,
                         .rank = Rank(3),
                         .world_size = 4,
                         .reservation = reservation,
                         .client = client,
                         .unix_ms = 1});
  }

  // The client's part: fills the slot and publishes its chunks.
  static void CopyInto(const Shard& shard) {
    SlotControlWriter control(shard.memory->control(), shard.memory->geometry());
    for (uint64_t chunk = 0; chunk < shard.ChunkCount(); ++chunk) {
      const std::span<std::byte> bytes = shard.ChunkBytes(chunk);
      for (size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = Pattern(shard.name.snapshot.step.value, chunk * kChunk + i);
      }
      control.Publish(chunk, HashBytes(bytes));
    }
  }

  // A whole save; the sealed shard.
  const Shard* Save(const ShardName& name, ReservationId reservation, uint64_t size_bytes) {
    const Result<const Shard*> shard = Begin(name, reservation);
    EXPECT_TRUE(shard.ok()) << shard.status();
    if (!shard.ok()) return nullptr;
    EXPECT_TRUE(table_.StartCopy(name, size_bytes, EncodeContents(Contents(size_bytes))).ok());
    CopyInto(**shard);
    const Result<Hash128> digest = table_.Seal(name, /*unix_ms=*/5);
    EXPECT_TRUE(digest.ok()) << digest.status();
    return *shard;
  }

  ReservationId Reserved(Purpose purpose, uint64_t slot_bytes, uint32_t slot_count) {
    const Result<ReservationId> id = Reserve(Request(purpose, slot_bytes, slot_count));
    EXPECT_TRUE(id.ok()) << id.status();
    return id.ok() ? *id : ReservationId();
  }

  ShardTable table_{pool_};
};

}  // namespace backstay::store::testing
