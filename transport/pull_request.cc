#include "transport/pull_request.h"

#include <algorithm>
#include <string>

namespace backstay::transport {

Status ValidatePullRequest(const PullRequest& request) {
  const auto refuse = [&](const std::string& why) {
    return InvalidArgument("pull under grant " + std::to_string(request.source.id) + " of " +
                           ToString(request.source.owner) + ": " + why);
  };
  if (request.chunk_bytes == 0 || request.chunk_bytes > kChunkBytesMax) {
    return refuse("chunk of " + std::to_string(request.chunk_bytes) + " bytes, must be 1 to " +
                  std::to_string(kChunkBytesMax));
  }
  if (request.source_offset_bytes % request.chunk_bytes != 0) {
    return refuse("offset " + std::to_string(request.source_offset_bytes) +
                  " is no multiple of the chunk of " + std::to_string(request.chunk_bytes));
  }
  const uint64_t chunk_count = CeilDiv(request.target.size(), request.chunk_bytes);
  if (chunk_count > kPullChunksMax)
    return refuse("too many chunks: " + std::to_string(chunk_count));
  if (!request.expected.empty() && request.expected.size() != chunk_count) {
    return refuse(std::to_string(request.expected.size()) + " expected hashes for " +
                  std::to_string(chunk_count) + " chunks");
  }
  const uint64_t size_bytes = request.source.size_bytes;
  if (request.source_offset_bytes > size_bytes ||
      request.target.size() > size_bytes - request.source_offset_bytes) {
    return refuse("range of " + std::to_string(request.target.size()) + " bytes at " +
                  std::to_string(request.source_offset_bytes) + " is outside of the granted " +
                  std::to_string(size_bytes));
  }
  if (request.source.key.size() != kGrantKeyBytes) {
    return refuse("a key of " + std::to_string(request.source.key.size()) + " bytes");
  }
  return Status::Ok();
}

uint64_t ChunkCount(const PullRequest& request) {
  return CeilDiv(request.target.size(), request.chunk_bytes);
}

PullResult EmptyPullResult(const PullRequest& request) {
  PullResult result;
  if (request.chunk_bytes == 0) return result;
  const uint64_t chunk_count = std::min(ChunkCount(request), kPullChunksMax);
  result.chunks.assign(chunk_count, ChunkOutcome::kNotRead);
  result.hashes.assign(chunk_count, Hash128{});
  return result;
}

std::span<std::byte> ChunkTarget(const PullRequest& request, uint64_t chunk_index) {
  const uint64_t begin = chunk_index * request.chunk_bytes;
  return request.target.subspan(
      begin, std::min<uint64_t>(request.chunk_bytes, request.target.size() - begin));
}

}  // namespace backstay::transport
