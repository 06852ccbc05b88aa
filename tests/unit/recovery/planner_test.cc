#include "recovery/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "replication/commit_tracker.h"

namespace backstay::recovery {
namespace {

using replication::wire::HeldShard;
using replication::wire::JobRecord;
using replication::wire::RecordedSnapshot;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr uint32_t kRanks = 2;

NodeInstance Start(const std::string& node, uint64_t incarnation = 1) {
  return {NodeId(node), Incarnation(incarnation)};
}
SnapshotId Id(uint64_t generation, uint64_t step) { return {Generation(generation), Step(step)}; }

std::string Digest(const SnapshotId& id, uint32_t rank) {
  std::string digest = std::to_string(id.generation.value) + "/" + std::to_string(id.step.value) +
                       "/" + std::to_string(rank);
  digest.resize(16, '.');
  return digest;
}
std::string Root(const SnapshotId& id) {
  return replication::SnapshotRoot({Digest(id, 0), Digest(id, 1)});
}

// A job of two ranks. Generation 1 started fresh; nodes "a", "b", "c" are alive and have answered
// that they hold nothing.
class RestorePlannerTest : public ::testing::Test {
 protected:
  RestorePlannerTest() {
    record_ = replication::CreateRecord(JobName("job"), "", kRanks, 1, 2).value();
    replication::ChosenBase fresh;
    fresh.fresh = true;
    Reconfigure(fresh);
    for (const char* node : {"a", "b", "c"}) input_.inventory.answered[Start(node)] = {};
    input_.record = &record_;
    input_.base_record = &record_;
    input_.request.world_size = kRanks;
    input_.request.shards = {ShardId("0"), ShardId("1")};
    input_.gone_is_sure = true;
  }

  void Reconfigure(const replication::ChosenBase& base) {
    const AttemptUuid uuid("u" + std::to_string(record_.generation()));
    record_ = replication::CloseGeneration(record_, uuid, {}).value();
    record_ = replication::Decide(record_, uuid, kRanks, base).value();
    record_ = replication::MarkResumed(record_, uuid, Attempt(1)).value();
  }
  void ReconfigureFrom(const SnapshotId& id, bool committed = true) {
    replication::ChosenBase base;
    base.snapshot = id;
    base.root = Root(id);
    base.committed = committed;
    Reconfigure(base);
  }
  void Commit(const SnapshotId& id) {
    RecordedSnapshot snapshot;
    snapshot.set_generation(id.generation.value);
    snapshot.set_step(id.step.value);
    snapshot.set_world_size(kRanks);
    snapshot.set_root(Root(id));
    record_ = replication::CommitSnapshot(record_, snapshot).value();
  }
  HeldShard& Hold(const std::string& node, const SnapshotId& id, uint32_t rank) {
    std::vector<HeldShard>& list = input_.inventory.answered[Start(node)];
    HeldShard& held = list.emplace_back();
    held.mutable_shard()->mutable_snapshot()->set_generation(id.generation.value);
    held.mutable_shard()->mutable_snapshot()->set_step(id.step.value);
    held.mutable_shard()->set_shard_id(std::to_string(rank));
    held.set_rank(rank);
    held.set_world_size(kRanks);
    held.set_digest(Digest(id, rank));
    held.set_size_bytes(100);
    return held;
  }
  void HoldAll(const SnapshotId& id) {
    Hold("a", id, 0);
    Hold("b", id, 1);
  }
  // "b" neither answers nor loses its lease.
  void Silence(const std::string& node) {
    input_.inventory.answered.erase(Start(node));
    input_.inventory.unanswered.insert(Start(node));
  }
  Plan Run() const { return PlanRestore(input_); }

  void ExpectBase(const SnapshotId& id) {
    const Plan plan = Run();
    ASSERT_EQ(plan.outcome, PlanOutcome::kDecided) << plan.why;
    EXPECT_FALSE(plan.base.fresh);
    EXPECT_EQ(plan.base.snapshot, id) << plan.why;
    EXPECT_EQ(plan.base.root, Root(id));
    EXPECT_THAT(plan.sources, SizeIs(kRanks));
  }

