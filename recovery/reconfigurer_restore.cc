// What Reconfigurer does after its decision: hears how the ranks' restores went, and lets all
// resume, moves all to an older snapshot, or ends the attempt.
#include <algorithm>
#include <utility>

#include "recovery/reconfigurer.h"
#include "replication/job_record.h"
#include "replication/leader_status.h"
#include "replication/wire_convert.h"

namespace backstay::recovery {

namespace timeline = replication::timeline;
using replication::wire::JobRecord;
using replication::wire::Request;

void Reconfigurer::OnReportVerified(const Request& request, replication::ReplyFunction reply) {
  const replication::wire::ReportVerified& report = request.report_verified();
  if (!leader_.loaded() || !leader_.exists()) {
    reply(Unavailable("the leader of job " + job_.value + " does not know the job yet"));
    return;
  }
  const AttemptUuid uuid(report.uuid());
  if (!IsDecided(uuid)) {
    reply(
        Stale("job " + job_.value + ": reconfiguration " + uuid.value + " is not the current one"));
    return;
  }
  LearnSources();
  // Which copies a rank could not read, the sources say: a new leader asks for them first.
  const bool any_unreadable =
      std::ranges::any_of(report.ranks(), [](const auto& restore) { return restore.unreadable(); });
  if (any_unreadable && !SourcesKnown()) {
    reply(Unavailable("the leader of job " + job_.value +
                      " does not know yet who holds what its ranks could not read"));
    leader_.Poke();
    return;
  }
  const NodeInstance from = replication::FromWire(request.header().from());
  if (report.attempt() == decided_attempt_.value && !record().decision().resumed()) {
    TakeRestores(from, report);
  }
  if (report.attempt() > decided_attempt_.value) {
    reply(Unavailable("attempt " + std::to_string(report.attempt()) + " of reconfiguration " +
                      uuid.value + " is not known to the leader yet"));
    return;
  }
  HeldReport& held = held_reports_[{from.node, Attempt(report.attempt())}];
  if (held.reply) held.reply(Unavailable("the report was repeated"));
  held.reply = std::move(reply);
  held.uuid = uuid;
  held.attempt = Attempt(report.attempt());
  held.until = seams_.executor->Now() + kReportHold;
  leader_.Poke();
}

ShardId Reconfigurer::ShardOfRank(const replication::wire::RankRestore& restore) const {
  if (!restore.shard_id().empty()) return ShardId(restore.shard_id());
  const auto it = shard_of_rank_.find(restore.rank());
  if (it != shard_of_rank_.end()) return it->second;
  for (const replication::wire::ShardSource& source : sources_) {
    if (source.rank() == restore.rank()) return ShardId(source.shard_id());
  }
  return ShardId(std::to_string(restore.rank()));
}

void Reconfigurer::TakeRestores(const NodeInstance& from,
                                const replication::wire::ReportVerified& report) {
  for (const replication::wire::RankRestore& restore : report.ranks()) {
    if (restore.rank() >= record().world_size()) continue;
    const auto it = restores_.find(restore.rank());
    const bool is_news = it == restores_.end() || it->second.ok() != restore.ok() ||
                         it->second.unreadable() != restore.unreadable();
    // Verified is verified: a late report of an earlier failure takes nothing back.
    if (it != restores_.end() && it->second.ok() && !restore.ok() && !restore.unreadable()) {
      continue;
    }
    restores_[restore.rank()] = restore;
    if (is_news) {
      const int64_t at = restore.done_unix_ms() != 0 ? restore.done_unix_ms()
                                                     : seams_.executor->clock().UnixMillis();
      leader_.timeline().AddAt(at, restore.ok() ? timeline::kRestored : timeline::kRestoreFailed,
                               replication::DescribeRestore(restore, from.node), generation());
    }
    if (restore.unreadable() && !record().decision().fresh()) {
      const replication::wire::RecordedDecision& decision = record().decision();
      const SnapshotId base{Generation(decision.base_generation()),
                            backstay::Step(decision.base_step())};
      const ShardId shard = ShardOfRank(restore);
      for (const replication::wire::ShardSource& source : sources_) {
        if (source.shard_id() != shard.value) continue;
        for (const replication::wire::Instance& holder : source.holders()) {
          unreadable_.insert({base, shard, replication::FromWire(holder)});
        }
      }
      move_needed_ = true;
    }
  }
}

void Reconfigurer::StepRestore() {
  if (!IsDecided(decided_uuid_) || record().decision().resumed()) return;
  if (!restore_error_.ok()) return;
  if (const std::optional<uint32_t> rank = FindGoneRank(); rank.has_value()) {
    restore_error_ = Stale("job " + job_.value + ": reconfiguration " + decided_uuid_.value +
                           " cannot resume, for the trainer of rank " + std::to_string(*rank) +
                           " is gone before it had its bytes: reconfigure again, with a new token");
    leader_.timeline().Add(timeline::kReconfigureFailed, restore_error_.message(), generation());
    return;
  }
  if (move_needed_) return StepMove();
  if (restores_.size() != record().world_size()) return;
  const bool all_ok =
      std::ranges::all_of(restores_, [](const auto& entry) { return entry.second.ok(); });
  if (all_ok) Resume();
}

// The others would wait for it until their deadlines, and whoever takes its place needs them to
// call again. Level-triggered, so that it holds for a leader that was not there when they called.
// Only when every node has said what runs there: silence is not absence.
std::optional<uint32_t> Reconfigurer::FindGoneRank() {
  const Instant now = seams_.executor->Now();
  if (now < next_gone_check_) return std::nullopt;
  next_gone_check_ = now + kSweepInterval;
  const auto heard = [this](const auto& entry) {
    return leader_.trainers().Heard(entry.second.record.instance);
  };
  if (!leader_.members().current || !std::ranges::all_of(members(), heard)) return std::nullopt;
  const std::set<uint32_t> restoring = leader_.trainers().RanksRestoring(decided_uuid_);
  for (uint32_t rank = 0; rank < record().world_size(); ++rank) {
    const auto restore = restores_.find(rank);
    const bool verified = restore != restores_.end() && restore->second.ok();
    if (verified || restoring.contains(rank)) {
      missed_since_.erase(rank);
      continue;
    }
    const Instant since = missed_since_.emplace(rank, now).first->second;
    if (now - since >= 2 * config_.announce_interval) return rank;
  }
  return std::nullopt;
}

void Reconfigurer::Resume() {
  busy_ = Busy::kResuming;
  const auto on_resumed = [this](const Status& status) {
    busy_ = Busy::kNo;
    if (status.ok()) {
      leader_.timeline().Add(timeline::kResumed,
                             "all ranks, attempt " + std::to_string(decided_attempt_.value),
                             generation());
    }
    leader_.Poke();
  };
  leader_.Apply(
      [uuid = decided_uuid_, attempt = decided_attempt_](const JobRecord& record) {
        return replication::MarkResumed(record, uuid, attempt);
      },
      lifetime_.Wrap(on_resumed));
}

// Some chunk has no good copy: all ranks move to an older base, by a new inventory.
void Reconfigurer::StepMove() {
  if (decided_request_.world_size == 0) return;  // Until the ranks have called this leader again.
  if (!leader_.members().current) return;
  const JobName base_job(record().decision().base_job());
  if (!base_job.empty() && fork_record_of_ != base_job) {
    ReadForkRecord(base_job);
    return;
  }
  if (!base_job.empty() && !fork_record_.has_value()) {
    restore_error_ = NotFound("job " + base_job.value + ", which was forked, is gone");
    return;
  }
  if (!round_.IsFor(AttemptUuid(), base_job)) {
    waiting_plan_ = Plan();
    next_plan_ = Instant();
    round_.Start(AttemptUuid(), base_job);
    round_.Step(members());
  }
  const Instant now = seams_.executor->Now();
  if (now < next_plan_ && round_.UnansweredCount(members()) > 0) return;
  next_plan_ = now + kPlanInterval;
  Plan plan = PlanRestore(MakePlanInput(decided_request_));
  switch (plan.outcome) {
    case PlanOutcome::kWait:
      waiting_plan_ = std::move(plan);
      break;
    case PlanOutcome::kRefused:
      round_.Stop();
      restore_error_ = plan.error;
      leader_.timeline().Add(timeline::kReconfigureFailed, plan.why, generation());
      break;
    case PlanOutcome::kDecided:
      Move(plan);
      break;
  }
}

void Reconfigurer::Move(const Plan& plan) {
  busy_ = Busy::kMoving;
  const auto on_moved = [this, plan](const Status& status) {
    busy_ = Busy::kNo;
    if (status.ok()) {
      round_.Stop();
      LearnSources();
      sources_ = plan.sources;
      sources_known_ = true;
      leader_.timeline().Add(timeline::kNextAttempt, plan.why, generation());
    } else if (status.code() == StatusCode::kInvalidArgument) {
      restore_error_ = status;
    }
    leader_.Poke();
  };
  leader_.Apply(
      [uuid = decided_uuid_, attempt = decided_attempt_, base = plan.base](const JobRecord& r) {
        return replication::NextAttempt(r, uuid, attempt, base);
      },
      lifetime_.Wrap(on_moved));
}

void Reconfigurer::AnswerReports() {
  if (held_reports_.empty()) return;
  const bool is_decided = IsDecided(decided_uuid_);
  const bool resumed = is_decided && record().decision().resumed();
  const Instant now = seams_.executor->Now();
  for (auto it = held_reports_.begin(); it != held_reports_.end();) {
    HeldReport& held = it->second;
    const bool moved = held.attempt < decided_attempt_ && held.uuid == decided_uuid_;
    if (!is_decided || held.uuid != decided_uuid_) {
      held.reply(Stale("job " + job_.value + ": reconfiguration " + held.uuid.value +
                       " is not the current one"));
    } else if (!restore_error_.ok()) {
      held.reply(restore_error_);
    } else if ((moved ? SourcesKnown() : resumed) || now >= held.until) {
      replication::wire::Reply reply;
      // Of an earlier attempt: the ranks have other bytes than those that have resumed.
      reply.mutable_report_verified()->set_resumed(resumed && !moved);
      if (moved && sources_known_) {
        *reply.mutable_report_verified()->mutable_decision() = MakeDecision();
      }
      held.reply(std::move(reply));
    } else {
      ++it;
      continue;
    }
    it = held_reports_.erase(it);
  }
}

}  // namespace backstay::recovery
