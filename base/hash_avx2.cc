// Built with AVX2 (CMakeLists.txt); runs only where hash.cc has found it.

#include <immintrin.h>

#include "base/hash_kernel_impl.h"

namespace backstay::internal {
namespace {

struct Stripe {
  __m256i lanes[2];

  static Stripe Load(const void* from) {
    const auto* lanes = static_cast<const __m256i*>(from);
    return {{_mm256_loadu_si256(lanes), _mm256_loadu_si256(lanes + 1)}};
  }
  void Pin() { __asm__("" : "+x"(lanes[0]), "+x"(lanes[1])); }
  void Store(void* to) const {
    _mm256_storeu_si256(static_cast<__m256i*>(to), lanes[0]);
    _mm256_storeu_si256(static_cast<__m256i*>(to) + 1, lanes[1]);
  }
  void Stream(void* to) const {
    _mm256_stream_si256(static_cast<__m256i*>(to), lanes[0]);
    _mm256_stream_si256(static_cast<__m256i*>(to) + 1, lanes[1]);
  }
  static void Fence() { _mm_sfence(); }
};

}  // namespace

const HashKernels kAvx2HashKernels = {Hash, CopyAndHashWith<Stripe>};

}  // namespace backstay::internal
