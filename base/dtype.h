#pragma once

#include <cstdint>

namespace backstay {

// A tensor's element type. The numbers are those of store/manifest.proto and of backstay_dtype in
// the client's interface: another number may be in one of these after a cast, and is no dtype.
enum class TensorDtype : uint32_t {
  kBf16 = 1,
  kFp16 = 2,
  kFp8E4m3 = 3,
  kFp8E5m2 = 4,
  kFp32 = 5,
  kFp64 = 6,
  kInt8 = 7,
  kInt16 = 8,
  kInt32 = 9,
  kInt64 = 10,
  kUint8 = 11,
  kBool = 12,
};

// Of one element; 0 for what is no dtype.
uint64_t DtypeBytes(TensorDtype dtype);
// "fp8_e4m3"; "no dtype".
const char* DtypeName(TensorDtype dtype);

}  // namespace backstay
