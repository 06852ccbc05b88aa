#include "tools/cli/verdict.h"

#include <algorithm>
#include <set>

#include "replication/job_record.h"
#include "tools/cli/names.h"
#include "tools/cli/table.h"

namespace backstay::tools {

using replication::wire::SnapshotStatus;

namespace {

std::string StepText(uint64_t step) { return "step " + std::to_string(step); }

// Of what is under-protected: the shard with the fewest holders.
const replication::wire::ReplicaHealth* Weakest(const wire::JobReply& job) {
  const auto& health = job.leader().state().under_protected();
  const auto weakest =
      std::min_element(health.begin(), health.end(),
                       [](const auto& a, const auto& b) { return a.holders() < b.holders(); });
  return weakest == health.end() ? nullptr : &*weakest;
}

std::string HealthText(const replication::wire::ReplicaHealth& health, int others) {
  std::string text = "shard " + ShowName(health.shard().shard_id()) + " of " +
                     StepText(health.shard().snapshot().step()) + " has " +
                     std::to_string(health.holders()) + " of " + std::to_string(health.wanted()) +
                     " copies";
  if (others > 0)
    text += ", and " + Count(static_cast<uint64_t>(others), "other shard") + " too few";
  return text;
}

// How long the newest committed snapshot took from its begin to its commit.
int64_t LastCommitTookMs(const wire::JobReply& job) {
  int64_t took = 0;
  for (const SnapshotStatus& snapshot : job.leader().snapshots()) {
    if (snapshot.state() != SnapshotStatus::COMMITTED || snapshot.began_unix_ms() == 0) continue;
    took = snapshot.committed_unix_ms() - snapshot.began_unix_ms();
  }
  return took;
}

std::string LastCommitText(const wire::JobReply& job) {
  const std::optional<LastCommit> last = FindLastCommit(job);
  if (!last.has_value()) return "nothing is committed";
  return StepText(last->snapshot.step.value) + " was committed " +
         FormatAgo(last->committed_unix_ms, job.now_unix_ms());
}

std::optional<Verdict> JudgeUncommitted(const wire::JobReply& job) {
  const SnapshotStatus* newest = FindUncommitted(job);
  if (newest == nullptr) return std::nullopt;
  const std::string reason = newest->reason().empty() ? "" : ": " + ShowText(newest->reason());
  const std::string step = StepText(newest->snapshot().step());
  if (newest->state() == SnapshotStatus::ABANDONED) {
    return Verdict{Condition::kStuck,
                   "stuck: " + step + " was given up" + reason + "; " + LastCommitText(job)};
  }
  const int64_t age = job.now_unix_ms() - newest->began_unix_ms();
  const int64_t overdue = std::max(kOverdueMinMs, kOverdueFactor * LastCommitTookMs(job));
  if (newest->began_unix_ms() == 0 || age < overdue) return std::nullopt;
  return Verdict{Condition::kStuck, "stuck: " + step + " is not committed " + FormatAge(age) +
                                        " after its begin" + reason + "; " + LastCommitText(job)};
}

// A job that saves nothing until it has reconfigured.
Verdict JudgeInterrupted(const wire::JobReply& job, Condition condition, int64_t since_unix_ms,
                         const std::string& text) {
  const int64_t age = since_unix_ms == 0 ? 0 : job.now_unix_ms() - since_unix_ms;
  const std::string name = ConditionName(condition);
  const std::string rest = (since_unix_ms == 0 ? "" : "for " + FormatAge(age) + ", ") + text +
                           "; " + LastCommitText(job);
  if (age < kInterruptedOverdueMs) return {condition, name + ": " + rest};
  return {Condition::kStuck, "stuck: " + name + " " + rest};
}

Verdict JudgeReconfiguration(const wire::JobReply& job) {
  const auto& leader = job.leader();
  // The fault came before the first call.
  const int64_t since =
      leader.has_fence() ? leader.fence().unix_ms() : leader.waiting_since_unix_ms();
  const bool decided = leader.waiting_uuid() == leader.decision().uuid();
  std::string text = "all ranks are present";
  if (!leader.missing_ranks().empty()) {
    text = (decided ? "waiting for the bytes of " : "waiting for ") +
           RanksText(leader.missing_ranks(), leader.world_size());
  }
  return JudgeInterrupted(job, Condition::kReconfiguring, since, text);
}

Verdict JudgeFenced(const wire::JobReply& job) {
  const auto& fence = job.leader().fence();
  std::string text =
      "by " + ShowText(fence.by()) + "; nothing is saved until the ranks reconfigure";
  if (!fence.gone_ranks().empty()) {
    text +=
        ", and no trainer is there for " + RanksText(fence.gone_ranks(), job.leader().world_size());
  }
  return JudgeInterrupted(job, Condition::kFenced, fence.unix_ms(), text);
}

// Without a leader's word nothing is known of the shards: nobody was asked.
Verdict JudgeUnled(const wire::JobReply& job) {
  const std::string leader = job.has_elected()
                                 ? "its leader " + ShowName(job.elected().node_id()) +
                                       " does not answer (" + ShowText(job.leader_error()) + ")"
                                 : ShowText(job.leader_error());
  return {Condition::kUnknown, "unknown: " + leader + "; " + LastCommitText(job)};
}

// Everything is as the policy wants it.
Verdict JudgeProtected(const wire::JobReply& job, const LastCommit& last) {
  std::string text = LastCommitText(job);
  if (last.node_count > 0) text += " on " + Count(last.node_count, "node");
  const uint32_t replicas = job.leader().replicas();
  if (replicas == 0) {
    return {Condition::kFine,
            "fine: " + text + "; by its policy without replicas, the loss of a node loses it"};
  }
  for (const auto& outlook : job.leader().outlook()) {
    if (!outlook.loses_committed()) continue;
    return {Condition::kAtRisk, "at risk: " + text + ", but the loss of " +
                                    ShowName(outlook.node_id()) + " would lose it"};
  }
  return {Condition::kFine,
          "fine: " + text + " and survives the loss of any " + Count(replicas, "node")};
}

}  // namespace

std::optional<LastCommit> FindLastCommit(const wire::JobReply& job) {
  std::optional<LastCommit> last;
  if (const auto floor = replication::Floor(job.record()); floor.has_value()) {
    last = LastCommit{.snapshot = {Generation(floor->generation()), Step(floor->step())},
                      .committed_unix_ms = floor->committed_unix_ms(),
                      .root = floor->root(),
                      .bytes = floor->bytes(),
                      .node_count = 0};
  }
  for (const SnapshotStatus& snapshot : job.leader().snapshots()) {
    const SnapshotId id{Generation(snapshot.snapshot().generation()),
                        Step(snapshot.snapshot().step())};
    // Above the lineage's last committed step lie those that a reconfiguration left behind.
    if (snapshot.state() != SnapshotStatus::COMMITTED ||
        id.step.value > job.leader().state().last_committed_step()) {
      continue;
    }
    // The leader may be ahead of the record that was read before it was asked; without a record
    // (the metadata store is out of reach) its newest one counts.
    if (last.has_value() && id < last->snapshot) continue;
    std::set<std::string> nodes;
    for (const auto& shard : snapshot.shards()) {
      for (const auto& holder : shard.holders()) nodes.insert(holder.node_id());
    }
    last = LastCommit{.snapshot = id,
                      .committed_unix_ms = snapshot.committed_unix_ms(),
                      .root = snapshot.root(),
                      .bytes = snapshot.bytes(),
                      .node_count = nodes.size()};
  }
  return last;
}

const SnapshotStatus* FindUncommitted(const wire::JobReply& job) {
  const SnapshotStatus* newest = nullptr;
  const auto key = [](const SnapshotStatus& s) {
    return std::pair(s.snapshot().generation(), s.snapshot().step());
  };
  for (const SnapshotStatus& snapshot : job.leader().snapshots()) {
    // What earlier generations left behind is nobody's next commit.
    if (snapshot.snapshot().generation() != job.leader().generation()) continue;
    if (newest == nullptr || key(snapshot) > key(*newest)) newest = &snapshot;
  }
  const bool committed = newest == nullptr || newest->state() == SnapshotStatus::COMMITTED ||
                         newest->state() == SnapshotStatus::UNCOMMITTED_BASE;
  return committed ? nullptr : newest;
}

std::string ConditionName(Condition condition) {
  switch (condition) {
    case Condition::kFine:
      return "fine";
    case Condition::kEmpty:
      return "nothing yet";
    case Condition::kEnded:
      return "ended";
    case Condition::kFenced:
      return "fenced";
    case Condition::kReconfiguring:
      return "reconfiguring";
    case Condition::kStuck:
      return "stuck";
    case Condition::kAtRisk:
      return "at risk";
    case Condition::kLost:
      return "lost";
    case Condition::kUnknown:
      return "unknown";
  }
  return "unknown";
}

std::string RanksText(const google::protobuf::RepeatedField<uint32_t>& ranks, uint32_t world_size) {
  constexpr int kNamedMax = 16;
  const auto count = static_cast<uint32_t>(ranks.size());
  if (count > 1 && count == world_size) return "all " + Count(world_size, "rank");
  std::string text = count == 1 ? "rank " : "ranks ";
  for (int i = 0; i < std::min(ranks.size(), kNamedMax); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  if (ranks.size() > kNamedMax) {
    text += " and " + std::to_string(ranks.size() - kNamedMax) + " more";
  }
  return text;
}

Verdict Judge(const wire::JobReply& job) {
  if (job.record().ended() || job.leader().ended()) {
    return {Condition::kEnded,
            "ended " + FormatAgo(job.record().ended_unix_ms(), job.now_unix_ms())};
  }
  if (!job.leader_answered()) return JudgeUnled(job);
  const replication::wire::ReplicaHealth* weakest = Weakest(job);
  const int others = job.leader().state().under_protected_size() - 1;
  if (weakest != nullptr && weakest->holders() == 0) {
    return {Condition::kLost, "lost: " + HealthText(*weakest, others)};
  }
  if (!job.leader().waiting_uuid().empty()) return JudgeReconfiguration(job);
  if (job.leader().has_fence()) return JudgeFenced(job);
  if (weakest != nullptr) return {Condition::kAtRisk, "at risk: " + HealthText(*weakest, others)};
  if (std::optional<Verdict> stuck = JudgeUncommitted(job)) return *stuck;
  const std::optional<LastCommit> last = FindLastCommit(job);
  if (!last.has_value()) {
    return {Condition::kEmpty,
            "nothing yet: no snapshot has been committed, so a loss loses everything"};
  }
  return JudgeProtected(job, *last);
}

}  // namespace backstay::tools
