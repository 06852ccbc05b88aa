#include "store/shard_verifier.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace backstay::store {

struct ShardVerifier::Run {
  ShardPin pin;  // Until `done` has run: the workers read the slot.
  std::shared_ptr<SlotMemory> memory;
  std::shared_ptr<const Manifest> manifest;
  Completion<VerifyReport> done;
  uint64_t next_chunk = 0;
  uint64_t end_chunk = 0;
  VerifyReport report;

  // On a worker.
  void VerifyBatch() {
    const uint64_t end = std::min(end_chunk, next_chunk + BatchChunks(manifest->chunk_bytes));
    const std::span<const std::byte> bytes = memory->data().first(manifest->size_bytes);
    for (; next_chunk < end; ++next_chunk) {
      const uint64_t offset_bytes = next_chunk * manifest->chunk_bytes;
      const uint64_t size_bytes =
          std::min<uint64_t>(manifest->chunk_bytes, manifest->size_bytes - offset_bytes);
      if (HashBytes(bytes.subspan(offset_bytes, size_bytes)) !=
          manifest->chunk_checksums[next_chunk]) {
        report.bad_chunks.push_back(next_chunk);
      }
    }
  }
};

ShardVerifier::ShardVerifier(ShardTable& table, Executor& executor, Offload offload)
    : table_(table), executor_(executor), offload_(std::move(offload)) {}

void ShardVerifier::Verify(const ShardName& name, Completion<VerifyReport> done) {
  const Result<const Shard*> shard = table_.FindSealed(name);
  if (shard.ok()) return Start(**shard, 0, (*shard)->ChunkCount(), std::move(done));
  executor_.Post(
      lifetime_.Wrap([status = shard.status(), done = std::move(done)] { done(status); }));
}

void ShardVerifier::VerifyChunks(const ShardName& name, uint64_t first_chunk, uint64_t chunk_count,
                                 Completion<VerifyReport> done) {
  const Result<const Shard*> shard = table_.FindSealed(name);
  BACKSTAY_CHECK(shard.ok() && chunk_count <= (*shard)->ChunkCount() &&
                     first_chunk <= (*shard)->ChunkCount() - chunk_count,
                 "chunks that are not there are not verified");
  Start(**shard, first_chunk, chunk_count, std::move(done));
}

void ShardVerifier::Start(const Shard& shard, uint64_t first_chunk, uint64_t chunk_count,
                          Completion<VerifyReport> done) {
  auto run = std::make_shared<Run>();
  run->pin = table_.Pin(shard.name);
  run->memory = shard.memory;
  run->manifest = shard.manifest;
  run->next_chunk = first_chunk;
  run->end_chunk = first_chunk + chunk_count;
  run->report.chunk_count = chunk_count;
  run->done = std::move(done);
  NextBatch(std::move(run));
}

void ShardVerifier::NextBatch(std::shared_ptr<Run> run) {
  const Status started = offload_([run] { run->VerifyBatch(); }, lifetime_.Wrap([this, run] {
    if (run->next_chunk < run->end_chunk) return NextBatch(run);
    run->pin.Reset();
    run->done(std::move(run->report));
  }));
  if (started.ok()) return;
  executor_.Post(lifetime_.Wrap([run, started] {
    run->pin.Reset();
    run->done(started);
  }));
}

}  // namespace backstay::store
