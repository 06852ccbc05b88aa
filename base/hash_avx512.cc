// Built with AVX-512 (CMakeLists.txt); runs only where hash.cc has found it.

#include <immintrin.h>

#include "base/hash_kernel_impl.h"

namespace backstay::internal {
namespace {

struct Stripe {
  __m512i lanes;

  static Stripe Load(const void* from) { return {_mm512_loadu_si512(from)}; }
  void Pin() { __asm__("" : "+v"(lanes)); }
  void Store(void* to) const { _mm512_storeu_si512(to, lanes); }
  void Stream(void* to) const { _mm512_stream_si512(static_cast<__m512i*>(to), lanes); }
  static void Fence() { _mm_sfence(); }
};

}  // namespace

const HashKernels kAvx512HashKernels = {Hash, CopyAndHashWith<Stripe>};

}  // namespace backstay::internal
