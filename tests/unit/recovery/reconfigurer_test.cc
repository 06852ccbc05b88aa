#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "replication/timeline.h"
#include "tests/unit/recovery/reconfigurer_fixture.h"

namespace backstay::testing {
namespace {

namespace timeline = replication::timeline;
using ::testing::HasSubstr;

TEST_F(ReconfigurerTest, ANewJobStartsFresh) {
  cluster_.Elect();
  cluster_.AdmitAll();
  const wire::Decision decision = cluster_.ReconfigureAll("u1", 0);
  EXPECT_TRUE(decision.fresh());
  EXPECT_EQ(decision.attempt(), 1u);
  EXPECT_TRUE(cluster_.RunUntil([&] { return cluster_.node("a").state->resumed_attempt() == 1; }));
  EXPECT_TRUE(cluster_.Happened(timeline::kResumed));
}

TEST_F(ReconfigurerTest, AllRanksGetOneDecisionWithWhereTheBytesAre) {
  StartJob();
  Commit(10);
  const auto first = cluster_.Call("u2", 0, "a", 1);
  const auto second = cluster_.Call("u2", 1, "b", 1);
  const Result<wire::Reply> one = cluster_.Wait(first);
  const Result<wire::Reply> two = cluster_.Wait(second);
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(one->reconfigure().SerializeAsString(), two->reconfigure().SerializeAsString());
  const wire::Decision& decision = one->reconfigure();
  EXPECT_EQ(decision.generation(), 2u);
  EXPECT_EQ(decision.base().step(), 10u);
  EXPECT_TRUE(decision.base_committed());
  ASSERT_EQ(decision.shards_size(), 2);
  EXPECT_EQ(decision.shards(1).holders_size(), 2);
  EXPECT_FALSE(decision.resumed());
}

TEST_F(ReconfigurerTest, MissingRanksAreNamedAtTheDeadlineAndNothingHasChanged) {
  StartJob();
  Commit(10);
  const std::string before = cluster_.ReadRecord().SerializeAsString();
  const auto call = cluster_.Call("u2", 0, "a", 1, /*timeout_ms=*/3000);
  EXPECT_EQ(cluster_.ReadStatus().missing_ranks(0), 1u);
  const Result<wire::Reply> reply = cluster_.Wait(call);
  EXPECT_EQ(CodeOf(reply), StatusCode::kDeadline);
  EXPECT_THAT(reply.status().message(), HasSubstr("rank 1 has not called"));
  EXPECT_EQ(cluster_.ReadRecord().SerializeAsString(), before);
}

TEST_F(ReconfigurerTest, TheGenerationClosesBeforeTheInventoryAndHoldersPromise) {
  StartJob();
  Commit(10);
  cluster_.node("c").answers = false;
  cluster_.node("b").answers = false;
  cluster_.Call("u2", 0, "a", 1);
  cluster_.Call("u2", 1, "b", 1);
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.ReadRecord().closing_uuid() == "u2"; }));
  // No commit can succeed from here on.
  cluster_.Protect(1, 20);
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.node("a").closing_uuids.contains("u2"); }));
  EXPECT_FALSE(cluster_.CommitIsRecorded(20));
  cluster_.node("b").answers = true;
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.ReadRecord().generation() == 2; }));
  EXPECT_FALSE(cluster_.CommitIsRecorded(20));
}

// ---- Which snapshot ----

