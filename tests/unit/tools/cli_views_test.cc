// What people and programs see, from canned replies.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/cli/commands.h"
#include "tools/cli/table.h"
#include "tools/cli/view.h"

namespace backstay::tools {
namespace {

using replication::wire::SnapshotStatus;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kNow = 1'700'000'100'000;

SnapshotStatus& AddSnapshot(wire::JobReply& job, uint64_t step, SnapshotStatus::State state,
                            int64_t began_ms_ago) {
  SnapshotStatus& snapshot = *job.mutable_leader()->add_snapshots();
  snapshot.mutable_snapshot()->set_generation(2);
  snapshot.mutable_snapshot()->set_step(step);
  snapshot.set_state(state);
  snapshot.set_bytes(4096);
  snapshot.set_began_unix_ms(kNow - began_ms_ago);
  if (state == SnapshotStatus::COMMITTED) snapshot.set_committed_unix_ms(kNow - began_ms_ago + 200);
  return snapshot;
}

// Generation 2 grew from step 100; step 120 is committed on two nodes.
wire::JobReply HealthyJob() {
  wire::JobReply job;
  job.set_now_unix_ms(kNow);
  job.set_leader_answered(true);
  job.mutable_elected()->set_node_id("node-1");
  job.set_term(7);
  replication::wire::JobRecord& record = *job.mutable_record();
  record.set_job("job");
  record.set_generation(2);
  record.set_world_size(2);
  record.set_replicas(1);
  record.set_versions(2);
  auto& recorded = *record.add_committed();
  recorded.set_generation(2);
  recorded.set_step(120);
  recorded.set_root(std::string(16, '\x0a'));
  recorded.set_committed_unix_ms(kNow - 3200);
  recorded.set_bytes(4096);
  auto& lineage = *record.add_lineage();
  lineage.set_generation(2);
  lineage.set_base_generation(1);
  lineage.set_base_step(100);
  record.set_last_committed_step(120);
  auto& decision = *record.mutable_decision();
  decision.set_uuid("uuid-2");
  decision.set_attempt(1);
  decision.set_base_generation(1);
  decision.set_base_step(100);
  decision.set_base_committed(true);
  decision.set_why("step 100 is the newest complete one");
  decision.add_rejected("step 110: rank 1's shard is gone");
  decision.set_resumed(true);
  auto& leader = *job.mutable_leader();
  leader.set_generation(2);
  leader.mutable_state()->set_last_committed_step(120);
  leader.set_world_size(2);
  leader.set_replicas(1);
  leader.set_versions(2);
  SnapshotStatus& snapshot = AddSnapshot(job, 120, SnapshotStatus::COMMITTED, 3400);
  snapshot.set_ranks_protected(2);
  for (const char* id : {"0", "1"}) {
    auto& shard = *snapshot.add_shards();
    shard.set_shard_id(id);
    shard.add_holders()->set_node_id("node-1");
    shard.add_holders()->set_node_id("node-2");
  }
  auto& outlook = *leader.add_outlook();
  outlook.set_node_id("node-2");
  outlook.set_consequence("step 120 stays, with one copy fewer");
  auto& event = *leader.add_timeline();
  event.set_unix_ms(kNow - 3200);
  event.set_what("committed");
  event.set_detail("step 120");
  event.set_generation(2);
  return job;
}

void AddUnderProtected(wire::JobReply& job, uint32_t holders) {
  auto& health = *job.mutable_leader()->mutable_state()->add_under_protected();
  health.mutable_shard()->set_shard_id("1");
  health.mutable_shard()->mutable_snapshot()->set_step(120);
  health.set_holders(holders);
  health.set_wanted(2);
}

TEST(Verdict, FineSaysWhatItSurvives) {
  const Verdict verdict = Judge(HealthyJob());
  EXPECT_EQ(verdict.condition, Condition::kFine);
  EXPECT_EQ(
      verdict.text,
      "fine: step 120 was committed 3.2 s ago on 2 nodes and survives the loss of any 1 node");
}

TEST(Verdict, ADangerousOutlookIsARisk) {
  wire::JobReply job = HealthyJob();
  job.mutable_leader()->mutable_outlook(0)->set_loses_committed(true);
  EXPECT_EQ(Judge(job).condition, Condition::kAtRisk);
  EXPECT_THAT(Judge(job).text, HasSubstr("the loss of node-2 would lose it"));
  EXPECT_FALSE(Judge(job).ok());
}

TEST(Verdict, TooFewCopiesIsARiskAndNoneIsALoss) {
  wire::JobReply job = HealthyJob();
  AddUnderProtected(job, 1);
  EXPECT_EQ(Judge(job).text, "at risk: shard 1 of step 120 has 1 of 2 copies");
  AddUnderProtected(job, 0);
  EXPECT_EQ(Judge(job).condition, Condition::kLost);
  EXPECT_THAT(Judge(job).text, HasSubstr("0 of 2 copies, and 1 other shard too few"));
}

TEST(Verdict, ASaveIsStuckOnlyWhenOverdue) {
  wire::JobReply job = HealthyJob();
  SnapshotStatus& newest = AddSnapshot(job, 130, SnapshotStatus::SAVING, kOverdueMinMs - 1);
  newest.set_reason("shard 1 has 0 of 1 replicas");
  EXPECT_EQ(Judge(job).condition, Condition::kFine);
  newest.set_began_unix_ms(kNow - kOverdueMinMs);
  EXPECT_EQ(Judge(job).text,
            "stuck: step 130 is not committed 10.0 s after its begin: shard 1 has 0 of 1 replicas; "
            "step 120 was committed 3.2 s ago");
  // A job whose commits take long is given longer.
  job.mutable_leader()->mutable_snapshots(0)->set_began_unix_ms(kNow - 3200 - kOverdueMinMs);
  EXPECT_EQ(Judge(job).condition, Condition::kFine);
}

TEST(Verdict, AnAbandonedNewestIsStuckUntilANewerCommit) {
  wire::JobReply job = HealthyJob();
  AddSnapshot(job, 110, SnapshotStatus::ABANDONED, 9000).set_reason("tags differ");
  EXPECT_EQ(Judge(job).condition, Condition::kFine);
  AddSnapshot(job, 130, SnapshotStatus::ABANDONED, 900).set_reason("tags differ");
  EXPECT_THAT(Judge(job).text, StartsWith("stuck: step 130 was given up: tags differ"));
}

// Goal:   what a reconfiguration left behind is neither the last commit nor a stuck save.
// Method: step 115 of generation 1 is committed but off the lineage, step 118 was being saved.
TEST(Verdict, LeftoversOfEarlierGenerationsDoNotCount) {
  wire::JobReply job = HealthyJob();
  job.mutable_record()->clear_committed();
  auto& base = *job.mutable_record()->add_committed();
  base.set_generation(1);
  base.set_step(100);
  job.mutable_leader()->mutable_state()->set_last_committed_step(100);
  job.mutable_leader()->clear_snapshots();
  for (const uint64_t step : {100, 115, 118}) {
    AddSnapshot(job, step, step == 118 ? SnapshotStatus::SAVING : SnapshotStatus::COMMITTED, 60'000)
        .mutable_snapshot()
        ->set_generation(1);
  }
  EXPECT_EQ(FindLastCommit(job)->snapshot, (SnapshotId{Generation(1), Step(100)}));
  EXPECT_EQ(FindUncommitted(job), nullptr);
  job.clear_record();  // Without the metadata store the leader's word is enough.
  EXPECT_EQ(FindLastCommit(job)->snapshot, (SnapshotId{Generation(1), Step(100)}));
}

TEST(Verdict, ReconfigurationNamesWhoIsMissing) {
  wire::JobReply job = HealthyJob();
  job.mutable_leader()->set_waiting_uuid("uuid-3");
  job.mutable_leader()->add_missing_ranks(1);
  AddUnderProtected(job, 1);  // A node was just lost; that is what the reconfiguration is for.
  EXPECT_EQ(Judge(job).text, "reconfiguring: waiting for rank 1; step 120 was committed 3.2 s ago");
  EXPECT_TRUE(Judge(job).ok());
  AddUnderProtected(job, 0);
  EXPECT_EQ(Judge(job).condition, Condition::kLost);
}

TEST(Verdict, AReconfigurationSaysSinceWhenAndIsStuckInTheEnd) {
  wire::JobReply job = HealthyJob();
  job.mutable_leader()->set_waiting_uuid("uuid-3");
  job.mutable_leader()->set_waiting_since_unix_ms(kNow - 12'000);
  job.mutable_leader()->add_missing_ranks(0);
  job.mutable_leader()->add_missing_ranks(1);
  EXPECT_THAT(Judge(job).text, StartsWith("reconfiguring: for 12.0 s, waiting for all 2 ranks; "));
  job.mutable_leader()->set_waiting_since_unix_ms(kNow - kInterruptedOverdueMs);
  EXPECT_EQ(Judge(job).condition, Condition::kStuck);
  EXPECT_THAT(Judge(job).text, StartsWith("stuck: reconfiguring for 5 min, waiting for all"));
  EXPECT_FALSE(Judge(job).ok());
}

// A fault was seen, and nobody reconfigures: the last commit stands, but nothing new is saved.
TEST(Verdict, AFencedJobIsNotFine) {
  wire::JobReply job = HealthyJob();
  auto& fence = *job.mutable_leader()->mutable_fence();
  fence.set_unix_ms(kNow - 2500);
  fence.set_by("rank 0 on node-1: peer closed");
  fence.add_gone_ranks(1);
  EXPECT_EQ(Judge(job).condition, Condition::kFenced);
  EXPECT_EQ(Judge(job).text,
            "fenced: for 2.5 s, by rank 0 on node-1: peer closed; nothing is saved until the ranks "
            "reconfigure, and no trainer is there for rank 1; step 120 was committed 3.2 s ago");
  EXPECT_TRUE(Judge(job).ok());
  const View view = ShowWhy(job, {}, {});
  EXPECT_EQ(view.json["condition"], "fenced");
  EXPECT_EQ(view.json["fence"]["unix_ms"], kNow - 2500);
  EXPECT_EQ(view.json["fence"]["gone_ranks"], Json::array({1}));
  fence.set_unix_ms(kNow - kInterruptedOverdueMs);
  EXPECT_EQ(Judge(job).condition, Condition::kStuck);
  EXPECT_EQ(ShowWhy(job, {}, {}).exit_code, kExitData);
  // What is lost, or waited for, says more.
  job.mutable_leader()->set_waiting_uuid("uuid-3");
  EXPECT_THAT(Judge(job).text, HasSubstr("reconfiguring"));
  AddUnderProtected(job, 0);
  EXPECT_EQ(Judge(job).condition, Condition::kLost);
}

TEST(Verdict, ASilentLeaderIsNotTakenForALoss) {
  wire::JobReply job = HealthyJob();
  job.clear_leader();
  job.set_leader_answered(false);
  job.set_leader_error("deadline: no answer");
  EXPECT_EQ(Judge(job).condition, Condition::kUnknown);
  EXPECT_THAT(Judge(job).text, HasSubstr("its leader node-1 does not answer"));
  EXPECT_THAT(Judge(job).text, HasSubstr("step 120 was committed 3.2 s ago"));
  // Between two leaders nobody stands for the job either.
  job.clear_elected();
  EXPECT_EQ(Judge(job).condition, Condition::kUnknown);
}

TEST(Verdict, NothingYetAndEnded) {
  wire::JobReply job = HealthyJob();
  job.mutable_record()->clear_committed();
  job.mutable_leader()->clear_snapshots();
  EXPECT_EQ(Judge(job).condition, Condition::kEmpty);
  EXPECT_TRUE(Judge(job).ok());
  job.mutable_record()->set_ended(true);
  job.mutable_record()->set_ended_unix_ms(kNow - 5000);
  EXPECT_EQ(Judge(job).text, "ended 5.0 s ago");
}

TEST(Why, JsonHasEveryDocumentedField) {
  wire::JobReply job = HealthyJob();
  AddSnapshot(job, 130, SnapshotStatus::SAVING, 100).set_reason("rank 1 is copying");
  AddUnderProtected(job, 1);
  job.mutable_leader()->set_waiting_uuid("uuid-3");
  job.mutable_leader()->add_missing_ranks(1);
  wire::ClusterReply cluster;
  cluster.add_nodes()->mutable_node()->set_node_id("node-4");
  cluster.mutable_nodes(0)->set_error("deadline");
  const View view = ShowWhy(job, cluster, {});
  const Json& json = view.json;
  EXPECT_EQ(json["job"], "job");
  EXPECT_EQ(json["leader_answered"], true);
  EXPECT_EQ(json["leader"], (Json{{"node", "node-1"}, {"term", 7}}));
  EXPECT_EQ(json["generation"], 2);
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["condition"], "reconfiguring");
  EXPECT_EQ(json["last_commit"]["step"], 120);
  EXPECT_EQ(json["last_commit"]["age_ms"], 3200);
  EXPECT_EQ(json["under_protected"][0]["holders"], 1);
  EXPECT_EQ(json["newest"]["reason"], "rank 1 is copying");
  EXPECT_EQ(json["decision"]["rejected"][0], "step 110: rank 1's shard is gone");
  EXPECT_EQ(json["decision"]["base"]["step"], 100);
  EXPECT_EQ(json["reconfiguration"]["missing_ranks"], Json::array({1}));
  EXPECT_EQ(json["outlook"][0]["loses_committed"], false);
  EXPECT_EQ(json["timeline"][0]["what"], "committed");
  EXPECT_EQ(json["silent_nodes"][0]["node"], "node-4");
  EXPECT_THAT(view.text, HasSubstr("node-4 is not answering"));
  EXPECT_THAT(view.text, HasSubstr("rejected: step 110"));
}

TEST(Why, WhatIsNotThereIsNullAndTheTimelineIsAskedFor) {
  const View view = ShowWhy(HealthyJob(), {}, {});
  EXPECT_TRUE(view.json["newest"].is_null());
  EXPECT_TRUE(view.json["reconfiguration"].is_null());
  EXPECT_TRUE(view.json["fence"].is_null());
  EXPECT_EQ(view.exit_code, kExitFine);
  EXPECT_THAT(view.text, ::testing::Not(HasSubstr("DETAIL")));
  EXPECT_THAT(ShowWhy(HealthyJob(), {}, {.timeline = true}).text, HasSubstr("DETAIL"));
}

TEST(Why, ARecordOfAnOddNameIsStillJson) {
  wire::JobReply job = HealthyJob();
  job.mutable_record()->set_job("bad\xff\nname");
  job.mutable_leader()->mutable_timeline(0)->set_detail("a\xfe");
  const View view = ShowWhy(job, {}, {});
  EXPECT_EQ(view.json["job"], "bad\\xff\\x0aname");
  EXPECT_TRUE(Json::accept(view.json.dump()));
}

TEST(Ls, ShowsEverySnapshotAndFallsBackToTheRecord) {
  wire::JobReply job = HealthyJob();
  AddSnapshot(job, 130, SnapshotStatus::SAVING, 100);
  View view = ShowSnapshots(job);
  EXPECT_EQ(view.json["snapshots"].size(), 2u);
  EXPECT_EQ(view.json["snapshots"][0]["shards"][0]["holders"], Json::array({"node-1", "node-2"}));
  EXPECT_EQ(view.json["snapshots"][1]["state"], "saving");
  EXPECT_EQ(view.exit_code, kExitFine);
  job.clear_leader();
  job.set_leader_answered(false);
  view = ShowSnapshots(job);
  EXPECT_EQ(view.json["snapshots"].size(), 1u);
  EXPECT_EQ(view.json["snapshots"][0]["root"], std::string("0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"));
  EXPECT_EQ(view.exit_code, kExitData);
}

TEST(Status, ShowsNodesMemoryPeersAndJobs) {
  wire::ClusterReply cluster;
  cluster.set_store_id("store");
  cluster.set_metadata_reachable(true);
  wire::NodeReport& node = *cluster.add_nodes();
  node.mutable_node()->set_node_id("node-1");
  node.mutable_node()->set_incarnation(3);
  node.add_domains("rack-1");
  node.add_domains("host-1");
  node.set_answered(true);
  node.mutable_status()->set_budget_bytes(uint64_t{1} << 40);
  node.mutable_status()->set_own_bytes(3 * kMiB);
  auto& peer = *node.mutable_status()->add_peers();
  peer.set_node_id("node-2");
  peer.set_transport("tcp");
  peer.set_bytes_read(5);
  wire::JobsReply jobs;
  wire::JobOverview& job = *jobs.add_jobs();
  job.mutable_record()->set_job("job");
  job.mutable_leader()->set_node_id("node-1");
  job.set_leader_answered(true);
  job.set_waiting_uuid("u");
  job.add_missing_ranks(3);
  View view = ShowStatus(cluster, jobs, kNow);
  EXPECT_EQ(view.exit_code, kExitFine);
  const Json& shown = view.json["nodes"][0];
  EXPECT_EQ(shown["memory"]["budget"], uint64_t{1} << 40);
  EXPECT_EQ(shown["domains"], Json::array({"rack-1", "host-1"}));
  EXPECT_EQ(shown["peers"][0]["transport"], "tcp");
  EXPECT_TRUE(shown["error"].is_null());
  EXPECT_THAT(view.text, HasSubstr("rack-1/host-1"));
  EXPECT_THAT(view.text, HasSubstr("1.0 TiB"));
  EXPECT_THAT(view.text, HasSubstr("reconfiguring, waiting for rank 3"));
  jobs.mutable_jobs(0)->clear_waiting_uuid();
  jobs.mutable_jobs(0)->set_fenced_unix_ms(kNow - 3200);
  EXPECT_THAT(ShowStatus(cluster, jobs, kNow).text, HasSubstr("fenced 3.2 s ago"));
  EXPECT_EQ(ShowJobs(jobs, kNow).json["jobs"][0]["fenced_unix_ms"], kNow - 3200);

  cluster.add_nodes()->mutable_node()->set_node_id("node-2");
  cluster.mutable_nodes(1)->set_error("deadline: no answer");
  view = ShowStatus(cluster, jobs, kNow);
  EXPECT_EQ(view.exit_code, kExitData);
  EXPECT_THAT(view.text, HasSubstr("does not answer: deadline"));
  EXPECT_EQ(view.json["nodes"][1]["answered"], false);
}

store::TensorEntry Tensor(const std::string& name, store::Slice slice) {
  store::TensorEntry tensor;
  tensor.name = name;
  tensor.dtype = store::Dtype::kFp32;
  tensor.shape = {4};
  tensor.global_shape = {8};
  tensor.slice = std::move(slice);
  tensor.size_bytes = 16;
  return tensor;
}

std::string ManifestOf(uint64_t rank) {
  store::Manifest manifest;
  manifest.name = {JobName("job"), {Generation(2), Step(120)}, ShardId(std::to_string(rank))};
  manifest.rank = Rank(rank);
  manifest.world_size = 2;
  manifest.size_bytes = 16;
  manifest.chunk_bytes = 4096;
  manifest.chunk_checksums = {Hash128{1, 2}};
  manifest.contents.tensors = {Tensor("w", store::FlatSlice{4 * rank, 4, 0})};
  manifest.contents.tags = {{"samples", "9"}};
  return store::EncodeManifest(manifest).value();
}

TEST(Show, OneRankInDetailAllRanksMerged) {
  wire::SnapshotReply snapshot;
  snapshot.mutable_snapshot()->set_step(120);
  snapshot.mutable_snapshot()->set_generation(2);
  snapshot.set_world_size(2);
  snapshot.add_shards()->set_manifest(ManifestOf(0));
  View view = ShowTensors(JobName("job"), snapshot, std::nullopt);
  EXPECT_THAT(view.text, HasSubstr("elements 0:4"));
  EXPECT_THAT(view.text, HasSubstr("samples"));
  EXPECT_EQ(view.json["shards"][0]["tensors"][0]["slice"]["kind"], "flat");
  EXPECT_EQ(view.exit_code, kExitFine);
  snapshot.add_shards()->set_manifest(ManifestOf(1));
  view = ShowTensors(JobName("job"), snapshot, std::nullopt);
  EXPECT_THAT(view.text, HasSubstr("elements 0:4, ..."));
  EXPECT_THAT(view.text, HasSubstr("32 B"));
  wire::ShardReplicas& broken = *snapshot.add_shards();
  broken.set_manifest("garbage");
  broken.set_rank(2);
  view = ShowTensors(JobName("job"), snapshot, std::nullopt);
  EXPECT_EQ(view.exit_code, kExitData);
  EXPECT_THAT(view.text, HasSubstr("rank 2: "));
}

TEST(Show, ARankOfACommittedSnapshotThatNobodyHoldsIsAProblem) {
  wire::SnapshotReply snapshot;
  snapshot.set_world_size(2);
  snapshot.add_shards()->set_manifest(ManifestOf(0));
  EXPECT_EQ(ShowTensors(JobName("job"), snapshot, std::nullopt).exit_code, kExitFine);
  snapshot.set_committed(true);
  const View view = ShowTensors(JobName("job"), snapshot, std::nullopt);
  EXPECT_EQ(view.exit_code, kExitData);
  EXPECT_THAT(view.text, HasSubstr("rank 1: no node that answered holds its shard"));
  EXPECT_EQ(view.json["missing_ranks"], Json::array({1}));
  EXPECT_EQ(ShowTensors(JobName("job"), snapshot, 0).exit_code, kExitFine);
}

wire::VerifyProgress Verified(const std::string& shard, const std::string& node) {
  wire::VerifyProgress answer;
  answer.set_shard_id(shard);
  answer.set_node_id(node);
  answer.set_chunks(4);
  answer.set_wanted_replicas(2);
  return answer;
}

TEST(Verify, EveryReplicaIsListedAndCounted) {
  CommandLine line;
  line.job = "job";
  std::vector<wire::VerifyProgress> answers = {Verified("0", "node-1"), Verified("0", "node-2")};
  EXPECT_EQ(ShowVerify(line, answers).exit_code, kExitFine);
  answers[1].add_bad_chunks(3);
  View view = ShowVerify(line, answers);
  EXPECT_EQ(view.exit_code, kExitData);
  EXPECT_THAT(view.text, HasSubstr("1 bad chunk: 3"));
  EXPECT_EQ(view.json["too_few"][0]["good"], 1);
  EXPECT_EQ(view.json["replicas"][1]["bad_chunks"], Json::array({3}));
  answers.pop_back();
  view = ShowVerify(line, answers);  // All that exists is good, but it is too little.
  EXPECT_EQ(view.exit_code, kExitData);
  EXPECT_EQ(ShowVerify(line, {}).exit_code, kExitData);
}

TEST(Verify, ARankWithoutAHolderHasNoShardId) {
  CommandLine line;
  line.job = "job";
  std::vector<wire::VerifyProgress> answers = {Verified("0", "node-1"), Verified("0", "node-2")};
  wire::VerifyProgress& missing = answers.emplace_back();
  missing.set_rank(1);
  missing.set_no_holder(true);
  missing.set_error("no node that answered holds this rank's shard");
  const View view = ShowVerify(line, answers);
  EXPECT_EQ(view.exit_code, kExitData);
  EXPECT_EQ(view.json["replicas"][2]["rank"], 1);
  EXPECT_TRUE(view.json["replicas"][2]["shard"].is_null());
}

TEST(ExitCodes, SayWhoseFaultItIs) {
  EXPECT_EQ(ExitCode(NotFound("")), kExitUsage);
  EXPECT_EQ(ExitCode(InvalidArgument("")), kExitUsage);
  EXPECT_EQ(ExitCode(Corrupt("")), kExitData);
  EXPECT_EQ(ExitCode(NoSpace("")), kExitData);
  EXPECT_EQ(ExitCode(Unavailable("")), kExitUnreachable);
  EXPECT_EQ(ExitCode(DeadlineExceeded("")), kExitUnreachable);
}

TEST(Tables, ColumnsAreAsWideAsNeeded) {
  Table table({"NAME", ">BYTES"});
  table.Add({"é", "7"});
  table.Add({"longer", "1024"});
  EXPECT_EQ(table.Render(), "NAME    BYTES\né           7\nlonger   1024\n");
  EXPECT_EQ(FormatAge(50), "now");
  EXPECT_EQ(FormatAge(-50), "now");
  EXPECT_EQ(FormatAge(3200), "3.2 s");
  EXPECT_EQ(FormatAge(150'000), "2 min");
  EXPECT_EQ(FormatAge(10'000'000), "2 h");
  EXPECT_EQ(FormatAge(200'000'000), "2 d");
}

}  // namespace
}  // namespace backstay::tools
