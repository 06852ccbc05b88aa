#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "replication/job_limits.h"
#include "replication/node_record.h"

namespace backstay::replication {

// A live node as placement sees it.
struct PlacementNode {
  NodeId node;
  std::vector<std::string> domains;  // Failure domain labels, outermost first.
  std::string domain;                // The failure domain itself, from FailureDomains().
  bool has_trainers = false;         // Of the job; others are spares.
};

// The failure domain of each member, named by its innermost label (without labels, by the boot id
// or the node). Nodes with equal innermost labels are one domain; so are nodes of one boot of one
// machine, unless both were told that their hosts are simulated. What chains together is one
// domain.
std::map<NodeId, std::string> FailureDomains(const std::map<NodeId, Member>& members);

// Where one shard's replicas are to be: the primary's node and the nodes now assigned.
struct PlacementShard {
  ShardId shard;
  NodeId primary;
  std::vector<NodeId> current;  // Kept where they still qualify.
  std::set<NodeId> excluded;    // Refused this shard.
  std::vector<NodeId> holders;  // Have a copy already, besides the primary.
};

// Chooses holders so that no two copies of a shard share a failure domain and, as far as the
// labels allow, differ in the outer levels too. Nodes that
// choose each other form a group: whoever is already a partner is preferred, so that few sets of
// nodes hold everything of some shard between them, and the loss of a random set rarely hits one.
// Nodes with trainers come before spares. Pure: the same input gives the same answer.
// docs/decisions/placement_groups.md.
class Placement {
 public:
  explicit Placement(std::vector<PlacementNode> nodes);

  // Up to `replica_count` nodes for `shard`, best first; fewer when no more qualify. Later calls
  // take the choice into account. A primary that is not among the nodes has an unknown domain and
  // restricts nothing.
  std::vector<NodeId> Choose(const PlacementShard& shard, uint32_t replica_count);

  // As Choose(), but only tells.
  std::vector<NodeId> Pick(const PlacementShard& shard, uint32_t replica_count) const;

  // Records holders that were decided elsewhere.
  void Assign(const NodeId& primary, const std::vector<NodeId>& replicas);

  // kInvalidArgument, naming the labels, when the nodes cannot hold `replica_count` replicas
  // besides a primary.
  Status CheckPolicy(const JobName& job, uint32_t replica_count) const;

 private:
  struct Score;
  Score Rate(const PlacementNode& candidate, const PlacementShard& shard,
             const std::vector<const PlacementNode*>& members) const;
  const PlacementNode* Find(const NodeId& node) const;

  std::map<NodeId, PlacementNode> nodes_;
  std::map<NodeId, uint32_t> load_;                        // Replicas assigned to a node.
  std::map<NodeId, std::map<NodeId, uint32_t>> together_;  // How often two nodes share a shard.
};

// "host-1 (node-a, node-b), host-2 (node-c)": the failure domains and who has them, for messages.
std::string DescribeDomains(const std::vector<PlacementNode>& nodes);

}  // namespace backstay::replication
