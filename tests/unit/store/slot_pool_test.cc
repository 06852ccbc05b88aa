#include "store/slot_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/store/store_fixture.h"

namespace backstay::store::testing {
namespace {

using ::testing::HasSubstr;

TEST_F(PoolTest, ReservationIsGrantedWhenItsMemoryIsThere) {
  const Result<ReservationId> id = Reserve(Request(Purpose::kOwn, 100 * kKiB, 3));
  ASSERT_TRUE(id.ok()) << id.status();
  EXPECT_EQ(factory_.created_count(), 3u);
  const SlotPoolStats stats = pool_.Stats();
  EXPECT_EQ(stats.memory_bytes, 3 * Footprint(100 * kKiB));
  EXPECT_EQ(stats.reserved_bytes, stats.memory_bytes);
  EXPECT_EQ(stats.free_bytes, stats.memory_bytes);
  EXPECT_EQ(stats.spare_bytes, 0u);
}

TEST_F(PoolTest, EmptyShardsHaveASlot) {
  const Result<ReservationId> id = Reserve(Request(Purpose::kOwn, 0, 2));
  ASSERT_TRUE(id.ok()) << id.status();
  EXPECT_TRUE(pool_.Acquire(*id, kAlice).ok());
}

// The refusal has every term of the sum.
TEST_F(PoolTest, RefusalCarriesTheSum) {
  budget_.Set(4 * kGiB);
  const Result<ReservationId> own = Reserve(Request(Purpose::kOwn, 8 * kMiB, 2));
  ASSERT_TRUE(own.ok());
  budget_.Set(20 * kMiB);
  const Result<ReservationId> refused =
      Reserve(Request(Purpose::kHeld, 4 * kMiB, 3, "x", "odd\nname"));
  ASSERT_EQ(refused.status().code(), StatusCode::kNoSpace);
  const std::string& message = refused.status().message();
  EXPECT_THAT(message, HasSubstr("job \"x\", shard \"odd\\x0aname\": 3 slots of 4.0 MiB"));
  EXPECT_THAT(message, HasSubstr("(2 kept + 1) = 12.1 MiB"));
  EXPECT_THAT(message, HasSubstr("node n"));
  EXPECT_THAT(message, HasSubstr("budget 20.0 MiB (configured), reserved 16.1 MiB"));
  EXPECT_THAT(message, HasSubstr("own 16.1 MiB, held 0 B"));
  EXPECT_THAT(message, HasSubstr("memory_budget"));
  EXPECT_EQ(factory_.created_count(), 2u) << "a refusal makes no memory";
}

TEST_F(PoolTest, NonsenseIsRefused) {
  EXPECT_EQ(Reserve(Request(Purpose::kOwn, 1, 0)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Reserve(Request(Purpose::kOwn, 1, kReservationSlotsMax + 1)).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(Reserve(Request(Purpose::kOwn, UINT64_MAX, 1)).status().code(),
            StatusCode::kInvalidArgument);
  ReservationRequest request = Request(Purpose::kOwn, kMiB, 1);
  request.chunk_bytes = 5000;
  EXPECT_EQ(Reserve(request).status().code(), StatusCode::kInvalidArgument);
}

// Two reservations that fit alone but not together: the second is refused although the first one's
// memory is not made yet.
TEST_F(PoolTest, AdmissionCountsWhatIsStillBeingMade) {
  budget_.Set(5 * Footprint(kMiB));
  std::vector<StatusCode> codes;
  for (int i = 0; i < 2; ++i) {
    pool_.Reserve(Request(Purpose::kOwn, kMiB, 3),
                  [&](Result<ReservationId> id) { codes.push_back(id.status().code()); });
  }
  executor_.RunUntilIdle();
  ASSERT_EQ(codes.size(), 2u);
  EXPECT_EQ(std::ranges::count(codes, StatusCode::kOk), 1);
  EXPECT_EQ(std::ranges::count(codes, StatusCode::kNoSpace), 1);
}

TEST_F(PoolTest, SavesCannotUseTheRepairReserve) {
  SlotPool pool({.node = NodeId("n"), .repair_reserve_bytes = 2 * Footprint(kMiB)}, executor_,
                OffloadOnto(executor_), factory_, budget_);
  budget_.Set(4 * Footprint(kMiB));
  const auto reserve = [&](Purpose purpose, uint32_t count) {
    std::optional<StatusCode> code;
    pool.Reserve(Request(purpose, kMiB, count),
                 [&](Result<ReservationId> id) { code = id.status().code(); });
    executor_.RunUntilIdle();
    return code;
  };
  EXPECT_EQ(reserve(Purpose::kOwn, 3), StatusCode::kNoSpace);
  EXPECT_EQ(reserve(Purpose::kOwn, 2), StatusCode::kOk);
  EXPECT_EQ(reserve(Purpose::kHeld, 1), StatusCode::kNoSpace);
  EXPECT_EQ(reserve(Purpose::kRepair, 1), StatusCode::kOk);
  EXPECT_EQ(reserve(Purpose::kFetch, 1), StatusCode::kOk);
  EXPECT_EQ(reserve(Purpose::kFetch, 1), StatusCode::kNoSpace);
}

TEST_F(PoolTest, MachineOutOfMemoryFailsTheReservationAndLeavesNothing) {
  factory_.FailAfter(2 * kMiB);
  EXPECT_EQ(Reserve(Request(Purpose::kOwn, kMiB, 3)).status().code(), StatusCode::kNoSpace);
  EXPECT_EQ(pool_.Stats().reserved_bytes, 0u);
  EXPECT_EQ(pool_.Stats().spare_bytes, pool_.Stats().memory_bytes);
  EXPECT_EQ(pool_.Stats().memory_bytes, 2 * Footprint(kMiB));
}

TEST_F(PoolTest, FullWorkersFailTheReservation) {
  SlotPool pool(
      {.node = NodeId("n"), .repair_reserve_bytes = 0}, executor_,
      [](auto, auto) { return NoSpace("queue full"); }, factory_, budget_);
  std::optional<StatusCode> code;
  pool.Reserve(Request(Purpose::kOwn, kMiB, 1),
               [&](Result<ReservationId> id) { code = id.status().code(); });
  EXPECT_FALSE(code);
  executor_.RunUntilIdle();
  EXPECT_EQ(code, StatusCode::kNoSpace);
  EXPECT_EQ(pool.Stats().reserved_bytes, 0u);
}

TEST_F(PoolTest, SlotGoesThroughItsStates) {
  const ReservationId id = *Reserve(Request(Purpose::kOwn, kMiB, 1));
  const Result<AcquiredSlot> slot = pool_.Acquire(id, kAlice);
  ASSERT_TRUE(slot.ok());
  EXPECT_EQ(pool_.slot(slot->id).state(), SlotState::kFilling);
  EXPECT_EQ(pool_.Stats().filling_bytes, Footprint(kMiB));
  EXPECT_EQ(pool_.Stats().own_bytes, Footprint(kMiB));
  EXPECT_TRUE(SlotControlView(slot->memory->control(), slot->memory->geometry()).Validate().ok());

  const Result<AcquiredSlot> none = pool_.Acquire(id, kAlice);
  EXPECT_EQ(none.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(none.status().message(), HasSubstr("filling"));

  pool_.Seal(slot->id);
  EXPECT_EQ(pool_.slot(slot->id).state(), SlotState::kSealed);
  pool_.GiveUp(slot->id);
  EXPECT_EQ(pool_.slot(slot->id).state(), SlotState::kFree);

  const Result<AcquiredSlot> again = pool_.Acquire(id, kAlice);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->id, slot->id);
  EXPECT_GT(again->epoch, slot->epoch);
}

TEST_F(PoolTest, RevokingLastsUntilGrantsAndPinsAreGone) {
  const ReservationId id = *Reserve(Request(Purpose::kHeld, kMiB, 1));
  const SlotId slot = pool_.Acquire(id, std::nullopt)->id;
  std::vector<ReservationId> told;
  pool_.OnSlotFree([&](ReservationId free) { told.push_back(free); });
  executor_.RunUntilIdle();
  pool_.Seal(slot);
  pool_.AddGrant(slot);
  pool_.AddGrant(slot);
  pool_.AddPin(slot);
  EXPECT_EQ(pool_.Stats().pinned_bytes, Footprint(kMiB));
  pool_.GiveUp(slot);
  EXPECT_EQ(pool_.slot(slot).state(), SlotState::kRevoking);
  EXPECT_EQ(pool_.Stats().revoking_bytes, Footprint(kMiB));
  pool_.RemoveGrant(slot);
  pool_.RemovePin(slot);
  EXPECT_FALSE(pool_.HasFreeSlot(id, std::nullopt));
  executor_.RunUntilIdle();
  EXPECT_TRUE(told.empty());
  pool_.RemoveGrant(slot);
  EXPECT_TRUE(pool_.HasFreeSlot(id, std::nullopt));
  executor_.RunUntilIdle();
  EXPECT_EQ(told, std::vector<ReservationId>{id});
}

// Attack: a stopped, fenced trainer wakes up and its copy thread goes on writing.
TEST_F(PoolTest, SlotOfADisownedClientIsQuarantinedUntilItsExitIsSeen) {
  budget_.Set(4 * Footprint(kMiB));
  const ReservationId id = *Reserve(Request(Purpose::kOwn, kMiB, 2));
  const SlotId sealed = pool_.Acquire(id, kAlice)->id;
  const SlotId freed = pool_.Acquire(id, kAlice)->id;
  pool_.Seal(sealed);
  pool_.GiveUp(freed);

  // Bob claims the shard: the free slot is out of reach, and replaced.
  EXPECT_FALSE(pool_.HasFreeSlot(id, kBob)) << "Alice's mapping is not Bob's";
  pool_.DisownClient(id, kAlice);
  executor_.RunUntilIdle();
  EXPECT_EQ(pool_.slot(freed).state(), SlotState::kQuarantined);
  EXPECT_EQ(pool_.Stats().quarantined_bytes, Footprint(kMiB));
  const Result<AcquiredSlot> bobs = pool_.Acquire(id, kBob);
  ASSERT_TRUE(bobs.ok()) << bobs.status();
  EXPECT_NE(bobs->id, freed);

  // What Alice had sealed stays, and is quarantined once it is let go of.
  EXPECT_EQ(pool_.slot(sealed).state(), SlotState::kSealed);
  pool_.GiveUp(sealed);
  executor_.RunUntilIdle();
  EXPECT_EQ(pool_.slot(sealed).state(), SlotState::kQuarantined);
  EXPECT_EQ(pool_.Stats().memory_bytes, 4 * Footprint(kMiB));
  EXPECT_EQ(Reserve(Request(Purpose::kOwn, kMiB, 1, "other")).status().code(),
            StatusCode::kNoSpace);

  pool_.ClientExited(kAlice);
  EXPECT_EQ(pool_.Stats().quarantined_bytes, 0u);
  EXPECT_EQ(pool_.Stats().spare_bytes, 2 * Footprint(kMiB));
  const uint64_t created = factory_.created_count();
  EXPECT_TRUE(Reserve(Request(Purpose::kOwn, kMiB, 2, "other")).ok());
  EXPECT_EQ(factory_.created_count(), created) << "spares are taken before new memory";
}

TEST_F(PoolTest, AClientThatLosesOneShardKeepsItsOthers) {
  const ReservationId lost = *Reserve(Request(Purpose::kOwn, kMiB, 1));
  const ReservationId kept = *Reserve(Request(Purpose::kOwn, kMiB, 1, "other"));
  pool_.GiveUp(pool_.Acquire(lost, kAlice)->id);
  const SlotId other = pool_.Acquire(kept, kAlice)->id;
  pool_.DisownClient(lost, kAlice);
  pool_.GiveUp(other);
  const Result<AcquiredSlot> again = pool_.Acquire(kept, kAlice);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->id, other);
}

TEST_F(PoolTest, ASlotThatIsTooSmallIsClosedAndFreedOnceItsClientHasUnmappedIt) {
  const ReservationId id = *Reserve(Request(Purpose::kOwn, kMiB, 2));
  std::vector<std::pair<SlotId, ClientId>> closed;
  pool_.OnSlotClosed([&](SlotId slot, ClientId client) { closed.emplace_back(slot, client); });
  const SlotId kept = pool_.Acquire(id, kAlice)->id;
  const SlotId idle = pool_.Acquire(id, kAlice)->id;
  pool_.Seal(kept);
  pool_.GiveUp(idle);
  ASSERT_TRUE(Resize(id, 2 * kMiB, 2).ok());
  executor_.RunUntilIdle();
  using ::testing::ElementsAre;
  EXPECT_THAT(closed, ElementsAre(std::pair(idle, kAlice))) << "the other has a snapshot";
  EXPECT_EQ(pool_.Stats().quarantined_bytes, Footprint(kMiB));
  EXPECT_EQ(pool_.ClientUnmapped(kBob, idle).code(), StatusCode::kNotFound) << "not his";
  EXPECT_EQ(pool_.ClientUnmapped(kAlice, kept).code(), StatusCode::kNotFound) << "not closed";
  const uint64_t before = pool_.Stats().memory_bytes;
  EXPECT_TRUE(pool_.ClientUnmapped(kAlice, idle).ok());
  executor_.RunUntilIdle();
  EXPECT_EQ(pool_.Stats().quarantined_bytes, 0u);
  EXPECT_EQ(pool_.Stats().spare_bytes, 0u) << "freed, not reused: its client's word is all we have";
  EXPECT_EQ(pool_.Stats().memory_bytes, before - Footprint(kMiB));

  // Once its snapshot is let go of, the other one goes the same way.
  pool_.GiveUp(kept);
  executor_.RunUntilIdle();
  ASSERT_EQ(closed.size(), 2u);
  EXPECT_TRUE(pool_.ClientUnmapped(kAlice, kept).ok());
  EXPECT_EQ(pool_.Stats().quarantined_bytes, 0u);
}

TEST_F(PoolTest, RestartedTrainerGetsTheSlotsOfItsPredecessor) {
  const ReservationId id = *Reserve(Request(Purpose::kOwn, kMiB, 1));
  const SlotId slot = pool_.Acquire(id, kAlice)->id;
  pool_.GiveUp(slot);
  EXPECT_EQ(pool_.Acquire(id, kBob).status().code(), StatusCode::kUnavailable);
  pool_.ClientExited(kAlice);
  const Result<AcquiredSlot> bobs = pool_.Acquire(id, kBob);
  ASSERT_TRUE(bobs.ok());
  EXPECT_EQ(bobs->id, slot);
}

// Without budget for a replacement the promise stays short, and is kept once memory comes back.
TEST_F(PoolTest, ShortReservationIsFilledWhenMemoryComesBack) {
  budget_.Set(1 * Footprint(kMiB));
  const ReservationId id = *Reserve(Request(Purpose::kOwn, kMiB, 1));
  pool_.GiveUp(pool_.Acquire(id, kAlice)->id);
  pool_.DisownClient(id, kAlice);
  executor_.RunUntilIdle();
  EXPECT_FALSE(pool_.HasFreeSlot(id, kBob));
  pool_.ClientExited(kAlice);
  executor_.RunUntilIdle();
  EXPECT_TRUE(pool_.HasFreeSlot(id, kBob));
  EXPECT_EQ(factory_.created_count(), 1u);
}

// Method: the budget is full, the job's reservation is short, and the slot that becomes free has
//         another size and no reservation: making the missing slot evicts it while it is looked at.
TEST_F(PoolTest, ASlotThatBecomesFreeMayGiveWayAtOnceToAShortReservation) {
  budget_.Set(Footprint(kMiB) + Footprint(2 * kMiB));
  const ReservationId fetched = *Reserve(Request(Purpose::kFetch, 2 * kMiB, 1, "other"));
  const SlotId dropped = pool_.Acquire(fetched, std::nullopt)->id;
  pool_.Seal(dropped);
  pool_.Release(fetched);
  const ReservationId id = *Reserve(Request(Purpose::kOwn, kMiB, 1));
  pool_.GiveUp(pool_.Acquire(id, kAlice)->id);
  pool_.DisownClient(id, kAlice);
  executor_.RunUntilIdle();
  ASSERT_FALSE(pool_.HasFreeSlot(id, kBob));

  pool_.GiveUp(dropped);
  executor_.RunUntilIdle();
  EXPECT_TRUE(pool_.HasFreeSlot(id, kBob));
  EXPECT_EQ(pool_.Stats().slot_count, 2u) << "the new one, and Alice's";
  EXPECT_EQ(pool_.Stats().spare_bytes, 0u);
  EXPECT_LE(pool_.Stats().memory_bytes, pool_.Stats().budget_bytes);
}

// As above, of the same reservation: its slot is too small since a resize.
TEST_F(PoolTest, ASlotThatIsTooSmallMayGiveWayAtOnceToItsReplacement) {
  budget_.Set(Footprint(2 * kMiB));
  const ReservationId id = *Reserve(Request(Purpose::kHeld, kMiB, 1));
  const SlotId small = pool_.Acquire(id, std::nullopt)->id;
  pool_.Seal(small);
  ASSERT_TRUE(Resize(id, 2 * kMiB, 1).ok());
  std::vector<ReservationId> told;
  pool_.OnSlotFree([&](ReservationId free) { told.push_back(free); });
  executor_.RunUntilIdle();

  pool_.GiveUp(small);
  EXPECT_FALSE(pool_.HasFreeSlot(id, std::nullopt)) << "the larger one is still being made";
  executor_.RunUntilIdle();
  EXPECT_EQ(told, std::vector<ReservationId>{id});
  const Result<AcquiredSlot> grown = pool_.Acquire(id, std::nullopt);
  ASSERT_TRUE(grown.ok()) << grown.status();
  EXPECT_EQ(grown->memory->geometry().size_bytes, 2 * kMiB);
  EXPECT_EQ(pool_.Stats().slot_count, 1u);
}

// That Alice has unmapped a slot says nothing of who maps it after her.
TEST_F(PoolTest, ASlotThatItsFormerClientUnmappedIsQuarantinedForTheNextOne) {
  const ReservationId first = *Reserve(Request(Purpose::kOwn, kMiB, 1));
  const SlotId slot = pool_.Acquire(first, kAlice)->id;
  pool_.Seal(slot);
  pool_.Release(first);
  ASSERT_TRUE(pool_.ClientUnmapped(kAlice, slot).ok());
  pool_.ClientExited(kAlice);
  pool_.GiveUp(slot);
  executor_.RunUntilIdle();

  const ReservationId second = *Reserve(Request(Purpose::kOwn, kMiB, 1));
  ASSERT_EQ(pool_.Acquire(second, kBob)->id, slot);
  pool_.DisownClient(second, kBob);
  pool_.GiveUp(slot);
  executor_.RunUntilIdle();
  EXPECT_EQ(pool_.Stats().quarantined_bytes, Footprint(kMiB)) << "Bob has it mapped";
  EXPECT_TRUE(pool_.ClientUnmapped(kBob, slot).ok());
  EXPECT_EQ(pool_.Stats().quarantined_bytes, 0u);
}

TEST_F(PoolTest, ReplacedReservationReusesTouchedMemory) {
  const ReservationId first = *Reserve(Request(Purpose::kHeld, kMiB, 3));
  pool_.Release(first);
  EXPECT_FALSE(pool_.Find(first));
  EXPECT_EQ(pool_.Stats().spare_bytes, 3 * Footprint(kMiB));
  EXPECT_EQ(pool_.Stats().reserved_bytes, 0u);
  ASSERT_TRUE(Reserve(Request(Purpose::kHeld, kMiB, 3)).ok());
  EXPECT_EQ(factory_.created_count(), 3u);
}

// Spares give way to what is needed: the budget is never exceeded, not for a moment.
TEST_F(PoolTest, SparesOfAnotherSizeAreEvictedFirst) {
  budget_.Set(3 * Footprint(2 * kMiB));
  pool_.Release(*Reserve(Request(Purpose::kHeld, 2 * kMiB, 3)));
  ASSERT_TRUE(Reserve(Request(Purpose::kHeld, kMiB, 4)).ok());
  EXPECT_LE(factory_.live_bytes(), 6 * kMiB);
  EXPECT_LE(pool_.Stats().memory_bytes, pool_.Stats().budget_bytes);
}

TEST_F(PoolTest, ASpareThatNobodyWantsGoesBackToTheSystem) {
  pool_.Release(*Reserve(Request(Purpose::kHeld, kMiB, 3)));
  const ReservationId kept = *Reserve(Request(Purpose::kHeld, 2 * kMiB, 1));
  executor_.RunFor(kSpareKeptDuration / 2);
  EXPECT_EQ(pool_.Stats().spare_bytes, 3 * Footprint(kMiB));
  // One is wanted for a while: its time begins anew.
  pool_.Release(*Reserve(Request(Purpose::kHeld, kMiB, 1)));
  executor_.RunFor(kSpareKeptDuration / 2 + 2 * kSpareLookInterval);
  EXPECT_EQ(pool_.Stats().spare_bytes, Footprint(kMiB));
  executor_.RunFor(kSpareKeptDuration);
  EXPECT_EQ(pool_.Stats().spare_bytes, 0u);
  EXPECT_EQ(factory_.live_bytes(), 2 * kMiB);
  EXPECT_TRUE(pool_.HasFreeSlot(kept, std::nullopt)) << "promised memory is no spare";
}

TEST_F(PoolTest, SparesGoBackWhenTheBudgetShrinks) {
  budget_.Set(6 * Footprint(kMiB));
  const ReservationId kept = *Reserve(Request(Purpose::kHeld, kMiB, 2));
  pool_.Release(*Reserve(Request(Purpose::kHeld, kMiB, 3, "other")));
  budget_.Set(3 * Footprint(kMiB));
  executor_.RunFor(kSpareLookInterval);
  EXPECT_EQ(pool_.Stats().memory_bytes, 3 * Footprint(kMiB)) << "no more than it must";
  budget_.Set(Footprint(kMiB));
  executor_.RunFor(kSpareLookInterval);
  EXPECT_EQ(pool_.Stats().memory_bytes, 2 * Footprint(kMiB)) << "nothing of what is promised";
  EXPECT_EQ(factory_.live_bytes(), 2 * kMiB);
  EXPECT_TRUE(pool_.HasFreeSlot(kept, std::nullopt));
}

TEST_F(PoolTest, SlotsInUseOutliveTheirReservation) {
  const ReservationId id = *Reserve(Request(Purpose::kFetch, kMiB, 1));
  const SlotId slot = pool_.Acquire(id, std::nullopt)->id;
  pool_.Seal(slot);
  pool_.Release(id);
  EXPECT_EQ(pool_.slot(slot).state(), SlotState::kSealed);
  EXPECT_EQ(pool_.Stats().reserved_bytes, Footprint(kMiB)) << "still counted";
  pool_.GiveUp(slot);
  EXPECT_EQ(pool_.Stats().reserved_bytes, 0u);
  EXPECT_EQ(pool_.Stats().spare_bytes, Footprint(kMiB));
}

TEST_F(PoolTest, GrowingKeepsSealedShardsAndReplacesTheirSlotsLater) {
  const ReservationId id = *Reserve(Request(Purpose::kHeld, kMiB, 3));
  const SlotId sealed = pool_.Acquire(id, std::nullopt)->id;
  pool_.Seal(sealed);
  ASSERT_TRUE(Resize(id, 2 * kMiB, 3).ok());
  EXPECT_EQ(pool_.slot(sealed).state(), SlotState::kSealed);
  EXPECT_EQ(pool_.Find(id)->slot_bytes, 2 * kMiB);
  EXPECT_EQ(pool_.Stats().reserved_bytes, 3 * Footprint(2 * kMiB));
  const Result<AcquiredSlot> grown = pool_.Acquire(id, std::nullopt);
  ASSERT_TRUE(grown.ok());
  EXPECT_EQ(grown->memory->geometry().size_bytes, 2 * kMiB);
  pool_.GiveUp(grown->id);

  pool_.GiveUp(sealed);
  executor_.RunUntilIdle();
  for (int i = 0; i < 3; ++i) {
    const Result<AcquiredSlot> slot = pool_.Acquire(id, std::nullopt);
    ASSERT_TRUE(slot.ok()) << slot.status();
    EXPECT_EQ(slot->memory->geometry().size_bytes, 2 * kMiB);
  }
}

TEST_F(PoolTest, RefusedResizeChangesNothing) {
  budget_.Set(4 * Footprint(kMiB));
  const ReservationId id = *Reserve(Request(Purpose::kOwn, kMiB, 3));
  EXPECT_EQ(Resize(id, 2 * kMiB, 3).code(), StatusCode::kNoSpace);
  EXPECT_EQ(pool_.Find(id)->slot_bytes, kMiB);
  EXPECT_TRUE(pool_.Acquire(id, kAlice).ok());
  EXPECT_TRUE(Resize(id, kMiB, 2).ok());
  EXPECT_EQ(Resize(ReservationId(77), kMiB, 2).code(), StatusCode::kNotFound);
}

TEST_F(PoolTest, ResizeThatFindsNoMemoryGoesBack) {
  const ReservationId id = *Reserve(Request(Purpose::kHeld, kMiB, 2));
  factory_.FailAfter(3 * kMiB);
  EXPECT_EQ(Resize(id, 2 * kMiB, 2).code(), StatusCode::kNoSpace);
  executor_.RunUntilIdle();
  EXPECT_EQ(pool_.Find(id)->slot_bytes, kMiB);
  EXPECT_TRUE(pool_.Acquire(id, std::nullopt).ok());
  EXPECT_TRUE(pool_.Acquire(id, std::nullopt).ok());
}

TEST_F(PoolTest, ASpareOfAnotherNumaNodeIsNotTaken) {
  ReservationRequest request = Request(Purpose::kOwn, kMiB, 1);
  request.numa_node = 0;
  pool_.Release(*Reserve(request));
  request.numa_node = 1;
  ASSERT_TRUE(Reserve(request).ok());
  EXPECT_EQ(factory_.created_count(), 2u);
  request.numa_node = 0;
  ASSERT_TRUE(Reserve(request).ok());
  EXPECT_EQ(factory_.created_count(), 2u) << "the spare was made for this one";
}

TEST_F(PoolTest, ShrinkingKeepsTheLargerSlots) {
  const ReservationId id = *Reserve(Request(Purpose::kOwn, 2 * kMiB, 2));
  const SlotId mapped = pool_.Acquire(id, kAlice)->id;
  pool_.GiveUp(mapped);
  ASSERT_TRUE(Resize(id, kMiB, 2).ok());
  EXPECT_EQ(factory_.created_count(), 2u);
  EXPECT_EQ(pool_.Stats().quarantined_bytes, 0u);
  const Result<AcquiredSlot> slot = pool_.Acquire(id, kAlice);
  ASSERT_TRUE(slot.ok());
  EXPECT_EQ(slot->id, mapped) << "the one that the client has mapped";
}

TEST_F(PoolTest, MemoryIsFlatOverManyUses) {
  const ReservationId id = *Reserve(Request(Purpose::kOwn, kMiB, 3));
  const SlotPoolStats before = pool_.Stats();
  std::vector<SlotId> kept;
  for (int save = 0; save < 1000; ++save) {
    const Result<AcquiredSlot> slot = pool_.Acquire(id, kAlice);
    ASSERT_TRUE(slot.ok());
    pool_.Seal(slot->id);
    kept.push_back(slot->id);
    if (kept.size() > 2) {
      pool_.GiveUp(kept.front());
      kept.erase(kept.begin());
    }
    executor_.RunUntilIdle();
  }
  const SlotPoolStats after = pool_.Stats();
  EXPECT_EQ(after.memory_bytes, before.memory_bytes);
  EXPECT_EQ(after.slot_count, before.slot_count);
  EXPECT_EQ(factory_.created_count(), 3u);
}

TEST_F(PoolTest, MemoryMadeForAReservationThatIsGoneBecomesASpare) {
  std::optional<StatusCode> code;
  pool_.Reserve(Request(Purpose::kOwn, kMiB, 2),
                [&](Result<ReservationId> id) { code = id.status().code(); });
  pool_.Release(ReservationId(1));
  executor_.RunUntilIdle();
  EXPECT_EQ(code, StatusCode::kUnavailable);
  EXPECT_EQ(pool_.Stats().reserved_bytes, 0u);
  EXPECT_EQ(pool_.Stats().spare_bytes, 2 * Footprint(kMiB)) << "both were under way";
}

using SlotPoolDeathTest = PoolTest;

TEST_F(SlotPoolDeathTest, IllegalMovesStopTheProcess) {
  const ReservationId id = *Reserve(Request(Purpose::kOwn, kMiB, 1));
  const SlotId slot = pool_.Acquire(id, kAlice)->id;
  pool_.Seal(slot);
  EXPECT_DEATH(pool_.Seal(slot), "sealed to sealed");
  EXPECT_DEATH(pool_.RemoveGrant(slot), "a grant ended twice");
  EXPECT_DEATH(pool_.RemovePin(slot), "a pin removed twice");
  pool_.GiveUp(slot);
  EXPECT_DEATH(pool_.GiveUp(slot), "free to revoking");
  EXPECT_DEATH(pool_.Seal(SlotId(99)), "no such slot");
}

}  // namespace
}  // namespace backstay::store::testing
