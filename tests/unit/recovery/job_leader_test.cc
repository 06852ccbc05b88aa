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

// ---- Admission ----

TEST_F(JobLeaderTest, TheFirstShardMakesTheJobAndItsReplicasAreReserved) {
  cluster_.Elect();
  const auto first = cluster_.Admit(0, "a");
  const auto second = cluster_.Admit(1, "b");
  const Result<wire::Reply> reply = cluster_.Wait(first);
  ASSERT_TRUE(reply.ok()) << reply.status();
  // "c" has no trainer: a spare, and not needed.
  ASSERT_EQ(reply->admit_shard().replica_nodes_size(), 1);
  EXPECT_EQ(reply->admit_shard().replica_nodes(0), "b");
  EXPECT_EQ(reply->admit_shard().reserved_bytes_peers(), 3000u);
  ASSERT_TRUE(cluster_.Wait(second).ok());
  EXPECT_EQ(cluster_.node("b").reserved.at("0"), 1000u);
  EXPECT_EQ(cluster_.node("a").reserved.at("1"), 1000u);
  EXPECT_EQ(cluster_.ReadRecord().world_size(), 2u);
}

TEST_F(JobLeaderTest, ALoneRankIsAdmittedAfterTheWindow) {
  cluster_.Elect();
  EXPECT_TRUE(cluster_.Wait(cluster_.Admit(0, "a")).ok());
}

TEST_F(JobLeaderTest, AnotherTokenIsRefused) {
  cluster_.Elect();
  cluster_.AdmitAll();
  wire::Request request;
  wire::AdmitShard* admit = request.mutable_admit_shard();
  admit->set_shard_id("0");
  admit->set_world_size(2);
  admit->set_versions(1);
  admit->set_token_digest(std::string(32, 'x'));
  EXPECT_EQ(cluster_.Wait(cluster_.Ask("c", request)).status().code(), StatusCode::kPermission);
}

TEST_F(JobLeaderTest, NumbersOutOfRangeAreRefused) {
  cluster_.Elect();
  EXPECT_EQ(cluster_.Wait(cluster_.Admit(2, "a")).status().code(), StatusCode::kInvalidArgument);
  cluster_.versions = 0;
  EXPECT_EQ(cluster_.Wait(cluster_.Admit(0, "a")).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(JobLeaderTest, APolicyThatTheDomainsCannotSatisfyIsRefusedNamingThem) {
  cluster_.replicas = 3;
  cluster_.Elect();
  const Status status = cluster_.Wait(cluster_.Admit(0, "a")).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("host-a (a), host-b (b), host-c (c)"));
}

TEST_F(JobLeaderTest, ANodeWithoutMemoryIsPassedOver) {
  cluster_.node("b").has_memory = false;
  cluster_.Elect();
  const auto first = cluster_.Admit(0, "a");
  const auto second = cluster_.Admit(1, "b");
  const Result<wire::Reply> reply = cluster_.Wait(first);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->admit_shard().replica_nodes(0), "c");
  EXPECT_TRUE(cluster_.Wait(second).ok());
}

TEST_F(JobLeaderTest, WithoutMemoryAnywhereTheSumIsTold) {
  cluster_.node("b").has_memory = false;
  cluster_.node("c").has_memory = false;
  cluster_.Elect();
  const Status status = cluster_.Wait(cluster_.Admit(0, "a")).status();
  EXPECT_EQ(status.code(), StatusCode::kNoSpace);
  EXPECT_THAT(status.message(), HasSubstr("no memory on b"));
}

TEST_F(JobLeaderTest, AResizeIsAgreedWithTheReplicaNodes) {
  StartJob();
  const Result<wire::Reply> reply = cluster_.Wait(cluster_.Resize(0, "a", 2000));
  ASSERT_TRUE(reply.ok()) << reply.status();
  ASSERT_EQ(reply->admit_shard().replica_nodes_size(), 1);
  EXPECT_EQ(reply->admit_shard().replica_nodes(0), "b");
  EXPECT_EQ(reply->admit_shard().reserved_bytes_peers(), 6000u);
  EXPECT_EQ(cluster_.node("b").reserved.at("0"), 2000u);
}

