#include "examples/kernels.h"

#include <cmath>

namespace backstay::example {
namespace {

constexpr double kLearningRate = 2e-3;
constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.99;
constexpr float kEpsilon = 1e-8f;
constexpr float kWeightDecay = 1e-2f;

// Moments below this are zero: fading on into denormal numbers would make each step many times
// slower.
constexpr float kSmallestMoment = 1e-30f;

float FlushTiny(float value) { return std::fabs(value) < kSmallestMoment ? 0.0f : value; }

template <bool kHasGradient>
void UpdateAll(const float* __restrict gradient, float* __restrict weight,
               float* __restrict moment1, float* __restrict moment2, size_t count, float step_size,
               float correction) {
  constexpr auto kKeep1 = static_cast<float>(kBeta1);
  constexpr auto kKeep2 = static_cast<float>(kBeta2);
  constexpr auto kDecayPerStep = static_cast<float>(kLearningRate) * kWeightDecay;
  for (size_t i = 0; i < count; ++i) {
    const float g = kHasGradient ? gradient[i] : 0.0f;
    const float m = FlushTiny(kKeep1 * moment1[i] + (1.0f - kKeep1) * g);
    const float v = FlushTiny(kKeep2 * moment2[i] + (1.0f - kKeep2) * g * g);
    moment1[i] = m;
    moment2[i] = v;
    weight[i] -= step_size * m / (std::sqrt(v) * correction + kEpsilon) + kDecayPerStep * weight[i];
  }
}

}  // namespace

void AddProduct(const float* __restrict left, const float* __restrict right, float* __restrict out,
                size_t rows, size_t inner, size_t columns) {
  for (size_t row = 0; row < rows; ++row) {
    for (size_t k = 0; k < inner; ++k) {
      const float factor = left[row * inner + k];
      for (size_t column = 0; column < columns; ++column) {
        out[row * columns + column] += factor * right[k * columns + column];
      }
    }
  }
}

void AddTransposedProduct(const float* __restrict left, const float* __restrict right,
                          float* __restrict out, size_t rows, size_t inner, size_t columns) {
  for (size_t row = 0; row < rows; ++row) {
    for (size_t k = 0; k < inner; ++k) {
      const float factor = left[row * inner + k];
      for (size_t column = 0; column < columns; ++column) {
        out[k * columns + column] += factor * right[row * columns + column];
      }
    }
  }
}

void Transpose(const float* __restrict in, float* __restrict out, size_t rows, size_t columns) {
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      out[column * rows + row] = in[row * columns + column];
    }
  }
}

Adam::Adam(uint64_t step)
    : step_size_(
          static_cast<float>(kLearningRate / (1.0 - std::pow(kBeta1, static_cast<double>(step))))),
      moment2_correction_(
          static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(kBeta2, static_cast<double>(step))))) {}

void Adam::Update(const float* gradient, float* weight, float* moment1, float* moment2,
                  size_t count) const {
  if (gradient == nullptr) {
    UpdateAll<false>(nullptr, weight, moment1, moment2, count, step_size_, moment2_correction_);
  } else {
    UpdateAll<true>(gradient, weight, moment1, moment2, count, step_size_, moment2_correction_);
  }
}

}  // namespace backstay::example
