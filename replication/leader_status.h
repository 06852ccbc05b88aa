#pragma once

#include <functional>
#include <map>
#include <string>

#include "base/ids.h"
#include "replication/commit_tracker.h"
#include "replication/job_members.h"
#include "replication/job_record.pb.h"
#include "replication/metadata_store.h"
#include "replication/peer.pb.h"

namespace backstay::replication {

// A rank has seen a fault and fenced its generation: nothing of that is saved any more.
struct GenerationFence {
  Generation generation;
  int64_t unix_ms = 0;  // When the fault was seen; 0: there is no fence.
  std::string by;       // Which rank, where, and its reason; in plain words.
};

// What a leader knows, for the parts of its status that only describe. All borrowed.
struct StatusInput {
  const wire::JobRecord* record = nullptr;
  const CommitTracker* tracker = nullptr;
  const LiveTrainers* trainers = nullptr;
  const std::map<SnapshotId, std::string>* abandoned = nullptr;  // With the reason.
  const GenerationFence* fence = nullptr;                        // The first one of its generation.
  std::function<std::string(const ShardId&)> describe_missing;   // As for WhyNotCommitted().
};

// All of the job's state that stands in its record.
wire::JobState DescribeState(const wire::JobRecord& record, Revision revision);
// The current generation's decision as it is recorded; without the sources of its bytes.
wire::Decision DescribeDecision(const wire::JobRecord& record);

// "rank 2 on node-3: 512.0 MiB in 0.31 s (1.73 GB/s), 512.0 MiB of it from node-1, node-4".
std::string DescribeRestore(const wire::RankRestore& restore, const NodeId& node);

// Generation, policy, decision and rejected candidates.
void FillRecordStatus(const StatusInput& input, wire::LeaderStatusReply* status);
// Every snapshot that is kept, being saved, or was given up lately, oldest first.
void FillSnapshots(const StatusInput& input, wire::LeaderStatusReply* status);
// The fence of the current generation, if it has one.
void FillFence(const StatusInput& input, wire::LeaderStatusReply* status);
// What the loss of each live node would cost now. O(shards of the kept snapshots).
void FillOutlook(const StatusInput& input, wire::LeaderStatusReply* status);

}  // namespace backstay::replication