TEST_F(ReconfigurerTest, AfterANodeIsLostTheOthersCopiesServe) {
  StartJob();
  Commit(10);
  cluster_.Kill("b");
  const auto admitted = cluster_.Admit(1, "c", 900);
  ASSERT_TRUE(cluster_.Wait(admitted).ok());
  const auto first = cluster_.Call("u2", 0, "a", 1);
  const auto second = cluster_.Call("u2", 1, "c", 0, 20'000, 900);
  const Result<wire::Reply> reply = cluster_.Wait(first);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(cluster_.Wait(second).ok());
  EXPECT_EQ(reply->reconfigure().base().step(), 10u);
  EXPECT_GE(reply->reconfigure().shards(1).holders_size(), 1);
  for (const wire::Instance& holder : reply->reconfigure().shards(1).holders()) {
    EXPECT_NE(holder.node_id(), "b");
  }
}

// The floor is covered: nobody waits for the lease of a node that does not answer.
TEST_F(ReconfigurerTest, ACoveredFloorDoesNotWaitForASilentNode) {
  StartJob();
  Commit(10);
  cluster_.node("c").answers = false;
  const Instant start = cluster_.executor().Now();
  const auto first = cluster_.Call("u2", 0, "a", 1);
  cluster_.Call("u2", 1, "b", 1);
  ASSERT_TRUE(cluster_.Wait(first).ok());
  EXPECT_LT(ToMillis(cluster_.executor().Now() - start), 500);
}

// Unknown is not gone: with the floor's only holder silent but alive, everybody waits.
TEST_F(ReconfigurerTest, WithTheFloorUnknownItIsUnavailableAndNothingOlderIsTaken) {
  StartJob();
  Commit(10);
  Commit(20);
  std::erase_if(cluster_.node("a").held,
                [](const wire::HeldShard& h) { return h.shard().snapshot().step() == 20; });
  cluster_.node("b").answers = false;
  const auto first = cluster_.Call("u2", 0, "a", 1, 2000);
  cluster_.Call("u2", 1, "b", 1, 2000);
  const Result<wire::Reply> reply = cluster_.Wait(first);
  EXPECT_EQ(CodeOf(reply), StatusCode::kUnavailable);
  EXPECT_THAT(reply.status().message(), HasSubstr("not answering: b"));
  EXPECT_EQ(cluster_.ReadRecord().generation(), 1u);
  // It may be asked again, and goes on where it was.
  cluster_.node("b").answers = true;
  const auto again = cluster_.Call("u2", 0, "a", 1);
  cluster_.Call("u2", 1, "b", 1);
  const Result<wire::Reply> answer = cluster_.Wait(again);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->reconfigure().base().step(), 20u);
}

TEST_F(ReconfigurerTest, BelowTheFloorOnceItIsGoneEverywhere) {
  StartJob();
  Commit(10);
  Commit(20);
  for (const char* name : {"a", "b"}) {
    std::erase_if(cluster_.node(name).held, [](const wire::HeldShard& h) {
      return h.shard().snapshot().step() == 20 && h.rank() == 1;
    });
  }
  const wire::Decision decision = cluster_.ReconfigureAll("u2", 1);
  EXPECT_EQ(decision.base().step(), 10u);
  EXPECT_THAT(decision.why(), HasSubstr("step 20 of generation 1, lacks the shard of rank 1"));
  // Off the lineage now, and kept until the first commit of the new generation.
  EXPECT_TRUE(cluster_.CommitIsRecorded(20));
  EXPECT_THAT(cluster_.ReadStatus().rejected(0), HasSubstr("step 20"));
  cluster_.Protect(2, 15);
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.CommitIsRecorded(15); }));
  EXPECT_FALSE(cluster_.CommitIsRecorded(20));
}

TEST_F(ReconfigurerTest, AWholeUncommittedSnapshotIsTakenAndCommittedByRepair) {
  StartJob();
  Commit(10);
  // Step 20 was sealed by both ranks and has no replicas.
  cluster_.Hold("a", 1, 20, 0);
  cluster_.Hold("b", 1, 20, 1);
  const auto first = cluster_.Call("u2", 0, "a", 1);
  const auto second = cluster_.Call("u2", 1, "b", 1);
  const Result<wire::Reply> reply = cluster_.Wait(first);
  ASSERT_TRUE(reply.ok()) << reply.status();
  ASSERT_TRUE(cluster_.Wait(second).ok());
  EXPECT_EQ(reply->reconfigure().base().step(), 20u);
  EXPECT_FALSE(reply->reconfigure().base_committed());
  EXPECT_TRUE(cluster_.CommitIsRecorded(10));  // The floor is kept until then.
  cluster_.Verify(reply->reconfigure(), 0, "a");
  cluster_.Verify(reply->reconfigure(), 1, "b");
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.CommitIsRecorded(20); }));
  EXPECT_EQ(cluster_.ReadRecord().committed(1).generation(), 1u);
  EXPECT_TRUE(cluster_.ReadRecord().decision().base_committed());
  EXPECT_FALSE(cluster_.ReadRecord().first_commit_done());
}

