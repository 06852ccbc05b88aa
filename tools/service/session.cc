#include "tools/service/session.h"

#include <sys/epoll.h>

#include <array>
#include <cstring>

#include "base/log.h"
#include "base/socket.h"
#include "base/units.h"
#include "store/slot_memory.h"
#include "tools/service/session_convert.h"
#include "tools/service/session_server.h"

namespace backstay::tools {

namespace wire = client::wire;

namespace {

constexpr size_t kReadBytes = 64 * 1024;
// Bytes read in one turn of the loop, so that one trainer's large manifest does not hold up the
// others.
constexpr size_t kReadBytesPerTurn = 4 * 1024 * 1024;

std::string Encode(const wire::ServiceFrame& frame) {
  const uint32_t length = static_cast<uint32_t>(frame.ByteSizeLong());
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  frame.AppendToString(&bytes);
  return bytes;
}

}  // namespace

Session::Session(SessionServer& server, SessionId id, UniqueFd fd, pid_t pid,
                 replication::ProcessId process)
    : server_(server), id_(id), fd_(std::move(fd)), pid_(pid), process_(process) {}

Session::~Session() {
  server_.loop_.CancelTimer(hello_timer_);
  server_.loop_.UnwatchFd(fd_.get());
}

Status Session::Start() {
  BACKSTAY_RETURN_IF_ERROR(SetNonBlocking(fd_.get(), true));
  const Duration timeout = server_.options_.hello_timeout;
  hello_timer_ = server_.loop_.RunAfter(timeout, lifetime_.Wrap([this, timeout] {
    Fail(DeadlineExceeded("the client has not said Hello within " +
                          std::to_string(ToMillis(timeout)) + " ms"));
  }));
  trainer_ = server_.port_.Connect(process_, this);
  return server_.loop_.WatchFd(fd_.get(), EPOLLIN, [this](uint32_t events) { OnReady(events); });
}

void Session::OnReady(uint32_t epoll_events) {
  if (closing_) return;
  if ((epoll_events & EPOLLOUT) != 0) Flush();
  if ((epoll_events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return;
  const Status status = ReadFrames();
  if (!status.ok()) Fail(status);
}

Status Session::ReadFrames() {
  std::array<std::byte, kReadBytes> buffer;
  for (size_t total = 0; total < kReadBytesPerTurn && !closing_;) {
    Result<Received> got = ReceiveWithFds(fd_.get(), buffer);
    if (!got.ok() ||
        got->state == IoState::kClosed) {  // The client is gone; its process may come back.
      closing_ = true;
      server_.Close(id_);
      return Status::Ok();
    }
    if (got->state == IoState::kWouldBlock) return Status::Ok();
    received_.append(reinterpret_cast<const char*>(buffer.data()), got->size_bytes);
    total += got->size_bytes;
    BACKSTAY_RETURN_IF_ERROR(TakeFrames());
  }
  return Status::Ok();
}

size_t Session::FrameBytesMax() const {
  switch (stage_) {
    case Stage::kNew:
      return client::kHelloFrameBytesMax;
    case Stage::kGreeted:
      return client::kUnclaimedFrameBytesMax;
    case Stage::kClaimed:
      break;
  }
  return client::kFrameBytesMax;
}

Status Session::TakeFrames() {
  size_t at = 0;
  while (received_.size() - at >= sizeof(uint32_t) && !closing_) {
    uint32_t length = 0;
    std::memcpy(&length, received_.data() + at, sizeof(length));
    if (length > FrameBytesMax()) {
      return InvalidArgument("a frame of " + std::to_string(length) +
                             " bytes is over the limit of " + std::to_string(FrameBytesMax()) +
                             (stage_ == Stage::kNew       ? " before Hello"
                              : stage_ == Stage::kGreeted ? " before a shard is claimed"
                                                          : ""));
    }
    if (received_.size() - at - sizeof(length) < length) break;
    wire::ClientFrame frame;
    if (!frame.ParseFromArray(received_.data() + at + sizeof(length), static_cast<int>(length))) {
      return InvalidArgument("a frame that is no ClientFrame");
    }
    at += sizeof(length) + length;
    BACKSTAY_RETURN_IF_ERROR(OnFrame(frame));
  }
  received_.erase(0, at);
  // One large manifest must not hold its memory for as long as the trainer runs.
  if (received_.empty() && received_.capacity() > kKeptReceiveBytesMax) received_.shrink_to_fit();
  return Status::Ok();
}

Status Session::OnFrame(const wire::ClientFrame& frame) {
  if (frame.has_hello()) {
    OnHello(frame.request(), frame.hello());
    return Status::Ok();
  }
  if (!greeted()) return InvalidArgument("the first frame must be Hello");
  if (OnClaimRequest(frame) || OnSaveRequest(frame) || OnRecoveryRequest(frame) ||
      OnReadRequest(frame)) {
    return Status::Ok();
  }
  Reply(frame.request(),
        InvalidArgument("this service does not know that request; is the library newer?"));
  return Status::Ok();
}

void Session::OnHello(uint64_t request, const wire::Hello& hello) {
  if (hello.protocol_version() != client::kLocalProtocolVersion) {
    Reply(request, InvalidArgument(
                       "the library speaks local protocol version " +
                       std::to_string(hello.protocol_version()) + ", this service version " +
                       std::to_string(client::kLocalProtocolVersion) + ": update the older one"));
    return;
  }
  if (!greeted()) {
    stage_ = Stage::kGreeted;
    server_.loop_.CancelTimer(hello_timer_);
    server_.OnGreeted(id_);
  }
  const NodeInstance self = server_.options_.self();
  wire::ServiceFrame frame;
  frame.set_request(request);
  wire::HelloReply& reply = *frame.mutable_hello();
  reply.set_protocol_version(client::kLocalProtocolVersion);
  reply.set_node_id(self.node.value);
  reply.set_incarnation(self.incarnation.value);
  reply.set_service_version(server_.options_.version);
  reply.set_chunk_bytes(server_.options_.chunk_bytes);
  Send(frame);
}

StatusCompletion Session::Answer(uint64_t request) {
  return lifetime_.Wrap([this, request](const Status& status) { Reply(request, status); });
}

template <typename T, typename Fill>
Completion<T> Session::Answer(uint64_t request, Fill fill) {
  return lifetime_.Wrap([this, request, fill](Result<T> result) {
    if (!result.ok()) return Reply(request, result.status());
    wire::ServiceFrame frame;
    frame.set_request(request);
    fill(*result, frame);
    Send(frame);
  });
}

bool Session::OnClaimRequest(const wire::ClientFrame& frame) {
  const uint64_t request = frame.request();
  switch (frame.body_case()) {
    case wire::ClientFrame::kRegister:
      trainer_->Register(FromWire(frame.register_()),
                         Answer<replication::ClaimReply>(
                             request, [this](const auto& reply, wire::ServiceFrame& out) {
                               stage_ = Stage::kClaimed;
                               ToWire(reply, *out.mutable_register_());
                             }));
      return true;
    case wire::ClientFrame::kResize:
      trainer_->Resize(frame.resize().size_bytes(), Answer(request));
      return true;
    case wire::ClientFrame::kFinish:
      trainer_->Finish(frame.finish().drop_state(), Answer(request));
      return true;
    default:
      return false;
  }
}

bool Session::OnSaveRequest(const wire::ClientFrame& frame) {
  const uint64_t request = frame.request();
  switch (frame.body_case()) {
    case wire::ClientFrame::kBegin:
      Begin(request, frame.begin());
      return true;
    case wire::ClientFrame::kStartCopy:
      StartCopy(request, frame.start_copy());
      return true;
    case wire::ClientFrame::kSeal:
      trainer_->Seal(
          SaveIn(frame.seal().slot_id(), frame.seal().epoch()), frame.seal().sound(),
          Answer<std::string>(request, [](const std::string& digest, wire::ServiceFrame& out) {
            out.mutable_seal()->set_digest(digest);
          }));
      return true;
    case wire::ClientFrame::kStepIsSound:
      trainer_->StepIsSound(Step(frame.step_is_sound().step()), Answer(request));
      return true;
    case wire::ClientFrame::kSlotUnmapped:
      trainer_->SlotUnmapped(frame.slot_unmapped().slot_id(), Answer(request));
      return true;
    case wire::ClientFrame::kAbandon:
      trainer_->Abandon(SaveIn(frame.abandon().slot_id(), frame.abandon().epoch()),
                        Answer(request));
      return true;
    case wire::ClientFrame::kQuerySnapshot:
      trainer_->QuerySnapshot(FromWire(frame.query_snapshot().snapshot()),
                              Answer<replication::QuerySnapshotReply>(
                                  request, [](const auto& reply, wire::ServiceFrame& out) {
                                    ToWire(reply, *out.mutable_query_snapshot());
                                  }));
      return true;
    default:
      return false;
  }
}

bool Session::OnRecoveryRequest(const wire::ClientFrame& frame) {
  const uint64_t request = frame.request();
  switch (frame.body_case()) {
    case wire::ClientFrame::kFence:
      trainer_->Fence(Generation(frame.fence().generation()), frame.fence().reason(),
                      frame.fence().unix_ms());
      if (request != 0) Reply(request, Status::Ok());
      return true;
    case wire::ClientFrame::kNewAttempt:
      trainer_->NewAttempt(
          Answer<AttemptUuid>(request, [](const AttemptUuid& uuid, wire::ServiceFrame& out) {
            out.mutable_new_attempt()->set_uuid(uuid.value);
          }));
      return true;
    case wire::ClientFrame::kReconfigure:
      trainer_->Reconfigure(FromWire(frame.reconfigure()),
                            Answer<replication::DecisionReply>(
                                request, [](const auto& reply, wire::ServiceFrame& out) {
                                  ToWire(reply, *out.mutable_decision());
                                }));
      return true;
    case wire::ClientFrame::kFinishRestore:
      trainer_->FinishRestore(FromWire(frame.finish_restore()),
                              Answer<replication::FinishRestoreReply>(
                                  request, [](const auto& reply, wire::ServiceFrame& out) {
                                    ToWire(reply, *out.mutable_finish_restore());
                                  }));
      return true;
    default:
      return false;
  }
}

bool Session::OnReadRequest(const wire::ClientFrame& frame) {
  const uint64_t request = frame.request();
  switch (frame.body_case()) {
    case wire::ClientFrame::kFetch:
      Fetch(request, frame.fetch());
      return true;
    case wire::ClientFrame::kFetchChunks:
      trainer_->FetchChunks(replication::FetchHandle(frame.fetch_chunks().handle()),
                            frame.fetch_chunks().first_chunk(), frame.fetch_chunks().chunk_count(),
                            Answer(request));
      return true;
    case wire::ClientFrame::kReportBadChunks: {
      const auto& bad = frame.report_bad_chunks();
      trainer_->ReportBadChunks(replication::FetchHandle(bad.handle()),
                                {bad.chunks().begin(), bad.chunks().end()},
                                Answer<bool>(request, [](bool reopened, wire::ServiceFrame& out) {
                                  out.mutable_bad_chunks()->set_reopened(reopened);
                                }));
      return true;
    }
    case wire::ClientFrame::kCloseShard:
      trainer_->CloseShard(replication::FetchHandle(frame.close_shard().handle()), Answer(request));
      return true;
    case wire::ClientFrame::kSnapshotIndex:
      trainer_->SnapshotIndex(JobName(frame.snapshot_index().job()),
                              FromWire(frame.snapshot_index().snapshot()),
                              Answer<replication::SnapshotIndexReply>(
                                  request, [](const auto& reply, wire::ServiceFrame& out) {
                                    ToWire(reply, *out.mutable_snapshot_index());
                                  }));
      return true;
    case wire::ClientFrame::kNewestCommitted:
      NewestCommitted(request);
      return true;
    default:
      return false;
  }
}

void Session::Begin(uint64_t request, const wire::Begin& begin) {
  trainer_->Begin(Step(begin.step()), std::chrono::milliseconds(begin.timeout_ms()),
                  lifetime_.Wrap([this, request](Result<replication::BeginReply> begun) {
                    if (!begun.ok()) return Reply(request, begun.status());
                    HandedOutSlot& slot = slots_[begun->slot_id];
                    slot.save = begun->save;
                    slot.epoch = begun->epoch;
                    wire::ServiceFrame frame;
                    frame.set_request(request);
                    ToWire(*begun, *frame.mutable_begin());
                    frame.mutable_begin()->set_has_fds(!slot.mapped);
                    if (slot.mapped) return Send(frame);
                    const store::SlotMemory& memory = *begun->memory;
                    Send(frame, {memory.data_fd(), memory.control_fd()}, begun->memory);
                  }));
}

void Session::StartCopy(uint64_t request, const wire::StartCopy& start) {
  const auto slot = slots_.find(start.slot_id());
  // Only now: a client that could not map what it was sent is sent it again.
  if (slot != slots_.end()) slot->second.mapped = true;
  trainer_->StartCopy(SaveIn(start.slot_id(), start.epoch()), start.used_bytes(), start.contents(),
                      Answer(request));
}

void Session::Fetch(uint64_t request, const wire::Fetch& fetch) {
  trainer_->Fetch(FromWire(fetch),
                  lifetime_.Wrap([this, request](Result<replication::FetchReply> opened) {
                    if (!opened.ok()) return Reply(request, opened.status());
                    Result<store::SlotMemory::ReadOnlyFds> fds = opened->memory->OpenReadOnly();
                    if (!fds.ok()) return Reply(request, fds.status());
                    wire::ServiceFrame frame;
                    frame.set_request(request);
                    ToWire(*opened, *frame.mutable_fetch());
                    auto kept = std::make_shared<store::SlotMemory::ReadOnlyFds>(std::move(*fds));
                    Send(frame, {kept->data.get(), kept->control.get()}, kept);
                  }));
}

// "There is none" is an answer here, not an error.
void Session::NewestCommitted(uint64_t request) {
  trainer_->NewestCommitted(lifetime_.Wrap([this, request](Result<SnapshotId> newest) {
    if (!newest.ok() && newest.status().code() != StatusCode::kNotFound)
      return Reply(request, newest.status());
    wire::ServiceFrame frame;
    frame.set_request(request);
    frame.mutable_newest_committed()->set_any(newest.ok());
    if (newest.ok()) ToWire(*newest, *frame.mutable_newest_committed()->mutable_snapshot());
    Send(frame);
  }));
}

// The save of one use of a slot. A number that was never handed out names no save, nor does an
// earlier use (the slot may have gone to the next save before the client heard of it), and the
// trainer's answer says so.
replication::SaveHandle Session::SaveIn(uint64_t slot_id, uint64_t epoch) const {
  const auto slot = slots_.find(slot_id);
  const bool known = slot != slots_.end() && slot->second.epoch == epoch;
  return known ? slot->second.save : replication::SaveHandle();
}

void Session::OnEvent(const replication::TrainerEvent& event) {
  // A slot that was never handed over on this connection is not mapped through it.
  const bool closed = event.kind == replication::TrainerEvent::Kind::kSlotClosed;
  if (closed && slots_.erase(event.slot_id) == 0) return;
  wire::ServiceFrame frame;
  ToWire(event, *frame.mutable_event());
  Send(frame);
}

void Session::Reply(uint64_t request, const Status& status) {
  if (request == 0) return;  // One-way.
  wire::ServiceFrame frame;
  frame.set_request(request);
  if (!status.ok()) ToWire(status, *frame.mutable_status());
  Send(frame);
}

void Session::Send(const wire::ServiceFrame& frame, std::vector<int> fds,
                   std::shared_ptr<void> keeps_fds_alive) {
  if (closing_) return;
  if (frame.ByteSizeLong() > client::kFrameBytesMax) {
    return Reply(frame.request(), NoSpace("the answer has " + FormatBytes(frame.ByteSizeLong()) +
                                          ", more than the " + FormatBytes(client::kFrameBytesMax) +
                                          " that one message may have"));
  }
  Outgoing outgoing;
  outgoing.bytes = Encode(frame);
  outgoing.fds = std::move(fds);
  outgoing.keeps_fds_alive = std::move(keeps_fds_alive);
  queued_bytes_ += outgoing.bytes.size();
  queue_.push_back(std::move(outgoing));
  if (queued_bytes_ > (greeted() ? kQueuedBytesMax : kNewQueuedBytesMax))
    return Fail(NoSpace("the client does not read its replies"));
  Flush();
}

void Session::Flush() {
  while (!queue_.empty() && !closing_) {
    Outgoing& next = queue_.front();
    const std::span<const char> rest(next.bytes.data() + next.sent_bytes,
                                     next.bytes.size() - next.sent_bytes);
    const Result<Sent> sent =
        SendWithFds(fd_.get(), std::as_bytes(rest),
                    next.sent_bytes == 0 ? std::span<const int>(next.fds) : std::span<const int>());
    if (!sent.ok()) {  // The client is gone.
      closing_ = true;
      return server_.Close(id_);
    }
    if (sent->state == IoState::kWouldBlock) {
      return WaitToWrite(true);
    }
    next.sent_bytes += sent->size_bytes;
    if (next.sent_bytes < next.bytes.size()) continue;
    queued_bytes_ -= next.bytes.size();
    queue_.pop_front();
  }
  if (!closing_) WaitToWrite(false);
}

void Session::WaitToWrite(bool waits) {
  if (waits == waits_to_write_) return;
  waits_to_write_ = waits;
  server_.loop_.UpdateFd(fd_.get(), waits ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void Session::Fail(const Status& status) {
  if (closing_) return;
  Log(LogLevel::kWarning, "trainer connection ended",
      {{"pid", std::to_string(pid_)}, {"error", status.ToString()}});
  closing_ = true;
  if (queue_.empty()) SendFarewell(fd_.get(), status);  // Never into the middle of another frame.
  server_.Close(id_);
}

void Session::SendFarewell(int fd, const Status& why) {
  wire::ServiceFrame frame;
  ToWire(why, *frame.mutable_status());
  const std::string bytes = Encode(frame);
  const Result<Sent> sent = SendWithFds(fd, std::as_bytes(std::span(bytes)), {});
  static_cast<void>(sent.ok());
}

}  // namespace backstay::tools
