#include "replication/leader_status.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <set>
#include <vector>

#include "base/units.h"
#include "replication/job_record.h"
#include "replication/wire_convert.h"

namespace backstay::replication {
namespace {

void FillShards(const StatusInput& input, const TrackedSnapshot& snapshot,
                wire::SnapshotStatus* status) {
  uint32_t sealed = 0;
  uint32_t is_protected = 0;
  std::vector<wire::ShardSource> sources;
  for (const auto& [id, shard] : snapshot.shards) {
    if (!shard.digest.empty()) ++sealed;
    if (input.tracker->IsShardProtected(shard)) ++is_protected;
    wire::ShardSource& source = sources.emplace_back();
    source.set_shard_id(id.value);
    source.set_rank(shard.rank);
    source.set_digest(shard.digest);
    source.set_size_bytes(shard.size_bytes);
    for (const NodeInstance& holder : input.tracker->LiveHolders(shard)) {
      wire::Instance* instance = source.add_holders();
      instance->set_node_id(holder.node.value);
      instance->set_incarnation(holder.incarnation.value);
    }
  }
  std::ranges::stable_sort(sources, {}, [](const wire::ShardSource& s) { return s.rank(); });
  for (wire::ShardSource& source : sources) *status->add_shards() = std::move(source);
  status->set_ranks_sealed(sealed);
  status->set_ranks_protected(is_protected);
}

std::string RanksText(const std::vector<uint32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

// How a kept snapshot depends on single nodes.
struct Dependence {
  SnapshotId id;
  bool whole = true;  // Every shard has a live copy.
  std::map<NodeId, std::vector<uint32_t>>
      only_on;  // Ranks whose shard has its one live copy there.
};

Dependence Examine(const CommitTracker& tracker, const SnapshotId& id) {
  Dependence dependence;
  dependence.id = id;
  const TrackedSnapshot* snapshot = tracker.Find(id);
  if (snapshot == nullptr || snapshot->shards.size() < snapshot->world_size) {
    dependence.whole = false;
    return dependence;
  }
  for (const auto& [shard_id, shard] : snapshot->shards) {
    const std::vector<NodeInstance> holders = tracker.LiveHolders(shard);
    if (holders.empty()) dependence.whole = false;
    if (holders.size() == 1) dependence.only_on[holders[0].node].push_back(shard.rank);
  }
  return dependence;
}

std::string DescribeLoss(const NodeId& node, const std::vector<Dependence>& kept_newest_first,
                         const LiveTrainers& trainers, bool* loses_committed) {
  std::string text;
  const Dependence* survivor = nullptr;
  for (const Dependence& snapshot : kept_newest_first) {
    if (survivor == nullptr && snapshot.whole && !snapshot.only_on.contains(node)) {
      survivor = &snapshot;
    }
  }
  *loses_committed = false;
  if (kept_newest_first.empty()) {
    text = "nothing is committed yet";
  } else if (survivor == &kept_newest_first.front()) {
    text = "no committed step would be lost";
  } else {
    const Dependence& newest = kept_newest_first.front();
    const auto only = newest.only_on.find(node);
    *loses_committed = only != newest.only_on.end();
    if (only != newest.only_on.end()) {
      text = ToString(newest.id) + " would be lost: the only copy of the shard of " +
             RanksText(only->second) + " is there";
    } else {
      text = ToString(newest.id) + " is not whole even now";
    }
    text += survivor != nullptr ? "; the job would go back to " + ToString(survivor->id)
                                : "; no older committed snapshot is whole without it";
  }
  const std::vector<uint32_t> ranks = trainers.RanksOn(node);
  if (!ranks.empty()) text += "; " + RanksText(ranks) + " would have to be replaced";
  return text;
}

}  // namespace

wire::JobState DescribeState(const wire::JobRecord& record, Revision revision) {
  wire::JobState state;
  state.set_revision(revision);
  state.set_closing_uuid(record.closing_uuid());
  if (const std::optional<SnapshotId> base = CurrentBase(record); base.has_value()) {
    *state.mutable_base() = ToWire(*base);
  }
  for (const wire::RecordedSnapshot& committed : record.committed()) {
    wire::CommittedSnapshot* kept = state.add_kept();
    *kept->mutable_snapshot() = ToWire(IdOf(committed));
    kept->set_root(committed.root());
  }
  state.set_last_committed_step(record.last_committed_step());
  state.set_last_abandoned_step(record.last_abandoned_step());
  for (const SnapshotId& id : PinnedSet(record)) *state.add_pinned() = ToWire(id);
  if (record.decision().resumed()) state.set_resumed_attempt(record.decision().attempt());
  state.set_attempt_uuid(record.decision().uuid());
  state.set_ended(record.ended());
  state.set_first_commit_done(record.first_commit_done());
  return state;
}

wire::Decision DescribeDecision(const wire::JobRecord& record) {
  const wire::RecordedDecision& recorded = record.decision();
  wire::Decision decision;
  decision.set_uuid(recorded.uuid());
  decision.set_generation(record.generation());
  decision.set_attempt(recorded.attempt());
  decision.set_fresh(recorded.fresh());
  if (!recorded.fresh()) {
    decision.mutable_base()->set_generation(recorded.base_generation());
    decision.mutable_base()->set_step(recorded.base_step());
    decision.set_base_root(recorded.base_root());
    decision.set_base_committed(recorded.base_committed());
    decision.set_base_job(recorded.base_job());
  }
  decision.set_why(recorded.why());
  decision.set_resumed(recorded.resumed());
  return decision;
}

std::string DescribeRestore(const wire::RankRestore& restore, const NodeId& node) {
  std::string text = "rank " + std::to_string(restore.rank()) + " on " + node.value + ": ";
  if (!restore.ok()) {
    return text + (restore.error().empty() ? "no reason given" : restore.error()) +
           (restore.unreadable() ? " (no good copy anywhere)" : "");
  }
  if (restore.bytes() == 0) return text + "nothing to restore";
  const double seconds = static_cast<double>(restore.nanoseconds()) / 1e9;
  std::array<char, 64> rate{};
  std::snprintf(rate.data(), rate.size(), " in %.1f ms (%.2f GB/s)", seconds * 1000,
                seconds > 0 ? static_cast<double>(restore.bytes()) / 1e9 / seconds : 0.0);
  text += FormatBytes(restore.bytes()) + rate.data();
  if (restore.bytes_remote() == 0) return text + ", all from its own node's memory";
  std::string sources;
  for (const std::string& source : restore.sources()) {
    sources += (sources.empty() ? "" : ", ") + source;
  }
  const std::string part = restore.bytes_remote() == restore.bytes()
                               ? "all"
                               : FormatBytes(restore.bytes_remote()) + " of it";
  return text + ", " + part + " from " + sources;
}

void FillRecordStatus(const StatusInput& input, wire::LeaderStatusReply* status) {
  const wire::JobRecord& record = *input.record;
  status->set_generation(record.generation());
  status->set_world_size(record.world_size());
  status->set_replicas(record.replicas());
  status->set_versions(record.versions());
  status->set_ended(record.ended());
  if (record.decision().uuid().empty()) return;
  *status->mutable_decision() = DescribeDecision(record);
  for (const std::string& rejected : record.decision().rejected()) {
    status->add_rejected(rejected);
  }
}

void FillSnapshots(const StatusInput& input, wire::LeaderStatusReply* status) {
  const wire::JobRecord& record = *input.record;
  std::set<SnapshotId> ids;
  for (const SnapshotId& id : KeptSet(record)) ids.insert(id);
  for (const auto& [id, snapshot] : input.tracker->snapshots()) ids.insert(id);
  for (const auto& [id, why] : *input.abandoned) ids.insert(id);
  for (const SnapshotId& id : ids) {
    wire::SnapshotStatus* out = status->add_snapshots();
    *out->mutable_snapshot() = ToWire(id);
    const TrackedSnapshot* tracked = input.tracker->Find(id);
    if (tracked != nullptr) {
      FillShards(input, *tracked, out);
      out->set_bytes(tracked->bytes);
      out->set_began_unix_ms(tracked->began_unix_ms);
    }
    const auto committed = std::ranges::find_if(
        record.committed(), [&](const wire::RecordedSnapshot& c) { return IdOf(c) == id; });
    if (committed != record.committed().end()) {
      out->set_state(wire::SnapshotStatus::COMMITTED);
      out->set_bytes(committed->bytes());
      out->set_committed_unix_ms(committed->committed_unix_ms());
      out->set_root(committed->root());
      continue;
    }
    if (const auto why = input.abandoned->find(id); why != input.abandoned->end()) {
      out->set_state(wire::SnapshotStatus::ABANDONED);
      out->set_reason(why->second);
      continue;
    }
    const bool is_base = CurrentBase(record) == id;
    out->set_state(is_base ? wire::SnapshotStatus::UNCOMMITTED_BASE : wire::SnapshotStatus::SAVING);
    if (tracked == nullptr) continue;
    if (!record.closing_uuid().empty()) {
      out->set_reason("the generation is being reconfigured; nothing of it can be committed");
    } else {
      out->set_reason(
          WhyNotCommitted(*input.tracker, *tracked, record.replicas(), input.describe_missing));
    }
  }
}

void FillFence(const StatusInput& input, wire::LeaderStatusReply* status) {
  const Generation generation(input.record->generation());
  if (input.fence->unix_ms == 0 || input.fence->generation != generation) return;
  wire::GenerationFence* fence = status->mutable_fence();
  fence->set_unix_ms(input.fence->unix_ms);
  fence->set_by(input.fence->by);
  for (const auto& [node, domain] : input.tracker->live()) {
    if (!input.trainers->Heard(node)) return;  // Who is gone is not known.
  }
  const std::set<uint32_t> live = input.trainers->RanksIn(generation);
  for (uint32_t rank = 0; rank < input.record->world_size(); ++rank) {
    if (!live.contains(rank)) fence->add_gone_ranks(rank);
  }
}

void FillOutlook(const StatusInput& input, wire::LeaderStatusReply* status) {
  std::vector<Dependence> kept;
  std::vector<SnapshotId> ids = KeptSet(*input.record);
  for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
    if (OnLineage(*input.record, *id)) kept.push_back(Examine(*input.tracker, *id));
  }
  for (const auto& [node, domain] : input.tracker->live()) {
    wire::LossOutlook* outlook = status->add_outlook();
    outlook->set_node_id(node.node.value);
    bool loses_committed = false;
    outlook->set_consequence(DescribeLoss(node.node, kept, *input.trainers, &loses_committed));
    outlook->set_loses_committed(loses_committed);
  }
}

}  // namespace backstay::replication
