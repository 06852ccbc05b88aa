#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/hash.h"
#include "base/status.h"
#include "base/units.h"

namespace backstay {

// The control page of a slot: memory shared by the service and one client process, on which whoever
// fills the slot publishes chunk by chunk what is ready. docs/formats/slot_control.md.

inline constexpr uint64_t kSlotControlMagic = 0x31304C5443534B42;  // "BKSCTL01" in memory order.
inline constexpr uint32_t kSlotControlVersion = 1;

// 2 TiB of chunks of the default size; their checksums fill half of the largest manifest.
inline constexpr uint64_t kShardChunksMax = 2 * kMiB;

// What a chunk of a slot is. Numbers of the format; any other number from the page reads as failed.
enum class ChunkState : uint32_t {
  kChunkEmpty = 0,   // Not written yet.
  kChunkReady = 1,   // Written; its checksum is on the page.
  kChunkFailed = 2,  // Will not come in this use of the slot.
};

struct SlotControlHeader {
  std::atomic<uint64_t> magic;
  std::atomic<uint32_t> version;
  std::atomic<uint32_t> chunk_bytes;
  std::atomic<uint64_t> size_bytes;  // Of the slot's data.
  std::atomic<uint64_t> used_bytes;  // Of it, by the shard in this use; known when the copy starts.
  std::atomic<uint32_t> chunk_count;  // Of the slot's data; a shard uses the first ones.
  uint32_t unused;
  std::atomic<uint64_t> epoch;  // Grows with each use of the slot.
  uint64_t unused_words[2];
};
static_assert(sizeof(SlotControlHeader) == 64);

// Two native words: the page never leaves the machine.
struct SlotChecksum {
  std::atomic<uint64_t> low;
  std::atomic<uint64_t> high;
};
static_assert(sizeof(SlotChecksum) == 16);
static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<uint64_t>) == 8 && std::atomic<uint64_t>::is_always_lock_free);

// Where things lie on a control page: header, one state word per chunk, padding, one checksum per
// chunk. Always computed from what the reader knows, never from the page.
struct SlotGeometry {
  uint64_t size_bytes = 0;   // Of the slot's data.
  uint32_t chunk_bytes = 0;  // IsChunkSize().

  uint64_t ChunkCount() const { return CeilDiv(size_bytes, chunk_bytes); }
  // Of a shard that uses the first `used_bytes` of the slot.
  uint64_t ChunkCountOf(uint64_t used_bytes) const { return CeilDiv(used_bytes, chunk_bytes); }
  uint64_t ChecksumsOffsetBytes() const {
    return RoundUp(sizeof(SlotControlHeader) + ChunkCount() * sizeof(uint32_t),
                   sizeof(SlotChecksum));
  }
  // Of the whole page, unrounded.
  uint64_t ControlBytes() const {
    return ChecksumsOffsetBytes() + ChunkCount() * sizeof(SlotChecksum);
  }
  // kInvalidArgument: no chunk size, or more than kShardChunksMax chunks.
  Status Validate() const;

  friend bool operator==(const SlotGeometry&, const SlotGeometry&) = default;
};

// Reads a control page that may be mapped read-only and that another process may write at any time.
//
// Thread:  any; every access is one atomic load.
// Memory:  borrows `page` (8-byte aligned, at least geometry.ControlBytes()) while it is used.
// Failure: the bytes may come from a broken process: positions come from `geometry` alone, so a
//          header that changes under us leads at most to wrong values, never out of the page. A
//          chunk index out of range is the caller's broken invariant and stops the process.
class SlotControlView {
 public:
  SlotControlView(std::span<const std::byte> page, SlotGeometry geometry);

  // kInvalidArgument: another magic, format version or geometry than ours; names both.
  Status Validate() const;

  const SlotGeometry& geometry() const { return geometry_; }
  uint64_t epoch() const { return header().epoch.load(std::memory_order_acquire); }
  // Untrusted: compare with what was agreed in messages.
  uint64_t used_bytes() const { return header().used_bytes.load(std::memory_order_relaxed); }

  // Acquires: after kChunkReady the chunk's bytes and checksum are visible.
  ChunkState State(uint64_t chunk) const;
  bool IsReady(uint64_t chunk) const { return State(chunk) == ChunkState::kChunkReady; }
  // Meaningful once the chunk is ready. Read it once and keep it: the page can change.
  Hash128 Checksum(uint64_t chunk) const;

 protected:
  const SlotControlHeader& header() const;
  const std::atomic<uint32_t>& state_word(uint64_t chunk) const;
  const SlotChecksum& checksum_words(uint64_t chunk) const;

 private:
  const std::byte* page_;
  SlotGeometry geometry_;
};

// Writes a control page: the service between uses, and in each use the one that fills the slot.
//
// Thread: Publish() and PublishFailed() any, each chunk from one thread; the others one at a time.
class SlotControlWriter : public SlotControlView {
 public:
  SlotControlWriter(std::span<std::byte> page, SlotGeometry geometry);

  // Starts use `epoch`: the whole header anew, every chunk empty. Nobody else may be writing.
  void Reset(uint64_t epoch);
  void SetUsedBytes(uint64_t used_bytes);
  // The chunk's bytes are in the slot. The caller has made them visible before: streaming stores
  // need a store fence (CopyAndHash() ends with one).
  void Publish(uint64_t chunk, const Hash128& checksum);
  // The chunk will not come.
  void PublishFailed(uint64_t chunk);
  // Back to empty: its bytes turned out wrong and are read again.
  void Retract(uint64_t chunk);

 private:
  void SetState(uint64_t chunk, ChunkState state);
};

}  // namespace backstay
