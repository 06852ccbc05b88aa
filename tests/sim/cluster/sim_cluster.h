#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "base/random.h"
#include "store/memory_budget.h"
#include "tests/sim/cluster/auditor.h"
#include "tests/sim/cluster/control_network.h"
#include "tests/sim/cluster/sim_trainer.h"
#include "tests/sim/transport/sim_transport.h"
#include "tests/support/heap_slot_memory.h"
#include "tests/support/manual_executor.h"
#include "tests/support/memory_metadata_store.h"
#include "tools/node/node.h"

namespace backstay::sim {

struct ClusterOptions {
  uint32_t node_count = 5;
  uint32_t world_size = 4;  // One rank on each of the first nodes; the others are spare.
  uint32_t replicas = 1;
  uint32_t versions = 1;
  uint64_t state_bytes = 40'000;
  uint32_t chunk_bytes = 4096;
  uint32_t save_every = 3;
  // A save holds up the step until it has been copied, as that of a trainer does whose state has no
  // second place. Otherwise training goes on, and a rank that has no slot passes the step over.
  bool saves_block = true;
  Duration lease_ttl = std::chrono::milliseconds(600);
  SimNetworkOptions network;
};

// A whole cluster and one job in one process: the production logic of every node over simulated
// networks, memory and metadata, and a launcher that replaces ranks as an elastic one does. One
// seed decides everything.
//
// Thread:  one.
// Memory:  owns all of it.
class SimCluster {
 public:
  SimCluster(uint64_t seed, const ClusterOptions& options);
  ~SimCluster();

  // All nodes are members and the job trains. False when that took longer than `limit`.
  [[nodiscard]] bool Start(Duration limit);
  void RunFor(Duration duration);
  [[nodiscard]] bool RunUntil(const std::function<bool()>& predicate, Duration limit);

  // ---- Faults ----------------------------------------------------------------------------------
  void KillNode(size_t node);     // With its trainers.
  void RestartNode(size_t node);  // Empty memory, the next incarnation.
  void KillTrainer(size_t rank);
  // Nothing passes between `node` and anybody, the metadata store included, until healed. Its
  // trainers live on.
  void CutOff(size_t node);
  void Heal(size_t node);
  void SetMetadataDown(bool down);
  // The next changes that `node` sends to the metadata store happen or not, and it is not told.
  void MakeMetadataUnsure(size_t node);
  // Flips one bit of a sealed shard in the memory of `node`; false when it holds none.
  bool DamageMemory(size_t node);
  // What was damaged may not have been found yet: one copy fewer than everybody believes.
  bool HasHiddenDamage() const;

  // ---- Looking ---------------------------------------------------------------------------------
  bool training() const { return phase_ == Phase::kTraining; }
  // Every rank trains, and something newer than `after` is committed.
  bool CommittedAfter(uint64_t commits) const {
    return training() && auditor_.reached().commits > commits;
  }
  // A rank was told that there is nothing to restore.
  bool ToldOfLoss() const;
  // Every kept snapshot has its replicas on live nodes; asked of the nodes' own status.
  bool FullyProtected() const;
  bool alive(size_t node) const { return nodes_[node].node != nullptr; }
  bool cut_off(size_t node) const { return nodes_[node].cut; }
  const NodeId& id(size_t node) const { return nodes_[node].id; }
  size_t node_count() const { return nodes_.size(); }
  std::optional<size_t> NodeOf(size_t rank) const;
  // Node that leads the job now, as the metadata store has it.
  std::optional<size_t> LeaderNode() const;
  const Auditor& auditor() const { return auditor_; }
  Auditor& auditor() { return auditor_; }
  const ClusterOptions& options() const { return options_; }
  const ControlNetwork& control() const { return control_; }
  ControlNetwork& control() { return control_; }
  SimNetworkTransport& data() { return data_; }
  Random& random() { return random_; }
  uint64_t leader_changes() const { return leader_changes_; }
  // After everything has come to rest: memory, pins and pulls must be accounted for.
  void AuditRest();
  // What is stuck, for a person who replays the seed.
  std::string Describe() const;
  // A hash over everything that happened; the same for the same seed.
  uint64_t trace() const { return trace_; }

 private:
  enum class Phase { kForming, kRestoring, kTraining, kBroken };

  struct SimNode {
    NodeId id;
    std::unique_ptr<testing::MemoryMetadataClient> metadata;
    std::unique_ptr<replication::Messenger> messenger;
    std::unique_ptr<testing::HeapSlotMemoryFactory> memory;
    std::unique_ptr<store::FixedMemoryBudget> budget;
    std::unique_ptr<tools::Node> node;
    bool joined = false;
    bool cut = false;
  };
  struct Member {
    size_t node = 0;
    std::unique_ptr<SimTrainer> trainer;  // Null: dead.
  };

  void StartNode(size_t node);
  void StartTrainer(size_t rank, size_t node);
  void Tick();
  void TickTraining();
  void TickBroken();
  void TickForming();
  void TickRestoring();
  void Break();
  bool AllMembers(const std::function<bool(const SimTrainer&)>& holds) const;
  // A live, connected node for a rank that lost its own; spares first, then its own once it is
  // back.
  std::optional<size_t> PlaceFor(size_t rank) const;
  void ReadRecord();
  void DescribeLeader(tools::Node& node, std::ostream& out) const;
  void Trace(uint64_t value) { trace_ = SeededRandom(trace_ ^ value).Next(); }

  const ClusterOptions options_;
  testing::ManualExecutor executor_;
  SeededRandom random_;
  testing::MemoryMetadata metadata_;
  ControlNetwork control_;
  SimNetworkTransport data_;
  Auditor auditor_;
  std::vector<SimNode> nodes_;
  std::vector<Member> members_;  // By rank.
  std::vector<Member> zombies_;  // Replaced, but alive behind a cut.
  uint64_t last_process_ = 0;
  Phase phase_ = Phase::kForming;
  Instant broken_until_;
  bool attempt_asked_ = false;
  uint64_t ticks_ = 0;
  uint64_t leader_changes_ = 0;
  std::string leader_seen_;
  uint64_t trace_ = 0;
  Lifetime lifetime_;
};

}  // namespace backstay::sim
