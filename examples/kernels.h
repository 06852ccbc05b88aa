#pragma once

#include <cstddef>
#include <cstdint>

namespace backstay::example {

// The arithmetic of the model. Every sum is taken in one fixed order, whatever the compiler's
// vector width, so that a run repeats bit for bit. Matrices are row-major; `out` never overlaps an
// input.

// out[rows][columns] += left[rows][inner] * right[inner][columns].
void AddProduct(const float* left, const float* right, float* out, size_t rows, size_t inner,
                size_t columns);

// out[inner][columns] += transpose(left[rows][inner]) * right[rows][columns].
void AddTransposedProduct(const float* left, const float* right, float* out, size_t rows,
                          size_t inner, size_t columns);

// out[columns][rows] = transpose(in[rows][columns]).
void Transpose(const float* in, float* out, size_t rows, size_t columns);

// Adam with decoupled weight decay (Kingma and Ba, 2015; Loshchilov and Hutter, 2019) at step
// `step`, counted from 1.
class Adam {
 public:
  explicit Adam(uint64_t step);

  // Updates `count` weights and their moments; `gradient` may be null, which stands for zeros: the
  // moments fade and the weights decay.
  void Update(const float* gradient, float* weight, float* moment1, float* moment2,
              size_t count) const;

 private:
  float step_size_;           // Learning rate over the first moment's bias correction.
  float moment2_correction_;  // One over the square root of the second moment's.
};

}  // namespace backstay::example
