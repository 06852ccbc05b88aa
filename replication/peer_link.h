#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "base/executor.h"
#include "replication/messenger.h"
#include "replication/peer_router.h"

namespace backstay::replication {

// Sends the node's own messages: fills headers, and knows who is alive.
//
// Thread: the owning executor.
class PeerLink {
 public:
  // The start of the node that the membership has alive now, as this node last saw it.
  using Directory = std::function<std::optional<NodeInstance>(const NodeId&)>;

  PeerLink(Messenger& messenger, const PeerRouter& router, Directory directory)
      : messenger_(messenger), router_(router), directory_(std::move(directory)) {}

  const NodeInstance& self() const { return router_.self(); }
  std::optional<NodeInstance> Alive(const NodeId& node) const { return directory_(node); }
  bool IsAlive(const NodeInstance& instance) const { return Alive(instance.node) == instance; }

  // `to` with incarnation 0: whichever start is there. `leader_term` 0: of any leader, or to none.
  void Send(const JobName& job, const NodeInstance& to, wire::Request request, Deadline deadline,
            Completion<wire::Reply> done, Term leader_term = Term());

 private:
  Messenger& messenger_;
  const PeerRouter& router_;
  const Directory directory_;
};

struct LeaderInfo {
  NodeInstance node;
  Term term;

  friend bool operator==(const LeaderInfo&, const LeaderInfo&) = default;
};

// Calls to whoever leads one job: found anew for each attempt, repeated until there is an answer.
//
// Thread:  the owning executor. Completions of calls that are pending at destruction do not run.
// Failure: kUnavailable, kDeadline and kUnknownOutcome of an attempt lead to the next one; every
//          other answer is final. At its deadline a call ends kDeadline with the last trouble.
class LeaderLink {
 public:
  // Nothing: there is none now, or it is not known.
  using Locator = std::function<std::optional<LeaderInfo>()>;

  static constexpr Duration kRetryMin = std::chrono::milliseconds(20);
  static constexpr Duration kRetryMax = std::chrono::milliseconds(500);
  // Of one attempt: what a call costs when the leader is lost without a broken connection.
  static constexpr Duration kAttemptTimeout = std::chrono::seconds(3);
  static constexpr size_t kCallsMax = 4096;

  LeaderLink(JobName job, Executor& executor, PeerLink& peers, Locator locator)
      : job_(std::move(job)), executor_(executor), peers_(peers), locator_(std::move(locator)) {}
  ~LeaderLink();

  std::optional<LeaderInfo> Find() const { return locator_(); }
  // The answer names the call to Cancel().
  uint64_t Call(wire::Request request, Deadline deadline, Completion<wire::Reply> done);
  // Its completion does not run any more, nor is it repeated. A call that has ended is ignored.
  void Cancel(uint64_t call);

 private:
  struct PendingCall {
    wire::Request request;
    Deadline deadline;
    Completion<wire::Reply> done;
    Duration retry_delay = kRetryMin;
    Status last = Unavailable("no leader is known");
    TimerId timer = kNoTimer;
  };

  void Attempt(uint64_t id);
  void RetryLater(uint64_t id);
  void Finish(uint64_t id, Result<wire::Reply> result);

  const JobName job_;
  Executor& executor_;
  PeerLink& peers_;
  const Locator locator_;
  uint64_t last_call_ = 0;
  std::map<uint64_t, PendingCall> calls_;
  Lifetime lifetime_;
};

}  // namespace backstay::replication
