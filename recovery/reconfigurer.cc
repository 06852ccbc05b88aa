#include "recovery/reconfigurer.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "replication/job_record.h"
#include "replication/leader_status.h"
#include "replication/wire_convert.h"

namespace backstay::recovery {

namespace timeline = replication::timeline;
using replication::wire::JobRecord;
using replication::wire::Request;

Reconfigurer::Reconfigurer(JobName job, const replication::LeaderSeams& seams,
                           const replication::LeaderConfig& config, replication::JobLeader& leader)
    : job_(std::move(job)),
      seams_(seams),
      config_(config),
      leader_(leader),
      round_(seams, config, leader.calls(),
             [this](const NodeInstance& from, const replication::wire::InventoryReply& reply) {
               // Another job's shards are none of the tracker's.
               if (round_.other_job().empty()) leader_.OnInventory(from, reply);
               leader_.Poke();
             }) {
  leader_.SetListener([this] { Step(); });
}

Reconfigurer::~Reconfigurer() {
  leader_.SetListener(nullptr);
  FailAll(Unavailable("the leadership of job " + job_.value + " has ended"));
}

void Reconfigurer::FailAll(const Status& why) {
  callers_.FailAll(why);
  for (auto& [from, held] : held_reports_) {
    if (held.reply) std::exchange(held.reply, nullptr)(why);
  }
  held_reports_.clear();
}

void Reconfigurer::OnReconfigure(const Request& request, replication::ReplyFunction reply) {
  const replication::wire::Reconfigure& call = request.reconfigure();
  const AttemptUuid uuid(call.uuid());
  if (!leader_.loaded() || !leader_.exists()) {
    reply(Unavailable("the leader of job " + job_.value +
                      " does not know the job yet; its shards have to be registered first"));
    return;
  }
  if (record().ended()) {
    reply(Stale("job " + job_.value + " has ended"));
    return;
  }
  if (replication::IsSuperseded(record(), uuid)) {
    reply(
        Stale("a later reconfiguration of job " + job_.value + " took the place of " + uuid.value));
    return;
  }
  // It came late: what its trainer has called for since may be decided and forgotten here.
  if (leader_.trainers().LastCallOf(replication::FromWire(request.header().from()),
                                    call.trainer()) > call.call()) {
    reply(Stale("rank " + std::to_string(call.rank()) +
                " has called for another reconfiguration of job " + job_.value + " since " +
                uuid.value));
    return;
  }
  // Another process has this rank now: what the one before it had verified is not in its memory.
  if (const auto restored = restores_.find(call.rank());
      IsDecided(uuid) && !record().decision().resumed() && restored != restores_.end() &&
      restored->second.trainer() != call.trainer()) {
    restores_.erase(restored);
  }
  const bool is_new = callers_.Find(uuid) == nullptr && !IsDecided(uuid);
  const bool is_claimant = leader_.IsClaimant(ShardId(call.shard_id()), call.trainer());
  if (!callers_.Add(replication::FromWire(request.header().from()), call, is_claimant,
                    seams_.executor->Now(), std::move(reply))) {
    return;
  }
  if (is_new) {
    leader_.timeline().Add(timeline::kReconfigureCalled,
                           uuid.value + ", by rank " + std::to_string(call.rank()) + " of " +
                               std::to_string(call.world_size()),
                           generation());
  }
  leader_.Poke();
}

void Reconfigurer::Step() {
  if (!leader_.loaded() || !leader_.exists()) return;
  if (IsDecided(AttemptUuid(record().decision().uuid()))) LearnSources();
  Sweep();
  AnswerDecided();
  // A new leader gathers the calls again until it knows what all ranks asked for.
  const bool gathers = decided_request_.world_size == 0 && !record().decision().resumed();
  callers_.DropIdle(gathers ? decided_uuid_ : AttemptUuid());
  std::erase_if(announced_, [&](const AttemptUuid& uuid) { return !callers_.Find(uuid); });
  if (busy_ == Busy::kNo) {
    if (const std::optional<AttemptUuid> uuid = FindComplete(); uuid.has_value()) {
      StepGroup(*uuid);
    } else if (record().closing_uuid().empty()) {
      StepRestore();
    }
  }
  AnswerReports();
  if (UnderWay().empty()) {
    under_way_since_unix_ms_ = 0;
  } else if (under_way_since_unix_ms_ == 0) {
    under_way_since_unix_ms_ = seams_.executor->clock().UnixMillis();
  }
  if (leader_.members().current) round_.Step(members());
}

// Answers and forgets those whose time is over. At intervals: it looks at every caller.
void Reconfigurer::Sweep() {
  const Instant now = seams_.executor->Now();
  if (now < next_sweep_) return;
  next_sweep_ = now + kSweepInterval;
  callers_.DropOldCalls(now);
  callers_.DropGone([this](Caller& caller) { return IsGone(caller); });
  callers_.Expire(now, [this](const AttemptUuid& uuid, const CallGroup& group) {
    return WhyExpired(uuid, group);
  });
}

// A trainer that its node has not listed for a while. Not at once: what the node said may be older
// than the trainer.
bool Reconfigurer::IsGone(Caller& caller) const {
  if (!leader_.members().current) return false;
  if (leader_.members().Find(caller.node) == nullptr) return true;
  if (caller.request.trainer() == 0 || !leader_.trainers().Heard(caller.node) ||
      leader_.trainers().IsLive(caller.node, caller.request.trainer())) {
    caller.missed_since = Instant();
    return false;
  }
  const Instant now = seams_.executor->Now();
  if (caller.missed_since == Instant()) caller.missed_since = now;
  return now - caller.missed_since >= 2 * config_.announce_interval;
}

// ---- Until the decision -----------------------------------------------------------------------

// Once the leader knows whose trainer it is that calls, a caller that is still in the current
// generation shows that the generation is being left.
std::optional<Status> Reconfigurer::CheckLeaving(const CallGroup& group) const {
  if (record().decision().uuid().empty()) return std::nullopt;  // No generation was opened.
  std::map<uint64_t, NodeInstance> staying = leader_.trainers().InGeneration(generation());
  for (const auto& [rank, caller] : group.callers) {
    if (caller.request.old_generation() == generation().value) return std::nullopt;
    staying.erase(caller.request.trainer());
  }
  if (!staying.empty()) {
    return Stale("job " + job_.value + ": no rank that called leaves generation " +
                 std::to_string(generation().value) + ", and a trainer of it is alive on " +
                 staying.begin()->second.node.value);
  }
  for (const auto& [id, member] : members()) {
    if (leader_.trainers().Heard(member.record.instance)) continue;
    return Unavailable("job " + job_.value + ": whether trainers of generation " +
                       std::to_string(generation().value) + " are alive on " + id.value +
                       " could not be found out");
  }
  return std::nullopt;
}

Status Reconfigurer::WhyExpired(const AttemptUuid& uuid, const CallGroup& group) const {
  const std::string text = "reconfiguration " + uuid.value + " of job " + job_.value + ": ";
  if (!group.AllPresent()) {
    return DeadlineExceeded(text + DescribeMissingRanks(group.MissingRanks()));
  }
  if (record().closing_uuid() != uuid.value) {
    if (const std::optional<Status> why = CheckLeaving(group); why.has_value()) return *why;
    return DeadlineExceeded(text + "the metadata store did not answer");
  }
  if (!fork_read_error_.empty()) return Unavailable(text + fork_read_error_);
  if (!waiting_plan_.why.empty()) return Unavailable(text + waiting_plan_.why);
  return DeadlineExceeded(text + "no decision could be recorded in time");
}

std::optional<AttemptUuid> Reconfigurer::FindComplete() const {
  std::optional<AttemptUuid> found;
  for (const auto& [uuid, group] : callers_.groups()) {
    if (!group.AllPresent() || IsDecided(uuid)) continue;
    // The one that closed the generation goes first: what it waits for may never come otherwise.
    if (!found.has_value() || uuid.value == record().closing_uuid()) found = uuid;
  }
  return found;
}

void Reconfigurer::StepGroup(const AttemptUuid& uuid) {
  CallGroup* group = callers_.Find(uuid);
  const Result<RestoreRequest> request = CommonRequest(*group);
  if (!request.ok()) {
    callers_.Fail(
        uuid, InvalidArgument("reconfiguration " + uuid.value + ": " + request.status().message()));
    return;
  }
  if (announced_.insert(uuid).second) {
    leader_.timeline().Add(timeline::kAllPresent, uuid.value, generation());
  }
  if (record().closing_uuid() != uuid.value) {
    if (leader_.members().current && !CheckLeaving(*group).has_value()) Close(uuid);
    return;
  }
  StepInventory(uuid, *request);
}

void Reconfigurer::Close(const AttemptUuid& uuid) {
  busy_ = Busy::kClosing;
  const std::vector<AttemptUuid> superseded = callers_.superseded();
  const auto on_closed = [this, uuid](const Status& status) {
    busy_ = Busy::kNo;
    if (status.ok()) {
      leader_.timeline().Add(timeline::kClosing, uuid.value, generation());
    } else if (status.code() != StatusCode::kUnavailable) {
      callers_.Fail(uuid, status);
    }
    leader_.Poke();
  };
  leader_.Apply(
      [uuid, superseded](const JobRecord& record) {
        return replication::CloseGeneration(record, uuid, superseded);
      },
      lifetime_.Wrap(on_closed));
}

void Reconfigurer::ReadForkRecord(const JobName& fork_job) {
  if (fork_read_in_flight_ || seams_.executor->Now() < next_fork_read_) return;
  fork_read_in_flight_ = true;
  const auto on_read = [this, fork_job](const Result<replication::StoredJob>& stored) {
    fork_read_in_flight_ = false;
    fork_read_error_.clear();
    JobRecord read;
    if (stored.ok() && read.ParseFromString(stored->bytes) &&
        replication::CheckRecord(read, fork_job).ok()) {
      fork_record_ = std::move(read);
      fork_record_of_ = fork_job;
    } else if (stored.status().code() == StatusCode::kNotFound) {
      fork_record_.reset();  // Known not to exist.
      fork_record_of_ = fork_job;
    } else {
      // The store is away, or the record is unreadable here and may be replaced.
      next_fork_read_ = seams_.executor->Now() + kForkReadInterval;
      fork_read_error_ =
          "the record of job " + fork_job.value + " cannot be read: " +
          (stored.ok() ? "it is damaged, or of another version" : stored.status().ToString());
      Log(LogLevel::kWarning, fork_read_error_, {{"job", job_.value}});
    }
    leader_.Poke();
  };
  seams_.jobs->Read(fork_job, seams_.executor->Now() + config_.transaction_deadline,
                    lifetime_.Wrap(on_read));
}

PlanInput Reconfigurer::MakePlanInput(const RestoreRequest& request) const {
  PlanInput input;
  input.record = &record();
  input.base_record = request.mode == ResumeMode::kFork ? &*fork_record_ : &record();
  input.request = request;
  input.inventory = round_.View(members());
  input.unreadable = unreadable_;
  const Instant now = seams_.executor->Now();
  input.patience_is_over = now - round_.started_at() >= config_.inventory_patience;
  input.gone_is_sure = now - leader_.last_loss() >= config_.gone_grace;
  return input;
}

void Reconfigurer::StepInventory(const AttemptUuid& uuid, const RestoreRequest& request) {
  if (!leader_.members().current) return;
  if (request.mode == ResumeMode::kFork) {
    if (fork_record_of_ != request.fork_job) {
      ReadForkRecord(request.fork_job);
      return;
    }
    if (!fork_record_.has_value()) {
      fork_record_of_ = JobName();
      callers_.Fail(uuid, NotFound("there is no job " + request.fork_job.value + " to fork"));
      return;
    }
    if (fork_record_->token_digest() != record().token_digest()) {
      fork_record_of_ = JobName();
      callers_.Fail(uuid, PermissionDenied("job " + request.fork_job.value +
                                           " belongs to another token than job " + record().job() +
                                           ": a fork needs the token of both"));
      return;
    }
  }
  const AttemptUuid closing = request.mode == ResumeMode::kFork ? AttemptUuid() : uuid;
  if (!round_.IsFor(closing, request.fork_job)) {
    unreadable_.clear();
    waiting_plan_ = Plan();
    next_plan_ = Instant();
    round_.Start(closing, request.fork_job);
    round_.Step(members());
  }
  const Instant now = seams_.executor->Now();
  if (now < next_plan_ && round_.UnansweredCount(members()) > 0) return;
  next_plan_ = now + kPlanInterval;
  const PlanInput input = MakePlanInput(request);
  Plan plan = PlanRestore(input);
  switch (plan.outcome) {
    case PlanOutcome::kWait:
      waiting_plan_ = std::move(plan);
      break;
    case PlanOutcome::kRefused:
      leader_.timeline().Add(timeline::kReconfigureFailed, plan.why, generation());
      round_.Stop();
      callers_.Fail(uuid, plan.error);
      break;
    case PlanOutcome::kDecided:
      leader_.timeline().Add(timeline::kInventory,
                             std::to_string(input.inventory.answered.size()) + " of " +
                                 std::to_string(members().size()) + " nodes answered",
                             generation());
      Decide(uuid, request, plan);
      break;
  }
}

void Reconfigurer::Decide(const AttemptUuid& uuid, const RestoreRequest& request,
                          const Plan& plan) {
  busy_ = Busy::kDeciding;
  const auto on_decided = [this, uuid, request, plan](const Status& status) {
    busy_ = Busy::kNo;
    if (status.ok() && IsDecided(uuid)) {
      round_.Stop();
      LearnSources();
      decided_request_ = request;
      sources_ = plan.sources;
      sources_known_ = true;
      shard_of_rank_.clear();
      if (const CallGroup* group = callers_.Find(uuid); group != nullptr) {
        for (const auto& [rank, caller] : group->callers) {
          shard_of_rank_[rank] = ShardId(caller.request.shard_id());
        }
      }
      fork_record_of_ = JobName();
      announced_.clear();
      leader_.timeline().Add(timeline::kDecided, plan.why, generation());
    } else if (!status.ok() && status.code() != StatusCode::kUnavailable && !IsDecided(uuid)) {
      callers_.Fail(uuid, status);
    }
    // Refused, but decided all the same: an earlier try of it, whose answer was lost, had landed.
    // Its ranks get that decision, as from a new leader.
    leader_.Poke();
  };
  leader_.Apply(
      [uuid, world_size = request.world_size, base = plan.base](const JobRecord& record) {
        return replication::Decide(record, uuid, world_size, base);
      },
      lifetime_.Wrap(on_decided));
}

// ---- After the decision -----------------------------------------------------------------------

bool Reconfigurer::IsDecided(const AttemptUuid& uuid) const {
  return !uuid.empty() && record().closing_uuid().empty() &&
         record().decision().uuid() == uuid.value;
}

// Takes note of another decision in the record, by this leader or an earlier one.
void Reconfigurer::LearnSources() {
  const AttemptUuid uuid(record().decision().uuid());
  const Attempt attempt(record().decision().attempt());
  if (uuid == decided_uuid_ && attempt == decided_attempt_) return;
  if (uuid != decided_uuid_) {
    unreadable_.clear();
    shard_of_rank_.clear();
    decided_request_ = RestoreRequest();
  }
  decided_uuid_ = uuid;
  decided_attempt_ = attempt;
  sources_known_ = record().decision().fresh();
  sources_.clear();
  restores_.clear();
  missed_since_.clear();
  restore_error_ = Status::Ok();
  move_needed_ = false;
}

bool Reconfigurer::SourcesKnown() {
  if (sources_known_) return true;
  if (!leader_.members().current || busy_ != Busy::kNo || move_needed_) return false;
  const JobName base_job(record().decision().base_job());
  if (!round_.IsFor(AttemptUuid(), base_job)) round_.Start(AttemptUuid(), base_job);
  const bool all_answered = round_.UnansweredCount(members()) == 0;
  if (!all_answered && seams_.executor->Now() < next_plan_) return false;
  next_plan_ = seams_.executor->Now() + kPlanInterval;
  const replication::wire::RecordedDecision& decision = record().decision();
  sources_ =
      SourcesOf(round_.View(members()),
                {Generation(decision.base_generation()), backstay::Step(decision.base_step())},
                decision.base_root());
  // With every node's word and still not whole: the ranks will say what cannot be read.
  sources_known_ = !sources_.empty() || all_answered;
  if (sources_known_) round_.Stop();
  return sources_known_;
}

replication::wire::Decision Reconfigurer::MakeDecision() const {
  replication::wire::Decision decision = replication::DescribeDecision(record());
  for (const replication::wire::ShardSource& source : sources_) *decision.add_shards() = source;
  return decision;
}

void Reconfigurer::AnswerDecided() {
  CallGroup* group = callers_.Find(AttemptUuid(record().decision().uuid()));
  if (group == nullptr || !IsDecided(AttemptUuid(record().decision().uuid()))) return;
  const auto waits = [](const auto& entry) { return entry.second.reply != nullptr; };
  if (std::ranges::none_of(group->callers, waits) || !SourcesKnown()) return;
  replication::wire::Reply reply;
  *reply.mutable_reconfigure() = MakeDecision();
  for (auto& [rank, caller] : group->callers) {
    shard_of_rank_[rank] = ShardId(caller.request.shard_id());
    if (caller.reply) std::exchange(caller.reply, nullptr)(reply);
  }
  if (decided_request_.world_size == 0 && group->AllPresent()) {
    const Result<RestoreRequest> request = CommonRequest(*group);
    if (request.ok()) decided_request_ = *request;
  }
}

AttemptUuid Reconfigurer::UnderWay() const {
  for (const auto& [uuid, group] : callers_.groups()) {
    if (!IsDecided(uuid)) return uuid;
  }
  if (!record().closing_uuid().empty()) return AttemptUuid(record().closing_uuid());
  return record().decision().resumed() ? AttemptUuid() : decided_uuid_;
}

void Reconfigurer::FillStatus(replication::wire::LeaderStatusReply* status) const {
  if (!leader_.loaded() || !leader_.exists() || record().ended()) return;
  const AttemptUuid uuid = UnderWay();
  if (uuid.empty()) return;
  status->set_waiting_uuid(uuid.value);
  status->set_waiting_since_unix_ms(under_way_since_unix_ms_);
  if (const auto group = callers_.groups().find(uuid);
      group != callers_.groups().end() && !IsDecided(uuid)) {
    for (const uint32_t rank : group->second.MissingRanks()) status->add_missing_ranks(rank);
    return;
  }
  for (uint32_t rank = 0; rank < record().world_size(); ++rank) {
    // Closing, and nobody waits: all have yet to call (again). Decided: to verify their bytes.
    const auto it = IsDecided(uuid) ? restores_.find(rank) : restores_.end();
    if (it == restores_.end() || !it->second.ok()) status->add_missing_ranks(rank);
  }
}

}  // namespace backstay::recovery
