#include "replication/placement.h"

#include <algorithm>
#include <compare>
#include <functional>

namespace backstay::replication {
namespace {

// Nodes that must be one failure domain, merged step by step.
class Components {
 public:
  // The smallest node of the component that `node` is in.
  NodeId Root(NodeId node) const {
    for (auto it = parent_.find(node); it != parent_.end(); it = parent_.find(node)) {
      node = it->second;
    }
    return node;
  }
  void Join(const NodeId& a, const NodeId& b) {
    const NodeId root_a = Root(a);
    const NodeId root_b = Root(b);
    if (root_a == root_b) return;
    parent_[std::max(root_a, root_b)] = std::min(root_a, root_b);
  }

 private:
  std::map<NodeId, NodeId> parent_;
};

std::string OwnDomain(const NodeRecord& record) {
  if (!record.domains.empty()) return record.domains.back();
  if (!record.boot_id.empty()) return "boot " + record.boot_id;
  return "node " + record.instance.node.value;
}

// How many outer levels two nodes share, from the outermost on: what fails together with both.
uint32_t SharedLevels(const PlacementNode& a, const PlacementNode& b) {
  uint32_t shared = 0;
  const size_t levels = std::min(a.domains.size(), b.domains.size());
  while (shared < levels && a.domains[shared] == b.domains[shared]) ++shared;
  return shared;
}

}  // namespace

std::map<NodeId, std::string> FailureDomains(const std::map<NodeId, Member>& members) {
  Components components;
  std::map<std::string, NodeId> first_of_label;
  // The first node of a boot with simulated hosts, and the first without.
  std::map<std::string, NodeId> first_of_boot;
  std::map<std::string, bool> boot_is_shared;
  for (const auto& [node, member] : members) {
    const auto [it, added] = first_of_label.try_emplace(OwnDomain(member.record), node);
    if (!added) components.Join(it->second, node);
    if (!member.record.boot_id.empty() && !member.record.hosts_simulated) {
      boot_is_shared[member.record.boot_id] = true;
    }
  }
  for (const auto& [node, member] : members) {
    const std::string& boot = member.record.boot_id;
    if (boot.empty() || !boot_is_shared[boot]) continue;
    const auto [it, added] = first_of_boot.try_emplace(boot, node);
    if (!added) components.Join(it->second, node);
  }
  std::map<NodeId, std::string> domains;
  for (const auto& [node, member] : members) {
    domains[node] = OwnDomain(members.at(components.Root(node)).record);
  }
  return domains;
}

// Compared in this order; the greatest wins.
struct Placement::Score {
  bool kept = false;  // It is assigned now: moving bytes costs more than any gain.
  bool has_trainers = false;
  int64_t not_shared = 0;  // Minus the outer levels shared with the copies chosen so far.
  int64_t together = 0;    // Already partners.
  int64_t not_loaded = 0;  // Minus the replicas it holds.

  friend auto operator<=>(const Score&, const Score&) = default;
};

Placement::Placement(std::vector<PlacementNode> nodes) {
  for (PlacementNode& node : nodes) {
    const NodeId id = node.node;
    nodes_.emplace(id, std::move(node));
  }
}

const PlacementNode* Placement::Find(const NodeId& node) const {
  const auto it = nodes_.find(node);
  return it == nodes_.end() ? nullptr : &it->second;
}

Placement::Score Placement::Rate(const PlacementNode& candidate, const PlacementShard& shard,
                                 const std::vector<const PlacementNode*>& members) const {
  Score score;
  score.kept = std::ranges::find(shard.current, candidate.node) != shard.current.end();
  score.has_trainers = candidate.has_trainers;
  const auto partners = together_.find(candidate.node);
  for (const PlacementNode* member : members) {
    score.not_shared -= SharedLevels(candidate, *member);
    // Being partners at all is what keeps groups few; how often would only favour the busiest.
    if (partners != together_.end() && partners->second.contains(member->node)) ++score.together;
  }
  const auto load = load_.find(candidate.node);
  if (load != load_.end()) score.not_loaded -= load->second;
  return score;
}

std::vector<NodeId> Placement::Choose(const PlacementShard& shard, uint32_t replica_count) {
  std::vector<NodeId> chosen = Pick(shard, replica_count);
  Assign(shard.primary, chosen);
  return chosen;
}

std::vector<NodeId> Placement::Pick(const PlacementShard& shard, uint32_t replica_count) const {
  std::vector<const PlacementNode*> members;  // Who has a copy, or will.
  std::set<std::string> taken;
  const auto add_member = [&](const NodeId& id) {
    const PlacementNode* node = Find(id);
    if (node == nullptr) return;
    members.push_back(node);
    taken.insert(node->domain);
  };
  add_member(shard.primary);
  for (const NodeId& holder : shard.holders) add_member(holder);
  std::vector<NodeId> chosen;
  while (chosen.size() < replica_count) {
    const PlacementNode* best = nullptr;
    Score best_score;
    for (const auto& [id, candidate] : nodes_) {
      if (id == shard.primary || taken.contains(candidate.domain)) continue;
      if (shard.excluded.contains(id)) continue;
      const Score score = Rate(candidate, shard, members);
      if (best == nullptr || score > best_score) {
        best = &candidate;
        best_score = score;
      }
    }
    if (best == nullptr) break;
    chosen.push_back(best->node);
    members.push_back(best);
    taken.insert(best->domain);
  }
  return chosen;
}

void Placement::Assign(const NodeId& primary, const std::vector<NodeId>& replicas) {
  std::vector<NodeId> group = replicas;
  group.push_back(primary);
  for (const NodeId& replica : replicas) ++load_[replica];
  for (const NodeId& a : group) {
    for (const NodeId& b : group) {
      if (a != b) ++together_[a][b];
    }
  }
}

Status Placement::CheckPolicy(const JobName& job, uint32_t replica_count) const {
  if (replica_count > kReplicasMax) {
    return InvalidArgument("job " + job.value + " asks for " + std::to_string(replica_count) +
                           " replicas; at most " + std::to_string(kReplicasMax) + " are supported");
  }
  std::set<std::string> domains;
  std::vector<PlacementNode> nodes;
  for (const auto& [id, node] : nodes_) {
    domains.insert(node.domain);
    nodes.push_back(node);
  }
  if (domains.size() > replica_count) return Status::Ok();
  return InvalidArgument(
      "job " + job.value + " asks for " + std::to_string(replica_count) +
      " replicas, each in another failure domain than the primary's: that takes " +
      std::to_string(replica_count + 1) + " domains, and the live nodes have " +
      std::to_string(domains.size()) + ": " + DescribeDomains(nodes) +
      ". Ask for fewer replicas, start more nodes, or give the nodes labels of their own");
}

std::string DescribeDomains(const std::vector<PlacementNode>& nodes) {
  std::map<std::string, std::string> by_domain;
  for (const PlacementNode& node : nodes) {
    std::string& list = by_domain[node.domain];
    if (!list.empty()) list += ", ";
    list += node.node.value;
  }
  if (by_domain.empty()) return "none";
  std::string text;
  for (const auto& [domain, list] : by_domain) {
    if (!text.empty()) text += ", ";
    text += domain + " (" + list + ")";
  }
  return text;
}

}  // namespace backstay::replication
