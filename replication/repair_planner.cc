#include "replication/repair_planner.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

namespace backstay::replication {
namespace {

struct Job {
  bool is_base = false;
  uint32_t live_domains = 0;
  size_t order = 0;  // Of its snapshot in `wanted`.
  SnapshotId snapshot;
  ShardId shard;
  const TrackedShard* facts = nullptr;

  // The uncommitted base goes first, because nothing commits before it; then the fewer copies, the
  // sooner; then the more valuable snapshot.
  bool operator<(const Job& other) const {
    return std::tie(other.is_base, live_domains, order, shard) <
           std::tie(is_base, other.live_domains, other.order, other.shard);
  }
};

class Planner {
 public:
  explicit Planner(const RepairInput& input) : input_(input), placement_(input.nodes) {
    for (const auto& [shard, replicas] : input.assigned) {
      const auto primary = input.primaries.find(shard);
      placement_.Assign(primary == input.primaries.end() ? NodeId() : primary->second, replicas);
    }
    for (const Repair& repair : input.running) Take(repair);
  }

  RepairPlan Run() {
    for (const Job& job : FindJobs()) PlanShard(job);
    return std::move(plan_);
  }

 private:
  std::vector<Job> FindJobs() {
    std::vector<Job> jobs;
    for (size_t order = 0; order < input_.wanted.size(); ++order) {
      const TrackedSnapshot* snapshot = input_.tracker->Find(input_.wanted[order]);
      if (snapshot == nullptr) continue;
      for (const auto& [id, shard] : snapshot->shards) {
        if (shard.digest.empty() || input_.tracker->IsShardProtected(shard)) continue;
        const bool counts = input_.open != snapshot->id;
        plan_.under_protected_count += counts ? 1 : 0;
        if (shard.live_domains == 0) {
          plan_.lost_count += counts ? 1 : 0;
          continue;
        }
        const bool is_base = input_.base == snapshot->id;
        jobs.push_back({is_base, shard.live_domains, order, snapshot->id, id, &shard});
      }
    }
    std::sort(jobs.begin(), jobs.end());
    return jobs;
  }

  void PlanShard(const Job& job) {
    const std::vector<NodeInstance> holders = input_.tracker->LiveHolders(*job.facts);
    PlacementShard wish = Wish(job, holders);
    uint32_t copies = job.live_domains;
    for (const Repair& repair : input_.running) {
      if (repair.snapshot != job.snapshot || repair.shard != job.shard) continue;
      ++copies;
      wish.holders.push_back(repair.target);
    }
    while (copies <= input_.replica_count) {
      const std::vector<NodeId> best = placement_.Pick(wish, 1);
      if (best.empty()) {
        ++plan_.stuck_count;
        return;
      }
      // A busy best target or source is waited for: another one would hold the copy for good.
      if (target_use_[best.front()] >= input_.per_node_max) return;
      const std::optional<NodeInstance> source = ChooseSource(job, holders);
      if (!source.has_value()) return;
      const Repair repair{job.snapshot,          job.shard, job.facts->digest,
                          job.facts->size_bytes, *source,   best.front()};
      Take(repair);
      plan_.start.push_back(repair);
      wish.holders.push_back(repair.target);
      ++copies;
    }
  }

  PlacementShard Wish(const Job& job, const std::vector<NodeInstance>& holders) const {
    PlacementShard wish;
    wish.shard = job.shard;
    for (const NodeInstance& holder : holders) wish.holders.push_back(holder.node);
    // The trainer's own node is as good a target as its partners: after a move it is the nearest.
    if (const auto it = input_.assigned.find(job.shard); it != input_.assigned.end()) {
      wish.current = it->second;
    }
    if (const auto it = input_.primaries.find(job.shard); it != input_.primaries.end()) {
      wish.current.push_back(it->second);
    }
    for (const auto& [shard, node] : input_.refused) {
      if (shard == job.shard) wish.excluded.insert(node);
    }
    return wish;
  }

  std::optional<NodeInstance> ChooseSource(const Job& job,
                                           const std::vector<NodeInstance>& holders) {
    const auto primary = input_.primaries.find(job.shard);
    std::optional<NodeInstance> best;
    for (const NodeInstance& holder : holders) {
      const uint32_t use = source_use_[holder.node];
      if (use >= input_.per_node_max) continue;
      if (primary != input_.primaries.end() && primary->second == holder.node) return holder;
      if (!best.has_value() || use < source_use_[best->node]) best = holder;
    }
    return best;
  }

  void Take(const Repair& repair) {
    ++source_use_[repair.source.node];
    ++target_use_[repair.target];
    placement_.Assign(repair.source.node, {repair.target});
  }

  const RepairInput& input_;
  Placement placement_;
  std::map<NodeId, uint32_t> source_use_;  // Repairs that run from a node.
  std::map<NodeId, uint32_t> target_use_;  // Repairs that run to a node.
  RepairPlan plan_;
};

}  // namespace

RepairPlan PlanRepairs(const RepairInput& input) { return Planner(input).Run(); }

}  // namespace backstay::replication
