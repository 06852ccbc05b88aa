#include "replication/leader_election.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "replication/metadata_keys.h"
#include "tests/support/manual_executor.h"
#include "tests/support/memory_metadata_store.h"

namespace backstay::replication {
namespace {

using namespace std::chrono_literals;
using backstay::testing::ManualExecutor;
using backstay::testing::MemoryMetadata;
using backstay::testing::MemoryMetadataClient;

constexpr Duration kTtl = 3s;

NodeRecord MakeRecord(const std::string& id) {
  NodeRecord record;
  record.instance.node = NodeId(id);
  record.control_address = id + ":1";
  return record;
}

struct Node {
  Node(MemoryMetadata* service, ManualExecutor* executor, const std::string& id, uint64_t seed)
      : random(seed),
        client(service->NewClient()),
        membership(client.get(), executor, &random, MakeRecord(id), {.lease_ttl = kTtl}),
        election(client.get(), executor, &random, &membership, JobName("job/\xff"), {},
                 [this] { ++changes; }) {
    membership.Start();
    election.Start();
  }

  SeededRandom random;
  std::unique_ptr<MemoryMetadataClient> client;
  Membership membership;
  int changes = 0;
  LeaderElection election;
};

class LeaderElectionTest : public ::testing::Test {
 protected:
  void MakeNodes(int count) {
    for (int i = 0; i < count; ++i) {
      const std::string id = "n" + std::to_string(i);
      nodes_.push_back(std::make_unique<Node>(&service_, &executor_, id, i + 1));
    }
    ASSERT_TRUE(executor_.RunUntil(
        [&] {
          for (const auto& node : nodes_) {
            if (!node->membership.in() || !node->election.known()) return false;
          }
          return true;
        },
        5s));
  }
  // The nodes that hold themselves for the leader.
  std::vector<int> Leading() const {
    std::vector<int> leading;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i] && nodes_[i]->election.leading()) leading.push_back(static_cast<int>(i));
    }
    return leading;
  }
  [[nodiscard]] bool AwaitOneLeader(Duration limit) {
    return executor_.RunUntil([&] { return Leading().size() == 1; }, limit);
  }

  ManualExecutor executor_;
  MemoryMetadata service_{&executor_, StoreId("store")};
  std::vector<std::unique_ptr<Node>> nodes_;
};

TEST_F(LeaderElectionTest, NobodyLeadsUnasked) {
  MakeNodes(2);
  executor_.RunFor(5s);
  EXPECT_TRUE(Leading().empty());
  EXPECT_EQ(nodes_[0]->election.leader(), std::nullopt);
  EXPECT_TRUE(nodes_[0]->election.known());
}

TEST_F(LeaderElectionTest, OneOfManyLeadsAndAllKnowIt) {
  MakeNodes(5);
  for (const auto& node : nodes_) node->election.SetCandidate(true);
  ASSERT_TRUE(AwaitOneLeader(2s));
  executor_.RunFor(10s);
  ASSERT_EQ(Leading().size(), 1u);
  const Node& leader = *nodes_[Leading()[0]];
  for (const auto& node : nodes_) {
    ASSERT_TRUE(node->election.leader().has_value());
    EXPECT_EQ(node->election.leader()->instance, leader.membership.self());
    EXPECT_EQ(node->election.leader()->term, leader.election.term());
    EXPECT_GT(node->changes, 0);
  }
  const Compare condition = *leader.election.TermCondition();
  EXPECT_EQ(condition.key, LeaderKey(JobName("job/\xff")));
  EXPECT_EQ(Term(condition.revision), leader.election.term());
  EXPECT_EQ(leader.election.leader()->control_address, leader.membership.record().control_address);
}

TEST_F(LeaderElectionTest, DeadLeaderIsFollowedByAHigherTerm) {
  MakeNodes(3);
  for (const auto& node : nodes_) node->election.SetCandidate(true);
  ASSERT_TRUE(AwaitOneLeader(2s));
  const int dead = Leading()[0];
  const Term term = nodes_[dead]->election.term();
  nodes_[dead].reset();
  ASSERT_TRUE(AwaitOneLeader(kTtl + 2s));
  EXPECT_GT(nodes_[Leading()[0]]->election.term(), term);
}

