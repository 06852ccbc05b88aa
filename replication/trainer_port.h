#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "base/hash.h"
#include "base/ids.h"
#include "base/status.h"
#include "replication/job_limits.h"

namespace backstay::store {
class SlotMemory;
}  // namespace backstay::store

// What a trainer process may ask of its node's service: client/local.proto without its encoding.
// The session server (sockets) and the cluster simulation (direct calls) drive the same objects.
namespace backstay::replication {

// One trainer process, as whoever accepts it tells processes apart; never reused while the service
// runs.
using ProcessId = StrongNumber<struct ProcessIdTag>;
// One use of one slot by Begin(), of this connection.
using SaveHandle = StrongNumber<struct SaveHandleTag>;
// One shard opened for reading, of this connection.
using FetchHandle = StrongNumber<struct FetchHandleTag>;

struct ShardClaim {
  JobName job;
  std::string token;
  ShardId shard;
  Rank rank;
  uint32_t world_size = 0;
  uint32_t replicas = 0;       // On other failure domains, at most kReplicasMax.
  uint32_t versions = 0;       // Committed snapshots kept, at least 1, at most kVersionsMax.
  uint64_t size_bytes = 0;     // Of the shard, at most.
  int32_t numa_node = -1;      // -1: any.
  bool wait_for_slot = false;  // At Begin() with no free slot: wait, or fail that save.
  Generation generation;       // After a reconnect: what the trainer is in; 0 at first.
  // The newest step of that generation that it did not save because the service was away.
  std::optional<Step> missed_step;
};
struct ClaimReply {
  uint32_t chunk_bytes = 0;
  uint64_t reserved_bytes_local = 0;
  uint64_t reserved_bytes_peers = 0;
  std::vector<NodeId> replica_nodes;
};

struct BeginReply {
  SaveHandle save;
  // The slot: its data to fill, its control page to publish readiness on. Shared: stays valid for
  // as long as this reference is kept, whatever becomes of the save.
  std::shared_ptr<store::SlotMemory> memory;
  uint64_t slot_id = 0;  // Names the slot towards the process: the same memory, the same id.
  Generation generation;
  uint64_t epoch = 0;  // Of the control page in this use.
};

enum class ResumeMode : uint32_t { kAuto = 0, kExact = 1, kFresh = 2, kFork = 3 };

struct ReconfigureRequest {
  AttemptUuid uuid;
  Rank rank;
  uint32_t world_size = 0;
  ShardId shard;
  ResumeMode mode = ResumeMode::kAuto;
  Step exact_step;
  bool drop_state = false;
  JobName fork_job;
  Duration timeout{};
  bool has_old_rank = false;
  Rank old_rank;
  Generation old_generation;
};
struct DecisionReply {
  AttemptUuid uuid;
  Generation generation;
  Attempt attempt;
  bool fresh = false;
  SnapshotId base;
  std::string base_root;
  std::string why;
  ShardId shard;
  bool base_committed = false;
  JobName base_job;  // Empty: the registered one.
};

struct FetchRequest {
  JobName job;  // Empty: the registered one.
  SnapshotId snapshot;
  ShardId shard;
  bool whole = false;        // All chunks; else only those asked for by FetchChunks().
  bool for_restore = false;  // Of the current decision.
};
struct FetchReply {
  FetchHandle fetch;
  std::shared_ptr<store::SlotMemory> memory;  // To be mapped read-only.
  uint64_t size_bytes = 0;
  std::string manifest;  // Encoded.
  std::string digest;
  bool local = false;  // Was in this node's memory: every chunk is ready, none was read remotely.
};

struct FinishRestoreRequest {
  AttemptUuid uuid;
  Attempt attempt;
  bool ok = false;
  std::string error;
  uint64_t bytes = 0;
  Duration timeout{};
};
struct FinishRestoreReply {
  bool resumed = false;
  DecisionReply next;  // When not resumed: the next attempt's, to fetch again.
};

struct SnapshotIndexReply {
  SnapshotId snapshot;
  std::vector<std::string> manifests;  // Encoded, in rank order.
};

enum class SnapshotProgress : uint32_t {
  kUnknown = 0,
  kCopying = 1,
  kSealed = 2,
  kProtected = 3,
  kCommitted = 4,
  kFailed = 5,
};
struct QuerySnapshotReply {
  SnapshotProgress progress = SnapshotProgress::kUnknown;
  std::string reason;
};

struct TrainerEvent {
  enum class Kind : uint32_t {
    kFenced = 1,  // The generation is over, or another process claimed the shard.
    kProtected = 2,
    kCommitted = 3,
    kSaveFailed = 4,
    kUnderProtected = 5,
    kProtectedAgain = 6,
    kSlotClosed = 7,  // `slot_id` will not be handed over again: see SlotUnmapped().
  };
  Kind kind = Kind::kFenced;
  SnapshotId snapshot;
  Status status;
  Generation generation;
  uint64_t slot_id = 0;
};

// Thread: called on the service's executor, never from inside a call of Trainer.
class TrainerListener {
 public:
  virtual ~TrainerListener() = default;
  virtual void OnEvent(const TrainerEvent& event) = 0;
};

// One connection of one trainer process. Requests may be repeated; one connection claims one shard.
//
// Thread:  every method and completion on the service's executor; a completion runs exactly once,
//          never before its call has returned, and not at all once this object is gone.
// Memory:  destroying it is the end of the connection, not of the process: open fetches are closed,
//          an unsealed save is abandoned, its slot stays the process's until ProcessExited().
// Failure: a refusal names the job, shard and step, and what exists instead.
class Trainer {
 public:
  virtual ~Trainer() = default;

