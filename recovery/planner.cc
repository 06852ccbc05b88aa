#include "recovery/planner.h"

#include <algorithm>
#include <utility>

#include "recovery/candidate.h"

namespace backstay::recovery {
namespace {

using replication::IdOf;
using replication::wire::JobRecord;
using replication::wire::RecordedSnapshot;

constexpr size_t kNamesInMessageMax = 8;

// Along a lineage steps only grow.
bool IsNewer(const SnapshotId& a, const SnapshotId& b) {
  return std::pair(a.step, a.generation) > std::pair(b.step, b.generation);
}

class RestorePlanner {
 public:
  explicit RestorePlanner(const PlanInput& input)
      : input_(input), record_(*input.base_record), request_(input.request) {
    for (auto& [id, parts] : CollectParts(input.inventory)) {
      candidates_.push_back(Judge(id, parts));
    }
    for (const RecordedSnapshot& committed : record_.committed()) {
      if (Find(IdOf(committed)) == nullptr) candidates_.push_back(Judge(IdOf(committed), {}));
    }
    std::ranges::sort(candidates_,
                      [](const Candidate& a, const Candidate& b) { return IsNewer(a.id, b.id); });
  }

  Plan Run() {
    switch (request_.mode) {
      case ResumeMode::kAuto:
        return PlanNewest();
      case ResumeMode::kExact:
        return PlanExact();
      case ResumeMode::kFresh:
        return PlanFresh();
      case ResumeMode::kFork:
        return PlanFork();
    }
    return Refuse(InvalidArgument("unknown resume mode"));
  }

 private:
  Candidate Judge(const SnapshotId& id, const SnapshotParts& parts) {
    Candidate candidate;
    candidate.id = id;
    std::string root;
    uint32_t world_size = 0;
    for (const RecordedSnapshot& committed : record_.committed()) {
      if (IdOf(committed) != id) continue;
      candidate.committed = true;
      root = committed.root();
      world_size = committed.world_size();
    }
    if (replication::CurrentBase(record_) == id) root = record_.decision().base_root();
    std::map<ShardId, std::set<NodeInstance>> unreadable;
    for (const UnreadableCopy& copy : input_.unreadable) {
      if (copy.snapshot == id) unreadable[copy.shard].insert(copy.holder);
    }
    candidate.check = CheckParts(parts, {root, world_size, candidate.committed, unreadable});
    candidate.on_lineage = replication::OnLineage(record_, id);
    // What the leader gave up stays given up, however many of its shards were sealed meanwhile.
    candidate.abandoned = !candidate.committed && id.generation.value == record_.generation() &&
                          id.step.value <= record_.last_abandoned_step();
    return candidate;
  }

  const Candidate* Find(const SnapshotId& id) const {
    const auto it = std::ranges::find(candidates_, id, &Candidate::id);
    return it == candidates_.end() ? nullptr : &*it;
  }

  // Why a candidate may not be chosen; empty: it may.
  std::string WhyNot(const Candidate& candidate) const {
    if (!candidate.on_lineage) {
      return "is off the lineage: the job went on from an older snapshot";
    }
    if (candidate.abandoned) return "was abandoned";
    const std::optional<RecordedSnapshot> floor = replication::Floor(record_);
    if (!candidate.committed && floor.has_value() && IsNewer(IdOf(*floor), candidate.id)) {
      return "was never committed, and newer ones were";
    }
    return candidate.check.problem;
  }

  const Candidate* NewestComplete() const {
    const auto fits = [&](const Candidate& candidate) { return WhyNot(candidate).empty(); };
    const auto it = std::ranges::find_if(candidates_, fits);
    return it == candidates_.end() ? nullptr : &*it;
  }

  // Whether what was not found may still turn up: on a node that has not answered, or on one that
  // was lost a moment ago.
  bool MayTurnUp() const { return !input_.inventory.unanswered.empty() || !input_.gone_is_sure; }

  Plan PlanNewest() {
    const std::optional<RecordedSnapshot> floor = replication::Floor(record_);
    const Candidate* newest = NewestComplete();
    if (!floor.has_value()) return PlanWithoutFloor(newest);
    const SnapshotId floor_id = IdOf(*floor);
    const Candidate* at_floor = Find(floor_id);
    const std::string floor_text = "the last commit, " + ToString(floor_id) + ",";
    if (at_floor != nullptr && at_floor->check.problem.empty()) {
      if (!input_.inventory.unanswered.empty() && !input_.patience_is_over) {
        return Wait(floor_text + " is whole; a newer snapshot may be too");
      }
      if (newest->id == floor_id) {
        return Choose(*newest,
                      ToString(floor_id) + " is the last commit, and every shard of it was found");
      }
      return Choose(*newest,
                    ToString(newest->id) +
                        " was not committed, but every shard of it was sealed and found; " +
                        "the last commit is " + ToString(floor_id));
    }
    const std::string problem = at_floor == nullptr ? "was not found" : at_floor->check.problem;
    if (MayTurnUp()) return Wait(floor_text + " " + problem + " so far");
    if (newest == nullptr) {
      return Refuse(NotFound("job " + record_.job() + " cannot be restored: " + DescribeFound()));
    }
    return Choose(*newest, floor_text + " " + problem + "; " + ToString(newest->id) +
                               (IsNewer(floor_id, newest->id) ? " is the newest older snapshot"
                                                              : " is newer, uncommitted,") +
                               " that is whole");
  }

