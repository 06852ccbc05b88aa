#include "transport/tcp/served_connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "transport/tcp/grant_proof.h"

namespace backstay::transport {

namespace {

// What is sent in place of a region whose grant has ended.
constexpr std::array<std::byte, 64 * kKiB> kPadding{};

template <typename... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <typename... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

Status SocketError(const std::string& what, const std::string& peer) {
  return Unavailable(what + " " + peer + ": " + std::system_category().message(errno));
}

Nonce DrawNonce(Random* random) {
  Nonce nonce;
  const std::string bytes = random->Bytes(nonce.size());
  std::memcpy(nonce.data(), bytes.data(), nonce.size());
  return nonce;
}

}  // namespace

ServedConnection::ServedConnection(UniqueFd fd, std::string peer_address,
                                   const ServeContext* context, Random* random, Instant now)
    : fd_(std::move(fd)),
      peer_address_(std::move(peer_address)),
      context_(context),
      random_(random),
      accepted_at_(now),
      last_progress_(now) {}

Instant ServedConnection::closes_at() const {
  if (!greeted_) return accepted_at_ + kHelloTimeout;
  return last_progress_ + (wants_output() ? kReaderStallTimeout : kConnectionIdleTimeout);
}

bool ServedConnection::wants_input() const {
  return !closing_ && reads_.size() < kReadsQueuedMax &&
         before_payload_.size() + after_payload_.size() < kControlBytesMax;
}

bool ServedConnection::wants_output() const {
  return payload_.has_value() || !before_payload_.empty() || !reads_.empty();
}

Status ServedConnection::Receive(Instant now) {
  // Room for at least one whole frame: what is left unhandled is moved to the front.
  std::memmove(input_.data(), input_.data() + input_begin_, input_end_ - input_begin_);
  input_end_ -= std::exchange(input_begin_, 0);
  if (input_end_ < input_.size()) {
    const ssize_t received =
        recv(fd_.get(), input_.data() + input_end_, input_.size() - input_end_, MSG_DONTWAIT);
    if (received == 0) return Unavailable("the reader closed the connection");
    if (received < 0) {
      if (errno == EAGAIN || errno == EINTR) return HandleFrames();
      return SocketError("receive from", peer_address_);
    }
    input_end_ += static_cast<size_t>(received);
    last_progress_ = now;
  }
  return HandleFrames();
}

Status ServedConnection::HandleFrames() {
  while (wants_input()) {
    const auto bytes =
        std::span<const std::byte>(input_).subspan(input_begin_, input_end_ - input_begin_);
    Result<std::optional<DecodedFrame>> decoded = DecodeFrame(bytes);
    if (!decoded.ok()) {
      context_->on_refused(StatusCode::kInvalidArgument);
      Log(LogLevel::kWarning, "closed a data connection that broke the protocol",
          {{"peer", peer_address_}, {"why", decoded.status().message()}});
      return decoded.status();
    }
    if (!decoded->has_value()) return Status::Ok();
    input_begin_ += (*decoded)->frame_bytes;
    BACKSTAY_RETURN_IF_ERROR(Handle((*decoded)->frame));
  }
  return Status::Ok();
}

Status ServedConnection::Handle(const Frame& frame) {
  const auto out_of_order = [&] {
    context_->on_refused(StatusCode::kInvalidArgument);
    Log(LogLevel::kWarning, "closed a data connection that broke the protocol",
        {{"peer", peer_address_}, {"why", "a frame out of order"}});
    return InvalidArgument("a frame out of order");
  };
  if (greeted_ == std::holds_alternative<HelloFrame>(frame)) return out_of_order();
  return std::visit(Overloaded{
                        [&](const HelloFrame& hello) { return OnHello(hello); },
                        [&](const OpenGrantFrame& open) { return OnOpenGrant(open); },
                        [&](const ReadFrame& read) { return OnRead(read); },
                        [&](const ReleaseFrame& release) {
                          OnRelease(release);
                          return Status::Ok();
                        },
                        [&](const auto&) { return out_of_order(); },
                    },
                    frame);
}

Status ServedConnection::Judge(const HelloFrame& hello) const {
  if (hello.version != kDataPlaneVersion) {
    return Unavailable("the reader speaks version " + std::to_string(hello.version) +
                       " of the data plane, this node version " +
                       std::to_string(kDataPlaneVersion));
  }
  // It becomes a figure of its own, in messages and in metrics.
  if (hello.reader.node.empty() || !IsPrintableAscii(hello.reader.node.value)) {
    return InvalidArgument("the reader's node id is empty, or not printable ASCII");
  }
  if (hello.store != context_->store) {
    return PermissionDenied("the reader belongs to another cluster (another store id)");
  }
  if (hello.owner.node != context_->node.node) {
    return Stale("this address belongs to another node now");
  }
  if (hello.owner.incarnation != context_->node.incarnation) {
    return Stale("the node was restarted; it is at start " +
                 std::to_string(context_->node.incarnation.value));
  }
  return Status::Ok();
}

Status ServedConnection::OnHello(const HelloFrame& hello) {
  const Status judged = Judge(hello);
  HelloReplyFrame reply;
  reply.status = judged.code();
  reply.refusal = judged.message().substr(0, kRefusalBytesMax);
  reply.owner = context_->node;
  greeted_ = true;
  reader_ = hello.reader;
  reader_nonce_ = hello.reader_nonce;
  reply.owner_nonce = owner_nonce_ = DrawNonce(random_);
  EncodeFrame(reply, control());
  if (!judged.ok()) {
    closing_ = true;
    context_->on_refused(judged.code());
    Log(LogLevel::kWarning, "refused a reader",
        {{"reader", ToString(hello.reader)}, {"peer", peer_address_}, {"why", judged.message()}});
  }
  return Status::Ok();
}

void ServedConnection::ForgetEndedGrants() {
  if (opened_.size() < opened_sweep_at_) return;
  std::erase_if(opened_, [](const auto& entry) { return entry.second->revoked(); });
  opened_sweep_at_ = std::max(kOpenedSweepMin, 2 * opened_.size());
}

Status ServedConnection::OnOpenGrant(const OpenGrantFrame& open) {
  GrantOpenedFrame reply;
  reply.grant = open.grant;
  const std::shared_ptr<ServedRegion> region = context_->grants->Find(open.grant);
  if (region == nullptr) {
    reply.status = StatusCode::kStale;
  } else if (!SameProof(open.proof, ProveGrant(region->key(), ProofSide::kReader, owner_nonce_,
                                               reader_nonce_, open.grant))) {
    reply.status = StatusCode::kPermission;
    opened_.erase(open.grant);  // The last proof counts: what is asked with it must not be served
                                // by an earlier one.
    context_->on_refused(StatusCode::kPermission);
    Log(LogLevel::kWarning, "a reader did not prove its grant's key",
        {{"reader", ToString(reader_)},
         {"peer", peer_address_},
         {"grant", std::to_string(open.grant)}});
    // The reader still gets its answers; the next frame of it is not read.
    if (++wrong_proof_count_ >= kWrongProofsMax) closing_ = true;
  } else {
    ForgetEndedGrants();
    opened_[open.grant] = region;
    reply.proof =
        ProveGrant(region->key(), ProofSide::kOwner, owner_nonce_, reader_nonce_, open.grant);
  }
  EncodeFrame(reply, control());
  return Status::Ok();
}

Status ServedConnection::OnRead(const ReadFrame& read) {
  QueuedRead queued{.frame = read, .region = nullptr, .refusal = StatusCode::kOk};
  const auto opened = opened_.find(read.grant);
  if (opened == opened_.end()) {
    const bool exists = context_->grants->Find(read.grant) != nullptr;
    queued.refusal = exists ? StatusCode::kPermission : StatusCode::kStale;
  } else if (!opened->second->Contains(read.offset_bytes, read.size_bytes)) {
    queued.refusal = StatusCode::kInvalidArgument;
  } else {
    queued.region = opened->second;
  }
  reads_.push_back(std::move(queued));
  return Status::Ok();
}

void ServedConnection::OnRelease(const ReleaseFrame& release) {
  // Only who has proven the key may end the grant.
  if (opened_.erase(release.grant) > 0) context_->grants->Revoke(release.grant);
}

void ServedConnection::StartNextRead() {
  while (!payload_.has_value() && !reads_.empty()) {
    QueuedRead next = std::move(reads_.front());
    reads_.pop_front();
    StatusCode refusal = next.refusal;
    if (refusal == StatusCode::kOk && next.region->revoked()) refusal = StatusCode::kStale;
    if (refusal != StatusCode::kOk) {
      EncodeFrame(ReadEndFrame{.read = next.frame.read, .valid_bytes = 0, .status = refusal},
                  &before_payload_);
      continue;
    }
    EncodeFrame(DataFrame{.read = next.frame.read, .size_bytes = next.frame.size_bytes},
                &before_payload_);
    payload_.emplace();
    payload_->read = next.frame;
    payload_->region = std::move(next.region);
  }
}

Status ServedConnection::Send(Instant now) {
  uint64_t burst_bytes = 0;
  while (burst_bytes < kSendBurstBytes) {
    StartNextRead();
    if (before_payload_.empty() && !payload_.has_value()) break;
    BACKSTAY_ASSIGN_OR_RETURN(const uint64_t sent_bytes, SendPiece());
    if (sent_bytes == 0) break;
    burst_bytes += sent_bytes;
    last_progress_ = now;
  }
  if (closing_ && !wants_output()) return Unavailable("the reader was refused");
  // Requests that were left in the buffer while too much was waiting.
  return input_begin_ < input_end_ ? HandleFrames() : Status::Ok();
}

Result<uint64_t> ServedConnection::SendPiece() {
  iovec parts[2];
  size_t part_count = 0;
  if (!before_payload_.empty()) {
    parts[part_count++] = {before_payload_.data(), before_payload_.size()};
  }
  bool touching = false;
  if (payload_.has_value()) {
    const uint64_t left = payload_->read.size_bytes - payload_->sent_bytes;
    touching = !payload_->padding && payload_->region->Begin();
    payload_->padding = !touching;
    const std::span<const std::byte> from =
        touching
            ? payload_->region->bytes().subspan(payload_->read.offset_bytes + payload_->sent_bytes,
                                                std::min(left, kSendPieceBytes))
            : std::span<const std::byte>(kPadding).first(std::min<uint64_t>(left, kPadding.size()));
    parts[part_count++] = {const_cast<std::byte*>(from.data()), from.size()};
  }
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = part_count;
  ssize_t sent = 0;
  do {
    sent = sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  const int error = errno;
  if (touching) payload_->region->End();
  if (sent < 0) {
    if (error == EAGAIN) return uint64_t{0};
    errno = error;
    return SocketError("send to", peer_address_);
  }

  const auto sent_bytes = static_cast<uint64_t>(sent);
  const uint64_t control_bytes = std::min<uint64_t>(sent_bytes, before_payload_.size());
  before_payload_.erase(0, control_bytes);
  if (payload_.has_value()) {
    const auto payload_bytes = static_cast<uint32_t>(sent_bytes - control_bytes);
    payload_->sent_bytes += payload_bytes;
    if (touching) payload_->valid_bytes += payload_bytes;
    if (payload_->sent_bytes == payload_->read.size_bytes) FinishPayload();
  }
  return sent_bytes;
}

void ServedConnection::FinishPayload() {
  const bool whole = payload_->valid_bytes == payload_->read.size_bytes;
  context_->on_served(reader_.node, payload_->valid_bytes);
  EncodeFrame(ReadEndFrame{.read = payload_->read.read,
                           .valid_bytes = payload_->valid_bytes,
                           .status = whole ? StatusCode::kOk : StatusCode::kStale},
              &before_payload_);
  before_payload_ += std::exchange(after_payload_, {});
  payload_.reset();
}

}  // namespace backstay::transport
