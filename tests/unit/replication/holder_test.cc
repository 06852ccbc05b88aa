#include <gtest/gtest.h>

#include "tests/unit/replication/agent_cluster.h"

namespace backstay::replication {
namespace {

using testing::AgentCluster;
using testing::kTestChunkBytes;
using Kind = TrainerEvent::Kind;

constexpr uint64_t kChunks = 16;
constexpr uint64_t kBytes = kChunks * kTestChunkBytes;

class HolderTest : public ::testing::Test {
 protected:
  HolderTest() : cluster_(4) {
    cluster_.replicas = {cluster_.id(1)};
    for (int i = 1; i < 4; ++i) cluster_.ReserveOn(i, ShardId("0"), kBytes, 1);
    cluster_.Announce();
    BACKSTAY_CHECK(cluster_.Register(&trainer_, 1, cluster_.Claim("0", 1, kBytes)).ok(), "");
  }
  ShardName Name(uint64_t step, uint64_t generation = 1) const {
    return cluster_.Name("0", Step(step), Generation(generation));
  }
  void SaveProtected(uint64_t step) {
    trainer_.events.clear();
    const auto digest = cluster_.Save(trainer_, Step(step), kChunks, step);
    ASSERT_TRUE(digest.ok()) << digest.status();
    digest_ = *digest;
    ASSERT_TRUE(cluster_.RunUntil([&] { return trainer_.Saw(Kind::kProtected); }));
  }
  void Commit(uint64_t step) {
    cluster_.state().body.clear_kept();
    cluster_.Keep({Generation(1), Step(step)});
    cluster_.Announce();
  }
  Result<wire::Reply> Replicate(int on, uint64_t step, const std::vector<int>& to) {
    wire::Request request;
    *request.mutable_replicate()->mutable_shard() = ToWire(Name(step));
    request.mutable_replicate()->set_digest(digest_);
    for (const int node : to) request.mutable_replicate()->add_nodes(cluster_.id(node).value);
    return cluster_.Call(on, std::move(request));
  }
  Result<FetchReply> Fetch(int on, uint64_t step, const std::vector<int>& from) {
    FetchAgent::OpenRequest open;
    open.name = Name(step);
    open.whole = true;
    open.for_restore = true;
    for (const int node : from) open.sources.push_back({cluster_.id(node), Incarnation(1)});
    std::optional<Result<FetchReply>> answer;
    cluster_.node(on).fetches->Open(open, [&](Result<FetchReply> reply) { answer = reply; });
    if (!cluster_.RunUntil([&] { return answer.has_value(); })) return DeadlineExceeded("");
    return *answer;
  }