TEST_F(JobLeaderTest, AResizeThatAPeerCannotHoldChangesNothing) {
  cluster_.replicas = 2;
  StartJob();
  cluster_.node("b").room_bytes = 1500;
  const Status status = cluster_.Wait(cluster_.Resize(0, "a", 2000)).status();
  EXPECT_EQ(status.code(), StatusCode::kNoSpace);
  EXPECT_THAT(status.message(), HasSubstr("no memory on b"));
  // The node that had room goes back to the agreed size, and the replicas stay where they are.
  EXPECT_TRUE(cluster_.RunUntil([&] {
    return cluster_.node("b").reserved.at("0") == 1000 &&
           cluster_.node("c").reserved.at("0") == 1000;
  }));
  const auto& state = cluster_.node("a").state;
  ASSERT_TRUE(state.has_value());
  for (const wire::Assignment& assignment : state->assignments()) {
    EXPECT_EQ(assignment.replicas_size(), 2) << assignment.shard_id();
  }
  // Room has been made: it may be asked for again.
  cluster_.node("b").room_bytes = UINT64_MAX;
  EXPECT_TRUE(cluster_.Wait(cluster_.Resize(0, "a", 2000)).ok());
}

TEST_F(JobLeaderTest, RanksOfOneJobAgreeOnItsPolicy) {
  cluster_.Elect();
  cluster_.AdmitAll();
  cluster_.versions = 3;
  EXPECT_EQ(cluster_.Wait(cluster_.Admit(1, "c")).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(JobLeaderTest, ALostReplicaNodeIsReplacedAndTheTrainerIsTold) {
  StartJob();
  cluster_.Kill("b");
  ASSERT_TRUE(cluster_.RunUntil([&] {
    const auto& state = cluster_.node("a").state;
    for (const wire::Assignment& assignment : state->assignments()) {
      if (assignment.shard_id() == "0" && assignment.replicas_size() == 1 &&
          assignment.replicas(0) == "c") {
        return true;
      }
    }
    return false;
  }));
  EXPECT_TRUE(cluster_.node("c").reserved.contains("0"));
  EXPECT_TRUE(cluster_.Happened(timeline::kNodeLost));
}

TEST_F(JobLeaderTest, ALaterTrainerTakesTheShardAndTheEarlierOnesNodeIsTold) {
  StartJob();
  EXPECT_TRUE(cluster_.Wait(cluster_.Admit(1, "c", /*trainer=*/999)).ok());
  ASSERT_TRUE(cluster_.RunUntil([&] {
    for (const wire::Assignment& assignment : cluster_.node("b").state->assignments()) {
      if (assignment.shard_id() == "1" && assignment.primary() == "c") return true;
    }
    return false;
  }));
  EXPECT_TRUE(cluster_.Happened(timeline::kTrainerReplaced));
}

// Attack: a node that was cut off comes back and repeats the claim of a trainer that was replaced.
TEST_F(JobLeaderTest, ARepeatedClaimTakesNothingFromALiveTrainer) {
  StartJob();
  EXPECT_TRUE(cluster_.Wait(cluster_.Admit(1, "c", /*trainer=*/999)).ok());
  const auto repeated = cluster_.Wait(cluster_.Admit(1, "b", /*trainer=*/101, /*repeated=*/true));
  EXPECT_EQ(repeated.status().code(), StatusCode::kStale);
  EXPECT_TRUE(cluster_.Wait(cluster_.Admit(1, "c", /*trainer=*/999, /*repeated=*/true)).ok());
}

// Attack: the first admission of a trainer that was replaced since arrives once more.
TEST_F(JobLeaderTest, ALateFirstAdmissionTakesNothingFromALaterTrainer) {
  StartJob();
  const wire::Request early = cluster_.MakeAdmission(1, /*trainer=*/101);
  EXPECT_TRUE(cluster_.Wait(cluster_.Admit(1, "c", /*trainer=*/999)).ok());
  EXPECT_EQ(cluster_.Wait(cluster_.Ask("b", early)).status().code(), StatusCode::kStale);
  EXPECT_TRUE(cluster_.Wait(cluster_.Admit(1, "c", /*trainer=*/999, /*repeated=*/true)).ok());
}

// A message may outlive the term of the leader that it was for, and find the next one on its node.
TEST_F(JobLeaderTest, AMessageToAnEarlierLeaderChangesNothing) {
  StartJob();
  wire::Request early = cluster_.MakeAdmission(1, /*trainer=*/101);
  const uint64_t term = cluster_.ReadStatus().term();
  cluster_.Elect();
  cluster_.AdmitAll();
  early.mutable_header()->set_leader_term(term);
  EXPECT_EQ(cluster_.Wait(cluster_.Ask("b", early)).status().code(), StatusCode::kUnavailable);
  early.mutable_header()->set_leader_term(cluster_.ReadStatus().term());
  EXPECT_TRUE(cluster_.Wait(cluster_.Ask("b", early)).ok());
}

// ---- Commits ----

TEST_F(JobLeaderTest, AProtectedSnapshotIsCommittedAndEverybodyIsTold) {
  StartJob();
  Commit(10);
  EXPECT_TRUE(cluster_.RunUntil([&] {
    for (const char* name : {"a", "b", "c"}) {
      if (cluster_.node(name).state->last_committed_step() != 10) return false;
    }
    return true;
  }));
  EXPECT_TRUE(cluster_.node("a").state->first_commit_done());
  EXPECT_EQ(StatusOf(10).state(), wire::SnapshotStatus::COMMITTED);
  EXPECT_TRUE(cluster_.Happened(timeline::kFirstCommit));
}

TEST_F(JobLeaderTest, NothingIsCommittedBeforeTheRanksHaveResumed) {
  cluster_.Elect();
  cluster_.AdmitAll();
  const auto first = cluster_.Call("u1", 0, "a", 0);
  cluster_.Call("u1", 1, "b", 0);
  ASSERT_TRUE(cluster_.Wait(first).ok());
  cluster_.Protect(1, 10);
  cluster_.executor().RunFor(std::chrono::seconds(5));
  EXPECT_FALSE(cluster_.CommitIsRecorded(10));
}

// Attack: a holder restarts, its memory empty, between its acknowledgement and the commit.
TEST_F(JobLeaderTest, AHolderThatRestartedDoesNotCount) {
  StartJob();
  wire::ShardReport stale = cluster_.MakeReport(1, 10, 0);
  cluster_.AddHolder(stale, "a");
  cluster_.AddHolder(stale, "c");
  cluster_.Kill("c");
  cluster_.Revive("c");
  cluster_.Report("a", stale);
  wire::ShardReport other = cluster_.MakeReport(1, 10, 1);
  cluster_.AddHolder(other, "a");
  cluster_.AddHolder(other, "b");
  cluster_.Report("b", other);
  cluster_.executor().RunFor(std::chrono::seconds(3));
  EXPECT_FALSE(cluster_.CommitIsRecorded(10));
  EXPECT_EQ(StatusOf(10).ranks_protected(), 1u);
}

// Attack: the leader's view of the membership is old; the holder is dead in the store already.
TEST_F(JobLeaderTest, ACommitCountsOnlyOnHoldersThatTheStoreHoldsToBeAlive) {
  StartJob();
  wire::ShardReport first = cluster_.MakeReport(1, 10, 0);
  cluster_.AddHolder(first, "a");
  cluster_.AddHolder(first, "c");
  wire::ShardReport second = cluster_.MakeReport(1, 10, 1);
  cluster_.AddHolder(second, "a");
  cluster_.AddHolder(second, "b");
  // "c" leaves in the very turn of the last report: the leader has not heard of it.
  cluster_.Report("a", first);
  cluster_.node("c").membership->Leave(kNoDeadline, [](const Status&) {});
  cluster_.node("c").answers = false;
  cluster_.metadata().SetDelay(std::chrono::milliseconds(50), Duration());
  cluster_.Report("b", second);
  cluster_.executor().RunFor(std::chrono::milliseconds(500));
  EXPECT_FALSE(cluster_.CommitIsRecorded(10));
  EXPECT_FALSE(cluster_.deposed().has_value());  // It is the holder that is gone, not the term.
}

TEST_F(JobLeaderTest, TagsThatDifferAbandonTheSnapshot) {
  StartJob();
  for (const uint32_t rank : {0u, 1u}) {
    wire::ShardReport report = cluster_.MakeReport(1, 10, rank);
    wire::Tag* tag = report.add_tags();
    tag->set_name("samples");
    tag->set_value(std::to_string(rank));
    cluster_.AddHolder(report, "a");
    cluster_.AddHolder(report, "b");
    cluster_.Report(rank == 0 ? "a" : "b", report);
  }
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.ReadRecord().last_abandoned_step() == 10; }));
  EXPECT_EQ(StatusOf(10).state(), wire::SnapshotStatus::ABANDONED);
  EXPECT_THAT(StatusOf(10).reason(), HasSubstr("samples"));
  Commit(20);
}

