#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/replication/agent_cluster.h"

namespace backstay::replication {
namespace {

using testing::AgentCluster;
using testing::kTestChunkBytes;
using Kind = TrainerEvent::Kind;

constexpr uint64_t kChunks = 16;
constexpr uint64_t kBytes = kChunks * kTestChunkBytes;

// Two or three nodes; shard "0" is saved on node 0 with replicas on the others.
class SaveTest : public ::testing::Test {
 protected:
  void Start(int node_count, uint32_t replica_count, uint32_t versions = 1,
             bool wait_for_slot = false) {
    cluster_ = std::make_unique<AgentCluster>(node_count);
    for (uint32_t i = 1; i <= replica_count; ++i) cluster_->replicas.push_back(cluster_->id(i));
    for (int i = 1; i < node_count; ++i) cluster_->ReserveOn(i, ShardId("0"), kBytes, versions);
    cluster_->Announce();
    ShardClaim claim = cluster_->Claim("0", replica_count, kBytes, versions);
    claim.wait_for_slot = wait_for_slot;
    ASSERT_EQ(cluster_->Register(&trainer_, 1, claim), Status::Ok());
  }
  bool WaitFor(Kind kind) {
    return cluster_->RunUntil([&] { return trainer_.Saw(kind); });
  }
  ShardName Name(uint64_t step, uint64_t generation = 1) const {
    return cluster_->Name("0", Step(step), Generation(generation));
  }
  void Commit(uint64_t step) {
    cluster_->state().body.clear_kept();
    cluster_->Keep({Generation(1), Step(step)});
    cluster_->Announce();
  }

  // Whether the leader was told so.
  bool HasFailed(uint64_t step) const {
    return std::any_of(cluster_->reports.begin(), cluster_->reports.end(),
                       [&](const wire::ShardReport& report) {
                         return report.shard().snapshot().step() == step && report.failed();
                       });
  }

