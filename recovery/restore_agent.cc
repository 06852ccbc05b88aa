#include "recovery/restore_agent.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/text.h"
#include "replication/job_limits.h"
#include "replication/wire_convert.h"

namespace backstay::recovery {

namespace wire = replication::wire;
using replication::ClaimAgent;
using replication::DecisionReply;
using replication::FinishRestoreReply;

RestoreAgent::RestoreAgent(Executor& executor, Random& random, replication::JobAgent& job,
                           replication::FetchAgent& fetches, replication::SnapshotReader& snapshots,
                           LinkOf link_of)
    : executor_(executor),
      random_(random),
      job_(job),
      fetches_(fetches),
      snapshots_(snapshots),
      link_of_(std::move(link_of)) {}

RestoreAgent::~RestoreAgent() {
  executor_.CancelTimer(report_timer_);
  executor_.CancelTimer(watch_timer_);
  for (auto& [id, restore] : restores_) executor_.CancelTimer(restore.deadline_timer);
}

AttemptUuid RestoreAgent::NewAttempt() { return AttemptUuid(random_.Hex128()); }

// ---- The decision -------------------------------------------------------------------------------

void RestoreAgent::Reconfigure(const Caller& caller, const replication::ReconfigureRequest& request,
                               Completion<DecisionReply> done) {
  const Result<ClaimAgent*> claim = job_.FindClaim(caller.shard, caller.claim);
  Status refused = claim.status();
  if (refused.ok() && request.uuid.empty()) {
    refused = InvalidArgument("a reconfiguration of job " + job_.job().value +
                              " without a token: one rank gets it from NewAttempt() and gives it "
                              "to the others");
  }
  // No message can carry another one: this node would wait for an answer to what it cannot send.
  if (refused.ok() && (request.uuid.value.size() > replication::kUuidBytesMax ||
                       !IsPrintableAscii(request.uuid.value))) {
    refused =
        InvalidArgument("a reconfiguration's token is 1 to " +
                        std::to_string(replication::kUuidBytesMax) + " bytes of printable ASCII");
  }
  if (refused.ok() && request.rank.value >= request.world_size) {
    refused = InvalidArgument("rank " + std::to_string(request.rank.value) +
                              " is not in a world of " + std::to_string(request.world_size));
  }
  // What it restores it will save: under the number and the shard that it has claimed. A world of
  // another size is refused by the leader, which says more.
  if (refused.ok() && request.world_size == (*claim)->claim().world_size &&
      (request.shard != caller.shard || request.rank != (*claim)->claim().rank)) {
    refused = InvalidArgument("rank " + std::to_string(request.rank.value) + " with shard " +
                              request.shard.value + " asks what to restore, but rank " +
                              std::to_string((*claim)->claim().rank.value) + " with shard " +
                              caller.shard.value + " is registered: register anew first");
  }
  if (!refused.ok()) {
    executor_.Post([done, refused] { done(refused); });
    return;
  }
  const Duration timeout = std::clamp(request.timeout, Duration::zero(), Duration(kTimeoutMax));
  wire::Request message;
  wire::Reconfigure& body = *message.mutable_reconfigure();
  body.set_uuid(request.uuid.value);
  body.set_rank(static_cast<uint32_t>(request.rank.value));
  body.set_world_size(request.world_size);
  body.set_shard_id(request.shard.value);
  body.set_mode(static_cast<uint32_t>(request.mode));
  body.set_exact_step(request.exact_step.value);
  body.set_drop_state(request.drop_state);
  body.set_fork_job(request.fork_job.value);
  body.set_timeout_ms(static_cast<uint32_t>(ToMillis(timeout)));
  body.set_has_old_rank(request.has_old_rank);
  body.set_old_rank(static_cast<uint32_t>(request.old_rank.value));
  body.set_old_generation(request.old_generation.value);
  body.set_trainer((*claim)->trainer());
  body.set_call((*claim)->BeginRestoring(request.uuid, request.rank));
  // A rank's later call takes the place of its earlier one.
  if (const auto earlier = calls_.find(caller.shard); earlier != calls_.end()) {
    job_.leader().Cancel(earlier->second.call);
    executor_.Post([superseded = std::move(earlier->second.done)] {
      superseded(Stale("a later Reconfigure of this rank took the place of this one"));
    });
    calls_.erase(earlier);
  }
  const uint64_t call = job_.leader().Call(
      std::move(message), executor_.Now() + timeout + kLeaderGrace,
      lifetime_.Wrap([this, caller, uuid = request.uuid,
                      shard = request.shard](const Result<wire::Reply>& reply) {
        const Completion<DecisionReply> answer = std::move(calls_.at(caller.shard).done);
        calls_.erase(caller.shard);
        if (!reply.ok()) {
          EndRestoring(caller, uuid);
          return answer(reply.status());
        }
        Remember(reply->reconfigure());
        answer(ToReply(reply->reconfigure(), shard));
      }));
  calls_[caller.shard] = {call, caller.claim, std::move(done)};
  WatchClaims();
}

// A trainer that is gone, or was replaced, is not counted among those who wait any more.
void RestoreAgent::WatchClaims() {
  if (watch_timer_ != kNoTimer || (calls_.empty() && restores_.empty())) return;
  watch_timer_ = executor_.RunAfter(kClaimCheckInterval, lifetime_.Wrap([this] {
    watch_timer_ = kNoTimer;
    for (auto it = calls_.begin(); it != calls_.end();) {
      const Status claimed = job_.FindClaim(it->first, it->second.claim).status();
      if (claimed.ok()) {
        ++it;
        continue;
      }
      job_.leader().Cancel(it->second.call);
      executor_.Post([done = std::move(it->second.done), claimed] { done(claimed); });
      it = calls_.erase(it);
    }
    std::vector<std::pair<uint64_t, Status>> gone;
    for (const auto& [id, restore] : restores_) {
      const Status claimed = job_.FindClaim(restore.caller.shard, restore.caller.claim).status();
      if (!claimed.ok()) gone.emplace_back(id, claimed);
    }
    for (const auto& [id, why] : gone) Finish(id, why);
    WatchClaims();
  }));
}

// The rank got no decision: the leader is not to wait for it.
void RestoreAgent::EndRestoring(const Caller& caller, const AttemptUuid& uuid) {
  const Result<ClaimAgent*> claim = job_.FindClaim(caller.shard, caller.claim);
  if (!claim.ok() || (*claim)->restoring_uuid() != uuid) return;
  (*claim)->EndRestoring();
}

void RestoreAgent::Remember(const wire::Decision& decision) {
  std::erase_if(decisions_, [&](const wire::Decision& known) {
    return known.uuid() == decision.uuid() && known.attempt() == decision.attempt();
  });
  decisions_.push_back(decision);
  if (decisions_.size() > kDecisionsMax) decisions_.erase(decisions_.begin());
}

const wire::Decision* RestoreAgent::FindDecision(const AttemptUuid& uuid, Attempt attempt) const {
  for (const wire::Decision& decision : decisions_) {
    if (decision.uuid() == uuid.value && decision.attempt() == attempt.value) return &decision;
  }
  return nullptr;
}

DecisionReply RestoreAgent::ToReply(const wire::Decision& decision, const ShardId& shard) const {
  DecisionReply reply;
  reply.uuid = AttemptUuid(decision.uuid());
  reply.generation = Generation(decision.generation());
  reply.attempt = Attempt(decision.attempt());
  reply.fresh = decision.fresh();
  reply.base = replication::FromWire(decision.base());
  reply.base_root = decision.base_root();
  reply.why = decision.why();
  reply.shard = shard;
  reply.base_committed = decision.base_committed();
  reply.base_job = JobName(decision.base_job());
  return reply;
}

// ---- The bytes ----------------------------------------------------------------------------------

void RestoreAgent::Fetch(const Caller& caller, const replication::FetchRequest& request,
                         Completion<replication::FetchReply> done) {
  const Result<ClaimAgent*> claim = job_.FindClaim(caller.shard, caller.claim);
  if (!claim.ok()) {
    executor_.Post([done, why = claim.status()] { done(why); });
    return;
  }
  replication::FetchAgent::OpenRequest open;
  open.name = {request.job.empty() ? job_.job() : request.job, request.snapshot, request.shard};
  open.whole = request.whole;
  // Another job's bytes are this job's only to read; its own copies begin with its first save.
  open.for_restore = request.for_restore && open.name.job == job_.job();
  if (open.for_restore && request.shard == caller.shard) open.own = (*claim)->reservation();
  if (request.for_restore && request.shard == caller.shard) {
    FetchBegun& begun = fetches_begun_[caller.shard];
    if (begun.name != open.name) begun = {open.name, executor_.Now()};  // A retry began earlier.
  }
  // The newest decision with this base says where the bytes are.
  for (auto decision = decisions_.rbegin(); decision != decisions_.rend(); ++decision) {
    const JobName base_job =
        decision->base_job().empty() ? job_.job() : JobName(decision->base_job());
    if (base_job != open.name.job || replication::FromWire(decision->base()) != request.snapshot) {
      continue;
    }
    for (const wire::ShardSource& source : decision->shards()) {
      if (source.shard_id() != request.shard.value) continue;
      open.digest = Hash128::FromBytes(source.digest());
      for (const wire::Instance& holder : source.holders()) {
        open.sources.push_back(replication::FromWire(holder));
      }
      return fetches_.Open(std::move(open), std::move(done));
    }
  }
  replication::LeaderLink* const link = link_of_(open.name.job);
  if (link == nullptr) {
    executor_.Post([done, job = open.name.job] {
      done(Unavailable("job " + job.value + " cannot be asked for now"));
    });
    return;
  }
  const ShardName name = open.name;
  snapshots_.LocateShard(
      *link, name,
      lifetime_.Wrap([this, open = std::move(open),
                      done](const Result<replication::ShardWhereabouts>& where) mutable {
        if (!where.ok()) return done(where.status());
        open.name = where->name;  // The newest snapshot, if none was named.
        open.digest = where->digest;
        open.sources = where->holders;
        fetches_.Open(std::move(open), done);
      }));
}

// ---- The end ------------------------------------------------------------------------------------

void RestoreAgent::FinishRestore(const Caller& caller,
                                 const replication::FinishRestoreRequest& request,
                                 Completion<FinishRestoreReply> done) {
  Status refused = job_.FindClaim(caller.shard, caller.claim).status();
  const wire::Decision* decision = FindDecision(request.uuid, request.attempt);
  if (refused.ok() && decision == nullptr) {
    refused = Stale("attempt " + std::to_string(request.attempt.value) + " of reconfiguration " +
                    request.uuid.value +
                    " is not one that this node was told of: call "
                    "Reconfigure again");
  }
  if (refused.ok() && restores_.size() >= kRestoresMax) {
    refused = NoSpace("too many restores of job " + job_.job().value + " wait on this node");
  }
  if (!refused.ok()) {
    executor_.Post([done, refused] { done(refused); });
    return;
  }
  // A repeated call takes the place of the earlier one.
  for (auto& [id, restore] : restores_) {
    if (restore.caller.shard != caller.shard) continue;
    Finish(id, Stale("a later FinishRestore took the place of this one"));
    break;
  }
  const uint64_t id = ++last_restore_;
  Restore& restore = restores_[id];
  restore.caller = caller;
  restore.uuid = request.uuid;
  restore.attempt = request.attempt;
  restore.done = std::move(done);
  FillReport(caller, request, &restore.report);
  fetches_begun_.erase(caller.shard);
  const Duration timeout = std::clamp(request.timeout, Duration::zero(), Duration(kTimeoutMax));
  restore.deadline_timer = executor_.RunAfter(
      timeout, lifetime_.Wrap([this, id, attempt = request.attempt, uuid = request.uuid] {
        Finish(id, DeadlineExceeded("the leader did not record in time that attempt " +
                                    std::to_string(attempt.value) + " of reconfiguration " +
                                    uuid.value +
                                    " has resumed: other ranks are not ready, or "
                                    "there is no leader"));
      }));
  // The leader's word may have been here before the rank's.
  const replication::JobView& view = job_.view();
  if (view.resumed_attempt == request.attempt && view.attempt_uuid == request.uuid) {
    return Resumed(request.uuid, request.attempt);
  }
  Report({request.uuid, request.attempt});
  WatchClaims();
}

void RestoreAgent::FillReport(const Caller& caller,
                              const replication::FinishRestoreRequest& request,
                              wire::RankRestore* report) const {
  const wire::Decision& decision = *FindDecision(request.uuid, request.attempt);
  const ClaimAgent& claim = **job_.FindClaim(caller.shard, caller.claim);
  report->set_rank(static_cast<uint32_t>(claim.claim().rank.value));
  report->set_trainer(claim.trainer());
  report->set_shard_id(caller.shard.value);
  report->set_ok(request.ok);
  report->set_error(request.error);
  report->set_bytes(request.bytes);
  report->set_done_unix_ms(executor_.clock().UnixMillis());
  const ShardName name{decision.base_job().empty() ? job_.job() : JobName(decision.base_job()),
                       replication::FromWire(decision.base()), caller.shard};
  // All that the rank waited for: the bytes' way here, their check, and the copy into its state.
  if (const auto begun = fetches_begun_.find(caller.shard);
      begun != fetches_begun_.end() && begun->second.name == name) {
    report->set_nanoseconds(static_cast<uint64_t>((executor_.Now() - begun->second.at).count()));
  }
  if (const std::optional<replication::FetchAgent::Stats> stats = fetches_.StatsOf(name)) {
    // Only bytes that nobody has call for another base. A rank that failed otherwise tries again:
    // after this attempt, or in it.
    const StatusCode outcome = stats->outcome.code();
    report->set_unreadable(!request.ok &&
                           (outcome == StatusCode::kCorrupt || outcome == StatusCode::kNotFound));
    report->set_bytes_remote(stats->bytes_remote);
    for (const NodeId& source : stats->sources) report->add_sources(source.value);
  }
}

void RestoreAgent::Report(const DecisionKey& key) {
  wire::Request request;
  wire::ReportVerified& report = *request.mutable_report_verified();
  report.set_uuid(key.first.value);
  report.set_attempt(key.second.value);
  for (const auto& [id, restore] : restores_) {
    if (restore.uuid == key.first && restore.attempt == key.second) {
      *report.add_ranks() = restore.report;
    }
  }
  if (report.ranks_size() == 0) return;
  // The newest report says all: the leader keeps one of each node and attempt.
  if (const auto earlier = report_calls_.find(key); earlier != report_calls_.end()) {
    job_.leader().Cancel(earlier->second);
  }
  report_calls_[key] = job_.leader().Call(
      std::move(request), executor_.Now() + replication::LeaderLink::kAttemptTimeout,
      lifetime_.Wrap([this, key](Result<wire::Reply> reply) {
        report_calls_.erase(key);
        OnReported(key, std::move(reply));
      }));
}

void RestoreAgent::OnReported(const DecisionKey& key, Result<wire::Reply> reply) {
  if (reply.ok()) {
    const wire::ReportVerifiedReply& body = reply->report_verified();
    if (body.has_decision() && body.decision().uuid() == key.first.value &&
        body.decision().attempt() > key.second.value) {
      return MoveOn(body.decision());
    }
    if (body.resumed()) return Resumed(key.first, key.second);
    return ReportLater();  // Others are not ready.
  }
  switch (reply.status().code()) {
    case StatusCode::kDeadline:
    case StatusCode::kUnavailable:
    case StatusCode::kUnknownOutcome:
      return ReportLater();
    default:
      return FinishAll(key, reply.status());
  }
}

void RestoreAgent::ReportLater() {
  if (report_timer_ != kNoTimer || restores_.empty()) return;
  report_timer_ = executor_.RunAfter(kReportInterval, lifetime_.Wrap([this] {
    report_timer_ = kNoTimer;
    std::set<DecisionKey> keys;
    for (const auto& [id, restore] : restores_) keys.insert({restore.uuid, restore.attempt});
    for (const DecisionKey& key : keys) Report(key);
  }));
}

void RestoreAgent::OnView(const replication::JobView& view) {
  if (view.resumed_attempt.value != 0) Resumed(view.attempt_uuid, view.resumed_attempt);
}

void RestoreAgent::Resumed(const AttemptUuid& uuid, Attempt attempt) {
  const wire::Decision* decision = FindDecision(uuid, attempt);
  if (decision == nullptr) return;
  const Generation generation(decision->generation());
  std::vector<uint64_t> finished;
  for (const auto& [id, restore] : restores_) {
    if (restore.uuid == uuid && restore.attempt == attempt) finished.push_back(id);
  }
  if (finished.empty()) return;
  job_.OnResumed(generation);
  for (const uint64_t id : finished) {
    const Caller& caller = restores_.at(id).caller;
    const Result<ClaimAgent*> claim = job_.FindClaim(caller.shard, caller.claim);
    if (!claim.ok()) {
      Finish(id, claim.status());
      continue;
    }
    // It resumed with what this trainer, or the one before it, had verified then.
    if (!restores_.at(id).report.ok()) {
      Finish(id, Stale("attempt " + std::to_string(attempt.value) + " of reconfiguration " +
                       uuid.value +
                       " has resumed, and this rank has not got its state: "
                       "reconfigure with a new token"));
      continue;
    }
    (*claim)->EnterGeneration(generation);
    Finish(id, FinishRestoreReply{.resumed = true, .next = {}});
  }
}

void RestoreAgent::MoveOn(const wire::Decision& next) {
  Remember(next);
  std::vector<uint64_t> behind;
  for (const auto& [id, restore] : restores_) {
    if (restore.uuid.value == next.uuid() && restore.attempt.value < next.attempt()) {
      behind.push_back(id);
    }
  }
  for (const uint64_t id : behind) {
    Finish(id, FinishRestoreReply{.resumed = false,
                                  .next = ToReply(next, restores_.at(id).caller.shard)});
  }
}

void RestoreAgent::FinishAll(const DecisionKey& key, const Status& why) {
  std::vector<uint64_t> ended;
  for (const auto& [id, restore] : restores_) {
    if (restore.uuid == key.first && restore.attempt == key.second) ended.push_back(id);
  }
  for (const uint64_t id : ended) Finish(id, why);
}

void RestoreAgent::Finish(uint64_t id, Result<FinishRestoreReply> result) {
  const auto found = restores_.find(id);
  executor_.CancelTimer(found->second.deadline_timer);
  executor_.Post(
      [done = std::move(found->second.done), result = std::move(result)] { done(result); });
  restores_.erase(found);
}

}  // namespace backstay::recovery
