#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "replication/trainer_port.h"
#include "tests/unit/recovery/leader_fixture.h"

namespace backstay::testing {
namespace {

using ::testing::HasSubstr;

// A job that starts from another job's snapshot.
class ForkTest : public ::testing::Test {
 protected:
  LeaderFixture cluster_;
};

// Both ranks ask to start job "job" from job "parent"; the answer to the second.
Result<wire::Reply> Fork(LeaderFixture& cluster, const std::string& uuid, bool drop_state) {
  LeaderFixture::Answer answer;
  for (const uint32_t rank : {0u, 1u}) {
    const std::string node = rank == 0 ? "a" : "b";
    wire::Request request = cluster.MakeCall(uuid, rank, node, 0, /*timeout_ms=*/5000);
    wire::Reconfigure* call = request.mutable_reconfigure();
    call->set_mode(static_cast<uint32_t>(replication::ResumeMode::kFork));
    call->set_fork_job("parent");
    call->set_drop_state(drop_state);
    answer = cluster.Ask(node, request);
  }
  return cluster.Wait(answer);
}

TEST_F(ForkTest, AForkOfNoJobIsRefused) {
  cluster_.Elect();
  cluster_.AdmitAll();
  const Result<wire::Reply> reply = Fork(cluster_, "u1", false);
  EXPECT_EQ(reply.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(reply.status().message(), HasSubstr("parent"));
}

// The parent is a copy of the job itself, as it was after its first commit.
TEST_F(ForkTest, AForkStartsFromTheOtherJobsCommit) {
  cluster_.Elect();
  cluster_.AdmitAll();
  cluster_.ReconfigureAll("u1", 0);
  cluster_.Protect(1, 10);
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.CommitIsRecorded(10); }));
  wire::JobRecord parent = cluster_.ReadRecord();
  parent.set_job("parent");
  cluster_.WriteRecord(parent);
  cluster_.HoldAll(1, 10);
  for (const char* name : {"a", "b"}) {
    for (wire::HeldShard& held : cluster_.node(name).held) held.mutable_shard()->set_job("parent");
  }
  EXPECT_EQ(Fork(cluster_, "u2", false).status().code(), StatusCode::kInvalidArgument)
      << "it has state";
  const Result<wire::Reply> reply = Fork(cluster_, "u3", true);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->reconfigure().base_job(), "parent");
  EXPECT_EQ(reply->reconfigure().base().step(), 10u);
  EXPECT_EQ(reply->reconfigure().generation(), 2u);
}

TEST_F(ForkTest, AForkNeedsTheTokenOfBothJobs) {
  cluster_.Elect();
  cluster_.AdmitAll();
  wire::JobRecord parent = cluster_.ReadRecord();
  parent.set_job("parent");
  parent.set_token_digest(std::string(32, 'x'));
  cluster_.WriteRecord(parent);
  EXPECT_EQ(Fork(cluster_, "u1", false).status().code(), StatusCode::kPermission);
}

}  // namespace
}  // namespace backstay::testing
