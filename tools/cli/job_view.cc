// `backstay ls` and `backstay why`.

#include <set>

#include "base/units.h"
#include "tools/cli/names.h"
#include "tools/cli/table.h"
#include "tools/cli/view.h"

namespace backstay::tools {
namespace {

using replication::wire::SnapshotStatus;

std::string StateName(SnapshotStatus::State state) {
  switch (state) {
    case SnapshotStatus::COMMITTED:
      return "committed";
    case SnapshotStatus::ABANDONED:
      return "abandoned";
    case SnapshotStatus::UNCOMMITTED_BASE:
      return "uncommitted base";
    default:
      return "saving";
  }
}

Json HoldersJson(const SnapshotStatus& snapshot) {
  Json shards = Json::array();
  for (const auto& shard : snapshot.shards()) {
    Json holders = Json::array();
    for (const auto& holder : shard.holders()) holders.push_back(ShowName(holder.node_id()));
    shards.push_back({{"shard", ShowName(shard.shard_id())},
                      {"rank", shard.rank()},
                      {"digest", Hex(shard.digest())},
                      {"bytes", shard.size_bytes()},
                      {"holders", holders}});
  }
  return shards;
}

Json SnapshotJson(const SnapshotStatus& snapshot) {
  return {{"generation", snapshot.snapshot().generation()},
          {"step", snapshot.snapshot().step()},
          {"state", StateName(snapshot.state())},
          {"ranks_sealed", snapshot.ranks_sealed()},
          {"ranks_protected", snapshot.ranks_protected()},
          {"bytes", snapshot.bytes()},
          {"began_unix_ms", snapshot.began_unix_ms()},
          {"committed_unix_ms", snapshot.committed_unix_ms()},
          {"root", Hex(snapshot.root())},
          {"reason", ShowText(snapshot.reason())}};
}

std::string HolderNames(const SnapshotStatus& snapshot) {
  std::set<std::string> nodes;
  for (const auto& shard : snapshot.shards()) {
    for (const auto& holder : shard.holders()) nodes.insert(ShowName(holder.node_id()));
  }
  std::string text;
  for (const std::string& node : nodes) text += (text.empty() ? "" : " ") + node;
  return text.empty() ? "-" : text;
}

// As the leader tells them; without it, as recorded.
std::vector<SnapshotStatus> Snapshots(const wire::JobReply& job) {
  std::vector<SnapshotStatus> snapshots(job.leader().snapshots().begin(),
                                        job.leader().snapshots().end());
  if (job.leader_answered()) return snapshots;
  for (const auto& recorded : job.record().committed()) {
    SnapshotStatus& snapshot = snapshots.emplace_back();
    snapshot.mutable_snapshot()->set_generation(recorded.generation());
    snapshot.mutable_snapshot()->set_step(recorded.step());
    snapshot.set_state(SnapshotStatus::COMMITTED);
    snapshot.set_bytes(recorded.bytes());
    snapshot.set_root(recorded.root());
    snapshot.set_committed_unix_ms(recorded.committed_unix_ms());
  }
  return snapshots;
}

std::string JobNameOf(const wire::JobReply& job) { return job.record().job(); }

Json LeaderJson(const wire::JobReply& job) {
  if (!job.has_elected()) return Json();
  return {{"node", ShowName(job.elected().node_id())}, {"term", job.term()}};
}

Json LastCommitJson(const wire::JobReply& job) {
  const std::optional<LastCommit> last = FindLastCommit(job);
  if (!last.has_value()) return Json();
  return {{"generation", last->snapshot.generation.value},
          {"step", last->snapshot.step.value},
          {"committed_unix_ms", last->committed_unix_ms},
          {"age_ms", job.now_unix_ms() - last->committed_unix_ms},
          {"root", Hex(last->root)},
          {"bytes", last->bytes},
          {"nodes", last->node_count}};
}

Json HealthJson(const wire::JobReply& job) {
  Json list = Json::array();
  for (const auto& health : job.leader().state().under_protected()) {
    list.push_back({{"shard", ShowName(health.shard().shard_id())},
                    {"generation", health.shard().snapshot().generation()},
                    {"step", health.shard().snapshot().step()},
                    {"holders", health.holders()},
                    {"wanted", health.wanted()}});
  }
  return list;
}

// Of the current generation; the leader's word and the record's hold the same.
Json DecisionJson(const wire::JobReply& job) {
  const replication::wire::RecordedDecision& recorded = job.record().decision();
  const replication::wire::Decision& told = job.leader().decision();
  const bool use_told = !told.uuid().empty();
  if (!use_told && recorded.uuid().empty()) return Json();
  Json rejected = Json::array();
  const auto& candidates =
      job.leader().rejected().empty() ? recorded.rejected() : job.leader().rejected();
  for (const std::string& candidate : candidates) rejected.push_back(ShowText(candidate));
  Json base;
  if (!(use_told ? told.fresh() : recorded.fresh())) {
    base = {{"generation", use_told ? told.base().generation() : recorded.base_generation()},
            {"step", use_told ? told.base().step() : recorded.base_step()},
            {"root", Hex(use_told ? told.base_root() : recorded.base_root())},
            {"committed", use_told ? told.base_committed() : recorded.base_committed()},
            {"job", ShowName(use_told ? told.base_job() : recorded.base_job())}};
  }
  return {{"uuid", ShowName(use_told ? told.uuid() : recorded.uuid())},
          {"generation", use_told ? told.generation() : job.record().generation()},
          {"attempt", use_told ? told.attempt() : recorded.attempt()},
          {"fresh", use_told ? told.fresh() : recorded.fresh()},
          {"base", base},
          {"resumed", use_told ? told.resumed() : recorded.resumed()},
          {"why", ShowText(use_told ? told.why() : recorded.why())},
          {"rejected", rejected}};
}

Json ReconfigurationJson(const wire::JobReply& job) {
  const std::string& uuid = job.leader().waiting_uuid().empty() ? job.record().closing_uuid()
                                                                : job.leader().waiting_uuid();
  if (uuid.empty()) return Json();
  return {{"uuid", ShowName(uuid)},
          {"missing_ranks", job.leader().missing_ranks()},
          {"since_unix_ms", job.leader().waiting_since_unix_ms()},
          {"closing", !job.record().closing_uuid().empty()}};
}

Json FenceJson(const wire::JobReply& job) {
  if (!job.leader().has_fence()) return Json();
  const auto& fence = job.leader().fence();
  return {{"unix_ms", fence.unix_ms()},
          {"by", ShowText(fence.by())},
          {"gone_ranks", fence.gone_ranks()}};
}

Json SilentJson(const wire::ClusterReply& cluster) {
  Json nodes = Json::array();
  for (const wire::NodeReport& node : cluster.nodes()) {
    if (node.answered()) continue;
    nodes.push_back({{"node", ShowName(node.node().node_id())}, {"error", ShowText(node.error())}});
  }
  return nodes;
}

Json WhyJson(const wire::JobReply& job, const wire::ClusterReply& cluster, const Verdict& verdict) {
  const SnapshotStatus* newest = FindUncommitted(job);
  Json outlook = Json::array();
  for (const auto& loss : job.leader().outlook()) {
    outlook.push_back({{"node", ShowName(loss.node_id())},
                       {"consequence", ShowText(loss.consequence())},
                       {"loses_committed", loss.loses_committed()}});
  }
  Json timeline = Json::array();
  for (const auto& event : job.leader().timeline()) {
    timeline.push_back({{"unix_ms", event.unix_ms()},
                        {"what", ShowText(event.what())},
                        {"detail", ShowText(event.detail())},
                        {"generation", event.generation()}});
  }
  const bool told = job.leader_answered();
  return {{"job", ShowName(JobNameOf(job))},
          {"verdict", verdict.text},
          {"condition", ConditionName(verdict.condition)},
          {"ok", verdict.ok()},
          {"leader_answered", told},
          {"leader_error", told ? Json() : Json(ShowText(job.leader_error()))},
          {"metadata_error",
           job.metadata_error().empty() ? Json() : Json(ShowText(job.metadata_error()))},
          {"leader", LeaderJson(job)},
          {"generation", told ? job.leader().generation() : job.record().generation()},
          {"world_size", told ? job.leader().world_size() : job.record().world_size()},
          {"replicas", told ? job.leader().replicas() : job.record().replicas()},
          {"versions", told ? job.leader().versions() : job.record().versions()},
          {"last_commit", LastCommitJson(job)},
          {"under_protected", HealthJson(job)},
          {"newest", newest == nullptr ? Json() : SnapshotJson(*newest)},
          {"decision", DecisionJson(job)},
          {"reconfiguration", ReconfigurationJson(job)},
          {"fence", FenceJson(job)},
          {"outlook", outlook},
          {"silent_nodes", SilentJson(cluster)},
          {"timeline", timeline},
          {"now_unix_ms", job.now_unix_ms()}};
}

std::string DecisionText(const Json& decision) {
  if (decision.is_null()) return "";
  std::string text = "Last decision: generation " + decision["generation"].dump();
  text += decision["fresh"] ? " starts from nothing"
                            : " grew from step " + decision["base"]["step"].dump() +
                                  " of generation " + decision["base"]["generation"].dump();
  text += decision["resumed"] ? "" : " (not resumed yet)";
  text += decision["attempt"] == 1 ? "" : ", attempt " + decision["attempt"].dump();
  text += "\n";
  if (const auto why = decision["why"].get<std::string>(); !why.empty()) text += "  " + why + "\n";
  for (const Json& rejected : decision["rejected"]) {
    text += "  rejected: " + rejected.get<std::string>() + "\n";
  }
  return text;
}

std::string OutlookText(const wire::JobReply& job) {
  if (job.leader().outlook().empty()) return "";
  Table table({"IF LOST NOW", "THEN"});
  for (const auto& loss : job.leader().outlook()) {
    table.Add({ShowName(loss.node_id()), (loss.loses_committed() ? "LOSES COMMITTED STATE: " : "") +
                                             ShowText(loss.consequence())});
  }
  return "\n" + table.Render() +
         "The metadata store counts apart: without the node that serves it (see status) nothing "
         "commits,\nrestores or registers until it is back with its data directory.\n";
}

std::string TimelineText(const wire::JobReply& job) {
  Table table({"TIME", ">GENERATION", "WHAT", "DETAIL"});
  for (const auto& event : job.leader().timeline()) {
    table.Add({FormatClock(event.unix_ms()), std::to_string(event.generation()),
               ShowText(event.what()), ShowText(event.detail())});
  }
  return "\n" + (table.empty() ? "the leader remembers nothing yet\n" : table.Render());
}

}  // namespace

View ShowSnapshots(const wire::JobReply& job) {
  View view;
  const uint32_t world_size =
      job.leader_answered() ? job.leader().world_size() : job.record().world_size();
  Json list = Json::array();
  Table table({">GENERATION", ">STEP", "STATE", ">PROTECTED", ">BYTES", ">AGE", "HOLDERS", "WHY"});
  for (const SnapshotStatus& snapshot : Snapshots(job)) {
    Json json = SnapshotJson(snapshot);
    json["shards"] = HoldersJson(snapshot);
    list.push_back(std::move(json));
    const int64_t since =
        snapshot.committed_unix_ms() != 0 ? snapshot.committed_unix_ms() : snapshot.began_unix_ms();
    table.Add({std::to_string(snapshot.snapshot().generation()),
               std::to_string(snapshot.snapshot().step()), StateName(snapshot.state()),
               job.leader_answered()
                   ? std::to_string(snapshot.ranks_protected()) + "/" + std::to_string(world_size)
                   : "?",
               FormatBytes(snapshot.bytes()), FormatAgeSince(since, job.now_unix_ms()),
               HolderNames(snapshot), ShowText(snapshot.reason())});
  }
  view.json = {{"job", ShowName(JobNameOf(job))},
               {"leader_answered", job.leader_answered()},
               {"world_size", world_size},
               {"snapshots", list}};
  if (!job.leader_answered()) {
    view.text = "Only what is recorded: " + ShowText(job.leader_error()) + "\n";
    view.exit_code = job.record().ended() ? kExitFine : kExitData;
  }
  view.text += table.empty() ? "no snapshots\n" : table.Render();
  return view;
}

View ShowWhy(const wire::JobReply& job, const wire::ClusterReply& cluster, WhyOptions options) {
  const Verdict verdict = Judge(job);
  View view;
  view.exit_code = verdict.ok() ? kExitFine : kExitData;
  view.json = WhyJson(job, cluster, verdict);
  view.text = verdict.text;
  const Json& silent = view.json["silent_nodes"];
  for (const Json& node : silent) {
    view.text += "; " + node["node"].get<std::string>() + " is not answering";
  }
  view.text += "\n\n";
  if (!job.metadata_error().empty()) {
    view.text += "The metadata store is out of reach, so nothing can be committed or decided: " +
                 ShowText(job.metadata_error()) + "\n";
  }
  if (job.has_elected()) {
    view.text += "Leader: " + ShowName(job.elected().node_id()) + ", term " +
                 std::to_string(job.term()) + "; generation " + view.json["generation"].dump() +
                 "; " + Count(view.json["world_size"].get<uint64_t>(), "rank") + ", " +
                 Count(view.json["replicas"].get<uint64_t>(), "replica") + ", keeps " +
                 Count(view.json["versions"].get<uint64_t>(), "snapshot") + "\n";
  }
  if (const SnapshotStatus* newest = FindUncommitted(job)) {
    view.text +=
        "Newest: step " + std::to_string(newest->snapshot().step()) + " is " +
        (newest->state() == SnapshotStatus::ABANDONED ? "abandoned" : "not committed yet") + ", " +
        std::to_string(newest->ranks_protected()) + " of " + view.json["world_size"].dump() +
        " ranks protected";
    view.text += (newest->reason().empty() ? "" : ": " + ShowText(newest->reason())) + "\n";
  }
  for (const Json& health : view.json["under_protected"]) {
    view.text += "Under-protected: shard " + health["shard"].get<std::string>() + " of step " +
                 health["step"].dump() + " has " + health["holders"].dump() + " of " +
                 health["wanted"].dump() + " copies\n";
  }
  if (const Json& under_way = view.json["reconfiguration"]; !under_way.is_null()) {
    view.text += "Reconfiguration " + under_way["uuid"].get<std::string>() +
                 " is under way; missing ranks: " + under_way["missing_ranks"].dump() + "\n";
  }
  view.text += DecisionText(view.json["decision"]) + OutlookText(job);
  if (options.timeline) view.text += TimelineText(job);
  return view;
}

}  // namespace backstay::tools
