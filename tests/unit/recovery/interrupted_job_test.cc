// What a leader tells of a job that saves nothing until it has reconfigured.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/recovery/leader_fixture.h"

namespace backstay::testing {
namespace {

// A job of two ranks in generation 1 that has committed step 10.
class InterruptedJobTest : public ::testing::Test {
 protected:
  void SetUp() override {
    cluster_.Elect();
    cluster_.AdmitAll();
    ASSERT_EQ(cluster_.ReconfigureAll("u1", 0).generation(), 1u);
    cluster_.Protect(1, 10);
    ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.CommitIsRecorded(10); }));
  }

  LeaderFixture cluster_;
};

// Fenced is not fine: whoever asks is told since when, by whom, and who is gone.
TEST_F(InterruptedJobTest, AFenceIsShownUntilTheJobGoesOn) {
  cluster_.executor().RunFor(std::chrono::seconds(1));
  EXPECT_FALSE(cluster_.ReadStatus().has_fence());
  const int64_t seen = cluster_.executor().clock().UnixMillis() - 500;
  const auto fence = [&](uint64_t generation, int64_t unix_ms, uint32_t rank) {
    wire::Request request;
    request.mutable_report_fence()->set_generation(generation);
    request.mutable_report_fence()->set_rank(rank);
    request.mutable_report_fence()->set_reason("peer closed");
    request.mutable_report_fence()->set_seen_unix_ms(unix_ms);
    EXPECT_TRUE(cluster_.Wait(cluster_.Ask("a", request)).ok());
  };
  fence(7, seen, 0);  // Of no generation that there is.
  EXPECT_FALSE(cluster_.ReadStatus().has_fence());
  fence(1, seen, 0);
  fence(1, seen + 100, 1);
  cluster_.node("b").trainers.clear();
  cluster_.executor().RunFor(std::chrono::seconds(1));
  const wire::LeaderStatusReply fenced = cluster_.ReadStatus();
  ASSERT_TRUE(fenced.has_fence());
  EXPECT_EQ(fenced.fence().unix_ms(), seen) << "the first counts";
  EXPECT_EQ(fenced.fence().by(), "rank 0 on a: peer closed");
  EXPECT_THAT(fenced.fence().gone_ranks(), ::testing::ElementsAre(1));
  // The next generation is not fenced.
  cluster_.AdmitAll();
  cluster_.ReconfigureAll("u2", 1);
  EXPECT_FALSE(cluster_.ReadStatus().has_fence());
  EXPECT_TRUE(cluster_.ReadStatus().waiting_uuid().empty());
}

// Closed, and all who called have gone: nobody is present, and the time counts.
TEST_F(InterruptedJobTest, AClosedGenerationThatNobodyWaitsForMissesAllRanks) {
  EXPECT_EQ(cluster_.ReadStatus().waiting_since_unix_ms(), 0);
  for (const char* name : {"a", "b", "c"}) cluster_.node(name).answers = false;
  const auto first = cluster_.Call("u2", 0, "a", 1, /*timeout_ms=*/2000);
  const auto second = cluster_.Call("u2", 1, "b", 1, /*timeout_ms=*/2000);
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.ReadRecord().closing_uuid() == "u2"; }));
  const int64_t since = cluster_.ReadStatus().waiting_since_unix_ms();
  EXPECT_GT(since, 0);
  EXPECT_FALSE(cluster_.Wait(first).ok());
  EXPECT_FALSE(cluster_.Wait(second).ok());
  cluster_.executor().RunFor(std::chrono::seconds(5));
  const wire::LeaderStatusReply status = cluster_.ReadStatus();
  EXPECT_EQ(status.waiting_uuid(), "u2");
  EXPECT_EQ(status.waiting_since_unix_ms(), since);
  EXPECT_EQ(status.missing_ranks_size(), 2);
}

}  // namespace
}  // namespace backstay::testing
