#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "client/slot.h"
#include "client/tensor.h"

namespace backstay::client {

// Bytes of the shard that come from one place.
struct CopyPiece {
  uint64_t offset_bytes = 0;  // In the shard; pieces ascend and do not overlap.
  StridedMemory memory;
  uint32_t group = 0;
};

// One shard's copy into its slot, chunk by chunk: each is copied and hashed in one pass, then
// published on the control page. Chunks go in the order of their groups.
//
// Thread:  any. Work() on as many threads as shall copy.
// Memory:  borrows the pieces' memory until the copy has ended or, cancelled, has stopped. Owns its
//          share of the slot.
class CopyJob {
 public:
  static constexpr uint32_t kAllGroups = UINT32_MAX;
  enum class Outcome { kCopied, kCancelled, kTimedOut, kNoSuchGroup };

  // `on_ended` runs at most once, on a copying thread: ok after the last chunk, kNoSpace when there
  // is no memory to gather one in (and the job is cancelled). Never when cancelled before.
  CopyJob(std::shared_ptr<const MappedSlot> slot, uint64_t used_bytes,
          const std::vector<CopyPiece>& pieces, std::function<void(const Status&)> on_ended);

  // Copies chunks until none is left or the job is cancelled.
  void Work();
  // No chunk is begun after this. Does not wait for those in the making.
  void Cancel();
  // Waits until a group is copied. kCancelled only once no thread touches a piece any more.
  Outcome Wait(uint32_t group, std::chrono::steady_clock::time_point deadline);

 private:
  size_t FirstPieceOf(uint64_t chunk) const;
  void CopyChunk(uint64_t chunk);
  void ChunkCopied(uint64_t chunk);
  void ChunkFailed(const Status& why);
  template <typename Visit>
  void ForEachGroupOf(uint64_t chunk, const Visit& visit) const;
  uint64_t ChunkStart(uint64_t chunk) const { return chunk * chunk_bytes_; }
  uint64_t ChunkEnd(uint64_t chunk) const {
    return std::min(used_bytes_, (chunk + 1) * uint64_t{chunk_bytes_});
  }

  const std::shared_ptr<const MappedSlot> slot_;
  SlotControlWriter control_;
  const uint64_t used_bytes_;
  const uint32_t chunk_bytes_;
  const std::vector<CopyPiece> pieces_;
  std::function<void(const Status&)> on_ended_;
  std::vector<uint64_t> order_;  // Chunks, in the order in which they are copied.

  std::mutex mutex_;  // Protects what follows.
  std::condition_variable changed_;
  size_t next_ = 0;                       // In order_.
  size_t working_ = 0;                    // Threads inside of a chunk.
  size_t left_ = 0;                       // Chunks not yet copied.
  std::map<uint32_t, uint64_t> left_of_;  // The same for each group.
  bool cancelled_ = false;
};

}  // namespace backstay::client
