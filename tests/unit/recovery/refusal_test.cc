// What a leader does with a job whose first registrations it refuses.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "replication/timeline.h"
#include "tests/unit/recovery/leader_fixture.h"

namespace backstay::testing {
namespace {

class RefusalTest : public ::testing::Test {
 protected:
  LeaderFixture cluster_;
};

// A job whose first registration is refused never was: its record does not stay.
TEST_F(RefusalTest, AJobThatNobodyWasLetIntoIsEnded) {
  cluster_.replicas = 2;
  cluster_.node("b").has_memory = false;  // "c" has promised when "b" refuses.
  cluster_.Elect();
  const auto first = cluster_.Admit(0, "a");
  const auto second = cluster_.Admit(1, "a");
  EXPECT_EQ(cluster_.Wait(first).status().code(), StatusCode::kNoSpace);
  EXPECT_EQ(cluster_.Wait(second).status().code(), StatusCode::kNoSpace);
  EXPECT_TRUE(cluster_.ReadRecord().ended());
  EXPECT_TRUE(cluster_.RunUntil([&] {
    const auto& state = cluster_.node("c").state;
    return state.has_value() && state->ended();  // Then it lets go of what it had promised.
  }));
  // Nothing is promised for those who were refused, whoever joins.
  cluster_.node("b").has_memory = true;
  cluster_.node("b").reserved.clear();
  cluster_.Kill("c");
  cluster_.Revive("c");
  cluster_.executor().RunFor(std::chrono::seconds(5));
  EXPECT_TRUE(cluster_.node("b").reserved.empty());
  // Another try is another job.
  cluster_.AdmitAll();
  EXPECT_FALSE(cluster_.ReadRecord().ended());
}

TEST_F(RefusalTest, AJobThatTheDomainsCannotSatisfyIsEndedAndMayTryAgain) {
  cluster_.replicas = 3;
  cluster_.Elect();
  EXPECT_EQ(cluster_.Wait(cluster_.Admit(0, "a")).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(cluster_.ReadRecord().ended());
  EXPECT_TRUE(cluster_.Happened(replication::timeline::kEnded));
  cluster_.replicas = 1;
  EXPECT_TRUE(cluster_.Wait(cluster_.Admit(0, "a")).ok());
  EXPECT_FALSE(cluster_.ReadRecord().ended());
}

// Attack: two users start jobs of one name while the first one's record is being written.
TEST_F(RefusalTest, AnotherTokenIsRefusedAlsoWhileTheRecordIsBeingWritten) {
  cluster_.Elect();
  const auto first = cluster_.Admit(0, "a");
  replication::wire::Request stranger = cluster_.MakeAdmission(1, 0);
  stranger.mutable_admit_shard()->set_token_digest(std::string(32, 's'));
  cluster_.node("b").trainers.push_back(stranger.admit_shard().trainer());
  const auto second = cluster_.Ask("b", std::move(stranger));
  EXPECT_EQ(cluster_.Wait(second).status().code(), StatusCode::kPermission);
  EXPECT_TRUE(cluster_.Wait(first).ok());
}

TEST_F(RefusalTest, ARefusalEndsNoJobThatSomebodyWasLetInto) {
  cluster_.Elect();
  ASSERT_TRUE(cluster_.Wait(cluster_.Admit(0, "a")).ok());
  cluster_.node("a").has_memory = false;
  cluster_.node("c").has_memory = false;
  EXPECT_EQ(cluster_.Wait(cluster_.Admit(1, "b")).status().code(), StatusCode::kNoSpace);
  cluster_.executor().RunFor(std::chrono::seconds(1));
  EXPECT_FALSE(cluster_.ReadRecord().ended());
}

}  // namespace
}  // namespace backstay::testing
