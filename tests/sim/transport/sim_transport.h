#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "base/ids.h"
#include "base/random.h"
#include "transport/transport.h"

namespace backstay::sim {

class SimExporter;
class SimPuller;

// How the simulated network moves bytes.
struct SimNetworkOptions {
  uint64_t bytes_per_second = 10'000'000'000;  // Of each node, per direction.
  Duration latency = std::chrono::microseconds(50);
  // Silence after which a reader gives a source up, as kLaneStallTimeout does over TCP.
  Duration stall_timeout = std::chrono::seconds(5);
};

// How often rare branches ran; a scenario asserts that its faults were met.
struct SimNetworkCounters {
  uint64_t chunks_moved = 0;
  uint64_t bytes_moved = 0;
  uint64_t chunks_corrupted = 0;
  uint64_t pulls_stale = 0;
  uint64_t pulls_unavailable = 0;
  uint64_t pulls_stalled = 0;
  uint64_t releases_lost = 0;
};

// The data network of a simulated cluster: moves real bytes between the exporters and pullers of
// its nodes, chunk by chunk, in virtual time. Every node sends and receives one chunk at a time at
// its bandwidth, so concurrent pulls of one node share it. Same seed, same trace.
//
// Faults are set by node name and stay until they are taken back. They act on the pulls under way
// too.
//
// Thread:  the executor of all nodes; nothing here knows another thread.
// Memory:  chunks are copied at the simulated moment of their arrival; a region or target is
//          touched at no other time.
// Failure: a node that is down refuses at once (after one latency). A partitioned or stalled one is
//          silent: pulls wait, go on if it heals, and end kUnavailable after `stall_timeout`.
class SimNetworkTransport {
 public:
  SimNetworkTransport(Executor* executor, Random* random, SimNetworkOptions options = {});
  ~SimNetworkTransport();
  SimNetworkTransport(const SimNetworkTransport&) = delete;
  SimNetworkTransport& operator=(const SimNetworkTransport&) = delete;

  // The data plane of one start of one node. The network must outlive both; destroying them is how
  // the process dies: grants end, pulls end kUnavailable. A newer start of a node replaces the
  // older one's exporter.
  std::unique_ptr<transport::Exporter> MakeExporter(const NodeInstance& node);
  std::unique_ptr<transport::Puller> MakePuller(const NodeInstance& node);

  // The machine is gone or back: connections to and from it break.
  void SetDown(const NodeId& node, bool down);
  // Nothing passes between the two.
  void SetPartitioned(const NodeId& a, const NodeId& b, bool partitioned);
  // The node keeps its connections and sends nothing (a stopped process).
  void SetStalled(const NodeId& node, bool stalled);
  // Divides the node's bandwidth; 1 is full speed.
  void SetSlowdown(const NodeId& node, uint32_t factor);
  // Flips one bit of each of the next `chunk_count` chunks that leave `source`, on their way: the
  // region stays intact.
  void CorruptNextChunks(const NodeId& source, uint64_t chunk_count);
  // Every chunk is corrupted on its way with this probability.
  void SetCorruptPerMillion(uint32_t chunks_per_million);
  // Every release message is lost with this probability.
  void SetReleaseLossPerMillion(uint32_t releases_per_million);

  const SimNetworkCounters& counters() const { return counters_; }

 private:
  friend class SimExporter;
  friend class SimPuller;

  struct NodeState {
    bool down = false;
    bool stalled = false;
    uint32_t slowdown = 1;
    uint64_t corrupt_next_chunks = 0;
    Instant sends_free_at;
    Instant receives_free_at;
    SimExporter* exporter = nullptr;
  };

  enum class Path { kOpen, kSilent, kBroken };

  NodeState& StateOf(const NodeId& node) { return nodes_[node]; }
  Path PathBetween(const NodeId& reader, const NodeId& source);
  // When a chunk that may start now has arrived; books both nodes' links.
  Instant BookChunk(const NodeId& reader, const NodeId& source, uint64_t bytes);
  bool DrawCorruption(const NodeId& source);
  bool Draw(uint32_t per_million) { return random_->Next() % 1'000'000 < per_million; }
  // Lets waiting pulls look at the network again.
  void FaultsChanged();

  Executor* const executor_;
  Random* const random_;
  const SimNetworkOptions options_;
  std::map<NodeId, NodeState> nodes_;
  std::set<std::pair<NodeId, NodeId>> partitions_;  // Ordered pairs, smaller name first.
  std::vector<SimPuller*> pullers_;  // In order of creation, so that a seed gives one trace.
  uint32_t corrupt_per_million_ = 0;
  uint32_t release_loss_per_million_ = 0;
  SimNetworkCounters counters_;
  Lifetime lifetime_;
};

}  // namespace backstay::sim
