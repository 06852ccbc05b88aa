#include "replication/membership.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

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

// A node's membership and its own way to the store.
struct Node {
  Node(MemoryMetadata* service, ManualExecutor* executor, const std::string& id, uint64_t seed = 1)
      : random(seed),
        client(service->NewClient()),
        membership(client.get(), executor, &random,
                   {.instance = {NodeId(id), {}},
                    .control_address = id + ":1",
                    .data_address = id + ":2",
                    .domains = {"rack-1", "host-" + id},
                    .boot_id = "boot-" + id,
                    .memory_budget_bytes = 1 << 20,
                    .hosts_simulated = true,
                    .version = "test"},
                   {.lease_ttl = kTtl}) {
    membership.OnChange([this] { ++changes; });
    membership.Start();
  }

  SeededRandom random;
  std::unique_ptr<MemoryMetadataClient> client;
  Membership membership;
  int changes = 0;
};

class MembershipTest : public ::testing::Test {
 protected:
  std::unique_ptr<Node> MakeNode(const std::string& id, uint64_t seed = 1) {
    return std::make_unique<Node>(&service_, &executor_, id, seed);
  }
  [[nodiscard]] bool Within(Duration limit, const std::function<bool()>& predicate) {
    return executor_.RunUntil(predicate, limit);
  }

  ManualExecutor executor_;
  MemoryMetadata service_{&executor_, StoreId("store")};
};

TEST_F(MembershipTest, NodesSeeEachOther) {
  const auto a = MakeNode("a");
  EXPECT_EQ(a->membership.state(), MembershipState::kJoining);
  EXPECT_EQ(a->membership.self().incarnation, Incarnation(0));
  EXPECT_EQ(a->membership.SelfCondition(), std::nullopt);
  EXPECT_EQ(a->membership.view().revision, 0u);
  const auto b = MakeNode("b/\xff", 2);
  ASSERT_TRUE(Within(1s, [&] {
    return a->membership.view().members.size() == 2 && b->membership.view().members.size() == 2 &&
           a->membership.in() && b->membership.in();
  }));
  const Member* member = a->membership.view().Find(NodeId("b/\xff"));
  ASSERT_NE(member, nullptr);
  EXPECT_EQ(member->record, b->membership.record());
  EXPECT_EQ(member->record.domains.front(), "rack-1");
  EXPECT_EQ(a->membership.self(), (NodeInstance{NodeId("a"), Incarnation(1)}));
  EXPECT_TRUE(a->membership.view().current);
  EXPECT_GT(a->changes, 0);
  // Each names the other's start as that one does itself.
  EXPECT_EQ(a->membership.view().AliveCondition(b->membership.self()),
            b->membership.SelfCondition());
}

TEST_F(MembershipTest, RenewalsKeepANodeInAndOthersUndisturbed) {
  const auto a = MakeNode("a");
  ASSERT_TRUE(Within(1s, [&] { return a->membership.in(); }));
  executor_.RunFor(1s);
  const int changes = a->changes;
  executor_.RunFor(20 * kTtl);
  EXPECT_TRUE(a->membership.in());
  EXPECT_EQ(a->membership.self().incarnation, Incarnation(1));
  EXPECT_TRUE(a->membership.view().current);
  EXPECT_EQ(a->changes, changes);
}

TEST_F(MembershipTest, DeadNodeVanishesAfterItsLease) {
  const auto a = MakeNode("a");
  auto b = MakeNode("b", 2);
  ASSERT_TRUE(Within(1s, [&] { return a->membership.view().members.size() == 2; }));
  const NodeInstance dead = b->membership.self();
  b.reset();
  ASSERT_TRUE(Within(kTtl + 1s, [&] { return a->membership.view().members.size() == 1; }));
  EXPECT_EQ(a->membership.view().AliveCondition(dead), std::nullopt);
}

