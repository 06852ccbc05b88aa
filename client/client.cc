#include "client/client.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "base/clock.h"
#include "base/os_error.h"
#include "client/limits.h"
#include "client/save.h"

namespace backstay::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// The service ends a wait at the timeout that it was given; its answer gets this long to arrive.
constexpr milliseconds kReplyGrace{500};
constexpr milliseconds kClaimRetryInterval{200};

TimePoint DeadlineOf(uint32_t timeout_ms) {
  return steady_clock::now() + milliseconds(timeout_ms) + kReplyGrace;
}

}  // namespace

Client::Client(std::string socket_path) : connection_(std::move(socket_path), this) {}

Client::~Client() { Close(); }

Status Client::Connect(TimePoint deadline) {
  {
    const ForkGuard guard;
    event_fd_ = GuardedFd(guard, ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  }
  if (!event_fd_.valid()) return OsError(errno, "make the descriptor of the client's events");
  return connection_.Start(deadline);
}

void Client::Close() {
  connection_.Stop();
  copy_threads_.Stop();
}

Result<local::RegisterReply> Client::Register(RegisterRequest request, TimePoint deadline) {
  {
    const std::lock_guard lock(mutex_);
    request.message.generation = generation_;
  }
  return Claim(std::move(request), deadline);
}

Result<local::RegisterReply> Client::Claim(RegisterRequest request, TimePoint deadline) {
  BACKSTAY_ASSIGN_OR_RETURN(Reply reply,
                            connection_.Call(request.message, deadline, "registering"));
  BACKSTAY_ASSIGN_OR_RETURN(const auto registered, reply.Take<local::RegisterReply>());
  {
    const std::lock_guard lock(mutex_);
    if (registered.chunk_bytes != 0) {
      if (!IsChunkSize(registered.chunk_bytes))
        return Corrupt("the service chose chunks of " + std::to_string(registered.chunk_bytes) +
                       " bytes, which is no chunk size");
      chunk_bytes_ = registered.chunk_bytes;
    }
    registration_ = std::move(request);
  }
  // Where a service that came back had refused to register this trainer by itself.
  for (const auto& save : Saves()) save->OnServiceBack();
  return registered;
}

Status Client::Resize(uint64_t size_bytes, TimePoint deadline) {
  BACKSTAY_ASSIGN_OR_RETURN(
      const Reply reply,
      connection_.Call(local::Resize{.size_bytes = size_bytes}, deadline, "resizing"));
  BACKSTAY_RETURN_IF_ERROR(reply.frame.status);
  const std::lock_guard lock(mutex_);
  if (registration_) registration_->message.size_bytes = size_bytes;
  return Status::Ok();
}

Status Client::Finish(bool drop_state, TimePoint deadline) {
  BACKSTAY_ASSIGN_OR_RETURN(
      const Reply reply,
      connection_.Call(local::Finish{.drop_state = drop_state}, deadline, "finishing the job"));
  BACKSTAY_RETURN_IF_ERROR(reply.frame.status);
  const std::lock_guard lock(mutex_);
  registration_.reset();  // Not claimed again after a reconnect.
  return Status::Ok();
}

Result<std::shared_ptr<Save>> Client::Begin(uint64_t step, uint32_t timeout_ms, bool sound_later) {
  const std::string what = "beginning the save of step " + std::to_string(step);
  // A save never waits for a service that is away: training goes on without it.
  if (!connection_.ready()) {
    NoteMissed(GetInfo().generation, step);
    return Unavailable(what + ": the service is away; it is reconnected to in the background");
  }
  const TimePoint start = steady_clock::now();
  Result<Reply> reply = connection_.Call(local::Begin{.step = step, .timeout_ms = timeout_ms},
                                         DeadlineOf(timeout_ms), what.c_str());
  if (!reply.ok()) {
    NoteMissed(GetInfo().generation, step);
    return reply.status();
  }
  const auto begun = reply->Take<local::BeginReply>();
  if (!begun.ok()) {
    GiveBack(reply->frame);  // Its descriptors did not arrive.
    return begun.status();
  }
  uint32_t chunk_bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    chunk_bytes = chunk_bytes_;
    if (generation_ == 0) generation_ = begun->generation;
  }
  auto slot = slots_.Take(*reply, *begun, chunk_bytes);
  if (!slot.ok()) {
    GiveBack(reply->frame);
    return Status(slot.status().code(), what + ": " + slot.status().message());
  }
  const auto took =
      std::chrono::duration_cast<std::chrono::nanoseconds>(steady_clock::now() - start);
  auto save = std::make_shared<Save>(
      shared_from_this(), local::SnapshotRef{.generation = begun->generation, .step = step},
      Save::SlotUse{.connection = reply->epoch,
                    .slot_id = begun->slot_id,
                    .epoch = begun->epoch,
                    .slot = std::move(*slot)},
      sound_later, static_cast<uint64_t>(took.count()));
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(saves_, [](const auto& old) { return old.expired(); });
    saves_.push_back(save);
  }
  // The service frees the slot of a save that failed at once. Copy threads of this process may
  // still be writing to it, and their last chunk must not become one of this save's.
  for (const auto& other : Saves()) {
    const Save::SlotUse& use = other->slot_use();
    if (other == save || use.slot_id != begun->slot_id) continue;
    const bool is_same_connection = use.connection == reply->epoch;
    if (use.connection < reply->epoch || (is_same_connection && use.epoch < begun->epoch)) {
      other->OnSlotTaken();
    }
    if (is_same_connection && use.epoch > begun->epoch) save->OnSlotTaken();
  }
  // Lost before the save was in the list of those that hear of it.
  if (reply->epoch != epoch()) {
    save->OnServiceLost(Unavailable("it went away after it had handed over a slot"));
  }
  return save;
}

