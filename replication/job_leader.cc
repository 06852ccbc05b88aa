#include "replication/job_leader.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "replication/job_record.h"
#include "replication/peer_router.h"
#include "replication/wire_convert.h"

namespace backstay::replication {
namespace {

constexpr size_t kAbandonedShownMax = 8;
constexpr int kHealthsMax = 256;  // Under-protected shards that one state names.
// Of a commit's own transaction; the record, the term and the write itself take their share.
constexpr size_t kCommitConditionsMax = kMetadataOperationsMax - 8;

}  // namespace

JobLeader::JobLeader(JobName job, Term term, const LeaderSeams& seams, const LeaderConfig& config,
                     StatusCompletion on_deposed)
    : job_(std::move(job)),
      term_(term),
      seams_(seams),
      config_(config),
      on_deposed_(std::move(on_deposed)),
      timeline_(&seams.executor->clock()),
      calls_(job_, term, seams, config.message_deadline, [this](const Status& s) { Depose(s); }),
      record_(
          job_, term, seams, config, [this] { OnRecordChanged(); },
          [this](const Status& s) { Depose(s); }),
      admission_(job_, seams, config, record_, calls_, trainers_, timeline_, [this] { Poke(); }),
      announcer_(
          seams, config, calls_, [this](const NodeId& node) { return MakeState(node); },
          [this](const NodeInstance& from, const wire::JobStateReply& answer) {
            TakeReports(from, answer.shards(), answer.trainers());
          }),
      repairer_(seams, config, calls_, timeline_,
                [this] {
                  repair_needed_ = true;
                  Poke();
                }),
      last_loss_(seams.executor->Now()) {}

JobLeader::~JobLeader() {
  if (tick_timer_ != kNoTimer) seams_.executor->CancelTimer(tick_timer_);
  admission_.FailAll(Unavailable("the leadership of job " + job_.value + " has ended"));
}

void JobLeader::Start() {
  timeline_.Add(timeline::kElected,
                seams_.router->self().node.value + " leads, term " + std::to_string(term_.value),
                Generation());
  record_.Start();
  Tick();
}

void JobLeader::Tick() {
  repair_needed_ = true;
  inventory_needed_ = true;
  if (members().revision != members_revision_) members_changed_ = true;
  Poke();
  tick_timer_ = seams_.executor->RunAfter(kTick, lifetime_.Wrap([this] { Tick(); }));
}

void JobLeader::Poke() {
  if (step_posted_ || deposed_) return;
  step_posted_ = true;
  seams_.executor->Post(lifetime_.Wrap([this] {
    step_posted_ = false;
    Step();
  }));
}

bool JobLeader::IsClaimant(const ShardId& shard, uint64_t trainer) const {
  const auto member = admission_.members().find(shard);
  return member != admission_.members().end() && member->second.trainer == trainer;
}

void JobLeader::Depose(const Status& why) {
  if (deposed_) return;
  deposed_ = true;
  Log(LogLevel::kWarning, "this node does not lead the job any more",
      {{"job", job_.value}, {"why", why.ToString()}});
  admission_.FailAll(Unavailable("this node does not lead job " + job_.value + " any more"));
  seams_.executor->Post(lifetime_.Wrap([this, why] { on_deposed_(why); }));
}

void JobLeader::Step() {
  if (deposed_ || !record_.loaded()) return;
  if (members_changed_) UpdateMembers();
  admission_.Step();
  if (admission_.version() != told_assignments_) IndexAssignments();
  StepCommits();
  if (inventory_needed_) StepInventory();
  if (repair_needed_) StepRepairs();
  if (listener_) listener_();
  announcer_.Step();
}

void JobLeader::OnRecordChanged() {
  const wire::JobRecord& record = record_.record();
  calls_.SetGeneration(Generation(record.generation()));
  seams_.router->RaiseFence(job_, Generation(record.generation()), term_);
  if (record.decision().resumed() && resumed_generation_ != Generation(record.generation())) {
    resumed_generation_ = Generation(record.generation());
    trainers_.ForgetHeard();
  }
  tracker_.SetPolicy(record.replicas());
  tracker_.Forget([this](const SnapshotId& id) { return IsWanted(id); });
  announcer_.Changed();
  repair_needed_ = true;
  Poke();
}

void JobLeader::Apply(RecordWriter::Change change, StatusCompletion done) {
  record_.Apply(std::move(change), {}, std::move(done));
}

// ---- Who is there -----------------------------------------------------------------------------

void JobLeader::OnMembershipChanged() {
  members_changed_ = true;
  Poke();
}

void JobLeader::UpdateMembers() {
  const MembershipView& view = seams_.membership->view();
  if (view.revision == 0 || !view.current) return;  // Absence from it is not death.
  members_changed_ = false;
  members_revision_ = view.revision;
  std::set<NodeInstance> alive;
  LiveDomains domains;
  const std::map<NodeId, std::string> domain_of = FailureDomains(view.members);
  for (const auto& [id, member] : view.members) {
    alive.insert(member.record.instance);
    domains[member.record.instance] = domain_of.at(id);
  }
  for (const NodeInstance& node : alive_) {
    if (alive.contains(node)) continue;
    last_loss_ = seams_.executor->Now();
    timeline_.Add(timeline::kNodeLost, ToString(node), generation());
  }
  for (const NodeInstance& node : alive) {
    if (!alive_.contains(node) && !alive_.empty()) {
      timeline_.Add(timeline::kNodeJoined, ToString(node), generation());
    }
    Inventory& inventory = inventories_[node.node];
    if (inventory.node == node) continue;
    inventory = Inventory();
    inventory.node = node;
  }
  std::erase_if(inventories_,
                [&](const auto& entry) { return !alive.contains(entry.second.node); });
  alive_ = std::move(alive);
  tracker_.SetLive(std::move(domains));
  trainers_.KeepOnly(view.members);
  announcer_.SetNodes(view.members);
  admission_.OnMembershipChanged();
  repair_needed_ = true;
  inventory_needed_ = true;
}

void JobLeader::OnAdmitShard(const wire::Request& request, ReplyFunction reply) {
  admission_.OnAdmitShard(FromWire(request.header().from()), request.admit_shard(),
                          std::move(reply));
}

void JobLeader::OnReportShards(const wire::Request& request, ReplyFunction reply) {
  const wire::ReportShards& report = request.report_shards();
  TakeReports(FromWire(request.header().from()), report.shards(), report.trainers());
  reply(wire::Reply());
}

void JobLeader::TakeReports(const NodeInstance& from,
                            const google::protobuf::RepeatedPtrField<wire::ShardReport>& shards,
                            const google::protobuf::RepeatedPtrField<wire::LiveTrainer>& trainers) {
  if (deposed_) return;
  trainers_.OnReport(from, trainers);
  int taken = 0;
  for (const wire::ShardReport& shard : shards) {
    const SnapshotId id{Generation(shard.shard().snapshot().generation()),
                        backstay::Step(shard.shard().snapshot().step())};
    if (!record_.loaded() || !IsWanted(id)) continue;
    if (++taken > kReportsMax) break;
    if (Status status = tracker_.OnReport(from, shard, seams_.executor->Now()); !status.ok()) {
      Log(LogLevel::kWarning, "a report on a shard was refused",
          {{"job", job_.value}, {"from", from.node.value}, {"why", status.ToString()}});
    }
  }
  Poke();
}

void JobLeader::OnReportFence(const wire::Request& request, ReplyFunction reply) {
  const wire::ReportFence& fence = request.report_fence();
  if (!record_.loaded()) {
    reply(Unavailable("the leader of job " + job_.value + " is still reading its record"));
    return;
  }
  const std::string text = "rank " + std::to_string(fence.rank()) + " on " +
                           request.header().from().node_id() +
                           (fence.reason().empty() ? "" : ": " + fence.reason());
  const Generation fenced(fence.generation());
  // Repeated until it is answered: told once.
  if (!timeline_.Has(timeline::kFaultSeen, text, fenced)) {
    timeline_.AddAt(fence.seen_unix_ms(), timeline::kFaultSeen, text, fenced);
    timeline_.Add(timeline::kFenced, text, fenced);
  }
  if (fenced == generation() && fence_.generation != fenced) {
    const int64_t now = seams_.executor->clock().UnixMillis();  // The other clock may be anything.
    fence_ = {fenced, fence.seen_unix_ms() > 0 ? std::min(fence.seen_unix_ms(), now) : now, text};
  }
  reply(wire::Reply());
}

void JobLeader::OnEndJob(const wire::Request& request, ReplyFunction reply) {
  const wire::EndJob& end = request.end_job();
  if (!record_.loaded()) {
    reply(Unavailable("the leader of job " + job_.value + " is still reading its record"));
    return;
  }
  if (!record_.exists()) {
    reply(NotFound("there is no job " + job_.value));
    return;
  }
  if (record_.record().token_digest() != end.token_digest()) {
    reply(PermissionDenied("job " + job_.value + " belongs to another token"));
    return;
  }
  if (!end.drop()) {
    reply(wire::Reply());  // Its state stays; that its trainers are gone, their nodes tell.
    return;
  }
  const int64_t unix_ms = seams_.executor->clock().UnixMillis();
  const auto on_ended = [this, reply = std::move(reply)](const Status& status) {
    if (!status.ok()) {
      reply(status);
      return;
    }
    timeline_.Add(timeline::kEnded, "its state is let go of", generation());
    reply(wire::Reply());
  };
  Apply([unix_ms](const wire::JobRecord& record) { return EndRecord(record, unix_ms); },
        lifetime_.Wrap(on_ended));
}

// ---- Commits ----------------------------------------------------------------------------------

bool JobLeader::MayCommit(const SnapshotId& id) const {
  const wire::JobRecord& record = record_.record();
  if (record.ended() || !record.closing_uuid().empty()) return false;
  if (id.step.value <= record.last_committed_step()) return false;
  if (id.generation.value == record.generation()) {
    return record.decision().resumed() && id.step.value > record.last_abandoned_step();
  }
  return CurrentBase(record) == id && !record.decision().base_committed();
}

bool JobLeader::IsWanted(const SnapshotId& id) const {
  const wire::JobRecord& record = record_.record();
  if (record.ended()) return false;
  if (IsCommitted(record, id)) return true;
  for (const SnapshotId& pinned : PinnedSet(record)) {
    if (pinned == id) return true;
  }
  // While a generation closes its saves stay visible, although none can be committed.
  return id.generation.value == record.generation() &&
         id.step.value > std::max(record.last_committed_step(), record.last_abandoned_step());
}

void JobLeader::StepCommits() {
  const Instant now = seams_.executor->Now();
  if (deciding_.has_value() || now < next_commit_try_) return;
  // Oldest first: steps are committed in increasing order, and giving one up gives up all before
  // it.
  bool earlier_open = false;
  for (const auto& [id, snapshot] : tracker_.snapshots()) {
    if (!MayCommit(id) || id == refused_base_) continue;
    const bool is_base = id.generation.value != record_.record().generation();
    if (is_base) tracker_.MarkRestored(id);
    if (tracker_.IsProtected(snapshot) && CannotCommit(snapshot).empty()) {
      Commit(snapshot);
      return;
    }
    if (is_base) continue;  // Repaired for as long as it takes: it is what the ranks restored.
    const std::string reason = CannotCommit(snapshot);
    if (!earlier_open && !reason.empty()) {
      Abandon(id, reason);
      return;
    }
    if (now - snapshot.first_seen >= config_.save_deadline) {
      Abandon(id, "it was not protected within " +
                      std::to_string(ToMillis(config_.save_deadline) / 1000) + " s: " +
                      WhyNotCommitted(tracker_, snapshot, record_.record().replicas(),
                                      [this](const ShardId& s) { return DescribeMissing(s); }));
      return;
    }
    earlier_open = true;
  }
}

void JobLeader::Commit(const TrackedSnapshot& snapshot) {
  Result<CommitProposal> proposal = ProposeCommit(tracker_, snapshot);
  if (!proposal.ok()) {
    GiveUp(snapshot.id, proposal.status().message());
    return;
  }
  std::vector<Compare> conditions;
  for (const NodeInstance& holder : proposal->counted) {
    const std::optional<Compare> alive = members().AliveCondition(holder);
    if (!alive.has_value()) return;  // The tracker will know in this or the next step.
    conditions.push_back(*alive);
  }
  deciding_ = snapshot.id;
  if (conditions.size() <= kCommitConditionsMax) {
    WriteCommit(*proposal, std::move(conditions));
    return;
  }
  // More holders than one transaction can name ("Commits with many holders").
  ProveAlive(conditions, [this, proposal = *proposal](const Status& status) {
    if (status.ok()) {
      WriteCommit(proposal, {});
      return;
    }
    deciding_.reset();
    next_commit_try_ = seams_.executor->Now() + config_.retry_min;
  });
}

void JobLeader::ProveAlive(std::vector<Compare> conditions, StatusCompletion done) {
  struct Proof {
    size_t missing = 0;
    Status status;
    StatusCompletion done;
  };
  auto proof = std::make_shared<Proof>();
  proof->done = std::move(done);
  proof->missing = (conditions.size() + kCommitConditionsMax - 1) / kCommitConditionsMax;
  const auto on_result = [proof](const Result<TransactionResult>& result) {
    if (!result.ok()) {
      proof->status = result.status();
    } else if (!result->succeeded) {
      proof->status = Stale("a holder is not alive any more");
    }
    if (--proof->missing == 0) proof->done(proof->status);
  };
  for (size_t first = 0; first < conditions.size(); first += kCommitConditionsMax) {
    Transaction transaction;
    const size_t last = std::min(first + kCommitConditionsMax, conditions.size());
    transaction.compares.assign(conditions.begin() + static_cast<ptrdiff_t>(first),
                                conditions.begin() + static_cast<ptrdiff_t>(last));
    seams_.metadata->Commit(std::move(transaction),
                            seams_.executor->Now() + config_.transaction_deadline,
                            lifetime_.Wrap(on_result));
  }
}

void JobLeader::WriteCommit(const CommitProposal& proposal, std::vector<Compare> conditions) {
  wire::RecordedSnapshot recorded;
  recorded.set_generation(proposal.snapshot.generation.value);
  recorded.set_step(proposal.snapshot.step.value);
  recorded.set_root(proposal.root);
  recorded.set_bytes(proposal.bytes);
  recorded.set_world_size(proposal.world_size);
  recorded.set_committed_unix_ms(seams_.executor->clock().UnixMillis());
  const bool is_first = !record_.record().first_commit_done() &&
                        proposal.snapshot.generation.value == record_.record().generation();
  const auto on_written = [this, id = proposal.snapshot, is_first](const Status& status) {
    deciding_.reset();
    if (status.ok()) {
      timeline_.Add(timeline::kCommitted, ToString(id), generation());
      if (is_first) timeline_.Add(timeline::kFirstCommit, ToString(id), generation());
    } else if (status.code() == StatusCode::kInvalidArgument) {
      // It would be refused again and again.
      GiveUp(id, status.message());
    } else {
      next_commit_try_ = seams_.executor->Now() + config_.retry_min;
    }
    Poke();
  };
  record_.Apply(
      [recorded](const wire::JobRecord& record) { return CommitSnapshot(record, recorded); },
      std::move(conditions), lifetime_.Wrap(on_written));
}

// A base is not abandoned, for the ranks have started from it; the saves after it go on without it.
void JobLeader::GiveUp(const SnapshotId& id, const std::string& why) {
  if (id.generation.value == record_.record().generation()) {
    Abandon(id, why);
    return;
  }
  refused_base_ = id;
  Log(LogLevel::kError, "the base of the generation cannot be committed",
      {{"job", job_.value}, {"base", ToString(id)}, {"why", why}});
  Poke();
}

void JobLeader::Abandon(const SnapshotId& id, const std::string& why) {
  deciding_ = id;
  const auto on_written = [this, id, why](const Status& status) {
    deciding_.reset();
    if (status.ok()) {
      timeline_.Add(timeline::kAbandoned, ToString(id) + ": " + why, generation());
      abandoned_[id] = why;
      if (abandoned_.size() > kAbandonedShownMax) abandoned_.erase(abandoned_.begin());
    } else {
      next_commit_try_ = seams_.executor->Now() + config_.retry_min;
    }
    Poke();
  };
  record_.Apply([id](const wire::JobRecord& record) { return AbandonSnapshot(record, id); }, {},
                lifetime_.Wrap(on_written));
}

// ---- Telling ----------------------------------------------------------------------------------

void JobLeader::IndexAssignments() {
  told_assignments_ = admission_.version();
  assignments_.clear();
  for (const auto& [id, member] : admission_.members()) {
    if (member.state == ShardMember::State::kWaiting) continue;
    wire::Assignment assignment;
    assignment.set_shard_id(id.value);
    assignment.set_primary(member.primary.node.value);
    std::set<NodeId> concerned = member.earlier_primaries;
    concerned.insert(member.primary.node);
    for (const NodeId& node : member.ReservedNodes()) {
      assignment.add_replicas(node.value);
      concerned.insert(node);
    }
    for (const NodeId& node : concerned) assignments_[node].push_back(assignment);
  }
  announcer_.Changed();
}

wire::JobState JobLeader::MakeState(const NodeId& node) const {
  wire::JobState state = DescribeState(record_.record(), record_.revision());
  const NodeInstance self = seams_.router->self();
  state.mutable_leader()->set_node_id(self.node.value);
  state.mutable_leader()->set_incarnation(self.incarnation.value);
  if (const auto it = assignments_.find(node); it != assignments_.end()) {
    for (const wire::Assignment& assignment : it->second) *state.add_assignments() = assignment;
  }
  // Nodes let saves wait for a pinned base. It stays all the same: it is named as the base.
  if (base_out_of_reach_ && OpenBase().has_value()) state.clear_pinned();
  if (repairer_.last_plan().under_protected_count == 0) return state;
  for (const SnapshotId& id : KeptSet(record_.record())) {
    const TrackedSnapshot* snapshot = tracker_.Find(id);
    if (snapshot == nullptr || !OnLineage(record_.record(), id)) continue;
    for (const auto& [shard_id, shard] : snapshot->shards) {
      if (tracker_.IsShardProtected(shard)) continue;
      if (state.under_protected_size() == kHealthsMax) return state;
      wire::ReplicaHealth* health = state.add_under_protected();
      *health->mutable_shard()->mutable_snapshot() = ToWire(id);
      health->mutable_shard()->set_shard_id(shard_id.value);
      health->set_holders(shard.live_domains);
      health->set_wanted(record_.record().replicas() + 1);
    }
  }
  return state;
}

std::string JobLeader::DescribeMissing(const ShardId& shard) const {
  const auto it = admission_.members().find(shard);
  if (it == admission_.members().end()) return "";
  const ShardMember& member = it->second;
  if (members().Find(member.primary) == nullptr) {
    return member.primary.node.value + ", where its trainer was, is lost";
  }
  for (const auto& [node, target] : member.targets) {
    if (!announcer_.IsAnswering(node)) return node.value + " is not answering";
    if (target.state != ReplicaTarget::State::kReserved) {
      return node.value + " has not promised memory yet";
    }
  }
  if (member.targets.size() < member.replicas) {
    if (!member.refused.empty()) return member.refused.begin()->second;
    return "no live node of another failure domain is free for one";
  }
  return "";
}

void JobLeader::FillStatus(wire::LeaderStatusReply* status) const {
  const wire::JobRecord& record = record_.record();
  const NodeInstance self = seams_.router->self();
  status->mutable_leader()->set_node_id(self.node.value);
  status->mutable_leader()->set_incarnation(self.incarnation.value);
  status->set_term(term_.value);
  *status->mutable_state() = MakeState(NodeId());
  for (const auto& [id, member] : admission_.members()) {
    wire::Assignment* assignment = status->mutable_state()->add_assignments();
    assignment->set_shard_id(id.value);
    assignment->set_primary(member.primary.node.value);
    for (const NodeId& node : member.TargetNodes()) assignment->add_replicas(node.value);
  }
  StatusInput input;
  input.record = &record;
  input.tracker = &tracker_;
  input.trainers = &trainers_;
  input.abandoned = &abandoned_;
  input.fence = &fence_;
  input.describe_missing = [this](const ShardId& shard) { return DescribeMissing(shard); };
  FillRecordStatus(input, status);
  FillSnapshots(input, status);
  FillFence(input, status);
  FillOutlook(input, status);
  for (const wire::TimelineEvent& event : timeline_.events()) *status->add_timeline() = event;
}

}  // namespace backstay::replication
