#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/slot_control.h"
#include "replication/fetch_agent.h"
#include "replication/job_agent.h"
#include "replication/wire_convert.h"
#include "store/memory_budget.h"
#include "store/offload.h"
#include "store/shard_table.h"
#include "tests/sim/transport/sim_exporter.h"
#include "tests/sim/transport/sim_puller.h"
#include "tests/sim/transport/sim_transport.h"
#include "tests/support/heap_slot_memory.h"
#include "tests/support/manual_executor.h"

// A few nodes' agents of one job over the simulated data network, and a leader that the test plays:
// it answers admissions, records reports, and says what the job's state is.
namespace backstay::testing {

inline constexpr uint32_t kTestChunkBytes = 4096;

class AgentCluster {
 public:
  struct Node {
    NodeInstance self;
    std::unique_ptr<replication::PeerRouter> router;
    std::unique_ptr<replication::PeerLink> peers;
    std::unique_ptr<HeapSlotMemoryFactory> memory;
    std::unique_ptr<store::SlotPool> pool;
    std::unique_ptr<store::ShardTable> table;
    std::unique_ptr<store::ShardVerifier> verifier;
    std::unique_ptr<replication::ShardExporter> exports;
    std::unique_ptr<transport::Puller> puller;
    std::unique_ptr<transport::Exporter> exporter;
    std::unique_ptr<replication::JobAgent> agent;
    replication::ClaimNumber last_claim;
    std::unique_ptr<replication::FetchAgent> fetches;
  };

  explicit AgentCluster(int node_count);
  ~AgentCluster();

  ManualExecutor& executor() { return executor_; }
  sim::SimNetworkTransport& network() { return *network_; }
  Node& node(int index) { return *nodes_.at(index); }
  NodeId id(int index) const { return NodeId("node-" + std::to_string(index)); }
  // Its data, connections and membership are gone at once.
  void Kill(int index);

  [[nodiscard]] bool RunUntil(const std::function<bool()>& done,
                              Duration limit = std::chrono::seconds(20)) {
    return executor_.RunUntil(done, limit);
  }

  // ---- The leader that the test plays -----------------------------------------------------------

  // What the leader would send; `generation` also goes into the header.
  struct State {
    Generation generation{1};
    replication::wire::JobState body;
  };
  State& state() { return state_; }
  void Keep(SnapshotId snapshot);
  // Sends the state as it stands to all nodes, and runs until they have it.
  void Announce();
  // The holder's memory, as an admission would have it reserved.
  void ReserveOn(int index, const ShardId& shard, uint64_t size_bytes, uint32_t versions);
  Result<replication::wire::Reply> Call(int index, replication::wire::Request request);
  std::vector<NodeId> replicas;                         // Of every admission.
  std::vector<replication::wire::ShardReport> reports;  // The newest message's.
  std::vector<replication::wire::ReportFence> fences;
  void HandleAtLeader(replication::wire::Request::BodyCase kind,
                      replication::PeerRouter::Handler handler) {
    leader_router_.Handle(kind, std::move(handler));
  }
  // Requests for which this says true are lost.
  std::function<bool(const NodeId& to, const replication::wire::Request&)> lose;

  // ---- A trainer --------------------------------------------------------------------------------

  struct Trainer {
    int node = 0;
    ShardId shard;
    replication::ClaimNumber claim;
    std::vector<replication::TrainerEvent> events;
    bool Saw(replication::TrainerEvent::Kind kind) const;
  };
  replication::ShardClaim Claim(const std::string& shard, uint32_t replica_count,
                                uint64_t size_bytes, uint32_t versions = 1) const;
  // The node's answer to a registration.
  Status Register(Trainer* trainer, uint64_t process, const replication::ShardClaim& claim);
  Result<replication::BeginReply> Begin(const Trainer& trainer, Step step,
                                        Duration timeout = Duration::zero());
  // Chunk bytes depend on `seed`; publishes as a client does.
  void Fill(const replication::BeginReply& slot, uint64_t first, uint64_t count, uint64_t seed);
  Status StartCopy(const Trainer& trainer, const replication::BeginReply& slot, uint64_t size);
  Result<std::string> Seal(const Trainer& trainer, const replication::BeginReply& slot,
                           bool sound = true);
  // All of it, of `chunk_count` chunks.
  Result<std::string> Save(const Trainer& trainer, Step step, uint64_t chunk_count, uint64_t seed);
  replication::SaveAgent& saves(const Trainer& trainer);

  ShardName Name(const std::string& shard, Step step, Generation generation = Generation(1)) const {
    return {job, {generation, step}, ShardId(shard)};
  }
  static std::byte ByteOf(uint64_t chunk, uint64_t seed) {
    return static_cast<std::byte>(chunk * 31 + seed * 7 + 1);
  }
  bool Holds(int index, const ShardName& name) const;
  // Whether every byte is as Fill() with this seed made it.
  bool HasBytes(int index, const ShardName& name, uint64_t seed) const;

  const JobName job{"job"};

 private:
  class Link;

  ManualExecutor executor_;
  SeededRandom random_{7};
  store::FixedMemoryBudget budget_{64 * kMiB};
  std::unique_ptr<sim::SimNetworkTransport> network_;
  std::map<NodeId, replication::PeerRouter*> routers_;
  std::set<NodeId> dead_;
  std::unique_ptr<Link> link_;
  replication::PeerRouter leader_router_;
  std::map<int, std::unique_ptr<Node>> nodes_;
  State state_;
};

}  // namespace backstay::testing
