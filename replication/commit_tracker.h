#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "replication/peer.pb.h"

namespace backstay::replication {

// Who is alive now, and in which failure domain; the tracker counts nobody else.
using LiveDomains = std::map<NodeInstance, std::string>;  // To the innermost label.

// What the leader knows of one shard.
struct TrackedShard {
  uint32_t rank = 0;
  uint32_t world_size = 0;
  std::string digest;  // Empty until sealed.
  uint64_t size_bytes = 0;
  std::set<NodeInstance> holders;  // That verified `digest`; dead ones included.
  std::vector<wire::Tag> tags;
  wire::ShardReport::Progress progress = wire::ShardReport::COPYING;
  std::string error;          // Of a save that cannot finish.
  NodeInstance reporter;      // Whose word it is.
  uint32_t live_domains = 0;  // Distinct ones among live holders.
  bool is_counted = false;    // In its snapshot's protected_count.
};

// What the leader knows of one snapshot. Counters are kept so that a report costs O(holders) and
// the question "can it commit?" O(1), whatever the number of ranks.
struct TrackedSnapshot {
  SnapshotId id;
  uint32_t world_size = 0;
  std::map<ShardId, TrackedShard> shards;
  uint32_t sealed_count = 0;
  uint32_t protected_count = 0;  // With enough distinct live domains.
  std::set<ShardId> failed;
  uint64_t bytes = 0;
  int64_t began_unix_ms = 0;
  Instant first_seen;
  std::string conflict;  // Two contents under one name, or world sizes that differ.
  // Why a rank will never have its part: it began a newer step without it, or what it had is lost.
  std::string passed_over;
  bool restored =
      false;  // Its shards were found sealed after all, and all ranks started from them.
};

// Which shards of which snapshots are protected by whom: built from the primaries' reports
// (repeated until they see the commit) and from inventories, so that any new leader can rebuild it.
//
// Protected is a set of (node, incarnation, digest): a holder counts while that incarnation is
// alive, once per failure domain, and only for the digest that the shard was sealed with. A shard
// is protected with replica_count + 1 such domains (the primary's copy is one): a commit then
// survives any replica_count losses from that moment on.
//
// Pure. Bounded by kSnapshotsMax, kShardsMax and kHoldersMax; what exceeds them is refused.
class CommitTracker {
 public:
  static constexpr size_t kSnapshotsMax = 64;
  static constexpr size_t kHoldersMax = 16;  // Of one shard.

  void SetPolicy(uint32_t replica_count);
  void SetLive(LiveDomains live);
  const LiveDomains& live() const { return live_; }

  // kInvalidArgument: the report contradicts itself or a limit. Cumulative: a repeated or late
  // report takes nothing back, but a holder's new incarnation replaces its old one.
  Status OnReport(const NodeInstance& from, const wire::ShardReport& report, Instant now);
  // From an inventory: `from` holds it, verified.
  Status OnHeld(const NodeInstance& from, const wire::HeldShard& held, Instant now);
  // `from` was asked for everything and does not hold it.
  void OnNotHeld(const NodeInstance& from, const SnapshotId& snapshot, const ShardId& shard);

  // The ranks restored it: what was said of its saves before counts for nothing any more.
  void MarkRestored(const SnapshotId& snapshot);
  // Each has a live copy.
  static bool HasEveryShard(const TrackedSnapshot& snapshot);

  // Drops what `keep` refuses.
  void Forget(const std::function<bool(const SnapshotId&)>& keep);

  const std::map<SnapshotId, TrackedSnapshot>& snapshots() const { return snapshots_; }
  const TrackedSnapshot* Find(const SnapshotId& id) const;

  // Every rank of the snapshot's world is there and protected.
  bool IsProtected(const TrackedSnapshot& snapshot) const;
  // It is sealed and has replica_count + 1 live failure domains.
  bool IsShardProtected(const TrackedShard& shard) const;
  // The holders of a shard that are alive now.
  std::vector<NodeInstance> LiveHolders(const TrackedShard& shard) const;

 private:
  // The newest step that a shard's trainer has begun, and the service which said so.
  struct NewestBegun {
    SnapshotId id;
    NodeInstance reporter;
  };

  // Steps of a shard are begun in growing order, and a primary reports all of its open saves, in
  // that order: one that has begun a newer step and is not part of this snapshot never will be. Nor
  // will one that was part of it and has no copy anywhere, once its trainer has gone on with
  // another service, or another start of its node shows that the one which had it is over.
  void NoteBegun(const SnapshotId& id, const ShardId& shard, const NodeInstance& from);
  void NotePassedOver(TrackedSnapshot& snapshot) const;
  void NoteLost(TrackedSnapshot& snapshot) const;
  bool HasLaterStart(const NodeInstance& node) const;
  TrackedSnapshot* FindOrAdd(const SnapshotId& id, uint32_t world_size, Instant now);
  TrackedShard* FindOrAddShard(TrackedSnapshot& snapshot, const ShardId& id, uint32_t rank,
                               uint32_t world_size);
  static void SetDigest(TrackedSnapshot& snapshot, const ShardId& id, TrackedShard& shard,
                        const std::string& digest, uint64_t size_bytes);
  void AddHolder(TrackedShard& shard, const NodeInstance& holder);
  uint32_t CountLiveDomains(const TrackedShard& shard) const;
  void Recount(TrackedSnapshot& snapshot, TrackedShard& shard);
  void RecountAll();

  uint32_t replica_count_ = 0;
  LiveDomains live_;
  std::map<SnapshotId, TrackedSnapshot> snapshots_;
  std::map<ShardId, NewestBegun> newest_begun_;  // By a primary. At most kWorldSizeMax.
};

// Why the snapshot can never be committed, as far as single reports tell; empty: it may be.
std::string CannotCommit(const TrackedSnapshot& snapshot);

// What a commit of a protected snapshot needs. O(ranks).
struct CommitProposal {
  SnapshotId snapshot;
  std::string root;  // Over all digests in rank order.
  uint64_t bytes = 0;
  uint32_t world_size = 0;
  std::set<NodeInstance> counted;  // The holders that make it protected.
};

// kUnavailable: not (yet) protected. kInvalidArgument: it never can be committed: tags differ
// between ranks, digests conflict, ranks are no permutation, a save failed.
Result<CommitProposal> ProposeCommit(const CommitTracker& tracker, const TrackedSnapshot& snapshot);

// Hash over all ranks' shard digests, in rank order.
std::string SnapshotRoot(const std::vector<std::string>& digests_in_rank_order);

// Why the snapshot is not committed (yet), in plain words: "shard 2 has 0 of 1 replicas; node-4 is
// not answering". `world_size` is the job's; `describe_missing` may say more of a shard (its target
// nodes).
std::string WhyNotCommitted(const CommitTracker& tracker, const TrackedSnapshot& snapshot,
                            uint32_t replica_count,
                            const std::function<std::string(const ShardId&)>& describe_missing);

}  // namespace backstay::replication
