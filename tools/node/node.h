#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/executor.h"
#include "base/ids.h"
#include "base/random.h"
#include "replication/job_store.h"
#include "replication/leader_seams.h"
#include "replication/membership.h"
#include "replication/messenger.h"
#include "replication/metadata_store.h"
#include "replication/node_record.h"
#include "replication/peer_link.h"
#include "replication/peer_router.h"
#include "replication/trainer_port.h"
#include "store/memory_budget.h"
#include "store/offload.h"
#include "store/scrubber.h"
#include "store/shard_table.h"
#include "store/shard_verifier.h"
#include "store/slot_memory.h"
#include "store/slot_pool.h"
#include "transport/transport.h"

namespace backstay::tools {

class TrainerSession;

// The bulk transport of one start of a node. The exporter's grants name that start, so both are
// made when the incarnation is known.
struct DataPlane {
  std::unique_ptr<transport::Exporter> exporter;
  std::unique_ptr<transport::Puller> puller;
  std::string address;  // Of the exporter, for status; grants carry it to whoever reads.
};
// An error ends the node: see Start().
using DataPlaneFactory = std::function<Result<DataPlane>(const NodeInstance& self)>;
// What the transport knows of its traffic, for status; may be empty.
using TrafficReport = std::function<std::vector<replication::wire::PeerTraffic>()>;

struct NodeConfig {
  // What this node tells the others of itself. The incarnation is filled in.
  replication::NodeRecord record;
  StoreId store;  // The metadata store that it was bound to; another one is refused.
  uint32_t chunk_bytes = kChunkBytesDefault;
  uint64_t repair_reserve_bytes = 0;
  uint64_t scrub_bytes_per_second = 0;  // 0: not at all.
  bool serves_metadata = false;         // For status.
  Duration lease_ttl = std::chrono::seconds(3);
  replication::LeaderConfig leader;
};

// The world as a node sees it. All of it outlives the node.
struct NodeSeams {
  Executor* executor = nullptr;
  Random* random = nullptr;
  replication::MetadataStore* metadata = nullptr;
  replication::Messenger* messenger = nullptr;
  store::SlotMemoryFactory* memory = nullptr;
  const store::MemoryBudget* budget = nullptr;
  store::Offload offload;
  DataPlaneFactory data_plane;
  TrafficReport traffic;
};

// One node: the store, membership, and for each job its agents and, while elected, its leadership.
// The daemon builds it over sockets and memory files, the simulation over simulated ones.
//
// Thread:  the owning executor, every method.
// Memory:  owns all shards of the node. Destroying it is the death of the process: grants end,
//          completions do not run any more.
// Failure: a node that lost its lease answers no peer and ends its grants until it is admitted
//          again, with a new incarnation; it keeps its shards and its trainers, offers what it has,
//          and drops only by the kept set.
class Node : public replication::TrainerPort {
 public:
  static constexpr size_t kJobsMax = 1024;
  // Agents of a job of which nothing is here are kept so long after they were last needed.
  static constexpr Duration kIdleJobLinger = std::chrono::seconds(60);
  static constexpr Duration kSweepInterval = std::chrono::seconds(5);
  // After its leadership was ended by somebody else, this node stands for the job again.
  static constexpr Duration kStandAgainDelay = std::chrono::seconds(1);
  static constexpr Duration kStoreCheckInterval = std::chrono::seconds(5);
  static constexpr Duration kJobListTimeout = std::chrono::seconds(2);

  Node(NodeConfig config, NodeSeams seams);
  ~Node() override;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Joins the cluster, and keeps trying until it is in. `on_joined` runs once, when it is a member
  // for the first time (or with the error of the data plane); `on_lost` when it cannot go on
  // because the metadata store is another one now. The process should end then. A second live claim
  // to the node id keeps it out, and is logged, for as long as the first one lives.
  void Start(StatusCompletion on_joined, StatusCompletion on_lost);
  // Leaves the cluster now instead of by the lease's end. Nothing else is answered afterwards.
  void Stop(StatusCompletion done);

  std::unique_ptr<replication::Trainer> Connect(replication::ProcessId process,
                                                replication::TrainerListener* listener) override;
  void ProcessExited(replication::ProcessId process) override;

  // Where messages from peers come in.
  replication::PeerRouter& router();
  // For the messenger; nothing when the membership does not have the node.
  std::optional<std::string> ControlAddress(const NodeId& node) const;
  // Empty before the first start was admitted.
  const NodeInstance& self() const;
  const replication::MembershipView& members() const;
  // Why it is not a member now; ok when it is.
  Status MembershipStatus() const;
  // What `status` shows of this node.
  replication::wire::NodeStatusReply Describe() const;

 private:
  friend class TrainerSession;
  // What lives from the first admission on, when the incarnation is known.
  struct Core;
  struct JobHost;

  // The job's agents, made when first needed; null: not admitted yet, or kJobsMax.
  JobHost* Host(const JobName& job);
  // Whether a trainer that proved this token may read another job's state: the token must be that
  // job's, too. kNotFound with the nearest name when the job has no record; kUnavailable while the
  // metadata store is away.
  void AuthorizeRead(const JobName& job, const std::string& token_digest, StatusCompletion done);
  void ExplainMissingJob(const JobName& job, StatusCompletion done);
  void OnMembershipChanged();
  void Join(const NodeInstance& self);
  void HandleMessages();
  void OnJobMessage(const replication::wire::Request& request, replication::ReplyFunction reply);
  void StepLeadership(JobHost& host);
  void OnScrubbedBad(const ShardName& name);
  void ForgetIdleJobs();
  void WatchStore();

  const NodeConfig config_;
  const NodeSeams seams_;
  replication::PeerRouter router_;
  replication::Membership membership_;
  replication::JobStore jobs_;
  replication::PeerLink peers_;
  store::SlotPool pool_;
  store::ShardTable table_;
  store::ShardVerifier verifier_;
  store::Scrubber scrubber_;
  std::unique_ptr<Core> core_;
  std::set<TrainerSession*> sessions_;  // All that there are.
  StatusCompletion on_joined_;
  StatusCompletion on_lost_;
  int64_t started_unix_ms_ = 0;
  Lifetime lifetime_;
};

}  // namespace backstay::tools
