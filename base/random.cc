#include "base/random.h"

#include <sys/random.h>

#include "base/check.h"

namespace backstay {

std::string Random::Bytes(size_t bytes) {
  std::string out;
  out.reserve(bytes);
  while (out.size() < bytes) {
    uint64_t word = Next();
    for (int i = 0; i < 8 && out.size() < bytes; ++i, word >>= 8)
      out.push_back(static_cast<char>(word & 0xff));
  }
  return out;
}

std::string Random::Hex128() {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const char byte : Bytes(16)) {
    out.push_back(kDigits[(byte >> 4) & 0xf]);
    out.push_back(kDigits[byte & 0xf]);
  }
  return out;
}

uint64_t SystemRandom::Next() {
  uint64_t word = 0;
  const ssize_t got = getrandom(&word, sizeof(word), 0);
  BACKSTAY_CHECK(got == static_cast<ssize_t>(sizeof(word)), "the kernel's random generator failed");
  return word;
}

uint64_t SeededRandom::Next() {
  // Steele, Lea, Flood: "Fast splittable pseudorandom number generators" (2014), constants of
  // splitmix64.
  uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

}  // namespace backstay
