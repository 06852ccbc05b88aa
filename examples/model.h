#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace backstay::example {

// The model predicts the next byte of a text from the bytes before it:
//
//   input   = the last 12 bytes' embeddings, and a row of a hashed table for each n-gram so far
//   hidden1 = tanh(input * weight + bias)
//   hidden2 = dropout(tanh(hidden1 * weight + bias))
//   logits  = hidden2 * weight + bias; the loss is the softmax's cross entropy
//
// Its weights are one flat array (below). The table is sharded by rows over the ranks
// (ngram_table.h).
constexpr size_t kContextSizeBytes = 12;
constexpr size_t kByteWidth = 16;
constexpr std::array<size_t, 3> kNgramSizesBytes = {3, 5, 8};
constexpr size_t kNgramCount = kNgramSizesBytes.size();
constexpr size_t kNgramWidth = 32;
constexpr size_t kInputWidth = kContextSizeBytes * kByteWidth + kNgramCount * kNgramWidth;
constexpr size_t kHiddenWidth = 96;
constexpr size_t kByteValues = 256;
constexpr float kDropout = 0.1f;

static_assert(kNgramSizesBytes.back() <= kContextSizeBytes);

// A matrix in the flat array of weights, row-major; a vector is one row.
struct Parameter {
  std::string_view name;
  size_t rows;
  size_t columns;
  size_t offset;  // In elements.

  constexpr size_t size() const { return rows * columns; }
};

constexpr Parameter kByteEmbedding = {"byte_embedding", kByteValues, kByteWidth, 0};
constexpr Parameter After(const Parameter& previous, std::string_view name, size_t rows,
                          size_t columns) {
  return {name, rows, columns, previous.offset + previous.size()};
}
constexpr Parameter kWeight1 = After(kByteEmbedding, "hidden1.weight", kInputWidth, kHiddenWidth);
constexpr Parameter kBias1 = After(kWeight1, "hidden1.bias", 1, kHiddenWidth);
constexpr Parameter kWeight2 = After(kBias1, "hidden2.weight", kHiddenWidth, kHiddenWidth);
constexpr Parameter kBias2 = After(kWeight2, "hidden2.bias", 1, kHiddenWidth);
constexpr Parameter kWeight3 = After(kBias2, "logits.weight", kHiddenWidth, kByteValues);
constexpr Parameter kBias3 = After(kWeight3, "logits.bias", 1, kByteValues);

constexpr std::array<Parameter, 7> kParameters = {kByteEmbedding, kWeight1, kBias1, kWeight2,
                                                  kBias2,         kWeight3, kBias3};
constexpr size_t kWeightCount = kBias3.offset + kBias3.size();

// The weights that a run of `seed` starts from.
std::vector<float> InitialWeights(uint64_t seed);

// What one rank learns from in one step.
struct Batch {
  size_t size = 0;
  std::vector<uint8_t> context;   // [size][kContextSizeBytes]
  std::vector<uint8_t> target;    // [size]
  std::vector<float> ngram_rows;  // [size][kNgramCount][kNgramWidth]
  std::vector<float> keep_scale;  // [size][kHiddenWidth]: dropout, 0 or 1 / (1 - kDropout).
};

// A number for the n-gram of `size_bytes` bytes that ends at `end`; the table's row is its
// remainder.
uint64_t HashNgram(const uint8_t* end, size_t size_bytes);

// Thread:  one at a time.
// Memory:  keeps its own scratch; borrows the arguments during the call.
class Network {
 public:
  // The mean loss of the batch in nats per byte; its gradient by the weights to `weight_gradient`
  // [kWeightCount] and by the batch's table rows to `ngram_gradient`
  // [size][kNgramCount][kNgramWidth], both overwritten.
  double LossAndGradients(std::span<const float> weights, const Batch& batch,
                          std::span<float> weight_gradient, std::span<float> ngram_gradient);

 private:
  void Forward(const float* weights, const Batch& batch);
  double SoftmaxLoss(const Batch& batch);
  void Backward(const float* weights, const Batch& batch, float* weight_gradient);
  void BackwardInput(const Batch& batch, float* weight_gradient, float* ngram_gradient);

  std::vector<float> input_;    // [size][kInputWidth]
  std::vector<float> hidden1_;  // [size][kHiddenWidth]
  std::vector<float> hidden2_;  // [size][kHiddenWidth], before dropout.
  std::vector<float> dropped_;  // [size][kHiddenWidth], after dropout.
  std::vector<float>
      logits_;  // [size][kByteValues]; SoftmaxLoss() turns it into the loss's gradient.
  std::vector<float> input_gradient_;
  std::vector<float> hidden_gradient_;
  std::vector<float> transposed_;
};

}  // namespace backstay::example