  AgentCluster cluster_;
  AgentCluster::Trainer trainer_;
  std::string digest_;
};

TEST_F(HolderTest, OnlyTheKeptSetLetsGo) {
  SaveProtected(10);
  Commit(10);
  SaveProtected(20);
  EXPECT_TRUE(cluster_.Holds(1, Name(10)));
  wire::JobState older = cluster_.state().body;
  Commit(20);
  ASSERT_TRUE(cluster_.RunUntil(
      [&] { return !cluster_.Holds(0, Name(10)) && !cluster_.Holds(1, Name(10)); }));
  EXPECT_TRUE(cluster_.Holds(1, Name(20)));
  EXPECT_TRUE(cluster_.node(1).table->Find(Name(20))->committed);
  // A state from before, come late, changes nothing: not even by what it would drop.
  older.clear_kept();
  older.set_last_committed_step(1000);
  wire::Request request;
  *request.mutable_job_state() = older;
  ASSERT_TRUE(cluster_.Call(1, std::move(request)).ok());
  EXPECT_TRUE(cluster_.Holds(1, Name(20)));
}

TEST_F(HolderTest, AShardThatIsOpenIsKept) {
  SaveProtected(10);
  Commit(10);
  const auto open = Fetch(1, 10, {0});
  ASSERT_TRUE(open.ok()) << open.status();
  EXPECT_TRUE(open->local);
  SaveProtected(20);
  Commit(20);
  cluster_.executor().RunFor(std::chrono::seconds(3));
  EXPECT_TRUE(cluster_.Holds(1, Name(10)));
  ASSERT_EQ(cluster_.node(1).fetches->Close(open->fetch), Status::Ok());
  EXPECT_TRUE(cluster_.RunUntil([&] { return !cluster_.Holds(1, Name(10)); }));
}

TEST_F(HolderTest, AnInventoryIsAPromise) {
  SaveProtected(10);
  Commit(10);
  SaveProtected(20);
  wire::Request request;
  request.mutable_inventory()->set_closing_uuid("next");
  const auto inventory = cluster_.Call(1, std::move(request));
  ASSERT_TRUE(inventory.ok());
  EXPECT_EQ(inventory->inventory().shards_size(), 2);
  // A state that would let go of everything does not, before the next generation's first commit.
  cluster_.state().body.clear_kept();
  cluster_.state().body.set_last_committed_step(99);
  cluster_.Announce();
  EXPECT_TRUE(cluster_.Holds(1, Name(10)));
  EXPECT_TRUE(cluster_.Holds(1, Name(20)));
  // And no save of the closing generation is taken in.
  cluster_.state().generation = Generation(2);
  cluster_.state().body.set_first_commit_done(false);
  cluster_.Announce();
  EXPECT_TRUE(cluster_.Holds(1, Name(20)));
  cluster_.state().body.set_first_commit_done(true);
  cluster_.Announce();
  EXPECT_TRUE(cluster_.RunUntil([&] { return !cluster_.Holds(1, Name(20)); }));
}

TEST_F(HolderTest, AClosingNodeSealsNothing) {
  const auto slot = cluster_.Begin(trainer_, Step(10));
  ASSERT_EQ(cluster_.StartCopy(trainer_, *slot, kBytes), Status::Ok());
  cluster_.Fill(*slot, 0, kChunks, 1);
  wire::Request request;
  request.mutable_inventory()->set_closing_uuid("next");
  ASSERT_TRUE(cluster_.Call(0, std::move(request)).ok());
  EXPECT_EQ(cluster_.Seal(trainer_, *slot).status().code(), StatusCode::kStale);
}

TEST_F(HolderTest, LeftoversOfAnOlderGenerationMakeRoom) {
  SaveProtected(10);
  Commit(10);
  SaveProtected(20);  // Never committed: its generation ends.
  cluster_.state().generation = Generation(2);
  cluster_.state().body.set_first_commit_done(false);
  *cluster_.state().body.mutable_base() = ToWire(SnapshotId{Generation(1), Step(10)});
  *cluster_.state().body.add_pinned() = ToWire(SnapshotId{Generation(1), Step(10)});
  cluster_.Announce();
  ClaimAgent& claim = **cluster_.node(0).agent->FindClaim(trainer_.shard, trainer_.claim);
  claim.EnterGeneration(Generation(2));
  SaveProtected(15);
  EXPECT_TRUE(cluster_.Holds(1, cluster_.Name("0", Step(15), Generation(2))));
  EXPECT_FALSE(cluster_.Holds(1, Name(20)));
  EXPECT_FALSE(cluster_.Holds(0, Name(20)));
  EXPECT_TRUE(cluster_.Holds(0, Name(10)));
  EXPECT_TRUE(cluster_.Holds(1, Name(10)));
}

TEST_F(HolderTest, ReplicateMakesAnotherReplica) {
  SaveProtected(10);
  Commit(10);
  const std::string digest = digest_;
  ASSERT_TRUE(Replicate(1, 10, {2, 3}).ok());
  ASSERT_TRUE(cluster_.RunUntil(
      [&] { return cluster_.HasBytes(2, Name(10), 10) && cluster_.HasBytes(3, Name(10), 10); }));
  digest_ = std::string(16, 'x');
  EXPECT_EQ(Replicate(1, 10, {2}).status().code(), StatusCode::kNotFound);
}

// The slots that saves hold cannot be taken from them: a repair that waited for one would never end
// when the saves wait, in their turn, for what is being repaired.
TEST_F(HolderTest, ARepairFindsRoomBesideTheSavesOfItsShard) {
  SaveProtected(10);
  Commit(10);
  const std::string digest = digest_;
  ASSERT_TRUE(Replicate(1, 10, {2}).ok());
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.Holds(2, Name(10)); }));
  for (const int node : {0, 1}) ASSERT_TRUE(cluster_.node(node).table->Drop(Name(10)).ok());
  SaveProtected(20);
  SaveProtected(30);  // Both slots of node 1 hold what may be counted for a commit.
  digest_ = digest;
  ASSERT_TRUE(Replicate(2, 10, {1}).ok());
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.HasBytes(1, Name(10), 10); }));
  EXPECT_TRUE(cluster_.Holds(1, Name(20)));
  EXPECT_TRUE(cluster_.Holds(1, Name(30)));
}

