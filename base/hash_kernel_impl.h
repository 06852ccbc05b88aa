#pragma once

// The body of one instruction set's hash kernels; included by hash_<instruction set>.cc only.
// Everything here has internal linkage, xxHash included, so that the instruction sets cannot be
// mixed up by the linker.

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/hash_kernels.h"

namespace backstay::internal {
namespace {

void Hash(const void* bytes, size_t size_bytes, uint64_t hash[2]) {
  const XXH128_hash_t value = XXH3_128bits(bytes, size_bytes);
  hash[0] = value.low64;
  hash[1] = value.high64;
}

// XXH3's long form (specification: xxHash's doc/xxhash_spec.md, "XXH3 algorithm description"):
// stripes of 64 bytes, blocks of 16 stripes, then a last stripe that ends with the input and may
// overlap the one before.
constexpr size_t kStripeBytes = XXH_STRIPE_LEN;
constexpr size_t kSecretBytes = sizeof(XXH3_kSecret);
constexpr size_t kStripesPerBlock = (kSecretBytes - XXH_STRIPE_LEN) / XXH_SECRET_CONSUME_RATE;
constexpr size_t kBlockBytes = kStripesPerBlock * kStripeBytes;
static_assert(kStripesPerBlock == 16);

// Below this size the copy is hashed from a buffer on the stack; the long form would not be XXH3's
// there either.
constexpr size_t kSmallBytesMax = kBlockBytes;
static_assert(kSmallBytesMax > XXH3_MIDSIZE_MAX);

// From this size on stores bypass the cache. A shard's copy is not read again soon by this
// processor, and a regular store would first read the line it overwrites.
constexpr size_t kStreamBytesMin = 256 * 1024;

// How far ahead of the copy the source is fetched: 512 to 2048 measured alike on AMD Zen 4, 0 and
// 4096 slower.
constexpr size_t kPrefetchBytes = 2048;

// "Pinned" bytes are opaque to the compiler. Without that it may read the source a second time
// instead of keeping what it has read, and the hash would not be that of the copy when somebody
// writes to the source.
void PinMemory(void* bytes) { __asm__ volatile("" : : "r"(bytes) : "memory"); }

// One pass: every stripe is loaded into registers once, and those registers are both stored and
// hashed.
template <typename Stripe, bool kStreaming>
class FusedCopy {
 public:
  FusedCopy(void* target, const void* source) {
    target_ = static_cast<char*>(target);
    source_ = static_cast<const char*>(source);
  }

  void Run(size_t size_bytes, uint64_t hash[2]) {
    const size_t stripes =
        (size_bytes - 1) / kStripeBytes;  // All but the last, which may be short.
    const size_t blocks = stripes / kStripesPerBlock;
    for (size_t block = 0; block < blocks; ++block) {
      for (size_t n = 0; n < kStripesPerBlock; ++n) Take(n);
      XXH3_scrambleAcc(acc_, XXH3_kSecret + kSecretBytes - kStripeBytes);
    }
    for (size_t n = 0; n < stripes % kStripesPerBlock; ++n) Take(n);
    TakeLast(size_bytes - stripes * kStripeBytes);
    hash[0] =
        XXH3_mergeAccs(acc_, XXH3_kSecret + XXH_SECRET_MERGEACCS_START, size_bytes * XXH_PRIME64_1);
    hash[1] = XXH3_mergeAccs(
        acc_, XXH3_kSecret + kSecretBytes - sizeof(acc_) - XXH_SECRET_MERGEACCS_START,
        ~(size_bytes * XXH_PRIME64_2));
  }

 private:
  void Take(size_t stripe_in_block) {
    __builtin_prefetch(source_ + kPrefetchBytes, 0, 3);
    Stripe stripe = Stripe::Load(source_);
    stripe.Pin();
    if constexpr (kStreaming) {
      stripe.Stream(target_);
    } else {
      stripe.Store(target_);
    }
    XXH3_accumulate_512(acc_, &stripe, XXH3_kSecret + stripe_in_block * XXH_SECRET_CONSUME_RATE);
    last_ = stripe;
    source_ += kStripeBytes;
    target_ += kStripeBytes;
  }

  // The 1 to 64 bytes that are left, hashed together with the end of the stripe before them.
  void TakeLast(size_t rest_bytes) {
    char window[2 * kStripeBytes];
    last_.Store(window);
    memcpy(window + kStripeBytes, source_, rest_bytes);
    PinMemory(window);
    memcpy(target_, window + kStripeBytes, rest_bytes);
    XXH3_accumulate_512(acc_, window + rest_bytes,
                        XXH3_kSecret + kSecretBytes - kStripeBytes - XXH_SECRET_LASTACC_START);
  }

  alignas(64) xxh_u64 acc_[XXH_ACC_NB] = XXH3_INIT_ACC;
  Stripe last_;
  char* target_;
  const char* source_;
};

template <typename Stripe>
void CopyAndHashWith(void* target, const void* source, size_t size_bytes, uint64_t hash[2]) {
  static_assert(sizeof(Stripe) == kStripeBytes);
  if (size_bytes <= kSmallBytesMax) {
    char window[kSmallBytesMax];
    memcpy(window, source, size_bytes);
    PinMemory(window);
    memcpy(target, window, size_bytes);
    Hash(window, size_bytes, hash);
    return;
  }
  const bool aligned = reinterpret_cast<uintptr_t>(target) % kStripeBytes == 0;
  if (aligned && size_bytes >= kStreamBytesMin) {
    FusedCopy<Stripe, true>(target, source).Run(size_bytes, hash);
    Stripe::Fence();
  } else {
    FusedCopy<Stripe, false>(target, source).Run(size_bytes, hash);
  }
}

}  // namespace
}  // namespace backstay::internal
