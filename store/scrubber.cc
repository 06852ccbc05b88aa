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

void Scrubber::StartPass() {
  for (const Shard* shard : table_.All()) {
    if (shard->sealed()) due_.push_back({shard->name, shard->digest});
  }
  next_chunk_ = 0;
}

const Shard* Scrubber::NextShard() {
  while (!due_.empty()) {
    const Shard* shard = table_.Find(due_.front().name);
    const bool there = shard != nullptr && shard->sealed() && shard->digest == due_.front().digest;
    if (there && next_chunk_ < shard->ChunkCount()) return shard;
    due_.pop_front();
    next_chunk_ = 0;
  }
  return nullptr;
}

void Scrubber::ScrubBatch() {
  if (due_.empty()) StartPass();
  const bool anything = !due_.empty();
  const Shard* shard = NextShard();
  if (shard == nullptr) {
    if (anything) {
      ++stats_.passes;
      stats_.last_pass_unix_ms = executor_.clock().UnixMillis();
    }
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
