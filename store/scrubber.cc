#include "store/scrubber.h"

#include <algorithm>
#include <utility>

namespace backstay::store {

Scrubber::Scrubber(ShardTable& table, ShardVerifier& verifier, Executor& executor,
                   uint64_t bytes_per_second, OnBad on_bad)
    : table_(table),
      verifier_(verifier),
      executor_(executor),
      bytes_per_second_(bytes_per_second),
      on_bad_(std::move(on_bad)) {
  if (bytes_per_second_ > 0) ScheduleNext(kIdleInterval);
}

Scrubber::~Scrubber() { executor_.CancelTimer(timer_); }

void Scrubber::ScheduleNext(Duration pause) {
  timer_ = executor_.RunAfter(pause, lifetime_.Wrap([this] { ScrubBatch(); }));
}

const Shard* Scrubber::NextShard() {
  if (at_) {
    const Shard* current = table_.Find(*at_);
    if (current != nullptr && current->sealed() && current->digest == digest_ &&
        next_chunk_ < current->ChunkCount()) {
      return current;
    }
  }
  for (const Shard* shard : table_.All()) {
    if (!shard->sealed() || shard->ChunkCount() == 0) continue;
    if (at_ && !(*at_ < shard->name)) continue;
    at_ = shard->name;
    digest_ = shard->digest;
    next_chunk_ = 0;
    return shard;
  }
  return nullptr;
}

void Scrubber::ScrubBatch() {
  const Shard* shard = NextShard();
  if (shard == nullptr) {
    if (read_any_) {
      ++stats_.passes;
      stats_.last_pass_unix_ms = executor_.clock().UnixMillis();
    }
    at_.reset();
    read_any_ = false;
    return ScheduleNext(kIdleInterval);
  }
  const uint64_t first = next_chunk_;
  const uint64_t count =
      std::min(ShardVerifier::BatchChunks(shard->chunk_bytes), shard->ChunkCount() - first);
  const uint64_t bytes = std::min(shard->size_bytes, (first + count) * shard->chunk_bytes) -
                         first * shard->chunk_bytes;
  verifier_.VerifyChunks(shard->name, first, count,
                         lifetime_.Wrap([this, name = shard->name, first, count,
                                         bytes](const Result<VerifyReport>& report) {
                           if (report.ok()) next_chunk_ = first + count;
                           OnBatch(name, bytes, report);
                         }));
}

void Scrubber::OnBatch(const ShardName& name, uint64_t bytes, const Result<VerifyReport>& report) {
  if (report.ok()) {
    read_any_ = true;
    stats_.scrubbed_bytes += bytes;
    if (!report->bad_chunks.empty()) {
      ++stats_.bad_shards;
      next_chunk_ = UINT64_MAX;  // The rest is read by whoever sets it aside.
      on_bad_(name);
    }
  }
  ScheduleNext(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(
      static_cast<double>(bytes) / static_cast<double>(bytes_per_second_))));
}

}  // namespace backstay::store
