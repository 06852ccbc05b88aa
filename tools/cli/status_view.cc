// `backstay status` and `backstay jobs`.

#include <algorithm>
#include <set>

#include "base/units.h"
#include "tools/cli/names.h"
#include "tools/cli/table.h"
#include "tools/cli/verdict.h"
#include "tools/cli/view.h"

namespace backstay::tools {
namespace {

using replication::wire::NodeStatusReply;

Json MemoryJson(const NodeStatusReply& s) {
  return {{"budget", s.budget_bytes()},
          {"reserved", s.reserved_bytes()},
          {"own", s.own_bytes()},
          {"held", s.held_bytes()},
          {"in_flight", s.in_flight_bytes()},
          {"fetched", s.fetched_bytes()},
          {"pinned", s.pinned_bytes()},
          {"quarantined", s.quarantined_bytes()},
          {"free", s.free_slot_bytes()},
          {"repair_reserve", s.repair_reserve_bytes()}};
}

Json ScrubJson(const replication::wire::Scrub& scrub) {
  return {{"bytes_per_second", scrub.bytes_per_second()},
          {"bytes", scrub.bytes()},
          {"bad_shards", scrub.bad_shards()},
          {"passes", scrub.passes()},
          {"last_pass_unix_ms",
           scrub.last_pass_unix_ms() == 0 ? Json() : Json(scrub.last_pass_unix_ms())}};
}

Json NodeJson(const wire::NodeReport& node) {
  const NodeStatusReply& s = node.status();
  Json peers = Json::array();
  for (const auto& peer : s.peers()) {
    peers.push_back({{"node", ShowName(peer.node_id())},
                     {"transport", ShowName(peer.transport())},
                     {"bytes_read", peer.bytes_read()},
                     {"bytes_served", peer.bytes_served()},
                     {"lanes", peer.lanes()},
                     {"failures", peer.failures()}});
  }
  Json jobs = Json::array();
  for (const auto& job : s.jobs()) {
    uint64_t bytes = 0;
    for (const auto& shard : job.shards()) bytes += shard.size_bytes();
    jobs.push_back({{"job", ShowName(job.job())},
                    {"generation", job.generation()},
                    {"trainers", job.trainers()},
                    {"shards", job.shards_size()},
                    {"bytes", bytes}});
  }
  Json domains = Json::array();
  for (const auto& domain : node.domains()) domains.push_back(ShowName(domain));
  if (node.domains().empty()) {
    for (const auto& domain : s.domains()) domains.push_back(ShowName(domain));
  }
  return {{"node", ShowName(node.node().node_id())},
          {"incarnation", node.node().incarnation()},
          {"domains", domains},
          {"answered", node.answered()},
          {"error", node.error().empty() ? Json() : Json(ShowText(node.error()))},
          {"memory", MemoryJson(s)},
          {"scrub", ScrubJson(s.scrub())},
          {"huge_pages", s.huge_pages()},
          {"peers", peers},
          {"control_address",
           ShowName(node.control_address().empty() ? s.control_address() : node.control_address())},
          {"data_address", ShowName(s.data_address())},
          {"serves_metadata", s.serves_metadata()},
          {"started_unix_ms", s.started_unix_ms()},
          {"version", ShowName(s.version())},
          {"jobs", jobs}};
}

Json JobJson(const wire::JobOverview& job) {
  const replication::wire::JobRecord& record = job.record();
  Json committed;
  if (record.committed_size() > 0) {
    const auto& last = record.committed(record.committed_size() - 1);
    committed = {{"generation", last.generation()},
                 {"step", last.step()},
                 {"bytes", last.bytes()},
                 {"committed_unix_ms", last.committed_unix_ms()}};
  }
  Json leader;
  if (job.has_leader()) {
    leader = {{"node", ShowName(job.leader().node_id())}, {"term", job.term()}};
  }
  Json reconfiguration;
  if (!job.waiting_uuid().empty()) {
    reconfiguration = {{"uuid", ShowName(job.waiting_uuid())},
                       {"missing_ranks", job.missing_ranks()}};
  }
  const std::string& error = job.record_error().empty() ? job.leader_error() : job.record_error();
  return {{"job", ShowName(record.job())},
          {"generation", record.generation()},
          {"world_size", record.world_size()},
          {"replicas", record.replicas()},
          {"versions", record.versions()},
          {"ended", record.ended()},
          {"leader", leader},
          {"leader_answered", job.leader_answered()},
          {"error", error.empty() ? Json() : Json(ShowText(error))},
          {"last_commit", committed},
          {"under_protected", job.under_protected()},
          {"reconfiguration", reconfiguration},
          {"fenced_unix_ms", job.fenced_unix_ms()}};
}

Json JobsJson(const wire::JobsReply& jobs) {
  Json list = Json::array();
  for (const wire::JobOverview& job : jobs.jobs()) list.push_back(JobJson(job));
  return list;
}

std::string Domains(const wire::NodeReport& node) {
  std::string text;
  for (const auto& domain : node.domains()) text += (text.empty() ? "" : "/") + ShowName(domain);
  return text.empty() ? "-" : text;
}

std::string NodesText(const wire::ClusterReply& cluster) {
  Table table({"NODE", ">START", "DOMAINS", ">BUDGET", ">RESERVED", ">OWN", ">HELD", ">IN FLIGHT",
               ">PINNED", ">QUARANTINED", "STATE"});
  for (const wire::NodeReport& node : cluster.nodes()) {
    const NodeStatusReply& s = node.status();
    std::vector<std::string> cells = {ShowName(node.node().node_id()),
                                      std::to_string(node.node().incarnation()), Domains(node)};
    if (!node.answered()) {
      cells.resize(10, "-");
      cells.push_back("does not answer");
    } else {
      for (const uint64_t bytes :
           {s.budget_bytes(), s.reserved_bytes(), s.own_bytes(), s.held_bytes(),
            s.in_flight_bytes(), s.pinned_bytes(), s.quarantined_bytes()}) {
        cells.push_back(bytes == 0 ? "0" : FormatBytes(bytes));
      }
      cells.push_back(std::string(s.serves_metadata() ? "serves the metadata store" : "up") +
                      (s.huge_pages() ? ", huge pages" : ""));
    }
    table.Add(std::move(cells));
  }
  std::string text = table.Render();
  for (const wire::NodeReport& node : cluster.nodes()) {
    if (node.answered()) continue;
    text += ShowName(node.node().node_id()) + " does not answer: " + ShowText(node.error()) + "\n";
  }
  for (const wire::NodeReport& node : cluster.nodes()) {
    const uint64_t bad = node.status().scrub().bad_shards();
    if (bad == 0) continue;
    text += ShowName(node.node().node_id()) + ": scrubbing its memory found " +
            Count(bad, "damaged shard") + " since it started\n";
  }
  std::string departed;
  for (const auto& node : cluster.departed()) {
    departed += (departed.empty() ? "" : ", ") + ShowName(node);
  }
  if (!departed.empty()) text += "not members now: " + departed + "\n";
  return text;
}

std::string PeersText(const wire::ClusterReply& cluster) {
  Table table({"NODE", "PEER", "TRANSPORT", ">LANES", ">READ", ">SERVED", ">FAILURES"});
  for (const wire::NodeReport& node : cluster.nodes()) {
    for (const auto& peer : node.status().peers()) {
      table.Add({ShowName(node.node().node_id()), ShowName(peer.node_id()),
                 ShowName(peer.transport()), peer.lanes() == 0 ? "-" : std::to_string(peer.lanes()),
                 FormatBytes(peer.bytes_read()), FormatBytes(peer.bytes_served()),
                 std::to_string(peer.failures())});
    }
  }
  return table.empty() ? "" : "\n" + table.Render();
}

std::string JobState(const wire::JobOverview& job, int64_t now_unix_ms) {
  if (!job.record_error().empty()) return ShowText(job.record_error());
  if (job.record().ended()) return "ended";
  if (!job.leader_answered() && job.has_leader()) {
    return "its leader does not answer: " + ShowText(job.leader_error());
  }
  if (!job.has_leader()) return "nobody leads it";
  if (!job.waiting_uuid().empty()) {
    return "reconfiguring, " +
           (job.missing_ranks().empty()
                ? std::string("all ranks present")
                : "waiting for " + RanksText(job.missing_ranks(), job.record().world_size()));
  }
  if (job.fenced_unix_ms() != 0) {
    return "fenced " + FormatAgo(job.fenced_unix_ms(), now_unix_ms) +
           ", no rank has called to reconfigure";
  }
  if (job.under_protected() > 0) {
    return Count(job.under_protected(), "shard") + " with too few copies";
  }
  return "fine";
}

std::string JobsText(const wire::JobsReply& jobs, int64_t now_unix_ms) {
  Table table({"JOB", ">GENERATION", ">RANKS", ">REPLICAS", ">COMMITTED STEP", ">AGE", ">BYTES",
               "LEADER", "STATE"});
  for (const wire::JobOverview& job : jobs.jobs()) {
    const replication::wire::JobRecord& record = job.record();
    const bool any = record.committed_size() > 0;
    const auto last =
        any ? record.committed(record.committed_size() - 1) : replication::wire::RecordedSnapshot();
    table.Add({ShowName(record.job()), std::to_string(record.generation()),
               std::to_string(record.world_size()), std::to_string(record.replicas()),
               any ? std::to_string(last.step()) : "-",
               FormatAgeSince(last.committed_unix_ms(), now_unix_ms),
               any ? FormatBytes(last.bytes()) : "-",
               job.has_leader() ? ShowName(job.leader().node_id()) : "-",
               JobState(job, now_unix_ms)});
  }
  return table.empty() ? "no jobs\n" : table.Render();
}

}  // namespace

View ShowStatus(const wire::ClusterReply& cluster, const wire::JobsReply& jobs,
                int64_t now_unix_ms) {
  View view;
  Json nodes = Json::array();
  for (const wire::NodeReport& node : cluster.nodes()) {
    nodes.push_back(NodeJson(node));
    if (!node.answered()) view.exit_code = kExitData;
  }
  Json departed = Json::array();
  for (const auto& node : cluster.departed()) departed.push_back(ShowName(node));
  if (!cluster.metadata_reachable()) view.exit_code = kExitData;
  view.json = {{"store_id", ShowName(cluster.store_id())},
               {"asked_node", ShowName(cluster.asked_node())},
               {"metadata_reachable", cluster.metadata_reachable()},
               {"nodes", nodes},
               {"departed", departed},
               {"jobs", JobsJson(jobs)}};
  view.text = NodesText(cluster);
  if (!cluster.metadata_reachable()) {
    view.text +=
        "\nThe metadata store does not answer: nothing is committed and no reconfiguration is "
        "decided until it does. Shards are kept.\n";
  } else {
    view.text += PeersText(cluster) + "\n" + JobsText(jobs, now_unix_ms);
  }
  return view;
}

View ShowJobs(const wire::JobsReply& jobs, int64_t now_unix_ms) {
  const bool fine = std::ranges::all_of(jobs.jobs(), [](const wire::JobOverview& job) {
    const bool is_silent = job.has_leader() && !job.leader_answered();
    return job.record_error().empty() && !is_silent;
  });
  return {JobsText(jobs, now_unix_ms), {{"jobs", JobsJson(jobs)}}, fine ? kExitFine : kExitData};
}

}  // namespace backstay::tools
