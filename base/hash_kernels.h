#pragma once

#include <stddef.h>
#include <stdint.h>

namespace backstay::internal {

// HashBytes() and CopyAndHash() for one instruction set; `hash` receives {low, high}. Plain C types
// only: a file built for a wide instruction set must not emit a shared inline function that the
// linker could choose for everybody.
struct HashKernels {
  void (*hash)(const void* bytes, size_t size_bytes, uint64_t hash[2]);
  void (*copy_and_hash)(void* target, const void* source, size_t size_bytes, uint64_t hash[2]);
};

extern const HashKernels kBaselineHashKernels;  // Runs on every processor of the architecture.
extern const HashKernels kAvx2HashKernels;
extern const HashKernels kAvx512HashKernels;

// A set of kernels and the name of the instruction set that it was built for.
struct NamedHashKernels {
  const char* name;
  const HashKernels* kernels;
};

// The sets that this build has and this processor can run, widest first, into `out`; returns their
// number.
inline constexpr size_t kHashKernelSetsMax = 3;
size_t SupportedHashKernels(NamedHashKernels out[kHashKernelSetsMax]);

}  // namespace backstay::internal
