#include "examples/trainer.h"

#include <algorithm>
#include <array>

#include "examples/digest.h"
#include "examples/kernels.h"

namespace backstay::example {
namespace {

// A rank's table is never smaller, whatever size was asked for.
constexpr uint64_t kTableRowsPerRankMin = 256;

uint64_t TableRowsPerRank(uint64_t size_mib, size_t world_size) {
  const uint64_t wanted_bytes = size_mib << 20;
  const uint64_t weight_bytes = kWeightCount * sizeof(float);
  const uint64_t dense_bytes = weight_bytes + 2 * weight_bytes / world_size;
  const uint64_t row_bytes = 3 * kNgramWidth * sizeof(float);  // The row and its two moments.
  const uint64_t rows = wanted_bytes > dense_bytes ? (wanted_bytes - dense_bytes) / row_bytes : 0;
  return std::max(rows, kTableRowsPerRankMin);
}

}  // namespace

TrainerState::TrainerState(uint64_t size_mib, size_t rank, size_t world_size)
    : size_mib_(size_mib) {
  Place(rank, world_size);
}

void TrainerState::Place(size_t rank, size_t world_size) {
  if (rank == rank_ && world_size == world_size_) return;
  rank_ = rank;
  world_size_ = world_size;
  weight_part = PartOf(kWeightCount, rank, world_size);
  weights.resize(kWeightCount);
  moment1.resize(weight_part.size());
  moment2.resize(weight_part.size());
  table.Place(TableRowsPerRank(size_mib_, world_size), rank, world_size);
}

void TrainerState::Reset(uint64_t seed) {
  step = 0;
  cursor = 0;
  random = Random(Mix(seed + (rank_ + 1) * kGoldenGamma));
  weights = InitialWeights(seed);
  std::fill(moment1.begin(), moment1.end(), 0.0f);
  std::fill(moment2.begin(), moment2.end(), 0.0f);
  table.Reset(seed);
}

std::string TrainerState::Digest() const {
  Digester digester;
  const std::array<uint64_t, 3> numbers = {step, cursor, random.state()};
  digester.Add(std::as_bytes(std::span(numbers)));
  for (const std::vector<float>* values :
       {&weights, &moment1, &moment2, &table.rows, &table.moment1, &table.moment2}) {
    digester.Add(std::as_bytes(std::span(*values)));
  }
  return digester.Hex();
}

Trainer::Trainer(const std::vector<uint8_t>& text, uint64_t seed, TrainerState& state)
    : text_(text),
      sampler_(text.size(), kContextSizeBytes, seed),
      state_(state),
      weight_gradient_(kWeightCount) {
  batch_.size = kBatchSizePerRank;
  batch_.context.resize(batch_.size * kContextSizeBytes);
  batch_.target.resize(batch_.size);
  batch_.keep_scale.resize(batch_.size * kHiddenWidth);
}

void Trainer::FillBatch(size_t rank, size_t world_size, std::vector<uint64_t>& table_rows) {
  // The global batch is the next samples of the run; each rank takes an equal, contiguous part of
  // it.
  const uint64_t first = state_.cursor + rank * kBatchSizePerRank;
  table_rows.clear();
  for (size_t sample = 0; sample < batch_.size; ++sample) {
    const uint8_t* target = text_.data() + sampler_.Position(first + sample);
    batch_.target[sample] = *target;
    std::copy_n(target - kContextSizeBytes, kContextSizeBytes,
                batch_.context.begin() + sample * kContextSizeBytes);
    for (const size_t size_bytes : kNgramSizesBytes) {
      table_rows.push_back(HashNgram(target, size_bytes) % state_.table.table_row_count);
    }
  }
  for (float& scale : batch_.keep_scale) {
    scale = state_.random.NextUnit() < kDropout ? 0.0f : 1.0f / (1.0f - kDropout);
  }
  state_.cursor += world_size * kBatchSizePerRank;
}

double Trainer::ComputeGradients(Communicator& communicator) {
  std::vector<uint64_t> table_rows;
  FillBatch(communicator.rank(), communicator.world_size(), table_rows);
  batch_.ngram_rows = exchange_.Fetch(communicator, state_.table, table_rows);
  std::vector<float> ngram_gradient(batch_.ngram_rows.size());
  const double loss =
      network_.LossAndGradients(state_.weights, batch_, weight_gradient_, ngram_gradient);
  weight_gradient_part_.resize(state_.weight_part.size());
  communicator.ReduceScatterMean(weight_gradient_, weight_gradient_part_);
  exchange_.SendGradients(communicator, ngram_gradient);
  return communicator.Mean(loss);
}

void Trainer::UpdateWeights(Communicator& communicator) {
  const Adam adam(state_.step + 1);
  adam.Update(weight_gradient_part_.data(), state_.weights.data() + state_.weight_part.begin,
              state_.moment1.data(), state_.moment2.data(), state_.weight_part.size());
  communicator.AllGatherParts(state_.weights);
}

void Trainer::UpdateTable(Communicator& communicator) {
  const Adam adam(state_.step + 1);
  exchange_.Update(adam, communicator.world_size(), state_.table);
  ++state_.step;
}

}  // namespace backstay::example
