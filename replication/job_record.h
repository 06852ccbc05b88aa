#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "replication/job_limits.h"
#include "replication/job_record.pb.h"

namespace backstay::replication {

inline constexpr uint32_t kJobRecordFormatVersion = 1;
inline constexpr int kSupersededUuidsMax = 64;
inline constexpr int kRejectedMax = 32;
inline constexpr size_t kWhyBytesMax = 4096;
inline constexpr uint64_t kAttemptsMax = 32;  // Of one generation.
// Committed snapshots in the record: the kept ones, and until the first commit those off the
// lineage.
inline constexpr int kCommittedMax = 2 * kVersionsMax + 2;
// Of the lineage only what is reachable from the current generation is kept, and of that so much
// that every kept snapshot is found on it: one generation per kept one, the current one, and one
// for an uncommitted base.
inline constexpr int kLineageMax = kCommittedMax + 2;

// Pure transitions of a job's record. Each checks all of its own conditions and returns the next
// record, or why it may not be: kStale (the record has moved on), kInvalidArgument, kPermission or
// kNotFound. Whoever writes the result does so in one transaction conditional on the revision the
// input was read at and on the leader's term (RecordWriter). The rules:
// docs/decisions/job_record.md.

SnapshotId IdOf(const wire::RecordedSnapshot& snapshot);

// kInvalidArgument, naming the number and its range.
Status CheckPolicyLimits(const JobName& job, uint32_t world_size, uint32_t replicas,
                         uint32_t versions);

// A job's first record, or the one after a job of that name has ended: then `last` is the
// generation it ended in, because generations never repeat.
Result<wire::JobRecord> CreateRecord(const JobName& job, const std::string& token_digest,
                                     uint32_t world_size, uint32_t replicas, uint32_t versions,
                                     Generation last = Generation());

// Bytes from the store that this version cannot work with: another format version, another job, a
// list or number beyond its bound.
Status CheckRecord(const wire::JobRecord& record, const JobName& job);

// A restarted job (no live trainers) may come with another policy. kStale when ended or closing.
Result<wire::JobRecord> ChangePolicy(const wire::JobRecord& record, uint32_t replicas,
                                     uint32_t versions);

// From here on no commit of the generation can succeed. Closing again for the same uuid changes
// nothing; another uuid supersedes it and `also_superseded` (calls of which are to get kStale).
Result<wire::JobRecord> CloseGeneration(const wire::JobRecord& record, const AttemptUuid& uuid,
                                        const std::vector<AttemptUuid>& also_superseded);

// What a reconfiguration starts from.
struct ChosenBase {
  bool fresh = false;
  SnapshotId snapshot;
  std::string root;
  bool committed = false;
  std::string job;  // Of the base, when it is another one's (fork).
  std::string why;
  std::vector<std::string> rejected;

  friend bool operator==(const ChosenBase&, const ChosenBase&) = default;
};

// Opens the next generation on `base`. kStale unless the generation is closing for `uuid`.
Result<wire::JobRecord> Decide(const wire::JobRecord& record, const AttemptUuid& uuid,
                               uint32_t world_size, const ChosenBase& base);

// Moves all ranks of a generation that has not resumed to another base. kStale unless `attempt` is
// the current one of `uuid`.
Result<wire::JobRecord> NextAttempt(const wire::JobRecord& record, const AttemptUuid& uuid,
                                    Attempt attempt, const ChosenBase& base);

// From here on ranks may return to their trainers. Repeating it changes nothing.
Result<wire::JobRecord> MarkResumed(const wire::JobRecord& record, const AttemptUuid& uuid,
                                    Attempt attempt);

// `snapshot` is of the current generation (resumed, not closing), or the generation's uncommitted
// base. kStale otherwise, and at or below the last committed step or the last abandoned one.
Result<wire::JobRecord> CommitSnapshot(const wire::JobRecord& record,
                                       const wire::RecordedSnapshot& snapshot);

// Of the current generation: nothing at or below `step` that is not committed ever will be.
Result<wire::JobRecord> AbandonSnapshot(const wire::JobRecord& record, SnapshotId snapshot);

Result<wire::JobRecord> EndRecord(const wire::JobRecord& record, int64_t unix_ms);

// ---- Reading -----------------------------------------------------------------------------------
// Whether a snapshot's name lies on the way from the current generation back through its bases.
bool OnLineage(const wire::JobRecord& record, SnapshotId snapshot);

// The newest committed snapshot of the lineage; nothing when there is none.
std::optional<wire::RecordedSnapshot> Floor(const wire::JobRecord& record);

// The base of the current generation, when it has one in this job.
std::optional<SnapshotId> CurrentBase(const wire::JobRecord& record);

// Committed snapshots that stay, oldest first: all of record.committed.
std::vector<SnapshotId> KeptSet(const wire::JobRecord& record);

// What must stay besides: the base, until the generation's first commit.
std::vector<SnapshotId> PinnedSet(const wire::JobRecord& record);

bool IsCommitted(const wire::JobRecord& record, SnapshotId snapshot);
bool IsSuperseded(const wire::JobRecord& record, const AttemptUuid& uuid);

}  // namespace backstay::replication
