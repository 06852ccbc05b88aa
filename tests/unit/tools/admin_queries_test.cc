// The admin questions over a scripted messenger and the production metadata store in memory.

#include "tools/admin/admin_queries.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/manifest.h"
#include "tests/support/manual_executor.h"
#include "tests/support/memory_metadata_store.h"
#include "tests/unit/tools/admin_fixture.h"
#include "tools/admin/verify_run.h"

namespace backstay::tools {
namespace {

using replication::Compare;
using replication::Operation;
using ::testing::HasSubstr;

constexpr Duration kLong = std::chrono::minutes(30);

class AdminQueriesTest : public ::testing::Test {
 protected:
  AdminQueriesTest()
      : metadata_(&executor_, StoreId("store")),
        client_(metadata_.NewClient(StoreId("store"))),
        messenger_(&executor_) {
    AdminSeams seams;
    seams.executor = &executor_;
    seams.metadata = client_.get();
    seams.messenger = &messenger_;
    seams.store = StoreId("store");
    seams.self = [this] { return self_; };
    seams.members = [this]() -> const replication::MembershipView& { return view_; };
    seams.header = [](const JobName& job) {
      replication::wire::Header header;
      header.set_job(job.value);
      return header;
    };
    seams.describe = [this] { return Node("node-1").status; };
    queries_ = std::make_unique<AdminQueries>(std::move(seams));
    for (const char* name : {"node-1", "node-2", "node-3"}) AddNode(name);
  }

  FakeNode& Node(const std::string& name) { return *nodes_.at(name); }

  void AddNode(const std::string& name) {
    nodes_.emplace(name, std::make_unique<FakeNode>(name));
    view_.members[NodeId(name)].record.instance = {NodeId(name), Incarnation(1)};
    messenger_.Answer(name, [node = nodes_[name].get()](const replication::wire::Request& request) {
      return node->Answer(request);
    });
    Put("node_starts/" + name, "");
  }
  // A member that does not answer.
  void AddSilentNode(const std::string& name) {
    view_.members[NodeId(name)].record.instance = {NodeId(name), Incarnation(1)};
  }

  void Put(const std::string& key, const std::string& value) {
    replication::Transaction transaction;
    transaction.operations = {{Operation::Kind::kPut, key, value, replication::kNoLease}};
    bool done = false;
    client_->Commit(transaction, replication_deadline(), [&](const auto& result) {
      ASSERT_TRUE(result.ok()) << result.status();
      done = true;
    });
    ASSERT_TRUE(executor_.RunUntil([&] { return done; }, kLong));
  }
  Deadline replication_deadline() const { return executor_.Now() + std::chrono::seconds(1); }

  // Two ranks, one replica, steps 100 and 110 committed.
  void AddJob(const std::string& name, const std::string& leader) {
    replication::wire::JobRecord record =
        replication::CreateRecord(JobName(name), std::string(32, 't'), 2, 1, 2).value();
    for (const uint64_t step : {100, 110}) {
      auto& committed = *record.add_committed();
      committed.set_generation(1);
      committed.set_step(step);
      committed.set_world_size(2);
      committed.set_root(std::string(16, 'r'));
    }
    record.set_generation(1);
    Put(replication::JobRecordKey(JobName(name)), record.SerializeAsString());
    if (leader.empty()) return;
    replication::wire::LeaderRecord led;
    led.set_node_id(leader);
    led.set_incarnation(1);
    Put(replication::LeaderKey(JobName(name)), led.SerializeAsString());
  }

  static std::string ManifestOf(uint64_t step, uint32_t rank) {
    store::Manifest manifest;
    manifest.name = {JobName("job"), {Generation(1), Step(step)}, ShardId(std::to_string(rank))};
    manifest.rank = Rank(rank);
    manifest.world_size = 2;
    manifest.size_bytes = 100;
    manifest.chunk_bytes = 4096;
    manifest.chunk_checksums = {Hash128{step, rank}};
    return store::EncodeManifest(manifest).value();
  }
  // Rank 0 lies on node-1 and node-2, rank 1 on node-2 and node-3.
  void HoldStep(uint64_t step) {
    Node("node-1").Hold("job", 1, step, 0, ManifestOf(step, 0), true);
    Node("node-2").Hold("job", 1, step, 0, ManifestOf(step, 0), false);
    Node("node-2").Hold("job", 1, step, 1, ManifestOf(step, 1), false);
    Node("node-3").Hold("job", 1, step, 1, ManifestOf(step, 1), true);
  }