TEST_F(HolderTest, ARepairReachesTheNodeOfTheTrainerToo) {
  SaveProtected(10);
  Commit(10);
  ASSERT_TRUE(cluster_.node(0).table->Drop(Name(10)).ok());
  ASSERT_TRUE(Replicate(1, 10, {0}).ok());
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.HasBytes(0, Name(10), 10); }));
}

TEST_F(HolderTest, ANodeWithoutRoomForARepairIsNamedAndHasRoomLater) {
  SaveProtected(10);
  Commit(10);
  store::SlotPool& pool = *cluster_.node(0).pool;
  const store::SlotPoolStats stats = pool.Stats();
  const uint64_t footprint = stats.memory_bytes / stats.slot_count;
  ASSERT_TRUE(cluster_.node(0).table->Drop(Name(10)).ok());
  std::optional<store::ReservationId> hog;
  pool.Reserve(
      {.purpose = store::Purpose::kOwn,
       .job = JobName("other"),
       .shard = ShardId("0"),
       .slot_bytes = kBytes,
       .slot_count = static_cast<uint32_t>((stats.budget_bytes - stats.reserved_bytes) / footprint),
       .chunk_bytes = kTestChunkBytes},
      [&](const Result<store::ReservationId>& id) { hog = *id; });
  ASSERT_TRUE(cluster_.RunUntil([&] { return hog.has_value(); }));
  const auto refused = [&] {
    const auto reply = Replicate(1, 10, {0});
    return reply.ok() && reply->replicate().refused_nodes_size() == 1 &&
           reply->replicate().refused_nodes(0) == cluster_.id(0).value;
  };
  EXPECT_FALSE(refused());  // Not asked yet.
  ASSERT_TRUE(cluster_.RunUntil(refused));
  EXPECT_FALSE(cluster_.Holds(0, Name(10)));
  pool.Release(*hog);
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.HasBytes(0, Name(10), 10); }));
  EXPECT_FALSE(refused());
}

TEST_F(HolderTest, RoomForARepairThatDoesNotComeIsGivenBack) {
  SaveProtected(10);
  Commit(10);
  ASSERT_TRUE(cluster_.node(0).table->Drop(Name(10)).ok());
  const uint64_t reserved = cluster_.node(0).pool->Stats().reserved_bytes;
  ASSERT_TRUE(Replicate(1, 10, {0}).ok());
  ASSERT_TRUE(
      cluster_.RunUntil([&] { return cluster_.node(0).pool->Stats().reserved_bytes > reserved; }));
  cluster_.Kill(1);
  EXPECT_TRUE(
      cluster_.RunUntil([&] { return cluster_.node(0).pool->Stats().reserved_bytes == reserved; },
                        2 * HolderAgent::kRepairRoomKept));
}

