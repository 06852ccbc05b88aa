#pragma once

#include <map>
#include <memory>
#include <optional>

#include "recovery/job_leadership.h"
#include "recovery/restore_agent.h"
#include "replication/fetch_agent.h"
#include "replication/job_agent.h"
#include "replication/leader_election.h"
#include "replication/shard_exporter.h"
#include "replication/snapshot_reader.h"
#include "tools/node/node.h"

namespace backstay::tools {

// One job on this node.
struct Node::JobHost {
  std::unique_ptr<replication::LeaderElection> election;
  std::unique_ptr<replication::JobAgent> agent;
  std::unique_ptr<recovery::RestoreAgent> restores;
  std::unique_ptr<recovery::JobLeadership> leadership;  // While this node leads the job.
  Term led_term;                                        // Of `leadership`, or of the last one.
  Instant stand_again;                                  // Not a candidate before this.
  Instant last_used;
};

// Destroyed from below: the jobs first, the grants' transport before what counts the grants.
struct Node::Core {
  explicit Core(Node& node, DataPlane data);

  std::string data_address;
  replication::ClaimNumber last_claim;  // Of all jobs' claims.
  std::unique_ptr<replication::ShardExporter> exports;
  std::unique_ptr<transport::Puller> puller;
  std::unique_ptr<transport::Exporter> exporter;
  replication::SnapshotReader snapshots;
  replication::FetchAgent fetches;
  std::map<JobName, std::unique_ptr<JobHost>> jobs;
};

}  // namespace backstay::tools
