#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>

#include "base/ids.h"
#include "base/status.h"
#include "base/units.h"
#include "transport/pull_request.h"
#include "transport/transport.h"

// The data plane's frames, as docs/formats/data_plane.md describes them byte by byte. Pure: no
// sockets, no threads.

namespace backstay::transport {

inline constexpr uint32_t kFrameMagic = 0x54534B42;  // "BKST" in little-endian order.
inline constexpr uint16_t kDataPlaneVersion = 1;

inline constexpr size_t kFrameHeaderBytes = 8;
inline constexpr size_t kFrameBodyBytesMax = 1024;
inline constexpr size_t kFrameBytesMax = kFrameHeaderBytes + kFrameBodyBytesMax;
inline constexpr size_t kNonceBytes = 16;
inline constexpr size_t kProofBytes = 32;  // HMAC-SHA256.
inline constexpr size_t kRefusalBytesMax = 200;
inline constexpr uint64_t kReadBytesMax = 64 * kMiB;

static_assert(kReadBytesMax >= kChunkBytesMax, "one read must be able to move any chunk");
static_assert(kReadBytesMax <= UINT32_MAX, "a read's length is 32 bits on the wire");
static_assert(3 * (2 + kNameBytesMax) + kNonceBytes + 4 + 2 * 8 <= kFrameBodyBytesMax,
              "the longest hello must fit into a frame");
static_assert(2 + kNameBytesMax + 2 + kRefusalBytesMax + kNonceBytes + 4 + 8 <= kFrameBodyBytesMax,
              "the longest answer to a hello must fit into a frame");

using Nonce = std::array<std::byte, kNonceBytes>;
using Proof = std::array<std::byte, kProofBytes>;

// Reader to owner, once, first: who asks, and whom it believes to have reached.
struct HelloFrame {
  uint16_t version = kDataPlaneVersion;
  Nonce reader_nonce{};
  StoreId store;
  NodeInstance reader;
  NodeInstance owner;
  friend bool operator==(const HelloFrame&, const HelloFrame&) = default;
};

// Owner to reader, once, first. Unless `status` is kOk the connection ends after it.
struct HelloReplyFrame {
  uint16_t version = kDataPlaneVersion;
  StatusCode status = StatusCode::kOk;
  Nonce owner_nonce{};
  NodeInstance owner;
  std::string refusal;  // For people; at most kRefusalBytesMax.
  friend bool operator==(const HelloReplyFrame&, const HelloReplyFrame&) = default;
};

// Reader to owner: proves the grant's key for this connection.
struct OpenGrantFrame {
  GrantId grant = 0;
  Proof proof{};
  friend bool operator==(const OpenGrantFrame&, const OpenGrantFrame&) = default;
};

// Owner to reader: the owner's proof; all zero unless `status` is kOk.
struct GrantOpenedFrame {
  GrantId grant = 0;
  StatusCode status = StatusCode::kOk;
  Proof proof{};
  friend bool operator==(const GrantOpenedFrame&, const GrantOpenedFrame&) = default;
};

// Reader to owner: send this range. Answered in order, by Data and ReadEnd, or ReadEnd alone.
struct ReadFrame {
  uint64_t read = 0;  // Chosen by the reader; comes back in the answer.
  GrantId grant = 0;
  uint64_t offset_bytes = 0;
  uint32_t size_bytes = 0;
  friend bool operator==(const ReadFrame&, const ReadFrame&) = default;
};

// Owner to reader: `size_bytes` of payload follow, as many as the read asked for.
struct DataFrame {
  uint64_t read = 0;
  uint32_t size_bytes = 0;
  friend bool operator==(const DataFrame&, const DataFrame&) = default;
};

// Owner to reader: the read is over. kOk says that the grant was still valid after its last byte
// was taken from the region. Of the payload only the first `valid_bytes` come from the region; the
// rest is padding.
struct ReadEndFrame {
  uint64_t read = 0;
  uint32_t valid_bytes = 0;
  StatusCode status = StatusCode::kOk;
  friend bool operator==(const ReadEndFrame&, const ReadEndFrame&) = default;
};

// Reader to owner: it will not read under this (opened) grant again. Not answered.
struct ReleaseFrame {
  GrantId grant = 0;
  friend bool operator==(const ReleaseFrame&, const ReleaseFrame&) = default;
};

using Frame = std::variant<HelloFrame, HelloReplyFrame, OpenGrantFrame, GrantOpenedFrame, ReadFrame,
                           DataFrame, ReadEndFrame, ReleaseFrame>;

struct DecodedFrame {
  Frame frame;
  size_t frame_bytes = 0;  // How much of the input it took.
};

// Appends the frame's bytes. Names longer than kNameBytesMax are a broken invariant of the caller.
void EncodeFrame(const Frame& frame, std::string* out);

// The frame at the start of `bytes`; nothing when more bytes are needed; kInvalidArgument when no
// continuation can make it a frame. Takes exactly what EncodeFrame writes.
Result<std::optional<DecodedFrame>> DecodeFrame(std::span<const std::byte> bytes);

}  // namespace backstay::transport
