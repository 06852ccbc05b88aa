#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "recovery/callers.h"
#include "recovery/inventory_round.h"
#include "recovery/planner.h"
#include "replication/job_leader.h"
#include "replication/leader_seams.h"
#include "replication/messenger.h"
#include "replication/peer.pb.h"

namespace backstay::recovery {

// The leader's side of docs/protocol.md, "Reconfigure and restore": gathers the ranks of an
// attempt, closes the generation, takes inventory, records one decision, answers all ranks alike,
// and lets them return to their trainers only once all have verified their bytes.
//
// Level-triggered, and the record says where it stands: a new leader that finds the generation
// closing goes on with the inventory when the ranks call again; one that finds a decision answers
// with that.
//
// Thread:  the owning executor. Replies run exactly once.
// Memory:  bounded by Callers and by one inventory of the job.
// Failure: before `closing` is recorded a failure changes nothing. After it, the generation stays
//          closed until some reconfiguration is decided.
class Reconfigurer {
 public:
  // A node's report is held this long for an outcome before it is told that there is none yet.
  static constexpr Duration kReportHold = std::chrono::seconds(1);
  static constexpr Duration kSweepInterval = std::chrono::milliseconds(50);
  // Between two plans while something is unknown.
  static constexpr Duration kPlanInterval = std::chrono::milliseconds(20);
  // Between two tries to read the record of a job that is forked.
  static constexpr Duration kForkReadInterval = std::chrono::milliseconds(500);

  // Registers itself with `leader`, which outlives it.
  Reconfigurer(JobName job, const replication::LeaderSeams& seams,
               const replication::LeaderConfig& config, replication::JobLeader& leader);
  ~Reconfigurer();
  Reconfigurer(const Reconfigurer&) = delete;
  Reconfigurer& operator=(const Reconfigurer&) = delete;

  void OnReconfigure(const replication::wire::Request& request, replication::ReplyFunction reply);
  void OnReportVerified(const replication::wire::Request& request,
                        replication::ReplyFunction reply);
  // The reconfiguration under way and who is missing.
  void FillStatus(replication::wire::LeaderStatusReply* status) const;
  // Answers everybody who waits.
  void FailAll(const Status& why);

 private:
  enum class Busy {
    kNo,
    kClosing,  // The transaction is under way.
    kDeciding,
    kMoving,  // To the next attempt.
    kResuming,
  };
  struct HeldReport {
    AttemptUuid uuid;
    Attempt attempt;
    replication::ReplyFunction reply;
    Instant until;
  };

  void Step();
  void Sweep();
  bool IsGone(Caller& caller) const;
  // ---- Until the decision ----
  Status WhyExpired(const AttemptUuid& uuid, const CallGroup& group) const;
  // Nothing: may go on. Else what is waited for.
  std::optional<Status> CheckLeaving(const CallGroup& group) const;
  std::optional<AttemptUuid> FindComplete() const;
  void StepGroup(const AttemptUuid& uuid);
  void Close(const AttemptUuid& uuid);
  void StepInventory(const AttemptUuid& uuid, const RestoreRequest& request);
  void ReadForkRecord(const JobName& fork_job);
  PlanInput MakePlanInput(const RestoreRequest& request) const;
  void Decide(const AttemptUuid& uuid, const RestoreRequest& request, const Plan& plan);

  // ---- After the decision ----
  bool IsDecided(const AttemptUuid& uuid) const;
  void AnswerDecided();
  // Whether the sources of the recorded base are known; takes inventory for them if not.
  bool SourcesKnown();
  void LearnSources();
  replication::wire::Decision MakeDecision() const;
  // What the job waits for before it can go on: a reconfiguration that has calls, that closed the
  // generation, or whose decision has not resumed. Empty: for none.
  AttemptUuid UnderWay() const;
  void TakeRestores(const NodeInstance& from, const replication::wire::ReportVerified& report);
  ShardId ShardOfRank(const replication::wire::RankRestore& restore) const;
  void StepRestore();
  // A rank that has yet to verify, and that no live trainer stands for any more.
  std::optional<uint32_t> FindGoneRank();
  void StepMove();
  void Move(const Plan& plan);
  void Resume();
  void AnswerReports();

  const replication::wire::JobRecord& record() const { return leader_.record(); }
  Generation generation() const { return leader_.generation(); }
  const std::map<NodeId, replication::Member>& members() const { return leader_.members().members; }

  const JobName job_;
  const replication::LeaderSeams seams_;
  const replication::LeaderConfig config_;
  replication::JobLeader& leader_;

  Callers callers_;
  InventoryRound round_;
  Busy busy_ = Busy::kNo;
  int64_t under_way_since_unix_ms_ = 0;  // 0: no reconfiguration is.
  Instant next_sweep_;
  Instant next_plan_;
  Plan waiting_plan_;                // The last one that waits; for messages.
  std::set<AttemptUuid> announced_;  // Of which the timeline knows that all are present.
  std::optional<replication::wire::JobRecord> fork_record_;
  JobName fork_record_of_;
  bool fork_read_in_flight_ = false;
  Instant next_fork_read_;
  std::string fork_read_error_;  // Of the newest read; empty: none.

  // Of the recorded decision, uuid and attempt below.
  AttemptUuid decided_uuid_;
  Attempt decided_attempt_;
  bool sources_known_ = false;
  std::vector<replication::wire::ShardSource> sources_;
  RestoreRequest decided_request_;  // As the ranks asked; world_size 0: not known.
  std::map<uint32_t, ShardId> shard_of_rank_;
  std::map<uint32_t, replication::wire::RankRestore> restores_;
  std::set<UnreadableCopy> unreadable_;       // Of all attempts of the generation.
  std::map<uint32_t, Instant> missed_since_;  // Ranks that no live trainer is seen to restore.
  Instant next_gone_check_;
  bool move_needed_ = false;
  Status restore_error_;  // This reconfiguration cannot resume any more.
  std::map<std::pair<NodeId, Attempt>, HeldReport> held_reports_;
  Lifetime lifetime_;
};

}  // namespace backstay::recovery
