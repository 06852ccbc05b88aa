// Which snapshot a step means, and who holds its shards.

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "replication/job_record.h"
#include "replication/wire_convert.h"
#include "store/manifest.h"
#include "tools/admin/admin_queries.h"

namespace backstay::tools {
namespace {

using ShardKey = std::tuple<uint32_t, ShardId, std::string>;  // Rank, id, digest.

struct Candidate {
  std::map<ShardKey, FoundShard> shards;
  uint32_t world_size = 0;
};
using Candidates = std::map<SnapshotId, Candidate>;

void AddHeld(const NodeInstance& node, const replication::wire::HeldShard& held,
             Candidates& candidates) {
  if (held.digest().empty()) return;  // Not sealed: nobody can read it yet.
  Candidate& candidate = candidates[replication::FromWire(held.shard().snapshot())];
  candidate.world_size = std::max(candidate.world_size, held.world_size());
  const ShardId id(held.shard().shard_id());
  FoundShard& shard = candidate.shards[{held.rank(), id, held.digest()}];
  shard.id = id;
  shard.rank = held.rank();
  shard.digest = held.digest();
  shard.size_bytes = held.size_bytes();
  shard.holders.insert(held.primary() ? shard.holders.begin() : shard.holders.end(), node);
}

Candidates Collect(const JobName& job, const std::vector<wire::NodeReport>& nodes) {
  Candidates candidates;
  for (const wire::NodeReport& node : nodes) {
    for (const replication::wire::NodeJob& held : node.status().jobs()) {
      if (held.job() != job.value) continue;
      for (const replication::wire::HeldShard& shard : held.shards()) {
        AddHeld(replication::FromWire(node.node()), shard, candidates);
      }
    }
  }
  // What was committed and is held by nobody is lost, not unknown: it is shown, without holders.
  return candidates;
}

std::string Steps(const Candidates& candidates) {
  static constexpr size_t kShownMax = 12;
  std::set<uint64_t> steps;
  for (const auto& [snapshot, candidate] : candidates) steps.insert(snapshot.step.value);
  if (steps.empty()) return "it has no snapshot";
  std::string text = steps.size() == 1 ? "it has step " : "it has steps ";
  size_t left = steps.size();
  if (left > kShownMax) text += "..., ";
  for (const uint64_t step : steps) {
    if (left <= kShownMax) text += std::to_string(step) + (left > 1 ? ", " : "");
    --left;
  }
  return text;
}

std::string Names(const std::vector<wire::SilentNode>& nodes) {
  std::string names;
  for (const wire::SilentNode& node : nodes) {
    names += (names.empty() ? "" : ", ") + store::QuoteName(node.node_id());
  }
  return names;
}

}  // namespace

Result<FoundSnapshot> ChooseSnapshot(const JobName& job, const replication::wire::JobRecord& record,
                                     const std::vector<wire::NodeReport>& nodes, uint64_t step,
                                     uint64_t generation) {
  FoundSnapshot found;
  for (const wire::NodeReport& node : nodes) {
    if (node.answered()) continue;
    wire::SilentNode& silent = found.silent.emplace_back();
    silent.set_node_id(node.node().node_id());
    silent.set_error(node.error());
  }
  Candidates candidates = Collect(job, nodes);
  for (const replication::wire::RecordedSnapshot& committed : record.committed()) {
    Candidate& candidate = candidates[{Generation(committed.generation()), Step(committed.step())}];
    candidate.world_size = committed.world_size();
  }
  const auto matches = [&](const SnapshotId& id) {
    return id.step.value == step && (generation == 0 || id.generation.value == generation);
  };
  const Candidate* chosen = nullptr;
  for (const auto& [id, candidate] : candidates) {  // Generations grow.
    const bool committed = replication::IsCommitted(record, id);
    if (!matches(id) || (found.committed && !committed)) continue;
    found.snapshot = id;
    found.committed = committed;
    chosen = &candidate;
  }
  if (chosen == nullptr) {
    const std::string what =
        "job " + store::QuoteName(job.value) + " has no step " + std::to_string(step) +
        (generation == 0 ? "" : " of generation " + std::to_string(generation)) + "; " +
        Steps(candidates);
    if (found.silent.empty()) return NotFound(what);
    return Unavailable(what + " on the nodes that answered; " + Names(found.silent) + " did not");
  }
  found.world_size = chosen->world_size;
  found.wanted_replicas = record.replicas() + 1;
  for (const auto& [key, shard] : chosen->shards) found.shards.push_back(shard);
  return found;
}

void AdminQueries::FindSnapshot(const JobName& job, uint64_t step, uint64_t generation,
                                Completion<FoundSnapshot> done) {
  ReadJob(job, [this, job, step, generation, done = std::move(done)](Result<JobEntry> entry) {
    if (!entry.ok()) return done(entry.status());
    if (!entry->record_status.ok()) return done(entry->record_status);
    AskNodes([record = std::move(entry->record), job, step, generation,
              done](Result<std::vector<wire::NodeReport>> nodes) {
      done(ChooseSnapshot(job, record, *nodes, step, generation));
    });
  });
}

}  // namespace backstay::tools
