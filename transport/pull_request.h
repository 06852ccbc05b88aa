#pragma once

#include <cstdint>

#include "base/status.h"
#include "base/units.h"
#include "transport/transport.h"

namespace backstay::transport {

// The most chunks of one pull: 16 TiB at the default chunk of 1 MiB, so a count that is larger is
// an error.
inline constexpr uint64_t kPullChunksMax = 1ull << 24;

// What can be refused before any byte moves; the same for every transport, so that callers see one
// set of rules. kInvalidArgument names the field.
Status ValidatePullRequest(const PullRequest& request);

// Chunks of a valid request; the last may be short.
uint64_t ChunkCount(const PullRequest& request);

// A result with one kNotRead outcome for each chunk of the request (none for an invalid chunk
// size).
PullResult EmptyPullResult(const PullRequest& request);

// The chunk's part of the target.
std::span<std::byte> ChunkTarget(const PullRequest& request, uint64_t chunk_index);

}  // namespace backstay::transport
