#include "recovery/restore_agent.h"

#include <gtest/gtest.h>

#include "replication/job_limits.h"
#include "tests/unit/replication/agent_cluster.h"

namespace backstay::recovery {
namespace {

namespace wire = replication::wire;
using replication::DecisionReply;
using replication::FinishRestoreReply;
using testing::AgentCluster;

constexpr uint64_t kChunks = 8;
constexpr uint64_t kBytes = kChunks * testing::kTestChunkBytes;

// Rank 0 has saved on node 0 with a replica on node 1; a newcomer on node 2 restores it. The test
// plays the leader.
class RestoreAgentTest : public ::testing::Test {
 protected:
  RestoreAgentTest() : cluster_(3) {
    cluster_.replicas = {cluster_.id(1)};
    cluster_.ReserveOn(1, ShardId("0"), kBytes, 1);
    cluster_.Announce();
    BACKSTAY_CHECK(cluster_.Register(&old_, 1, cluster_.Claim("0", 1, kBytes)).ok(), "");
    digest_ = *cluster_.Save(old_, Step(10), kChunks, 1);
    const bool held =
        cluster_.RunUntil([&] { return cluster_.Holds(1, cluster_.Name("0", Step(10))); });
    BACKSTAY_CHECK(held, "");
    newcomer_.node = 2;
    replication::ShardClaim claim = cluster_.Claim("0", 1, kBytes);
    claim.generation = Generation();
    BACKSTAY_CHECK(cluster_.Register(&newcomer_, 2, claim).ok(), "");
    AgentCluster::Node& node = cluster_.node(2);
    snapshots_ = std::make_unique<replication::SnapshotReader>(cluster_.executor(), *node.peers,
                                                               *node.table);
    agent_ = std::make_unique<RestoreAgent>(
        cluster_.executor(), random_, *node.agent, *node.fetches, *snapshots_,
        [&node](const JobName&) { return &node.agent->leader(); });
    node.agent->OnView([this](const replication::JobView& view) { agent_->OnView(view); });
    cluster_.HandleAtLeader(wire::Request::kReconfigure,
                            [this](const wire::Request&, replication::ReplyFunction reply) {
                              if (++reconfigure_count_ < 3)
                                return reply(Unavailable("no leader yet"));
                              wire::Reply answer;
                              *answer.mutable_reconfigure() = Decision(1);
                              reply(std::move(answer));
                            });
    cluster_.HandleAtLeader(wire::Request::kReportVerified,
                            [this](const wire::Request& request, replication::ReplyFunction reply) {
                              report_ = request.report_verified();
                              wire::Reply answer;
                              if (move_on_)
                                *answer.mutable_report_verified()->mutable_decision() = Decision(2);
                              reply(std::move(answer));
                            });
  }

  wire::Decision Decision(uint64_t attempt) const {
    wire::Decision decision;
    decision.set_uuid("attempt");
    decision.set_generation(2);
    decision.set_attempt(attempt);
    *decision.mutable_base() = replication::ToWire(SnapshotId{Generation(1), Step(10)});
    wire::ShardSource& source = *decision.add_shards();
    source.set_shard_id("0");
    source.set_digest(digest_);
    for (const int node : {0, 1}) {
      *source.add_holders() = replication::ToWire({cluster_.id(node), Incarnation(1)});
    }
    return decision;
  }
  RestoreAgent::Caller Caller() const { return {ShardId("0"), newcomer_.claim}; }
  Result<DecisionReply> Reconfigure(Duration timeout, const std::string& uuid = "attempt") {
    replication::ReconfigureRequest request;
    request.uuid = AttemptUuid(uuid);
    request.world_size = 1;
    request.shard = ShardId("0");
    request.timeout = timeout;
    std::optional<Result<DecisionReply>> answer;
    agent_->Reconfigure(Caller(), request, [&](Result<DecisionReply> reply) { answer = reply; });
    if (!cluster_.RunUntil([&] { return answer.has_value(); })) return DeadlineExceeded("test");
    return *answer;
  }
  Result<replication::FetchReply> Fetch() {
    replication::FetchRequest request;
    request.snapshot = {Generation(1), Step(10)};
    request.shard = ShardId("0");
    request.whole = true;
    request.for_restore = true;
    std::optional<Result<replication::FetchReply>> answer;
    agent_->Fetch(Caller(), request, [&](Result<replication::FetchReply> r) { answer = r; });
    if (!cluster_.RunUntil([&] { return answer.has_value(); })) return DeadlineExceeded("test");
    return *answer;
  }
  void Finish(bool ok, Duration timeout = std::chrono::seconds(10)) {
    finished_.reset();
    agent_->FinishRestore(Caller(), {AttemptUuid("attempt"), Attempt(1), ok, "", kBytes, timeout},
                          [this](Result<FinishRestoreReply> reply) { finished_ = reply; });
  }
  bool Finished() {
    return cluster_.RunUntil([&] { return finished_.has_value(); });
  }

