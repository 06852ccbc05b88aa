#include "examples/ngram_table.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "examples/model.h"
#include "examples/random.h"

namespace backstay::example {
namespace {

// The streams of the run's seed up to the weights' count belong to the weights (InitialWeights()).
constexpr uint64_t kTableStream = kWeightCount;
constexpr float kInitialScale = 0.1f;

std::vector<int64_t> Times(std::vector<int64_t> counts, size_t factor) {
  for (int64_t& count : counts) count *= static_cast<int64_t>(factor);
  return counts;
}

void CopyRow(const float* from, float* to) { std::copy_n(from, kNgramWidth, to); }

}  // namespace

void NgramShard::Place(uint64_t rows_per_rank, size_t rank, size_t world_size) {
  first_row = rank * rows_per_rank;
  row_count = rows_per_rank;
  table_row_count = rows_per_rank * world_size;
  for (std::vector<float>* values : {&rows, &moment1, &moment2}) {
    values->resize(rows_per_rank * kNgramWidth);
  }
}

void NgramShard::Reset(uint64_t seed) {
  const uint64_t first_element = first_row * kNgramWidth;
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = kInitialScale * SignedUnitAt(seed, kTableStream, first_element + i);
  }
  std::fill(moment1.begin(), moment1.end(), 0.0f);
  std::fill(moment2.begin(), moment2.end(), 0.0f);
}

std::vector<float> NgramExchange::Fetch(Communicator& communicator, const NgramShard& shard,
                                        std::span<const uint64_t> wanted) {
  // Requests go grouped by owner, in the batch's order within each group.
  const auto owner_of = [&](uint64_t row) { return row / shard.row_count; };
  order_.resize(wanted.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  std::stable_sort(order_.begin(), order_.end(),
                   [&](size_t a, size_t b) { return owner_of(wanted[a]) < owner_of(wanted[b]); });
  wanted_counts_.assign(communicator.world_size(), 0);
  std::vector<uint64_t> requests(wanted.size());
  for (size_t i = 0; i < order_.size(); ++i) {
    requests[i] = wanted[order_[i]];
    ++wanted_counts_[owner_of(requests[i])];
  }

  asked_counts_ = communicator.ExchangeCounts(wanted_counts_);
  asked_rows_ = communicator.AllToAll<uint64_t>(requests, wanted_counts_, asked_counts_);
  std::vector<float> answers(asked_rows_.size() * kNgramWidth);
  for (size_t i = 0; i < asked_rows_.size(); ++i) {
    asked_rows_[i] -= shard.first_row;
    CopyRow(shard.rows.data() + asked_rows_[i] * kNgramWidth, answers.data() + i * kNgramWidth);
  }
  const std::vector<float> received = communicator.AllToAll<float>(
      answers, Times(asked_counts_, kNgramWidth), Times(wanted_counts_, kNgramWidth));

  std::vector<float> rows(received.size());
  for (size_t i = 0; i < order_.size(); ++i) {
    CopyRow(received.data() + i * kNgramWidth, rows.data() + order_[i] * kNgramWidth);
  }
  return rows;
}

void NgramExchange::SendGradients(Communicator& communicator, std::span<const float> gradients) {
  std::vector<float> ordered(gradients.size());
  for (size_t i = 0; i < order_.size(); ++i) {
    CopyRow(gradients.data() + order_[i] * kNgramWidth, ordered.data() + i * kNgramWidth);
  }
  asked_gradients_ = communicator.AllToAll<float>(ordered, Times(wanted_counts_, kNgramWidth),
                                                  Times(asked_counts_, kNgramWidth));
}

void NgramExchange::Update(const Adam& adam, size_t world_size, NgramShard& shard) {
  // Rows in ascending order; a row asked for twice sums in the order of the asking ranks.
  std::map<uint64_t, std::array<float, kNgramWidth>> gradients;
  const float scale = 1.0f / static_cast<float>(world_size);
  for (size_t i = 0; i < asked_rows_.size(); ++i) {
    auto& sum = gradients.try_emplace(asked_rows_[i]).first->second;
    for (size_t k = 0; k < kNgramWidth; ++k)
      sum[k] += scale * asked_gradients_[i * kNgramWidth + k];
  }
  const auto update = [&](const float* gradient, uint64_t begin_row, uint64_t end_row) {
    const size_t begin = begin_row * kNgramWidth;
    adam.Update(gradient, shard.rows.data() + begin, shard.moment1.data() + begin,
                shard.moment2.data() + begin, (end_row - begin_row) * kNgramWidth);
  };
  uint64_t next = 0;
  for (const auto& [row, gradient] : gradients) {
    update(nullptr, next, row);
    update(gradient.data(), row, row + 1);
    next = row + 1;
  }
  update(nullptr, next, shard.row_count);
}

}  // namespace backstay::example
