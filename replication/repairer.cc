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

// Whether the node is being asked to promise memory for the shard. Its answer is waited for: the
// copy belongs into what it promises.
bool IsBeingAsked(const std::map<ShardId, ShardMember>& members, const Repair& repair) {
  const auto member = members.find(repair.shard);
  if (member == members.end()) return false;
  const auto target = member->second.targets.find(repair.target);
  return target != member->second.targets.end() &&
         target->second.state != ReplicaTarget::State::kReserved;
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
                    Generation generation) {
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
    running_.emplace(repair, running);
    timeline_.Add(timeline::kRepairStarted, Describe(repair), generation);
  }
  for (auto& [repair, running] : running_) {
    running.ordered = running.ordered || !IsBeingAsked(members, repair);
    if (running.ordered) Advance(repair, running);
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

void Repairer::Advance(const Repair& repair, Running& running) {
  if (running.in_flight || seams_.executor->Now() < running.next) return;
  running.in_flight = true;
  const auto on_reply = [this, repair](const Result<wire::Reply>& reply) {
    OnReply(repair, reply);
  };
  wire::Request request;
  wire::Replicate* replicate = request.mutable_replicate();
  wire::SnapshotRef* snapshot = replicate->mutable_shard()->mutable_snapshot();
  snapshot->set_generation(repair.snapshot.generation.value);
  snapshot->set_step(repair.snapshot.step.value);
  replicate->mutable_shard()->set_shard_id(repair.shard.value);
  replicate->set_digest(repair.digest);
  // All targets of this source: an order takes the place of the one before it.
  for (const auto& [other, progress] : running_) {
    if (other.snapshot == repair.snapshot && other.shard == repair.shard &&
        other.source == repair.source && progress.ordered) {
      replicate->add_nodes(other.target.value);
    }
  }
  calls_.Send(repair.source, std::move(request), lifetime_.Wrap(on_reply));
}

void Repairer::OnReply(const Repair& repair, const Result<wire::Reply>& reply) {
  const auto it = running_.find(repair);
  if (it == running_.end()) return;
  Running& running = it->second;
  running.in_flight = false;
  const bool refused =
      reply.ok() && std::ranges::find(reply->replicate().refused_nodes(), repair.target.value) !=
                        reply->replicate().refused_nodes().end();
  if (refused) {
    // It must not hold a place that another repair could use: perhaps the one that all wait for.
    refused_[{repair.shard, repair.target}] = seams_.executor->Now() + kRefusalKept;
    running_.erase(it);
  } else {
    // Also when the source does not have it any more: dropped once its inventory has said so.
    running.next = seams_.executor->Now() + kRepeat;
  }
  on_news_();
}

}  // namespace backstay::replication
