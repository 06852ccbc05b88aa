#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/clock.h"
#include "base/ids.h"
#include "base/random.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "transport/tcp/frames.h"
#include "transport/tcp/grant_table.h"

namespace backstay::transport {

// A connection that has not said hello for this long after it was accepted is closed, whatever else
// it has sent.
inline constexpr Duration kHelloTimeout = std::chrono::seconds(10);
// A reader that takes no byte of what it asked for is closed after this; nobody waits for it but
// its own lane.
inline constexpr Duration kReaderStallTimeout = std::chrono::seconds(30);
// A connection without requests. Longer than the readers' kLaneIdleTimeout, so that the reader, who
// can choose a moment without a request under way, closes first.
inline constexpr Duration kConnectionIdleTimeout = std::chrono::minutes(5);
// Reads that one connection may have waiting; more stay in the socket until some are answered.
inline constexpr size_t kReadsQueuedMax = 32;
// Grants proven on one connection before those that have ended are looked for and forgotten, and
// again at twice what is left: so they are bounded by the grants that live, which a reader cannot
// make.
inline constexpr size_t kOpenedSweepMin = 256;
// Answers that wait for a reader that asks and does not listen; then its requests stay in the
// socket too.
inline constexpr size_t kControlBytesMax = 64 * kKiB;
// Wrong proofs after which a connection is closed.
inline constexpr int kWrongProofsMax = 3;
// Taken from a region by one system call: Revoke() waits at most for that copy. Also the size
// between two looks at the grant; see docs/formats/data_plane.md.
inline constexpr uint64_t kSendPieceBytes = 256 * kKiB;
// Sent to one connection before the next has its turn.
inline constexpr uint64_t kSendBurstBytes = 1 * kMiB;

static_assert(kSendBurstBytes % kSendPieceBytes == 0);
static_assert(kControlBytesMax >= 4 * kFrameBytesMax);

// What all connections of one exporter share. Thread: `grants`, `on_served` and `on_refused` any;
// the rest constant.
struct ServeContext {
  StoreId store;
  NodeInstance node;
  GrantTable* grants = nullptr;
  std::function<void(const NodeId& reader, uint64_t bytes)> on_served;
  std::function<void(StatusCode code)> on_refused;  // A hello or a proof that was not accepted.
};

// What is being sent for one read.
struct ServedPayload {
  ReadFrame read;
  std::shared_ptr<ServedRegion> region;
  uint32_t sent_bytes = 0;
  uint32_t valid_bytes = 0;  // Of those sent, from the region.
  bool padding = false;      // The grant ended: the rest does not come from the region.
};

// The owner's end of one lane: answers hellos, proofs and reads.
//
// Bytes go out by plain send() from the mapping, which copies them into the socket: no socket
// buffer and no retransmission refers to a region, so a grant ends as soon as no send is running. A
// read whose grant ends in the middle is filled up with padding and answered kStale: neither
// Revoke() nor the lane waits for a slow reader. (sendfile and MSG_ZEROCOPY would hold the region's
// pages until the peer has acknowledged them, and gained nothing where it was measured:
// docs/formats/data_plane.md.)
//
// Thread:  one serving thread.
// Memory:  owns its socket.
// Failure: an error of any method means: close it. Every limit is checked before memory is taken.
class ServedConnection {
 public:
  ServedConnection(UniqueFd fd, std::string peer_address, const ServeContext* context,
                   Random* random, Instant now);
  ServedConnection(const ServedConnection&) = delete;
  ServedConnection& operator=(const ServedConnection&) = delete;

  int fd() const { return fd_.get(); }

  // Takes what has arrived. An error also for the end of the stream.
  Status Receive(Instant now);
  // Sends up to kSendBurstBytes; stops early when the socket is full.
  Status Send(Instant now);

  // Should Receive() be called when bytes are there? Not while too much is waiting to be answered.
  bool wants_input() const;
  // Should Send() be called when there is room?
  bool wants_output() const;

  // When to close it if nothing happens until then.
  Instant closes_at() const;

 private:
  struct QueuedRead {
    ReadFrame frame;
    std::shared_ptr<ServedRegion> region;  // Null: `refusal` says why.
    StatusCode refusal = StatusCode::kOk;
  };

  Status HandleFrames();
  Status Handle(const Frame& frame);
  Status OnHello(const HelloFrame& hello);
  Status OnOpenGrant(const OpenGrantFrame& open);
  Status OnRead(const ReadFrame& read);
  void OnRelease(const ReleaseFrame& release);
  // Why the hello is refused; Ok when it is not.
  Status Judge(const HelloFrame& hello) const;
  void ForgetEndedGrants();
  // Control frames wait while a payload is under way.
  std::string* control() { return payload_.has_value() ? &after_payload_ : &before_payload_; }
  // The next read that has a payload becomes `payload_`; those without are answered.
  void StartNextRead();
  // One system call's worth; the number of bytes sent, 0 when the socket is full.
  Result<uint64_t> SendPiece();
  void FinishPayload();

  const UniqueFd fd_;
  const std::string peer_address_;
  const ServeContext* const context_;
  Random* const random_;
  const Instant accepted_at_;

  bool greeted_ = false;
  bool closing_ = false;  // The refusal is on its way out; nothing is taken in.
  NodeInstance reader_;
  Nonce owner_nonce_{};
  Nonce reader_nonce_{};
  int wrong_proof_count_ = 0;
  std::unordered_map<GrantId, std::shared_ptr<ServedRegion>> opened_;
  size_t opened_sweep_at_ = kOpenedSweepMin;

  std::array<std::byte, 4 * kFrameBytesMax> input_;
  size_t input_begin_ = 0;
  size_t input_end_ = 0;

  std::deque<QueuedRead> reads_;
  std::string before_payload_;  // Goes out first.
  std::optional<ServedPayload> payload_;
  std::string after_payload_;  // Goes out when the payload has.
  Instant last_progress_;
};

}  // namespace backstay::transport
