#include "tests/sim/cluster/auditor.h"

#include <algorithm>

namespace backstay::sim {
namespace {

std::string Text(const std::optional<SnapshotId>& base) {
  return base ? ToString(*base) : "the beginning";
}

}  // namespace

void Auditor::OnSealed(const SnapshotId& snapshot, Rank rank, uint64_t history, uint64_t content) {
  const auto [entry, inserted] = sealed_.insert({{snapshot, rank}, {history, content}});
  if (!inserted && entry->second.content != content) {
    Violation("one name, two contents: rank " + std::to_string(rank.value) + " of " +
              ToString(snapshot));
  }
}

void Auditor::OnVerified(Generation generation, Attempt attempt, Rank rank) {
  verified_[{generation, attempt}].insert(rank);
}

void Auditor::OnResumed(Generation generation, Attempt attempt, Rank rank, uint32_t world_size,
                        std::optional<SnapshotId> base, uint64_t history, uint64_t content) {
  const std::string who =
      "rank " + std::to_string(rank.value) + " of generation " + std::to_string(generation.value);
  if (const size_t verified = verified_[{generation, attempt}].size(); verified < world_size) {
    Violation(who + " resumes when " + std::to_string(verified) + " of " +
              std::to_string(world_size) + " ranks have what they restore");
  }
  const auto [resume, first] = resumes_.insert({generation, {base, history}});
  if (resume->second.base != base) {
    Violation(who + " resumes from " + Text(base) + ", another rank from " +
              Text(resume->second.base));
  }
  if (resume->second.history != history)
    Violation(who + " has another history than the other ranks");
  if (base) {
    const auto sealed = sealed_.find({*base, rank});
    if (sealed == sealed_.end()) {
      Violation(who + " restored " + ToString(*base) + ", which that rank never sealed");
    } else if (sealed->second.content != content) {
      Violation(who + " restored other bytes of " + ToString(*base) + " than were sealed");
    }
  } else if (!roots_.empty() && !beyond_policy_) {
    Violation(who + " starts from the beginning although something was committed");
  }
  if (first) CountResume(base);
}

bool Auditor::GrewFrom(SnapshotId snapshot, const SnapshotId& ancestor) const {
  while (snapshot.generation > ancestor.generation) {
    const auto resume = resumes_.find(snapshot.generation);
    if (resume == resumes_.end() || !resume->second.base) return false;
    snapshot = *resume->second.base;
  }
  return snapshot.generation == ancestor.generation && snapshot.step >= ancestor.step;
}

void Auditor::CountResume(const std::optional<SnapshotId>& base) {
  if (!base) {
    reached_.fresh_starts += 1;
    return;
  }
  const bool below = floor_ && !GrewFrom(*base, *floor_);
  if (below) {
    reached_.resumes_below_floor += 1;
    if (!beyond_policy_) {
      Violation("resumed from " + ToString(*base) + " although " + ToString(*floor_) +
                " was committed and at most " + std::to_string(lost_nodes_) + " nodes were lost");
    }
  } else if (roots_.contains(*base)) {
    reached_.resumes_from_commit += 1;
  } else {
    reached_.resumes_above_floor += 1;
  }
  // What is newer than the base is off the lineage now. An uncommitted base is not promised yet:
  // the floor under it stays until it is committed.
  if (roots_.contains(*base)) floor_ = base;
  beyond_policy_ = false;
}

void Auditor::OnRecord(const replication::wire::JobRecord& record) {
  if (record_ && record.generation() < record_->generation()) {
    Violation("the generation went back from " + std::to_string(record_->generation()) + " to " +
              std::to_string(record.generation()));
  }
  if (record_ && record.generation() == record_->generation() &&
      record.decision().attempt() > record_->decision().attempt()) {
    reached_.moves += 1;
  }
  for (const auto& snapshot : record.committed()) CheckCommitted(snapshot, record.world_size());
  record_ = record;
}

void Auditor::CheckCommitted(const replication::wire::RecordedSnapshot& snapshot,
                             uint32_t world_size) {
  const SnapshotId id{Generation(snapshot.generation()), Step(snapshot.step())};
  const auto [root, first] = roots_.insert({id, snapshot.root()});
  if (!first) {
    if (root->second != snapshot.root()) Violation(ToString(id) + " was committed with two roots");
    return;
  }
  reached_.commits += 1;
  for (uint64_t rank = 0; rank < world_size; ++rank) {
    if (!sealed_.contains({id, Rank(rank)})) {
      Violation(ToString(id) + " is committed, but rank " + std::to_string(rank) +
                " never sealed it");
    }
  }
  if (!floor_ || id.step > floor_->step || id.generation > floor_->generation) floor_ = id;
}

void Auditor::OnNodesLost(uint32_t nodes, uint32_t replicas) {
  lost_nodes_ += nodes;
  if (lost_nodes_ > replicas) beyond_policy_ = true;
}

void Auditor::OnProtectedAgain() { lost_nodes_ = 0; }

}  // namespace backstay::sim
