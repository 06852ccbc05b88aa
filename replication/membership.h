#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "base/executor.h"
#include "base/random.h"
#include "replication/metadata_store.h"
#include "replication/metadata_watch.h"
#include "replication/node_record.h"

namespace backstay::replication {

enum class MembershipState {
  kJoining,  // Not admitted yet; see status() for what it waits for.
  kIn,       // Holds its lease: others count on this incarnation.
  kOut,      // Lost its lease. Serves nothing until it is admitted again, with a new incarnation.
  kLeft,     // Left for good.
};

struct MembershipOptions {
  Duration lease_ttl = std::chrono::seconds(3);  // The longest that a dead node counts as alive.
  Duration retry_min = std::chrono::milliseconds(50);
  Duration retry_max = std::chrono::seconds(1);
};

// This node among the others: holds its lease, and knows who else is alive.
//
// A node is admitted by one transaction that counts its start (the incarnation, never given twice)
// and puts its record under its lease. While another start of the same node id is alive it waits:
// that is a predecessor whose lease has not ended, or a second machine with the same id.
//
// The node counts itself out one ttl after it *sent* its last successful renewal, so never after
// the store does.
//
// Thread:  the owning executor. Listeners run there, never inside a method.
// Memory:  in the store, the record of a live node, and for every node id that ever joined its
//          start count: some 100 bytes that are never deleted, because grants and lineages name
//          incarnations for longer than the node lives. Ids that come back cost nothing more; a
//          cluster that invents ids fills the store's limit (256 MiB) after some two million.
// Failure: level-triggered: keeps trying, with growing delays, until destroyed or told to leave.
class Membership {
 public:
  using ListenerId = uint64_t;

  // `record` says who this node is; its incarnation is ignored. CheckNodeRecord(record) must hold.
  // All pointers outlive the membership.
  Membership(MetadataStore* store, Executor* executor, Random* random, NodeRecord record,
             MembershipOptions options = {});
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Starts to join, and to follow who is alive. Once.
  void Start();
  // Ends the lease, so that the others need not wait for it. `done` runs when the store has
  // confirmed, or with the error after which the lease ends by time.
  void Leave(Deadline deadline, StatusCompletion done);

  // As of now: a lease that has run out counts as lost even before the timer says so.
  MembershipState state() const;
  bool in() const { return state() == MembershipState::kIn; }
  // OK when in; else why not, for people: "node id n1 is claimed by ...".
  Status status() const;
  // This start of this node; with incarnation 0 while not in.
  NodeInstance self() const;
  // What this node tells the others, with the incarnation of its last admission.
  const NodeRecord& record() const { return record_; }
  // The lease, kNoLease while not in. For keys that end with this start of this node.
  LeaseId lease() const;
  // When the lease runs out, as this node counts.
  Instant lease_end() const { return lease_end_; }
  // A transaction's condition that this start is still alive; nothing while not in.
  std::optional<Compare> SelfCondition() const;

  // Who is alive, as last read. Look at `revision` and `current` before taking absence for death.
  const MembershipView& view() const { return view_; }

  // Calls `listener` after state(), self() or view() changed in more than the time of reading.
  // Changes may be folded together.
  ListenerId OnChange(std::function<void()> listener);
  void RemoveListener(ListenerId id) { listeners_.erase(id); }

 private:
  // Starts whatever is missing to be in, unless it is under way.
  void Step();
  void EndOldLease();
  void Grant();
  void OnGranted(Instant sent, const Result<LeaseId>& lease);
  void ReadStarts();
  void Admit(uint64_t starts, Revision starts_revision);
  void OnAdmitted(const NodeInstance& instance, const Result<TransactionResult>& result);
  void ReadClaim();
  void OnClaim(const Result<RangeResult>& answer);
  void BecomeIn(Incarnation incarnation, Revision revision);
  void RetryLater(Status why);

  void RenewAt(Instant when);
  void Renew();
  void OnRenewed(Instant sent, const Status& status);
  void SetLeaseEnd(Instant end);
  void LoseLease(Status why);

  void OnView(const RangeResult& range, Instant asked_at);
  void OnViewStale();
  void Notify();

  // Wraps what belongs to the present lease: it does nothing once that is lost.
  template <typename F>
  auto InSession(F callback);
  Deadline CallDeadline() const { return executor_->Now() + options_.lease_ttl / 2; }

  MetadataStore* const store_;
  Executor* const executor_;
  const MembershipOptions options_;
  NodeRecord record_;
  const NodeId node_;

  MembershipState state_ = MembershipState::kJoining;
  Status why_not_in_;
  uint64_t session_ = 0;          // Counts leases that were given up.
  LeaseId old_lease_ = kNoLease;  // To be ended before this node joins again.
  LeaseId lease_ = kNoLease;
  Instant lease_end_;
  Revision self_revision_ = 0;  // Create revision of the own key; 0 while not in.
  bool busy_ = false;           // A call of Step() is under way.
  RetryDelay retry_delay_;
  TimerId retry_timer_ = kNoTimer;
  TimerId renew_timer_ = kNoTimer;
  TimerId end_timer_ = kNoTimer;

  MembershipView view_;
  std::map<NodeId, Revision> unreadable_;  // Records already complained of, by mod revision.
  TimerId stale_timer_ = kNoTimer;
  std::optional<MetadataWatch> watch_;

  ListenerId last_listener_ = 0;
  std::map<ListenerId, std::function<void()>> listeners_;
  bool notify_posted_ = false;

  Lifetime lifetime_;
};

}  // namespace backstay::replication
