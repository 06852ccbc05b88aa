#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/ids.h"
#include "base/random.h"
#include "replication/job_view.h"
#include "replication/peer_link.h"
#include "replication/save_agent.h"
#include "replication/shard_exporter.h"
#include "replication/trainer_port.h"
#include "store/shard_table.h"
#include "store/slot_pool.h"

namespace backstay::replication {

// Names one process's claim to one shard. Every claim on a node has its own number.
using ClaimNumber = StrongNumber<struct ClaimNumberTag>;

// What the agents of one node share. All of it outlives them.
struct AgentParts {
  Executor& executor;
  Random& random;
  PeerLink& peers;
  store::SlotPool& pool;
  store::ShardTable& table;
  ShardExporter& exporter;
  ClaimNumber& last_claim;
};

// Who may save one shard of a job on this node: at most one process. Brings its claim to memory on
// this node, and to the leader: again to each new one, which so learns what there is.
//
// Thread:  the control executor. Completions run later, exactly once.
// Memory:  keeps its reservation while the shard is claimed here or was last; gives it back when
//          the shard is claimed on another node.
// Failure: a refused claim ends, and what it had reserved is given back. A second claim that proves
//          the job's token fences the first: its unsealed saves end, its slots are disowned.
class ClaimAgent {
 public:
  static constexpr Duration kRegisterTimeout = std::chrono::seconds(30);
  static constexpr Duration kReadmitDelay = std::chrono::seconds(1);
  // Another node's claim in the leader's word counts when it is still there this much later: one
  // that was sent before this node's own admission is corrected by then.
  static constexpr Duration kForeignClaimConfirm = std::chrono::milliseconds(1500);

  using Emit = std::function<void(const TrainerEvent&)>;
  struct Registered {
    ClaimNumber number;
    ClaimReply reply;
  };

  ClaimAgent(JobName job, ShardId shard, uint32_t chunk_bytes, const AgentParts& parts,
             LeaderLink& leader, const JobGate& gate, std::function<void()> on_report);
  ~ClaimAgent();
  ClaimAgent(const ClaimAgent&) = delete;
  ClaimAgent& operator=(const ClaimAgent&) = delete;

  void Register(ProcessId process, const ShardClaim& claim, Emit emit, Completion<Registered> done);
  void Resize(uint64_t size_bytes, StatusCompletion done);
  // kStale: another process or node has the claim now.
  Status Check(ClaimNumber number) const;
  // The connection has ended; the process may live on.
  void Disconnect(ClaimNumber number);
  void ProcessExited(ProcessId process);
  // The trainer has claimed another shard, under another number of its job's new ranks.
  void Leave() { GiveUpClaim(Stale("its trainer has claimed another shard")); }
  // The job has ended. False: the claim is to a later job of that name, or may be, and stays.
  bool EndWithJob(const Status& why);
  // The restore of `generation` is over for this trainer: it may save.
  void EnterGeneration(Generation generation) {
    generation_ = generation;
    restoring_uuid_ = AttemptUuid();
  }

  SaveAgent& saves() { return saves_; }
  const SaveAgent& saves() const { return saves_; }
  const ShardClaim& claim() const { return claim_; }
  Generation generation() const { return generation_; }
  uint64_t trainer() const { return trainer_; }
  store::ReservationId reservation() const { return reservation_; }
  store::ClientId client() const { return store::ClientId(process_.value); }
  bool has_live_trainer() const { return state_ != ClaimState::kUnclaimed; }
  // The trainer takes part in a reconfiguration from here on. The number of this call of it.
  uint64_t BeginRestoring(const AttemptUuid& uuid, Rank rank) {
    restoring_uuid_ = uuid;
    restoring_rank_ = rank;
    return ++last_call_;
  }
  void EndRestoring() { restoring_uuid_ = AttemptUuid(); }
  const AttemptUuid& restoring_uuid() const { return restoring_uuid_; }
  // Nothing of the claim or of its saves is left to remember.
  bool IsIdle() const {
    return state_ == ClaimState::kUnclaimed && reservation_.value == 0 && !saves_.HasOpenSaves();
  }
  // Nothing until a process has claimed the shard and was admitted.
  std::optional<wire::LiveTrainer> LiveTrainer() const;

  void OnView(const JobView& view);
  // The leader or the membership may have changed.
  void Step();
  void EmitFenced(Generation generation, const Status& why);

 private:
  enum class ClaimState {
    kUnclaimed,  // No live process.
    kReserving,  // Memory of this node is being made ready.
    kAdmitting,  // The leader is asked.
    kAdmitted,   // By `admitted_by_`; asked again when that has changed.
  };

  // Of a kAdmitted claim to a later leader.
  enum class Readmission { kNone, kAsked, kDue };

  ClaimNumber NewNumber() { return parts_.last_claim = parts_.last_claim.Next(); }
  bool IsAdmittedBy(const LeaderInfo& leader) const;
  Status CheckClaim(const ShardClaim& claim) const;
  void TakeOver(const Status& why);
  void Reserve(uint64_t claim_epoch);
  void Admit(uint64_t claim_epoch, Deadline deadline);
  void OnAdmitted(uint64_t claim_epoch, Result<wire::Reply> reply);
  void ResizeReplicas(uint64_t size_bytes, const StatusCompletion& done);
  wire::Request MakeAdmission() const;
  wire::LiveTrainer DescribeTrainer() const;
  void TakeClaim();
  void GiveUpClaim(const Status& why);
  void FinishRegister(Result<ClaimReply> reply);

  const JobName job_;
  const ShardId shard_;
  const uint32_t chunk_bytes_;
  const AgentParts parts_;
  LeaderLink& leader_;
  const JobGate& gate_;
  const std::function<void()> on_report_;

  ClaimState state_ = ClaimState::kUnclaimed;
  ShardClaim claim_;
  std::string token_digest_;
  ProcessId process_;
  uint64_t trainer_ = 0;
  ClaimNumber number_;
  // Of the first admission of this process's claim: which of two claims is the later one.
  std::pair<uint64_t, uint64_t> claim_order_;
  uint64_t admission_call_ = 0;  // The newest; at most one is under way.
  uint64_t epoch_ = 0;  // Of the registration under way; answers to earlier ones are ignored.
  Emit emit_;           // Nothing while disconnected.
  Generation generation_;
  AttemptUuid restoring_uuid_;
  Rank restoring_rank_;
  uint64_t last_call_ = 0;  // Goes on growing from one trainer to the next.
  Generation fenced_told_;  // The highest that the trainer was told is over.
  store::ReservationId reservation_;
  Completion<Registered> register_done_;
  std::optional<NodeInstance> admitted_by_;
  Term admitted_term_;
  Revision admitted_revision_ = 0;  // Of the job's record.
  bool resizing_ = false;
  Readmission readmission_ = Readmission::kNone;
  Instant next_readmission_;
  std::optional<Instant> foreign_since_;
  uint64_t reserved_bytes_peers_ = 0;
  SaveAgent saves_;
  Lifetime lifetime_;
};

}  // namespace backstay::replication
