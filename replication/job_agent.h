#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/ids.h"
#include "replication/claim_agent.h"
#include "replication/holder_agent.h"
#include "replication/job_view.h"
#include "replication/peer_link.h"
#include "replication/peer_router.h"
#include "replication/shard_replicator.h"

namespace backstay::replication {

// One job on one node, whoever leads it: the shards claimed here, the replicas held here, what the
// leader says of the job, and what it is told.
//
// Thread:  the control executor.
// Memory:  drops a sealed shard only by the kept set (docs/protocol.md, "Letting go"); never one
//          that is pinned, being restored by a peer, or promised in an inventory, unless the kept
//          set of a later generation shows that the promise has served (IsOutlived()).
// Failure: everything it sends is repeated until the leader's word shows that it has arrived.
class JobAgent : public JobGate {
 public:
  static constexpr Duration kReportInterval = std::chrono::milliseconds(500);
  static constexpr Duration kReportTimeout = std::chrono::seconds(2);
  static constexpr Duration kFenceReportTimeout = std::chrono::seconds(30);
  // Shards that this node copies to others at the leader's order, at once.
  static constexpr size_t kRepairsMax = 64;
  static constexpr size_t kClaimsMax = 1024;
  // An order that was not carried out in this time is forgotten; the leader gives another.
  static constexpr Duration kRepairTimeout = std::chrono::seconds(60);

  JobAgent(JobName job, uint32_t chunk_bytes, const AgentParts& parts, PeerRouter& router,
           store::ShardVerifier& verifier, transport::Puller& puller, LeaderLink::Locator locator);
  ~JobAgent() override;

  const JobName& job() const { return job_; }
  LeaderLink& leader() { return leader_; }
  HolderAgent& holder() { return holder_; }

  const JobView& view() const override { return view_; }
  Status CheckOpen(Generation generation) const override;

  // ---- Trainers ---------------------------------------------------------------------------------

  void Register(ProcessId process, const ShardClaim& claim, ClaimAgent::Emit emit,
                Completion<ClaimAgent::Registered> done);
  // kStale: the claim has ended, with its job, or is another's now.
  Result<ClaimAgent*> FindClaim(const ShardId& shard, ClaimNumber number);
  // Whoever has this claim has another one now; nothing when it is not its any more.
  void LeaveClaim(const ShardId& shard, ClaimNumber number);
  void ProcessExited(ProcessId process);
  // No trainer of this node begins or seals in `generation` any more; the leader hears of it.
  void Fence(Generation generation, const std::string& reason, int64_t seen_unix_ms, Rank rank);
  // The leader has recorded that `generation` has resumed; its own word may come later.
  void OnResumed(Generation generation);

  // ---- Messages ---------------------------------------------------------------------------------

  static bool Handles(wire::Request::BodyCase kind);
  // Checked by the router.
  void OnRequest(const wire::Request& request, ReplyFunction reply);

  void OnMembershipChanged();
  void OnLeaderChanged();
  void OnSlotFree();
  // This node should stand for the job's leadership: a live trainer or shards of it are here.
  bool IsCandidate() const;
  // Nothing of the job is here any more.
  bool IsIdle() const;
  // Called after each JobState that was taken.
  void OnView(std::function<void(const JobView&)> observer) {
    view_observer_ = std::move(observer);
  }

  wire::NodeJob Describe() const;

 private:
  struct Repair {
    std::unique_ptr<ShardReplicator> replicator;
    Deadline deadline;
  };

  void OnAck(const wire::Header& header, const wire::Ack& ack, ReplyFunction reply);
  void OnJobState(const wire::Header& header, const wire::JobState& state, ReplyFunction reply);
  void OnInventory(const wire::Header& header, const wire::Inventory& inventory,
                   ReplyFunction reply);
  void OnReplicate(const wire::Replicate& replicate, ReplyFunction reply);
  void OnQuarantine(const ShardName& name);

  void LetGo();
  bool IsPromised(const ShardName& name) const;
  void EndJob();
  std::vector<wire::HeldShard> HeldShards() const;
  std::vector<wire::ShardReport> Reports() const;
  std::vector<wire::LiveTrainer> Trainers() const;
  void ReportSoon();
  void Report();
  void ScheduleReport();

  const JobName job_;
  const uint32_t chunk_bytes_;
  const AgentParts parts_;
  PeerRouter& router_;
  LeaderLink leader_;

  JobView view_;
  Generation fenced_;   // The highest generation that a trainer of this node fenced.
  Generation resumed_;  // The highest that is known to have resumed.
  // docs/protocol.md, "Reconfigure" 4: what an inventory listed is kept until the first commit of a
  // generation after `promise_generation_`.
  Generation promise_generation_;
  std::set<ShardName> promised_;
  AttemptUuid promise_uuid_;  // Closing as this node was told by an inventory.

  HolderAgent holder_;
  std::map<ShardId, std::unique_ptr<ClaimAgent>> claims_;
  std::map<ShardName, Repair> repairs_;
  std::function<void(const JobView&)> view_observer_;

  enum class ReportState { kIdle, kPosted, kSent, kSentAndChanged };
  ReportState report_state_ = ReportState::kIdle;
  TimerId report_timer_ = kNoTimer;
  Lifetime lifetime_;
};

}  // namespace backstay::replication
