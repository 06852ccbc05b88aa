#include "base/hash_kernels.h"

namespace backstay::internal {

size_t SupportedHashKernels(NamedHashKernels out[kHashKernelSetsMax]) {
  out[0] = {"baseline", &kBaselineHashKernels};
  return 1;
}

}  // namespace backstay::internal