Result<std::string> Client::NewAttempt(TimePoint deadline) {
  BACKSTAY_ASSIGN_OR_RETURN(
      Reply reply, connection_.Call(local::NewAttempt{}, deadline, "asking for a new attempt"));
  BACKSTAY_ASSIGN_OR_RETURN(auto attempt, reply.Take<local::NewAttemptReply>());
  return std::move(attempt.uuid);
}

Result<local::Decision> Client::Decide(local::Reconfigure request) {
  std::optional<RegisterRequest> renumbered;
  {
    const std::lock_guard lock(mutex_);
    if (!registration_) return InvalidArgument("register before asking what to restore");
    request.old_generation = generation_;
    if (request.shard_id.empty())
      request.shard_id = registration_->shard_is_rank ? std::to_string(request.rank)
                                                      : registration_->message.shard_id;
    const local::Register& claimed = registration_->message;
    if (claimed.world_size == request.world_size &&
        (claimed.rank != request.rank || claimed.shard_id != request.shard_id)) {
      renumbered = registration_;
      renumbered->message.rank = request.rank;
      renumbered->message.shard_id = request.shard_id;
      renumbered->message.generation = 0;  // As that rank it is in none yet.
    }
  }
  if (renumbered) {
    BACKSTAY_RETURN_IF_ERROR(ClaimRenumbered(*renumbered, DeadlineOf(request.timeout_ms)));
  }
  BACKSTAY_ASSIGN_OR_RETURN(Reply reply,
                            connection_.Call(request, DeadlineOf(request.timeout_ms),
                                             "waiting for the decision what to restore"));
  BACKSTAY_ASSIGN_OR_RETURN(auto decision, reply.Take<local::Decision>());
  const std::lock_guard lock(mutex_);
  if (registration_) {  // What is registered again if the service goes away now.
    registration_->message.rank = request.rank;
    registration_->message.world_size = request.world_size;
    registration_->message.shard_id = request.shard_id;
  }
  return decision;
}

// The memory for the new shard may be another renumbered rank's until that has left it.
Status Client::ClaimRenumbered(const RegisterRequest& request, TimePoint deadline) {
  while (true) {
    const Status claimed = Claim(request, deadline).status();
    if (claimed.code() != StatusCode::kNoSpace) return claimed;
    if (steady_clock::now() + kClaimRetryInterval >= deadline) return claimed;
    std::this_thread::sleep_for(kClaimRetryInterval);
  }
}

