#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "base/executor.h"
#include "tools/admin/admin_queries.h"

namespace backstay::tools {

// Has every replica of a snapshot re-verified where it lies: one at a time on each node, so that
// training notices little, and all nodes at once.
//
// Thread:  the executor of its queries.
// Memory:  dropping it stops it: replicas under way are finished unheard, no other is started.
// Failure: a replica that could not be asked is reported as such, not as good or bad.
class VerifyRun : public std::enable_shared_from_this<VerifyRun> {
 public:
  VerifyRun(AdminQueries& queries, JobName job, AdminQueries::OnProgress on_progress,
            StatusCompletion done);

  void Start(const Result<FoundSnapshot>& found);

 private:
  struct Replica {
    const FoundShard* shard = nullptr;
    NodeInstance holder;
  };

  // What no replica can be asked for: ranks that nobody holds, nodes that are silent.
  void ReportMissing();
  void Step(const NodeId& node);
  void OnVerified(const Replica& replica, const Result<replication::wire::Reply>& reply);
  void Report(wire::VerifyProgress progress);

  AdminQueries& queries_;
  const JobName job_;
  const AdminQueries::OnProgress on_progress_;
  const StatusCompletion done_;
  FoundSnapshot found_;
  std::map<NodeId, std::deque<Replica>> waiting_;
  std::deque<NodeId> idle_;  // Nodes that wait for their turn.
  uint32_t replicas_done_ = 0;
  uint32_t replicas_total_ = 0;
  Lifetime lifetime_;
};

}  // namespace backstay::tools
