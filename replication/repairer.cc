#include "replication/repairer.h"

#include <algorithm>
#include <utility>

#include "base/units.h"
#include "replication/membership.h"

namespace backstay::replication {
namespace {

std::string Describe(const Repair& repair) {
  return "shard " + repair.shard.value + " of " + ToString(repair.snapshot) + " (" +
         FormatBytes(repair.size_bytes) + ") from " + repair.source.node.value + " to " +
         repair.target.value;
}

// Whether the node has promised memory for the shard already, as a replica or as the primary.
bool HasMemory(const ShardMember& member, const NodeId& node) {
  if (member.primary.node == node) return true;
  const auto target = member.targets.find(node);
  return target != member.targets.end() && target->second.state == ReplicaTarget::State::kReserved;
}

}  // namespace

Repairer::Repairer(const LeaderSeams& seams, const LeaderConfig& config, LeaderCalls& calls,
                   Timeline& timeline, std::function<void()> on_news)
    : seams_(seams),
      config_(config),
      calls_(calls),
      timeline_(timeline),
      on_news_(std::move(on_news)) {}

void Repairer::Step(RepairInput input, const std::map<ShardId, ShardMember>& members,
                    uint32_t versions, Generation generation) {
  const Instant now = seams_.executor->Now();
  DropEnded(input, generation);
  std::erase_if(refused_, [&](const auto& entry) { return entry.second <= now; });
  for (const auto& [key, until] : refused_) input.refused.insert(key);
  for (const auto& [repair, running] : running_) input.running.push_back(repair);
  input.per_node_max = config_.repairs_per_node_max;
  last_plan_ = PlanRepairs(input);
  for (const Repair& repair : last_plan_.start) {
    Running running;
    running.deadline = now + config_.repair_deadline;
    running.reserve_bytes = repair.size_bytes;
    if (const auto member = members.find(repair.shard); member != members.end()) {
      running.reserve_bytes = std::max(running.reserve_bytes, member->second.size_bytes);
      if (HasMemory(member->second, repair.target)) running.state = Running::State::kReplicating;
    }
    running_.emplace(repair, running);
    timeline_.Add(timeline::kRepairStarted, Describe(repair), generation);
  }
  for (auto& [repair, running] : running_) {
    const Member* target = seams_.membership->view().Find(repair.target);
    if (target != nullptr) Advance(repair, running, versions, target->record.instance);
  }
  const bool is_under_protected = last_plan_.under_protected_count > 0;
  if (is_under_protected && !was_under_protected_) {
    timeline_.Add(timeline::kUnderProtected,
                  std::to_string(last_plan_.under_protected_count) +
                      " committed shards have too few replicas",
                  generation);
  }
  if (!is_under_protected && was_under_protected_) {
    timeline_.Add(timeline::kProtectedAgain, "every committed shard has its replicas", generation);
  }
  was_under_protected_ = is_under_protected;
}

void Repairer::DropEnded(const RepairInput& input, Generation generation) {
  const Instant now = seams_.executor->Now();
  const MembershipView& view = seams_.membership->view();
  std::erase_if(running_, [&](const auto& entry) {
    const Repair& repair = entry.first;
    const TrackedSnapshot* snapshot = input.tracker->Find(repair.snapshot);
    if (snapshot == nullptr) return true;
    const auto shard = snapshot->shards.find(repair.shard);
    if (shard == snapshot->shards.end()) return true;
    bool source_holds = false;
    for (const NodeInstance& holder : input.tracker->LiveHolders(shard->second)) {
      if (holder == repair.source) source_holds = true;
      if (holder.node != repair.target) continue;
      timeline_.Add(timeline::kRepaired, Describe(repair), generation);
      return true;
    }
    return !source_holds || view.Find(repair.target) == nullptr || now >= entry.second.deadline;
  });
}

void Repairer::Advance(const Repair& repair, Running& running, uint32_t versions,
                       const NodeInstance& target) {
  if (running.in_flight || seams_.executor->Now() < running.next) return;
  running.in_flight = true;
  const Running::State asked = running.state;
  const auto on_reply = [this, repair, asked](const Result<wire::Reply>& reply) {
    OnReply(repair, asked, reply);
  };
  wire::Request request;
  if (asked == Running::State::kReserving) {
    wire::Reserve* reserve = request.mutable_reserve();
    reserve->set_shard_id(repair.shard.value);
    reserve->set_size_bytes(running.reserve_bytes);
    reserve->set_versions(versions);
    calls_.Send(target, std::move(request), lifetime_.Wrap(on_reply));
    return;
  }
  wire::Replicate* replicate = request.mutable_replicate();
  wire::SnapshotRef* snapshot = replicate->mutable_shard()->mutable_snapshot();
  snapshot->set_generation(repair.snapshot.generation.value);
  snapshot->set_step(repair.snapshot.step.value);
  replicate->mutable_shard()->set_shard_id(repair.shard.value);
  replicate->set_digest(repair.digest);
  // All targets of this source: an order takes the place of the one before it.
  for (const auto& [other, progress] : running_) {
    if (other.snapshot == repair.snapshot && other.shard == repair.shard &&
        other.source == repair.source && progress.state == Running::State::kReplicating) {
      replicate->add_nodes(other.target.value);
    }
  }
  calls_.Send(repair.source, std::move(request), lifetime_.Wrap(on_reply));
}

void Repairer::OnReply(const Repair& repair, Running::State asked,
                       const Result<wire::Reply>& reply) {
  const auto it = running_.find(repair);
  if (it == running_.end()) return;
  Running& running = it->second;
  running.in_flight = false;
  const bool reserving = asked == Running::State::kReserving;
  const bool refused =
      reserving ? reply.status().code() == StatusCode::kNoSpace
                : reply.ok() &&
                      std::ranges::find(reply->replicate().refused_nodes(), repair.target.value) !=
                          reply->replicate().refused_nodes().end();
  if (refused) {
    // It must not hold a place that another repair could use: perhaps the one that all wait for.
    refused_[{repair.shard, repair.target}] = seams_.executor->Now() + kRefusalKept;
    running_.erase(it);
  } else if (reply.ok() && reserving) {
    running.state = Running::State::kReplicating;
  } else {
    // Also when the source does not have it any more: dropped once its inventory has said so.
    running.next = seams_.executor->Now() + kRepeat;
  }
  on_news_();
}

}  // namespace backstay::replication
