#pragma once

#include <map>

#include "base/executor.h"
#include "base/ids.h"
#include "replication/leader_seams.h"
#include "replication/messenger.h"

namespace backstay::replication {

// Sends a leader's messages: in its term and the record's generation, to one start of a node.
//
// Thread:  the owning executor.
// Memory:  what `seams` points to outlives it; completions do not run once it is gone.
// Failure: an answer by somebody who has seen a later term or a higher generation ends the
//          leadership: `on_deposed`, and the answer is passed on as kStale.
class LeaderCalls {
 public:
  LeaderCalls(JobName job, Term term, const LeaderSeams& seams, Duration message_deadline,
              StatusCompletion on_deposed);

  void SetGeneration(Generation generation) { generation_ = generation; }
  void Send(const NodeInstance& to, wire::Request request, Completion<wire::Reply> done);
  // A question about another job, which this leader does not lead.
  void Ask(const JobName& job, const NodeInstance& to, wire::Request request,
           Completion<wire::Reply> done);

  Term term() const { return term_; }

 private:
  void Fill(const JobName& job, const NodeInstance& to, wire::Request& request);

  const JobName job_;
  const Term term_;
  const LeaderSeams seams_;
  const Duration message_deadline_;
  const StatusCompletion on_deposed_;
  Generation generation_;
  uint64_t reserve_count_ = 0;
  Lifetime lifetime_;
};

}  // namespace backstay::replication
