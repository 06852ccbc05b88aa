#include "base/dtype.h"

#include <array>
#include <cstddef>

namespace backstay {
namespace {

struct Entry {
  const char* name;
  uint64_t bytes;
};

// By number.
constexpr std::array<Entry, 13> kDtypes = {{
    {"no dtype", 0},
    {"bf16", 2},
    {"fp16", 2},
    {"fp8_e4m3", 1},
    {"fp8_e5m2", 1},
    {"fp32", 4},
    {"fp64", 8},
    {"int8", 1},
    {"int16", 2},
    {"int32", 4},
    {"int64", 8},
    {"uint8", 1},
    {"bool", 1},
}};
static_assert(kDtypes.size() == static_cast<size_t>(TensorDtype::kBool) + 1);

const Entry& Find(TensorDtype dtype) {
  const auto number = static_cast<uint32_t>(dtype);
  return kDtypes[number < kDtypes.size() ? number : 0];
}

}  // namespace

uint64_t DtypeBytes(TensorDtype dtype) { return Find(dtype).bytes; }

const char* DtypeName(TensorDtype dtype) { return Find(dtype).name; }

}  // namespace backstay
