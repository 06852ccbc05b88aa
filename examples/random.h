#pragma once

#include <cstdint>

namespace backstay::example {

// Spreads the bits of a counter over all 64 bits (the finaliser of SplitMix64; Steele, Lea and
// Flood, 2014).
constexpr uint64_t Mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15u;

// SplitMix64: its whole state is one counter, so saving and restoring it is saving one number.
class Random {
 public:
  explicit Random(uint64_t state = 0) : state_(state) {}

  uint64_t Next() { return Mix(state_ += kGoldenGamma); }
  // In [0, 1), from the upper 24 bits: every value is exact in a float.
  float NextUnit() { return static_cast<float>(Next() >> 40) * 0x1p-24f; }

  uint64_t state() const { return state_; }

 private:
  uint64_t state_;
};

// The `index`-th number of stream `stream` of `seed`, without the ones before it: in [-1, 1).
constexpr float SignedUnitAt(uint64_t seed, uint64_t stream, uint64_t index) {
  const uint64_t base = Mix(seed + (stream + 1) * kGoldenGamma);
  return static_cast<float>(Mix(base + (index + 1) * kGoldenGamma) >> 40) * 0x1p-23f - 1.0f;
}

}  // namespace backstay::example
