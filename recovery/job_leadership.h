#pragma once

#include <functional>
#include <memory>

#include "base/executor.h"
#include "base/ids.h"
#include "base/status.h"
#include "replication/leader_seams.h"
#include "replication/messenger.h"
#include "replication/peer.pb.h"

namespace backstay::replication {
class JobLeader;
}

namespace backstay::recovery {

class Reconfigurer;

// All that a node does for a job while it leads it: admission, commits, repair and announcements
// (replication::JobLeader) and reconfigurations (Reconfigurer), behind one door.
//
// Make one when this node was elected, destroy it when its leadership ends (or, at the latest, when
// `on_deposed` ran). It starts work from the executor, not in the constructor, and rebuilds what it
// must know by asking: nothing has to be handed over from an earlier leader.
//
// Thread:  the owning executor. Every reply runs exactly once, perhaps inside OnRequest(); replies
//          that are outstanding when it is destroyed get kUnavailable (the sender finds the new
//          leader).
// Memory:  everything behind `seams` must outlive it. Bounded by the limits in LeaderConfig.
// Failure: a transaction that fails because somebody else was elected, or a holder that has seen a
//          higher term or generation, ends the leadership: `on_deposed` runs once, from the
//          executor, and every later request gets kUnavailable.
class JobLeadership {
 public:
  JobLeadership(JobName job, Term term, const replication::LeaderSeams& seams,
                const replication::LeaderConfig& config, StatusCompletion on_deposed);
  ~JobLeadership();
  JobLeadership(const JobLeadership&) = delete;
  JobLeadership& operator=(const JobLeadership&) = delete;

  // Whether a message of this kind is for the job's leader: AdmitShard, ReportShards, ReportFence,
  // Reconfigure, ReportVerified, EndJob, LeaderStatus. (NewAttempt is answered by any node.)
  static bool Handles(replication::wire::Request::BodyCase kind);

  // `request` has passed the router's checks. One that is meant for another term gets kUnavailable.
  // A reply may be held until there is an outcome (Reconfigure, ReportVerified, AdmitShard); the
  // sender repeats the request when it hears nothing.
  void OnRequest(const replication::wire::Request& request, replication::ReplyFunction reply);

  // The membership view has changed. (Its periodic step would find out too, later.)
  void OnMembershipChanged();

 private:
  const Term term_;
  std::unique_ptr<replication::JobLeader> leader_;
  std::unique_ptr<Reconfigurer> reconfigurer_;
};

}  // namespace backstay::recovery
