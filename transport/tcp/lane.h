#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/random.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "transport/tcp/frames.h"
#include "transport/tcp/peer_lanes.h"

namespace backstay::transport {

// Received by one system call at most.
inline constexpr uint64_t kReceivePieceBytes = 1 * kMiB;

// The reader's end of one connection: asks for chunks ahead, receives them straight into the target
// and hashes each while it is in this core's cache.
//
// Thread:  its own, which Run() is.
// Memory:  owns the socket; writes only into targets of reads it has taken.
// Failure: any error closes the connection; its reads fail or are asked for again, as PeerLanes
//          decides.
class Lane {
 public:
  Lane(PeerLanes* peer, PeerLanes::LaneState* state) : peer_(peer), state_(state) {}

  // Works until there has been nothing to do for the idle timeout, or the peer stops.
  void Run();

 private:
  struct OpenedGrant {
    std::string asked_key;   // Of the last OpenGrant, unless that was refused.
    std::string proven_key;  // The owner has proven that it knows this one.
  };
  struct AskedOpen {
    GrantId grant = 0;
    std::string key;
  };
  struct AskedRead {
    LaneRead read;
    uint64_t id = 0;
    LaneReadResult
        result;  // Hashes of the payload, before ReadEnd has said how much of it is valid.
  };

  Status Connect();
  Status Greet();
  void Disconnect();

  // Asks and receives until nothing is outstanding.
  Status Serve();
  void AskAhead();
  void OpenGrantOnce(const Grant& grant);
  void ForgetUnusedGrants();
  uint64_t BytesAsked() const;

  Status HandleFrame(const Frame& frame);
  Status OnGrantOpened(const GrantOpenedFrame& opened);
  Status OnData(const DataFrame& data);
  Status OnReadEnd(const ReadEndFrame& end);

  Status SendQueued();
  Result<Frame> ReceiveFrame();
  // Fills `target`; frames that arrive behind it may land in the input buffer.
  Status ReceiveInto(std::span<std::byte> target);
  Result<size_t> ReceiveSome(std::span<std::byte> target);
  Status Broken(const std::string& why) const;

  PeerLanes* const peer_;
  PeerLanes::LaneState* const state_;
  SystemRandom random_;  // For nonces.

  UniqueFd socket_;
  Nonce reader_nonce_{};
  Nonce owner_nonce_{};
  std::unordered_map<GrantId, OpenedGrant> grants_;
  uint64_t last_read_id_ = 0;
  std::deque<AskedRead> asked_;
  std::deque<AskedOpen> opens_;
  bool answered_ = false;  // Since the lane last had nothing to do.
  std::string output_;

  // Room for the frames that may follow a payload, and no more: what else lands here is payload
  // that must be copied.
  std::array<std::byte, kFrameBytesMax> input_;
  size_t input_begin_ = 0;
  size_t input_end_ = 0;
};

}  // namespace backstay::transport
