#pragma once

#include <cstdint>
#include <vector>

#include "base/executor.h"
#include "store/offload.h"
#include "store/shard_table.h"

namespace backstay::store {

struct VerifyReport {
  uint64_t chunk_count = 0;
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

 private:
  struct Run;
  void NextBatch(std::shared_ptr<Run> run);

  ShardTable& table_;
  Executor& executor_;
  const Offload offload_;
  Lifetime lifetime_;
};

}  // namespace backstay::store
