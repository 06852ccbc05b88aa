#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/ids.h"
#include "replication/job_view.h"
#include "replication/peer_link.h"
#include "replication/shard_exporter.h"
#include "replication/shard_replicator.h"
#include "replication/trainer_port.h"
#include "store/shard_table.h"
#include "store/slot_pool.h"

namespace backstay::replication {

// What a node knows of the present of a job, beyond what its leader last said. Thread: the control
// executor.
class JobGate {
 public:
  virtual ~JobGate() = default;
  virtual const JobView& view() const = 0;
  // Ok when a trainer of `generation` may begin and seal; kStale says why not.
  virtual Status CheckOpen(Generation generation) const = 0;
};

// The saves of one shard id on this node, from Begin() to their end: committed or failed.
//
// Saves belong to the shard, not to the process: one that is sealed goes on to be protected and
// committed when its trainer is gone or was replaced by another.
//
// Thread:  the control executor. Completions are posted, or run later.
// Memory:  a save's shard stays in the store's table after the save has ended; the kept set lets go
//          of it. Ended saves are remembered for QuerySnapshot(), at most kSavesRemembered.
// Failure: a save that cannot finish fails by itself and says so in an event and to the leader;
//          others are not touched.
class SaveAgent {
 public:
  static constexpr size_t kSavesRemembered = 64;
  static constexpr size_t kWaitingBeginsMax = 4;
  static constexpr size_t kSoundStepsMax = 64;

  struct Policy {
    Rank rank;
    uint32_t world_size = 0;
    uint32_t replicas = 0;
    bool wait_for_slot = false;
  };

  // `emit` takes events for the trainer; `on_report` says that there is news for the leader.
  SaveAgent(JobName job, ShardId shard, Executor& executor, PeerLink& peers,
            store::ShardTable& table, ShardExporter& exporter, const JobGate& gate,
            std::function<void(const TrainerEvent&)> emit, std::function<void()> on_report);
  ~SaveAgent();
  SaveAgent(const SaveAgent&) = delete;
  SaveAgent& operator=(const SaveAgent&) = delete;

  void SetPolicy(const Policy& policy) { policy_ = policy; }
  // Where the replicas go, as the leader assigned.
  void SetTargets(const std::vector<NodeId>& nodes);
  const std::vector<NodeId>& targets() const { return targets_; }

  // kNoSpace: the step is passed over, and the leader told so: no rank waits for it.
  void Begin(Generation generation, Step step, store::ClientId client,
             store::ReservationId reservation, Duration timeout, Completion<BeginReply> done);
  Status StartCopy(SaveHandle save, uint64_t used_bytes, const std::string& contents);
  void Seal(SaveHandle save, bool sound, Completion<std::string> done);
  void StepIsSound(Step step);
  Status Abandon(SaveHandle save);
  QuerySnapshotReply Query(SnapshotId snapshot) const;
  // The trainer has not saved this step, and will not.
  void PassOver(SnapshotId snapshot, Status why);

  // Nothing of `generation` or before is sealed from here on.
  void Fence(Generation generation, const std::string& reason);
  // Unsealed saves end: their trainer is gone or was replaced.
  void EndUnsealed(const Status& why);
  void OnView(const JobView& view);
  void OnAck(const ShardName& name, const NodeInstance& from, const Hash128& digest);
  void OnQuarantine(const ShardName& name);
  // Slots may have become free, or peers may have come or gone.
  void Step();

  // Adds what the leader has to know until it has said what became of it.
  void FillReports(std::vector<wire::ShardReport>* reports) const;
  bool HasOpenSaves() const;
  // A save is bringing this shard to its replicas already.
  ShardReplicator* ReplicatorOf(const ShardName& name);

 private:
  enum class SaveState {
    kFilling,    // The client has the slot.
    kCopying,    // Peers may pull.
    kSealing,    // The client is done; waits for its word that the step was sound.
    kSealed,     // Immutable; replicas are being brought in.
    kProtected,  // As many as the policy wants hold it.
    kCommitted,
    kFailed,
  };
  struct Save {
    SaveHandle handle;
    ShardName name;
    SaveState state = SaveState::kFilling;
    Status failure;
    Completion<std::string> seal_done;
    std::unique_ptr<ShardReplicator> replicator;
    int64_t began_unix_ms = 0;
  };
  struct WaitingBegin {
    Generation generation;
    backstay::Step step;
    store::ClientId client;
    store::ReservationId reservation;
    Deadline deadline;
    Completion<BeginReply> done;
    TimerId timer = kNoTimer;
  };

  static bool IsUnsealed(SaveState state) { return state < SaveState::kSealed; }
  static bool IsEnded(SaveState state) { return state >= SaveState::kCommitted; }

  // `is_full`: it is refused only because no slot is free.
  Result<BeginReply> TryBegin(const WaitingBegin& begin, bool* is_full);
  Status GiveUpBegin(const WaitingBegin& begin, const std::string& what, const Status& why);
  bool Displace(SnapshotId for_snapshot);
  void RetryWaiting();
  Save* FindOpen(SaveHandle handle);
  Status NoSuchSave(SaveHandle handle) const;
  void DoSeal(Save& save);
  // Whether a node may be offered this step: not before it holds the earlier ones, for it has slots
  // for few, steps commit in growing order, and one that was acknowledged makes room for nobody.
  bool MayPlace(SnapshotId snapshot, const NodeId& node) const;
  void StepReplicators();
  void OnReplicasChanged(SnapshotId snapshot);
  void StepProtection(Save& save);
  void Commit(Save& save);
  void Fail(Save& save, Status why);
  void TellHealth(const JobView& view);
  void TrimHistory();
  void Emit(TrainerEvent::Kind kind, const SnapshotId& snapshot, Status status);

  const JobName job_;
  const ShardId shard_;
  Executor& executor_;
  PeerLink& peers_;
  store::ShardTable& table_;
  ShardExporter& exporter_;
  const JobGate& gate_;
  const std::function<void(const TrainerEvent&)> emit_;
  const std::function<void()> on_report_;

  Policy policy_;
  std::vector<NodeId> targets_;
  uint64_t last_handle_ = 0;
  std::map<SnapshotId, Save> saves_;
  std::list<WaitingBegin> waiting_;
  std::set<backstay::Step> sound_steps_;
  std::set<SnapshotId> under_protected_;  // That the trainer was told of.
  Lifetime lifetime_;
};

}  // namespace backstay::replication