// The base's first try may fail: were a save let in meanwhile, the next one would find no slot.
TEST_F(HolderTest, SavesWaitUntilTheUncommittedBaseIsComplete) {
  SaveProtected(10);
  Commit(10);
  ASSERT_TRUE(Replicate(1, 10, {2}).ok());
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.Holds(2, Name(10)); }));
  ASSERT_TRUE(cluster_.node(1).table->Drop(Name(10)).ok());
  const SnapshotId base{Generation(1), Step(10)};
  cluster_.state().generation = Generation(2);
  cluster_.state().body.clear_kept();
  cluster_.state().body.set_last_committed_step(0);
  cluster_.state().body.set_first_commit_done(false);
  *cluster_.state().body.mutable_base() = ToWire(base);
  *cluster_.state().body.add_pinned() = ToWire(base);
  cluster_.Announce();
  (*cluster_.node(0).agent->FindClaim(trainer_.shard, trainer_.claim))
      ->EnterGeneration(Generation(2));
  const std::string digest = digest_;
  cluster_.network().SetStalled(cluster_.id(2), true);
  ASSERT_TRUE(Replicate(2, 10, {1}).ok());
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.node(1).table->Find(Name(10)); }));
  const auto saved = cluster_.Save(trainer_, Step(20), kChunks, 20);
  ASSERT_TRUE(saved.ok()) << saved.status();
  cluster_.executor().RunFor(std::chrono::seconds(3));
  EXPECT_EQ(cluster_.node(1).table->Find(Name(20, 2)), nullptr);
  cluster_.network().SetStalled(cluster_.id(2), false);
  EXPECT_TRUE(
      cluster_.RunUntil([&] { return cluster_.Holds(1, Name(20, 2)); }, std::chrono::seconds(60)));
  EXPECT_TRUE(cluster_.HasBytes(1, Name(10), 10));
}

TEST_F(HolderTest, ARestoreReadsFromAllHolders) {
  SaveProtected(10);
  Commit(10);
  const auto open = Fetch(3, 10, {0, 1, 2});  // Node 2 has nothing.
  ASSERT_TRUE(open.ok()) << open.status();
  EXPECT_FALSE(open->local);
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.HasBytes(3, Name(10), 10); }));
  EXPECT_TRUE(cluster_.RunUntil(
      [&] { return cluster_.node(3).fetches->StatsOf(Name(10))->bytes_remote == kBytes; }));
}

TEST_F(HolderTest, ADeadSourceIsReplaced) {
  SaveProtected(10);
  Commit(10);
  cluster_.network().SetStalled(cluster_.id(0), true);
  const auto open = Fetch(3, 10, {0, 1});
  ASSERT_TRUE(open.ok()) << open.status();
  cluster_.Kill(0);
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.HasBytes(3, Name(10), 10); }));
}

TEST_F(HolderTest, ADamagedSourceIsReplacedAndSetAside) {
  SaveProtected(10);
  Commit(10);
  cluster_.node(1).table->Find(Name(10))->memory->data()[0] ^= std::byte{1};
  const auto open = Fetch(3, 10, {1, 0});
  ASSERT_TRUE(open.ok()) << open.status();
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.HasBytes(3, Name(10), 10); }));
  EXPECT_TRUE(cluster_.RunUntil([&] {
    return cluster_.node(1).table->Find(Name(10))->state == store::ShardState::kQuarantined;
  }));
}

TEST_F(HolderTest, BytesThatNobodyHasIntactAreAnError) {
  SaveProtected(10);
  Commit(10);
  for (const int node : {0, 1}) {
    cluster_.node(node).table->Find(Name(10))->memory->data()[kTestChunkBytes] ^= std::byte{1};
  }
  const auto open = Fetch(3, 10, {0, 1});
  ASSERT_TRUE(open.ok()) << open.status();
  const SlotControlView control(open->memory->control(), open->memory->geometry());
  ASSERT_TRUE(cluster_.RunUntil([&] { return control.State(1) == ChunkState::kChunkFailed; }));
  EXPECT_FALSE(cluster_.Holds(3, Name(10)));
  ASSERT_TRUE(cluster_.RunUntil([&] {
    return cluster_.node(3).fetches->StatsOf(Name(10))->outcome.code() == StatusCode::kCorrupt;
  }));
  ASSERT_EQ(cluster_.node(3).fetches->Close(open->fetch), Status::Ok());
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.node(3).table->Find(Name(10)) == nullptr; }));
}