// A save that its trainer was told has failed was found whole on other nodes all the same.
TEST_F(ReconfigurerTest, ABaseIsCommittedWhateverWasSaidOfItsSaves) {
  StartJob();
  Commit(10);
  cluster_.Hold("a", 1, 20, 0);
  cluster_.Hold("b", 1, 20, 1);
  const auto first = cluster_.Call("u2", 0, "a", 1);
  cluster_.Call("u2", 1, "b", 1);
  const Result<wire::Reply> reply = cluster_.Wait(first);
  ASSERT_TRUE(reply.ok()) << reply.status();
  ASSERT_EQ(reply->reconfigure().base().step(), 20u);
  wire::ShardReport failed = cluster_.MakeReport(1, 20, 0);
  failed.set_failed(true);
  cluster_.Report("a", failed);
  cluster_.Verify(reply->reconfigure(), 0, "a");
  cluster_.Verify(reply->reconfigure(), 1, "b");
  EXPECT_TRUE(cluster_.RunUntil([&] { return cluster_.CommitIsRecorded(20); }));
}

TEST_F(ReconfigurerTest, NothingWaitsForABaseThatWasLostBeforeItsCommit) {
  StartJob();
  Commit(10);
  cluster_.Hold("a", 1, 20, 0);
  cluster_.Hold("b", 1, 20, 1);
  const auto first = cluster_.Call("u2", 0, "a", 1);
  cluster_.Call("u2", 1, "b", 1);
  const Result<wire::Reply> reply = cluster_.Wait(first);
  ASSERT_TRUE(reply.ok()) << reply.status();
  ASSERT_EQ(reply->reconfigure().base().step(), 20u);
  const auto names_base = [&] { return cluster_.node("c").state->base().step() == 20; };
  ASSERT_TRUE(cluster_.RunUntil(names_base));
  EXPECT_EQ(cluster_.node("c").state->pinned_size(), 1);
  // Both ranks have read it; then the only copy of rank 1's shard is found bad.
  std::erase_if(cluster_.node("b").held,
                [](const wire::HeldShard& held) { return held.shard().snapshot().step() == 20; });
  cluster_.Verify(reply->reconfigure(), 0, "a");
  cluster_.Verify(reply->reconfigure(), 1, "b");
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.ReadRecord().decision().resumed(); }));
  EXPECT_TRUE(cluster_.RunUntil([&] { return cluster_.node("c").state->pinned_size() == 0; }));
  EXPECT_TRUE(names_base());
  EXPECT_FALSE(cluster_.CommitIsRecorded(20));
  cluster_.Protect(2, 30);
  EXPECT_TRUE(cluster_.RunUntil([&] { return cluster_.CommitIsRecorded(30); }));
}

// ---- The leader dies ----

// Attack: the leader dies between the transaction and half of the answers.
TEST_F(ReconfigurerTest, ANewLeaderGivesTheRecordedDecision) {
  StartJob();
  Commit(10);
  const auto first = cluster_.Call("u2", 0, "a", 1);
  cluster_.Call("u2", 1, "b", 1);
  const Result<wire::Reply> before = cluster_.Wait(first);
  ASSERT_TRUE(before.ok());
  cluster_.HoldAll(1, 20);  // Found only now: changes nothing.
  cluster_.Elect();
  cluster_.AdmitAll();
  const Result<wire::Reply> after = cluster_.Wait(cluster_.Call("u2", 1, "b", 1));
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->reconfigure().SerializeAsString(), before->reconfigure().SerializeAsString());
}

TEST_F(ReconfigurerTest, ANewLeaderThatFindsClosingGoesOnWithTheInventory) {
  StartJob();
  Commit(10);
  for (const char* name : {"a", "b", "c"}) cluster_.node(name).answers = false;
  cluster_.Call("u2", 0, "a", 1);
  cluster_.Call("u2", 1, "b", 1);
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.ReadRecord().closing_uuid() == "u2"; }));
  for (const char* name : {"a", "b", "c"}) cluster_.node(name).answers = true;
  cluster_.Elect();
  const auto first = cluster_.Call("u2", 0, "a", 1);
  // It waits for the other rank's call, and says so.
  const wire::LeaderStatusReply status = cluster_.ReadStatus();
  EXPECT_EQ(status.waiting_uuid(), "u2");
  EXPECT_EQ(status.missing_ranks_size(), 1);
  cluster_.Call("u2", 1, "b", 1);
  const Result<wire::Reply> reply = cluster_.Wait(first);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->reconfigure().base().step(), 10u);
  EXPECT_EQ(cluster_.ReadRecord().generation(), 2u);
}

