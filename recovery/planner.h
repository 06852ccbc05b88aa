#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "replication/job_record.h"
#include "replication/peer.pb.h"
#include "replication/trainer_port.h"

namespace backstay::recovery {

using replication::ResumeMode;

// What the ranks of one reconfiguration ask for; the same for all.
struct RestoreRequest {
  ResumeMode mode = ResumeMode::kAuto;
  Step exact_step;          // kExact; kFork: 0 is the newest.
  bool drop_state = false;  // kFresh.
  JobName fork_job;         // kFork.
  uint32_t world_size = 0;
  std::set<ShardId> shards;  // What the ranks are to get, one each.
};

// What is known of who holds what. A node whose lease has ended is in neither list: its copies are
// gone.
struct InventoryView {
  std::map<NodeInstance, std::vector<replication::wire::HeldShard>> answered;
  std::set<NodeInstance> unanswered;  // Alive; may hold anything.
};

// A copy of a shard that an earlier attempt was to read and could not. Copies on other nodes, which
// it did not know of, are none of these.
struct UnreadableCopy {
  SnapshotId snapshot;
  ShardId shard;
  NodeInstance holder;

  friend auto operator<=>(const UnreadableCopy&, const UnreadableCopy&) = default;
};

struct PlanInput {
  const replication::wire::JobRecord* record = nullptr;  // Of the job that restores.
  const replication::wire::JobRecord* base_record =
      nullptr;  // Of the job whose bytes are restored; the
                // same one but for forks.
  RestoreRequest request;
  InventoryView inventory;
  std::set<UnreadableCopy> unreadable;
  bool patience_is_over =
      false;                  // Decide without waiting longer for something newer than the floor.
  bool gone_is_sure = false;  // No node was lost so recently that it may come back at once.
};

enum class PlanOutcome {
  kDecided,
  kWait,    // Something may still turn up: ask again when an answer or a lease changes. At the
            // deadline this is kUnavailable, with `why`.
  kRefused  // `error`: it can never be as things are.
};

struct Plan {
  PlanOutcome outcome = PlanOutcome::kWait;
  replication::ChosenBase base;
  std::vector<replication::wire::ShardSource> sources;  // Of the base, in rank order.
  std::string why;
  std::vector<std::string> rejected;
  Status error;
};

// Chooses what all ranks restore, docs/protocol.md, "Reconfigure and restore" 5: the newest
// complete snapshot of the lineage at or above the floor once the floor is covered; below the floor
// only when a shard of it is gone or unreadable everywhere; waits while something is unknown that
// could matter. Pure.
Plan PlanRestore(const PlanInput& input);

// Where the bytes of `base` are, by `inventory`, in rank order: for a decision that is already
// recorded. Empty unless every shard was found and they add up to `root`.
std::vector<replication::wire::ShardSource> SourcesOf(const InventoryView& inventory,
                                                      const SnapshotId& base,
                                                      const std::string& root);

}  // namespace backstay::recovery