Result<std::optional<local::Decision>> Client::FinishRestore(const local::Decision& decision,
                                                             local::FinishRestore request) {
  request.uuid = decision.uuid;
  request.attempt = decision.attempt;
  BACKSTAY_ASSIGN_OR_RETURN(Reply reply, connection_.Call(request, DeadlineOf(request.timeout_ms),
                                                          "waiting until all ranks have restored"));
  BACKSTAY_ASSIGN_OR_RETURN(auto finished, reply.Take<local::FinishRestoreReply>());
  if (!finished.resumed) return std::optional<local::Decision>(std::move(finished.next));
  const std::lock_guard lock(mutex_);
  generation_ = decision.generation;
  if (registration_) registration_->message.generation = decision.generation;
  return std::optional<local::Decision>();
}

Status Client::Fence(const std::string& reason) {
  std::string frame;
  {
    const std::lock_guard lock(mutex_);
    // In no generation yet there is nothing to fence; and a watchdog may repeat itself at any rate.
    if (generation_ == 0 || fenced_generation_ == generation_) return Status::Ok();
    fenced_generation_ = generation_;
    frame = local::EncodeFrame(0, local::Fence{.generation = generation_,
                                               .reason = reason.substr(0, kMessageBytesMax),
                                               .unix_ms = SystemClock().UnixMillis()});
    fence_frame_ = frame;
  }
  return connection_.SendOneWay(std::move(frame));
}

Result<local::SnapshotIndexReply> Client::SnapshotIndex(const local::SnapshotIndex& request,
                                                        TimePoint deadline) {
  BACKSTAY_ASSIGN_OR_RETURN(Reply reply,
                            connection_.Call(request, deadline, "reading the snapshot's index"));
  return reply.Take<local::SnapshotIndexReply>();
}

Result<local::SnapshotRef> Client::NewestCommitted(TimePoint deadline) {
  BACKSTAY_ASSIGN_OR_RETURN(Reply reply,
                            connection_.Call(local::NewestCommitted{}, deadline,
                                             "asking for the newest committed snapshot"));
  BACKSTAY_ASSIGN_OR_RETURN(const auto newest, reply.Take<local::NewestCommittedReply>());
  if (!newest.any) return NotFound("nothing of this job was ever committed");
  return newest.snapshot;
}

Result<local::QuerySnapshotReply> Client::QuerySnapshot(local::SnapshotRef snapshot,
                                                        TimePoint deadline) {
  BACKSTAY_ASSIGN_OR_RETURN(Reply reply,
                            connection_.Call(local::QuerySnapshot{.snapshot = snapshot}, deadline,
                                             "asking what became of a save"));
  return reply.Take<local::QuerySnapshotReply>();
}

Client::Info Client::GetInfo() const {
  const bool connected = connection_.ready();
  const std::lock_guard lock(mutex_);
  return {.connected = connected,
          .node_id = hello_.node_id,
          .incarnation = hello_.incarnation,
          .generation = generation_,
          .chunk_bytes = chunk_bytes_,
          .shard_id = registration_ ? registration_->message.shard_id : std::string()};
}

ClientEvent Client::NextEvent() {
  const std::lock_guard lock(mutex_);
  if (events_.empty()) return {};
  ClientEvent event = std::move(events_.front());
  events_.pop_front();
  if (events_.empty()) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t drained = ::read(event_fd_.get(), &count, sizeof count);
  }
  return event;
}

void Client::PushEvent(ClientEvent event) {
  const std::lock_guard lock(mutex_);
  if (events_.size() == kEventsMax) {
    // The newest are worth most, and one of them says that there is a gap.
    events_.pop_front();
    events_.front() = {.kind = EventKind::kMissed,
                       .status = NoSpace("events were not read and older ones are dropped"),
                       .generation = generation_,
                       .snapshot = {}};
  }
  events_.push_back(std::move(event));
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event_fd_.get(), &one, sizeof one);
}

std::vector<std::shared_ptr<Save>> Client::Saves() {
  std::vector<std::shared_ptr<Save>> saves;
  const std::lock_guard lock(mutex_);
  for (const auto& weak : saves_) {
    if (auto save = weak.lock()) saves.push_back(std::move(save));
  }
  return saves;
}

