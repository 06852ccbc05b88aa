#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/ids.h"
#include "recovery/planner.h"
#include "replication/leader_calls.h"
#include "replication/leader_seams.h"
#include "replication/node_record.h"

namespace backstay::recovery {

// Asks every live node what it holds of a job, again until it has answered; a node that joins is
// asked too, and what a lost one answered does not count.
//
// Thread:  the owning executor.
// Failure: a node that does not answer stays unknown, never "holds nothing".
class InventoryRound {
 public:
  using OnAnswer =
      std::function<void(const NodeInstance&, const replication::wire::InventoryReply&)>;

  InventoryRound(const replication::LeaderSeams& seams, const replication::LeaderConfig& config,
                 replication::LeaderCalls& calls, OnAnswer on_answer);
  InventoryRound(const InventoryRound&) = delete;
  InventoryRound& operator=(const InventoryRound&) = delete;

  // Forgets all answers. `closing`: the answers are promises for that reconfiguration; empty: only
  // a question. `other_job`: not of the leader's job but of that one (and then only a question).
  void Start(const AttemptUuid& closing, const JobName& other_job);
  void Stop() { running_ = false; }
  void Step(const std::map<NodeId, replication::Member>& members);

  bool running() const { return running_; }
  // As Start() was told.
  bool IsFor(const AttemptUuid& closing, const JobName& other_job) const {
    return running_ && closing_ == closing && other_job_ == other_job;
  }
  const JobName& other_job() const { return other_job_; }
  Instant started_at() const { return started_at_; }
  size_t UnansweredCount(const std::map<NodeId, replication::Member>& members) const;
  InventoryView View(const std::map<NodeId, replication::Member>& members) const;

 private:
  struct Asked {
    NodeInstance node;
    bool in_flight = false;
    bool answered = false;
    Instant next;
    Duration retry_delay{};
    std::vector<replication::wire::HeldShard> shards;
  };
  void Ask(Asked& asked);

  const replication::LeaderSeams seams_;
  const replication::LeaderConfig config_;
  replication::LeaderCalls& calls_;
  const OnAnswer on_answer_;
  bool running_ = false;
  uint64_t round_ = 0;  // Answers to an earlier one are ignored.
  AttemptUuid closing_;
  JobName other_job_;
  Instant started_at_;
  std::map<NodeId, Asked> asked_;
  Lifetime lifetime_;
};

}  // namespace backstay::recovery
