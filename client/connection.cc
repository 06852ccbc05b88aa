#include "client/connection.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/os_error.h"
#include "base/version.h"
#include "client/limits.h"
#include "client/quiet_thread.h"

namespace backstay::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A service that restarts is seen soon; one that stays away costs a connect every two seconds.
constexpr milliseconds kBackoffMin{20};
constexpr milliseconds kBackoffMax{2000};
// How long a service may take to answer Hello and Register before it counts as away.
constexpr milliseconds kHandshakeTimeout{60'000};
constexpr size_t kPendingMax = 4096;
constexpr size_t kHeldMax = 16;
constexpr size_t kReadBytes = 256 * kKiB;

// How many descriptors come with a frame.
size_t DescriptorCount(const local::ServiceFrame& frame) {
  if (const auto* begin = std::get_if<local::BeginReply>(&frame.body))
    return begin->has_fds ? kFrameDescriptorsMax : 0;
  return std::holds_alternative<local::FetchReply>(frame.body) ? kFrameDescriptorsMax : 0;
}

}  // namespace

Connection::Connection(std::string socket_path, Listener* listener)
    : socket_path_(std::move(socket_path)), listener_(listener), backoff_(kBackoffMin) {}

Connection::~Connection() { Stop(); }

Status Connection::Start(TimePoint deadline) {
  if (socket_path_.empty() || socket_path_.size() >= sizeof(sockaddr_un::sun_path)) {
    return InvalidArgument("the socket path \"" + socket_path_ + "\" is empty or longer than " +
                           std::to_string(sizeof(sockaddr_un::sun_path) - 1) + " bytes");
  }
  {
    const ForkGuard guard;
    wake_ = GuardedFd(guard, ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  }
  if (!wake_.valid()) return OsError(errno, "make a descriptor to wake the client's thread");
  retry_at_ = steady_clock::now();
  away_because_ = Unavailable("connecting to " + socket_path_);
  thread_ = StartQuietThread("backstay-io", [this] { Run(); });
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [this] {
    return phase_ == Phase::kReady || (phase_ == Phase::kAway && version_refused_);
  });
  if (phase_ == Phase::kReady) return Status::Ok();
  return away_because_;
}

void Connection::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  if (!thread_.joinable()) return;
  Wake();
  thread_.join();
}

bool Connection::ready() const {
  const std::lock_guard lock(mutex_);
  return phase_ == Phase::kReady;
}

void Connection::Wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then it is awake.
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

Status Connection::SendFrame(const Encoder& encode, Completion done) {
  uint64_t request = 0;
  {
    const std::lock_guard lock(mutex_);
    request = next_request_++;
  }
  // Not under the lock: contents may have many MiB, and a fence must not wait for them.
  std::string frame = encode(request);
  if (frame.size() - sizeof(uint32_t) > kFrameBytesMax) {
    return NoSpace("a request of " + FormatBytes(frame.size()) + " is longer than " +
                   FormatBytes(kFrameBytesMax) + ": the shard has too many tensors");
  }
  {
    const std::lock_guard lock(mutex_);
    // Why it cannot be reached (no socket, no permission) says nothing of what was asked for.
    if (phase_ != Phase::kReady)
      return Unavailable("the service is away: " + away_because_.message());
    if (pending_.size() >= kPendingMax || outgoing_bytes_ >= kOutgoingBytesMax)
      return NoSpace("the service does not answer: too many requests wait for it");
    outgoing_bytes_ += frame.size();
    outgoing_.push_back(std::move(frame));
    pending_.emplace(request, std::move(done));
  }
  Wake();
  return Status::Ok();
}

