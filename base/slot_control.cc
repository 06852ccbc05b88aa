#include "base/slot_control.h"

#include <new>
#include <string>

#include "base/check.h"

namespace backstay {

Status SlotGeometry::Validate() const {
  if (!IsChunkSize(chunk_bytes)) {
    return InvalidArgument("a chunk size of " + std::to_string(chunk_bytes) +
                           " bytes: need a power of two from 4 KiB to 64 MiB");
  }
  if (ChunkCount() > kShardChunksMax) {
    return InvalidArgument(FormatBytes(size_bytes) + " in chunks of " + FormatBytes(chunk_bytes) +
                           " are more than " + std::to_string(kShardChunksMax) +
                           " chunks: use larger chunks or more shards");
  }
  return Status::Ok();
}

SlotControlView::SlotControlView(std::span<const std::byte> page, SlotGeometry geometry)
    : page_(page.data()), geometry_(geometry) {
  BACKSTAY_CHECK(geometry.Validate().ok(), "a slot's geometry is checked where it is made");
  BACKSTAY_CHECK(page.size() >= geometry.ControlBytes(), "control page too small for its slot");
  BACKSTAY_CHECK(reinterpret_cast<uintptr_t>(page_) % alignof(SlotControlHeader) == 0,
                 "control page not aligned");
}

Status SlotControlView::Validate() const {
  const SlotControlHeader& h = header();
  if (h.magic.load(std::memory_order_relaxed) != kSlotControlMagic) {
    return InvalidArgument("this is not a slot's control page");
  }
  const uint32_t version = h.version.load(std::memory_order_relaxed);
  if (version != kSlotControlVersion) {
    return InvalidArgument("slot control page of format version " + std::to_string(version) +
                           ", this program speaks version " + std::to_string(kSlotControlVersion) +
                           ": use the same release of service and client library");
  }
  const uint64_t size_bytes = h.size_bytes.load(std::memory_order_relaxed);
  const uint64_t chunk_bytes = h.chunk_bytes.load(std::memory_order_relaxed);
  const uint64_t chunk_count = h.chunk_count.load(std::memory_order_relaxed);
  if (size_bytes != geometry_.size_bytes || chunk_bytes != geometry_.chunk_bytes ||
      chunk_count != geometry_.ChunkCount()) {
    return InvalidArgument(
        "slot control page of another slot: " + std::to_string(size_bytes) + " bytes in " +
        std::to_string(chunk_count) + " chunks of " + std::to_string(chunk_bytes) + ", expected " +
        std::to_string(geometry_.size_bytes) + " bytes in " +
        std::to_string(geometry_.ChunkCount()) + " of " + std::to_string(geometry_.chunk_bytes));
  }
  return Status::Ok();
}

ChunkState SlotControlView::State(uint64_t chunk) const {
  const uint32_t word = state_word(chunk).load(std::memory_order_acquire);
  return word > static_cast<uint32_t>(ChunkState::kChunkFailed) ? ChunkState::kChunkFailed
                                                                : static_cast<ChunkState>(word);
}

Hash128 SlotControlView::Checksum(uint64_t chunk) const {
  const SlotChecksum& words = checksum_words(chunk);
  return {words.low.load(std::memory_order_relaxed), words.high.load(std::memory_order_relaxed)};
}

const SlotControlHeader& SlotControlView::header() const {
  return *reinterpret_cast<const SlotControlHeader*>(page_);
}

const std::atomic<uint32_t>& SlotControlView::state_word(uint64_t chunk) const {
  BACKSTAY_CHECK(chunk < geometry_.ChunkCount(), "chunk out of range");
  return reinterpret_cast<const std::atomic<uint32_t>*>(page_ + sizeof(SlotControlHeader))[chunk];
}

const SlotChecksum& SlotControlView::checksum_words(uint64_t chunk) const {
  BACKSTAY_CHECK(chunk < geometry_.ChunkCount(), "chunk out of range");
  return reinterpret_cast<const SlotChecksum*>(page_ + geometry_.ChecksumsOffsetBytes())[chunk];
}

SlotControlWriter::SlotControlWriter(std::span<std::byte> page, SlotGeometry geometry)
    : SlotControlView(page, geometry) {}

// The page was given as writable memory, so its constness is only the base class's.
void SlotControlWriter::Reset(uint64_t epoch) {
  auto& h = const_cast<SlotControlHeader&>(header());
  h.magic.store(kSlotControlMagic, std::memory_order_relaxed);
  h.version.store(kSlotControlVersion, std::memory_order_relaxed);
  h.chunk_bytes.store(geometry().chunk_bytes, std::memory_order_relaxed);
  h.size_bytes.store(geometry().size_bytes, std::memory_order_relaxed);
  h.used_bytes.store(0, std::memory_order_relaxed);
  h.chunk_count.store(static_cast<uint32_t>(geometry().ChunkCount()), std::memory_order_relaxed);
  for (uint64_t chunk = 0; chunk < geometry().ChunkCount(); ++chunk) {
    SetState(chunk, ChunkState::kChunkEmpty);
  }
  h.epoch.store(epoch, std::memory_order_release);
}

void SlotControlWriter::SetUsedBytes(uint64_t used_bytes) {
  const_cast<SlotControlHeader&>(header()).used_bytes.store(used_bytes, std::memory_order_relaxed);
}

void SlotControlWriter::Publish(uint64_t chunk, const Hash128& checksum) {
  auto& words = const_cast<SlotChecksum&>(checksum_words(chunk));
  words.low.store(checksum.low, std::memory_order_relaxed);
  words.high.store(checksum.high, std::memory_order_relaxed);
  SetState(chunk, ChunkState::kChunkReady);
}

void SlotControlWriter::PublishFailed(uint64_t chunk) { SetState(chunk, ChunkState::kChunkFailed); }

void SlotControlWriter::Retract(uint64_t chunk) { SetState(chunk, ChunkState::kChunkEmpty); }

void SlotControlWriter::SetState(uint64_t chunk, ChunkState state) {
  const_cast<std::atomic<uint32_t>&>(state_word(chunk))
      .store(static_cast<uint32_t>(state), std::memory_order_release);
}

}  // namespace backstay
