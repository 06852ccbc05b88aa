#include "replication/job_record.h"

#include <algorithm>
#include <utility>

namespace backstay::replication {
namespace {

std::string JobText(const wire::JobRecord& record) { return "job " + record.job(); }

Status CheckOpen(const wire::JobRecord& record) {
  if (record.ended()) return Stale(JobText(record) + " has ended");
  return Status::Ok();
}

void Supersede(wire::JobRecord& record, const std::string& uuid) {
  if (uuid.empty() || IsSuperseded(record, AttemptUuid(uuid))) return;
  record.add_superseded_uuids(uuid);
  const int excess = record.superseded_uuids_size() - kSupersededUuidsMax;
  if (excess > 0) record.mutable_superseded_uuids()->DeleteSubrange(0, excess);
}

const wire::RecordedBase* FindBase(const wire::JobRecord& record, uint64_t generation) {
  for (const wire::RecordedBase& base : record.lineage()) {
    if (base.generation() == generation) return &base;
  }
  return nullptr;
}

// Keeps the newest kLineageMax bases that are reachable from the current generation.
void TrimLineage(wire::JobRecord& record) {
  std::vector<wire::RecordedBase> reachable;
  uint64_t generation = record.generation();
  for (const wire::RecordedBase* base = FindBase(record, generation); base != nullptr;
       base = FindBase(record, generation)) {
    reachable.push_back(*base);
    // A base always is of an earlier generation; anything else in a record would never end.
    if (base->base_generation() == 0 || base->base_generation() >= generation) break;
    generation = base->base_generation();
    if (reachable.size() == static_cast<size_t>(kLineageMax)) break;
  }
  record.clear_lineage();
  for (auto base = reachable.rbegin(); base != reachable.rend(); ++base) {
    *record.add_lineage() = *base;
  }
}

// Writes `base` as where the current generation starts from.
void SetBase(wire::JobRecord& record, const AttemptUuid& uuid, Attempt attempt,
             const ChosenBase& base) {
  wire::RecordedDecision& decision = *record.mutable_decision();
  decision.Clear();
  decision.set_uuid(uuid.value);
  decision.set_attempt(attempt.value);
  decision.set_fresh(base.fresh);
  decision.set_why(base.why.substr(0, kWhyBytesMax));
  for (const std::string& text : base.rejected) {
    if (decision.rejected_size() == kRejectedMax) break;
    decision.add_rejected(text.substr(0, kWhyBytesMax));
  }
  if (!base.fresh) {
    decision.set_base_generation(base.snapshot.generation.value);
    decision.set_base_step(base.snapshot.step.value);
    decision.set_base_root(base.root);
    decision.set_base_committed(base.committed);
    decision.set_base_job(base.job);
  }
  auto* lineage = record.mutable_lineage();
  for (int i = lineage->size() - 1; i >= 0; --i) {
    if (lineage->Get(i).generation() == record.generation()) lineage->DeleteSubrange(i, 1);
  }
  wire::RecordedBase& entry = *record.add_lineage();
  entry.set_generation(record.generation());
  // A fork's base is another job's: the own lineage starts here, as with a fresh start.
  if (!base.fresh && base.job.empty()) {
    entry.set_base_generation(base.snapshot.generation.value);
    entry.set_base_step(base.snapshot.step.value);
    entry.set_base_root(base.root);
  }
  TrimLineage(record);
  // Counted along the lineage: below the base again after a move to an older one.
  const std::optional<wire::RecordedSnapshot> floor = Floor(record);
  record.set_last_committed_step(floor.has_value() ? floor->step() : 0);
  // Abandoned steps are of one generation; the new one may use their numbers.
  record.set_last_abandoned_step(0);
  record.set_first_commit_done(false);
}

Status CheckBase(const wire::JobRecord& record, const ChosenBase& base) {
  if (base.fresh) return Status::Ok();
  const std::string text = JobText(record) + " cannot start from " + ToString(base.snapshot);
  if (base.root.empty()) return InvalidArgument(text + ": it has no root");
  if (!base.job.empty()) return Status::Ok();
  if (base.snapshot.generation.value == 0 || base.snapshot.generation.value > record.generation()) {
    return InvalidArgument(text + ": there was no such generation");
  }
  return Status::Ok();
}

// Keeps the newest `versions` snapshots of the lineage, and those off it until the generation's
// first commit.
void TrimCommitted(wire::JobRecord& record) {
  std::vector<wire::RecordedSnapshot> kept;
  uint32_t on_lineage = 0;
  for (int i = record.committed_size() - 1; i >= 0; --i) {
    const wire::RecordedSnapshot& snapshot = record.committed(i);
    if (OnLineage(record, IdOf(snapshot))) {
      if (++on_lineage <= record.versions()) kept.push_back(snapshot);
    } else if (!record.first_commit_done()) {
      kept.push_back(snapshot);
    }
  }
  record.clear_committed();
  for (auto it = kept.rbegin(); it != kept.rend(); ++it) *record.add_committed() = *it;
}

}  // namespace

SnapshotId IdOf(const wire::RecordedSnapshot& snapshot) {
  return {Generation(snapshot.generation()), Step(snapshot.step())};
}

Result<wire::JobRecord> CreateRecord(const JobName& job, const std::string& token_digest,
                                     uint32_t world_size, uint32_t replicas, uint32_t versions,
                                     Generation last) {
  if (job.empty() || job.value.size() > kNameBytesMax) {
    return InvalidArgument("a job's name has 1 to " + std::to_string(kNameBytesMax) + " bytes");
  }
  wire::JobRecord record;
  record.set_format_version(kJobRecordFormatVersion);
  record.set_job(job.value);
  record.set_token_digest(token_digest);
  record.set_world_size(world_size);
  record.set_replicas(replicas);
  record.set_versions(versions);
  // Never the last one itself: what is left over of it would seem to be on the new job's lineage.
  if (last.value != 0) record.set_generation(last.value + 1);
  BACKSTAY_RETURN_IF_ERROR(CheckPolicyLimits(job, world_size, replicas, versions));
  return record;
}

Status CheckPolicyLimits(const JobName& job, uint32_t world_size, uint32_t replicas,
                         uint32_t versions) {
  const auto refuse = [&](const char* what, uint32_t value, uint32_t min, uint32_t max) {
    return InvalidArgument("job " + job.value + ": " + what + " " + std::to_string(value) +
                           " is out of range; it may be " + std::to_string(min) + " to " +
                           std::to_string(max));
  };
  if (world_size < 1 || world_size > kWorldSizeMax) {
    return refuse("world size", world_size, 1, kWorldSizeMax);
  }
  if (replicas > kReplicasMax) return refuse("replica count", replicas, 0, kReplicasMax);
  if (versions < 1 || versions > kVersionsMax) {
    return refuse("number of versions", versions, 1, kVersionsMax);
  }
  return Status::Ok();
}

Status CheckRecord(const wire::JobRecord& record, const JobName& job) {
  const std::string text = "the record of job " + job.value;
  if (record.format_version() != kJobRecordFormatVersion) {
    return InvalidArgument(text + " has format version " + std::to_string(record.format_version()) +
                           "; this program knows " + std::to_string(kJobRecordFormatVersion) +
                           ". Run the same version of the service everywhere");
  }
  if (record.job() != job.value) return Corrupt(text + " names job " + record.job());
  if (!CheckPolicyLimits(job, record.world_size(), record.replicas(), record.versions()).ok() ||
      record.committed_size() > kCommittedMax || record.lineage_size() > kLineageMax ||
      record.superseded_uuids_size() > kSupersededUuidsMax ||
      record.decision().rejected_size() > kRejectedMax) {
    return Corrupt(text + " breaks its limits");
  }
  return Status::Ok();
}

Result<wire::JobRecord> ChangePolicy(const wire::JobRecord& record, uint32_t replicas,
                                     uint32_t versions) {
  BACKSTAY_RETURN_IF_ERROR(CheckOpen(record));
  if (!record.closing_uuid().empty()) {
    return Stale(JobText(record) + " is being reconfigured; its policy stays until then");
  }
  BACKSTAY_RETURN_IF_ERROR(
      CheckPolicyLimits(JobName(record.job()), record.world_size(), replicas, versions));
  wire::JobRecord next = record;
  next.set_replicas(replicas);
  next.set_versions(versions);
  return next;
}

Result<wire::JobRecord> CloseGeneration(const wire::JobRecord& record, const AttemptUuid& uuid,
                                        const std::vector<AttemptUuid>& also_superseded) {
  BACKSTAY_RETURN_IF_ERROR(CheckOpen(record));
  if (uuid.empty()) return InvalidArgument("a reconfiguration needs a uuid");
  if (IsSuperseded(record, uuid)) {
    return Stale(JobText(record) + ": a later reconfiguration took the place of " + uuid.value);
  }
  if (record.decision().uuid() == uuid.value && record.closing_uuid().empty()) {
    return Stale(JobText(record) + ": reconfiguration " + uuid.value + " was decided already");
  }
  wire::JobRecord next = record;
  if (record.closing_uuid() != uuid.value) Supersede(next, record.closing_uuid());
  Supersede(next, record.decision().uuid());
  for (const AttemptUuid& other : also_superseded) {
    if (other != uuid) Supersede(next, other.value);
  }
  next.set_closing_uuid(uuid.value);
  return next;
}

Result<wire::JobRecord> Decide(const wire::JobRecord& record, const AttemptUuid& uuid,
                               uint32_t world_size, const ChosenBase& base) {
  BACKSTAY_RETURN_IF_ERROR(CheckOpen(record));
  if (record.closing_uuid() != uuid.value || uuid.empty()) {
    return Stale(JobText(record) + " is not closing for reconfiguration " + uuid.value);
  }
  BACKSTAY_RETURN_IF_ERROR(CheckBase(record, base));
  BACKSTAY_RETURN_IF_ERROR(
      CheckPolicyLimits(JobName(record.job()), world_size, record.replicas(), record.versions()));
  wire::JobRecord next = record;
  next.clear_closing_uuid();
  next.set_generation(record.generation() + 1);
  next.set_world_size(world_size);
  SetBase(next, uuid, Attempt(1), base);
  return next;
}

Result<wire::JobRecord> NextAttempt(const wire::JobRecord& record, const AttemptUuid& uuid,
                                    Attempt attempt, const ChosenBase& base) {
  BACKSTAY_RETURN_IF_ERROR(CheckOpen(record));
  const wire::RecordedDecision& decision = record.decision();
  const std::string text =
      JobText(record) + ": attempt " + std::to_string(attempt.value) + " of " + uuid.value;
  if (!record.closing_uuid().empty() || decision.uuid() != uuid.value ||
      decision.attempt() != attempt.value) {
    return Stale(text + " is not the current one");
  }
  if (decision.resumed()) {
    return Stale(text + " has resumed: only a new generation may restore another snapshot");
  }
  if (decision.attempt() >= kAttemptsMax) {
    return InvalidArgument(text + " was the last that is made");
  }
  BACKSTAY_RETURN_IF_ERROR(CheckBase(record, base));
  wire::JobRecord next = record;
  SetBase(next, uuid, attempt.Next(), base);
  return next;
}

Result<wire::JobRecord> MarkResumed(const wire::JobRecord& record, const AttemptUuid& uuid,
                                    Attempt attempt) {
  BACKSTAY_RETURN_IF_ERROR(CheckOpen(record));
  if (!record.closing_uuid().empty() || record.decision().uuid() != uuid.value ||
      record.decision().attempt() != attempt.value || uuid.empty()) {
    return Stale(JobText(record) + ": attempt " + std::to_string(attempt.value) + " of " +
                 uuid.value + " is not the current one");
  }
  wire::JobRecord next = record;
  next.mutable_decision()->set_resumed(true);
  return next;
}

Result<wire::JobRecord> CommitSnapshot(const wire::JobRecord& record,
                                       const wire::RecordedSnapshot& snapshot) {
  BACKSTAY_RETURN_IF_ERROR(CheckOpen(record));
  const SnapshotId id = IdOf(snapshot);
  const std::string text = JobText(record) + ": " + ToString(id) + " cannot be committed: ";
  if (!record.closing_uuid().empty()) return Stale(text + "the generation is closing");
  const bool is_base = CurrentBase(record) == id && !record.decision().base_committed();
  const bool is_current = snapshot.generation() == record.generation() && record.generation() != 0;
  if (!is_base && !is_current) return Stale(text + "it is of another generation");
  if (is_current && !record.decision().resumed()) {
    return Stale(text + "the generation has not resumed");
  }
  if (snapshot.step() <= record.last_committed_step()) {
    return Stale(text + "step " + std::to_string(record.last_committed_step()) +
                 " is committed already");
  }
  if (is_current && snapshot.step() <= record.last_abandoned_step()) {
    return Stale(text + "step " + std::to_string(record.last_abandoned_step()) + " was abandoned");
  }
  if (is_current && !record.decision().fresh() &&
      snapshot.step() <= record.decision().base_step()) {
    return Stale(text + "the generation started from step " +
                 std::to_string(record.decision().base_step()));
  }
  if (is_base && snapshot.root() != record.decision().base_root()) {
    return InvalidArgument(text + "it is not what the ranks restored");
  }
  if (snapshot.world_size() != record.world_size()) {
    return InvalidArgument(text + "it is of " + std::to_string(snapshot.world_size()) +
                           " ranks, the job has " + std::to_string(record.world_size()));
  }
  wire::JobRecord next = record;
  *next.add_committed() = snapshot;
  next.set_last_committed_step(snapshot.step());
  if (is_current) next.set_first_commit_done(true);
  if (is_base) next.mutable_decision()->set_base_committed(true);
  TrimCommitted(next);
  return next;
}

Result<wire::JobRecord> AbandonSnapshot(const wire::JobRecord& record, SnapshotId snapshot) {
  BACKSTAY_RETURN_IF_ERROR(CheckOpen(record));
  const std::string text = JobText(record) + ": " + ToString(snapshot) + " cannot be abandoned: ";
  if (snapshot.generation.value != record.generation()) {
    return Stale(text + "it is of another generation");
  }
  if (IsCommitted(record, snapshot)) return Stale(text + "it is committed");
  wire::JobRecord next = record;
  next.set_last_abandoned_step(std::max(record.last_abandoned_step(), snapshot.step.value));
  return next;
}

Result<wire::JobRecord> EndRecord(const wire::JobRecord& record, int64_t unix_ms) {
  if (record.ended()) return record;
  wire::JobRecord next = record;
  next.set_ended(true);
  next.set_ended_unix_ms(unix_ms);
  return next;
}

bool OnLineage(const wire::JobRecord& record, SnapshotId snapshot) {
  if (snapshot.generation.value == 0) return false;
  uint64_t generation = record.generation();
  uint64_t step_max = UINT64_MAX;
  for (int hops = 0; hops <= kLineageMax; ++hops) {
    const wire::RecordedBase* base = FindBase(record, generation);
    if (generation == snapshot.generation.value) return snapshot.step.value <= step_max;
    if (base == nullptr || base->base_generation() == 0 || base->base_generation() >= generation) {
      return false;
    }
    step_max = base->base_step();
    generation = base->base_generation();
  }
  return false;
}

std::optional<wire::RecordedSnapshot> Floor(const wire::JobRecord& record) {
  for (int i = record.committed_size() - 1; i >= 0; --i) {
    if (OnLineage(record, IdOf(record.committed(i)))) return record.committed(i);
  }
  return std::nullopt;
}

std::optional<SnapshotId> CurrentBase(const wire::JobRecord& record) {
  const wire::RecordedDecision& decision = record.decision();
  if (decision.uuid().empty() || decision.fresh() || !decision.base_job().empty()) {
    return std::nullopt;
  }
  return SnapshotId{Generation(decision.base_generation()), Step(decision.base_step())};
}

std::vector<SnapshotId> KeptSet(const wire::JobRecord& record) {
  std::vector<SnapshotId> kept;
  for (const wire::RecordedSnapshot& snapshot : record.committed()) kept.push_back(IdOf(snapshot));
  return kept;
}

std::vector<SnapshotId> PinnedSet(const wire::JobRecord& record) {
  const std::optional<SnapshotId> base = CurrentBase(record);
  if (record.first_commit_done() || !base.has_value()) return {};
  return {*base};
}

bool IsCommitted(const wire::JobRecord& record, SnapshotId snapshot) {
  return std::ranges::any_of(record.committed(), [&](const wire::RecordedSnapshot& committed) {
    return IdOf(committed) == snapshot;
  });
}

bool IsSuperseded(const wire::JobRecord& record, const AttemptUuid& uuid) {
  return std::ranges::find(record.superseded_uuids(), uuid.value) !=
         record.superseded_uuids().end();
}

}  // namespace backstay::replication