Result<Reply> Connection::CallFrame(const Encoder& encode, TimePoint deadline, const char* what) {
  struct Waiter {
    std::mutex mutex;
    std::condition_variable answered;
    std::optional<Result<Reply>> result;
    bool given_up = false;
  };
  {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [this] { return phase_ == Phase::kReady || stop_; });
  }
  auto waiter = std::make_shared<Waiter>();
  BACKSTAY_RETURN_IF_ERROR(SendFrame(encode, [waiter, this](Result<Reply> result) {
    std::unique_lock lock(waiter->mutex);
    if (!waiter->given_up) {
      waiter->result.emplace(std::move(result));
      waiter->answered.notify_all();
      return;
    }
    lock.unlock();
    if (result.ok()) listener_->OnLateReply(std::move(*result));
  }));
  std::unique_lock lock(waiter->mutex);
  waiter->given_up =
      !waiter->answered.wait_until(lock, deadline, [&] { return waiter->result.has_value(); });
  if (waiter->given_up)
    return DeadlineExceeded(std::string(what) + ": the service did not answer in time");
  return std::move(*waiter->result);
}

Status Connection::SendOneWay(std::string frame) {
  {
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::kReady) {
      if (outgoing_bytes_ >= kOutgoingBytesMax)
        return NoSpace("the service does not read what it is sent");
      outgoing_bytes_ += frame.size();
      outgoing_.push_back(std::move(frame));
    } else {
      if (held_.size() == kHeldMax) held_.pop_front();
      held_.push_back(std::move(frame));
    }
  }
  Wake();
  return Status::Ok();
}

int Connection::PollTimeoutMs() const {
  TimePoint until;
  {
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::kReady) return -1;
    until = phase_ == Phase::kAway ? retry_at_ : handshake_until_;
  }
  const auto left =
      std::chrono::duration_cast<milliseconds>(until - steady_clock::now()) + milliseconds(1);
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, kHandshakeTimeout.count()));
}

void Connection::Run() {
  while (true) {
    pollfd fds[2] = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                     {.fd = socket_.get(), .events = POLLIN, .revents = 0}};
    {
      const std::lock_guard lock(mutex_);
      if (stop_) break;
      if (!outgoing_.empty()) fds[1].events |= POLLOUT;
    }
    ::poll(fds, socket_.valid() ? 2 : 1, PollTimeoutMs());
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t drained = ::read(wake_.get(), &count, sizeof count);
    Status status;
    if (fds[1].revents & (POLLIN | POLLHUP | POLLERR)) status = ReadSocket();
    if (status.ok() && socket_.valid()) status = WriteSocket();
    if (!status.ok()) Lose(status);
    const TimePoint now = steady_clock::now();
    if (!socket_.valid()) {
      if (now >= retry_at_) TryConnect();
    } else if (!ready() && now >= handshake_until_) {
      Lose(Unavailable("the service at " + socket_path_ + " accepts but does not answer"));
    }
  }
  Lose(Unavailable("the client is closed"));
  const std::lock_guard lock(mutex_);
  phase_ = Phase::kStopped;
  changed_.notify_all();
}

void Connection::TryConnect() {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_path_.data(), socket_path_.size());
  int error = 0;
  {
    const ForkGuard guard;
    socket_ = GuardedFd(guard, ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket_.valid()) error = errno;
  }
  if (socket_.valid() &&
      ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    error = errno;
  if (error != 0) {
    Status status = OsError(error, "connect to the node's service at " + socket_path_);
    if (error == ENOENT || error == ECONNREFUSED)
      status = Status(status.code(), status.message() + "; is backstayd running on this node?");
    return Lose(status);
  }
  handshake_until_ = steady_clock::now() + kHandshakeTimeout;
  const std::lock_guard lock(mutex_);
  phase_ = Phase::kSayingHello;
  outgoing_.push_back(local::EncodeFrame(
      next_request_++,
      local::Hello{.pid = static_cast<uint32_t>(::getpid()), .client_version = kVersion}));
  outgoing_bytes_ = outgoing_.back().size();
}

