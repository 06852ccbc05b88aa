#include "client/copy_engine.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "base/units.h"

namespace backstay::client {
namespace {

// Where a chunk of several pieces is put together. It stays in the core's cache, so gathering costs
// no memory traffic; grows to one chunk and is kept by its thread.
std::span<std::byte> StagingBuffer(uint64_t bytes) {
  thread_local std::vector<std::byte> buffer;
  if (buffer.size() < bytes) buffer.resize(bytes);
  return std::span(buffer).first(bytes);
}

// Pieces without bytes are in no chunk.
std::vector<CopyPiece> WithBytes(const std::vector<CopyPiece>& pieces) {
  std::vector<CopyPiece> kept;
  for (const CopyPiece& piece : pieces) {
    if (piece.memory.size_bytes() > 0) kept.push_back(piece);
  }
  return kept;
}

}  // namespace

CopyJob::CopyJob(std::shared_ptr<const MappedSlot> slot, uint64_t used_bytes,
                 const std::vector<CopyPiece>& pieces, std::function<void(const Status&)> on_ended)
    : slot_(std::move(slot)),
      control_(slot_->page(), slot_->geometry),
      used_bytes_(used_bytes),
      chunk_bytes_(slot_->geometry.chunk_bytes),
      pieces_(WithBytes(pieces)),
      on_ended_(std::move(on_ended)) {
  for (const CopyPiece& piece : pieces) left_of_[piece.group] = 0;  // Also groups without bytes.
  left_ = CeilDiv(used_bytes_, chunk_bytes_);
  std::vector<std::pair<uint32_t, uint64_t>> by_group;
  by_group.reserve(left_);
  for (uint64_t chunk = 0; chunk < left_; ++chunk) {
    uint32_t first_group = kAllGroups;
    ForEachGroupOf(chunk, [&](uint32_t group) {
      ++left_of_[group];
      first_group = std::min(first_group, group);
    });
    by_group.emplace_back(first_group, chunk);
  }
  std::sort(by_group.begin(), by_group.end());
  for (const auto& [group, chunk] : by_group) order_.push_back(chunk);
}

size_t CopyJob::FirstPieceOf(uint64_t chunk) const {
  const auto found =
      std::partition_point(pieces_.begin(), pieces_.end(), [&](const CopyPiece& piece) {
        return piece.offset_bytes + piece.memory.size_bytes() <= ChunkStart(chunk);
      });
  return static_cast<size_t>(found - pieces_.begin());
}

template <typename Visit>
void CopyJob::ForEachGroupOf(uint64_t chunk, const Visit& visit) const {
  std::vector<uint32_t> seen;
  for (size_t i = FirstPieceOf(chunk);
       i < pieces_.size() && pieces_[i].offset_bytes < ChunkEnd(chunk); ++i) {
    // Neighbours mostly share their group.
    if (!seen.empty() && seen.back() == pieces_[i].group) continue;
    seen.push_back(pieces_[i].group);
  }
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  for (const uint32_t group : seen) visit(group);
}

void CopyJob::CopyChunk(uint64_t chunk) {
  const uint64_t start = ChunkStart(chunk);
  const uint64_t end = ChunkEnd(chunk);
  const std::span<std::byte> target = slot_->bytes().subspan(start, end - start);
  size_t i = FirstPieceOf(chunk);
  if (i < pieces_.size()) {
    const CopyPiece& piece = pieces_[i];
    if (piece.memory.contiguous() && piece.offset_bytes <= start &&
        piece.offset_bytes + piece.memory.size_bytes() >= end) {
      const std::byte* source = piece.memory.data() + (start - piece.offset_bytes);
      control_.Publish(chunk, CopyAndHash(target, std::span(source, end - start)));
      return;
    }
  }
  // Several pieces, strided ones, or the gaps between them, which are zero.
  const std::span<std::byte> staging = StagingBuffer(end - start);
  uint64_t filled = start;
  for (; i < pieces_.size() && pieces_[i].offset_bytes < end; ++i) {
    const CopyPiece& piece = pieces_[i];
    const uint64_t from = std::max(piece.offset_bytes, start);
    const uint64_t to = std::min(piece.offset_bytes + piece.memory.size_bytes(), end);
    std::memset(staging.data() + (filled - start), 0, from - filled);
    piece.memory.Gather(from - piece.offset_bytes, staging.subspan(from - start, to - from));
    filled = to;
  }
  std::memset(staging.data() + (filled - start), 0, end - filled);
  control_.Publish(chunk, CopyAndHash(target, staging));
}

void CopyJob::ChunkCopied(uint64_t chunk) {
  std::unique_lock lock(mutex_);
  ForEachGroupOf(chunk, [&](uint32_t group) { --left_of_[group]; });
  if (left_ == 1 && !cancelled_) {
    // Before anybody who waits for the copy may go on: then the owner knows that it is done.
    lock.unlock();
    on_ended_(Status::Ok());
    lock.lock();
  }
  --working_;
  --left_;
  changed_.notify_all();
}

void CopyJob::Work() {
  while (true) {
    uint64_t chunk = 0;
    {
      const std::lock_guard lock(mutex_);
      if (cancelled_ || next_ == order_.size()) return;
      chunk = order_[next_++];
      ++working_;
    }
    try {
      CopyChunk(chunk);
    } catch (const std::bad_alloc&) {
      return ChunkFailed(NoSpace("no memory to gather " + FormatBytes(chunk_bytes_) + " in"));
    }
    ChunkCopied(chunk);
  }
}

void CopyJob::ChunkFailed(const Status& why) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = !cancelled_;
    cancelled_ = true;
  }
  if (first) on_ended_(why);  // Before anybody who waits for the copy may go on.
  const std::lock_guard lock(mutex_);
  --working_;
  changed_.notify_all();
}

void CopyJob::Cancel() {
  const std::lock_guard lock(mutex_);
  if (left_ == 0) return;
  cancelled_ = true;
  changed_.notify_all();
}

CopyJob::Outcome CopyJob::Wait(uint32_t group, std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  if (group != kAllGroups && !left_of_.contains(group)) return Outcome::kNoSuchGroup;
  const auto copied = [&] { return group == kAllGroups ? left_ == 0 : left_of_[group] == 0; };
  changed_.wait_until(lock, deadline, [&] { return copied() || (cancelled_ && working_ == 0); });
  if (copied()) return Outcome::kCopied;
  return cancelled_ && working_ == 0 ? Outcome::kCancelled : Outcome::kTimedOut;
}

}  // namespace backstay::client