void Client::OnEvent(const local::Event& event) {
  const auto kind = static_cast<EventKind>(event.kind);
  if (kind == EventKind::kSlotClosed) return CloseSlot(event.slot_id);
  for (const auto& save : Saves()) {
    if (kind == EventKind::kFenced && save->snapshot().generation <= event.generation)
      save->OnFenced(event.status);
    if (save->snapshot() != event.snapshot) continue;
    if (kind == EventKind::kProtected) save->OnReached(Save::Stage::kProtected);
    if (kind == EventKind::kCommitted) save->OnReached(Save::Stage::kCommitted);
    if (kind == EventKind::kSaveFailed) save->OnFailed(event.status);
  }
  PushEvent({.kind = kind,
             .status = event.status,
             .generation = event.generation,
             .snapshot = event.snapshot});
}

void Client::CloseSlot(uint64_t slot_id) {
  slots_.Drop(slot_id, [weak = weak_from_this(), slot_id, epoch = epoch()] {
    const std::shared_ptr<Client> client = weak.lock();
    // A later service has other slots under these numbers.
    if (client == nullptr || client->epoch() != epoch) return;
    client->Ignore(client->connection_.Send(local::SlotUnmapped{.slot_id = slot_id},
                                            [](const Result<Reply>&) {}));
  });
}

void Client::OnLost(const Status& why) {
  slots_.DropAll();  // Its slots are that service's; copy threads keep what they still write to.
  for (const auto& save : Saves()) {
    if (save->OnServiceLost(why)) NoteMissed(save->snapshot().generation, save->snapshot().step);
  }
  PushEvent({.kind = EventKind::kServiceLost, .status = why, .generation = 0, .snapshot = {}});
}

void Client::NoteMissed(uint64_t generation, uint64_t step) {
  const std::lock_guard lock(mutex_);
  const bool newer = !missed_ || missed_->generation < generation ||
                     (missed_->generation == generation && missed_->step < step);
  if (newer) missed_ = local::SnapshotRef{.generation = generation, .step = step};
}

std::optional<local::Register> Client::OnHello(const local::HelloReply& hello) {
  const std::lock_guard lock(mutex_);
  hello_ = hello;
  if (chunk_bytes_ == 0) chunk_bytes_ = hello.chunk_bytes;
  if (!registration_) return std::nullopt;
  local::Register& message = registration_->message;
  message.generation = generation_;
  message.has_missed_step = missed_ && missed_->generation == generation_;
  message.missed_step = message.has_missed_step ? missed_->step : 0;
  missed_told_ = missed_;
  return message;
}

void Client::OnReady(const Status& registered) {
  bool first = false;
  std::string fence;
  {
    const std::lock_guard lock(mutex_);
    first = !seen_ready_;
    seen_ready_ = true;
    if (registered.ok() && missed_ == missed_told_) missed_.reset();
    // The service may have gone away before it read this.
    if (generation_ != 0 && fenced_generation_ == generation_) fence = fence_frame_;
  }
  if (first) return;
  if (!fence.empty()) Ignore(connection_.SendOneWay(std::move(fence)));
  for (const auto& save : Saves()) save->OnServiceBack();
  PushEvent(
      {.kind = EventKind::kServiceBack, .status = registered, .generation = 0, .snapshot = {}});
}

void Client::OnLateReply(Reply reply) { GiveBack(reply.frame); }

void Client::GiveBack(const local::ServiceFrame& frame) {
  if (const auto* begun = std::get_if<local::BeginReply>(&frame.body)) {
    Ignore(connection_.Send(local::Abandon{.slot_id = begun->slot_id, .epoch = begun->epoch},
                            [](const Result<Reply>&) {}));
  } else if (const auto* fetched = std::get_if<local::FetchReply>(&frame.body)) {
    CloseShard(fetched->handle);
  }
}

void Client::CloseShard(uint64_t handle) {
  Ignore(connection_.Send(local::CloseShard{.handle = handle}, [](const Result<Reply>&) {}));
}

}  // namespace backstay::client
