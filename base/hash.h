#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace backstay {

// An XXH3 hash of 128 bits: a chunk's checksum, a shard's digest or a snapshot's root. It finds
// accidents, not attackers; attackers are kept out by keys and permissions.
struct Hash128 {
  uint64_t low = 0;
  uint64_t high = 0;

  friend constexpr auto operator<=>(const Hash128&, const Hash128&) = default;

  // 16 bytes in XXH128's canonical (big-endian) order; the form in every file and message.
  std::array<std::byte, 16> ToBytes() const;
  std::string ToByteString() const;
  // Nothing unless `bytes` has exactly 16 bytes.
  static std::optional<Hash128> FromBytes(std::string_view bytes);
  // 32 lower-case hexadecimal digits.
  std::string ToHex() const;
};

// Hash of `bytes`, on the widest vector unit of this processor.
Hash128 HashBytes(std::span<const std::byte> bytes);
Hash128 HashBytes(std::string_view bytes);

// Copies `source` to `target` (same size, no overlap) and returns the hash of the bytes as they
// were read once: the hash and the copy see the same bytes even when somebody writes to `source`
// meanwhile. Streaming stores where the size is worth it; they are visible to other threads after
// the call (it ends with a store fence).
Hash128 CopyAndHash(std::span<std::byte> target, std::span<const std::byte> source);

}  // namespace backstay
