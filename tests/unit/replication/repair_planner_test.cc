#include "replication/repair_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace backstay::replication {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

NodeInstance Start(const std::string& node) { return {NodeId(node), Incarnation(1)}; }
SnapshotId Id(uint64_t step) { return {Generation(1), Step(step)}; }

class RepairPlannerTest : public ::testing::Test {
 protected:
  RepairPlannerTest() {
    tracker_.SetPolicy(1);
    SetNodes({"a", "b", "c", "d"});
    input_.tracker = &tracker_;
    input_.wanted = {Id(20), Id(10)};
    input_.replica_count = 1;
    input_.per_node_max = 2;
  }

  void SetNodes(const std::vector<std::string>& names) {
    LiveDomains live;
    input_.nodes.clear();
    for (const std::string& name : names) {
      live[Start(name)] = "host-" + name;
      PlacementNode node;
      node.node = NodeId(name);
      node.domains = {"host-" + name};
      node.domain = "host-" + name;
      node.has_trainers = name != "d";
      input_.nodes.push_back(node);
    }
    tracker_.SetLive(live);
  }

  void Hold(uint64_t step, const std::string& shard, const std::vector<std::string>& nodes) {
    for (const std::string& node : nodes) {
      wire::HeldShard held;
      held.mutable_shard()->mutable_snapshot()->set_generation(1);
      held.mutable_shard()->mutable_snapshot()->set_step(step);
      held.mutable_shard()->set_shard_id(shard);
      held.set_world_size(8);
      held.set_digest(std::string(16, 'd'));
      ASSERT_TRUE(tracker_.OnHeld(Start(node), held, Instant{1}).ok());
    }
  }

  CommitTracker tracker_;
  RepairInput input_;
};

TEST_F(RepairPlannerTest, WhatIsProtectedIsLeftAlone) {
  Hold(20, "0", {"a", "b"});
  const RepairPlan plan = PlanRepairs(input_);
  EXPECT_THAT(plan.start, IsEmpty());
  EXPECT_EQ(plan.under_protected_count, 0u);
}

TEST_F(RepairPlannerTest, ALostReplicaIsMadeAgainOnTheAssignedNode) {
  Hold(20, "0", {"a"});
  input_.primaries[ShardId("0")] = NodeId("a");
  input_.assigned[ShardId("0")] = {NodeId("c")};
  const RepairPlan plan = PlanRepairs(input_);
  ASSERT_THAT(plan.start, SizeIs(1));
  EXPECT_EQ(plan.start[0].source, Start("a"));
  EXPECT_EQ(plan.start[0].target, NodeId("c"));
}

// A trainer that moved gets its shard's copy on its own node.
TEST_F(RepairPlannerTest, TheTrainersOwnNodeIsATarget) {
  Hold(20, "0", {"b"});
  input_.primaries[ShardId("0")] = NodeId("d");
  const RepairPlan plan = PlanRepairs(input_);
  ASSERT_THAT(plan.start, SizeIs(1));
  EXPECT_EQ(plan.start[0].target, NodeId("d"));
}

TEST_F(RepairPlannerTest, ARunningRepairCounts) {
  Hold(20, "0", {"a"});
  input_.running = {{Id(20), ShardId("0"), std::string(16, 'd'), 0, Start("a"), NodeId("b")}};
  EXPECT_THAT(PlanRepairs(input_).start, IsEmpty());
}

TEST_F(RepairPlannerTest, NodesAreNotOverloaded) {
  for (int i = 0; i < 8; ++i) Hold(20, std::to_string(i), {"a"});
  const RepairPlan plan = PlanRepairs(input_);
  EXPECT_EQ(plan.under_protected_count, 8u);
  EXPECT_THAT(plan.start, SizeIs(2));  // All of them have one source.
  EXPECT_EQ(plan.stuck_count, 0u);
}

TEST_F(RepairPlannerTest, TheFewestCopiesGoFirst) {
  tracker_.SetPolicy(2);
  input_.replica_count = 2;
  input_.per_node_max = 1;
  Hold(20, "0", {"a", "b"});
  Hold(10, "1", {"a"});
  const RepairPlan plan = PlanRepairs(input_);
  ASSERT_FALSE(plan.start.empty());
  EXPECT_EQ(plan.start[0].shard, ShardId("1"));
}

TEST_F(RepairPlannerTest, TheUncommittedBaseGoesBeforeEverything) {
  tracker_.SetPolicy(2);
  input_.replica_count = 2;
  input_.per_node_max = 1;
  input_.base = Id(20);
  Hold(20, "1", {"a", "b"});
  Hold(10, "0", {"a"});
  const RepairPlan plan = PlanRepairs(input_);
  ASSERT_FALSE(plan.start.empty());
  EXPECT_EQ(plan.start[0].snapshot, Id(20));
}

TEST_F(RepairPlannerTest, AShardWithoutALiveCopyIsLost) {
  Hold(20, "0", {"a"});
  SetNodes({"b", "c"});
  const RepairPlan plan = PlanRepairs(input_);
  EXPECT_EQ(plan.lost_count, 1u);
  EXPECT_THAT(plan.start, IsEmpty());
}

TEST_F(RepairPlannerTest, WithoutAnotherDomainItIsStuck) {
  Hold(20, "0", {"a"});
  SetNodes({"a"});
  const RepairPlan plan = PlanRepairs(input_);
  EXPECT_EQ(plan.stuck_count, 1u);
  EXPECT_THAT(plan.start, IsEmpty());
}

TEST_F(RepairPlannerTest, ANodeThatRefusedIsNotAskedAgain) {
  Hold(20, "0", {"a"});
  input_.assigned[ShardId("0")] = {NodeId("b")};
  input_.refused.insert({ShardId("0"), NodeId("b")});
  const RepairPlan plan = PlanRepairs(input_);
  ASSERT_THAT(plan.start, SizeIs(1));
  EXPECT_NE(plan.start[0].target, NodeId("b"));
}

TEST_F(RepairPlannerTest, SnapshotsThatNobodyWantsAreNotRepaired) {
  Hold(15, "0", {"a"});
  EXPECT_THAT(PlanRepairs(input_).start, IsEmpty());
}

TEST_F(RepairPlannerTest, TwoMissingReplicasGoToTwoDomains) {
  tracker_.SetPolicy(2);
  input_.replica_count = 2;
  Hold(20, "0", {"a"});
  const RepairPlan plan = PlanRepairs(input_);
  ASSERT_THAT(plan.start, SizeIs(2));
  EXPECT_NE(plan.start[0].target, plan.start[1].target);
}

}  // namespace
}  // namespace backstay::replication
