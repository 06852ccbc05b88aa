#include "transport/tcp/lane.h"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/hash.h"
#include "base/socket.h"
#include "transport/pull_request.h"
#include "transport/tcp/connect.h"
#include "transport/tcp/grant_proof.h"
#include "transport/tcp/served_connection.h"

namespace backstay::transport {

static_assert(kLaneReadsMax <= kReadsQueuedMax,
              "what a lane asks ahead must fit into the owner's queue");

namespace {

// Bytes of the next frames that may be received behind a payload: ReadEnd and Data.
constexpr size_t kFramesBehindPayloadBytes = 2 * kFrameHeaderBytes + 14 + 12;
// Grants that are remembered as proven; beyond it those not in use are forgotten and proven again
// when needed.
constexpr size_t kGrantsRememberedMax = 512;

std::string GrantText(GrantId grant, const NodeInstance& owner) {
  return "grant " + std::to_string(grant) + " of " + ToString(owner);
}

// What a refused read means, in words.
Status Refusal(StatusCode code, GrantId grant, const NodeInstance& owner) {
  const std::string name = GrantText(grant, owner);
  switch (code) {
    case StatusCode::kOk:
      return Status::Ok();
    case StatusCode::kStale:
      return Stale(name + " has ended");
    case StatusCode::kPermission:
      return PermissionDenied(name + ": the key was not accepted");
    case StatusCode::kInvalidArgument:
      return InvalidArgument(name + ": the range is outside of the region");
    default:
      return Unavailable(name + ": the owner cannot serve it now");
  }
}

}  // namespace

void Lane::Run() {
  pthread_setname_np(pthread_self(), "data-lane");
  while (peer_->WaitForWork(state_)) {
    const bool reused = socket_.valid();
    if (!reused) {
      if (const Status connected = Connect(); !connected.ok()) {
        peer_->OnConnectFailed(state_, connected);
        return;
      }
    }
    answered_ = false;
    if (const Status served = Serve(); !served.ok()) {
      Disconnect();
      // The owner may have closed the idle connection, or been restarted: that says nothing about
      // these reads. A new connection will say.
      peer_->OnLaneFailed(state_, served, /*retry=*/reused && !answered_);
    }
  }
}

Status Lane::Connect() {
  const LaneOptions& options = peer_->options();
  Result<UniqueFd> socket =
      ConnectWithin(peer_->address(), options.connect_timeout, state_->wake.get());
  if (!socket.ok()) {
    // Whatever is wrong with the address, a reader can only go to another source.
    return Unavailable(socket.status().message());
  }
  socket_ = std::move(socket).value();
  (void)SetNoDelay(socket_.get());  // Only slower without.
  SetIoTimeout(socket_.get(), options.stall_timeout);
  if (options.receive_buffer_bytes > 0) {
    const int bytes = static_cast<int>(options.receive_buffer_bytes);
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
  }
  peer_->OnConnected(state_, socket_.get());
  const Status greeted = Greet();
  if (!greeted.ok()) Disconnect();
  return greeted;
}

Status Lane::Greet() {
  const std::string nonce = random_.Bytes(kNonceBytes);
  std::memcpy(reader_nonce_.data(), nonce.data(), kNonceBytes);
  HelloFrame hello;
  hello.reader_nonce = reader_nonce_;
  hello.store = peer_->options().store;
  hello.reader = peer_->options().reader;
  hello.owner = peer_->owner();
  EncodeFrame(hello, &output_);
  BACKSTAY_RETURN_IF_ERROR(SendQueued());
  BACKSTAY_ASSIGN_OR_RETURN(const Frame frame, ReceiveFrame());
  const auto* const reply = std::get_if<HelloReplyFrame>(&frame);
  if (reply == nullptr) return Broken("no answer to the hello");
  if (reply->status != StatusCode::kOk) {
    return Status(reply->status,
                  ToString(peer_->owner()) + " at " + peer_->address() + ": " + reply->refusal);
  }
  if (reply->version != kDataPlaneVersion || reply->owner != peer_->owner()) {
    return Broken("an answer to another hello");
  }
  owner_nonce_ = reply->owner_nonce;
  return Status::Ok();
}

void Lane::Disconnect() {
  peer_->OnDisconnect(state_);
  socket_.Reset();
  grants_.clear();
  asked_.clear();
  output_.clear();
  opens_.clear();
  input_begin_ = input_end_ = 0;
}

Status Lane::Serve() {
  while (true) {
    AskAhead();
    BACKSTAY_RETURN_IF_ERROR(SendQueued());
    if (asked_.empty() && opens_.empty()) return Status::Ok();
    BACKSTAY_ASSIGN_OR_RETURN(const Frame frame, ReceiveFrame());
    BACKSTAY_RETURN_IF_ERROR(HandleFrame(frame));
    answered_ = true;
  }
}

uint64_t Lane::BytesAsked() const {
  uint64_t bytes = 0;
  for (const AskedRead& asked : asked_) bytes += asked.read.pull->TargetOf(asked.read.run).size();
  return bytes;
}

void Lane::AskAhead() {
  while (const std::optional<Grant> release = peer_->TakeRelease()) {
    OpenGrantOnce(*release);
    EncodeFrame(ReleaseFrame{release->id}, &output_);
  }
  while (asked_.size() < kLaneReadsMin ||
         (asked_.size() < kLaneReadsMax && BytesAsked() < kLaneWindowBytes)) {
    std::optional<LaneRead> read = peer_->Take(state_);
    if (!read.has_value()) return;
    const ActivePull& pull = *read->pull;
    OpenGrantOnce(pull.request.source);
    EncodeFrame(ReadFrame{.read = ++last_read_id_,
                          .grant = pull.request.source.id,
                          .offset_bytes = pull.SourceOffsetOf(read->run),
                          .size_bytes = static_cast<uint32_t>(pull.TargetOf(read->run).size())},
                &output_);
    asked_.push_back({.read = *std::move(read), .id = last_read_id_, .result = {}});
  }
}

void Lane::OpenGrantOnce(const Grant& grant) {
  if (grants_.size() >= kGrantsRememberedMax) ForgetUnusedGrants();
  OpenedGrant& known = grants_[grant.id];
  if (known.asked_key == grant.key) return;
  known.asked_key = grant.key;
  EncodeFrame(OpenGrantFrame{grant.id, ProveGrant(grant.key, ProofSide::kReader, owner_nonce_,
                                                  reader_nonce_, grant.id)},
              &output_);
  opens_.push_back({grant.id, grant.key});
}

void Lane::ForgetUnusedGrants() {
  std::erase_if(grants_, [this](const auto& entry) {
    const auto is_read = [&](const AskedRead& asked) {
      return asked.read.pull->request.source.id == entry.first;
    };
    const auto is_opened = [&](const AskedOpen& open) { return open.grant == entry.first; };
    return std::none_of(asked_.begin(), asked_.end(), is_read) &&
           std::none_of(opens_.begin(), opens_.end(), is_opened);
  });
}

Status Lane::HandleFrame(const Frame& frame) {
  if (const auto* const data = std::get_if<DataFrame>(&frame)) return OnData(*data);
  if (const auto* const end = std::get_if<ReadEndFrame>(&frame)) return OnReadEnd(*end);
  if (const auto* const opened = std::get_if<GrantOpenedFrame>(&frame)) {
    return OnGrantOpened(*opened);
  }
  return Broken("a frame out of order");
}

Status Lane::OnGrantOpened(const GrantOpenedFrame& opened) {
  if (opens_.empty() || opens_.front().grant != opened.grant) {
    return Broken("a grant that nobody opened");
  }
  const AskedOpen open = std::move(opens_.front());
  opens_.pop_front();
  OpenedGrant& known = grants_[open.grant];
  if (opened.status != StatusCode::kOk) {
    // Its reads are refused one by one; a later pull proves it anew.
    if (known.asked_key == open.key) known.asked_key.clear();
    return Status::Ok();
  }
  if (!SameProof(opened.proof, ProveGrant(open.key, ProofSide::kOwner, owner_nonce_, reader_nonce_,
                                          open.grant))) {
    return PermissionDenied(GrantText(open.grant, peer_->owner()) +
                            ": who answers does not know its key");
  }
  known.proven_key = open.key;
  return Status::Ok();
}

Status Lane::OnData(const DataFrame& data) {
  if (asked_.empty() || asked_.front().id != data.read) return Broken("data nobody asked for");
  AskedRead& asked = asked_.front();
  const ActivePull& pull = *asked.read.pull;
  const std::span<std::byte> target = pull.TargetOf(asked.read.run);
  const auto grant = grants_.find(pull.request.source.id);
  if (grant == grants_.end() || grant->second.proven_key != pull.request.source.key) {
    return Broken("data before the proof of its grant");
  }
  if (data.size_bytes != target.size() || asked.result.bytes != 0) {
    return Broken("data of another size");
  }
  for (uint64_t i = 0; i < asked.read.run.chunk_count; ++i) {
    const uint64_t chunk = asked.read.run.first_chunk + i;
    const std::span<std::byte> bytes = ChunkTarget(pull.request, chunk);
    BACKSTAY_RETURN_IF_ERROR(ReceiveInto(bytes));
    const Hash128 hash = HashBytes(std::span<const std::byte>(bytes));
    const bool matches = pull.request.expected.empty() || pull.request.expected[chunk] == hash;
    asked.result.hashes.push_back(hash);
    asked.result.outcomes.push_back(matches ? ChunkOutcome::kVerified : ChunkOutcome::kMismatch);
    asked.result.bytes += bytes.size();
  }
  return Status::Ok();
}

Status Lane::OnReadEnd(const ReadEndFrame& end) {
  if (asked_.empty() || asked_.front().id != end.read) return Broken("the end of another read");
  AskedRead asked = std::move(asked_.front());
  asked_.pop_front();
  LaneReadResult& result = asked.result;
  const bool whole = end.valid_bytes == asked.read.pull->TargetOf(asked.read.run).size();
  if (end.valid_bytes > result.bytes || (end.status == StatusCode::kOk && !whole)) {
    return Broken("a read that ends with another size");
  }
  // Chunks that are padding, or in part, were not read.
  const PullRequest& request = asked.read.pull->request;
  const uint64_t valid_chunks =
      whole ? asked.read.run.chunk_count : end.valid_bytes / request.chunk_bytes;
  result.outcomes.resize(std::min<uint64_t>(valid_chunks, result.outcomes.size()));
  result.hashes.resize(result.outcomes.size());
  result.bytes = end.valid_bytes;
  result.status = Refusal(end.status, request.source.id, peer_->owner());
  peer_->OnReadEnd(state_, std::move(result));
  return Status::Ok();
}

Status Lane::SendQueued() {
  size_t sent_bytes = 0;
  while (sent_bytes < output_.size()) {
    const ssize_t sent =
        send(socket_.get(), output_.data() + sent_bytes, output_.size() - sent_bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return Broken(std::system_category().message(errno));
    sent_bytes += static_cast<size_t>(sent);
  }
  output_.clear();
  return Status::Ok();
}

Result<Frame> Lane::ReceiveFrame() {
  while (true) {
    const auto bytes =
        std::span<const std::byte>(input_).subspan(input_begin_, input_end_ - input_begin_);
    Result<std::optional<DecodedFrame>> decoded = DecodeFrame(bytes);
    if (!decoded.ok()) return Broken(decoded.status().message());
    if (decoded->has_value()) {
      input_begin_ += (*decoded)->frame_bytes;
      return std::move((*decoded)->frame);
    }
    std::memmove(input_.data(), bytes.data(), bytes.size());
    input_begin_ = 0;
    input_end_ = bytes.size();
    BACKSTAY_RETURN_IF_ERROR(ReceiveSome({}).status());
  }
}

Status Lane::ReceiveInto(std::span<std::byte> target) {
  const size_t buffered = std::min(target.size(), input_end_ - input_begin_);
  std::memcpy(target.data(), input_.data() + input_begin_, buffered);
  input_begin_ += buffered;
  target = target.subspan(buffered);
  while (!target.empty()) {
    input_begin_ = input_end_ = 0;
    BACKSTAY_ASSIGN_OR_RETURN(const size_t received, ReceiveSome(target));
    target = target.subspan(received);
  }
  return Status::Ok();
}

Result<size_t> Lane::ReceiveSome(std::span<std::byte> target) {
  const std::span<std::byte> piece = target.first(std::min(target.size(), kReceivePieceBytes));
  // Behind a payload only as much as the next frames need. On its own, a frame may take all the
  // room.
  const size_t room = input_.size() - input_end_;
  const size_t behind = target.empty() ? room : std::min(room, kFramesBehindPayloadBytes);
  iovec parts[] = {{piece.data(), piece.size()}, {input_.data() + input_end_, behind}};
  msghdr message{};
  message.msg_iov = target.empty() ? parts + 1 : parts;
  message.msg_iovlen = target.empty() || piece.size() < target.size() ? 1 : 2;
  ssize_t received = 0;
  do {
    received = recvmsg(socket_.get(), &message, 0);
  } while (received < 0 && errno == EINTR);
  if (received == 0) return Broken("the owner closed the connection");
  if (received < 0 && errno == EAGAIN) {
    return Broken("no byte for " + std::to_string(ToMillis(peer_->options().stall_timeout)) +
                  " ms");
  }
  if (received < 0) return Broken(std::system_category().message(errno));
  const size_t into_target = std::min(static_cast<size_t>(received), piece.size());
  input_end_ += static_cast<size_t>(received) - into_target;
  return into_target;
}

Status Lane::Broken(const std::string& why) const {
  return Unavailable("data lane to " + ToString(peer_->owner()) + " at " + peer_->address() + ": " +
                     why);
}

}  // namespace backstay::transport
