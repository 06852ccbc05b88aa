#pragma once

#include <functional>
#include <string>

#include "base/clock.h"
#include "base/executor.h"
#include "base/ids.h"
#include "base/status.h"
#include "replication/peer.pb.h"

namespace backstay::replication {

// Sends control messages to other services (and to the own one, by the same path).
//
// Thread:  every method and completion on the owning executor; a completion never runs before
// Send() has returned. Failure: kUnavailable: no answer could be had. kDeadline: none in time.
// Either way the message may have been
//          delivered (a lost answer looks like a lost request). An error status
//          inside of a reply is returned as that error. Requests are idempotent: callers repeat
//          them.
class Messenger {
 public:
  virtual ~Messenger() = default;

  // The router of the receiving node sees `request` as it is; fill the header first
  // (PeerRouter::MakeHeader).
  virtual void Send(const NodeId& to, wire::Request request, Deadline deadline,
                    Completion<wire::Reply> done) = 0;
};

// Answers one request; run exactly once, on the executor, at any later time.
using ReplyFunction = std::function<void(Result<wire::Reply>)>;

}  // namespace backstay::replication