  template <typename Reply, typename Ask>
  Result<Reply> Get(Ask ask) {
    std::optional<Result<Reply>> answer;
    ask([&](Result<Reply> result) { answer = std::move(result); });
    EXPECT_FALSE(answer.has_value());  // Never inside of the call.
    EXPECT_TRUE(executor_.RunUntil([&] { return answer.has_value(); }, kLong));
    return answer.value_or(Unavailable("stuck"));
  }
  Result<wire::ClusterReply> Cluster() {
    return Get<wire::ClusterReply>([&](auto done) { queries_->Cluster(done); });
  }
  Result<wire::JobReply> Job(const std::string& name) {
    wire::JobRequest request;
    request.set_job(name);
    return Get<wire::JobReply>([&](auto done) { queries_->Job(request, done); });
  }
  Result<wire::SnapshotReply> Snapshot(uint64_t step, std::optional<uint32_t> rank = {}) {
    wire::SnapshotRequest request;
    request.set_job("job");
    request.set_step(step);
    request.set_with_manifests(true);
    request.set_has_rank(rank.has_value());
    request.set_rank(rank.value_or(0));
    return Get<wire::SnapshotReply>([&](auto done) { queries_->Snapshot(request, done); });
  }
  Result<wire::OpenShardReply> Open(const std::string& shard) {
    wire::OpenShardRequest request;
    request.set_job("job");
    request.set_step(110);
    request.set_shard_id(shard);
    return Get<wire::OpenShardReply>([&](auto done) { queries_->OpenShard(request, done); });
  }
  Status End(const std::string& job, bool drop) {
    wire::EndJobRequest request;
    request.set_job(job);
    request.set_drop_state(drop);
    std::optional<Status> answer;
    queries_->EndJob(request, [&](const Status& status) { answer = status; });
    EXPECT_TRUE(executor_.RunUntil([&] { return answer.has_value(); }, kLong));
    return answer.value_or(Unavailable("stuck"));
  }
  std::vector<wire::VerifyProgress> Verify(uint64_t step, Status* status) {
    wire::VerifyRequest request;
    request.set_job("job");
    request.set_step(step);
    std::vector<wire::VerifyProgress> answers;
    bool done = false;
    const auto run = queries_->Verify(
        request, [&](wire::VerifyProgress answer) { answers.push_back(std::move(answer)); },
        [&](const Status& end) {
          *status = end;
          done = true;
        });
    EXPECT_TRUE(executor_.RunUntil([&] { return done; }, kLong));
    return answers;
  }

