#include "replication/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace backstay::replication {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

PlacementNode Node(const std::string& name, std::vector<std::string> domains,
                   bool has_trainers = true) {
  PlacementNode node;
  node.node = NodeId(name);
  node.domain = domains.back();
  node.domains = std::move(domains);
  node.has_trainers = has_trainers;
  return node;
}

PlacementShard Shard(const std::string& primary, std::vector<NodeId> current = {}) {
  PlacementShard shard;
  shard.shard = ShardId("s-" + primary);
  shard.primary = NodeId(primary);
  shard.current = std::move(current);
  return shard;
}

Member MakeMember(const std::string& name, std::vector<std::string> domains,
                  const std::string& boot_id, bool simulated = false) {
  Member member;
  member.record.instance = {NodeId(name), Incarnation(1)};
  member.record.domains = std::move(domains);
  member.record.boot_id = boot_id;
  member.record.hosts_simulated = simulated;
  return member;
}

std::map<NodeId, Member> Members(const std::vector<Member>& list) {
  std::map<NodeId, Member> members;
  for (const Member& member : list) members[member.record.instance.node] = member;
  return members;
}

TEST(FailureDomains, EqualInnermostLabelsAreOneDomain) {
  const auto domains = FailureDomains(Members({MakeMember("a", {"rack-1", "h1"}, "boot-a"),
                                               MakeMember("b", {"rack-1", "h1"}, "boot-b"),
                                               MakeMember("c", {"rack-1", "h2"}, "boot-c")}));
  EXPECT_EQ(domains.at(NodeId("a")), domains.at(NodeId("b")));
  EXPECT_NE(domains.at(NodeId("a")), domains.at(NodeId("c")));
}

// Attack:  two services on one machine are given different labels, hold each other's replicas, and
//          die together.
TEST(FailureDomains, OneBootOfAMachineIsOneDomainWhateverTheLabelsSay) {
  const auto domains =
      FailureDomains(Members({MakeMember("a", {"h1"}, "boot"), MakeMember("b", {"h2"}, "boot")}));
  EXPECT_EQ(domains.at(NodeId("a")), domains.at(NodeId("b")));
}

TEST(FailureDomains, SimulatedHostsOnOneMachineAreTakenAtTheirWord) {
  const auto domains = FailureDomains(
      Members({MakeMember("a", {"h1"}, "boot", true), MakeMember("b", {"h2"}, "boot", true)}));
  EXPECT_NE(domains.at(NodeId("a")), domains.at(NodeId("b")));
}

TEST(FailureDomains, ANodeThatWasNotToldBreaksTheSimulation) {
  const auto domains = FailureDomains(
      Members({MakeMember("a", {"h1"}, "boot", true), MakeMember("b", {"h2"}, "boot", false)}));
  EXPECT_EQ(domains.at(NodeId("a")), domains.at(NodeId("b")));
}

TEST(FailureDomains, WhatChainsTogetherIsOneDomain) {
  const auto domains = FailureDomains(Members(
      {MakeMember("a", {"h1"}, "x"), MakeMember("b", {"h1"}, "y"), MakeMember("c", {"h2"}, "y")}));
  EXPECT_EQ(domains.at(NodeId("a")), domains.at(NodeId("c")));
}

TEST(Placement, NeverTwoCopiesInOneDomain) {
  for (uint32_t replicas = 0; replicas <= kReplicasMax; ++replicas) {
    std::vector<PlacementNode> nodes;
    for (int i = 0; i < 12; ++i) {
      nodes.push_back(Node("n" + std::to_string(i), {"host-" + std::to_string(i % 5)}));
    }
    Placement placement(nodes);
    for (int i = 0; i < 12; ++i) {
      const std::vector<NodeId> chosen = placement.Choose(Shard("n" + std::to_string(i)), replicas);
      ASSERT_EQ(chosen.size(), replicas);
      std::set<std::string> domains{"host-" + std::to_string(i % 5)};
      for (const NodeId& node : chosen) {
        const int number = std::stoi(node.value.substr(1));
        EXPECT_TRUE(domains.insert("host-" + std::to_string(number % 5)).second);
      }
    }
  }
}