TEST_F(HolderTest, ABadLocalCopyIsReadFromAPeer) {
  SaveProtected(10);
  Commit(10);
  cluster_.node(0).table->Find(Name(10))->memory->data()[0] ^= std::byte{1};
  auto open = Fetch(0, 10, {0, 1});
  ASSERT_TRUE(open.ok() && open->local);
  std::optional<bool> reopened;
  cluster_.node(0).fetches->ReportBad(open->fetch,
                                      [&](const Result<bool>& moved) { reopened = *moved; });
  ASSERT_TRUE(cluster_.RunUntil([&] { return reopened.has_value(); }));
  EXPECT_TRUE(*reopened);
  ASSERT_EQ(cluster_.node(0).fetches->Close(open->fetch), Status::Ok());
  open = Fetch(0, 10, {0, 1});
  ASSERT_TRUE(open.ok()) << open.status();
  EXPECT_FALSE(open->local);
  EXPECT_TRUE(cluster_.RunUntil([&] { return cluster_.HasBytes(0, Name(10), 10); }));
}

TEST_F(HolderTest, AJobThatEndsDuringAFetchEndsItOnly) {
  SaveProtected(10);
  Commit(10);
  cluster_.network().SetStalled(cluster_.id(0), true);
  const auto open = Fetch(3, 10, {0});
  ASSERT_TRUE(open.ok()) << open.status();
  cluster_.state().body.set_ended(true);
  cluster_.Announce();
  EXPECT_FALSE(cluster_.Holds(1, Name(10)));
  cluster_.node(3).fetches->EndJob(cluster_.job);
  const SlotControlView control(open->memory->control(), open->memory->geometry());
  EXPECT_EQ(control.State(0), ChunkState::kChunkFailed) << "the reader waits for nothing";
  EXPECT_EQ(cluster_.node(3).fetches->FetchChunks(open->fetch, 0, 1).code(), StatusCode::kStale);
  cluster_.network().SetStalled(cluster_.id(0), false);
  ASSERT_EQ(cluster_.node(3).fetches->Close(open->fetch), Status::Ok());
  ASSERT_TRUE(cluster_.RunUntil([&] {
    return cluster_.node(3).table->All().empty() && cluster_.node(0).table->All().empty();
  }));
}

TEST_F(HolderTest, AnEndedJobsReservationsEndButNotALaterJobs) {
  SaveProtected(10);
  const uint64_t reserved = cluster_.node(1).pool->Stats().reserved_bytes;
  ASSERT_NE(reserved, 0u);
  wire::Request later;
  later.mutable_reserve()->set_shard_id("0");
  later.mutable_reserve()->set_size_bytes(kBytes);
  later.mutable_reserve()->set_versions(1);
  // The next job of this name is quicker than the word of this one's end.
  later.mutable_reserve()->set_record_revision(1'000'000);
  ASSERT_TRUE(cluster_.Call(2, later).ok());
  cluster_.state().body.set_ended(true);
  cluster_.Announce();
  EXPECT_TRUE(cluster_.RunUntil([&] {
    return cluster_.node(0).pool->Stats().own_bytes == 0 &&
           cluster_.node(1).pool->Stats().reserved_bytes == 0;
  }));
  // What the trainer has mapped is closed to it, and waits for its word or its exit.
  EXPECT_EQ(cluster_.node(0).pool->Stats().reserved_bytes,
            cluster_.node(0).pool->Stats().quarantined_bytes);
  EXPECT_EQ(cluster_.node(2).pool->Stats().reserved_bytes, reserved);
  EXPECT_EQ(cluster_.node(0).agent->FindClaim(trainer_.shard, trainer_.claim).status().code(),
            StatusCode::kStale)
      << "its trainer speaks for no later job of this name";
}

