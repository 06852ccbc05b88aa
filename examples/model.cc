#include "examples/model.h"

#include <algorithm>
#include <cmath>

#include "examples/kernels.h"
#include "examples/random.h"

namespace backstay::example {
namespace {

constexpr size_t kNgramOffset = kContextSizeBytes * kByteWidth;

// out = bias for every row, then += input * weight.
void Linear(const float* weights, const Parameter& weight, const Parameter& bias,
            const std::vector<float>& input, size_t rows, std::vector<float>& out) {
  out.resize(rows * weight.columns);
  for (size_t row = 0; row < rows; ++row) {
    std::copy_n(weights + bias.offset, bias.size(), out.begin() + row * weight.columns);
  }
  AddProduct(input.data(), weights + weight.offset, out.data(), rows, weight.rows, weight.columns);
}

// The other way: the gradients of a Linear()'s weight, bias and input from that of its output.
void LinearBackward(const float* weights, const Parameter& weight, const Parameter& bias,
                    const std::vector<float>& input, const std::vector<float>& out_gradient,
                    size_t rows, float* weight_gradient, std::vector<float>& transposed,
                    std::vector<float>& input_gradient) {
  AddTransposedProduct(input.data(), out_gradient.data(), weight_gradient + weight.offset, rows,
                       weight.rows, weight.columns);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t i = 0; i < bias.size(); ++i) {
      weight_gradient[bias.offset + i] += out_gradient[row * bias.size() + i];
    }
  }
  // With the weight transposed, the product's inner loop runs along memory without reordering a
  // sum.
  transposed.resize(weight.size());
  Transpose(weights + weight.offset, transposed.data(), weight.rows, weight.columns);
  input_gradient.assign(rows * weight.rows, 0.0f);
  AddProduct(out_gradient.data(), transposed.data(), input_gradient.data(), rows, weight.columns,
             weight.rows);
}

void Tanh(std::vector<float>& values) {
  for (float& value : values) value = std::tanh(value);
}

// gradient *= 1 - tanh^2, from the layer's output.
void TanhBackward(const std::vector<float>& output, std::vector<float>& gradient) {
  for (size_t i = 0; i < gradient.size(); ++i) gradient[i] *= 1.0f - output[i] * output[i];
}

}  // namespace

std::vector<float> InitialWeights(uint64_t seed) {
  std::vector<float> weights(kWeightCount, 0.0f);  // Biases start at zero.
  for (const Parameter* weight : {&kByteEmbedding, &kWeight1, &kWeight2, &kWeight3}) {
    const float scale =
        weight == &kByteEmbedding ? 0.5f : std::sqrt(3.0f / static_cast<float>(weight->rows));
    for (size_t i = 0; i < weight->size(); ++i) {
      weights[weight->offset + i] = scale * SignedUnitAt(seed, weight->offset, i);
    }
  }
  return weights;
}

uint64_t HashNgram(const uint8_t* end, size_t size_bytes) {
  uint64_t hash = size_bytes;
  for (const uint8_t* byte = end - size_bytes; byte != end; ++byte) {
    hash = Mix(hash + (*byte + 1) * kGoldenGamma);
  }
  return hash;
}

double Network::LossAndGradients(std::span<const float> weights, const Batch& batch,
                                 std::span<float> weight_gradient,
                                 std::span<float> ngram_gradient) {
  Forward(weights.data(), batch);
  const double loss = SoftmaxLoss(batch);
  std::fill(weight_gradient.begin(), weight_gradient.end(), 0.0f);
  Backward(weights.data(), batch, weight_gradient.data());
  BackwardInput(batch, weight_gradient.data(), ngram_gradient.data());
  return loss;
}

void Network::Forward(const float* weights, const Batch& batch) {
  input_.resize(batch.size * kInputWidth);
  for (size_t sample = 0; sample < batch.size; ++sample) {
    float* row = input_.data() + sample * kInputWidth;
    for (size_t i = 0; i < kContextSizeBytes; ++i) {
      const size_t byte = batch.context[sample * kContextSizeBytes + i];
      std::copy_n(weights + kByteEmbedding.offset + byte * kByteWidth, kByteWidth,
                  row + i * kByteWidth);
    }
    std::copy_n(batch.ngram_rows.data() + sample * kNgramCount * kNgramWidth,
                kNgramCount * kNgramWidth, row + kNgramOffset);
  }
  Linear(weights, kWeight1, kBias1, input_, batch.size, hidden1_);
  Tanh(hidden1_);
  Linear(weights, kWeight2, kBias2, hidden1_, batch.size, hidden2_);
  Tanh(hidden2_);
  dropped_ = hidden2_;
  for (size_t i = 0; i < dropped_.size(); ++i) dropped_[i] *= batch.keep_scale[i];
  Linear(weights, kWeight3, kBias3, dropped_, batch.size, logits_);
}

double Network::SoftmaxLoss(const Batch& batch) {
  double loss = 0;
  for (size_t sample = 0; sample < batch.size; ++sample) {
    float* row = logits_.data() + sample * kByteValues;
    const float largest = *std::max_element(row, row + kByteValues);
    const double target_logit = row[batch.target[sample]] - largest;
    double sum = 0;
    for (size_t i = 0; i < kByteValues; ++i) {
      row[i] = std::exp(row[i] - largest);
      sum += row[i];
    }
    loss += std::log(sum) - target_logit;
    const auto scale = static_cast<float>(1.0 / (sum * static_cast<double>(batch.size)));
    for (size_t i = 0; i < kByteValues; ++i) row[i] *= scale;
    row[batch.target[sample]] -= 1.0f / static_cast<float>(batch.size);
  }
  return loss / static_cast<double>(batch.size);
}

void Network::Backward(const float* weights, const Batch& batch, float* weight_gradient) {
  LinearBackward(weights, kWeight3, kBias3, dropped_, logits_, batch.size, weight_gradient,
                 transposed_, hidden_gradient_);
  for (size_t i = 0; i < hidden_gradient_.size(); ++i) hidden_gradient_[i] *= batch.keep_scale[i];
  TanhBackward(hidden2_, hidden_gradient_);
  LinearBackward(weights, kWeight2, kBias2, hidden1_, hidden_gradient_, batch.size, weight_gradient,
                 transposed_, input_gradient_);
  hidden_gradient_.swap(input_gradient_);
  TanhBackward(hidden1_, hidden_gradient_);
  LinearBackward(weights, kWeight1, kBias1, input_, hidden_gradient_, batch.size, weight_gradient,
                 transposed_, input_gradient_);
}

void Network::BackwardInput(const Batch& batch, float* weight_gradient, float* ngram_gradient) {
  for (size_t sample = 0; sample < batch.size; ++sample) {
    const float* row = input_gradient_.data() + sample * kInputWidth;
    for (size_t i = 0; i < kContextSizeBytes; ++i) {
      const size_t byte = batch.context[sample * kContextSizeBytes + i];
      float* target = weight_gradient + kByteEmbedding.offset + byte * kByteWidth;
      for (size_t k = 0; k < kByteWidth; ++k) target[k] += row[i * kByteWidth + k];
    }
    std::copy_n(row + kNgramOffset, kNgramCount * kNgramWidth,
                ngram_gradient + sample * kNgramCount * kNgramWidth);
  }
}

}  // namespace backstay::example
