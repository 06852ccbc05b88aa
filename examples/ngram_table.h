#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "examples/communicator.h"
#include "examples/kernels.h"

namespace backstay::example {

// The rows of the n-gram table that this rank owns, with their moments: [row_count][kNgramWidth]
// each. The table is sharded by rows, as large embedding tables are: rank r of a table with N rows
// for each rank owns [r * N, (r + 1) * N).
struct NgramShard {
  uint64_t first_row = 0;
  uint64_t row_count = 0;
  uint64_t table_row_count = 0;
  std::vector<float> rows;
  std::vector<float> moment1;
  std::vector<float> moment2;

  // Makes this the shard of `rank`; the contents are then undefined.
  void Place(uint64_t rows_per_rank, size_t rank, size_t world_size);
  // What a run of `seed` starts from.
  void Reset(uint64_t seed);
};

// One step's traffic with the table: the rows that this rank's batch needs, wherever they live, and
// their gradients back to their owners.
//
// Thread:  one at a time.
// Failure: as Communicator.
class NgramExchange {
 public:
  // The rows of `wanted` (numbers of rows of the whole table), in that order.
  std::vector<float> Fetch(Communicator& communicator, const NgramShard& shard,
                           std::span<const uint64_t> wanted);

  // Sends the gradients of the rows last fetched, in the order of `wanted`, to the owners, and
  // keeps what came for this rank's own rows. Changes no state.
  void SendGradients(Communicator& communicator, std::span<const float> gradients);

  // One optimizer step on the shard, with the mean over the ranks of what SendGradients() brought;
  // rows that nobody asked for have a gradient of zero.
  void Update(const Adam& adam, size_t world_size, NgramShard& shard);

 private:
  std::vector<size_t> order_;           // order_[i]: where the i-th row sent for is in `wanted`.
  std::vector<int64_t> wanted_counts_;  // By owner.
  std::vector<int64_t> asked_counts_;   // By the rank that asked this one.
  std::vector<uint64_t> asked_rows_;  // In this rank's shard, by asking rank and then in its order.
  std::vector<float> asked_gradients_;  // [asked_rows_.size()][kNgramWidth]
};

}  // namespace backstay::example