  JobRecord record_;
  PlanInput input_;
};

TEST_F(RestorePlannerTest, TheLastCommitIsRestored) {
  Commit(Id(1, 100));
  HoldAll(Id(1, 100));
  ExpectBase(Id(1, 100));
  EXPECT_TRUE(Run().base.committed);
}

TEST_F(RestorePlannerTest, SourcesListEveryHolder) {
  Commit(Id(1, 100));
  HoldAll(Id(1, 100));
  Hold("c", Id(1, 100), 1);
  const Plan plan = Run();
  ASSERT_THAT(plan.sources, SizeIs(2));
  EXPECT_EQ(plan.sources[1].holders_size(), 2);
  EXPECT_EQ(plan.sources[1].digest(), Digest(Id(1, 100), 1));
}

TEST_F(RestorePlannerTest, AWholeUncommittedSnapshotAboveTheFloorIsChosen) {
  Commit(Id(1, 100));
  HoldAll(Id(1, 100));
  HoldAll(Id(1, 110));
  ExpectBase(Id(1, 110));
  EXPECT_FALSE(Run().base.committed);
}

TEST_F(RestorePlannerTest, AHalfSavedSnapshotIsRejectedWithAReason) {
  Commit(Id(1, 100));
  HoldAll(Id(1, 100));
  Hold("a", Id(1, 110), 0);
  ExpectBase(Id(1, 100));
  EXPECT_THAT(Run().rejected, Contains("step 110 of generation 1: lacks the shard of rank 1"));
}

TEST_F(RestorePlannerTest, AnUncommittedSnapshotWithDifferentTagsIsRejected) {
  Commit(Id(1, 100));
  HoldAll(Id(1, 100));
  HeldShard& held = Hold("a", Id(1, 110), 0);
  held.add_tags()->set_name("samples");
  Hold("b", Id(1, 110), 1);
  ExpectBase(Id(1, 100));
}

TEST_F(RestorePlannerTest, AnAbandonedSnapshotIsNoBaseHoweverWhole) {
  Commit(Id(1, 100));
  HoldAll(Id(1, 100));
  HoldAll(Id(1, 110));
  record_ = replication::AbandonSnapshot(record_, Id(1, 110)).value();
  ExpectBase(Id(1, 100));
}

// Step 110 of generation 1 never outranks step 105 of generation 2 that grew from step 100.
TEST_F(RestorePlannerTest, OffTheLineageNothingCounts) {
  Commit(Id(1, 100));
  ReconfigureFrom(Id(1, 100));
  Commit(Id(2, 105));
  HoldAll(Id(2, 105));
  HoldAll(Id(1, 110));
  ExpectBase(Id(2, 105));
}

TEST_F(RestorePlannerTest, OnceTheFloorIsCoveredUnknownsAreNotWaitedForLong) {
  Commit(Id(1, 100));
  HoldAll(Id(1, 100));
  Silence("c");
  EXPECT_EQ(Run().outcome, PlanOutcome::kWait);
  input_.patience_is_over = true;
  ExpectBase(Id(1, 100));
}

TEST_F(RestorePlannerTest, TheFloorIsWaitedForWhileAHolderIsUnknown) {
  Commit(Id(1, 90));
  Commit(Id(1, 100));
  HoldAll(Id(1, 90));
  HoldAll(Id(1, 100));
  Silence("b");
  Hold("a", Id(1, 90), 1);  // The older one is whole even so.
  input_.patience_is_over = true;
  const Plan plan = Run();
  EXPECT_EQ(plan.outcome, PlanOutcome::kWait);
  EXPECT_THAT(plan.why, HasSubstr("b"));
}

TEST_F(RestorePlannerTest, BelowTheFloorOnlyWhenAShardIsGoneEverywhereAndItSaysSo) {
  Commit(Id(1, 90));
  Commit(Id(1, 100));
  HoldAll(Id(1, 90));
  Hold("a", Id(1, 100), 0);
  ExpectBase(Id(1, 90));
  EXPECT_THAT(Run().base.why, HasSubstr("step 100 of generation 1, lacks the shard of rank 1"));
}

TEST_F(RestorePlannerTest, ANodeThatWasLostAMomentAgoMayComeBack) {
  Commit(Id(1, 90));
  Commit(Id(1, 100));
  HoldAll(Id(1, 90));
  Hold("a", Id(1, 100), 0);
  input_.gone_is_sure = false;
  EXPECT_EQ(Run().outcome, PlanOutcome::kWait);
}

TEST_F(RestorePlannerTest, AnUnreadableFloorGivesWayToTheOlderSnapshot) {
  Commit(Id(1, 90));
  Commit(Id(1, 100));
  HoldAll(Id(1, 90));
  HoldAll(Id(1, 100));
  input_.unreadable = {{Id(1, 100), ShardId("1"), Start("b")}};
  ExpectBase(Id(1, 90));
  EXPECT_THAT(Run().rejected, Contains(HasSubstr("could not be read from any holder")));
}

// Attack: one holder answered late; the ranks were sent to the other one, which then died.
TEST_F(RestorePlannerTest, ACopyThatNobodyTriedToReadKeepsTheSnapshot) {
  Commit(Id(1, 90));
  Commit(Id(1, 100));
  HoldAll(Id(1, 90));
  HoldAll(Id(1, 100));
  Hold("c", Id(1, 100), 1);
  input_.unreadable = {{Id(1, 100), ShardId("1"), Start("b")}};
  ExpectBase(Id(1, 100));
  const Plan plan = Run();
  ASSERT_THAT(plan.sources, SizeIs(2));
  ASSERT_EQ(plan.sources[1].holders_size(), 1);
  EXPECT_EQ(plan.sources[1].holders(0).node_id(), "c");
}

TEST_F(RestorePlannerTest, AnUnreadableUncommittedBaseGivesWayToTheFloor) {
  Commit(Id(1, 100));
  HoldAll(Id(1, 100));
  HoldAll(Id(1, 110));
  input_.unreadable = {{Id(1, 110), ShardId("0"), Start("a")}};
  ExpectBase(Id(1, 100));
}

TEST_F(RestorePlannerTest, AnUncommittedSnapshotBelowTheFloorIsNoFallback) {
  Commit(Id(1, 100));
  HoldAll(Id(1, 95));
  const Plan plan = Run();
  EXPECT_EQ(plan.outcome, PlanOutcome::kRefused);
  EXPECT_EQ(plan.error.code(), StatusCode::kNotFound);
}

// "Nothing found" never becomes an empty state.
TEST_F(RestorePlannerTest, NothingRestorableIsAnErrorThatSaysWhatWasFound) {
  Commit(Id(1, 100));
  Hold("a", Id(1, 100), 0);
  const Plan plan = Run();
  EXPECT_EQ(plan.outcome, PlanOutcome::kRefused);
  EXPECT_EQ(plan.error.code(), StatusCode::kNotFound);
  EXPECT_THAT(plan.error.message(),
              HasSubstr("step 100 of generation 1 lacks the shard of rank 1"));
}

TEST_F(RestorePlannerTest, OnlyAJobThatNeverCommittedStartsFresh) {
  Plan plan = Run();
  EXPECT_EQ(plan.outcome, PlanOutcome::kDecided);
  EXPECT_TRUE(plan.base.fresh);
  Silence("b");
  EXPECT_EQ(Run().outcome, PlanOutcome::kWait);
}

TEST_F(RestorePlannerTest, ANewJobStartsFreshWithoutAskingAnybody) {
  record_ = replication::CreateRecord(JobName("job"), "", kRanks, 1, 1).value();
  Silence("a");
  input_.gone_is_sure = false;
  EXPECT_TRUE(Run().base.fresh);
  EXPECT_EQ(Run().outcome, PlanOutcome::kDecided);
}

TEST_F(RestorePlannerTest, AJobThatCommittedNothingRestoresAWholeSnapshot) {
  HoldAll(Id(1, 10));
  ExpectBase(Id(1, 10));
}

TEST_F(RestorePlannerTest, ALostUncommittedBaseIsNoFreshStart) {
  HoldAll(Id(1, 10));
  ReconfigureFrom(Id(1, 10), /*committed=*/false);
  input_.inventory.answered[Start("a")].clear();
  const Plan plan = Run();
  EXPECT_EQ(plan.outcome, PlanOutcome::kRefused);
  EXPECT_EQ(plan.error.code(), StatusCode::kNotFound);
}

TEST_F(RestorePlannerTest, AnUncommittedBaseIsFoundAgain) {
  Commit(Id(1, 100));
  ReconfigureFrom(Id(1, 110), /*committed=*/false);
  HoldAll(Id(1, 100));
  HoldAll(Id(1, 110));
  ExpectBase(Id(1, 110));
  EXPECT_FALSE(Run().base.committed);
}

TEST_F(RestorePlannerTest, ExactStepOrError) {
  Commit(Id(1, 90));
  Commit(Id(1, 100));
  HoldAll(Id(1, 90));
  HoldAll(Id(1, 100));
  input_.request.mode = ResumeMode::kExact;
  input_.request.exact_step = Step(90);
  ExpectBase(Id(1, 90));
  input_.request.exact_step = Step(95);
  const Plan plan = Run();
  EXPECT_EQ(plan.outcome, PlanOutcome::kRefused);
  EXPECT_EQ(plan.error.code(), StatusCode::kNotFound);
  EXPECT_THAT(plan.error.message(), HasSubstr("step 90"));
  Silence("c");
  EXPECT_EQ(Run().outcome, PlanOutcome::kWait);
}

TEST_F(RestorePlannerTest, FreshRefusesToDropStateUnasked) {
  Commit(Id(1, 100));
  HoldAll(Id(1, 100));
  input_.request.mode = ResumeMode::kFresh;
  Plan plan = Run();
  EXPECT_EQ(plan.error.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(plan.error.message(), HasSubstr("step 100"));
  input_.request.drop_state = true;
  plan = Run();
  EXPECT_EQ(plan.outcome, PlanOutcome::kDecided);
  EXPECT_TRUE(plan.base.fresh);
}

TEST_F(RestorePlannerTest, AnotherWorldSizeIsNotSupportedYet) {
  Commit(Id(1, 100));
  HoldAll(Id(1, 100));
  input_.request.world_size = 3;
  input_.request.shards.insert(ShardId("2"));
  const Plan plan = Run();
  EXPECT_EQ(plan.error.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(plan.error.message(), HasSubstr("resharding is not supported yet"));
}

TEST_F(RestorePlannerTest, ShardsThatTheSnapshotLacksAreNamed) {
  Commit(Id(1, 100));
  HoldAll(Id(1, 100));
  input_.request.shards = {ShardId("0"), ShardId("left")};
  const Plan plan = Run();
  EXPECT_EQ(plan.error.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(plan.error.message(), HasSubstr("shard left"));
}

TEST_F(RestorePlannerTest, AContentThatDoesNotAddUpToTheRootIsNotRestored) {
  Commit(Id(1, 90));
  Commit(Id(1, 100));
  HoldAll(Id(1, 90));
  Hold("a", Id(1, 100), 0);
  Hold("b", Id(1, 100), 1).set_digest(std::string(16, 'x'));
  ExpectBase(Id(1, 90));
}

TEST_F(RestorePlannerTest, OfTwoContentsTheCommittedOneIsTaken) {
  Commit(Id(1, 100));
  Hold("a", Id(1, 100), 0);
  HeldShard& good = Hold("b", Id(1, 100), 1);
  good.set_committed(true);
  good.set_root(Root(Id(1, 100)));
  Hold("c", Id(1, 100), 1).set_digest(std::string(16, 'x'));
  ExpectBase(Id(1, 100));
}

TEST_F(RestorePlannerTest, OfTwoUncommittedContentsNeitherIs) {
  Commit(Id(1, 100));
  HoldAll(Id(1, 100));
  HoldAll(Id(1, 110));
  Hold("c", Id(1, 110), 1).set_digest(std::string(16, 'x'));
  ExpectBase(Id(1, 100));
}

TEST_F(RestorePlannerTest, AForkTakesTheOtherJobsNewestCommit) {
  JobRecord fork = replication::CreateRecord(JobName("fork"), "", kRanks, 1, 1).value();
  input_.record = &fork;
  input_.request.mode = ResumeMode::kFork;
  input_.request.fork_job = JobName("job");
  Commit(Id(1, 90));
  Commit(Id(1, 100));
  HoldAll(Id(1, 90));
  HoldAll(Id(1, 100));
  HoldAll(Id(1, 110));
  ExpectBase(Id(1, 100));
  EXPECT_EQ(Run().base.job, "job");
  input_.request.exact_step = Step(90);
  ExpectBase(Id(1, 90));
}

TEST_F(RestorePlannerTest, TheRecordedBasesSourcesAreFoundAgain) {
  HoldAll(Id(1, 100));
  EXPECT_THAT(SourcesOf(input_.inventory, Id(1, 100), Root(Id(1, 100))), SizeIs(2));
  EXPECT_THAT(SourcesOf(input_.inventory, Id(1, 100), std::string(16, 'x')), SizeIs(0));
  EXPECT_THAT(SourcesOf(input_.inventory, Id(1, 90), ""), SizeIs(0));
}

}  // namespace
}  // namespace backstay::recovery