// At no instant two nodes hold themselves for the leader, also while one is cut off from the store.
TEST_F(LeaderElectionTest, CutOffLeaderStepsDownBeforeTheNextOneLeads) {
  MakeNodes(3);
  for (const auto& node : nodes_) node->election.SetCandidate(true);
  ASSERT_TRUE(AwaitOneLeader(2s));
  const int old = Leading()[0];
  nodes_[old]->client->SetUnavailable(true);
  bool two = false;
  ASSERT_TRUE(executor_.RunUntil(
      [&] {
        const std::vector<int> leading = Leading();
        two = two || leading.size() > 1;
        return leading.size() == 1 && leading[0] != old;
      },
      2 * kTtl));
  EXPECT_FALSE(two);
  nodes_[old]->client->SetUnavailable(false);
  executor_.RunFor(5s);
  ASSERT_EQ(Leading().size(), 1u);
  EXPECT_NE(Leading()[0], old);
}

TEST_F(LeaderElectionTest, GivingUpLetsAnotherLeadAtOnce) {
  MakeNodes(2);
  nodes_[0]->election.SetCandidate(true);
  ASSERT_TRUE(AwaitOneLeader(2s));
  nodes_[1]->election.SetCandidate(true);
  executor_.RunFor(1s);
  ASSERT_EQ(Leading(), std::vector<int>{0});
  nodes_[0]->election.SetCandidate(false);
  EXPECT_FALSE(nodes_[0]->election.leading());
  ASSERT_TRUE(executor_.RunUntil([&] { return nodes_[1]->election.leading(); }, 200ms));
}

TEST_F(LeaderElectionTest, LostAnswerToACampaignStillElects) {
  MakeNodes(1);
  nodes_[0]->client->LoseReplies(1);
  nodes_[0]->election.SetCandidate(true);
  ASSERT_TRUE(AwaitOneLeader(2s));
  nodes_[0]->client->LoseReplies(1);
  nodes_[0]->election.SetCandidate(false);
  ASSERT_TRUE(executor_.RunUntil([&] { return !nodes_[0]->election.leader().has_value(); }, 2s));
  nodes_[0]->client->LoseRequests(2);
  nodes_[0]->election.SetCandidate(true);
  ASSERT_TRUE(AwaitOneLeader(2s));
}

// An answer that left the store before the election must not depose whom the election made.
TEST_F(LeaderElectionTest, AnswerFromBeforeTheElectionIsThePast) {
  MakeNodes(1);
  Node& node = *nodes_[0];
  // The watch's poll ends with "nobody leads", which is still on its way when the node is elected.
  node.client->SetDelay(0s, 500ms);
  executor_.RunFor(MetadataWatchOptions().poll + 200ms);
  ASSERT_TRUE(node.membership.in());
  node.client->SetDelay(0s, 0s);
  node.election.SetCandidate(true);
  ASSERT_TRUE(executor_.RunUntil([&] { return node.election.leading(); }, 100ms));
  EXPECT_FALSE(executor_.RunUntil([&] { return !node.election.leading(); }, 5s));
}

TEST_F(LeaderElectionTest, DeletedLeaderKeyDeposesAtOnce) {
  MakeNodes(1);
  nodes_[0]->election.SetCandidate(true);
  ASSERT_TRUE(AwaitOneLeader(2s));
  const Term term = nodes_[0]->election.term();
  const auto admin = service_.NewClient();
  Transaction depose;
  depose.operations = {{Operation::Kind::kDelete, LeaderKey(JobName("job/\xff")), "", kNoLease}};
  admin->Commit(depose, executor_.Now() + 1s, [](const Result<TransactionResult>&) {});
  ASSERT_TRUE(executor_.RunUntil([&] { return nodes_[0]->election.term() > term; }, 2s));
}

// A node that lost its lease and came back is another start: its old leadership is gone with it.
TEST_F(LeaderElectionTest, ReturnedNodeLeadsOnlyByANewTerm) {
  MakeNodes(1);
  nodes_[0]->election.SetCandidate(true);
  ASSERT_TRUE(AwaitOneLeader(2s));
  const Term term = nodes_[0]->election.term();
  nodes_[0]->client->SetUnavailable(true);
  ASSERT_TRUE(executor_.RunUntil([&] { return Leading().empty(); }, kTtl + 1s));
  nodes_[0]->client->SetUnavailable(false);
  ASSERT_TRUE(AwaitOneLeader(5s));
  EXPECT_GT(nodes_[0]->election.term(), term);
  EXPECT_EQ(nodes_[0]->election.leader()->instance.incarnation, Incarnation(2));
}

}  // namespace
}  // namespace backstay::replication
