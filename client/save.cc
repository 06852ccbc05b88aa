#include "client/save.h"

#include <utility>

#include "client/client.h"
#include "client/limits.h"

namespace backstay::client {
namespace {

using std::chrono::steady_clock;

uint64_t NanosecondsSince(TimePoint start) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(steady_clock::now() - start).count());
}

const char* StageName(Save::Stage stage) {
  switch (stage) {
    case Save::Stage::kBuilding:
      return "built";
    case Save::Stage::kCopying:
      return "copied";
    case Save::Stage::kSealing:
    case Save::Stage::kSealed:
      return "sealed";
    case Save::Stage::kProtected:
      return "protected";
    case Save::Stage::kCommitted:
      return "committed";
  }
  return "";
}

}  // namespace

Save::Save(std::shared_ptr<Client> client, local::SnapshotRef snapshot, SlotUse use,
           bool sound_later, uint64_t begin_ns)
    : client_(std::move(client)),
      snapshot_(snapshot),
      use_(std::move(use)),
      sound_later_(sound_later) {
  stats_.snapshot = snapshot;
  stats_.begin_ns = begin_ns;
}

std::string Save::Name() const {
  return "the save of step " + std::to_string(snapshot_.step) + " of generation " +
         std::to_string(snapshot_.generation);
}

Status Save::Building() const {
  const std::lock_guard lock(mutex_);
  if (!failed_.ok()) return failed_;
  if (stage_ != Stage::kBuilding)
    return InvalidArgument(Name() + " is being copied: add everything before that");
  return Status::Ok();
}

Status Save::AddTensor(TensorSpec spec, const void* data, std::span<const int64_t> strides) {
  BACKSTAY_RETURN_IF_ERROR(Building());
  if (spec.group == CopyJob::kAllGroups)
    return InvalidArgument("tensor " + spec.name + ": its group is the number of all groups");
  const bool alias = spec.slice == SliceKind::kAlias;
  // The memory is only read from here on; StridedMemory serves reading and writing.
  BACKSTAY_ASSIGN_OR_RETURN(
      StridedMemory memory,
      StridedMemory::Make("tensor " + spec.name, alias ? nullptr : const_cast<void*>(data),
                          DtypeBytes(spec.dtype), alias ? std::vector<uint64_t>{0} : spec.shape,
                          alias ? std::span<const int64_t>() : strides));
  const uint32_t group = spec.group;
  BACKSTAY_ASSIGN_OR_RETURN(const size_t index, contents_.AddTensor(std::move(spec)));
  if (alias) return Status::Ok();
  pieces_.push_back({.offset_bytes = contents_.tensors()[index].offset_bytes,
                     .memory = std::move(memory),
                     .group = group});
  return Status::Ok();
}

Status Save::AddBlob(std::string name, std::string_view bytes) {
  BACKSTAY_RETURN_IF_ERROR(Building());
  BACKSTAY_ASSIGN_OR_RETURN(const size_t index, contents_.AddBlob(std::move(name), bytes.size()));
  static_cast<void>(index);
  blobs_.emplace_back(bytes);
  return Status::Ok();
}

Status Save::AddTag(std::string name, std::string value) {
  BACKSTAY_RETURN_IF_ERROR(Building());
  return contents_.AddTag(std::move(name), std::move(value));
}

