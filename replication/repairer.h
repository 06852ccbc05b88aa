#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "replication/job_members.h"
#include "replication/leader_calls.h"
#include "replication/leader_seams.h"
#include "replication/repair_planner.h"
#include "replication/timeline.h"

namespace backstay::replication {

// Carries out what the repair planner wants: orders a holder to replicate to the target, again
// until the tracker shows the copy or the repair's deadline has passed. The memory is what the
// target has promised for the shard, and is asked for it first; else a place that it makes for this
// one copy.
//
// Thread:  the owning executor.
// Memory:  bounded by repairs_per_node_max for each node.
// Failure: a target that has no memory, or that takes nothing in, is passed over for kRefusalKept.
//          A repair whose source or target is lost, or that takes too long, is dropped and planned
//          anew.
class Repairer {
 public:
  static constexpr Duration kRefusalKept = std::chrono::seconds(30);
  static constexpr Duration kRepeat = std::chrono::seconds(1);

  // `on_news` runs when an answer makes another step worth while.
  Repairer(const LeaderSeams& seams, const LeaderConfig& config, LeaderCalls& calls,
           Timeline& timeline, std::function<void()> on_news);
  Repairer(const Repairer&) = delete;
  Repairer& operator=(const Repairer&) = delete;

  // `input` without what the repairer knows itself: running repairs, refusals and limits. `members`
  // says which targets are being asked for memory.
  void Step(RepairInput input, const std::map<ShardId, ShardMember>& members,
            Generation generation);
  // Nothing is to be repaired now (the generation is closing): forgets what runs.
  void Pause() { running_.clear(); }

  const RepairPlan& last_plan() const { return last_plan_; }

 private:
  struct Running {
    bool ordered = false;  // The target's memory is not waited for any more.
    bool in_flight = false;
    Instant next;
    Deadline deadline;
  };

  void DropEnded(const RepairInput& input, Generation generation);
  void Advance(const Repair& repair, Running& running);
  void OnReply(const Repair& repair, const Result<wire::Reply>& reply);

  const LeaderSeams seams_;
  const LeaderConfig config_;
  LeaderCalls& calls_;
  Timeline& timeline_;
  const std::function<void()> on_news_;

  std::map<Repair, Running> running_;
  std::map<std::pair<ShardId, NodeId>, Instant> refused_;  // Until when.
  RepairPlan last_plan_;
  bool was_under_protected_ = false;
  Lifetime lifetime_;
};

}  // namespace backstay::replication