// Hello's reply, then Register's: nothing else is outstanding meanwhile.
void Connection::Handshake(Reply reply) {
  if (phase_ == Phase::kRegistering) return BecomeReady(reply.frame.status);
  Result<local::HelloReply> hello = reply.Take<local::HelloReply>();
  if (!hello.ok()) {
    {
      const std::lock_guard lock(mutex_);
      version_refused_ = hello.status().code() == StatusCode::kInvalidArgument;
    }
    return Lose(hello.status());
  }
  if (hello->protocol_version != kLocalProtocolVersion || !IsChunkSize(hello->chunk_bytes)) {
    {
      const std::lock_guard lock(mutex_);
      version_refused_ = true;
    }
    return Lose(InvalidArgument(
        "the service at " + socket_path_ + " (version " + hello->service_version +
        ") speaks protocol version " + std::to_string(hello->protocol_version) +
        " with chunks of " + std::to_string(hello->chunk_bytes) +
        " bytes; this library speaks version " + std::to_string(kLocalProtocolVersion) +
        ": use the library that came with the service"));
  }
  std::optional<local::Register> registration = listener_->OnHello(*hello);
  if (!registration) return BecomeReady(Status::Ok());
  const std::lock_guard lock(mutex_);
  phase_ = Phase::kRegistering;
  outgoing_.push_back(local::EncodeFrame(next_request_++, *registration));
  outgoing_bytes_ += outgoing_.back().size();
}

void Connection::BecomeReady(const Status& registered) {
  backoff_ = kBackoffMin;
  {
    const std::lock_guard lock(mutex_);
    phase_ = Phase::kReady;
    version_refused_ = false;
    for (std::string& frame : held_) {
      outgoing_bytes_ += frame.size();
      outgoing_.push_back(std::move(frame));
    }
    held_.clear();
  }
  listener_->OnReady(registered);
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

Status Connection::ReadSocket() {
  while (true) {
    const size_t have = incoming_.size();
    incoming_.resize(have + kReadBytes);
    iovec piece = {.iov_base = incoming_.data() + have, .iov_len = kReadBytes};
    alignas(cmsghdr) char control[CMSG_SPACE(kFrameDescriptorsMax * sizeof(int))];
    msghdr message = {};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    ssize_t got = 0;
    int error = 0;
    {
      const ForkGuard guard;
      got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
      error = errno;
      for (cmsghdr* header = got < 0 ? nullptr : CMSG_FIRSTHDR(&message); header != nullptr;
           header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; ++i) {
          int fd = -1;
          std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
          incoming_descriptors_.emplace_back(guard, fd);
        }
      }
    }
    incoming_.resize(have + (got > 0 ? static_cast<size_t>(got) : 0));
    if (got < 0 && error == EINTR) continue;
    if (got < 0 && (error == EAGAIN || error == EWOULDBLOCK)) return Status::Ok();
    if (got < 0) return Unavailable("the service is gone: " + OsErrorText(error));
    if (got == 0) return Unavailable("the service at " + socket_path_ + " is gone");
    if (message.msg_flags & MSG_CTRUNC) descriptors_dropped_ = true;
    BACKSTAY_RETURN_IF_ERROR(TakeFrames());
    if (!socket_.valid()) return Status::Ok();  // A refused handshake has ended the connection.
  }
}

Status Connection::TakeFrames() {
  size_t at = 0;
  while (socket_.valid() && incoming_.size() - at >= sizeof(uint32_t)) {
    uint32_t size = 0;
    for (size_t i = 0; i < sizeof size; ++i)
      size |= static_cast<uint32_t>(static_cast<unsigned char>(incoming_[at + i])) << (8 * i);
    if (size > kFrameBytesMax)
      return Unavailable("the service sent a frame of " + std::to_string(size) +
                         " bytes, more than the protocol's limit");
    if (incoming_.size() - at - sizeof size < size) break;
    Result<local::ServiceFrame> frame =
        local::DecodeServiceFrame(std::string_view(incoming_).substr(at + sizeof size, size));
    at += sizeof size + size;
    if (!frame.ok()) return Unavailable(frame.status().message());
    Reply reply{.epoch = epoch(), .frame = std::move(*frame), .descriptors = {}};
    TakeDescriptors(&reply);
    BACKSTAY_RETURN_IF_ERROR(Dispatch(std::move(reply)));
  }
  if (!socket_.valid()) return Status::Ok();
  incoming_.erase(0, at);
  if (incoming_descriptors_.size() > kFrameDescriptorsMax)
    return Unavailable("the service sent descriptors that belong to no frame");
  return Status::Ok();
}

