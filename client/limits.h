#pragma once

#include <cstddef>
#include <cstdint>

#include "base/ids.h"
#include "base/slot_control.h"
#include "base/units.h"

namespace backstay::client {

// Limits of the local protocol, for both of its sides: docs/formats/local_protocol.md.

inline constexpr uint32_t kLocalProtocolVersion = 2;

// Of one frame without its length word. Fits the largest manifest (64 MiB) with its envelope.
inline constexpr size_t kFrameBytesMax = 96 * kMiB;
// The same, of what a connection sends before the service knows it: before Hello was accepted, and
// before a claim with the job's token was.
inline constexpr size_t kHelloFrameBytesMax = 4 * kKiB;
inline constexpr size_t kUnclaimedFrameBytesMax = 64 * kKiB;
static_assert(kHelloFrameBytesMax < kUnclaimedFrameBytesMax &&
              kUnclaimedFrameBytesMax < kFrameBytesMax);
static_assert(3 * kNameBytesMax < kHelloFrameBytesMax, "job, token and shard are in one frame");
// Descriptors that may come with one frame: a slot's data and its control page.
inline constexpr size_t kFrameDescriptorsMax = 2;
// Frames that wait for the socket, in bytes. A service that does not read makes calls fail, not
// memory grow.
inline constexpr size_t kOutgoingBytesMax = 2 * kFrameBytesMax;

inline constexpr size_t kMessageBytesMax = 64 * kKiB;  // Of an error's or decision's text.
inline constexpr size_t kUuidBytesMax = 63;
inline constexpr uint32_t kReplicasMax = 3;
inline constexpr size_t kManifestsMax = 1'000'000;  // Of a snapshot's index: the largest world.

// Of a shard's contents, as the service checks them (docs/formats/manifest.md).
inline constexpr size_t kTensorsMax = 1'000'000;
inline constexpr size_t kBlobsMax = 100'000;
inline constexpr size_t kTagsMax = 1'000;
inline constexpr size_t kEntryNameBytesMax = kNameBytesMax;
inline constexpr size_t kTagValueBytesMax = 64 * kKiB;
inline constexpr size_t kDimensionsMax = 16;
inline constexpr size_t kBoxesMax = 128;
inline constexpr uint64_t kShardBytesMax = uint64_t{1} << 48;
inline constexpr uint32_t kWorldSizeMax = 1'000'000;

// A tensor's or blob's bytes start at a multiple of this: a cache line, and no element of any dtype
// is cut by a chunk's end.
inline constexpr uint64_t kEntryAlignmentBytes = 64;
static_assert(kChunkBytesMin % kEntryAlignmentBytes == 0);

inline constexpr uint32_t kCopyThreadsMax = 64;
inline constexpr size_t kEventsMax = 1024;
inline constexpr uint32_t kTimeoutMsMax = 86'400'000;

}  // namespace backstay::client