TEST(Placement, NodesPairUpSoThatFewSetsHoldEverything) {
  std::vector<PlacementNode> nodes;
  for (int i = 0; i < 6; ++i) {
    nodes.push_back(Node("n" + std::to_string(i), {"h" + std::to_string(i)}));
  }
  for (const uint32_t replicas : {1u, 2u}) {
    Placement placement(nodes);
    std::set<std::set<NodeId>> groups;
    for (int i = 0; i < 6; ++i) {
      const NodeId primary("n" + std::to_string(i));
      std::set<NodeId> group{primary};
      for (const NodeId& node : placement.Choose(Shard(primary.value), replicas)) {
        group.insert(node);
      }
      groups.insert(group);
    }
    EXPECT_EQ(groups.size(), 6u / (replicas + 1));
  }
}

TEST(Placement, SparesOnlyWhenNeeded) {
  Placement placement({Node("a", {"h1"}), Node("b", {"h2"}, false), Node("c", {"h3"})});
  EXPECT_THAT(placement.Choose(Shard("a"), 1), ElementsAre(NodeId("c")));
  EXPECT_THAT(placement.Choose(Shard("a"), 2), ElementsAre(NodeId("c"), NodeId("b")));
}

TEST(Placement, StaysWhereItIs) {
  Placement placement({Node("a", {"h1"}), Node("b", {"h2"}), Node("c", {"h3"}, false)});
  EXPECT_THAT(placement.Choose(Shard("a", {NodeId("c")}), 1), ElementsAre(NodeId("c")));
}

TEST(Placement, ALostPartnerIsReplaced) {
  Placement placement({Node("a", {"h1"}), Node("b", {"h2"}), Node("c", {"h3"})});
  EXPECT_THAT(placement.Choose(Shard("a", {NodeId("gone"), NodeId("c")}), 2),
              ElementsAre(NodeId("c"), NodeId("b")));
}

TEST(Placement, SpreadsOverOuterDomainsWherePossible) {
  Placement placement({Node("a", {"rack-1", "h1"}), Node("b", {"rack-1", "h2"}),
                       Node("c", {"rack-2", "h3"}), Node("d", {"rack-2", "h4"})});
  const std::vector<NodeId> of_a = placement.Choose(Shard("a"), 1);
  EXPECT_THAT(of_a, ElementsAre(NodeId("c")));
  EXPECT_THAT(placement.Choose(Shard("b"), 1), ElementsAre(NodeId("d")));
}

TEST(Placement, AShardThatWasRefusedGoesElsewhere) {
  Placement placement({Node("a", {"h1"}), Node("b", {"h2"}), Node("c", {"h3"})});
  PlacementShard shard = Shard("a");
  shard.excluded.insert(NodeId("b"));
  EXPECT_THAT(placement.Choose(shard, 1), ElementsAre(NodeId("c")));
}

TEST(Placement, ADomainThatHasACopyGetsNoSecond) {
  Placement placement({Node("a", {"h1"}), Node("b", {"h2"}), Node("b2", {"h2"})});
  PlacementShard shard = Shard("a");
  shard.holders.push_back(NodeId("b"));
  EXPECT_THAT(placement.Pick(shard, 1), IsEmpty());
}

TEST(Placement, LoadIsShared) {
  std::vector<PlacementNode> nodes;
  for (int i = 0; i < 5; ++i) {
    nodes.push_back(Node("n" + std::to_string(i), {"h" + std::to_string(i)}));
  }
  Placement placement(nodes);
  std::map<NodeId, int> load;
  for (int i = 0; i < 5; ++i) {
    for (const NodeId& node : placement.Choose(Shard("n" + std::to_string(i)), 1)) ++load[node];
  }
  for (const auto& [node, count] : load) EXPECT_LE(count, 2) << node;
}

TEST(Placement, AnUnsatisfiablePolicyIsRefusedNamingTheLabels) {
  const Placement placement({Node("a", {"h1"}), Node("b", {"h1"}), Node("c", {"h2"})});
  EXPECT_TRUE(placement.CheckPolicy(JobName("j"), 0).ok());
  EXPECT_TRUE(placement.CheckPolicy(JobName("j"), 1).ok());
  const Status status = placement.CheckPolicy(JobName("j"), 2);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("h1 (a, b), h2 (c)"));
  EXPECT_EQ(placement.CheckPolicy(JobName("j"), kReplicasMax + 1).code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace backstay::replication