  Plan PlanWithoutFloor(const Candidate* newest) {
    // Nothing is ever saved before the first generation.
    const bool may_have_state = !record_.decision().uuid().empty();
    if (newest != nullptr) {
      if (!input_.inventory.unanswered.empty() && !input_.patience_is_over) {
        return Wait("a newer snapshot than " + ToString(newest->id) + " may be whole");
      }
      return Choose(*newest, ToString(newest->id) + " is the newest snapshot that is whole; the " +
                                 "job has committed none");
    }
    if (may_have_state && MayTurnUp()) {
      return Wait("no whole snapshot was found so far");
    }
    if (may_have_state && !record_.decision().fresh()) {
      return Refuse(NotFound("job " + record_.job() + " cannot be restored: generation " +
                             std::to_string(record_.generation()) + " started from step " +
                             std::to_string(record_.decision().base_step()) +
                             (record_.decision().base_job().empty()
                                  ? std::string()
                                  : " of job " + record_.decision().base_job()) +
                             ", has committed nothing since, and " + DescribeFound()));
    }
    return Fresh(may_have_state ? "the job has committed nothing, and no whole snapshot was found"
                                : "the job has no state");
  }

  Plan PlanExact() {
    const Candidate* chosen = nullptr;
    std::string problem = "there is none on the job's lineage";
    for (const Candidate& candidate : candidates_) {
      if (candidate.id.step != request_.exact_step || chosen != nullptr) continue;
      const std::string why_not = WhyNot(candidate);
      if (why_not.empty()) {
        chosen = &candidate;
      } else {
        problem = ToString(candidate.id) + " " + why_not;
      }
    }
    if (chosen != nullptr) return Choose(*chosen, ToString(chosen->id) + " was asked for");
    if (!record_.decision().uuid().empty() && MayTurnUp()) {
      return Wait("step " + std::to_string(request_.exact_step.value) + ": " + problem + " so far");
    }
    return Refuse(NotFound("step " + std::to_string(request_.exact_step.value) + " of job " +
                           record_.job() + " cannot be restored: " + problem + "; " +
                           DescribeFound()));
  }

  // What of the job would be left behind by starting from something else; empty: nothing.
  static std::string OwnState(const JobRecord& record) {
    const std::optional<RecordedSnapshot> floor = replication::Floor(record);
    if (floor.has_value()) return ToString(IdOf(*floor)) + " is committed";
    if (record.committed_size() > 0) {
      return ToString(IdOf(*record.committed().rbegin())) + " is committed";
    }
    return "";
  }

  Plan PlanFresh() {
    if (request_.drop_state) return Fresh("a fresh start was asked for, dropping the job's state");
    std::string state = OwnState(record_);
    if (const Candidate* newest = NewestComplete(); state.empty() && newest != nullptr) {
      state = ToString(newest->id) + " is whole";
    }
    if (!state.empty()) {
      return Refuse(InvalidArgument("job " + record_.job() + " has state (" + state +
                                    "); to start from nothing, ask to drop it"));
    }
    if (!record_.decision().uuid().empty() && !input_.inventory.unanswered.empty()) {
      return Wait("whether the job has state is not known yet");
    }
    return Fresh("a fresh start was asked for, and the job has no state");
  }

  Plan PlanFork() {
    const std::string state = OwnState(*input_.record);
    if (!state.empty() && !request_.drop_state) {
      return Refuse(InvalidArgument("job " + input_.record->job() + " has state (" + state +
                                    "); to fork job " + record_.job() + " under its name, ask to " +
                                    "drop it"));
    }
    const bool any_step = request_.exact_step.value == 0;
    std::string problem = any_step ? "it has committed nothing" : "that step is not committed";
    for (const Candidate& candidate : candidates_) {
      // The other job goes on meanwhile: only what it committed stays what it is.
      if (!candidate.committed || !candidate.on_lineage) continue;
      if (!any_step && candidate.id.step != request_.exact_step) continue;
      if (candidate.check.problem.empty()) {
        return Choose(candidate,
                      ToString(candidate.id) + " of job " + record_.job() +
                          (any_step ? " is the newest committed one" : " was asked for"));
      }
      problem = ToString(candidate.id) + " " + candidate.check.problem;
      if (MayTurnUp()) return Wait(problem + " so far");
    }
    return Refuse(NotFound("job " + record_.job() + " cannot be forked: " + problem + "; " +
                           DescribeFound()));
  }

