#include "replication/job_agent.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "replication/wire_convert.h"

namespace backstay::replication {

JobAgent::JobAgent(JobName job, uint32_t chunk_bytes, const AgentParts& parts, PeerRouter& router,
                   store::ShardVerifier& verifier, transport::Puller& puller,
                   LeaderLink::Locator locator)
    : job_(std::move(job)),
      chunk_bytes_(chunk_bytes),
      parts_(parts),
      router_(router),
      leader_(job_, parts.executor, parts.peers, std::move(locator)),
      holder_(job_, chunk_bytes, parts.executor, parts.peers, parts.pool, parts.table, verifier,
              parts.exporter, puller) {
  holder_.OnQuarantine([this](const ShardName& name) { OnQuarantine(name); });
  ScheduleReport();
}

JobAgent::~JobAgent() { parts_.executor.CancelTimer(report_timer_); }

Status JobAgent::CheckOpen(Generation generation) const {
  const std::string what =
      "generation " + std::to_string(generation.value) + " of job " + job_.value;
  if (generation.value == 0) {
    return Stale("the trainer is in no generation of job " + job_.value +
                 " yet: it has to reconfigure first");
  }
  if (view_.ended) return Stale("job " + job_.value + " has ended");
  if (generation <= fenced_) return Stale(what + " was fenced");
  if (generation <= promise_generation_ || generation < view_.generation ||
      (generation == view_.generation && view_.closing())) {
    return Stale(what + " is over: the trainer has to reconfigure");
  }
  if (view_.IsOpen(generation) || generation == resumed_) return Status::Ok();
  return Stale(what + " has not resumed yet");
}

// ---- Trainers -----------------------------------------------------------------------------------

void JobAgent::Register(ProcessId process, const ShardClaim& claim, ClaimAgent::Emit emit,
                        Completion<ClaimAgent::Registered> done) {
  if (!claims_.contains(claim.shard) && claims_.size() >= kClaimsMax) {
    parts_.executor.Post(
        [done, status = NoSpace(std::to_string(kClaimsMax) + " shards of job " + job_.value +
                                " are claimed on this node already")] { done(status); });
    return;
  }
  std::unique_ptr<ClaimAgent>& agent = claims_[claim.shard];
  if (agent == nullptr) {
    agent = std::make_unique<ClaimAgent>(job_, claim.shard, chunk_bytes_, parts_, leader_, *this,
                                         [this] { ReportSoon(); });
  }
  agent->Register(process, claim, std::move(emit), std::move(done));
}

Result<ClaimAgent*> JobAgent::FindClaim(const ShardId& shard, ClaimNumber number) {
  const auto found = claims_.find(shard);
  if (found == claims_.end()) {
    return Stale("shard " + shard.value + " of job " + job_.value +
                 " is not claimed by this trainer any more: the job has ended, or the shard has "
                 "moved to another node");
  }
  BACKSTAY_RETURN_IF_ERROR(found->second->Check(number));
  return found->second.get();
}

void JobAgent::LeaveClaim(const ShardId& shard, ClaimNumber number) {
  if (const Result<ClaimAgent*> claim = FindClaim(shard, number); claim.ok()) (*claim)->Leave();
}

void JobAgent::ProcessExited(ProcessId process) {
  for (auto& [shard, claim] : claims_) claim->ProcessExited(process);
}

void JobAgent::Fence(Generation generation, const std::string& reason, int64_t seen_unix_ms,
                     Rank rank) {
  // Nothing after the present generation can be fenced: its trainers do not exist yet.
  if (generation.value == 0 || generation > std::max(view_.generation, resumed_)) return;
  fenced_ = std::max(fenced_, generation);
  for (auto& [shard, claim] : claims_) claim->saves().Fence(generation, reason);
  wire::Request request;
  wire::ReportFence& report = *request.mutable_report_fence();
  report.set_generation(generation.value);
  report.set_reason(reason);
  report.set_seen_unix_ms(seen_unix_ms);
  report.set_rank(static_cast<uint32_t>(rank.value));
  // For the timeline only: nothing waits for it.
  leader_.Call(std::move(request), parts_.executor.Now() + kFenceReportTimeout,
               [](Result<wire::Reply>) {});
}

void JobAgent::OnResumed(Generation generation) { resumed_ = std::max(resumed_, generation); }

// ---- Messages -----------------------------------------------------------------------------------

bool JobAgent::Handles(wire::Request::BodyCase kind) {
  switch (kind) {
    case wire::Request::kOffer:
    case wire::Request::kAck:
    case wire::Request::kReserve:
    case wire::Request::kRelease:
    case wire::Request::kJobState:
    case wire::Request::kInventory:
    case wire::Request::kReplicate:
    case wire::Request::kOpenShard:
    case wire::Request::kVerifyShard:
      return true;
    default:
      return false;
  }
}

void JobAgent::OnRequest(const wire::Request& request, ReplyFunction reply) {
  const wire::Header& header = request.header();
  switch (request.body_case()) {
    case wire::Request::kOffer: {
      const Generation generation(request.offer().shard().snapshot().generation());
      if (!request.offer().repair() && generation.value != 0 && generation <= promise_generation_) {
        return reply(Stale("generation " + std::to_string(generation.value) + " of job " +
                           job_.value + " is closing"));
      }
      return holder_.OnOffer(header, request.offer(), view_, std::move(reply));
    }
    case wire::Request::kAck:
      return OnAck(header, request.ack(), std::move(reply));
    case wire::Request::kReserve:
      return holder_.OnReserve(request.header(), request.reserve(), std::move(reply));
    case wire::Request::kRelease:
      return holder_.OnRelease(header, request.release(), std::move(reply));
    case wire::Request::kJobState:
      return OnJobState(header, request.job_state(), std::move(reply));
    case wire::Request::kInventory:
      return OnInventory(header, request.inventory(), std::move(reply));
    case wire::Request::kReplicate:
      return OnReplicate(request.replicate(), std::move(reply));
    case wire::Request::kOpenShard:
      return holder_.OnOpenShard(header, request.open_shard(), std::move(reply));
    case wire::Request::kVerifyShard:
      return holder_.OnVerifyShard(request.verify_shard(), std::move(reply));
    default:
      return reply(InvalidArgument("not a message for a job's node"));
  }
}

void JobAgent::OnAck(const wire::Header& header, const wire::Ack& ack, ReplyFunction reply) {
  const Result<ShardName> name = FromWire(ack.shard(), job_);
  const Result<Hash128> digest = DigestFromWire(ack.digest());
  if (!name.ok()) return reply(name.status());
  if (!digest.ok()) return reply(digest.status());
  const NodeInstance from = FromWire(header.from());
  if (const auto claim = claims_.find(name->shard); claim != claims_.end()) {
    claim->second->saves().OnAck(*name, from, *digest);
  }
  if (const auto repair = repairs_.find(*name); repair != repairs_.end()) {
    repair->second.replicator->OnAck(from, *digest);
  }
  reply(wire::Reply());
}

void JobAgent::OnJobState(const wire::Header& header, const wire::JobState& state,
                          ReplyFunction reply) {
  Result<JobView> decoded = DecodeJobState(header, state);
  if (!decoded.ok()) return reply(decoded.status());
  const bool older = decoded->revision < view_.revision ||
                     (decoded->revision == view_.revision && decoded->term < view_.term);
  if (!older) {
    view_ = std::move(decoded).value();
    if (view_.resumed_attempt.value != 0) OnResumed(view_.generation);
    if (view_.generation > promise_generation_) promise_uuid_ = AttemptUuid();
    if (view_.ended) {
      EndJob();
    } else {
      for (const auto& [snapshot, root] : view_.kept) {
        parts_.table.MarkCommitted(job_, snapshot, root);
      }
      holder_.OnView(view_);
      for (auto& [shard, claim] : claims_) claim->OnView(view_);
      LetGo();
    }
    if (view_observer_) view_observer_(view_);
  }
  wire::Reply answer;
  wire::JobStateReply& body = *answer.mutable_job_state();
  for (wire::ShardReport& report : Reports()) *body.add_shards() = std::move(report);
  for (wire::LiveTrainer& trainer : Trainers()) *body.add_trainers() = std::move(trainer);
  reply(std::move(answer));
}

void JobAgent::EndJob() {
  const Status why = Stale("job " + job_.value + " has ended");
  std::erase_if(claims_, [&](const auto& entry) { return entry.second->EndWithJob(why); });
  repairs_.clear();
  promised_.clear();
  holder_.OnView(view_);
  for (const store::Shard* shard : parts_.table.ShardsOf(job_)) {
    parts_.exporter.RevokeAll(shard->name);
  }
  parts_.table.DropJob(job_);
}

// Drops what the kept set does not have. What is pinned or being read stays until the next state.
void JobAgent::LetGo() {
  if (view_.generation > promise_generation_ && view_.first_commit_done) promised_.clear();
  std::vector<ShardName> going;
  for (const store::Shard* shard : parts_.table.ShardsOf(job_)) {
    const bool sealed = shard->sealed() || shard->state == store::ShardState::kQuarantined;
    if (!sealed) continue;
    if (view_.generation > promise_generation_ && IsOutlived(view_, *shard)) {
      going.push_back(shard->name);
      continue;
    }
    if (IsPromised(shard->name)) continue;
    if (JudgeShard(view_, shard->name) == KeepVerdict::kDrop) going.push_back(shard->name);
  }
  for (const ShardName& name : going) {
    if (parts_.exporter.IsBeingRestored(name)) continue;
    parts_.exporter.RevokeAll(name);
    repairs_.erase(name);
    if (Status status = parts_.table.Drop(name); !status.ok()) {
      Log(LogLevel::kDebug, "a shard is let go of later",
          {{"shard", ToString(name)}, {"why", status.message()}});
    }
  }
}

bool JobAgent::IsPromised(const ShardName& name) const { return promised_.contains(name); }

void JobAgent::OnInventory(const wire::Header& header, const wire::Inventory& inventory,
                           ReplyFunction reply) {
  wire::Reply answer;
  const std::vector<wire::HeldShard> held = HeldShards();
  if (!inventory.closing_uuid().empty()) {
    const Generation closing(header.generation());
    // The answer is a promise: from here on nothing of the generation can be sealed any more, and
    // nothing was since the list was made a moment ago.
    promise_generation_ = std::max(promise_generation_, closing);
    promise_uuid_ = AttemptUuid(inventory.closing_uuid());
    for (auto& [shard, claim] : claims_) {
      claim->saves().Fence(closing, "reconfiguration " + inventory.closing_uuid());
    }
    for (const wire::HeldShard& shard : held) {
      const Result<ShardName> name = FromWire(shard.shard(), job_);
      if (name.ok()) promised_.insert(*name);
    }
  }
  for (const wire::HeldShard& shard : held) *answer.mutable_inventory()->add_shards() = shard;
  answer.mutable_inventory();
  reply(std::move(answer));
}

void JobAgent::OnReplicate(const wire::Replicate& replicate, ReplyFunction reply) {
  const Result<ShardName> name = FromWire(replicate.shard(), job_);
  if (!name.ok()) return reply(name.status());
  const Result<const store::Shard*> shard = parts_.table.FindSealed(*name);
  if (!shard.ok()) return reply(shard.status());
  if (replicate.digest() != (*shard)->digest.ToByteString()) {
    return reply(NotFound(ToString(*name) + " is here with another content"));
  }
  if (replicate.nodes_size() > static_cast<int>(kReplicasMax) + 1) {
    return reply(InvalidArgument("an order to copy " + ToString(*name) + " to " +
                                 std::to_string(replicate.nodes_size()) + " nodes"));
  }
  std::vector<NodeId> nodes;
  for (const std::string& node : replicate.nodes()) nodes.emplace_back(node);
  if (!repairs_.contains(*name) && repairs_.size() >= kRepairsMax) {
    return reply(NoSpace(std::to_string(kRepairsMax) + " shards are being copied from here"));
  }
  Repair& repair = repairs_[*name];
  repair.deadline = parts_.executor.Now() + kRepairTimeout;
  if (repair.replicator == nullptr) {
    repair.replicator = std::make_unique<ShardReplicator>(
        *name, ShardReplicator::Kind::kRepair, parts_.executor, parts_.peers, parts_.table,
        parts_.exporter, [this] { ReportSoon(); });
  }
  repair.replicator->SetTargets(nodes);
  wire::Reply answer;
  answer.mutable_replicate();
  for (const NodeId& node : repair.replicator->Refusing()) {
    answer.mutable_replicate()->add_refused_nodes(node.value);
  }
  reply(std::move(answer));
}

void JobAgent::OnQuarantine(const ShardName& name) {
  repairs_.erase(name);
  if (const auto claim = claims_.find(name.shard); claim != claims_.end()) {
    claim->second->saves().OnQuarantine(name);
  }
  ReportSoon();
}

// ---- Changes around -----------------------------------------------------------------------------

void JobAgent::OnMembershipChanged() {
  for (auto& [shard, claim] : claims_) claim->Step();
  for (auto& [name, repair] : repairs_) repair.replicator->Step();
}

void JobAgent::OnLeaderChanged() {
  for (auto& [shard, claim] : claims_) claim->Step();
  ReportSoon();
}

void JobAgent::OnSlotFree() {
  for (auto& [shard, claim] : claims_) claim->saves().Step();
}

bool JobAgent::IsCandidate() const {
  const bool live = std::any_of(claims_.begin(), claims_.end(),
                                [](const auto& entry) { return entry.second->has_live_trainer(); });
  return live || !parts_.table.ShardsOf(job_).empty();
}

bool JobAgent::IsIdle() const {
  return !IsCandidate() && !holder_.HoldsAnything() && repairs_.empty();
}

// ---- What the leader is told --------------------------------------------------------------------

std::vector<wire::HeldShard> JobAgent::HeldShards() const {
  std::vector<wire::HeldShard> held;
  for (const store::Shard* shard : parts_.table.ShardsOf(job_)) {
    if (!shard->sealed()) continue;
    wire::HeldShard& entry = held.emplace_back();
    *entry.mutable_shard() = ToWire(shard->name);
    entry.set_rank(static_cast<uint32_t>(shard->rank.value));
    entry.set_world_size(shard->world_size);
    entry.set_digest(shard->digest.ToByteString());
    entry.set_size_bytes(shard->size_bytes);
    entry.set_committed(shard->committed);
    if (shard->committed) entry.set_root(shard->root.ToByteString());
    entry.set_primary(shard->role == store::ShardRole::kOwn);
    for (const store::Tag& tag : shard->manifest->contents.tags) {
      wire::Tag* added = entry.add_tags();
      added->set_name(tag.name);
      added->set_value(tag.value);
    }
  }
  return held;
}

std::vector<wire::ShardReport> JobAgent::Reports() const {
  std::vector<wire::ShardReport> reports;
  for (const auto& [shard, claim] : claims_) claim->saves().FillReports(&reports);
  for (const auto& [name, repair] : repairs_) {
    const store::Shard* shard = parts_.table.Find(name);
    if (shard == nullptr || !shard->sealed()) continue;
    wire::ShardReport& report = reports.emplace_back();
    *report.mutable_shard() = ToWire(name);
    report.set_rank(static_cast<uint32_t>(shard->rank.value));
    report.set_world_size(shard->world_size);
    report.set_digest(shard->digest.ToByteString());
    report.set_size_bytes(shard->size_bytes);
    report.set_progress(repair.replicator->AllTargetsHold() ? wire::ShardReport::PROTECTED
                                                            : wire::ShardReport::SEALED);
    report.set_error(repair.replicator->Trouble());
    *report.add_holders() = ToWire(parts_.peers.self());
    for (const NodeInstance& holder : repair.replicator->Holders()) {
      *report.add_holders() = ToWire(holder);
    }
    for (const store::Tag& tag : shard->manifest->contents.tags) {
      wire::Tag* added = report.add_tags();
      added->set_name(tag.name);
      added->set_value(tag.value);
    }
  }
  return reports;
}

std::vector<wire::LiveTrainer> JobAgent::Trainers() const {
  std::vector<wire::LiveTrainer> trainers;
  for (const auto& [shard, claim] : claims_) {
    if (std::optional<wire::LiveTrainer> trainer = claim->LiveTrainer()) {
      trainers.push_back(std::move(*trainer));
    }
  }
  return trainers;
}

void JobAgent::ReportSoon() {
  switch (report_state_) {
    case ReportState::kIdle:
      report_state_ = ReportState::kPosted;
      parts_.executor.Post(lifetime_.Wrap([this] { Report(); }));
      break;
    case ReportState::kPosted:
    case ReportState::kSentAndChanged:
      break;
    case ReportState::kSent:
      report_state_ = ReportState::kSentAndChanged;
      break;
  }
}

void JobAgent::Report() {
  report_state_ = ReportState::kSent;
  std::erase_if(repairs_, [this](const auto& entry) {
    return parts_.executor.Now() >= entry.second.deadline ||
           parts_.table.Find(entry.first) == nullptr;
  });
  wire::Request request;
  wire::ReportShards& body = *request.mutable_report_shards();
  for (wire::ShardReport& report : Reports()) *body.add_shards() = std::move(report);
  for (wire::LiveTrainer& trainer : Trainers()) *body.add_trainers() = std::move(trainer);
  std::set<ShardName> finished;
  for (const auto& [name, repair] : repairs_) {
    if (repair.replicator->AllTargetsHold()) finished.insert(name);
  }
  leader_.Call(std::move(request), parts_.executor.Now() + kReportTimeout,
               lifetime_.Wrap([this, finished](const Result<wire::Reply>& reply) {
                 const bool changed = report_state_ == ReportState::kSentAndChanged;
                 report_state_ = ReportState::kIdle;
                 if (reply.ok()) {
                   // The leader knows: the order is carried out.
                   std::erase_if(repairs_, [&](const auto& entry) {
                     return finished.contains(entry.first) &&
                            entry.second.replicator->AllTargetsHold();
                   });
                 }
                 if (changed) ReportSoon();
               }));
}

// Repeated for as long as there is something that the leader has not confirmed.
void JobAgent::ScheduleReport() {
  report_timer_ = parts_.executor.RunAfter(kReportInterval, lifetime_.Wrap([this] {
    if (!Reports().empty() || !Trainers().empty()) ReportSoon();
    for (auto& [shard, claim] : claims_) claim->Step();
    std::erase_if(claims_, [](const auto& entry) { return entry.second->IsIdle(); });
    LetGo();
    ScheduleReport();
  }));
}

wire::NodeJob JobAgent::Describe() const {
  wire::NodeJob description;
  description.set_job(job_.value);
  description.set_generation(router_.fence(job_).generation.value);
  for (wire::HeldShard& shard : HeldShards()) *description.add_shards() = std::move(shard);
  description.set_trainers(static_cast<uint32_t>(Trainers().size()));
  return description;
}

}  // namespace backstay::replication
