#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace backstay::example {

// The bytes of `path`; the licence texts that Debian ships, in name order, where `path` is empty.
// Throws std::runtime_error naming the file.
std::vector<uint8_t> LoadText(const std::string& path);

// The order in which a run sees its text: each epoch visits every position once, in an order of its
// own. It keeps no state: the run's data cursor (samples taken so far, over all ranks) says where
// it is.
class Sampler {
 public:
  // Samples are positions that have `context_size_bytes` bytes before them. Throws
  // std::runtime_error when the text is too short to have any.
  Sampler(size_t text_size_bytes, size_t context_size_bytes, uint64_t seed);

  // Where the byte to predict of the run's `sample`-th sample lies, counted from 0.
  size_t Position(uint64_t sample) const;

  uint64_t epoch_sample_count() const { return position_count_; }

 private:
  const uint64_t position_count_;
  const size_t context_size_bytes_;
  const uint64_t seed_;
};

}  // namespace backstay::example