  Plan Choose(const Candidate& chosen, std::string why) {
    if (Status status = CheckRequest(chosen); !status.ok()) return Refuse(std::move(status));
    Plan plan;
    plan.outcome = PlanOutcome::kDecided;
    plan.base.snapshot = chosen.id;
    plan.base.root = chosen.check.root;
    plan.base.committed = chosen.committed;
    if (request_.mode == ResumeMode::kFork) plan.base.job = record_.job();
    plan.sources = chosen.check.sources;
    Explain(plan, std::move(why), &chosen);
    return plan;
  }

  Plan Fresh(std::string why) {
    Plan plan;
    plan.outcome = PlanOutcome::kDecided;
    plan.base.fresh = true;
    Explain(plan, std::move(why), nullptr);
    return plan;
  }

  Plan Wait(std::string why) {
    Plan plan;
    plan.outcome = PlanOutcome::kWait;
    if (!input_.inventory.unanswered.empty()) {
      why += "; not answering:";
      size_t named = 0;
      for (const NodeInstance& node : input_.inventory.unanswered) {
        if (++named > kNamesInMessageMax) break;
        why += " " + node.node.value;
      }
    }
    Explain(plan, std::move(why), nullptr);
    return plan;
  }

  Plan Refuse(Status error) {
    Plan plan;
    plan.outcome = PlanOutcome::kRefused;
    Explain(plan, error.message(), nullptr);
    plan.error = std::move(error);
    return plan;
  }

  void Explain(Plan& plan, std::string why, const Candidate* chosen) const {
    for (const Candidate& candidate : candidates_) {
      if (&candidate == chosen) continue;
      std::string reason = WhyNot(candidate);
      if (reason.empty()) {
        if (request_.mode == ResumeMode::kFresh)
          reason = "a fresh start was asked for";
        else if (request_.mode == ResumeMode::kExact)
          reason = "another step was asked for";
        else
          reason = "is older than what was chosen";
      }
      if (plan.rejected.size() == replication::kRejectedMax) break;
      plan.rejected.push_back(ToString(candidate.id) + ": " + reason);
    }
    plan.why = std::move(why);
    plan.base.why = plan.why;
    plan.base.rejected = plan.rejected;
  }

  // Rule 8: new rank n gets one shard, and the shards are those of the snapshot.
  Status CheckRequest(const Candidate& chosen) const {
    const std::string text = ToString(chosen.id) + " of job " + record_.job();
    if (chosen.check.world_size != request_.world_size) {
      return InvalidArgument(text + " was saved by " + std::to_string(chosen.check.world_size) +
                             " ranks and cannot be restored by " +
                             std::to_string(request_.world_size) +
                             ": resharding is not supported yet");
    }
    std::set<ShardId> have;
    for (const replication::wire::ShardSource& source : chosen.check.sources) {
      have.insert(ShardId(source.shard_id()));
    }
    for (const ShardId& wanted : request_.shards) {
      if (have.contains(wanted)) continue;
      std::string names;
      size_t named = 0;
      for (const ShardId& shard : have) {
        if (++named > kNamesInMessageMax) break;
        names += (names.empty() ? "" : ", ") + shard.value;
      }
      return InvalidArgument("a rank asks for shard " + wanted.value + ", which " + text +
                             " does not have; it has " + names +
                             (have.size() > kNamesInMessageMax ? " and more" : ""));
    }
    return Status::Ok();
  }

  // What was found, for the message that says that it is not enough.
  std::string DescribeFound() const {
    if (candidates_.empty()) return "no shard of it was found on " + DescribeAsked();
    std::string text = "on " + DescribeAsked() + " was found:";
    size_t named = 0;
    for (const Candidate& candidate : candidates_) {
      if (++named > kNamesInMessageMax) {
        text += " ...";
        break;
      }
      const std::string why_not = WhyNot(candidate);
      text += " " + ToString(candidate.id) + " " + (why_not.empty() ? "is whole" : why_not) + ";";
    }
    text.pop_back();
    return text;
  }

  // The nodes that told what they hold.
  std::string DescribeAsked() const {
    if (input_.inventory.answered.empty()) return "no node, for none answered";
    std::string text;
    size_t named = 0;
    for (const auto& [node, shards] : input_.inventory.answered) {
      if (++named > kNamesInMessageMax) {
        return text + " and " +
               std::to_string(input_.inventory.answered.size() - kNamesInMessageMax) +
               " more nodes";
      }
      text += (text.empty() ? "" : ", ") + node.node.value;
    }
    return text;
  }

  const PlanInput& input_;
  const JobRecord& record_;  // Of the job whose bytes are restored.
  const RestoreRequest& request_;
  std::vector<Candidate> candidates_;  // Newest first.
};

}  // namespace

Plan PlanRestore(const PlanInput& input) { return RestorePlanner(input).Run(); }

std::vector<replication::wire::ShardSource> SourcesOf(const InventoryView& inventory,
                                                      const SnapshotId& base,
                                                      const std::string& root) {
  const std::map<SnapshotId, SnapshotParts> all = CollectParts(inventory);
  const auto parts = all.find(base);
  if (parts == all.end()) return {};
  return CheckParts(parts->second, {root, 0, /*committed=*/true, {}}).sources;
}

}  // namespace backstay::recovery
