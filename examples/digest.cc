#include "examples/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdio>

namespace backstay::example {

struct Digester::State {
  XXH3_state_t hash;
};

Digester::Digester() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->hash); }

Digester::~Digester() = default;

Digester& Digester::Add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->hash, bytes.data(), bytes.size());
  return *this;
}

std::string Digester::Hex() const {
  const XXH128_hash_t digest = XXH3_128bits_digest(&state_->hash);
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx",
                static_cast<unsigned long long>(digest.high64),
                static_cast<unsigned long long>(digest.low64));
  return text;
}

}  // namespace backstay::example