// Attack: memory is given back, then asked for again, and the messages overtake each other; or the
// same while the first is still being made.
TEST_F(HolderTest, ALateWordOnAReservationChangesNothing) {
  const auto word = [](const char* shard, uint64_t number, uint64_t size_bytes) {
    wire::Request request;
    request.mutable_reserve()->set_shard_id(shard);
    request.mutable_reserve()->set_number(number);
    request.mutable_reserve()->set_size_bytes(size_bytes);
    request.mutable_reserve()->set_versions(size_bytes == 0 ? 0 : 1);
    return request;
  };
  const uint64_t before_bytes = cluster_.node(2).pool->Stats().reserved_bytes;
  ASSERT_TRUE(cluster_.Call(2, word("late", 5, 2 * kBytes)).ok());
  const uint64_t after_bytes = cluster_.node(2).pool->Stats().reserved_bytes;
  ASSERT_GT(after_bytes, before_bytes);
  EXPECT_EQ(cluster_.Call(2, word("late", 4, 0)).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(cluster_.Call(2, word("late", 3, kBytes)).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(cluster_.node(2).pool->Stats().reserved_bytes, after_bytes);
  EXPECT_TRUE(cluster_.Call(2, word("late", 5, 2 * kBytes)).ok()) << "repeated";
  EXPECT_TRUE(cluster_.Call(2, word("late", 6, 0)).ok());
  EXPECT_EQ(cluster_.node(2).pool->Stats().reserved_bytes, before_bytes);
  EXPECT_EQ(cluster_.Call(2, word("late", 5, 2 * kBytes)).status().code(), StatusCode::kUnavailable)
      << "also after it was given back";
}

// The node hears of the end of the job, its fetches do not.
TEST_F(HolderTest, AFetchOutlivesTheJobsShardsAroundIt) {
  SaveProtected(10);
  Commit(10);
  cluster_.network().SetStalled(cluster_.id(0), true);
  const auto open = Fetch(3, 10, {0});
  ASSERT_TRUE(open.ok()) << open.status();
  cluster_.state().body.set_ended(true);
  cluster_.Announce();
  cluster_.network().SetStalled(cluster_.id(0), false);
  const SlotControlView control(open->memory->control(), open->memory->geometry());
  EXPECT_TRUE(cluster_.RunUntil([&] { return control.State(0) != ChunkState::kChunkEmpty; }));
  ASSERT_EQ(cluster_.node(3).fetches->Close(open->fetch), Status::Ok());
  EXPECT_TRUE(cluster_.RunUntil([&] { return cluster_.node(3).table->All().empty(); }));
}

TEST_F(HolderTest, AJobThatEndsDuringASaveEndsIt) {
  cluster_.network().SetStalled(cluster_.id(0), true);
  const auto digest = cluster_.Save(trainer_, Step(10), kChunks, 10);
  ASSERT_TRUE(digest.ok()) << digest.status();
  cluster_.state().body.set_ended(true);
  cluster_.Announce();
  EXPECT_TRUE(cluster_.RunUntil([&] { return trainer_.Saw(Kind::kSaveFailed); }));
  cluster_.network().SetStalled(cluster_.id(0), false);
  EXPECT_TRUE(cluster_.RunUntil([&] {
    return cluster_.node(0).table->All().empty() && cluster_.node(1).table->All().empty();
  }));
}

TEST_F(HolderTest, ForeignOffersAreRefused) {
  SaveProtected(10);
  wire::Request request;
  *request.mutable_offer()->mutable_shard() = ToWire(Name(30));
  request.mutable_offer()->set_used_bytes(kBytes);
  request.mutable_offer()->set_chunk_bytes(kTestChunkBytes);
  EXPECT_EQ(cluster_.Call(1, request).status().code(), StatusCode::kInvalidArgument);
  request.mutable_offer()->set_chunk_bytes(3);
  EXPECT_EQ(cluster_.Call(1, request).status().code(), StatusCode::kInvalidArgument);
  request.mutable_offer()->clear_shard();
  EXPECT_EQ(cluster_.Call(1, request).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace backstay::replication
