#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/executor.h"
#include "store/offload.h"
#include "store/shard_table.h"

namespace backstay::store {

struct VerifyReport {
  uint64_t chunk_count = 0;          // Read.
  std::vector<uint64_t> bad_chunks;  // Ascending.
};

// Reads every chunk of a sealed shard again and compares it with its manifest. The shard is pinned
// meanwhile. Runs in batches, so that other work of the pool gets its turn; at most one
// verification for each call, each ends by itself.
//
// Thread: the control executor; the hashing through `offload`.
class ShardVerifier {
 public:
  // 64 MiB at the default chunk size: some milliseconds of hashing.
  static constexpr uint64_t kBatchBytes = 64 * kMiB;

  // Both outlive the verifier.
  ShardVerifier(ShardTable& table, Executor& executor, Offload offload);

  // FindSealed()'s errors; kNoSpace: the worker pool is full. Does not change the shard: the caller
  // quarantines it.
  void Verify(const ShardName& name, Completion<VerifyReport> done);
  // The same of `chunk_count` chunks from `first_chunk` on, which must exist.
  void VerifyChunks(const ShardName& name, uint64_t first_chunk, uint64_t chunk_count,
                    Completion<VerifyReport> done);
  static uint64_t BatchChunks(uint32_t chunk_bytes) {
    return std::max<uint64_t>(1, kBatchBytes / chunk_bytes);
  }

 private:
  struct Run;
  void Start(const Shard& shard, uint64_t first_chunk, uint64_t chunk_count,
             Completion<VerifyReport> done);
  void NextBatch(std::shared_ptr<Run> run);

  ShardTable& table_;
  Executor& executor_;
  const Offload offload_;
  Lifetime lifetime_;
};

}  // namespace backstay::store