TEST_F(ReconfigurerTest, ADeposedLeaderDecidesNothing) {
  StartJob();
  Commit(10);
  cluster_.DeposeSilently();
  cluster_.Call("u2", 0, "a", 1);
  cluster_.Call("u2", 1, "b", 1);
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.deposed().has_value(); }));
  EXPECT_EQ(cluster_.ReadRecord().generation(), 1u);
  EXPECT_EQ(cluster_.ReadRecord().closing_uuid(), "");
}

TEST_F(ReconfigurerTest, LostAnswersOfTheStoreChangeNothing) {
  StartJob();
  Commit(10);
  cluster_.metadata().LoseReplies(3);
  EXPECT_EQ(cluster_.ReconfigureAll("u2", 1).generation(), 2u);
  EXPECT_FALSE(cluster_.deposed().has_value());
}

// ---- Restoring ----

TEST_F(ReconfigurerTest, NobodyResumesBeforeAllHaveVerified) {
  StartJob();
  Commit(10);
  const auto first = cluster_.Call("u2", 0, "a", 1);
  cluster_.Call("u2", 1, "b", 1);
  const wire::Decision decision = cluster_.Wait(first)->reconfigure();
  const auto one = cluster_.Ask("a", RestoreReport(decision, 0, true, false));
  const Result<wire::Reply> early = cluster_.Wait(one);
  ASSERT_TRUE(early.ok());
  EXPECT_FALSE(early->report_verified().resumed());
  EXPECT_FALSE(cluster_.ReadRecord().decision().resumed());
  const auto two = cluster_.Ask("b", RestoreReport(decision, 1, true, false));
  const Result<wire::Reply> late = cluster_.Wait(two);
  ASSERT_TRUE(late.ok());
  EXPECT_TRUE(late->report_verified().resumed());
  EXPECT_TRUE(cluster_.ReadRecord().decision().resumed());
}

// Attack: rank 0 is already in an allreduce at step 20 when rank 1 can only get step 10.
TEST_F(ReconfigurerTest, AnUnreadableShardMovesAllRanksToTheOlderSnapshot) {
  StartJob();
  Commit(10);
  Commit(20);
  const auto first = cluster_.Call("u2", 0, "a", 1);
  cluster_.Call("u2", 1, "b", 1);
  const wire::Decision decision = cluster_.Wait(first)->reconfigure();
  ASSERT_EQ(decision.base().step(), 20u);
  const auto good = cluster_.Ask("a", RestoreReport(decision, 0, true, false));
  const auto bad = cluster_.Ask("b", RestoreReport(decision, 1, false, true));
  for (const auto& answer : {good, bad}) {
    const Result<wire::Reply> reply = cluster_.Wait(answer);
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_FALSE(reply->report_verified().resumed());
    const wire::Decision& next = reply->report_verified().decision();
    EXPECT_EQ(next.attempt(), 2u);
    EXPECT_EQ(next.generation(), 2u);
    EXPECT_EQ(next.base().step(), 10u);
    EXPECT_EQ(next.shards_size(), 2);
  }
  // A late word of attempt 1 does not count for attempt 2.
  cluster_.Ask("a", RestoreReport(decision, 0, true, false));
  cluster_.Ask("b", RestoreReport(decision, 1, true, false));
  cluster_.executor().RunFor(std::chrono::seconds(2));
  EXPECT_FALSE(cluster_.ReadRecord().decision().resumed());
  wire::Decision next = decision;
  next.set_attempt(2);
  cluster_.Verify(next, 0, "a");
  cluster_.Verify(next, 1, "b");
  EXPECT_TRUE(cluster_.RunUntil([&] { return cluster_.ReadRecord().decision().resumed(); }));
  EXPECT_TRUE(cluster_.Happened(timeline::kNextAttempt));
  // A new leader does not tell a rank with the first attempt's bytes that it has resumed.
  cluster_.Elect();
  cluster_.AdmitAll();
  const Result<wire::Reply> late =
      cluster_.Wait(cluster_.Ask("a", RestoreReport(decision, 0, true, false)));
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_FALSE(late->report_verified().resumed());
  EXPECT_EQ(late->report_verified().decision().attempt(), 2u);
}