  // kNoSpace with the sum, kPermission for another token, kInvalidArgument for a policy that cannot
  // be satisfied, kUnavailable when no leader answered until the service's own deadline.
  virtual void Register(ShardClaim claim, Completion<ClaimReply> done) = 0;
  // The claim's new size. A refused resize leaves the old size in force.
  virtual void Resize(uint64_t size_bytes, StatusCompletion done) = 0;

  // kStale: not in a resumed generation, fenced, or the step is not above the last one. kNoSpace:
  // no slot is free (after `timeout`, if the claim said to wait): the step is passed over, by all
  // ranks. kUnavailable: some rank has passed it over.
  virtual void Begin(Step step, Duration timeout, Completion<BeginReply> done) = 0;
  // The copy starts: `contents` is an encoded ShardContents of store/manifest.proto.
  virtual void StartCopy(SaveHandle save, uint64_t used_bytes, std::string contents,
                         StatusCompletion done) = 0;
  // All chunks are published. Completes with the digest when sealed; with `sound` false only after
  // StepIsSound(). kStale: fenced.
  virtual void Seal(SaveHandle save, bool sound, Completion<std::string> done) = 0;
  virtual void StepIsSound(Step step, StatusCompletion done) = 0;
  // Refused after the seal.
  virtual void Abandon(SaveHandle save, StatusCompletion done) = 0;

  // The process has unmapped a slot after kSlotClosed: its memory can be freed.
  virtual void SlotUnmapped(uint64_t slot_id, StatusCompletion done) = 0;

  // Nothing of `generation` is begun or sealed from here on. Safe to repeat.
  virtual void Fence(Generation generation, std::string reason, int64_t seen_unix_ms) = 0;

  virtual void NewAttempt(Completion<AttemptUuid> done) = 0;
  virtual void Reconfigure(ReconfigureRequest request, Completion<DecisionReply> done) = 0;

  virtual void Fetch(FetchRequest request, Completion<FetchReply> done) = 0;
  // Brings chunks in; readiness, or the end of hope, is on the control page.
  virtual void FetchChunks(FetchHandle fetch, uint32_t first_chunk, uint32_t chunk_count,
                           StatusCompletion done) = 0;
  // The reader found these not to match the manifest. True: the shard moves to another slot; Fetch
  // it again.
  virtual void ReportBadChunks(FetchHandle fetch, std::vector<uint32_t> chunks,
                               Completion<bool> done) = 0;
  virtual void CloseShard(FetchHandle fetch, StatusCompletion done) = 0;

  virtual void FinishRestore(FinishRestoreRequest request, Completion<FinishRestoreReply> done) = 0;

  // `snapshot` {0, 0}: the newest committed one. `job` empty: the registered one.
  virtual void SnapshotIndex(JobName job, SnapshotId snapshot,
                             Completion<SnapshotIndexReply> done) = 0;
  // kNotFound: nothing is committed; kUnavailable: could not be found out.
  virtual void NewestCommitted(Completion<SnapshotId> done) = 0;
  virtual void QuerySnapshot(SnapshotId snapshot, Completion<QuerySnapshotReply> done) = 0;

  // The job is done.
  virtual void Finish(bool drop_state, StatusCompletion done) = 0;
};

// Where trainers come in.
class TrainerPort {
 public:
  virtual ~TrainerPort() = default;

  // `listener` must outlive the returned object.
  virtual std::unique_ptr<Trainer> Connect(ProcessId process, TrainerListener* listener) = 0;
  // The process has been seen to exit (not merely its connection): it writes to no slot any more.
  virtual void ProcessExited(ProcessId process) = 0;
};

}  // namespace backstay::replication
