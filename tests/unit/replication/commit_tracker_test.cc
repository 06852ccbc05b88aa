#include "replication/commit_tracker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace backstay::replication {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr Instant kNow{1};

NodeInstance Start(const std::string& node, uint64_t incarnation = 1) {
  return {NodeId(node), Incarnation(incarnation)};
}

std::string Digest(char content) { return std::string(16, content); }

SnapshotId Id(uint64_t generation, uint64_t step) { return {Generation(generation), Step(step)}; }

wire::ShardReport Report(uint32_t rank, const std::vector<NodeInstance>& holders,
                         const std::string& digest = Digest('d'), uint32_t world_size = 2) {
  wire::ShardReport report;
  report.mutable_shard()->mutable_snapshot()->set_generation(1);
  report.mutable_shard()->mutable_snapshot()->set_step(10);
  report.mutable_shard()->set_shard_id(std::to_string(rank));
  report.set_rank(rank);
  report.set_world_size(world_size);
  report.set_digest(digest);
  report.set_size_bytes(100);
  report.set_progress(wire::ShardReport::SEALED);
  for (const NodeInstance& holder : holders) {
    wire::Instance* instance = report.add_holders();
    instance->set_node_id(holder.node.value);
    instance->set_incarnation(holder.incarnation.value);
  }
  return report;
}

void AddTag(wire::ShardReport& report, const std::string& name, const std::string& value) {
  wire::Tag* tag = report.add_tags();
  tag->set_name(name);
  tag->set_value(value);
}

class CommitTrackerTest : public ::testing::Test {
 protected:
  CommitTrackerTest() {
    tracker_.SetPolicy(1);
    tracker_.SetLive(
        {{Start("a"), "h1"}, {Start("b"), "h2"}, {Start("c"), "h3"}, {Start("c2"), "h3"}});
  }

  void Add(const wire::ShardReport& report, const NodeInstance& from = Start("a")) {
    ASSERT_TRUE(tracker_.OnReport(from, report, kNow).ok());
  }
  const TrackedSnapshot& snapshot() const { return *tracker_.Find(Id(1, 10)); }
  std::string Why() const {
    return WhyNotCommitted(tracker_, snapshot(), 1, [](const ShardId&) { return ""; });
  }

  CommitTracker tracker_;
};

TEST_F(CommitTrackerTest, CommitsOnceEveryRankHasItsReplica) {
  Add(Report(0, {Start("a"), Start("b")}));
  EXPECT_FALSE(tracker_.IsProtected(snapshot()));
  Add(Report(1, {Start("b")}));
  EXPECT_FALSE(tracker_.IsProtected(snapshot()));
  EXPECT_EQ(ProposeCommit(tracker_, snapshot()).status().code(), StatusCode::kUnavailable);
  Add(Report(1, {Start("b"), Start("c")}));
  const Result<CommitProposal> proposal = ProposeCommit(tracker_, snapshot());
  ASSERT_TRUE(proposal.ok());
  EXPECT_EQ(proposal->bytes, 200u);
  EXPECT_EQ(proposal->counted.size(), 3u);
  EXPECT_EQ(proposal->root, SnapshotRoot({Digest('d'), Digest('d')}));
}

TEST_F(CommitTrackerTest, RepeatedReportsChangeNothing) {
  for (int i = 0; i < 5; ++i) Add(Report(0, {Start("a"), Start("b")}));
  EXPECT_EQ(snapshot().protected_count, 1u);
  EXPECT_EQ(snapshot().sealed_count, 1u);
  EXPECT_EQ(snapshot().bytes, 100u);
}

// Attack: a holder restarts between its acknowledgement and the commit; its memory is empty.
TEST_F(CommitTrackerTest, AnEarlierStartOfAHolderDoesNotCount) {
  Add(Report(0, {Start("a"), Start("b")}));
  Add(Report(1, {Start("b"), Start("c")}));
  ASSERT_TRUE(tracker_.IsProtected(snapshot()));
  tracker_.SetLive({{Start("a"), "h1"}, {Start("b", 2), "h2"}, {Start("c"), "h3"}});
  EXPECT_FALSE(tracker_.IsProtected(snapshot()));
  EXPECT_EQ(snapshot().protected_count, 0u);
  // The same node's later start counts once it is named itself.
  Add(Report(0, {Start("a"), Start("b", 2)}));
  Add(Report(1, {Start("b", 2), Start("c")}));
  EXPECT_TRUE(tracker_.IsProtected(snapshot()));
}

