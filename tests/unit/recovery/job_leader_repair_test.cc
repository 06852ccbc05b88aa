// Lost and damaged replicas are made again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "replication/timeline.h"
#include "tests/unit/recovery/job_leader_fixture.h"

namespace backstay::testing {
namespace {

namespace timeline = replication::timeline;
using ::testing::HasSubstr;

TEST_F(JobLeaderTest, LostReplicasAreMadeAgain) {
  StartJob();
  Commit(10);
  cluster_.Kill("b");
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.Happened(timeline::kProtectedAgain); }));
  EXPECT_EQ(cluster_.node("c").held.size(), 2u);
  EXPECT_TRUE(cluster_.Happened(timeline::kUnderProtected));
  EXPECT_TRUE(cluster_.Happened(timeline::kRepaired));
}

// A node that can promise nothing for saves to come may have room for what is committed.
TEST_F(JobLeaderTest, ANodeThatPromisesNoMemoryIsRepairedTo) {
  StartJob();
  Commit(10);
  cluster_.node("c").has_memory = false;
  cluster_.Kill("b");
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.Happened(timeline::kProtectedAgain); }));
  EXPECT_EQ(cluster_.node("c").held.size(), 2u);
  EXPECT_TRUE(cluster_.node("c").reserved.empty());
}

// Attack: a service starts again when its shard of a step has one replica of two. Nobody offers it
// any more, and every rank's slots hold the step until its deadline.
TEST_F(JobLeaderTest, AStepThatNobodyOffersAnyMoreIsMadeWhole) {
  StartJob();
  for (const uint32_t rank : {0u, 1u}) {
    wire::ShardReport report = cluster_.MakeReport(1, 10, rank);
    cluster_.AddHolder(report, "b");
    cluster_.Hold("b", 1, 10, rank);
    cluster_.Report("b", report);
  }
  cluster_.executor().RunFor(std::chrono::seconds(1));
  EXPECT_FALSE(cluster_.Happened(timeline::kRepairStarted));
  EXPECT_TRUE(
      cluster_.RunUntil([&] { return cluster_.CommitIsRecorded(10); }, std::chrono::seconds(20)));
  EXPECT_FALSE(cluster_.Happened(timeline::kUnderProtected)) << "nothing was promised yet";
}

TEST_F(JobLeaderTest, AReplicaThatAHolderFoundBadIsMadeAgain) {
  StartJob();
  Commit(10);
  cluster_.executor().RunFor(std::chrono::seconds(1));
  std::erase_if(cluster_.node("b").held,
                [](const wire::HeldShard& held) { return held.rank() == 0; });
  EXPECT_TRUE(cluster_.RunUntil([&] { return cluster_.Happened(timeline::kProtectedAgain); }));
}

// It would hold a place for its whole time, and keep others waiting that could go on.
TEST_F(JobLeaderTest, ARepairThatItsTargetRefusesIsMadeElsewhere) {
  LeaderFixture cluster({"a", "b", "c", "d"});
  cluster.config().repairs_per_node_max = 1;
  cluster.Elect();
  cluster.AdmitAll();
  ASSERT_EQ(cluster.ReconfigureAll("u1", 0).generation(), 1u);
  cluster.Protect(1, 10);
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.CommitIsRecorded(10); }));
  cluster.node("c").full = true;
  cluster.Kill("b");
  EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Happened(timeline::kProtectedAgain); }));
  EXPECT_EQ(cluster.node("d").held.size(), 2u);
}

// An order takes the place of the one before it: each names all that the source is to serve.
TEST_F(JobLeaderTest, TwoCopiesFromOneSourceDoNotEndEachOther) {
  LeaderFixture cluster({"a", "b", "c", "d", "e"});
  cluster.replicas = 2;
  cluster.Elect();
  cluster.AdmitAll();
  ASSERT_EQ(cluster.ReconfigureAll("u1", 0).generation(), 1u);
  for (const uint32_t rank : {0u, 1u}) {
    wire::ShardReport report = cluster.MakeReport(1, 10, rank);
    for (const char* node : {"a", "b", "c"}) {
      cluster.Hold(node, 1, 10, rank);
      cluster.AddHolder(report, node);
    }
    cluster.Report(rank == 0 ? "a" : "b", report);
  }
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.CommitIsRecorded(10); }));
  for (const char* node : {"d", "e"}) cluster.node(node).slow = true;
  cluster.Kill("b");
  cluster.Kill("c");
  const auto both_ordered = [&] {
    return cluster.node("a").ordered == std::set<std::string>{"d", "e"};
  };
  ASSERT_TRUE(cluster.RunUntil(both_ordered));
  // And stay so, whichever order is repeated.
  const bool ended = cluster.RunUntil([&] { return !both_ordered(); }, std::chrono::seconds(5));
  EXPECT_FALSE(ended);
}

TEST_F(JobLeaderTest, ANewLeaderRepairsByWhatTheNodesList) {
  StartJob();
  Commit(10);
  cluster_.Kill("b");
  cluster_.Elect();
  cluster_.Admit(0, "a");
  EXPECT_TRUE(cluster_.RunUntil([&] { return cluster_.node("c").held.size() == 2; }));
}

}  // namespace
}  // namespace backstay::testing