// Descriptors come with the first byte of their frame, so those of a whole frame are the oldest.
void Connection::TakeDescriptors(Reply* reply) {
  const size_t count = DescriptorCount(reply->frame);
  if (count == 0 || !reply->frame.status.ok()) return;
  if (incoming_descriptors_.size() >= count) {
    const auto end = incoming_descriptors_.begin() + static_cast<ptrdiff_t>(count);
    std::move(incoming_descriptors_.begin(), end, std::back_inserter(reply->descriptors));
    incoming_descriptors_.erase(incoming_descriptors_.begin(), end);
    return;
  }
  reply->frame.status =
      descriptors_dropped_
          ? PermissionDenied(
                "the memory that the service handed over did not arrive: a security module "
                "(SELinux, AppArmor) or this process's limit of open files dropped its descriptors "
                "(MSG_CTRUNC)")
          : Unavailable("the service announced memory and sent no descriptors for it");
  incoming_descriptors_.clear();
  descriptors_dropped_ = false;
}

Status Connection::Dispatch(Reply reply) {
  const uint64_t request = reply.frame.request;
  if (request == 0) {
    if (!reply.frame.status.ok()) return reply.frame.status;  // Why the service hangs up.
    if (const auto* event = std::get_if<local::Event>(&reply.frame.body))
      listener_->OnEvent(*event);
    return Status::Ok();  // Another one-way message is of a newer service.
  }
  Completion done;
  bool handshake = false;
  {
    const std::lock_guard lock(mutex_);
    handshake = phase_ != Phase::kReady;
    if (const auto found = pending_.find(request); found != pending_.end()) {
      done = std::move(found->second);
      pending_.erase(found);
    }
  }
  if (handshake) {
    Handshake(std::move(reply));
    return Status::Ok();
  }
  if (!done) {
    return Unavailable("the service answered request " + std::to_string(request) +
                       ", which is not outstanding");
  }
  done(std::move(reply));
  return Status::Ok();
}

Status Connection::WriteSocket() {
  while (true) {
    const std::string* frame = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (outgoing_.empty()) return Status::Ok();
      frame = &outgoing_.front();  // Stays: only this thread takes frames out.
    }
    const ssize_t sent = ::send(socket_.get(), frame->data() + sent_bytes_,
                                frame->size() - sent_bytes_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Status::Ok();
    if (sent < 0) return Unavailable("the service is gone: " + OsErrorText(errno));
    sent_bytes_ += static_cast<size_t>(sent);
    if (sent_bytes_ < frame->size()) continue;
    sent_bytes_ = 0;
    const std::lock_guard lock(mutex_);
    outgoing_bytes_ -= outgoing_.front().size();
    outgoing_.pop_front();
  }
}

void Connection::Lose(const Status& why) {
  socket_.Reset();
  incoming_.clear();
  incoming_descriptors_.clear();
  descriptors_dropped_ = false;
  sent_bytes_ = 0;
  retry_at_ = steady_clock::now() + backoff_;
  backoff_ = std::min(2 * backoff_, kBackoffMax);
  std::map<uint64_t, Completion> lost;
  bool was_ready = false;
  {
    const std::lock_guard lock(mutex_);
    was_ready = phase_ == Phase::kReady;
    if (was_ready) ++epoch_;
    phase_ = Phase::kAway;
    away_because_ = why;
    lost.swap(pending_);
    outgoing_.clear();
    outgoing_bytes_ = 0;
    changed_.notify_all();
  }
  const Status gone = Unavailable("the service went away before it answered: " + why.message());
  for (auto& [request, done] : lost) done(gone);
  if (was_ready) listener_->OnLost(why);
}

}  // namespace backstay::client
