#include "replication/job_members.h"

#include <algorithm>

namespace backstay::replication {

LiveTrainers::OfNode* LiveTrainers::Find(const NodeInstance& from) {
  OfNode& node = nodes_[from.node];
  if (from.incarnation < node.incarnation) return nullptr;
  if (from.incarnation > node.incarnation) {
    node = OfNode();
    node.incarnation = from.incarnation;
  }
  return &node;
}

void LiveTrainers::OnReport(const NodeInstance& from,
                            const google::protobuf::RepeatedPtrField<wire::LiveTrainer>& trainers) {
  OfNode* node = Find(from);
  if (node == nullptr) return;
  node->heard = true;
  node->trainers.clear();
  for (const wire::LiveTrainer& trainer : trainers) {
    if (node->trainers.size() == kPerNodeMax) break;
    node->trainers[trainer.trainer()] = trainer;
  }
}

void LiveTrainers::OnAdmitted(const NodeInstance& from, const wire::LiveTrainer& trainer) {
  OfNode* node = Find(from);
  if (node == nullptr || node->trainers.size() == kPerNodeMax) return;
  node->trainers[trainer.trainer()] = trainer;
}

void LiveTrainers::ForgetHeard() {
  for (auto& [id, node] : nodes_) node.heard = false;
}

void LiveTrainers::KeepOnly(const std::map<NodeId, Member>& members) {
  std::erase_if(nodes_, [&](const auto& entry) {
    const auto member = members.find(entry.first);
    return member == members.end() ||
           member->second.record.instance.incarnation > entry.second.incarnation;
  });
}

bool LiveTrainers::IsLive(const NodeInstance& node, uint64_t trainer) const {
  const auto it = nodes_.find(node.node);
  return it != nodes_.end() && it->second.incarnation == node.incarnation &&
         it->second.trainers.contains(trainer);
}

std::optional<Generation> LiveTrainers::GenerationOf(const NodeInstance& node,
                                                     uint64_t trainer) const {
  if (!IsLive(node, trainer)) return std::nullopt;
  return Generation(nodes_.at(node.node).trainers.at(trainer).generation());
}

uint64_t LiveTrainers::LastCallOf(const NodeInstance& node, uint64_t trainer) const {
  return IsLive(node, trainer) ? nodes_.at(node.node).trainers.at(trainer).last_call() : 0;
}

bool LiveTrainers::Heard(const NodeInstance& node) const {
  const auto it = nodes_.find(node.node);
  return it != nodes_.end() && it->second.incarnation == node.incarnation && it->second.heard;
}

bool LiveTrainers::HasTrainers(const NodeId& node) const {
  const auto it = nodes_.find(node);
  return it != nodes_.end() && !it->second.trainers.empty();
}

std::map<uint64_t, NodeInstance> LiveTrainers::InGeneration(Generation generation) const {
  std::map<uint64_t, NodeInstance> found;
  for (const auto& [id, node] : nodes_) {
    for (const auto& [number, trainer] : node.trainers) {
      if (trainer.generation() == generation.value) found[number] = {id, node.incarnation};
    }
  }
  return found;
}

std::set<uint32_t> LiveTrainers::RanksIn(Generation generation) const {
  std::set<uint32_t> ranks;
  for (const auto& [id, node] : nodes_) {
    for (const auto& [number, trainer] : node.trainers) {
      if (trainer.generation() == generation.value) ranks.insert(trainer.rank());
    }
  }
  return ranks;
}

std::vector<uint32_t> LiveTrainers::RanksOn(const NodeId& node) const {
  std::vector<uint32_t> ranks;
  const auto it = nodes_.find(node);
  if (it == nodes_.end()) return ranks;
  for (const auto& [number, trainer] : it->second.trainers) ranks.push_back(trainer.rank());
  std::ranges::sort(ranks);
  return ranks;
}

std::set<uint32_t> LiveTrainers::RanksRestoring(const AttemptUuid& uuid) const {
  std::set<uint32_t> ranks;
  for (const auto& [id, node] : nodes_) {
    for (const auto& [number, trainer] : node.trainers) {
      if (trainer.restoring_uuid() == uuid.value) ranks.insert(trainer.restoring_rank());
    }
  }
  return ranks;
}

bool ShardMember::AllReserved() const {
  return std::ranges::all_of(targets, [](const auto& entry) {
    return entry.second.state == ReplicaTarget::State::kReserved;
  });
}

std::vector<NodeId> ShardMember::TargetNodes() const {
  std::vector<NodeId> nodes;
  for (const auto& [id, target] : targets) nodes.push_back(id);
  return nodes;
}

std::vector<NodeId> ShardMember::ReservedNodes() const {
  std::vector<NodeId> nodes;
  for (const auto& [id, target] : targets) {
    if (target.state == ReplicaTarget::State::kReserved) nodes.push_back(id);
  }
  return nodes;
}

}  // namespace backstay::replication
