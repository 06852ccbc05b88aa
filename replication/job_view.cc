#include "replication/job_view.h"

#include <sstream>
#include <utility>

#include "replication/wire_convert.h"

namespace backstay::replication {

std::string JobView::DescribeKept() const {
  if (kept.empty()) return "nothing is committed";
  std::ostringstream text;
  text << "committed: ";
  const char* separator = "";
  for (const auto& [snapshot, root] : kept) {
    text << separator << snapshot;
    separator = ", ";
  }
  return text.str();
}

Result<JobView> DecodeJobState(const wire::Header& header, const wire::JobState& state) {
  if (state.assignments_size() > kAssignmentsMax ||
      state.under_protected_size() > kAssignmentsMax || state.kept_size() > kSnapshotsInStateMax ||
      state.pinned_size() > kSnapshotsInStateMax) {
    return InvalidArgument("state of job " + header.job() + " beyond its limits");
  }
  const JobName job(header.job());
  JobView view;
  view.revision = state.revision();
  view.generation = Generation(header.generation());
  view.term = Term(header.term());
  view.leader = FromWire(state.has_leader() ? state.leader() : header.from());
  view.closing_uuid = AttemptUuid(state.closing_uuid());
  view.base = FromWire(state.base());
  for (const wire::CommittedSnapshot& kept : state.kept()) {
    BACKSTAY_ASSIGN_OR_RETURN(const Hash128 root, DigestFromWire(kept.root()));
    view.kept[FromWire(kept.snapshot())] = root;
  }
  for (const wire::SnapshotRef& pinned : state.pinned()) view.pinned.insert(FromWire(pinned));
  view.last_committed = Step(state.last_committed_step());
  view.last_abandoned = Step(state.last_abandoned_step());
  for (const wire::Assignment& assignment : state.assignments()) {
    ShardAssignment& to = view.assignments[ShardId(assignment.shard_id())];
    to.primary = NodeId(assignment.primary());
    for (const std::string& node : assignment.replicas()) to.replicas.emplace_back(node);
  }
  for (const wire::ReplicaHealth& health : state.under_protected()) {
    BACKSTAY_ASSIGN_OR_RETURN(const ShardName name, FromWire(health.shard(), job));
    view.under_protected[name] = {health.holders(), health.wanted()};
  }
  view.resumed_attempt = Attempt(state.resumed_attempt());
  view.attempt_uuid = AttemptUuid(state.attempt_uuid());
  view.ended = state.ended();
  view.first_commit_done = state.first_commit_done();
  return view;
}

KeepVerdict JudgeShard(const JobView& view, const ShardName& name) {
  if (view.revision == 0) return KeepVerdict::kKeep;
  if (view.ended) return KeepVerdict::kDrop;
  if (view.kept.contains(name.snapshot)) return KeepVerdict::kKeepCommitted;
  // While closing, the inventory's promise covers whatever is here.
  if (view.closing() || view.pinned.contains(name.snapshot)) return KeepVerdict::kKeep;
  if (name.snapshot.generation > view.generation) return KeepVerdict::kKeep;
  if (name.snapshot.generation < view.generation) {
    // What is off the lineage, and what the lineage has outgrown, goes with the first commit.
    return view.first_commit_done ? KeepVerdict::kDrop : KeepVerdict::kKeep;
  }
  const Step step = name.snapshot.step;
  // Step 0 is "none yet" in both, and may be a step that was saved.
  const bool outdated = (view.first_commit_done && step <= view.last_committed) ||
                        (view.last_abandoned.value != 0 && step <= view.last_abandoned);
  return outdated ? KeepVerdict::kDrop : KeepVerdict::kKeep;
}

bool IsOutlived(const JobView& view, const store::Shard& shard) {
  const SnapshotId& snapshot = shard.name.snapshot;
  return shard.committed && view.revision != 0 && view.resumed_attempt.value != 0 &&
         !view.closing() && snapshot.step <= view.last_committed &&
         snapshot.generation <= view.generation && !view.kept.contains(snapshot) &&
         !view.pinned.contains(snapshot) && snapshot != view.base;
}

bool IsDisplaceable(const JobView& view, const store::Shard& shard) {
  return view.revision != 0 && !view.closing() && view.resumed_attempt.value != 0 &&
         shard.name.snapshot.generation < view.generation &&
         !view.kept.contains(shard.name.snapshot) && !view.pinned.contains(shard.name.snapshot) &&
         shard.name.snapshot != view.base;
}

}  // namespace backstay::replication