TEST_F(ReconfigurerTest, WithoutAnOlderSnapshotTheErrorSaysWhatWasFound) {
  StartJob();
  Commit(10);
  const auto first = cluster_.Call("u2", 0, "a", 1);
  cluster_.Call("u2", 1, "b", 1);
  const wire::Decision decision = cluster_.Wait(first)->reconfigure();
  const Result<wire::Reply> reply =
      cluster_.Wait(cluster_.Ask("b", RestoreReport(decision, 1, false, true)));
  EXPECT_EQ(CodeOf(reply), StatusCode::kNotFound);
  EXPECT_THAT(reply.status().message(), HasSubstr("could not be read from any holder"));
  EXPECT_FALSE(cluster_.ReadRecord().decision().resumed());
}

TEST_F(ReconfigurerTest, AnUnresumedGenerationCanBeReconfiguredAgain) {
  StartJob();
  Commit(10);
  const auto first = cluster_.Call("u2", 0, "a", 1);
  cluster_.Call("u2", 1, "b", 1);
  ASSERT_TRUE(cluster_.Wait(first).ok());
  // Rank 1 dies while it restores; its trainers never were in generation 2.
  const wire::Decision decision = cluster_.ReconfigureAll("u3", 1);
  EXPECT_EQ(decision.generation(), 3u);
  EXPECT_EQ(decision.base().step(), 10u);
}

// Attack: a second rank dies while the first fault is being recovered from, and the survivors wait
// for it until their deadlines.
TEST_F(ReconfigurerTest, WhoeverWaitsForARankThatDiesWhileItRestoresHearsOfIt) {
  StartJob();
  Commit(10);
  const auto first = cluster_.Call("u2", 0, "a", 1);
  cluster_.Call("u2", 1, "b", 1);
  const wire::Decision decision = cluster_.Wait(first)->reconfigure();
  const auto early = cluster_.Ask("a", RestoreReport(decision, 0, true, false));
  ASSERT_TRUE(cluster_.Wait(early).ok()) << "rank 1 may still be reading";
  cluster_.Kill("b");
  std::optional<Result<wire::Reply>> last;
  ASSERT_TRUE(cluster_.RunUntil([&] {
    const auto again = cluster_.Ask("a", RestoreReport(decision, 0, true, false));
    last = cluster_.Wait(again);
    return !last->ok();
  }));
  EXPECT_EQ(CodeOf(*last), StatusCode::kStale);
  EXPECT_THAT(last->status().message(), HasSubstr("the trainer of rank 1 is gone"));
  EXPECT_FALSE(cluster_.ReadRecord().decision().resumed());
}

TEST_F(ReconfigurerTest, ANewLeaderToldByTheNodesFindsTheRankThatIsGone) {
  StartJob();
  Commit(10);
  const auto first = cluster_.Call("u2", 0, "a", 1);
  cluster_.Call("u2", 1, "b", 1);
  const wire::Decision decision = cluster_.Wait(first)->reconfigure();
  cluster_.node("b").trainers.clear();
  cluster_.node("c").answers = false;
  cluster_.Elect();
  const auto ask = [&] {
    return cluster_.Wait(cluster_.Ask("a", RestoreReport(decision, 0, true, false)));
  };
  // A trainer of rank 1 may be on the node that does not answer.
  const Instant until = cluster_.executor().Now() + std::chrono::seconds(5);
  while (cluster_.executor().Now() < until) {
    const Result<wire::Reply> reply = ask();
    EXPECT_TRUE(reply.ok() || CodeOf(reply) == StatusCode::kUnavailable) << reply.status();
    cluster_.executor().RunFor(std::chrono::milliseconds(100));
  }
  cluster_.node("c").answers = true;
  std::optional<Result<wire::Reply>> last;
  ASSERT_TRUE(cluster_.RunUntil([&] {
    last = ask();
    return CodeOf(*last) == StatusCode::kStale;
  }));
  EXPECT_THAT(last->status().message(), HasSubstr("the trainer of rank 1 is gone"));
}

TEST_F(ReconfigurerTest, AReportOfAnotherReconfigurationIsStale) {
  StartJob();
  wire::Decision decision;
  decision.set_uuid("u0");
  decision.set_attempt(1);
  EXPECT_EQ(CodeOf(cluster_.Wait(cluster_.Ask("a", RestoreReport(decision, 0, true, false)))),
            StatusCode::kStale);
}

}  // namespace
}  // namespace backstay::testing
