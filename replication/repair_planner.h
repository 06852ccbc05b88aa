#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "replication/commit_tracker.h"
#include "replication/placement.h"

namespace backstay::replication {

// A copy that is to be made: `source` (a live holder) is told to replicate to `target`.
struct Repair {
  SnapshotId snapshot;
  ShardId shard;
  std::string digest;
  uint64_t size_bytes = 0;
  NodeInstance source;
  NodeId target;

  friend auto operator<=>(const Repair&, const Repair&) = default;
};

struct RepairInput {
  const CommitTracker* tracker = nullptr;
  std::vector<SnapshotId> wanted;       // Kept and pinned ones, most valuable (newest) first.
  std::optional<SnapshotId> base;       // Not committed yet: nothing commits before it.
  std::optional<SnapshotId> open;       // Of `wanted`; not promised to anybody: not counted.
  std::vector<PlacementNode> nodes;     // Alive.
  std::map<ShardId, NodeId> primaries;  // Where the shard's trainer is now.
  std::map<ShardId, std::vector<NodeId>>
      assigned;                                  // Of the shard's replicas now: preferred targets.
  std::set<std::pair<ShardId, NodeId>> refused;  // No memory there.
  std::vector<Repair> running;
  uint32_t replica_count = 0;
  uint32_t per_node_max = 1;  // Running ones that share a source, or a target.
};

struct RepairPlan {
  std::vector<Repair> start;  // In order of urgency: the base, then the fewest live copies.
  uint64_t under_protected_count = 0;  // Shards (of what is promised) with too few live domains.
  uint64_t lost_count = 0;             // Of those, with no live holder.
  uint64_t stuck_count = 0;            // Of those, for which no node qualifies as a target.
};

// Which copies to start so that every wanted shard gets back to replica_count + 1 failure domains.
// Pure.
RepairPlan PlanRepairs(const RepairInput& input);

}  // namespace backstay::replication
