#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "replication/admission.h"
#include "replication/announcer.h"
#include "replication/commit_tracker.h"
#include "replication/job_members.h"
#include "replication/leader_calls.h"
#include "replication/leader_seams.h"
#include "replication/leader_status.h"
#include "replication/membership.h"
#include "replication/record_writer.h"
#include "replication/repairer.h"
#include "replication/timeline.h"

namespace backstay::replication {

// Leads one job: lets shards in, commits what is protected, gives up what cannot be, tells the
// job's state, and has lost replicas made again. Reconfigurations are recovery::Reconfigurer's,
// over what is public here.
//
// Level-triggered: whatever arrives only changes what is known; Step() then starts what is missing.
// A new leader knows the record and hears the rest: shards from repeated admissions and reports,
// replicas from inventories.
//
// Thread:  the owning executor. Replies run exactly once, perhaps inside the call.
// Memory:  what `seams` points to outlives it. Bounded by the limits of its parts.
// Failure: without the metadata store nothing is committed or given up; reports are still taken.
//          `on_deposed` runs at most once, from the executor.
class JobLeader {
 public:
  static constexpr Duration kTick = std::chrono::milliseconds(100);  // For what only time changes.
  static constexpr int kReportsMax = 4096;                           // Of one message.

  JobLeader(JobName job, Term term, const LeaderSeams& seams, const LeaderConfig& config,
            StatusCompletion on_deposed);
  ~JobLeader();
  JobLeader(const JobLeader&) = delete;
  JobLeader& operator=(const JobLeader&) = delete;

  void Start();

  void OnAdmitShard(const wire::Request& request, ReplyFunction reply);
  void OnReportShards(const wire::Request& request, ReplyFunction reply);
  void OnReportFence(const wire::Request& request, ReplyFunction reply);
  void OnEndJob(const wire::Request& request, ReplyFunction reply);
  void OnMembershipChanged();
  // All but what a Reconfigurer knows.
  void FillStatus(wire::LeaderStatusReply* status) const;

  // ---- For the reconfigurer ----

  // Called in each step, after something may have changed.
  void SetListener(std::function<void()> listener) { listener_ = std::move(listener); }
  // Has a step run soon.
  void Poke();
  bool loaded() const { return record_.loaded(); }
  bool exists() const { return record_.exists(); }
  const wire::JobRecord& record() const { return record_.record(); }
  void Apply(RecordWriter::Change change, StatusCompletion done);
  const LiveTrainers& trainers() const { return trainers_; }
  // The shard's newest claim that this leader has admitted, or is admitting, is this trainer's.
  bool IsClaimant(const ShardId& shard, uint64_t trainer) const;
  const MembershipView& members() const { return seams_.membership->view(); }
  // When a node was last lost; the beginning of this leadership counts as one.
  Instant last_loss() const { return last_loss_; }
  LeaderCalls& calls() { return calls_; }
  Timeline& timeline() { return timeline_; }
  // What a node answered to an inventory of the reconfigurer.
  void OnInventory(const NodeInstance& from, const wire::InventoryReply& inventory);
  Generation generation() const { return Generation(record().generation()); }

 private:
  static constexpr uint32_t kInventoryTriesMax = 3;  // Then repair goes on without the node's word.
  struct Inventory {
    NodeInstance node;
    bool in_flight = false;
    bool answered = false;  // At least once.
    uint32_t failures = 0;  // Since the last answer.
    Instant next;
  };

  void Step();
  void Tick();
  void OnRecordChanged();
  void UpdateMembers();
  void TakeReports(const NodeInstance& from,
                   const google::protobuf::RepeatedPtrField<wire::ShardReport>& shards,
                   const google::protobuf::RepeatedPtrField<wire::LiveTrainer>& trainers);
  // Whether the snapshot may still be committed, or is kept or pinned.
  bool IsWanted(const SnapshotId& snapshot) const;
  bool MayCommit(const SnapshotId& snapshot) const;
  void StepCommits();
  void Commit(const TrackedSnapshot& snapshot);
  void ProveAlive(std::vector<Compare> conditions, StatusCompletion done);
  void WriteCommit(const CommitProposal& proposal, std::vector<Compare> conditions);
  void GiveUp(const SnapshotId& snapshot, const std::string& why);
  void Abandon(const SnapshotId& snapshot, const std::string& why);
  void StepInventory();
  void StepRepairs();
  // The base that is still to be committed.
  std::optional<SnapshotId> OpenBase() const;
  // The oldest step that is whole and waits for replicas, once it has done so for long.
  std::optional<SnapshotId> OpenForLong() const;
  // Whether it ever will be, as far as is known: else nothing has to wait for it.
  bool BaseIsOutOfReach() const;
  bool InventoryIsComplete() const;
  wire::JobState MakeState(const NodeId& node) const;
  void IndexAssignments();
  std::string DescribeMissing(const ShardId& shard) const;
  void Depose(const Status& why);

  const JobName job_;
  const Term term_;
  const LeaderSeams seams_;
  const LeaderConfig config_;
  const StatusCompletion on_deposed_;
  std::function<void()> listener_;
  bool deposed_ = false;

  Timeline timeline_;
  LeaderCalls calls_;
  RecordWriter record_;
  LiveTrainers trainers_;
  Admission admission_;
  Announcer announcer_;
  CommitTracker tracker_;
  Repairer repairer_;

  bool step_posted_ = false;
  bool members_changed_ = true;
  Revision members_revision_ = 0;  // Of the view that was last taken in.
  bool repair_needed_ = true;
  bool inventory_needed_ = true;
  std::set<NodeInstance> alive_;
  Instant last_loss_;
  Generation resumed_generation_;
  GenerationFence fence_;
  uint64_t told_assignments_ = 0;  // admission_.version() of the index below.
  // The assignments that concern a node: as the primary's, a replica's or an earlier primary's.
  std::map<NodeId, std::vector<wire::Assignment>> assignments_;
  std::map<NodeId, Inventory> inventories_;
  std::optional<SnapshotId> deciding_;           // Being committed or abandoned.
  std::optional<SnapshotId> refused_base_;       // Its shards do not make up a snapshot.
  bool base_out_of_reach_ = false;               // As the nodes are told.
  Instant next_commit_try_;                      // After the store could not be reached.
  std::map<SnapshotId, std::string> abandoned_;  // Why; newest kAbandonedShownMax.
  TimerId tick_timer_ = kNoTimer;
  Lifetime lifetime_;
};

}  // namespace backstay::replication
