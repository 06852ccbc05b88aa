#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "replication/messenger.h"
#include "replication/node_record.h"
#include "replication/peer.pb.h"

namespace backstay::replication {

// The live trainers of a job, node by node, as the nodes tell them.
//
// A node counts as heard once this start of it has said what runs there since this leader was
// elected: before that, silence is not "no trainer". Pure.
class LiveTrainers {
 public:
  static constexpr int kPerNodeMax = 1024;

  void OnReport(const NodeInstance& from,
                const google::protobuf::RepeatedPtrField<wire::LiveTrainer>& trainers);
  // One more on `from`; its other trainers are not known by this.
  void OnAdmitted(const NodeInstance& from, const wire::LiveTrainer& trainer);
  // Trainers have entered a generation: what nodes said before may not know it.
  void ForgetHeard();
  // Forgets starts of nodes that are not alive.
  void KeepOnly(const std::map<NodeId, Member>& members);

  bool IsLive(const NodeInstance& node, uint64_t trainer) const;
  // That a live trainer is in; nothing when it is not live.
  std::optional<Generation> GenerationOf(const NodeInstance& node, uint64_t trainer) const;
  // The number of its newest Reconfigure as its node has told; 0: of none, or it is not live.
  uint64_t LastCallOf(const NodeInstance& node, uint64_t trainer) const;
  bool Heard(const NodeInstance& node) const;
  bool HasTrainers(const NodeId& node) const;
  // Trainers that are in `generation`, by their process number.
  std::map<uint64_t, NodeInstance> InGeneration(Generation generation) const;
  std::set<uint32_t> RanksIn(Generation generation) const;
  std::vector<uint32_t> RanksOn(const NodeId& node) const;
  // As which ranks live trainers take part in a reconfiguration.
  std::set<uint32_t> RanksRestoring(const AttemptUuid& uuid) const;

 private:
  struct OfNode {
    Incarnation incarnation;
    bool heard = false;
    std::map<uint64_t, wire::LiveTrainer> trainers;
  };
  OfNode* Find(const NodeInstance& from);

  std::map<NodeId, OfNode> nodes_;
};

// A node that is to hold a shard's replicas, and how far the promise of memory for them is.
struct ReplicaTarget {
  enum class State {
    kWanted,    // To be asked.
    kAsked,     // The question is under way.
    kReserved,  // It has promised.
  };
  NodeInstance node;
  State state = State::kWanted;
  Instant next_try;
  Duration retry_delay{};
};

// A shard id of the job: who saves it and where its replicas go.
struct ShardMember {
  enum class State {
    kWaiting,    // For the other ranks' admissions, or for the record.
    kReserving,  // Its targets are chosen; not all have promised.
    kAdmitted,   // The trainer was told.
  };
  State state = State::kWaiting;
  uint32_t rank = 0;
  uint32_t world_size = 0;
  std::string token_digest;
  uint64_t size_bytes = 0;
  std::optional<uint64_t> agreed_bytes;  // Of a resize under way: what is in force if it fails.
  uint32_t replicas = 0;
  uint32_t versions = 0;
  NodeInstance primary;
  uint64_t trainer = 0;
  std::pair<uint64_t, uint64_t> claim_order;  // Term and number of the claim's first admission.
  std::deque<uint64_t> replaced;              // Trainers whose claims were taken over; newest last.
  std::set<NodeId> earlier_primaries;         // Are told that the shard is claimed elsewhere.
  std::map<NodeId, ReplicaTarget> targets;
  std::vector<NodeId> preferred;          // As an earlier leader assigned.
  std::map<NodeId, std::string> refused;  // Had no memory, and what it said.
  Instant since;                          // Of the state kWaiting.
  ReplyFunction reply;                    // Of the newest admission; empty once answered.

  bool AllReserved() const;
  std::vector<NodeId> TargetNodes() const;
  std::vector<NodeId> ReservedNodes() const;
};

}  // namespace backstay::replication
