// For processors that are not x86-64: whatever xxHash finds there (NEON, VSX or plain words),
// regular stores.

#include "base/hash_kernel_impl.h"

namespace backstay::internal {
namespace {

struct Stripe {
  uint64_t words[8];

  static Stripe Load(const void* from) {
    Stripe stripe;
    memcpy(&stripe, from, sizeof(stripe));
    return stripe;
  }
  void Pin() {
    for (uint64_t& word : words) __asm__("" : "+r"(word));
  }
  void Store(void* to) const { memcpy(to, words, sizeof(words)); }
  void Stream(void* to) const { Store(to); }
  static void Fence() { __atomic_thread_fence(__ATOMIC_RELEASE); }
};

}  // namespace

const HashKernels kBaselineHashKernels = {Hash, CopyAndHashWith<Stripe>};

}  // namespace backstay::internal