TEST_F(MembershipTest, LeavingNeedsNoWait) {
  const auto a = MakeNode("a");
  const auto b = MakeNode("b", 2);
  ASSERT_TRUE(Within(1s, [&] { return a->membership.view().members.size() == 2; }));
  std::optional<Status> left;
  b->membership.Leave(executor_.Now() + 1s, [&](Status status) { left = std::move(status); });
  EXPECT_EQ(b->membership.state(), MembershipState::kLeft);
  EXPECT_FALSE(left.has_value());
  ASSERT_TRUE(Within(100ms, [&] { return a->membership.view().members.size() == 1; }));
  EXPECT_EQ(left, Status::Ok());
  executor_.RunFor(3 * kTtl);
  EXPECT_EQ(b->membership.state(), MembershipState::kLeft);
}

// Attack:  two machines with one node id. The second waits and says why; it gets in when the first
//          one's lease has ended, with an incarnation of its own.
TEST_F(MembershipTest, SecondClaimToANodeIdWaitsForTheFirstToEnd) {
  auto first = MakeNode("a");
  ASSERT_TRUE(Within(1s, [&] { return first->membership.in(); }));
  const auto second = MakeNode("a", 2);
  executor_.RunFor(3 * kTtl);
  EXPECT_TRUE(first->membership.in());
  EXPECT_EQ(second->membership.state(), MembershipState::kJoining);
  EXPECT_EQ(second->membership.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(second->membership.status().message().find("claimed by start 1 at a:1"),
            std::string::npos);
  first.reset();
  ASSERT_TRUE(Within(kTtl + 2s, [&] { return second->membership.in(); }));
  EXPECT_EQ(second->membership.self().incarnation, Incarnation(2));
  EXPECT_TRUE(second->membership.status().ok());
}

// The node must count itself out no later than the store does, whatever the answers' delay.
TEST_F(MembershipTest, CutOffNodeIsOutBeforeTheStoreLetsItGo) {
  const auto a = MakeNode("a");
  const auto watcher = MakeNode("b", 2);
  a->client->SetDelay(200ms, 300ms);
  ASSERT_TRUE(Within(
      5s, [&] { return a->membership.in() && watcher->membership.view().members.size() == 2; }));
  executor_.RunFor(2 * kTtl);
  ASSERT_TRUE(a->membership.in());
  // Cut off just when a renewal has been confirmed: its delay must not count for the node.
  const Instant end = a->membership.lease_end();
  ASSERT_TRUE(Within(kTtl, [&] { return a->membership.lease_end() != end; }));
  a->client->SetUnavailable(true);
  ASSERT_TRUE(Within(kTtl + 1s, [&] { return !a->membership.in(); }));
  EXPECT_EQ(a->membership.state(), MembershipState::kOut);
  EXPECT_EQ(a->membership.lease(), kNoLease);
  EXPECT_EQ(service_.disk().leases.size(), 2u);  // The store still counts it in.
  ASSERT_TRUE(Within(kTtl, [&] { return watcher->membership.view().members.size() == 1; }));
  EXPECT_FALSE(a->membership.view().current);

  a->client->SetUnavailable(false);
  ASSERT_TRUE(Within(5s, [&] { return a->membership.in(); }));
  EXPECT_EQ(a->membership.self().incarnation, Incarnation(2));
}

TEST_F(MembershipTest, NodeThatIsOutEndsItsOldLeaseItself) {
  const auto a = MakeNode("a");
  ASSERT_TRUE(Within(1s, [&] { return a->membership.in(); }));
  // Renewals arrive and are lost on the way back, so the store's lease outlives the node's.
  a->client->SetDelay(0s, kTtl);
  ASSERT_TRUE(Within(2 * kTtl, [&] { return a->membership.state() == MembershipState::kOut; }));
  a->client->SetDelay(0s, 0s);
  ASSERT_TRUE(Within(kTtl, [&] { return a->membership.in(); }));
  EXPECT_EQ(a->membership.self().incarnation, Incarnation(2));
  executor_.RunFor(2 * kTtl);
  EXPECT_EQ(service_.disk().leases.size(), 1u);
}

// "I could not find out" is not "there is none".
TEST_F(MembershipTest, SilentStoreMakesTheViewOldNotEmpty) {
  const auto a = MakeNode("a");
  const auto b = MakeNode("b", 2);
  ASSERT_TRUE(Within(1s, [&] { return a->membership.view().members.size() == 2; }));
  const int changes = a->changes;
  service_.Stop();
  ASSERT_TRUE(Within(kTtl + 1s, [&] { return !a->membership.view().current; }));
  EXPECT_EQ(a->membership.view().members.size(), 2u);
  executor_.RunUntilIdle();
  EXPECT_GT(a->changes, changes);
  service_.Start();
  ASSERT_TRUE(Within(3s, [&] {
    return a->membership.view().current && a->membership.in() && b->membership.in();
  }));
}

TEST_F(MembershipTest, ShortRestartOfTheStoreCostsNobodyItsPlace) {
  const auto a = MakeNode("a");
  const auto b = MakeNode("b", 2);
  ASSERT_TRUE(Within(1s, [&] { return a->membership.in() && b->membership.in(); }));
  service_.Stop();
  executor_.RunFor(kTtl / 2);
  service_.Start();
  executor_.RunFor(3 * kTtl);
  EXPECT_EQ(a->membership.self().incarnation, Incarnation(1));
  EXPECT_EQ(b->membership.self().incarnation, Incarnation(1));
  EXPECT_EQ(a->membership.view().members.size(), 2u);
}

TEST_F(MembershipTest, LostAnswersNeverGiveAnIncarnationTwice) {
  for (int lost = 1; lost <= 4; ++lost) {
    const std::string id = "n" + std::to_string(lost);
    auto replies = MakeNode(id);
    replies->client->LoseReplies(lost);
    ASSERT_TRUE(Within(10s, [&] { return replies->membership.in(); })) << lost;
    EXPECT_EQ(replies->membership.self().incarnation, Incarnation(1));
    const Member* member = nullptr;
    ASSERT_TRUE(Within(1s, [&] {
      member = replies->membership.view().Find(replies->membership.self());
      return member != nullptr;
    }));
    EXPECT_EQ(replies->membership.SelfCondition()->revision, member->create_revision);
    auto requests = MakeNode("r" + id, 2);
    requests->client->LoseRequests(lost);
    ASSERT_TRUE(Within(10s, [&] { return requests->membership.in(); })) << lost;
    EXPECT_EQ(requests->membership.self().incarnation, Incarnation(1));
  }
}

TEST_F(MembershipTest, NodeWhoseKeyIsRemovedIsOutAtOnceAndComesBackAnew) {
  const auto a = MakeNode("a");
  ASSERT_TRUE(Within(1s, [&] { return a->membership.in(); }));
  const auto admin = service_.NewClient();
  Transaction remove;
  remove.operations = {{Operation::Kind::kDelete, NodeKey(NodeId("a")), "", kNoLease}};
  admin->Commit(remove, executor_.Now() + 1s, [](const Result<TransactionResult>&) {});
  ASSERT_TRUE(Within(100ms, [&] { return !a->membership.in(); }));
  ASSERT_TRUE(Within(2s, [&] { return a->membership.in(); }));
  EXPECT_EQ(a->membership.self().incarnation, Incarnation(2));
}

TEST_F(MembershipTest, AnotherStoreInTheOldOnesPlaceAdmitsNobody) {
  const auto a = MakeNode("a");
  ASSERT_TRUE(Within(1s, [&] { return a->membership.in(); }));
  service_.Replace(StoreId("empty"));
  ASSERT_TRUE(Within(kTtl, [&] { return !a->membership.in(); }));
  executor_.RunFor(5 * kTtl);
  EXPECT_FALSE(a->membership.in());
  EXPECT_EQ(a->membership.status().code(), StatusCode::kStale);
  EXPECT_FALSE(a->membership.view().current);
  EXPECT_TRUE(service_.disk().pairs.empty());
}

TEST_F(MembershipTest, UnreadableRecordsAreNoMembersAndHarmNobody) {
  const auto client = service_.NewClient();
  Transaction damage;
  damage.operations = {{Operation::Kind::kPut, NodeKey(NodeId("x")), "\xff\xff\xff", kNoLease},
                       {Operation::Kind::kPut, "nodes/%zz", "", kNoLease}};
  client->Commit(damage, executor_.Now() + 1s, [](const Result<TransactionResult>&) {});
  const auto a = MakeNode("a");
  ASSERT_TRUE(Within(1s, [&] { return a->membership.view().members.size() == 1; }));
  EXPECT_EQ(a->membership.view().Find(NodeId("x")), nullptr);
}

}  // namespace
}  // namespace backstay::replication