TEST_F(JobLeaderTest, AFailedSaveIsAbandoned) {
  StartJob();
  wire::ShardReport report = cluster_.MakeReport(1, 10, 0);
  report.clear_digest();
  report.set_failed(true);
  report.set_error("no slot");
  cluster_.Report("a", report);
  EXPECT_TRUE(cluster_.RunUntil([&] { return cluster_.ReadRecord().last_abandoned_step() == 10; }));
  EXPECT_TRUE(cluster_.Happened(timeline::kAbandoned));
}

// Giving up a step gives up all before it: so a failed one waits for the healthy ones before it.
TEST_F(JobLeaderTest, AFailedSaveDoesNotTakeAnEarlierOneWithIt) {
  StartJob();
  wire::ShardReport first = cluster_.MakeReport(1, 10, 0);
  cluster_.AddHolder(first, "a");
  cluster_.Report("a", first);
  wire::ShardReport failed = cluster_.MakeReport(1, 20, 0);
  failed.clear_digest();
  failed.set_failed(true);
  cluster_.Report("a", failed);
  cluster_.executor().RunFor(std::chrono::seconds(2));
  Commit(10);
  EXPECT_TRUE(cluster_.RunUntil([&] { return cluster_.ReadRecord().last_abandoned_step() == 20; }));
}