Status Save::StartCopy(uint32_t thread_count) {
  BACKSTAY_RETURN_IF_ERROR(Building());
  if (thread_count == 0 || thread_count > kCopyThreadsMax) {
    return InvalidArgument("copying takes 1 to " + std::to_string(kCopyThreadsMax) +
                           " threads, not " + std::to_string(thread_count));
  }
  const uint64_t used_bytes = contents_.SizeBytes();
  if (used_bytes > use_.slot->geometry.size_bytes) {
    return NoSpace(Name() + " has " + FormatBytes(used_bytes) + " (" + std::to_string(used_bytes) +
                   " bytes), but " + FormatBytes(use_.slot->geometry.size_bytes) +
                   " were registered: resize, or register with what backstay_plan() says");
  }
  contents_.Finish();
  for (size_t i = 0; i < blobs_.size(); ++i) {
    const uint64_t size[] = {blobs_[i].size()};
    BACKSTAY_ASSIGN_OR_RETURN(StridedMemory memory,
                              StridedMemory::Make("blob", blobs_[i].data(), 1, size, {}));
    // Blobs are the library's own: the last group, which nobody waits for alone.
    pieces_.push_back({.offset_bytes = contents_.blobs()[i].offset_bytes,
                       .memory = std::move(memory),
                       .group = CopyJob::kAllGroups - 1});
  }
  // Peers learn what is coming while the copy runs; a refusal fails the save, not this call.
  const Status sent =
      client_->connection().Send(local::StartCopy{.slot_id = use_.slot_id,
                                                  .used_bytes = used_bytes,
                                                  .contents = contents_.Encode(),
                                                  .epoch = use_.epoch},
                                 [self = shared_from_this()](const Result<Reply>& reply) {
                                   if (!reply.ok())
                                     return;  // Lost: OnServiceLost() has failed the save.
                                   if (const Status& refused = reply->frame.status; !refused.ok())
                                     self->OnFailed(refused);
                                 });
  if (!sent.ok()) {
    OnFailed(sent);
    return sent;
  }
  auto job = std::make_shared<CopyJob>(use_.slot, used_bytes, pieces_,
                                       [save = weak_from_this()](const Status& copied) {
                                         const auto self = save.lock();
                                         if (self == nullptr) return;
                                         if (!copied.ok()) return self->OnFailed(copied);
                                         self->SealWhenCopied();
                                       });
  {
    const std::lock_guard lock(mutex_);
    if (!failed_.ok()) return failed_;
    stats_.used_bytes = used_bytes;
    copy_started_ = steady_clock::now();
    stage_ = Stage::kCopying;
    job_ = job;
  }
  const Status running = client_->copy_threads().Run(thread_count, [job] { job->Work(); });
  if (!running.ok()) OnFailed(running);
  return running;
}

void Save::SealWhenCopied() {
  {
    const std::lock_guard lock(mutex_);
    stats_.copy_ns = NanosecondsSince(copy_started_);
    if (!failed_.ok()) return;
    stage_ = Stage::kSealing;
    changed_.notify_all();
  }
  const Status sent = client_->connection().Send(
      local::Seal{.slot_id = use_.slot_id, .sound = !sound_later_, .epoch = use_.epoch},
      [self = shared_from_this()](Result<Reply> reply) { self->OnSealReply(std::move(reply)); });
  if (!sent.ok()) OnFailed(sent);
}

void Save::OnSealReply(Result<Reply> reply) {
  // Without an answer the shard may be sealed or not: OnServiceBack() asks.
  if (!reply.ok()) return;
  const Result<local::SealReply> sealed = reply->Take<local::SealReply>();
  if (!sealed.ok()) return OnFailed(sealed.status());
  {
    const std::lock_guard lock(mutex_);
    stats_.digest = sealed->digest;
  }
  OnReached(Stage::kSealed);
}

void Save::OnReached(Stage stage) {
  const std::lock_guard lock(mutex_);
  if (stage > stage_) stage_ = stage;
  changed_.notify_all();
}

void Save::OnFailed(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    if (!failed_.ok() || stage_ == Stage::kCommitted) return;
    failed_ = Status(why.code(), Name() + " failed: " + why.message());
    if (job_ != nullptr) job_->Cancel();
    changed_.notify_all();
  }
  // A call may see that the service is gone before OnServiceLost() says so.
  if (why.code() == StatusCode::kUnavailable) {
    client_->NoteMissed(snapshot_.generation, snapshot_.step);
  }
}

void Save::OnFenced(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    if (stage_ >= Stage::kSealed) return;
  }
  OnFailed(Stale("its generation is over: " + why.message()));
}

bool Save::OnServiceLost(const Status& why) {
  bool lost = false;
  bool open = false;
  {
    const std::lock_guard lock(mutex_);
    open = failed_.ok() && stage_ < Stage::kCommitted;
    lost = open && stage_ < Stage::kSealing;
    slot_is_gone_ = true;
    away_ = Unavailable(Name() + ": the service is away: " + why.message());
    changed_.notify_all();
  }
  if (lost) OnFailed(Unavailable("the service went away before it was sealed: " + why.message()));
  return open;
}

void Save::OnSlotTaken() {
  std::shared_ptr<CopyJob> job;
  bool was_gone = false;
  {
    const std::lock_guard lock(mutex_);
    was_gone = std::exchange(slot_is_gone_, true);
    job = job_;
  }
  if (!was_gone) OnFenced(Stale("the service has given its slot to a later save"));
  // A chunk in the making takes well under a second. Without a job none is started any more.
  if (job != nullptr) job->Wait(CopyJob::kAllGroups, TimePoint::max());
}

