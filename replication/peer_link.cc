#include "replication/peer_link.h"

#include <algorithm>
#include <utility>

#include "replication/wire_convert.h"

namespace backstay::replication {

void PeerLink::Send(const JobName& job, const NodeInstance& to, wire::Request request,
                    Deadline deadline, Completion<wire::Reply> done, Term leader_term) {
  *request.mutable_header() = router_.MakeHeader(job);
  request.mutable_header()->set_leader_term(leader_term.value);
  *request.mutable_header()->mutable_to() = ToWire(to);
  messenger_.Send(to.node, std::move(request), deadline, std::move(done));
}

LeaderLink::~LeaderLink() {
  for (auto& [id, call] : calls_) executor_.CancelTimer(call.timer);
}

uint64_t LeaderLink::Call(wire::Request request, Deadline deadline, Completion<wire::Reply> done) {
  const uint64_t id = ++last_call_;
  PendingCall& call = calls_[id];
  call.request = std::move(request);
  call.deadline = deadline;
  call.done = std::move(done);
  // Posted: a completion never runs inside of the call.
  if (calls_.size() > kCallsMax) {
    executor_.Post(lifetime_.Wrap([this, id] {
      Finish(id, NoSpace("more than " + std::to_string(kCallsMax) + " calls to the leader of job " +
                         job_.value + " are waiting"));
    }));
    return id;
  }
  executor_.Post(lifetime_.Wrap([this, id] { Attempt(id); }));
  return id;
}

void LeaderLink::Cancel(uint64_t call) {
  const auto found = calls_.find(call);
  if (found == calls_.end()) return;
  executor_.CancelTimer(found->second.timer);
  calls_.erase(found);
}

void LeaderLink::Attempt(uint64_t id) {
  const auto found = calls_.find(id);
  if (found == calls_.end()) return;  // Cancelled.
  PendingCall& call = found->second;
  call.timer = kNoTimer;
  const Instant now = executor_.Now();
  if (now >= call.deadline) {
    Finish(id, DeadlineExceeded("the leader of job " + job_.value +
                                " gave no answer in time; last: " + call.last.message()));
    return;
  }
  const std::optional<LeaderInfo> leader = locator_();
  if (!leader) {
    call.last = Unavailable("no leader is known");
    RetryLater(id);
    return;
  }
  const Deadline deadline = std::min(call.deadline, now + kAttemptTimeout);
  // Any start of the leader's node: a wrong one is not the leader and says so.
  peers_.Send(job_, {leader->node.node, Incarnation()}, call.request, deadline,
              lifetime_.Wrap([this, id](Result<wire::Reply> reply) {
                if (!calls_.contains(id)) return;  // Cancelled.
                if (reply.ok()) return Finish(id, std::move(reply));
                switch (reply.status().code()) {
                  case StatusCode::kUnavailable:
                  case StatusCode::kDeadline:
                  case StatusCode::kUnknownOutcome:
                    calls_.at(id).last = reply.status();
                    return RetryLater(id);
                  default:
                    return Finish(id, std::move(reply));
                }
              }),
              leader->term);
}

void LeaderLink::RetryLater(uint64_t id) {
  PendingCall& call = calls_.at(id);
  const Instant when = std::min<Instant>(call.deadline, executor_.Now() + call.retry_delay);
  call.retry_delay = std::min(call.retry_delay * 2, kRetryMax);
  call.timer = executor_.RunAt(when, lifetime_.Wrap([this, id] { Attempt(id); }));
}

void LeaderLink::Finish(uint64_t id, Result<wire::Reply> result) {
  const auto found = calls_.find(id);
  if (found == calls_.end()) return;  // Cancelled.
  const Completion<wire::Reply> done = std::move(found->second.done);
  calls_.erase(found);
  done(std::move(result));
}

}  // namespace backstay::replication
