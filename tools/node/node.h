#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/executor.h"
#include "base/ids.h"
#include "base/random.h"
#include "replication/leader_seams.h"
#include "replication/messenger.h"
#include "replication/metadata_store.h"
#include "replication/node_record.h"
#include "replication/peer_router.h"
#include "replication/trainer_port.h"
#include "store/memory_budget.h"
#include "store/offload.h"
#include "store/slot_memory.h"
#include "transport/transport.h"

namespace backstay::tools {

// The bulk transport of one start of a node. The exporter's grants name that start, so both are
// made when the incarnation is known.
struct DataPlane {
  std::unique_ptr<transport::Exporter> exporter;
  std::unique_ptr<transport::Puller> puller;
  std::string address;  // Of the exporter, for the node's record.
};
using DataPlaneFactory = std::function<DataPlane(const NodeInstance& self)>;
// What the transport knows of its traffic, for status; may be empty.
using TrafficReport = std::function<std::vector<replication::wire::PeerTraffic>()>;

struct NodeConfig {
  // What this node tells the others of itself. The incarnation and data address are filled in.
  replication::NodeRecord record;
  StoreId store;  // The metadata store that it was bound to; another one is refused.
  uint32_t chunk_bytes = kChunkBytesDefault;
  uint64_t repair_reserve_bytes = 0;
  bool serves_metadata = false;  // For status.
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
// Failure: a node that lost its lease answers no peer until it is admitted again; it keeps its
//          shards and its trainers, and drops only by the kept set. `on_evicted` (see Start) tells
//          when it can never be admitted again as what it is.
class Node : public replication::TrainerPort {
 public:
  Node(NodeConfig config, NodeSeams seams);
  ~Node() override;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Joins the cluster, and keeps trying until it is in. `on_joined` runs once, when it is a member
  // for the first time; `on_lost` when it cannot go on: another metadata store, or a second live
  // claim to its node id. The process should end then.
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
  // What `status` shows of this node.
  replication::wire::NodeStatusReply Describe() const;

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace backstay::tools
