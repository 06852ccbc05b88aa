#pragma once

#include <cstdint>
#include <string>

namespace backstay {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;

// A chunk is the unit of checksum, readiness and retry of a shard, in a slot and on every
// transport; it stays small against a shard. Sizes are powers of two in this range. The default is
// a compromise of transfer and retry.
inline constexpr uint32_t kChunkBytesMin = 4 * kKiB;
inline constexpr uint32_t kChunkBytesMax = 64 * kMiB;
inline constexpr uint32_t kChunkBytesDefault = 1 * kMiB;

constexpr bool IsChunkSize(uint64_t bytes) {
  return bytes >= kChunkBytesMin && bytes <= kChunkBytesMax && (bytes & (bytes - 1)) == 0;
}

// "512.0 MiB", "17 B".
std::string FormatBytes(uint64_t bytes);

constexpr uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr uint64_t CeilDiv(uint64_t value, uint64_t divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}

}  // namespace backstay
