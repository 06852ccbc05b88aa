#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "replication/job_record.pb.h"

namespace backstay::sim {

// Knows only what always holds (docs/design.md), and checks it against what trainers saw and what
// the metadata store recorded. It never looks into the production code's state.
//
// Thread:  the one that runs the simulation.
// Failure: a broken promise is a line in violations(); the run goes on.
class Auditor {
 public:
  // A trainer has written its shard and asks for the seal. `content` is a hash of the bytes,
  // `history` of all that its group of ranks went through.
  void OnSealed(const SnapshotId& snapshot, Rank rank, uint64_t history, uint64_t content);
  // A trainer has read and checked what `attempt` of opening `generation` gives it, and says so.
  void OnVerified(Generation generation, Attempt attempt, Rank rank);
  // A trainer may go on in `generation`, of `world_size` ranks. Nothing in `base`: it starts from
  // the beginning.
  void OnResumed(Generation generation, Attempt attempt, Rank rank, uint32_t world_size,
                 std::optional<SnapshotId> base, uint64_t history, uint64_t content);
  // The job's record as the metadata store has it now.
  void OnRecord(const replication::wire::JobRecord& record);
  // From here on at most `nodes` nodes with replicas, or single copies, were lost since everything
  // was protected; with more than `replicas` the newest commit may be gone, and a restore below it
  // is no violation.
  void OnNodesLost(uint32_t nodes, uint32_t replicas);
  void OnProtectedAgain();

  void Violation(const std::string& what) { violations_.push_back(what); }
  const std::vector<std::string>& violations() const { return violations_; }
  // More was lost than the policy covers: that nothing can be restored is an honest answer.
  bool beyond_policy() const { return beyond_policy_; }
  const std::optional<replication::wire::JobRecord>& record() const { return record_; }

  struct Reached {
    uint64_t commits = 0;
    uint64_t resumes_from_commit = 0;
    uint64_t resumes_above_floor = 0;  // From a snapshot that was complete but not committed.
    uint64_t resumes_below_floor = 0;
    uint64_t fresh_starts = 0;
    uint64_t moves = 0;  // Of all ranks to an older snapshot, for one could not read its shard.
  };
  const Reached& reached() const { return reached_; }

 private:
  struct Sealed {
    uint64_t history = 0;
    uint64_t content = 0;
  };
  struct Resume {
    std::optional<SnapshotId> base;
    uint64_t history = 0;
  };

  void CheckCommitted(const replication::wire::RecordedSnapshot& snapshot, uint32_t world_size);
  void CountResume(const std::optional<SnapshotId>& base);
  // Whether the job, at `snapshot`, has gone through `ancestor`.
  bool GrewFrom(SnapshotId snapshot, const SnapshotId& ancestor) const;

  std::map<std::pair<SnapshotId, Rank>, Sealed> sealed_;
  std::map<std::pair<Generation, Attempt>, std::set<Rank>> verified_;
  std::map<Generation, Resume> resumes_;
  std::map<SnapshotId, std::string> roots_;  // Of every snapshot that was ever committed.
  std::optional<SnapshotId> floor_;          // The newest commit that must be restorable.
  uint32_t lost_nodes_ = 0;
  bool beyond_policy_ = false;
  std::optional<replication::wire::JobRecord> record_;
  Reached reached_;
  std::vector<std::string> violations_;
};

}  // namespace backstay::sim
