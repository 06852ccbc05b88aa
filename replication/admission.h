#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "replication/job_members.h"
#include "replication/leader_calls.h"
#include "replication/leader_seams.h"
#include "replication/placement.h"
#include "replication/record_writer.h"
#include "replication/timeline.h"

namespace backstay::replication {

// Lets shards into the job: checks them against the record, gives each its replica nodes, and has
// those promise the memory. Level-triggered: a lost replica node is replaced by the same steps that
// placed it at first.
//
// Thread:  the owning executor. A reply runs once, when its shard is admitted or refused.
// Memory:  bounded by kWorldSizeMax members. What it refers to outlives it.
// Failure: a target without memory is passed over; one that does not answer is asked again until
//          it is lost. Refused for good: another token, numbers out of range, a policy that the
//          failure domains cannot satisfy (only for a job without state: one that lost nodes goes
//          on under-protected). A job that nobody was let into is ended again.
class Admission {
 public:
  Admission(JobName job, const LeaderSeams& seams, const LeaderConfig& config, RecordWriter& record,
            LeaderCalls& calls, LiveTrainers& trainers, Timeline& timeline,
            std::function<void()> on_change);
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  void OnAdmitShard(const NodeInstance& from, const wire::AdmitShard& request, ReplyFunction reply);
  void OnMembershipChanged();
  void Step();
  // Answers everybody who waits.
  void FailAll(const Status& why);

  const std::map<ShardId, ShardMember>& members() const { return members_; }
  // Counts up with every change of an assignment.
  uint64_t version() const { return version_; }
  // Live nodes as placement sees them.
  std::vector<PlacementNode> PlacementNodes() const;

 private:
  enum class RecordState {
    kUnchecked,
    kWriting,
    kFits,
    kEnding,  // Of a job that never was: every first admission was refused.
  };
  struct Refusal {
    ReplyFunction reply;
    Status why;
  };

  Status Check(const wire::AdmitShard& request) const;
  Status AnotherToken() const;
  Status CheckAgainstOthers(const ShardId& shard, const wire::AdmitShard& request) const;
  Status CheckClaim(const ShardId& shard, const wire::AdmitShard& request) const;
  void Resize(const NodeInstance& from, const wire::AdmitShard& request, ReplyFunction reply);
  void RefuseResize(const ShardId& id, ShardMember& member, const NodeId& node, const Status& why);
  void FitRecord(const wire::AdmitShard& request);
  bool RecordFits(const ShardMember& member) const;
  bool WindowIsOver() const;
  void Place();
  void PlaceMember(Placement& placement, const ShardId& id, ShardMember& member);
  void AskTargets(const ShardId& id, ShardMember& member);
  void OnReserved(const ShardId& id, const NodeInstance& node, const Result<wire::Reply>& reply);
  void Finish(const ShardId& id, ShardMember& member);
  void Refuse(const ShardId& id, const Status& why);
  // Ends the record that this leader made, if nobody whom it was made for is left. A refusal is
  // told after that, so that whoever tries again at once finds the job gone.
  void SettleRefusals();
  bool NobodyIsLeft() const;
  void AnswerRefusals();
  void GiveBack(const ShardId& id, const NodeInstance& node);

  const JobName job_;
  const LeaderSeams seams_;
  const LeaderConfig config_;
  RecordWriter& record_;
  LeaderCalls& calls_;
  LiveTrainers& trainers_;
  Timeline& timeline_;
  const std::function<void()> on_change_;

  RecordState record_state_ = RecordState::kUnchecked;
  wire::AdmitShard policy_;        // Whose policy the record has, or is being given.
  bool record_is_new_ = false;     // This leader made it.
  bool end_needed_ = false;        // It was made for nobody, and is not ended yet.
  std::vector<Refusal> refusals_;  // To be answered by SettleRefusals().
  bool place_needed_ = false;      // Members or nodes have changed since the last placement.
  uint64_t version_ = 0;
  uint64_t claim_count_ = 0;  // First admissions of this leader.
  std::map<ShardId, ShardMember> members_;
  // Members with something to do: so that a step costs nothing once all are settled.
  std::set<ShardId> unsettled_;
  Lifetime lifetime_;
};

}  // namespace backstay::replication
