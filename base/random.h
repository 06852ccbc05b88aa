#pragma once

#include <cstdint>
#include <string>

namespace backstay {

// Randomness as the code above the seams sees it; the simulation's comes from its seed. Thread: the
// owner's executor.
class Random {
 public:
  virtual ~Random() = default;
  virtual uint64_t Next() = 0;

  // `bytes` random bytes, for keys and ids.
  std::string Bytes(size_t bytes);
  // 32 lower-case hexadecimal digits.
  std::string Hex128();
};

// The kernel's generator.
class SystemRandom : public Random {
 public:
  uint64_t Next() override;
};

// Reproducible from its seed (splitmix64).
class SeededRandom : public Random {
 public:
  explicit SeededRandom(uint64_t seed) : state_(seed) {}
  uint64_t Next() override;

 private:
  uint64_t state_;
};

}  // namespace backstay