// Attack: one rank's partner dies, everyone's slots fill with a step that can never commit.
TEST_F(JobLeaderTest, AtItsDeadlineASnapshotIsAbandoned) {
  StartJob();
  wire::ShardReport report = cluster_.MakeReport(1, 10, 0);
  cluster_.AddHolder(report, "a");
  cluster_.Report("a", report);
  cluster_.executor().RunFor(std::chrono::seconds(119));
  EXPECT_EQ(cluster_.ReadRecord().last_abandoned_step(), 0u);
  cluster_.executor().RunFor(std::chrono::seconds(2));
  EXPECT_EQ(cluster_.ReadRecord().last_abandoned_step(), 10u);
}

TEST_F(JobLeaderTest, ANewerCommitEndsAnOlderSnapshot) {
  StartJob();
  wire::ShardReport report = cluster_.MakeReport(1, 10, 0);
  cluster_.AddHolder(report, "a");
  cluster_.Report("a", report);
  Commit(20);
  cluster_.Protect(1, 10);
  cluster_.executor().RunFor(std::chrono::seconds(2));
  EXPECT_FALSE(cluster_.CommitIsRecorded(10));
}

// Attack: a deposed leader goes on committing.
TEST_F(JobLeaderTest, ADeposedLeaderCommitsNothingAndEnds) {
  StartJob();
  cluster_.DeposeSilently();
  cluster_.Protect(1, 10);
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.deposed().has_value(); }));
  EXPECT_FALSE(cluster_.CommitIsRecorded(10));
}

TEST_F(JobLeaderTest, ALeaderThatMeetsALaterTermEnds) {
  StartJob();
  cluster_.node("c").seen_generation = 9;
  EXPECT_TRUE(cluster_.RunUntil([&] { return cluster_.deposed().has_value(); }));
}

