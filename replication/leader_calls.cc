#include "replication/leader_calls.h"

#include <utility>

#include "replication/peer_router.h"

namespace backstay::replication {

LeaderCalls::LeaderCalls(JobName job, Term term, const LeaderSeams& seams,
                         Duration message_deadline, StatusCompletion on_deposed)
    : job_(std::move(job)),
      term_(term),
      seams_(seams),
      message_deadline_(message_deadline),
      on_deposed_(std::move(on_deposed)) {}

void LeaderCalls::Fill(const JobName& job, const NodeInstance& to, wire::Request& request) {
  if (request.has_reserve()) request.mutable_reserve()->set_number(++reserve_count_);
  const bool own = job == job_;
  wire::Header& header = *request.mutable_header();
  header = seams_.router->MakeHeader(job, own ? term_ : seams_.router->fence(job).term);
  if (own) header.set_generation(generation_.value);
  header.mutable_to()->set_node_id(to.node.value);
  header.mutable_to()->set_incarnation(to.incarnation.value);
}

void LeaderCalls::Send(const NodeInstance& to, wire::Request request,
                       Completion<wire::Reply> done) {
  Fill(job_, to, request);
  const auto on_reply = [this, to, done = std::move(done)](Result<wire::Reply> reply) {
    if (reply.ok() && reply->has_header() && reply->header().job() == job_.value) {
      const wire::Header& header = reply->header();
      if (header.term() > term_.value || header.generation() > generation_.value) {
        const Status stale = Stale("job " + job_.value + ": " + to.node.value + " has seen term " +
                                   std::to_string(header.term()) + " and generation " +
                                   std::to_string(header.generation()) +
                                   ", this leader is of term " + std::to_string(term_.value) +
                                   " and generation " + std::to_string(generation_.value));
        on_deposed_(stale);
        done(stale);
        return;
      }
    }
    done(std::move(reply));
  };
  seams_.messenger->Send(to.node, std::move(request), seams_.executor->Now() + message_deadline_,
                         lifetime_.Wrap(on_reply));
}

void LeaderCalls::Ask(const JobName& job, const NodeInstance& to, wire::Request request,
                      Completion<wire::Reply> done) {
  Fill(job, to, request);
  seams_.messenger->Send(to.node, std::move(request), seams_.executor->Now() + message_deadline_,
                         lifetime_.Wrap(std::move(done)));
}

}  // namespace backstay::replication
