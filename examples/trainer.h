#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "examples/communicator.h"
#include "examples/model.h"
#include "examples/ngram_table.h"
#include "examples/random.h"
#include "examples/text.h"

namespace backstay::example {

constexpr size_t kBatchSizePerRank = 128;

// Everything that one rank must get back to go on as if nothing had happened.
struct TrainerState {
  uint64_t step = 0;    // Optimizer steps done.
  uint64_t cursor = 0;  // Samples of the text that all ranks together have taken.
  Random random;        // This rank's, for dropout.

  std::vector<float> weights;  // The same on every rank.
  // Adam's moments of the weights, sharded as ZeRO-1 does: this rank's PartOf the flat array.
  Part weight_part = {};
  std::vector<float> moment1;
  std::vector<float> moment2;
  NgramShard table;

  // Takes memory for about `size_mib` MiB for each rank, as the state of `rank`; its contents are
  // undefined until Reset() or a restore.
  TrainerState(uint64_t size_mib, size_t rank, size_t world_size);
  // Makes this the state of another rank, or of a world of another size; the contents are then
  // undefined.
  void Place(size_t rank, size_t world_size);
  // What a run of `seed` starts from.
  void Reset(uint64_t seed);

  size_t rank() const { return rank_; }
  size_t world_size() const { return world_size_; }

  // XXH3-128 of all of it, as 32 hexadecimal digits.
  std::string Digest() const;

 private:
  uint64_t size_mib_;
  size_t rank_ = 0;
  size_t world_size_ = 0;
};

// Data-parallel training. A step comes in two halves: the first only reads the tensors of the
// state, so a save's copy may go on beside it; the second changes them.
//
// Thread:  one at a time.
// Memory:  borrows the text and the state.
// Failure: as Communicator; the state may then be half updated and must be restored.
class Trainer {
 public:
  Trainer(const std::vector<uint8_t>& text, uint64_t seed, TrainerState& state);

  // Takes this rank's part of the next global batch and exchanges gradients. Returns the mean loss
  // over all ranks in nats per byte.
  double ComputeGradients(Communicator& communicator);
  // The optimizer's step, first half: this rank's part of the weights, then everybody's part to
  // everybody.
  void UpdateWeights(Communicator& communicator);
  // The second half: this rank's rows of the table, and the step's number.
  void UpdateTable(Communicator& communicator);

 private:
  void FillBatch(size_t rank, size_t world_size, std::vector<uint64_t>& table_rows);

  const std::vector<uint8_t>& text_;
  const Sampler sampler_;
  TrainerState& state_;
  Network network_;
  NgramExchange exchange_;
  Batch batch_;
  std::vector<float> weight_gradient_;
  std::vector<float> weight_gradient_part_;
};

}  // namespace backstay::example
