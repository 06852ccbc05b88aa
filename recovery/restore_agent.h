#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/ids.h"
#include "base/random.h"
#include "replication/fetch_agent.h"
#include "replication/job_agent.h"
#include "replication/job_view.h"
#include "replication/peer_link.h"
#include "replication/snapshot_reader.h"
#include "replication/trainer_port.h"

namespace backstay::recovery {

// One job's reconfigurations as its trainers on one node see them: brings each rank's call to the
// leader until there is a decision, opens what it restores, and brings the node's word that it is
// restored to the leader until that has recorded the outcome.
//
// Thread:  the control executor. Completions run later, exactly once, unless it is destroyed first.
// Memory:  remembers kDecisionsMax decisions, so that late fetches of an attempt find their
//          sources.
// Failure: calls are repeated over lost messages and changes of leader until the caller's deadline.
class RestoreAgent {
 public:
  static constexpr size_t kDecisionsMax = 8;
  static constexpr size_t kRestoresMax = 1024;
  // The leader has the same deadline and says who was missing: its word is waited for this much
  // longer.
  static constexpr Duration kLeaderGrace = std::chrono::seconds(2);
  static constexpr Duration kReportInterval = std::chrono::milliseconds(250);
  static constexpr Duration kClaimCheckInterval = std::chrono::milliseconds(250);
  static constexpr Duration kTimeoutMax = std::chrono::hours(24);

  // Where another job's leader is asked (forks, looking at other jobs); null: not now.
  using LinkOf = std::function<replication::LeaderLink*(const JobName&)>;
  // Whose trainer asks.
  struct Caller {
    ShardId shard;
    replication::ClaimNumber claim;
  };

  RestoreAgent(Executor& executor, Random& random, replication::JobAgent& job,
               replication::FetchAgent& fetches, replication::SnapshotReader& snapshots,
               LinkOf link_of);
  ~RestoreAgent();
  RestoreAgent(const RestoreAgent&) = delete;
  RestoreAgent& operator=(const RestoreAgent&) = delete;

  // A name for one reconfiguration, for all of its ranks.
  AttemptUuid NewAttempt();
  // kStale: superseded, or the caller is not of the current generation; kDeadline names who is
  // missing.
  void Reconfigure(const Caller& caller, const replication::ReconfigureRequest& request,
                   Completion<replication::DecisionReply> done);
  void Fetch(const Caller& caller, const replication::FetchRequest& request,
             Completion<replication::FetchReply> done);
  void FinishRestore(const Caller& caller, const replication::FinishRestoreRequest& request,
                     Completion<replication::FinishRestoreReply> done);
  void OnView(const replication::JobView& view);

 private:
  // One rank's restore, from FinishRestore() to the recorded outcome.
  struct Restore {
    Caller caller;
    AttemptUuid uuid;
    Attempt attempt;
    replication::wire::RankRestore report;
    Completion<replication::FinishRestoreReply> done;
    TimerId deadline_timer = kNoTimer;
  };
  using DecisionKey = std::pair<AttemptUuid, Attempt>;
  // When a rank first asked for the bytes that its restore needs.
  struct FetchBegun {
    ShardName name;
    Instant at;
  };

  void WatchClaims();
  void EndRestoring(const Caller& caller, const AttemptUuid& uuid);
  void Remember(const replication::wire::Decision& decision);
  const replication::wire::Decision* FindDecision(const AttemptUuid& uuid, Attempt attempt) const;
  replication::DecisionReply ToReply(const replication::wire::Decision& decision,
                                     const ShardId& shard) const;
  void FillReport(const Caller& caller, const replication::FinishRestoreRequest& request,
                  replication::wire::RankRestore* report) const;
  void Report(const DecisionKey& key);
  void OnReported(const DecisionKey& key, Result<replication::wire::Reply> reply);
  void ReportLater();
  void Resumed(const AttemptUuid& uuid, Attempt attempt);
  void MoveOn(const replication::wire::Decision& next);
  void FinishAll(const DecisionKey& key, const Status& why);
  void Finish(uint64_t id, Result<replication::FinishRestoreReply> result);

  Executor& executor_;
  Random& random_;
  replication::JobAgent& job_;
  replication::FetchAgent& fetches_;
  replication::SnapshotReader& snapshots_;
  const LinkOf link_of_;
  std::vector<replication::wire::Decision> decisions_;  // Oldest first.
  struct PendingCall {
    uint64_t call = 0;
    replication::ClaimNumber claim;
    Completion<replication::DecisionReply> done;
  };
  std::map<ShardId, PendingCall> calls_;          // Of Reconfigure(), by the caller's shard.
  std::map<DecisionKey, uint64_t> report_calls_;  // The newest ReportVerified of each.
  std::map<ShardId, FetchBegun> fetches_begun_;   // By the caller's shard, until it has finished.
  uint64_t last_restore_ = 0;
  std::map<uint64_t, Restore> restores_;
  TimerId report_timer_ = kNoTimer;
  TimerId watch_timer_ = kNoTimer;
  Lifetime lifetime_;
};

}  // namespace backstay::recovery