TEST_F(CommitTrackerTest, ALateReportOfAnEarlierStartTakesNothingBack) {
  tracker_.SetLive({{Start("a"), "h1"}, {Start("b", 2), "h2"}});
  Add(Report(0, {Start("a"), Start("b", 2)}));
  Add(Report(0, {Start("a"), Start("b", 1)}));
  EXPECT_EQ(snapshot().protected_count, 1u);
}

wire::ShardReport BegunAt(wire::ShardReport report, uint64_t step) {
  report.mutable_shard()->mutable_snapshot()->set_step(step);
  report.set_began_unix_ms(1000);
  return report;
}

// Attack: one rank skips a save that the others make; their slots would hold it until its deadline.
TEST_F(CommitTrackerTest, AStepThatARankPassedOverCanNeverCommit) {
  Add(BegunAt(Report(0, {Start("a"), Start("b")}), 10));
  EXPECT_EQ(CannotCommit(snapshot()), "");
  Add(BegunAt(Report(1, {Start("a"), Start("b")}), 13));
  EXPECT_THAT(CannotCommit(snapshot()), HasSubstr("shard 1 was not saved at this step"));
  EXPECT_EQ(CannotCommit(*tracker_.Find(Id(1, 13))), "");
}

TEST_F(CommitTrackerTest, AStepIsPassedOverAlsoWhenItIsHeardOfLater) {
  Add(BegunAt(Report(1, {Start("a"), Start("b")}), 13));
  Add(BegunAt(Report(0, {Start("a"), Start("b")}), 10));
  EXPECT_THAT(CannotCommit(snapshot()), HasSubstr("shard 1 was not saved at this step"));
}

TEST_F(CommitTrackerTest, ARankWithBothStepsPassesNothingOver) {
  Add(BegunAt(Report(0, {Start("a"), Start("b")}), 10));
  Add(BegunAt(Report(1, {Start("a")}), 10));
  Add(BegunAt(Report(1, {Start("a"), Start("b")}), 13));
  EXPECT_EQ(CannotCommit(snapshot()), "");
}

// A service dies in the middle of a save, and its trainer goes on with the next service: the other
// ranks must not hold their copies of that step for ever.
TEST_F(CommitTrackerTest, AStepWhoseCopyDiedWithItsServiceCanNeverCommit) {
  Add(BegunAt(Report(0, {Start("a"), Start("b")}), 10));
  wire::ShardReport unsealed = BegunAt(Report(1, {}), 10);
  unsealed.clear_digest();
  Add(unsealed, Start("c"));
  EXPECT_EQ(CannotCommit(snapshot()), "");
  Add(BegunAt(Report(1, {Start("c", 2), Start("b")}), 13), Start("c", 2));
  EXPECT_THAT(CannotCommit(snapshot()), HasSubstr("what was saved of shard 1 was lost with c"));
}

// Its trainer may be waiting for the other ranks, which wait for the memory of that very step.
TEST_F(CommitTrackerTest, ALaterStartOfANodeShowsThatWhatItHadIsLost) {
  Add(BegunAt(Report(0, {Start("a"), Start("b")}), 10));
  wire::ShardReport unsealed = BegunAt(Report(1, {}), 10);
  unsealed.clear_digest();
  Add(unsealed, Start("c"));
  // Gone may mean that it cannot be reached.
  tracker_.SetLive({{Start("a"), "h1"}, {Start("b"), "h2"}});
  EXPECT_EQ(CannotCommit(snapshot()), "");
  tracker_.SetLive({{Start("a"), "h1"}, {Start("b"), "h2"}, {Start("c", 2), "h3"}});
  EXPECT_THAT(CannotCommit(snapshot()), HasSubstr("what was saved of shard 1 was lost with c"));
}

TEST_F(CommitTrackerTest, ALaterStartOfANodeLeavesWhatOthersHold) {
  Add(BegunAt(Report(0, {Start("a"), Start("b")}), 10));
  Add(BegunAt(Report(1, {Start("c"), Start("b")}), 10), Start("c"));
  tracker_.SetLive({{Start("a"), "h1"}, {Start("b"), "h2"}, {Start("c", 2), "h3"}});
  EXPECT_EQ(CannotCommit(snapshot()), "");
}

TEST_F(CommitTrackerTest, AStepThatOneServiceStillCopiesIsNotPassedOver) {
  wire::ShardReport unsealed = BegunAt(Report(1, {}), 10);
  unsealed.clear_digest();
  Add(unsealed);
  Add(BegunAt(Report(1, {}), 13));
  EXPECT_EQ(CannotCommit(snapshot()), "");
}

