#include "base/hash_kernels.h"

namespace backstay::internal {

size_t SupportedHashKernels(NamedHashKernels out[kHashKernelSetsMax]) {
  size_t count = 0;
  if (__builtin_cpu_supports("avx512f")) out[count++] = {"avx512", &kAvx512HashKernels};
  if (__builtin_cpu_supports("avx2")) out[count++] = {"avx2", &kAvx2HashKernels};
  out[count++] = {"baseline", &kBaselineHashKernels};
  return count;
}

}  // namespace backstay::internal