TEST_F(JobLeaderTest, WithoutTheStoreNothingIsCommittedAndNothingIsLost) {
  StartJob();
  cluster_.metadata().SetUnavailable(true);
  cluster_.Protect(1, 10);
  cluster_.executor().RunFor(std::chrono::seconds(2));
  EXPECT_FALSE(cluster_.CommitIsRecorded(10));
  cluster_.metadata().SetUnavailable(false);
  EXPECT_TRUE(cluster_.RunUntil([&] { return cluster_.CommitIsRecorded(10); }));
  EXPECT_FALSE(cluster_.deposed().has_value());
}

TEST_F(JobLeaderTest, ALostAnswerOfTheStoreIsFoundOut) {
  StartJob();
  cluster_.metadata().LoseReplies(1);
  Commit(10);
  cluster_.metadata().LoseRequests(1);
  Commit(20);
  EXPECT_FALSE(cluster_.deposed().has_value());
}

// Primaries repeat their reports until they see the commit, so any new leader can commit.
TEST_F(JobLeaderTest, ANewLeaderCommitsWhatTheReportsSay) {
  StartJob();
  wire::ShardReport report = cluster_.MakeReport(1, 10, 0);
  cluster_.AddHolder(report, "a");
  cluster_.AddHolder(report, "b");
  cluster_.Report("a", report);
  cluster_.Elect();
  cluster_.AdmitAll();
  Commit(10);
}

// More holders than one transaction can name: they are proved alive beside it.
TEST(JobLeaderScale, ManyHoldersCommitInFewTurns) {
  constexpr uint32_t kNodes = 130;
  std::vector<std::string> names{"a"};
  for (uint32_t i = 1; i < kNodes; ++i) names.push_back("n" + std::to_string(i));
  LeaderFixture cluster(names);
  cluster.ranks = kNodes;
  cluster.Elect();
  std::vector<LeaderFixture::Answer> answers;
  for (uint32_t rank = 0; rank < kNodes; ++rank)
    answers.push_back(cluster.Admit(rank, names[rank]));
  for (const auto& answer : answers) ASSERT_TRUE(cluster.Wait(answer).ok());
  answers.clear();
  for (uint32_t rank = 0; rank < kNodes; ++rank) {
    answers.push_back(cluster.Call("u1", rank, names[rank], 0));
  }
  const Result<wire::Reply> reply = cluster.Wait(answers[0]);
  ASSERT_TRUE(reply.ok()) << reply.status();
  for (uint32_t rank = 0; rank < kNodes; ++rank) {
    cluster.Verify(reply->reconfigure(), rank, names[rank]);
  }
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.ReadRecord().decision().resumed(); }));
  cluster.executor().RunFor(std::chrono::seconds(1));
  for (uint32_t rank = 0; rank < kNodes; ++rank) {
    wire::ShardReport report = cluster.MakeReport(1, 10, rank);
    cluster.AddHolder(report, names[rank]);
    cluster.AddHolder(report, names[(rank + 1) % kNodes]);
    cluster.Report(names[rank], report);
  }
  EXPECT_TRUE(
      cluster.RunUntil([&] { return cluster.CommitIsRecorded(10); }, std::chrono::milliseconds(5)));
  // One of them dies unseen: the proof fails, and with it the commit.
  for (uint32_t rank = 0; rank < kNodes; ++rank) {
    wire::ShardReport report = cluster.MakeReport(1, 20, rank);
    cluster.AddHolder(report, names[rank]);
    cluster.AddHolder(report, names[(rank + 1) % kNodes]);
    if (rank + 1 == kNodes) {
      cluster.node("n7").membership->Leave(kNoDeadline, [](const Status&) {});
      cluster.metadata().SetDelay(std::chrono::milliseconds(50), Duration());
    }
    cluster.Report(names[rank], report);
  }
  cluster.executor().RunFor(std::chrono::seconds(1));
  EXPECT_FALSE(cluster.CommitIsRecorded(20));
  EXPECT_FALSE(cluster.deposed().has_value());
}

// A lost message holds nothing up until its deadline: slots wait for what comes after it.
TEST_F(JobLeaderTest, NewsOvertakesAMessageThatIsNotAnswered) {
  StartJob();
  cluster_.executor().RunFor(std::chrono::seconds(2));
  cluster_.node("c").answers = false;
  Commit(10);  // Told to "c" in a message that is lost.
  cluster_.executor().RunFor(std::chrono::milliseconds(150));
  cluster_.node("c").answers = true;
  Commit(20);
  EXPECT_TRUE(
      cluster_.RunUntil([&] { return cluster_.node("c").state->last_committed_step() == 20; },
                        std::chrono::milliseconds(100)));
}

