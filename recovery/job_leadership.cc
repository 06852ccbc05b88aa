#include "recovery/job_leadership.h"

#include <utility>

#include "recovery/reconfigurer.h"
#include "replication/job_leader.h"

namespace backstay::recovery {

using replication::wire::Request;

JobLeadership::JobLeadership(JobName job, Term term, const replication::LeaderSeams& seams,
                             const replication::LeaderConfig& config, StatusCompletion on_deposed)
    : term_(term),
      leader_(std::make_unique<replication::JobLeader>(job, term, seams, config,
                                                       std::move(on_deposed))),
      reconfigurer_(std::make_unique<Reconfigurer>(std::move(job), seams, config, *leader_)) {
  leader_->Start();
}

JobLeadership::~JobLeadership() = default;

bool JobLeadership::Handles(Request::BodyCase kind) {
  switch (kind) {
    case Request::kAdmitShard:
    case Request::kReportShards:
    case Request::kReportFence:
    case Request::kReconfigure:
    case Request::kReportVerified:
    case Request::kEndJob:
    case Request::kLeaderStatus:
      return true;
    default:
      return false;
  }
}

void JobLeadership::OnRequest(const Request& request, replication::ReplyFunction reply) {
  // What was sent to an earlier leader on this node and comes late knows nothing of what was
  // decided since. Attack: the first registration of a trainer that was replaced arrives again.
  const Term meant(request.header().leader_term());
  if (meant.value != 0 && meant != term_) {
    reply(Unavailable("message to the leader of term " + std::to_string(meant.value) +
                      " reached the one of term " + std::to_string(term_.value)));
    return;
  }
  switch (request.body_case()) {
    case Request::kAdmitShard:
      leader_->OnAdmitShard(request, std::move(reply));
      return;
    case Request::kReportShards:
      leader_->OnReportShards(request, std::move(reply));
      return;
    case Request::kReportFence:
      leader_->OnReportFence(request, std::move(reply));
      return;
    case Request::kEndJob:
      leader_->OnEndJob(request, std::move(reply));
      return;
    case Request::kReconfigure:
      reconfigurer_->OnReconfigure(request, std::move(reply));
      return;
    case Request::kReportVerified:
      reconfigurer_->OnReportVerified(request, std::move(reply));
      return;
    case Request::kLeaderStatus: {
      if (!leader_->loaded()) {
        reply(Unavailable("the leader is still reading the job's record"));
        return;
      }
      replication::wire::Reply answer;
      leader_->FillStatus(answer.mutable_leader_status());
      reconfigurer_->FillStatus(answer.mutable_leader_status());
      reply(std::move(answer));
      return;
    }
    default:
      reply(InvalidArgument("message of kind " + std::to_string(request.body_case()) +
                            " is not for a job's leader"));
  }
}

void JobLeadership::OnMembershipChanged() { leader_->OnMembershipChanged(); }

}  // namespace backstay::recovery
