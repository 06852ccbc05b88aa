#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "base/hash.h"
#include "base/ids.h"
#include "replication/peer_link.h"
#include "replication/shard_exporter.h"
#include "store/shard_table.h"

namespace backstay::replication {

// Brings replicas of one shard of this node to other nodes, by offering it until each holds it.
//
// While the client still copies, each offer carries the checksums of the chunks that have become
// ready since the last one that got through; once sealed, the manifest. Level-triggered: Step()
// looks at each replica and starts what is missing, so a lost peer, message or grant only puts its
// replica back, and the first try and every retry are the same code.
//
// Thread:  the control executor.
// Memory:  owns the grants it gave and revokes them when it is destroyed; the shard stays in the
//          table as long as grants on it have not ended.
// Failure: goes on until it is destroyed: whoever owns it has the deadline (a save's is the job
//          leader's, a repair's the leader's order). At most one offer for each peer is in flight.
class ShardReplicator {
 public:
  // How often the control page is looked at while the client copies. A chunk of 1 MiB takes the
  // network about 0.15 ms: finer would be more offers, not more overlap.
  static constexpr Duration kPollInterval = std::chrono::milliseconds(1);
  static constexpr Duration kOfferTimeout = std::chrono::seconds(2);
  // To a holder that has the manifest and is pulling: it acknowledges by itself, so this is only
  // for lost messages.
  static constexpr Duration kRepeatInterval = std::chrono::milliseconds(250);
  static constexpr Duration kRetryMin = std::chrono::milliseconds(50);
  static constexpr Duration kRetryMax = std::chrono::seconds(1);
  // Of one offer: 1 MiB of checksums.
  static constexpr size_t kChunksPerOfferMax = 65536;
  // In one transfer; a target with more takes nothing in. About a minute of refused offers.
  static constexpr uint32_t kTroublesMax = 60;

  enum class Kind { kSave, kRepair };

  ShardReplicator(ShardName name, Kind kind, Executor& executor, PeerLink& peers,
                  store::ShardTable& table, ShardExporter& exporter,
                  std::function<void()> on_changed);
  ~ShardReplicator();
  ShardReplicator(const ShardReplicator&) = delete;
  ShardReplicator& operator=(const ShardReplicator&) = delete;

  const ShardName& name() const { return name_; }

  // The nodes that are to hold the shard. Replicas on others are not offered any more, but still
  // count where they are held.
  void SetTargets(const std::vector<NodeId>& nodes);
  // Asked before a node is offered the shard that has nothing of it; not set: always.
  void SetMayPlace(std::function<bool(const NodeId&)> may_place) {
    may_place_ = std::move(may_place);
  }
  // The node is to hold the shard and does not, as far as is known.
  bool IsWanting(const NodeId& node) const;
  // The holder's own word, also when no offer was under way.
  void OnAck(const NodeInstance& from, const Hash128& digest);
  // Looks at everything. Call it when something may have changed: the shard was sealed, a node came
  // or went. Otherwise it wakes by itself.
  void Step();

  // That hold the sealed shard and are alive, this node not included.
  std::vector<NodeInstance> Holders() const;
  size_t target_count() const { return targets_.size(); }
  bool AllTargetsHold() const;
  // The last trouble with a target that does not hold it; empty: none.
  std::string Trouble() const;
  // The living targets that have no room for it, or had too many troubles.
  std::vector<NodeId> Refusing() const;

 private:
  enum class ReplicaState {
    kUnplaced,   // Nothing is known to be there.
    kStreaming,  // It takes chunks; it has no manifest yet.
    kFinishing,  // It has the manifest and brings in what it lacks.
    kHeld,       // It acknowledged the sealed digest.
  };
  struct Replica {
    ReplicaState state = ReplicaState::kUnplaced;
    NodeInstance instance;  // The start that `state` speaks of.
    std::optional<transport::Grant> grant;
    size_t confirmed_count = 0;    // Of ready_, that reached it.
    uint64_t offer_in_flight = 0;  // 0: none.
    Instant next_offer;
    Duration retry_delay = kRetryMin;
    std::string trouble;
    bool no_room = false;        // Its last answer.
    uint32_t trouble_count = 0;  // Since it was last known to hold the shard.
  };

  void CollectReady(const store::Shard& shard);
  void StepReplica(const store::Shard& shard, const NodeId& node, Replica& replica);
  void Offer(const store::Shard& shard, const NodeId& node, Replica& replica);
  void OnOfferReply(const NodeId& node, uint64_t offer, size_t offered_count,
                    Result<wire::Reply> reply);
  void OnTrouble(Replica& replica, std::string trouble, bool no_room = false);
  void Reset(Replica& replica);
  void EndGrant(Replica& replica);
  void Hold(Replica& replica);
  void Schedule(Instant when);
  void ScheduleNext(const store::Shard& shard);

  const ShardName name_;
  const Kind kind_;
  Executor& executor_;
  PeerLink& peers_;
  store::ShardTable& table_;
  ShardExporter& exporter_;
  const std::function<void()> on_changed_;

  std::function<bool(const NodeId&)> may_place_;
  std::set<NodeId> targets_;
  std::map<NodeId, Replica> replicas_;  // Of targets, and former targets that hold it.
  struct ReadyChunk {
    uint32_t chunk;
    Hash128 checksum;
  };
  std::vector<ReadyChunk> ready_;  // In the order in which they were found.
  std::vector<bool> collected_;    // By chunk.
  uint64_t last_offer_ = 0;
  TimerId timer_ = kNoTimer;
  Instant timer_at_;
  Lifetime lifetime_;
};

}  // namespace backstay::replication
