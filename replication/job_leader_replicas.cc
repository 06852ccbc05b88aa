// JobLeader, the part for what the nodes hold: asking them, and making lost replicas again.

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "replication/job_leader.h"
#include "replication/job_record.h"

namespace backstay::replication {

void JobLeader::StepInventory() {
  inventory_needed_ = false;
  if (!record_.exists() || record_.record().ended()) return;
  const Instant now = seams_.executor->Now();
  for (auto& [id, inventory] : inventories_) {
    if (inventory.in_flight || now < inventory.next) continue;
    inventory.in_flight = true;
    wire::Request request;
    request.mutable_inventory();
    const NodeInstance node = inventory.node;
    const auto on_reply = [this, node](const Result<wire::Reply>& reply) {
      const auto it = inventories_.find(node.node);
      if (it == inventories_.end() || it->second.node != node) return;
      Inventory& asked = it->second;
      asked.in_flight = false;
      asked.answered = asked.answered || reply.ok();
      asked.failures = reply.ok() ? 0 : asked.failures + 1;
      asked.next =
          seams_.executor->Now() + (reply.ok() ? config_.inventory_interval : config_.retry_max);
      if (reply.ok()) OnInventory(node, reply->inventory());
    };
    calls_.Send(node, std::move(request), lifetime_.Wrap(on_reply));
  }
}

bool JobLeader::InventoryIsComplete() const {
  return std::ranges::all_of(inventories_, [](const auto& entry) {
    return entry.second.answered || entry.second.failures >= kInventoryTriesMax;
  });
}

void JobLeader::OnInventory(const NodeInstance& from, const wire::InventoryReply& inventory) {
  if (deposed_) return;
  std::set<std::pair<SnapshotId, ShardId>> listed;
  for (const wire::HeldShard& held : inventory.shards()) {
    const SnapshotId id{Generation(held.shard().snapshot().generation()),
                        backstay::Step(held.shard().snapshot().step())};
    if (!IsWanted(id)) continue;
    listed.insert({id, ShardId(held.shard().shard_id())});
    if (Status status = tracker_.OnHeld(from, held, seams_.executor->Now()); !status.ok()) {
      Log(LogLevel::kWarning, "a held shard was not taken into account",
          {{"job", job_.value}, {"from", from.node.value}, {"why", status.ToString()}});
    }
  }
  // What it does not list it lost, or found bad. Acknowledgements that overtook this answer are
  // repeated in the next one.
  std::vector<std::pair<SnapshotId, ShardId>> lost;
  for (const auto& [id, snapshot] : tracker_.snapshots()) {
    if (!IsCommitted(record_.record(), id) && id != OpenBase()) continue;
    for (const auto& [shard_id, shard] : snapshot.shards) {
      if (shard.holders.contains(from) && !listed.contains({id, shard_id})) {
        lost.emplace_back(id, shard_id);
      }
    }
  }
  for (const auto& [id, shard_id] : lost) tracker_.OnNotHeld(from, id, shard_id);
  repair_needed_ = true;
  Poke();
}

std::optional<SnapshotId> JobLeader::OpenBase() const {
  const wire::JobRecord& record = record_.record();
  const std::optional<SnapshotId> base = CurrentBase(record);
  if (!base.has_value() || record.first_commit_done() || IsCommitted(record, *base)) {
    return std::nullopt;
  }
  return base;
}

// With every node's word, and after the time in which a node may come back that was cut off.
bool JobLeader::BaseIsOutOfReach() const {
  const std::optional<SnapshotId> base = OpenBase();
  if (!base.has_value() || seams_.executor->Now() - last_loss_ < config_.gone_grace) return false;
  const TrackedSnapshot* snapshot = tracker_.Find(*base);
  return base == refused_base_ || snapshot == nullptr || !CommitTracker::HasEveryShard(*snapshot);
}

std::optional<SnapshotId> JobLeader::OpenForLong() const {
  for (const auto& [id, snapshot] : tracker_.snapshots()) {
    if (!MayCommit(id) || id.generation.value != record_.record().generation()) continue;
    if (!CannotCommit(snapshot).empty()) continue;
    const bool is_whole = CommitTracker::HasEveryShard(snapshot) && !tracker_.IsProtected(snapshot);
    const bool for_long = seams_.executor->Now() - snapshot.first_seen >= config_.open_patience;
    return is_whole && for_long ? std::optional(id) : std::nullopt;
  }
  return std::nullopt;
}

void JobLeader::StepRepairs() {
  repair_needed_ = false;
  const wire::JobRecord& record = record_.record();
  if (!record_.exists() || record.ended() || !record.closing_uuid().empty() ||
      !record.decision().resumed()) {
    repairer_.Pause();
    return;
  }
  // Before everybody has said what it holds, what is missing is not known.
  if (!InventoryIsComplete() || !members().current) return;
  if (const bool out_of_reach = BaseIsOutOfReach(); out_of_reach != base_out_of_reach_) {
    base_out_of_reach_ = out_of_reach;
    announcer_.Changed();
  }
  RepairInput input;
  input.tracker = &tracker_;
  input.base = OpenBase();
  input.replica_count = record.replicas();
  input.wanted = PinnedSet(record);
  for (const SnapshotId& id : KeptSet(record)) {
    if (OnLineage(record, id) && std::ranges::find(input.wanted, id) == input.wanted.end()) {
      input.wanted.push_back(id);
    }
  }
  input.open = OpenForLong();
  if (input.open.has_value()) input.wanted.push_back(*input.open);
  std::ranges::sort(input.wanted, [](const SnapshotId& a, const SnapshotId& b) { return b < a; });
  const bool anything_missing = std::ranges::any_of(input.wanted, [&](const SnapshotId& id) {
    const TrackedSnapshot* snapshot = tracker_.Find(id);
    return snapshot != nullptr && !tracker_.IsProtected(*snapshot);
  });
  if (anything_missing) {
    input.nodes = admission_.PlacementNodes();
    for (const auto& [id, member] : admission_.members()) {
      input.primaries[id] = member.primary.node;
      input.assigned[id] = member.TargetNodes();
    }
  }
  const uint64_t before = repairer_.last_plan().under_protected_count;
  repairer_.Step(std::move(input), admission_.members(), generation());
  if (repairer_.last_plan().under_protected_count != before) announcer_.Changed();
}

}  // namespace backstay::replication