  testing::ManualExecutor executor_;
  testing::MemoryMetadata metadata_;
  std::unique_ptr<testing::MemoryMetadataClient> client_;
  ScriptedMessenger messenger_;
  NodeInstance self_{NodeId("node-1"), Incarnation(1)};
  replication::MembershipView view_;
  std::map<std::string, std::unique_ptr<FakeNode>> nodes_;
  std::unique_ptr<AdminQueries> queries_;
};

TEST_F(AdminQueriesTest, ClusterShowsEveryMemberAndWhoLeft) {
  Node("node-2").status.set_budget_bytes(7);
  Put("node_starts/old", "");
  const wire::ClusterReply reply = Cluster().value();
  ASSERT_EQ(reply.nodes_size(), 3);
  EXPECT_EQ(reply.nodes(1).status().budget_bytes(), 7u);
  EXPECT_TRUE(reply.metadata_reachable());
  EXPECT_EQ(reply.asked_node(), "node-1");
  EXPECT_THAT(reply.departed(), ::testing::ElementsAre("old"));
}

TEST_F(AdminQueriesTest, ASilentNodeDelaysNobodyBeyondItsTimeout) {
  AddSilentNode("node-4");
  const Instant start = executor_.Now();
  const wire::ClusterReply reply = Cluster().value();
  EXPECT_LE(executor_.Now() - start, kNodeAnswerTimeout);
  ASSERT_EQ(reply.nodes_size(), 4);
  EXPECT_FALSE(reply.nodes(3).answered());
  EXPECT_THAT(reply.nodes(3).error(), HasSubstr("no answer"));
  EXPECT_TRUE(reply.nodes(2).answered());
}

TEST_F(AdminQueriesTest, ClusterAnswersWithoutTheMetadataStoreAndOutsideOfTheMembership) {
  client_->SetUnavailable(true);
  self_ = {NodeId("node-1"), Incarnation(1)};
  view_.members.erase(NodeId("node-1"));
  const wire::ClusterReply reply = Cluster().value();
  EXPECT_FALSE(reply.metadata_reachable());
  EXPECT_EQ(reply.nodes_size(), 3);  // Itself too.
}

TEST_F(AdminQueriesTest, AnUnknownJobIsNotFoundAndTheNearestIsNamed) {
  AddJob("job", "node-2");
  AddJob("other", "");
  const Status status = Job("jbo").status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(Job("jobs").status().message(), HasSubstr("did you mean"));
  EXPECT_THAT(Job("something else").status().message(), HasSubstr("other"));
}

TEST_F(AdminQueriesTest, AJobIsItsRecordAndItsLeadersWord) {
  AddJob("job", "node-2");
  Node("node-2").leader.emplace().set_world_size(2);
  wire::JobReply reply = Job("job").value();
  EXPECT_TRUE(reply.leader_answered());
  EXPECT_EQ(reply.elected().node_id(), "node-2");
  EXPECT_GT(reply.term(), 0u);
  EXPECT_EQ(reply.record().committed_size(), 2);
  EXPECT_EQ(reply.record().token_digest(), "");
  EXPECT_EQ(messenger_.sent.back().second.header().to().node_id(), "node-2");
  Node("node-2").leader.reset();
  reply = Job("job").value();
  EXPECT_FALSE(reply.leader_answered());
  EXPECT_THAT(reply.leader_error(), HasSubstr("does not lead it"));
}

TEST_F(AdminQueriesTest, AJobThatNobodyLeadsSaysSo) {
  AddJob("job", "");
  const wire::JobReply reply = Job("job").value();
  EXPECT_FALSE(reply.has_elected());
  EXPECT_THAT(reply.leader_error(), HasSubstr("nobody leads it"));
}

TEST_F(AdminQueriesTest, WithoutTheMetadataStoreTheNewestLeaderIsAsked) {
  AddJob("job", "node-2");
  client_->SetUnavailable(true);
  EXPECT_EQ(Job("job").status().code(), StatusCode::kUnavailable);  // Not "no such job".
  Node("node-2").leader.emplace().set_term(5);
  Node("node-3").leader.emplace().set_term(9);
  const wire::JobReply reply = Job("job").value();
  EXPECT_EQ(reply.term(), 9u);
  EXPECT_TRUE(reply.leader_answered());
  EXPECT_NE(reply.metadata_error(), "");
}

TEST_F(AdminQueriesTest, JobsAreListedWithWhatTheirLeadersSay) {
  AddJob("a", "node-2");
  AddJob("b", "");
  Put(replication::JobRecordKey(JobName("broken")), "\xff\xff");
  auto& leader = Node("node-2").leader.emplace();
  leader.set_waiting_uuid("u");
  leader.add_missing_ranks(3);
  const wire::JobsReply reply =
      Get<wire::JobsReply>([&](auto done) { queries_->Jobs(done); }).value();
  ASSERT_EQ(reply.jobs_size(), 3);
  EXPECT_THAT(reply.jobs(0).missing_ranks(), ::testing::ElementsAre(3));
  EXPECT_FALSE(reply.jobs(1).has_leader());
  EXPECT_NE(reply.jobs(2).record_error(), "");
  EXPECT_EQ(reply.jobs(2).record().job(), "broken");
}

TEST_F(AdminQueriesTest, ASnapshotIsFoundWithItsHoldersAndManifests) {
  AddJob("job", "node-2");
  HoldStep(110);
  const wire::SnapshotReply reply = Snapshot(110).value();
  EXPECT_TRUE(reply.committed());
  ASSERT_EQ(reply.shards_size(), 2);
  EXPECT_EQ(reply.shards(0).manifest(), ManifestOf(110, 0));
  EXPECT_EQ(reply.shards(1).holders(0).node_id(), "node-3");  // The primary first.
  EXPECT_EQ(reply.shards(1).holders(1).node_id(), "node-2");
  EXPECT_EQ(reply.wanted_replicas(), 2u);
  EXPECT_EQ(Snapshot(110, 1).value().shards_size(), 1);
  EXPECT_EQ(Snapshot(110, 2).status().code(), StatusCode::kNotFound);
}

TEST_F(AdminQueriesTest, AManifestComesFromTheNextHolderWhenOneFails) {
  AddJob("job", "node-2");
  HoldStep(110);
  Node("node-1").open_status = Unavailable("broken");
  EXPECT_EQ(Snapshot(110).value().shards(0).manifest(), ManifestOf(110, 0));
  Node("node-2").open_status = Unavailable("broken too");
  const wire::SnapshotReply reply = Snapshot(110).value();
  EXPECT_EQ(reply.shards(0).manifest(), "");
  EXPECT_THAT(reply.shards(0).error(), HasSubstr("broken too"));
}

TEST_F(AdminQueriesTest, AnUnknownStepIsNotFoundOnlyWhenEverybodyAnswered) {
  AddJob("job", "node-2");
  HoldStep(110);
  const Status status = Snapshot(111).status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("steps 100, 110"));
  AddSilentNode("node-4");
  EXPECT_EQ(Snapshot(111).status().code(), StatusCode::kUnavailable);
}

TEST_F(AdminQueriesTest, OpenShardGivesEveryHoldersGrant) {
  AddJob("job", "node-2");
  HoldStep(110);
  wire::OpenShardReply reply = Open("0").value();
  EXPECT_EQ(reply.grants_size(), 2);
  EXPECT_EQ(reply.reader().node_id(), "node-1");
  EXPECT_EQ(reply.manifest(), ManifestOf(110, 0));
  Node("node-2").manifests[reply.digest()] = "something else";  // Its word is checked.
  reply = Open("0").value();
  EXPECT_EQ(reply.grants_size(), 1);
  ASSERT_EQ(reply.failed_size(), 1);
  EXPECT_EQ(reply.failed(0).node_id(), "node-2");
  EXPECT_EQ(Open("2").status().code(), StatusCode::kNotFound);
  Node("node-1").open_status = Unavailable("broken");
  EXPECT_EQ(Open("0").status().code(), StatusCode::kUnavailable);
}

TEST_F(AdminQueriesTest, VerifyAsksEveryReplica) {
  AddJob("job", "node-2");
  HoldStep(110);
  Node("node-3").bad_chunks = {2};
  Status status;
  const std::vector<wire::VerifyProgress> answers = Verify(110, &status);
  EXPECT_TRUE(status.ok()) << status;
  ASSERT_EQ(answers.size(), 4u);
  size_t bad = 0;
  for (const wire::VerifyProgress& answer : answers) {
    bad += answer.bad_chunks().empty() ? 0 : 1;
    EXPECT_EQ(answer.replicas_total(), 4u);
  }
  EXPECT_EQ(bad, 1u);
  EXPECT_EQ(answers.back().replicas_done(), 4u);
}

TEST_F(AdminQueriesTest, VerifyReportsWhatCouldNotBeAsked) {
  AddJob("job", "node-2");
  Node("node-1").Hold("job", 1, 110, 0, ManifestOf(110, 0), true);
  AddSilentNode("node-4");
  Status status;
  const std::vector<wire::VerifyProgress> answers = Verify(110, &status);
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0].rank(), 1u);  // Nobody holds it.
  EXPECT_NE(answers[0].error(), "");
  EXPECT_EQ(answers[1].node_id(), "node-4");
  EXPECT_EQ(answers[1].shard_id(), "");
  EXPECT_TRUE(answers[2].error().empty());
}