TEST_F(CommitTrackerTest, ACopyThatOutlivesItsServiceKeepsTheStepPossible) {
  Add(BegunAt(Report(0, {Start("a"), Start("b")}), 10));
  Add(BegunAt(Report(1, {Start("c"), Start("b")}), 10), Start("c"));
  tracker_.SetLive({{Start("a"), "h1"}, {Start("b"), "h2"}, {Start("c", 2), "h3"}});
  Add(BegunAt(Report(1, {Start("c", 2), Start("b")}), 13), Start("c", 2));
  EXPECT_THAT(CannotCommit(snapshot()), Not(HasSubstr("lost with")));
  // Now the last copy goes.
  tracker_.SetLive({{Start("a"), "h1"}, {Start("c", 2), "h3"}});
  EXPECT_THAT(CannotCommit(snapshot()), HasSubstr("what was saved of shard 1 was lost with c"));
}

TEST_F(CommitTrackerTest, EachFailureDomainCountsOnce) {
  tracker_.SetLive({{Start("c"), "h3"}, {Start("c2"), "h3"}, {Start("b"), "h2"}});
  Add(Report(0, {Start("c"), Start("c2")}));
  EXPECT_EQ(snapshot().protected_count, 0u);
  Add(Report(0, {Start("c"), Start("c2"), Start("b")}));
  EXPECT_EQ(snapshot().protected_count, 1u);
}

// The primary's own copy is one of them: without it the next loss could be one too many.
TEST_F(CommitTrackerTest, ALostPrimaryIsMissed) {
  Add(Report(0, {Start("a"), Start("b")}));
  tracker_.SetLive({{Start("b"), "h2"}, {Start("c"), "h3"}});
  EXPECT_EQ(snapshot().protected_count, 0u);
}

