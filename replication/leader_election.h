#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "base/executor.h"
#include "base/random.h"
#include "replication/membership.h"
#include "replication/metadata_store.h"
#include "replication/metadata_watch.h"

namespace backstay::replication {

// Who leads a job, as last read.
struct Leader {
  NodeInstance instance;
  std::string control_address;
  Term term;  // Revision of its election.

  friend bool operator==(const Leader&, const Leader&) = default;
};

struct LeaderElectionOptions {
  MetadataWatchOptions watch;
  Duration call_deadline = std::chrono::seconds(2);
};

// Follows who leads one job, and stands for it while asked to. The leader is whoever made the job's
// leader key, under its node's lease; the term is the revision that did. Being deposed needs no
// word of the deposed: its transactions compare the key's create revision.
//
// Thread:  the owning executor. The listener runs there, never inside a method.
// Memory:  all pointers outlive the election.
// Failure: level-triggered: goes on trying until destroyed. Destroying it while leading leaves the
//          key until the node's lease ends; SetCandidate(false) first gives it up at once.
class LeaderElection {
 public:
  // `listener` is called after leader(), known() or term() changed; changes may be folded together.
  LeaderElection(MetadataStore* store, Executor* executor, Random* random, Membership* membership,
                 JobName job, LeaderElectionOptions options, std::function<void()> listener);
  ~LeaderElection();
  LeaderElection(const LeaderElection&) = delete;
  LeaderElection& operator=(const LeaderElection&) = delete;

  // Starts to follow. Once.
  void Start();
  // Whether this node should lead if nobody does. False while leading: gives the job up.
  void SetCandidate(bool candidate);

  // The own term, 0 while this node does not lead. As of now: without a lease there is no term,
  // whatever was read last.
  Term term() const;
  bool leading() const { return term().value != 0; }

  // False: nothing was read yet, so nothing is known about a leader.
  bool known() const { return read_revision_.has_value(); }
  // The leader last read, this node or another; nothing: nobody leads, if known().
  const std::optional<Leader>& leader() const { return leader_; }

  // A transaction's condition that this node's term still holds; nothing while not leading.
  std::optional<Compare> TermCondition() const;

  const JobName& job() const { return job_; }

 private:
  void Step();
  void Campaign();
  void Resign();
  void OnCampaigned(LeaseId lease, const Leader& self, const Result<TransactionResult>& result);
  void OnState(const RangeResult& range);
  void Observe(Revision revision, std::optional<Leader> leader, LeaseId lease);
  void RetryLater();
  // Tells the listener if something changed since it was told.
  void NotifyIfChanged();

  MetadataStore* const store_;
  Executor* const executor_;
  Membership* const membership_;
  const JobName job_;
  const std::string key_;
  const LeaderElectionOptions options_;
  const std::function<void()> listener_;

  bool candidate_ = false;
  std::optional<Revision> read_revision_;
  std::optional<Leader> leader_;
  LeaseId leader_lease_ = kNoLease;  // Of the leader's key.

  bool busy_ = false;  // A campaign or resignation is under way.
  RetryDelay retry_delay_;
  TimerId retry_timer_ = kNoTimer;

  bool told_known_ = false;
  Term told_term_;
  std::optional<Leader> told_leader_;
  bool notify_posted_ = false;

  Membership::ListenerId membership_listener_ = 0;
  std::optional<MetadataWatch> watch_;
  Lifetime lifetime_;
};

}  // namespace backstay::replication
