#include "replication/save_agent.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "replication/wire_convert.h"

namespace backstay::replication {

SaveAgent::SaveAgent(JobName job, ShardId shard, Executor& executor, PeerLink& peers,
                     store::ShardTable& table, ShardExporter& exporter, const JobGate& gate,
                     std::function<void(const TrainerEvent&)> emit, std::function<void()> on_report)
    : job_(std::move(job)),
      shard_(std::move(shard)),
      executor_(executor),
      peers_(peers),
      table_(table),
      exporter_(exporter),
      gate_(gate),
      emit_(std::move(emit)),
      on_report_(std::move(on_report)) {}

SaveAgent::~SaveAgent() {
  for (WaitingBegin& begin : waiting_) executor_.CancelTimer(begin.timer);
}

void SaveAgent::SetTargets(const std::vector<NodeId>& nodes) {
  if (nodes == targets_) return;
  targets_ = nodes;
  for (auto& [snapshot, save] : saves_) {
    if (save.replicator) save.replicator->SetTargets(targets_);
  }
}

// ---- Begin --------------------------------------------------------------------------------------

void SaveAgent::Begin(Generation generation, backstay::Step step, store::ClientId client,
                      store::ReservationId reservation, Duration timeout,
                      Completion<BeginReply> done) {
  WaitingBegin begin{generation,      step,    client, reservation, executor_.Now() + timeout,
                     std::move(done), kNoTimer};
  bool is_full = false;
  Result<BeginReply> begun = TryBegin(begin, &is_full);
  if (is_full && policy_.wait_for_slot && timeout > Duration::zero() &&
      waiting_.size() < kWaitingBeginsMax) {
    waiting_.push_back(std::move(begin));
    const auto self = std::prev(waiting_.end());
    self->timer = executor_.RunAt(self->deadline, lifetime_.Wrap([this, self] {
      const WaitingBegin late = std::move(*self);
      waiting_.erase(self);
      bool still_full = false;
      Result<BeginReply> last = TryBegin(late, &still_full);
      if (still_full) last = GiveUpBegin(late, "became free in time", last.status());
      late.done(std::move(last));
    }));
    return;
  }
  if (is_full) begun = GiveUpBegin(begin, "is free", begun.status());
  executor_.Post([done = std::move(begin.done), begun = std::move(begun)] { done(begun); });
}

Status SaveAgent::GiveUpBegin(const WaitingBegin& begin, const std::string& what,
                              const Status& why) {
  Status status = NoSpace("no slot " + what + " for step " + std::to_string(begin.step.value) +
                          ": " + why.message());
  PassOver({begin.generation, begin.step}, status);
  return status;
}

void SaveAgent::PassOver(SnapshotId snapshot, Status why) {
  const store::Shard* shard = table_.Find({job_, snapshot, shard_});
  if (snapshot.generation.value == 0 || saves_.contains(snapshot) || shard != nullptr) return;
  Save& save = saves_[snapshot];
  save.handle = SaveHandle(++last_handle_);
  save.name = {job_, snapshot, shard_};
  save.state = SaveState::kFailed;
  save.failure = std::move(why);
  save.began_unix_ms = executor_.clock().UnixMillis();
  TrimHistory();
  on_report_();
}

Result<BeginReply> SaveAgent::TryBegin(const WaitingBegin& begin, bool* is_full) {
  *is_full = false;
  BACKSTAY_RETURN_IF_ERROR(gate_.CheckOpen(begin.generation));
  if (begin.step.value == 0) {
    return InvalidArgument("steps are counted from 1 on: 0 stands for none");
  }
  const JobView& view = gate_.view();
  const ShardName name{job_, {begin.generation, begin.step}, shard_};
  // Also across generations: the lineage's steps grow, or a restore could not tell the newest.
  if (!view.kept.empty() && begin.step <= view.last_committed) {
    return Stale("step " + std::to_string(begin.step.value) + " of job " + job_.value +
                 " is not above the last committed step " +
                 std::to_string(view.last_committed.value));
  }
  if (view.generation == begin.generation && JudgeShard(view, name) == KeepVerdict::kDrop) {
    return Unavailable("step " + std::to_string(begin.step.value) + " of job " + job_.value +
                       " was given up by all ranks; " + view.DescribeKept() +
                       "; the last abandoned step is " + std::to_string(view.last_abandoned.value) +
                       "; save a later one");
  }
  const auto known = saves_.find(name.snapshot);
  if (known != saves_.end() && known->second.state == SaveState::kFailed) {
    return Unavailable("step " + std::to_string(begin.step.value) + " of job " + job_.value +
                       " was given up: " + known->second.failure.message() + "; save a later one");
  }
  const store::ShardTable::BeginRequest request{.name = name,
                                                .rank = policy_.rank,
                                                .world_size = policy_.world_size,
                                                .reservation = begin.reservation,
                                                .client = begin.client,
                                                .unix_ms = executor_.clock().UnixMillis()};
  Result<const store::Shard*> shard = table_.Begin(request);
  while (!shard.ok() && shard.status().code() == StatusCode::kUnavailable &&
         Displace(name.snapshot)) {
    shard = table_.Begin(request);
  }
  *is_full = !shard.ok() && shard.status().code() == StatusCode::kUnavailable;
  if (!shard.ok()) return shard.status();

  Save& save = saves_[name.snapshot];
  save.handle = SaveHandle(++last_handle_);
  save.name = name;
  save.began_unix_ms = request.unix_ms;
  TrimHistory();
  BeginReply reply;
  reply.save = save.handle;
  reply.memory = (*shard)->memory;
  reply.slot_id = (*shard)->slot.value;
  reply.generation = begin.generation;
  reply.epoch = (*shard)->epoch;
  return reply;
}

// Makes room by what an older generation left behind and the present one did not choose. Own older
// saves of this generation are never displaced: they may still commit.
bool SaveAgent::Displace(SnapshotId for_snapshot) {
  for (const store::Shard* shard : table_.ShardsOf(job_)) {
    if (shard->name.shard != shard_ || shard->name.snapshot >= for_snapshot) continue;
    const bool is_whole = shard->sealed() || shard->state == store::ShardState::kQuarantined;
    if (shard->role == store::ShardRole::kHeld || !is_whole) continue;
    if (!IsDisplaceable(gate_.view(), *shard)) continue;
    const ShardName victim = shard->name;
    if (exporter_.IsBeingRestored(victim)) continue;
    exporter_.RevokeAll(victim);
    if (!table_.Drop(victim).ok()) continue;
    Log(LogLevel::kInfo, "an uncommitted shard of an older generation made room for a save",
        {{"dropped", ToString(victim)}, {"for", ToString(for_snapshot)}});
    return true;
  }
  return false;
}

void SaveAgent::RetryWaiting() {
  for (auto begin = waiting_.begin(); begin != waiting_.end();) {
    bool is_full = false;
    Result<BeginReply> begun = TryBegin(*begin, &is_full);
    if (is_full) {
      ++begin;
      continue;
    }
    executor_.CancelTimer(begin->timer);
    executor_.Post([done = std::move(begin->done), begun = std::move(begun)] { done(begun); });
    begin = waiting_.erase(begin);
  }
}

// ---- Copy and seal ------------------------------------------------------------------------------

SaveAgent::Save* SaveAgent::FindOpen(SaveHandle handle) {
  for (auto& [snapshot, save] : saves_) {
    if (save.handle == handle) return &save;
  }
  return nullptr;
}

Status SaveAgent::NoSuchSave(SaveHandle handle) const {
  return NotFound("shard " + shard_.value + " of job " + job_.value + " has no save with handle " +
                  std::to_string(handle.value));
}

Status SaveAgent::StartCopy(SaveHandle handle, uint64_t used_bytes, const std::string& contents) {
  Save* save = FindOpen(handle);
  if (save == nullptr) return NoSuchSave(handle);
  if (save->state == SaveState::kFailed) return save->failure;
  if (save->state != SaveState::kFilling) {
    return InvalidArgument("the copy of " + ToString(save->name) + " was started before");
  }
  BACKSTAY_RETURN_IF_ERROR(table_.StartCopy(save->name, used_bytes, contents));
  save->state = SaveState::kCopying;
  save->replicator = std::make_unique<ShardReplicator>(
      save->name, ShardReplicator::Kind::kSave, executor_, peers_, table_, exporter_,
      [this, snapshot = save->name.snapshot] { OnReplicasChanged(snapshot); });
  save->replicator->SetMayPlace(
      [this, snapshot = save->name.snapshot](const NodeId& to) { return MayPlace(snapshot, to); });
  save->replicator->SetTargets(targets_);
  on_report_();
  return Status::Ok();
}

void SaveAgent::Seal(SaveHandle handle, bool sound, Completion<std::string> done) {
  const auto answer = [this, done](Result<std::string> result) {
    executor_.Post([done, result = std::move(result)] { done(result); });
  };
  Save* save = FindOpen(handle);
  if (save == nullptr) return answer(NoSuchSave(handle));
  switch (save->state) {
    case SaveState::kFailed:
      return answer(save->failure);
    case SaveState::kFilling:
      return answer(InvalidArgument("the copy of " + ToString(save->name) + " was not started"));
    case SaveState::kSealing:
      if (!sound) {
        return answer(InvalidArgument(ToString(save->name) + " is being sealed already"));
      }
      break;
    case SaveState::kCopying:
      break;
    default: {
      const store::Shard* shard = table_.Find(save->name);
      if (shard == nullptr || !shard->sealed()) {
        return answer(NotFound(ToString(save->name) + " was sealed and let go of"));
      }
      return answer(shard->digest.ToByteString());
    }
  }
  const SaveState before = save->state;
  if (before == SaveState::kCopying) save->seal_done = std::move(done);
  save->state = SaveState::kSealing;
  if (sound || sound_steps_.contains(save->name.snapshot.step)) DoSeal(*save);
  if (before == SaveState::kSealing) Seal(handle, true, std::move(done));
}

void SaveAgent::StepIsSound(backstay::Step step) {
  sound_steps_.insert(step);
  while (sound_steps_.size() > kSoundStepsMax) sound_steps_.erase(sound_steps_.begin());
  for (auto& [snapshot, save] : saves_) {
    if (snapshot.step == step && save.state == SaveState::kSealing) DoSeal(save);
  }
}

void SaveAgent::DoSeal(Save& save) {
  // The fence is checked last, after the copy and the trainer's word.
  if (Status open = gate_.CheckOpen(save.name.snapshot.generation); !open.ok()) {
    return Fail(save, std::move(open));
  }
  const Result<Hash128> digest = table_.Seal(save.name, executor_.clock().UnixMillis());
  const Completion<std::string> done = std::exchange(save.seal_done, nullptr);
  if (!digest.ok()) {
    // Chunks are missing: the client may publish them and seal again.
    save.state = SaveState::kCopying;
    executor_.Post([done, status = digest.status()] { done(status); });
    return;
  }
  save.state = SaveState::kSealed;
  executor_.Post([done, bytes = digest->ToByteString()] { done(bytes); });
  save.replicator->Step();
  StepProtection(save);
  on_report_();
}

Status SaveAgent::Abandon(SaveHandle handle) {
  Save* save = FindOpen(handle);
  if (save == nullptr) return NoSuchSave(handle);
  if (save->state == SaveState::kFailed) return Status::Ok();
  if (!IsUnsealed(save->state)) {
    return InvalidArgument(ToString(save->name) + " is sealed and cannot be abandoned any more");
  }
  Fail(*save, Stale("the trainer abandoned the save"));
  return Status::Ok();
}

// ---- Ends ---------------------------------------------------------------------------------------

void SaveAgent::OnReplicasChanged(SnapshotId snapshot) {
  const auto found = saves_.find(snapshot);
  if (found != saves_.end()) StepProtection(found->second);
  StepReplicators();  // Later steps may have waited for this one.
  on_report_();
}

bool SaveAgent::MayPlace(SnapshotId snapshot, const NodeId& node) const {
  for (const auto& [earlier, save] : saves_) {
    if (earlier >= snapshot) break;
    if (save.replicator != nullptr && save.replicator->IsWanting(node)) return false;
  }
  return true;
}

void SaveAgent::StepReplicators() {
  for (auto& [snapshot, save] : saves_) {
    if (save.replicator) {
      save.replicator->Step();
      StepProtection(save);
    }
  }
}

void SaveAgent::StepProtection(Save& save) {
  if (save.state == SaveState::kSealed && save.replicator->Holders().size() >= policy_.replicas) {
    save.state = SaveState::kProtected;
    Emit(TrainerEvent::Kind::kProtected, save.name.snapshot, Status::Ok());
  } else if (save.state == SaveState::kProtected &&
             save.replicator->Holders().size() < policy_.replicas) {
    save.state = SaveState::kSealed;  // A holder was lost before the commit.
  }
}

void SaveAgent::Commit(Save& save) {
  save.state = SaveState::kCommitted;
  save.replicator.reset();  // What is lost from here on is repaired at the leader's order.
  Emit(TrainerEvent::Kind::kCommitted, save.name.snapshot, Status::Ok());
}

void SaveAgent::Fail(Save& save, Status why) {
  if (IsEnded(save.state)) return;
  const bool unsealed = IsUnsealed(save.state);
  save.state = SaveState::kFailed;
  save.failure = std::move(why);
  save.replicator.reset();  // Revokes the grants, and tells the holders.
  if (unsealed) {
    exporter_.RevokeAll(save.name);
    if (Status status = table_.Abandon(save.name); !status.ok()) {
      Log(LogLevel::kError, "the slot of a failed save could not be given up",
          {{"shard", ToString(save.name)}, {"why", status.ToString()}});
    }
  }
  if (save.seal_done) {
    executor_.Post(
        [done = std::exchange(save.seal_done, nullptr), status = save.failure] { done(status); });
  }
  Emit(TrainerEvent::Kind::kSaveFailed, save.name.snapshot, save.failure);
  on_report_();
}

void SaveAgent::Fence(Generation generation, const std::string& reason) {
  for (auto& [snapshot, save] : saves_) {
    if (snapshot.generation <= generation && IsUnsealed(save.state)) {
      Fail(save, Stale("generation " + std::to_string(snapshot.generation.value) + " of job " +
                       job_.value + " was fenced: " + reason));
    }
  }
  RetryWaiting();
}

void SaveAgent::EndUnsealed(const Status& why) {
  for (auto& [snapshot, save] : saves_) {
    if (IsUnsealed(save.state)) Fail(save, why);
  }
  std::list<WaitingBegin> waiting = std::move(waiting_);
  waiting_.clear();
  for (WaitingBegin& begin : waiting) {
    executor_.CancelTimer(begin.timer);
    executor_.Post([done = std::move(begin.done), why] { done(why); });
  }
}

void SaveAgent::OnView(const JobView& view) {
  for (auto& [snapshot, save] : saves_) {
    if (IsEnded(save.state)) continue;
    switch (JudgeShard(view, save.name)) {
      case KeepVerdict::kKeepCommitted:
        if (!IsUnsealed(save.state)) Commit(save);
        break;
      case KeepVerdict::kDrop:
        Fail(save, Stale(ToString(snapshot) + " was abandoned; " + view.DescribeKept()));
        break;
      case KeepVerdict::kKeep: {
        const bool over = snapshot.generation < view.generation ||
                          (snapshot.generation == view.generation && view.closing());
        if (!over) break;
        // A sealed shard may still become, or is, the next base; then the leader has it protected.
        const bool may_be_base = snapshot.generation == view.generation || snapshot == view.base ||
                                 view.pinned.contains(snapshot);
        if (IsUnsealed(save.state) || !may_be_base) {
          Fail(save, Stale("generation " + std::to_string(snapshot.generation.value) + " of job " +
                           job_.value + " is over"));
        } else {
          save.replicator.reset();
          save.state = SaveState::kSealed;
        }
        break;
      }
    }
  }
  TellHealth(view);
  Step();
}

void SaveAgent::TellHealth(const JobView& view) {
  std::set<SnapshotId> now;
  for (const auto& [name, health] : view.under_protected) {
    if (name.shard != shard_) continue;
    now.insert(name.snapshot);
    if (!under_protected_.contains(name.snapshot)) {
      Emit(TrainerEvent::Kind::kUnderProtected, name.snapshot,
           Unavailable(ToString(name.snapshot) + " has " + std::to_string(health.holder_count) +
                       " of " + std::to_string(health.wanted_count) +
                       " holders; more are being made"));
    }
  }
  for (const SnapshotId& snapshot : under_protected_) {
    if (!now.contains(snapshot) && view.kept.contains(snapshot)) {
      Emit(TrainerEvent::Kind::kProtectedAgain, snapshot, Status::Ok());
    }
  }
  under_protected_ = std::move(now);
}

void SaveAgent::OnAck(const ShardName& name, const NodeInstance& from, const Hash128& digest) {
  if (ShardReplicator* replicator = ReplicatorOf(name)) replicator->OnAck(from, digest);
}

void SaveAgent::OnQuarantine(const ShardName& name) {
  const auto found = saves_.find(name.snapshot);
  if (found == saves_.end() || found->second.name != name) return;
  Fail(found->second, Corrupt(ToString(name) + " was damaged in memory after its seal"));
}

void SaveAgent::Step() {
  StepReplicators();
  RetryWaiting();
}

ShardReplicator* SaveAgent::ReplicatorOf(const ShardName& name) {
  const auto found = saves_.find(name.snapshot);
  if (found == saves_.end() || found->second.name != name) return nullptr;
  return found->second.replicator.get();
}

// ---- What others are told -----------------------------------------------------------------------

void SaveAgent::FillReports(std::vector<wire::ShardReport>* reports) const {
  const JobView& view = gate_.view();
  for (const auto& [snapshot, save] : saves_) {
    if (save.state == SaveState::kCommitted) continue;
    if (snapshot.generation < view.generation) continue;
    if (save.state == SaveState::kFailed && JudgeShard(view, save.name) == KeepVerdict::kDrop) {
      continue;  // The leader knows.
    }
    wire::ShardReport& report = reports->emplace_back();
    *report.mutable_shard() = ToWire(save.name);
    report.set_rank(static_cast<uint32_t>(policy_.rank.value));
    report.set_world_size(policy_.world_size);
    report.set_began_unix_ms(save.began_unix_ms);
    if (save.state == SaveState::kFailed) {
      report.set_failed(true);
      report.set_error(save.failure.message());
      continue;
    }
    const store::Shard* shard = table_.Find(save.name);
    if (shard == nullptr) continue;
    report.set_size_bytes(shard->size_bytes);
    if (!shard->sealed()) {
      report.set_progress(wire::ShardReport::COPYING);
      continue;
    }
    report.set_progress(save.state == SaveState::kProtected ? wire::ShardReport::PROTECTED
                                                            : wire::ShardReport::SEALED);
    report.set_rank(static_cast<uint32_t>(shard->rank.value));
    report.set_world_size(shard->world_size);
    report.set_digest(shard->digest.ToByteString());
    *report.add_holders() = ToWire(peers_.self());
    if (save.replicator) {
      for (const NodeInstance& holder : save.replicator->Holders()) {
        *report.add_holders() = ToWire(holder);
      }
      report.set_error(save.replicator->Trouble());
    }
    for (const store::Tag& tag : shard->manifest->contents.tags) {
      wire::Tag* added = report.add_tags();
      added->set_name(tag.name);
      added->set_value(tag.value);
    }
  }
}

bool SaveAgent::HasOpenSaves() const {
  return std::any_of(saves_.begin(), saves_.end(),
                     [](const auto& entry) { return !IsEnded(entry.second.state); });
}

QuerySnapshotReply SaveAgent::Query(SnapshotId snapshot) const {
  const auto found = saves_.find(snapshot);
  if (found == saves_.end()) {
    QuerySnapshotReply reply;
    if (gate_.view().kept.contains(snapshot)) reply.progress = SnapshotProgress::kCommitted;
    reply.reason = table_.NearestSteps(job_, snapshot.step) + " of this job are on this node";
    return reply;
  }
  const Save& save = found->second;
  QuerySnapshotReply reply;
  switch (save.state) {
    case SaveState::kFilling:
    case SaveState::kCopying:
    case SaveState::kSealing:
      reply.progress = SnapshotProgress::kCopying;
      break;
    case SaveState::kSealed:
      reply.progress = SnapshotProgress::kSealed;
      if (save.replicator) reply.reason = save.replicator->Trouble();
      break;
    case SaveState::kProtected:
      reply.progress = SnapshotProgress::kProtected;
      break;
    case SaveState::kCommitted:
      reply.progress = SnapshotProgress::kCommitted;
      break;
    case SaveState::kFailed:
      reply.progress = SnapshotProgress::kFailed;
      reply.reason = save.failure.message();
      break;
  }
  return reply;
}

void SaveAgent::TrimHistory() {
  auto save = saves_.begin();
  while (saves_.size() > kSavesRemembered && save != saves_.end()) {
    save = IsEnded(save->second.state) ? saves_.erase(save) : std::next(save);
  }
}

void SaveAgent::Emit(TrainerEvent::Kind kind, const SnapshotId& snapshot, Status status) {
  TrainerEvent event;
  event.kind = kind;
  event.snapshot = snapshot;
  event.status = std::move(status);
  event.generation = snapshot.generation;
  emit_(event);
}

}  // namespace backstay::replication