TEST_F(AdminQueriesTest, ADroppedVerificationAsksNobodyElse) {
  AddJob("job", "node-2");
  HoldStep(110);
  wire::VerifyRequest request;
  request.set_job("job");
  request.set_step(110);
  std::shared_ptr<VerifyRun> run;
  size_t answers = 0;
  run = queries_->Verify(
      request,
      [&](const wire::VerifyProgress&) {
        ++answers;
        run.reset();
      },
      [](const Status&) { FAIL() << "it was dropped"; });
  executor_.RunFor(kLong);
  EXPECT_EQ(answers, 1u);
}

TEST_F(AdminQueriesTest, EndingAJobIsItsLeadersBusiness) {
  AddJob("job", "node-2");
  EXPECT_EQ(End("job", false).code(), StatusCode::kInvalidArgument);  // It has snapshots.
  EXPECT_TRUE(messenger_.sent.empty());
  EXPECT_TRUE(End("job", true).ok());
  const auto& [node, request] = messenger_.sent.back();
  EXPECT_EQ(node, "node-2");
  EXPECT_TRUE(request.end_job().drop());
  EXPECT_EQ(request.end_job().token_digest(), std::string(32, 't'));
  EXPECT_EQ(End("jop", true).code(), StatusCode::kNotFound);
}

TEST_F(AdminQueriesTest, AJobThatNobodyLeadsIsEndedInItsRecord) {
  AddJob("job", "");
  EXPECT_EQ(End("job", false).code(), StatusCode::kInvalidArgument);  // It has snapshots.
  EXPECT_TRUE(End("job", true).ok());
  EXPECT_TRUE(Job("job")->record().ended());
  EXPECT_TRUE(End("job", true).ok());  // Again: nothing to do.
}

}  // namespace
}  // namespace backstay::tools