// ---- Telling ----

TEST_F(JobLeaderTest, SaysWhyTheNewestStepIsNotCommittedYet) {
  StartJob();
  wire::ShardReport report = cluster_.MakeReport(1, 10, 1);
  cluster_.AddHolder(report, "b");
  cluster_.Report("b", report);
  cluster_.node("a").answers = false;
  cluster_.executor().RunFor(std::chrono::seconds(10));
  const wire::SnapshotStatus status = StatusOf(10);
  EXPECT_EQ(status.state(), wire::SnapshotStatus::SAVING);
  EXPECT_EQ(status.reason(),
            "shard 1 has 0 of 1 replicas; a is not answering; rank 0 has not begun it");
}

TEST_F(JobLeaderTest, SaysWhatTheLossOfEachNodeWouldCost) {
  StartJob();
  Commit(10);
  cluster_.executor().RunFor(std::chrono::seconds(1));
  std::map<std::string, wire::LossOutlook> outlook;
  const wire::LeaderStatusReply shown = cluster_.ReadStatus();
  for (const wire::LossOutlook& node : shown.outlook()) {
    outlook[node.node_id()] = node;
  }
  EXPECT_EQ(outlook["a"].consequence(),
            "no committed step would be lost; rank 0 would have to be replaced");
  EXPECT_EQ(outlook["c"].consequence(), "no committed step would be lost");
  EXPECT_FALSE(outlook["a"].loses_committed());
  // With no spare left, each node is the last that has something.
  cluster_.node("c").has_memory = false;
  cluster_.node("c").full = true;
  cluster_.Kill("b");
  cluster_.executor().RunFor(std::chrono::seconds(1));
  const wire::LeaderStatusReply later = cluster_.ReadStatus();
  for (const wire::LossOutlook& node : later.outlook()) {
    if (node.node_id() != "a") continue;
    EXPECT_TRUE(node.loses_committed());
    EXPECT_THAT(node.consequence(), HasSubstr("step 10 of generation 1 would be lost"));
  }
}

TEST_F(JobLeaderTest, AFaultIsToldOnceWithItsTime) {
  StartJob();
  for (int i = 0; i < 3; ++i) {
    wire::Request request;
    request.mutable_report_fence()->set_generation(1);
    request.mutable_report_fence()->set_reason("peer closed");
    request.mutable_report_fence()->set_seen_unix_ms(1'700'000'000'500);
    cluster_.Ask("a", request);
  }
  int seen = 0;
  const wire::LeaderStatusReply shown = cluster_.ReadStatus();
  for (const wire::TimelineEvent& event : shown.timeline()) {
    if (event.what() != timeline::kFaultSeen) continue;
    ++seen;
    EXPECT_EQ(event.unix_ms(), 1'700'000'000'500);
    EXPECT_THAT(event.detail(), HasSubstr("peer closed"));
  }
  EXPECT_EQ(seen, 1);
}

// ---- The end ----

TEST_F(JobLeaderTest, AJobEndsOnlyByItsToken) {
  StartJob();
  Commit(10);
  wire::Request request;
  request.mutable_end_job()->set_drop(true);
  request.mutable_end_job()->set_token_digest(std::string(32, 'x'));
  EXPECT_EQ(cluster_.Wait(cluster_.Ask("a", request)).status().code(), StatusCode::kPermission);
  request.mutable_end_job()->set_token_digest(std::string(32, 't'));
  EXPECT_TRUE(cluster_.Wait(cluster_.Ask("a", request)).ok());
  EXPECT_TRUE(cluster_.RunUntil([&] { return cluster_.node("b").state->ended(); }));
  // The name may be used again.
  cluster_.AdmitAll();
  EXPECT_FALSE(cluster_.ReadRecord().ended());
  EXPECT_GT(cluster_.ReadRecord().generation(), 1u);
}

}  // namespace
}  // namespace backstay::testing