  AgentCluster cluster_;
  SeededRandom random_{3};
  AgentCluster::Trainer old_;
  AgentCluster::Trainer newcomer_;
  std::string digest_;
  std::unique_ptr<replication::SnapshotReader> snapshots_;
  std::unique_ptr<RestoreAgent> agent_;
  int reconfigure_count_ = 0;
  bool move_on_ = false;
  wire::ReportVerified report_;
  std::optional<Result<FinishRestoreReply>> finished_;
};

// Attack: a token of the trainer's own that no message to the leader can carry.
TEST_F(RestoreAgentTest, ATokenThatIsNotPrintableIsRefusedAtOnce) {
  for (const std::string& bad : {std::string("u\xff"), std::string("u\0v", 3), std::string("\n"),
                                 std::string(replication::kUuidBytesMax + 1, 'u'), std::string()}) {
    EXPECT_EQ(Reconfigure(std::chrono::seconds(10), bad).status().code(),
              StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(reconfigure_count_, 0);
  const std::string longest(replication::kUuidBytesMax, '~');
  EXPECT_TRUE(Reconfigure(std::chrono::seconds(10), longest).ok());
}

TEST_F(RestoreAgentTest, NobodyResumesBeforeTheLeaderHasRecordedIt) {
  const auto decision = Reconfigure(std::chrono::seconds(10));
  ASSERT_TRUE(decision.ok()) << decision.status();
  EXPECT_EQ(decision->generation, Generation(2));
  EXPECT_EQ(reconfigure_count_, 3);  // Repeated until it was answered.
  const auto fetch = Fetch();
  ASSERT_TRUE(fetch.ok()) << fetch.status();
  ASSERT_TRUE(
      cluster_.RunUntil([&] { return cluster_.HasBytes(2, cluster_.Name("0", Step(10)), 1); }));
  Finish(true);
  cluster_.executor().RunFor(std::chrono::seconds(2));
  EXPECT_FALSE(finished_.has_value());
  ASSERT_EQ(report_.ranks_size(), 1);
  EXPECT_TRUE(report_.ranks(0).ok());
  EXPECT_EQ(report_.ranks(0).shard_id(), "0");
  EXPECT_EQ(report_.ranks(0).bytes_remote(), kBytes);
  EXPECT_GT(report_.ranks(0).sources_size(), 0);
  EXPECT_EQ(cluster_.Begin(newcomer_, Step(11)).status().code(), StatusCode::kStale);

  cluster_.state().generation = Generation(2);
  cluster_.state().body.set_attempt_uuid("attempt");
  cluster_.state().body.set_resumed_attempt(1);
  cluster_.Announce();
  ASSERT_TRUE(Finished());
  EXPECT_TRUE((*finished_)->resumed);
  EXPECT_TRUE(cluster_.Begin(newcomer_, Step(11)).ok());
}

TEST_F(RestoreAgentTest, ALaterAttemptIsHandedOn) {
  ASSERT_TRUE(Reconfigure(std::chrono::seconds(10)).ok());
  move_on_ = true;
  Finish(false);
  ASSERT_TRUE(Finished());
  ASSERT_TRUE(finished_->ok()) << finished_->status();
  EXPECT_FALSE((*finished_)->resumed);
  EXPECT_EQ((*finished_)->next.attempt, Attempt(2));
  // It failed, but not because its bytes are nowhere: that alone does not call for another base.
  EXPECT_FALSE(report_.ranks(0).unreadable());
}

TEST_F(RestoreAgentTest, BytesThatAreNowhereCallForAnotherBase) {
  ASSERT_TRUE(Reconfigure(std::chrono::seconds(10)).ok());
  for (const int node : {0, 1}) {
    cluster_.node(node).table->Find(cluster_.Name("0", Step(10)))->memory->data()[0] ^=
        std::byte{1};
  }
  const auto fetch = Fetch();
  ASSERT_TRUE(fetch.ok()) << fetch.status();
  const SlotControlView control(fetch->memory->control(), fetch->memory->geometry());
  ASSERT_TRUE(cluster_.RunUntil([&] { return control.State(0) == ChunkState::kChunkFailed; }));
  cluster_.executor().RunUntilIdle();
  Finish(false);
  EXPECT_TRUE(cluster_.RunUntil(
      [&] { return report_.ranks_size() == 1 && report_.ranks(0).unreadable(); }));
}

// Attack: the trainer sees on the control page that its bytes are nowhere, and closes the shard
// before the fetch's end was looked at. The leader then waited for its deadline.
TEST_F(RestoreAgentTest, BytesThatAreNowhereAreRememberedWhenTheShardIsClosedAtOnce) {
  ASSERT_TRUE(Reconfigure(std::chrono::seconds(10)).ok());
  for (const int node : {0, 1}) {
    cluster_.node(node).table->Find(cluster_.Name("0", Step(10)))->memory->data()[0] ^=
        std::byte{1};
  }
  const auto fetch = Fetch();
  ASSERT_TRUE(fetch.ok()) << fetch.status();
  const SlotControlView control(fetch->memory->control(), fetch->memory->geometry());
  ASSERT_TRUE(cluster_.RunUntil([&] { return control.State(0) == ChunkState::kChunkFailed; }));
  EXPECT_TRUE(cluster_.node(2).fetches->Close(fetch->fetch).ok());
  Finish(false);
  EXPECT_TRUE(cluster_.RunUntil(
      [&] { return report_.ranks_size() == 1 && report_.ranks(0).unreadable(); }));
}

// Attack: bytes are damaged on the way, and the holders are too busy to read their memory again.
// Both copies are good.
TEST_F(RestoreAgentTest, HoldersThatDoNotSayWhetherTheirCopyIsGoodAreNotTakenForBad) {
  ASSERT_TRUE(Reconfigure(std::chrono::seconds(10)).ok());
  int lost_count = 0;
  cluster_.lose = [&](const NodeId&, const wire::Request& request) {
    return request.has_verify_shard() && ++lost_count <= 60;
  };
  for (const int node : {0, 1}) cluster_.network().CorruptNextChunks(cluster_.id(node), 2);
  const auto fetch = Fetch();
  ASSERT_TRUE(fetch.ok()) << fetch.status();
  EXPECT_TRUE(
      cluster_.RunUntil([&] { return cluster_.HasBytes(2, cluster_.Name("0", Step(10)), 1); },
                        std::chrono::hours(1)));
  EXPECT_GT(lost_count, 60);
}

TEST_F(RestoreAgentTest, WaitsEndAtTheirDeadline) {
  reconfigure_count_ = -1'000'000;
  EXPECT_EQ(Reconfigure(std::chrono::seconds(1)).status().code(), StatusCode::kDeadline);
  reconfigure_count_ = 3;
  ASSERT_TRUE(Reconfigure(std::chrono::seconds(1)).ok());
  Finish(true, std::chrono::seconds(1));
  ASSERT_TRUE(Finished());
  EXPECT_EQ(finished_->status().code(), StatusCode::kDeadline);
}

TEST_F(RestoreAgentTest, AReplacedTrainerRestoresNothing) {
  const RestoreAgent::Caller caller = Caller();
  AgentCluster::Trainer another;
  another.node = 2;
  ASSERT_EQ(cluster_.Register(&another, 5, cluster_.Claim("0", 1, kBytes)), Status::Ok());
  ASSERT_NE(caller.claim, another.claim);
  EXPECT_EQ(Reconfigure(std::chrono::seconds(1)).status().code(), StatusCode::kStale);
  EXPECT_EQ(Fetch().status().code(), StatusCode::kStale);
}

// Attack: the others resumed with what this rank had verified before it lost its connection; what
// it reads now fails.
TEST_F(RestoreAgentTest, ARankWithoutItsStateDoesNotResumeWithTheOthers) {
  ASSERT_TRUE(Reconfigure(std::chrono::seconds(10)).ok());
  cluster_.state().generation = Generation(2);
  cluster_.state().body.set_attempt_uuid("attempt");
  cluster_.state().body.set_resumed_attempt(1);
  cluster_.Announce();
  cluster_.executor().RunFor(std::chrono::seconds(1));
  Finish(false);
  ASSERT_TRUE(Finished());
  EXPECT_EQ(finished_->status().code(), StatusCode::kStale);
  EXPECT_EQ(cluster_.Begin(newcomer_, Step(11)).status().code(), StatusCode::kStale);
}

// Attack: a dead trainer is still counted among the ranks that are present.
TEST_F(RestoreAgentTest, NobodyCallsOnForATrainerThatWasReplaced) {
  reconfigure_count_ = -1'000'000;  // The leader does not answer.
  replication::ReconfigureRequest request;
  request.uuid = AttemptUuid("attempt");
  request.world_size = 1;
  request.shard = ShardId("0");
  request.timeout = std::chrono::hours(1);
  std::optional<Result<DecisionReply>> answer;
  agent_->Reconfigure(Caller(), request, [&](Result<DecisionReply> reply) { answer = reply; });
  cluster_.executor().RunFor(std::chrono::seconds(5));
  EXPECT_FALSE(answer.has_value());
  AgentCluster::Trainer another;
  another.node = 2;
  ASSERT_EQ(cluster_.Register(&another, 5, cluster_.Claim("0", 1, kBytes)), Status::Ok());
  cluster_.executor().RunFor(std::chrono::seconds(1));
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status().code(), StatusCode::kStale);
  const int calls = reconfigure_count_;
  cluster_.executor().RunFor(std::chrono::seconds(30));
  EXPECT_EQ(reconfigure_count_, calls);
}

// Attack: a rank restores another number's shard and goes on saving under its own.
TEST_F(RestoreAgentTest, WhatIsRestoredIsWhatIsRegistered) {
  replication::ReconfigureRequest request;
  request.uuid = AttemptUuid("attempt");
  request.world_size = 1;
  request.shard = ShardId("1");
  request.timeout = std::chrono::seconds(10);
  std::optional<Result<DecisionReply>> answer;
  agent_->Reconfigure(Caller(), request, [&](Result<DecisionReply> reply) { answer = reply; });
  ASSERT_TRUE(cluster_.RunUntil([&] { return answer.has_value(); }));
  EXPECT_EQ(answer->status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(reconfigure_count_, 0);
}

}  // namespace
}  // namespace backstay::recovery