TEST_F(CommitTrackerTest, HoldersOfAnotherDigestDoNotCount) {
  Add(Report(0, {Start("a")}));
  Add(Report(0, {Start("b"), Start("c")}, Digest('x')));
  EXPECT_EQ(snapshot().protected_count, 0u);
  EXPECT_EQ(ProposeCommit(tracker_, snapshot()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Why(), HasSubstr("two contents"));
}

TEST_F(CommitTrackerTest, TagsThatDifferRefuseTheCommit) {
  wire::ShardReport first = Report(0, {Start("a"), Start("b")});
  AddTag(first, "samples", "100");
  AddTag(first, "config", "c");
  wire::ShardReport second = Report(1, {Start("b"), Start("c")});
  AddTag(second, "config", "c");
  AddTag(second, "samples", "101");
  Add(first);
  Add(second);
  ASSERT_TRUE(tracker_.IsProtected(snapshot()));
  const Result<CommitProposal> proposal = ProposeCommit(tracker_, snapshot());
  EXPECT_EQ(proposal.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(proposal.status().message(), HasSubstr("samples"));
}

TEST_F(CommitTrackerTest, TheOrderOfTagsDoesNotMatter) {
  wire::ShardReport first = Report(0, {Start("a"), Start("b")});
  AddTag(first, "x", "1");
  AddTag(first, "y", "2");
  wire::ShardReport second = Report(1, {Start("b"), Start("c")});
  AddTag(second, "y", "2");
  AddTag(second, "x", "1");
  Add(first);
  Add(second);
  EXPECT_TRUE(ProposeCommit(tracker_, snapshot()).ok());
}

TEST_F(CommitTrackerTest, ATagThatOneRankLacksDiffers) {
  wire::ShardReport first = Report(0, {Start("a"), Start("b")});
  AddTag(first, "x", "1");
  Add(first);
  Add(Report(1, {Start("b"), Start("c")}));
  EXPECT_EQ(ProposeCommit(tracker_, snapshot()).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(CommitTrackerTest, AFailedSaveCanNeverCommit) {
  Add(Report(0, {Start("a"), Start("b")}));
  wire::ShardReport failed = Report(1, {}, "");
  failed.set_failed(true);
  failed.set_error("no slot");
  Add(failed);
  EXPECT_THAT(CannotCommit(snapshot()), HasSubstr("no slot"));
}

TEST_F(CommitTrackerTest, WorldSizesThatDifferCanNeverCommit) {
  Add(Report(0, {Start("a"), Start("b")}, Digest('d'), 2));
  Add(Report(1, {Start("a"), Start("b")}, Digest('d'), 3));
  EXPECT_THAT(CannotCommit(snapshot()), HasSubstr("ranks"));
}

TEST_F(CommitTrackerTest, TwoShardsOfOneRankCanNeverCommit) {
  Add(Report(0, {Start("a"), Start("b")}));
  wire::ShardReport other = Report(0, {Start("a"), Start("b")});
  other.mutable_shard()->set_shard_id("another");
  Add(other);
  EXPECT_EQ(ProposeCommit(tracker_, snapshot()).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(CommitTrackerTest, MalformedReportsAreRefused) {
  wire::ShardReport report = Report(0, {Start("a")});
  report.set_digest("short");
  EXPECT_EQ(tracker_.OnReport(Start("a"), report, kNow).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(tracker_.OnReport(Start("a"), Report(5, {}), kNow).code(),
            StatusCode::kInvalidArgument);
  report = Report(0, {});
  report.mutable_shard()->clear_shard_id();
  EXPECT_EQ(tracker_.OnReport(Start("a"), report, kNow).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(tracker_.Find(Id(1, 10)), nullptr);
}

TEST_F(CommitTrackerTest, SnapshotsAreBounded) {
  Status status;
  for (uint64_t step = 0; step <= CommitTracker::kSnapshotsMax; ++step) {
    wire::ShardReport report = Report(0, {Start("a")});
    report.mutable_shard()->mutable_snapshot()->set_step(step);
    status = tracker_.OnReport(Start("a"), report, kNow);
  }
  EXPECT_EQ(status.code(), StatusCode::kNoSpace);
  tracker_.Forget([](const SnapshotId& id) { return id.step.value > 60; });
  EXPECT_EQ(tracker_.Find(Id(1, 10)), nullptr);
}

// Attack: a rank's word that it passed a step over is lost, and meanwhile another rank fails so
// many later ones that no more are followed. The step was held until its deadline.
TEST_F(CommitTrackerTest, AStepIsPassedOverAlsoByOneThatIsNotFollowed) {
  for (uint64_t i = 0; i < CommitTracker::kSnapshotsMax; ++i) {
    Add(BegunAt(Report(0, {Start("a"), Start("b")}), 10 + i));
  }
  EXPECT_EQ(CannotCommit(snapshot()), "");
  const wire::ShardReport later = BegunAt(Report(1, {Start("a"), Start("b")}), 500);
  EXPECT_EQ(tracker_.OnReport(Start("a"), later, kNow).code(), StatusCode::kNoSpace);
  EXPECT_THAT(CannotCommit(snapshot()), HasSubstr("its rank has begun step 500 already"));
}

// Every new leader rebuilds the same from what holders list.
TEST_F(CommitTrackerTest, InventoriesBuildTheSamePicture) {
  for (const uint32_t rank : {0u, 1u}) {
    for (const char* node : {"a", "b"}) {
      wire::HeldShard held;
      *held.mutable_shard() = Report(rank, {}).shard();
      held.set_rank(rank);
      held.set_world_size(2);
      held.set_digest(Digest('d'));
      held.set_size_bytes(100);
      ASSERT_TRUE(tracker_.OnHeld(Start(node), held, kNow).ok());
    }
  }
  EXPECT_TRUE(ProposeCommit(tracker_, snapshot()).ok());
  tracker_.OnNotHeld(Start("b"), Id(1, 10), ShardId("1"));
  EXPECT_FALSE(tracker_.IsProtected(snapshot()));
}

TEST_F(CommitTrackerTest, ThePolicyDecides) {
  Add(Report(0, {Start("a")}));
  Add(Report(1, {Start("b")}));
  EXPECT_FALSE(tracker_.IsProtected(snapshot()));
  tracker_.SetPolicy(0);
  EXPECT_TRUE(tracker_.IsProtected(snapshot()));
  tracker_.SetPolicy(1);
  EXPECT_FALSE(tracker_.IsProtected(snapshot()));
  EXPECT_EQ(snapshot().protected_count, 0u);
}

TEST_F(CommitTrackerTest, SaysWhyInPlainWords) {
  Add(Report(1, {Start("b")}));
  EXPECT_EQ(Why(), "shard 1 has 0 of 1 replicas; rank 0 has not begun it");
  Add(Report(0, {}, ""));
  EXPECT_EQ(Why(), "shard 0 is still being copied by its trainer; shard 1 has 0 of 1 replicas");
}

TEST(SnapshotRoot, DependsOnTheOrderOfRanks) {
  EXPECT_NE(SnapshotRoot({Digest('a'), Digest('b')}), SnapshotRoot({Digest('b'), Digest('a')}));
}

}  // namespace
}  // namespace backstay::replication
