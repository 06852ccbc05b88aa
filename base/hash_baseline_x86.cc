// For every x86-64 processor: SSE2 is part of the architecture.

#include <emmintrin.h>

#include "base/hash_kernel_impl.h"

namespace backstay::internal {
namespace {

struct Stripe {
  __m128i lanes[4];

  static Stripe Load(const void* from) {
    const auto* lanes = static_cast<const __m128i*>(from);
    return {{_mm_loadu_si128(lanes), _mm_loadu_si128(lanes + 1), _mm_loadu_si128(lanes + 2),
             _mm_loadu_si128(lanes + 3)}};
  }
  void Pin() { __asm__("" : "+x"(lanes[0]), "+x"(lanes[1]), "+x"(lanes[2]), "+x"(lanes[3])); }
  void Store(void* to) const {
    for (int i = 0; i < 4; ++i) _mm_storeu_si128(static_cast<__m128i*>(to) + i, lanes[i]);
  }
  void Stream(void* to) const {
    for (int i = 0; i < 4; ++i) _mm_stream_si128(static_cast<__m128i*>(to) + i, lanes[i]);
  }
  static void Fence() { _mm_sfence(); }
};

}  // namespace

const HashKernels kBaselineHashKernels = {Hash, CopyAndHashWith<Stripe>};

}  // namespace backstay::internal