  std::unique_ptr<AgentCluster> cluster_;
  AgentCluster::Trainer trainer_;
};

TEST_F(SaveTest, PeersPullChunksBeforeTheSeal) {
  Start(2, 1);
  const auto slot = cluster_->Begin(trainer_, Step(10));
  ASSERT_TRUE(slot.ok()) << slot.status();
  ASSERT_EQ(cluster_->StartCopy(trainer_, *slot, kBytes), Status::Ok());
  cluster_->Fill(*slot, 4, 8, /*seed=*/1);
  const auto received = [&] {
    const store::Shard* shard = cluster_->node(1).table->Find(Name(10));
    return shard == nullptr ? 0
                            : std::count_if(shard->received.begin(), shard->received.end(),
                                            [](const auto& hash) { return hash.has_value(); });
  };
  ASSERT_TRUE(cluster_->RunUntil([&] { return received() == 8; }));
  cluster_->Fill(*slot, 0, 4, 1);
  cluster_->Fill(*slot, 12, 4, 1);
  const auto digest = cluster_->Seal(trainer_, *slot);
  ASSERT_TRUE(digest.ok()) << digest.status();
  ASSERT_TRUE(WaitFor(Kind::kProtected));
  EXPECT_TRUE(cluster_->HasBytes(1, Name(10), 1));
  ASSERT_TRUE(cluster_->RunUntil([&] {
    return !cluster_->reports.empty() &&
           cluster_->reports[0].progress() == wire::ShardReport::PROTECTED;
  }));
  EXPECT_EQ(cluster_->reports[0].digest(), *digest);
  EXPECT_EQ(cluster_->reports[0].holders_size(), 2);
  // What was streamed was not moved again.
  EXPECT_EQ(cluster_->network().counters().bytes_moved, kBytes);
}

TEST_F(SaveTest, ChunkRewrittenBetweenReadAndSealIsPulledAgain) {
  Start(2, 1);
  const auto slot = cluster_->Begin(trainer_, Step(10));
  ASSERT_EQ(cluster_->StartCopy(trainer_, *slot, kBytes), Status::Ok());
  cluster_->Fill(*slot, 0, kChunks, /*seed=*/1);
  ASSERT_TRUE(
      cluster_->RunUntil([&] { return cluster_->network().counters().bytes_moved == kBytes; }));
  cluster_->Fill(*slot, 0, kChunks, /*seed=*/2);
  ASSERT_TRUE(cluster_->Seal(trainer_, *slot).ok());
  ASSERT_TRUE(WaitFor(Kind::kProtected));
  EXPECT_TRUE(cluster_->HasBytes(1, Name(10), 2));
}

TEST_F(SaveTest, WithoutReplicasASaveIsProtectedAtItsSeal) {
  Start(1, 0);
  ASSERT_TRUE(cluster_->Save(trainer_, Step(10), kChunks, 1).ok());
  EXPECT_TRUE(WaitFor(Kind::kProtected));
}

TEST_F(SaveTest, AnEmptyShardIsSaved) {
  Start(2, 1);
  ASSERT_TRUE(cluster_->Save(trainer_, Step(10), 0, 1).ok());
  EXPECT_TRUE(WaitFor(Kind::kProtected));
  EXPECT_TRUE(cluster_->Holds(1, Name(10)));
}

TEST_F(SaveTest, AnotherHolderTakesOverWhenAPeerIsLostInThePull) {
  Start(3, 1);
  cluster_->network().SetStalled(cluster_->id(0), true);
  ASSERT_TRUE(cluster_->Save(trainer_, Step(10), kChunks, 1).ok());
  ASSERT_TRUE(
      cluster_->RunUntil([&] { return cluster_->node(1).table->Find(Name(10)) != nullptr; }));
  cluster_->Kill(1);
  cluster_->network().SetStalled(cluster_->id(0), false);
  wire::Assignment& assignment = *cluster_->state().body.add_assignments();
  assignment.set_shard_id("0");
  assignment.set_primary("node-0");
  assignment.add_replicas("node-2");
  cluster_->Announce();
  ASSERT_TRUE(WaitFor(Kind::kProtected));
  EXPECT_TRUE(cluster_->HasBytes(2, Name(10), 1));
}

TEST_F(SaveTest, LostMessagesOnlyDelayTheProtection) {
  Start(2, 1);
  int number = 0;
  cluster_->lose = [&](const NodeId&, const wire::Request& request) {
    return (request.has_offer() || request.has_ack()) && ++number % 3 != 0;
  };
  ASSERT_TRUE(cluster_->Save(trainer_, Step(10), kChunks, 1).ok());
  EXPECT_TRUE(WaitFor(Kind::kProtected));
  EXPECT_GE(number, 3);
}

// A later step that took the last slot of a holder, and was acknowledged, would keep the earlier
// one out, which commits first.
TEST_F(SaveTest, AHolderIsOfferedAStepOnlyOnceItHoldsTheEarlierOnes) {
  Start(2, 1, /*versions=*/2);
  bool later_offered = false;
  cluster_->lose = [&](const NodeId&, const wire::Request& request) {
    if (request.has_offer() && request.offer().shard().snapshot().step() == 20) {
      EXPECT_TRUE(cluster_->Holds(1, Name(10)));
      later_offered = true;
    }
    return false;
  };
  cluster_->network().SetStalled(cluster_->id(0), true);
  ASSERT_TRUE(cluster_->Save(trainer_, Step(10), kChunks, 1).ok());
  ASSERT_TRUE(
      cluster_->RunUntil([&] { return cluster_->node(1).table->Find(Name(10)) != nullptr; }));
  ASSERT_TRUE(cluster_->Save(trainer_, Step(20), kChunks, 2).ok());
  cluster_->executor().RunFor(std::chrono::seconds(3));
  EXPECT_FALSE(later_offered);
  cluster_->network().SetStalled(cluster_->id(0), false);
  EXPECT_TRUE(
      cluster_->RunUntil([&] { return cluster_->Holds(1, Name(20)); }, std::chrono::seconds(60)));
  EXPECT_TRUE(cluster_->Holds(1, Name(10)));
}

// A transfer that made room for another one ends the grant that it read by; the source repeats the
// grant until it is told.
TEST_F(SaveTest, AfterATransferWasGivenUpItsGrantIsReplaced) {
  Start(2, 1);
  cluster_->network().SetStalled(cluster_->id(0), true);
  ASSERT_TRUE(cluster_->Save(trainer_, Step(10), kChunks, 1).ok());
  ASSERT_TRUE(
      cluster_->RunUntil([&] { return cluster_->node(1).agent->holder().HasReceiver(Name(10)); }));
  cluster_->node(1).agent->holder().Discard(Name(10));
  cluster_->network().SetStalled(cluster_->id(0), false);
  ASSERT_TRUE(WaitFor(Kind::kProtected));
  EXPECT_TRUE(cluster_->HasBytes(1, Name(10), 1));
}

TEST_F(SaveTest, DamageOnTheWayIsPulledAgain) {
  Start(2, 1);
  cluster_->network().CorruptNextChunks(cluster_->id(0), 2);
  ASSERT_TRUE(cluster_->Save(trainer_, Step(10), kChunks, 1).ok());
  ASSERT_TRUE(WaitFor(Kind::kProtected));
  EXPECT_TRUE(cluster_->HasBytes(1, Name(10), 1));
  EXPECT_EQ(cluster_->network().counters().chunks_corrupted, 2u);
}

// The primary's memory is bad: its replica may never be acknowledged, and the save fails by itself.
TEST_F(SaveTest, DamageAtTheSourceFailsTheSave) {
  Start(2, 1);
  cluster_->network().SetStalled(cluster_->id(0), true);
  ASSERT_TRUE(cluster_->Save(trainer_, Step(10), kChunks, 1).ok());
  const store::Shard* shard = cluster_->node(0).table->Find(Name(10));
  shard->memory->data()[5 * kTestChunkBytes] ^= std::byte{1};
  cluster_->network().SetStalled(cluster_->id(0), false);
  ASSERT_TRUE(WaitFor(Kind::kSaveFailed));
  EXPECT_FALSE(trainer_.Saw(Kind::kProtected));
  EXPECT_FALSE(cluster_->Holds(1, Name(10)));
  EXPECT_EQ(cluster_->node(0).table->Find(Name(10))->state, store::ShardState::kQuarantined);
}

// Attack: the last free slot holds a shard of the generation before that was found damaged. It was
// let go of at the first commit only, which waited for its slot.
TEST_F(SaveTest, ADamagedShardOfAnOlderGenerationMakesRoom) {
  Start(1, 0);
  ASSERT_TRUE(cluster_->Save(trainer_, Step(10), kChunks, 1).ok());
  Commit(10);
  ASSERT_TRUE(cluster_->Save(trainer_, Step(11), kChunks, 1).ok());
  cluster_->node(0).table->Quarantine(Name(11), "a test");
  cluster_->state().generation = Generation(2);
  *cluster_->state().body.mutable_base() = ToWire(SnapshotId{Generation(1), Step(10)});
  cluster_->state().body.set_first_commit_done(false);
  cluster_->Announce();
  const auto claim = cluster_->node(0).agent->FindClaim(trainer_.shard, trainer_.claim);
  ASSERT_TRUE(claim.ok()) << claim.status();
  (*claim)->EnterGeneration(Generation(2));
  const auto slot = cluster_->Begin(trainer_, Step(12));
  EXPECT_TRUE(slot.ok()) << slot.status();
  EXPECT_TRUE(cluster_->Holds(0, Name(10)));
}

TEST_F(SaveTest, AFencedGenerationIsNotSealed) {
  Start(2, 1);
  const auto slot = cluster_->Begin(trainer_, Step(10));
  ASSERT_EQ(cluster_->StartCopy(trainer_, *slot, kBytes), Status::Ok());
  cluster_->Fill(*slot, 0, kChunks, 1);
  ASSERT_TRUE(
      cluster_->RunUntil([&] { return cluster_->node(1).table->Find(Name(10)) != nullptr; }));
  cluster_->node(0).agent->Fence(Generation(1), "ring broke", 17, Rank(0));
  const auto digest = cluster_->Seal(trainer_, *slot);
  EXPECT_EQ(digest.status().code(), StatusCode::kStale) << digest.status();
  EXPECT_EQ(cluster_->Begin(trainer_, Step(11)).status().code(), StatusCode::kStale);
  ASSERT_TRUE(cluster_->RunUntil([&] { return !cluster_->fences.empty(); }));
  EXPECT_EQ(cluster_->fences[0].reason(), "ring broke");
  EXPECT_EQ(cluster_->fences[0].seen_unix_ms(), 17);
  // The reader of the unsealed shard has discarded it.
  ASSERT_TRUE(
      cluster_->RunUntil([&] { return cluster_->node(1).table->Find(Name(10)) == nullptr; }));
  EXPECT_EQ(cluster_->node(1).pool->Stats().filling_bytes, 0u);
}

TEST_F(SaveTest, AStepThatMayBeUnsoundWaitsForTheTrainersWord) {
  Start(1, 0);
  const auto slot = cluster_->Begin(trainer_, Step(10));
  ASSERT_EQ(cluster_->StartCopy(trainer_, *slot, kBytes), Status::Ok());
  cluster_->Fill(*slot, 0, kChunks, 1);
  std::optional<Status> sealed;
  cluster_->saves(trainer_).Seal(slot->save, false,
                                 [&](const Result<std::string>& r) { sealed = r.status(); });
  cluster_->executor().RunFor(std::chrono::seconds(1));
  EXPECT_FALSE(sealed.has_value());
  cluster_->saves(trainer_).StepIsSound(Step(10));
  ASSERT_TRUE(cluster_->RunUntil([&] { return sealed.has_value(); }));
  EXPECT_EQ(*sealed, Status::Ok());
}

TEST_F(SaveTest, SavesAreRefusedOutsideAResumedGeneration) {
  Start(1, 0);
  cluster_->state().body.set_closing_uuid("next");
  cluster_->Announce();
  const auto closing = cluster_->Begin(trainer_, Step(10));
  EXPECT_EQ(closing.status().code(), StatusCode::kStale);
  EXPECT_TRUE(trainer_.Saw(Kind::kFenced));
  cluster_->state().body.clear_closing_uuid();
  cluster_->state().generation = Generation(2);
  cluster_->state().body.set_resumed_attempt(0);
  cluster_->Announce();
  EXPECT_EQ(cluster_->Begin(trainer_, Step(10)).status().code(), StatusCode::kStale);
}

TEST_F(SaveTest, ASecondClaimantFencesTheOlder) {
  Start(2, 1);
  const auto slot = cluster_->Begin(trainer_, Step(10));
  ASSERT_TRUE(slot.ok());
  ASSERT_EQ(cluster_->StartCopy(trainer_, *slot, kBytes), Status::Ok());
  AgentCluster::Trainer wrong;
  ShardClaim claim = cluster_->Claim("0", 1, kBytes);
  claim.token = "guess";
  EXPECT_EQ(cluster_->Register(&wrong, 2, claim).code(), StatusCode::kPermission);
  EXPECT_FALSE(trainer_.Saw(Kind::kFenced));

  AgentCluster::Trainer second;
  ASSERT_EQ(cluster_->Register(&second, 3, cluster_->Claim("0", 1, kBytes)), Status::Ok());
  EXPECT_TRUE(trainer_.Saw(Kind::kFenced));
  EXPECT_EQ(cluster_->Begin(trainer_, Step(11)).status().code(), StatusCode::kStale);
  // The slot that the first may still write to is set aside until its process is seen to exit.
  ASSERT_TRUE(
      cluster_->RunUntil([&] { return cluster_->node(0).pool->Stats().quarantined_bytes != 0; }));
  const auto other = cluster_->Begin(second, Step(11));
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_NE(other->slot_id, slot->slot_id);
  cluster_->node(0).agent->ProcessExited(ProcessId(1));
  cluster_->node(0).pool->ClientExited(store::ClientId(1));
  EXPECT_EQ(cluster_->node(0).pool->Stats().quarantined_bytes, 0u);
}

TEST_F(SaveTest, AnExitTakesTheUnsealedSlotBack) {
  Start(2, 1);
  const auto slot = cluster_->Begin(trainer_, Step(10));
  ASSERT_EQ(cluster_->StartCopy(trainer_, *slot, kBytes), Status::Ok());
  cluster_->Fill(*slot, 0, 4, 1);
  ASSERT_TRUE(
      cluster_->RunUntil([&] { return cluster_->node(1).table->Find(Name(10)) != nullptr; }));
  cluster_->node(0).agent->ProcessExited(ProcessId(1));
  ASSERT_TRUE(cluster_->RunUntil([&] {
    return cluster_->node(0).pool->Stats().filling_bytes == 0 &&
           cluster_->node(1).pool->Stats().filling_bytes == 0;
  }));
  EXPECT_EQ(cluster_->node(0).table->Find(Name(10)), nullptr);
}

TEST_F(SaveTest, WithoutAFreeSlotASaveFailsAlone) {
  Start(2, 1);
  ASSERT_TRUE(cluster_->Save(trainer_, Step(10), kChunks, 1).ok());
  Commit(10);
  ASSERT_TRUE(cluster_->Save(trainer_, Step(20), kChunks, 2).ok());
  const auto third = cluster_->Begin(trainer_, Step(30));
  EXPECT_EQ(third.status().code(), StatusCode::kNoSpace) << third.status();
  EXPECT_TRUE(cluster_->Holds(0, Name(10)));
  EXPECT_TRUE(cluster_->Holds(0, Name(20)));
  EXPECT_TRUE(cluster_->RunUntil([&] { return HasFailed(30); })) << "no rank waits for it";
  Commit(20);
  EXPECT_EQ(cluster_->Begin(trainer_, Step(30)).status().code(), StatusCode::kUnavailable)
      << "the others have heard that there is no step 30";
  EXPECT_TRUE(cluster_->Begin(trainer_, Step(40)).ok());
}

TEST_F(SaveTest, AStepThatWasMissedWithoutTheServiceIsGivenUpByAll) {
  Start(2, 1);
  ASSERT_TRUE(cluster_->Save(trainer_, Step(10), kChunks, 1).ok());
  Commit(10);
  ShardClaim again = cluster_->Claim("0", 1, kBytes);
  again.generation = Generation(1);
  again.missed_step = Step(20);
  ASSERT_EQ(cluster_->Register(&trainer_, 1, again), Status::Ok());
  EXPECT_TRUE(cluster_->RunUntil([&] { return HasFailed(20); }));
  EXPECT_TRUE(cluster_->Begin(trainer_, Step(30)).ok());
  // What was saved after all is not missed.
  again.missed_step = Step(10);
  ASSERT_EQ(cluster_->Register(&trainer_, 1, again), Status::Ok());
  EXPECT_EQ(cluster_->saves(trainer_).Query({Generation(1), Step(10)}).progress,
            SnapshotProgress::kCommitted);
}

TEST_F(SaveTest, ASaveWaitsForASlotWhenTold) {
  Start(2, 1, /*versions=*/1, /*wait_for_slot=*/true);
  ASSERT_TRUE(cluster_->Save(trainer_, Step(10), kChunks, 1).ok());
  Commit(10);
  ASSERT_TRUE(cluster_->Save(trainer_, Step(20), kChunks, 2).ok());
  std::optional<Status> begun;
  ClaimAgent& claim = **cluster_->node(0).agent->FindClaim(trainer_.shard, trainer_.claim);
  claim.saves().Begin(Generation(1), Step(30), claim.client(), claim.reservation(),
                      std::chrono::seconds(5),
                      [&](const Result<BeginReply>& reply) { begun = reply.status(); });
  cluster_->executor().RunFor(std::chrono::seconds(1));
  EXPECT_FALSE(begun.has_value());
  Commit(20);
  ASSERT_TRUE(cluster_->RunUntil([&] { return begun.has_value(); }));
  EXPECT_EQ(*begun, Status::Ok());
  const auto late = cluster_->Begin(trainer_, Step(40), std::chrono::milliseconds(100));
  EXPECT_EQ(late.status().code(), StatusCode::kNoSpace);
}

// Attack: a process without the job's token says that it missed a step, and no rank saves it.
TEST_F(SaveTest, NothingIsPassedOverBeforeTheTokenIsAccepted) {
  Start(2, 1);
  cluster_->HandleAtLeader(
      wire::Request::kAdmitShard,
      [](const wire::Request&, ReplyFunction reply) { reply(PermissionDenied("another token")); });
  AgentCluster::Trainer stranger;
  stranger.node = 1;
  ShardClaim claim = cluster_->Claim("0", 1, kBytes);
  claim.token = "guess";
  claim.generation = Generation(1);
  claim.missed_step = Step(20);
  EXPECT_EQ(cluster_->Register(&stranger, 9, claim).code(), StatusCode::kPermission);
  cluster_->executor().RunFor(std::chrono::seconds(3));
  EXPECT_FALSE(HasFailed(20));
  EXPECT_EQ(cluster_->node(1).pool->Stats().own_bytes, 0u);
}

// Attack: the rank's process has exited, and a stranger claims the memory that it left touched.
TEST_F(SaveTest, LeftBehindMemoryIsForTheJobsTokenOnly) {
  Start(2, 1);
  ASSERT_TRUE(cluster_->Save(trainer_, Step(10), kChunks, 1).ok());
  Commit(10);
  cluster_->node(0).agent->ProcessExited(ProcessId(1));
  cluster_->node(0).pool->ClientExited(store::ClientId(1));
  const uint64_t reserved = cluster_->node(0).pool->Stats().reserved_bytes;
  AgentCluster::Trainer stranger;
  ShardClaim claim = cluster_->Claim("0", 1, kTestChunkBytes);
  claim.token = "guess";
  EXPECT_EQ(cluster_->Register(&stranger, 9, claim).code(), StatusCode::kPermission);
  EXPECT_EQ(cluster_->node(0).pool->Stats().reserved_bytes, reserved);
  EXPECT_EQ(cluster_->Register(&trainer_, 2, cluster_->Claim("0", 1, kBytes)), Status::Ok());
}

TEST_F(SaveTest, AStepOfZeroIsRefused) {
  Start(2, 1);
  EXPECT_EQ(cluster_->Begin(trainer_, Step(0)).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(SaveTest, AShardIsNotMadeSmallerUnderASave) {
  Start(2, 1);
  ClaimAgent& claim = **cluster_->node(0).agent->FindClaim(trainer_.shard, trainer_.claim);
  const auto resize = [&](uint64_t bytes) {
    std::optional<Status> done;
    claim.Resize(bytes, [&](const Status& status) { done = status; });
    EXPECT_TRUE(cluster_->RunUntil([&] { return done.has_value(); }));
    return done->code();
  };
  ASSERT_TRUE(cluster_->Save(trainer_, Step(10), kChunks, 1).ok());
  EXPECT_EQ(resize(kBytes / 2), StatusCode::kUnavailable) << "sealed, and not committed yet";
  EXPECT_EQ(resize(2 * kBytes), StatusCode::kOk);
  Commit(10);
  EXPECT_EQ(resize(kBytes / 2), StatusCode::kOk);
}

TEST_F(SaveTest, CommitsAreToldAndStepsGrow) {
  Start(2, 1);
  ASSERT_TRUE(cluster_->Save(trainer_, Step(10), kChunks, 1).ok());
  Commit(10);
  ASSERT_TRUE(WaitFor(Kind::kCommitted));
  EXPECT_EQ(cluster_->saves(trainer_).Query({Generation(1), Step(10)}).progress,
            SnapshotProgress::kCommitted);
  EXPECT_FALSE(cluster_->Begin(trainer_, Step(10)).ok());
  EXPECT_FALSE(cluster_->Begin(trainer_, Step(9)).ok());
}

}  // namespace
}  // namespace backstay::replication