void Save::OnServiceBack() {
  {
    const std::lock_guard lock(mutex_);
    if (away_.ok() || !failed_.ok() || stage_ == Stage::kCommitted || stage_ < Stage::kSealing)
      return;
  }
  const Status sent = client_->connection().Send(
      local::QuerySnapshot{.snapshot = snapshot_},
      [self = shared_from_this()](Result<Reply> reply) { self->OnQueryReply(std::move(reply)); });
  static_cast<void>(sent.ok());  // Away again: asked again when it is back.
}

void Save::OnQueryReply(Result<Reply> reply) {
  if (!reply.ok()) return;
  const Result<local::QuerySnapshotReply> known = reply->Take<local::QuerySnapshotReply>();
  if (!known.ok()) {
    // It may be committed all the same: a service that refused to register this trainer again does
    // not say. Asked again once it has registered.
    const std::lock_guard lock(mutex_);
    away_ = Unavailable(
        Name() + ": the service is back and does not answer for it: " + known.status().message());
    changed_.notify_all();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    away_ = Status::Ok();
  }
  switch (static_cast<local::SnapshotState>(known->state)) {
    case local::SnapshotState::kSealed:
      return OnReached(Stage::kSealed);
    case local::SnapshotState::kProtected:
      return OnReached(Stage::kProtected);
    case local::SnapshotState::kCommitted:
      return OnReached(Stage::kCommitted);
    case local::SnapshotState::kFailed:
      return OnFailed(Unavailable(known->reason));
    default:
      return OnFailed(UnknownOutcome("the service came back and does not have it; peers may"));
  }
}

Status Save::Wait(Stage stage, TimePoint deadline) {
  std::unique_lock lock(mutex_);
  if (stage_ == Stage::kBuilding && failed_.ok())
    return InvalidArgument(Name() + " is not started: call backstay_save_start_copy() first");
  const bool ended = changed_.wait_until(
      lock, deadline, [&] { return stage_ >= stage || !failed_.ok() || !away_.ok(); });
  if (stage_ >= stage) return Status::Ok();
  if (!failed_.ok()) return failed_;
  if (ended) return away_;
  return DeadlineExceeded(Name() + " is not " + StageName(stage) + " yet; it is being " +
                          StageName(static_cast<Stage>(static_cast<int>(stage_) + 1)));
}

Status Save::WaitCopied(uint32_t group, TimePoint deadline) {
  std::shared_ptr<CopyJob> job;
  {
    const std::lock_guard lock(mutex_);
    job = job_;
    if (job == nullptr && !failed_.ok()) return failed_;
  }
  if (job == nullptr)
    return InvalidArgument(Name() + " is not started: call backstay_save_start_copy() first");
  const TimePoint start = steady_clock::now();
  const CopyJob::Outcome outcome = job->Wait(group, deadline);
  const std::lock_guard lock(mutex_);
  stats_.waited_ns += NanosecondsSince(start);
  switch (outcome) {
    case CopyJob::Outcome::kCopied:
      return Status::Ok();
    case CopyJob::Outcome::kCancelled:
      return failed_;
    case CopyJob::Outcome::kNoSuchGroup:
      return InvalidArgument(Name() + " has no tensor in group " + std::to_string(group));
    case CopyJob::Outcome::kTimedOut:
      break;
  }
  return DeadlineExceeded(Name() + " is not copied yet: its tensors must not change");
}

Status Save::StepIsSound() {
  return client_->connection().SendOneWay(
      local::EncodeFrame(0, local::StepIsSound{.step = snapshot_.step}));
}

Status Save::Abandon() {
  std::shared_ptr<CopyJob> job;
  bool slot_is_gone = false;
  {
    const std::lock_guard lock(mutex_);
    slot_is_gone = slot_is_gone_;
    if (stage_ >= Stage::kSealing && failed_.ok())
      return Stale(Name() + " is being sealed: it cannot be abandoned any more");
    job = job_;
    if (failed_.ok()) failed_ = Stale(Name() + " was abandoned");
    if (job != nullptr) job->Cancel();
    changed_.notify_all();
  }
  // A chunk in the making takes well under a second.
  if (job != nullptr) job->Wait(CopyJob::kAllGroups, TimePoint::max());
  if (slot_is_gone) return Status::Ok();
  const Status sent = client_->connection().Send(
      local::Abandon{.slot_id = use_.slot_id, .epoch = use_.epoch}, [](const Result<Reply>&) {});
  static_cast<void>(sent.ok());  // A service that is away has taken the slot back by itself.
  return Status::Ok();
}

void Save::Release() {
  bool abandon = false;
  {
    const std::lock_guard lock(mutex_);
    abandon = stage_ < Stage::kSealing;
  }
  if (abandon) static_cast<void>(Abandon().ok());
}

Save::Stats Save::GetStats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace backstay::client
