#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "client/connection.h"
#include "client/contents.h"
#include "client/slot.h"
#include "client/tensor.h"

namespace backstay::client {

class Client;

// A shard open for reading. Every chunk is copied and hashed in one pass and compared with the
// sealed manifest; a bad one is reported, fetched again from another holder, and read again.
//
// Thread:  any.
// Memory:  the slot is mapped read-only while the reader lives; keeps kCachedChunks verified chunks
//          for small reads.
// Failure: kCorrupt when a chunk fails from every holder, kUnavailable when it cannot be brought
//          here. A failed read may have written part of its target.
class ShardReader {
 public:
  static Result<std::shared_ptr<ShardReader>> Open(std::shared_ptr<Client> client,
                                                   local::Fetch request, TimePoint deadline);
  ~ShardReader();

  const ShardManifest& manifest() const { return manifest_; }
  const Hash128& digest() const { return digest_; }
  bool local() const { return local_; }
  uint64_t ReadyChunkCount() const;

  // Reads [offset, offset + target.size_bytes()) of the shard, with up to `thread_count` threads.
  Status Read(uint64_t offset_bytes, const StridedMemory& target, uint32_t thread_count,
              TimePoint deadline);
  // Waits until all chunks of the range are on this node, asking for them where needed.
  Status WaitReady(uint64_t offset_bytes, uint64_t size_bytes, TimePoint deadline);

 private:
  static constexpr size_t kCachedChunks = 4;

  // A mapping of the shard and the number that the service knows it by; another one after a chunk
  // had to move.
  struct View {
    uint64_t handle = 0;
    uint64_t epoch = 0;  // Of the client, when it was opened.
    std::shared_ptr<const MappedSlot> slot;
  };
  struct CachedChunk {
    uint64_t chunk = 0;
    std::shared_ptr<std::vector<std::byte>> bytes;
  };
  struct ReadJob;

  ShardReader(std::shared_ptr<Client> client, local::Fetch request);
  Status Attach(TimePoint deadline);
  std::shared_ptr<const View> view() const;
  uint64_t ChunkBytes(uint64_t chunk) const;
  Status RequestChunks(uint64_t first, uint64_t count);
  Status WaitChunk(const View& view, uint64_t chunk, TimePoint deadline) const;
  // Copies one whole chunk to `target`, verified, waiting for it and asking for it again as needed.
  Status ReadChunk(uint64_t chunk, std::span<std::byte> target, TimePoint deadline);
  Status ReplaceBadChunk(const View& bad, uint64_t chunk, TimePoint deadline);
  Result<std::shared_ptr<std::vector<std::byte>>> VerifiedChunk(uint64_t chunk, TimePoint deadline);
  Status ReadPart(const ReadJob& job, uint64_t chunk);
  Status ReadParts(ReadJob& job);
  std::string Name() const;

  const std::shared_ptr<Client> client_;
  local::Fetch request_;  // Fixed once it has been opened for the first time.
  ShardManifest manifest_;
  Hash128 digest_;
  bool local_ = false;

  mutable std::mutex mutex_;  // Protects what follows; not held while waiting.
  std::shared_ptr<const View> view_;
  std::vector<CachedChunk> cache_;  // Oldest first.
  std::mutex replace_mutex_;        // One replacement of bad chunks at a time.
};

}  // namespace backstay::client
