#pragma once

#include <functional>
#include <map>
#include <string>

#include "base/executor.h"
#include "base/ids.h"
#include "replication/messenger.h"
#include "replication/peer.pb.h"

namespace backstay::replication {

// The highest (generation, term) of a job that this node has seen: what fences its past.
struct JobFence {
  Generation generation;
  Term term;  // Of the leader of that generation or a later one.
};

// The one entrance for control messages: checks identity and fences before any handler sees a
// message.
//
// Refuses with kStale: another store's id; an incarnation of this node that is not the current one;
// a sender whose higher incarnation has been seen; for messages that change something, a generation
// below the job's fence, and in a leader's messages a term below it. Raises the fence from what it
// lets through.
//
// Thread:  the owning executor.
// Memory:  bounded by kJobsMax and kNodesMax; what was seen of a job or node is never forgotten for
//          another one's sake, messages about more of them are refused.
// Failure: a message that cannot be routed, or whose handler goes away, is answered, never dropped.
class PeerRouter {
 public:
  static constexpr size_t kJobsMax = 65'536;
  static constexpr size_t kNodesMax = 65'536;

  using Handler = std::function<void(const wire::Request& request, ReplyFunction reply)>;

  explicit PeerRouter(StoreId store);

  // The current start of this node; until it is set (and after it is cleared) every message gets
  // kUnavailable.
  void SetSelf(NodeInstance self);
  void ClearSelf();
  const NodeInstance& self() const { return self_; }

  // Whoever handles messages of one kind. Replaces an earlier handler.
  void Handle(wire::Request::BodyCase kind, Handler handler);

  // From the gRPC server or the simulated network.
  void OnRequest(const wire::Request& request, ReplyFunction reply);

  // A header for a message from this node about `job` (empty: none).
  wire::Header MakeHeader(const JobName& job, Term term = Term()) const;

  const JobFence& fence(const JobName& job) const;
  // Raises, never lowers.
  void RaiseFence(const JobName& job, Generation generation, Term term);
  // Only for a job whose end was recorded.
  void ForgetJob(const JobName& job);

 private:
  Status Check(const wire::Request& request);

  const StoreId store_;
  NodeInstance self_;
  std::map<wire::Request::BodyCase, Handler> handlers_;
  std::map<NodeId, Incarnation> highest_incarnation_;  // Of every node id ever heard of.
  std::map<JobName, JobFence> fences_;
};

}  // namespace backstay::replication
