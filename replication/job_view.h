#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "replication/metadata_store.h"
#include "replication/peer.pb.h"
#include "store/shard_table.h"

namespace backstay::replication {

// Where the replicas of a shard id are to be.
struct ShardAssignment {
  NodeId primary;
  std::vector<NodeId> replicas;
};

struct ShardHealth {
  uint32_t holder_count = 0;
  uint32_t wanted_count = 0;
};

// A job as its leader last described it to this node: one JobState message, decoded. Revision 0: no
// leader has spoken yet.
struct JobView {
  Revision revision = 0;
  Generation generation;  // 0: none was ever opened.
  Term term;
  NodeInstance leader;
  AttemptUuid closing_uuid;
  SnapshotId base;
  std::map<SnapshotId, Hash128> kept;  // Roots of the committed snapshots that are to be kept.
  std::set<SnapshotId> pinned;         // Bases, kept until the generation's first commit.
  Step last_committed;
  Step last_abandoned;
  std::map<ShardId, ShardAssignment> assignments;
  std::map<ShardName, ShardHealth> under_protected;
  Attempt resumed_attempt;  // 0: the generation's restore is not over.
  AttemptUuid attempt_uuid;
  bool ended = false;
  bool first_commit_done = false;

  bool closing() const { return !closing_uuid.empty(); }
  // Trainers of `at` may save.
  bool IsOpen(Generation at) const {
    return at.value != 0 && at == generation && resumed_attempt.value != 0 && !closing() && !ended;
  }
  // "steps 100 and 110 are committed": what exists, for refusals.
  std::string DescribeKept() const;
};

inline constexpr int kAssignmentsMax = 65536;
inline constexpr int kSnapshotsInStateMax = 1024;

// kInvalidArgument: beyond the limits, or malformed names.
Result<JobView> DecodeJobState(const wire::Header& header, const wire::JobState& state);

// What a node may do with a shard that it holds: docs/protocol.md, "Letting go". Pure.
enum class KeepVerdict {
  kKeep,
  kKeepCommitted,  // It is in the kept set.
  kDrop,
};
KeepVerdict JudgeShard(const JobView& view, const ShardName& name);
// A committed shard that newer commits have pushed out of the kept set, seen late: the present
// generation has resumed, so no restore will choose it, whatever an inventory promised. (It would
// hold the slot that the generation's first commit needs.)
bool IsOutlived(const JobView& view, const store::Shard& shard);

// A save may take the place of this shard: it is left over from an older generation, the present
// one has resumed from something else, and the kept set does not have it (it was never committed,
// or was about to be let go of when an inventory promised it).
bool IsDisplaceable(const JobView& view, const store::Shard& shard);

}  // namespace backstay::replication
