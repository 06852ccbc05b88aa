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

// Copies `source` to `target` (same size, no overlap) and returns the hash of the bytes that it
// stored. Every byte of `source` is read exactly once, and what was read is both stored and hashed:
// also when somebody writes to `source` meanwhile, the hash is that of the copy. (Which mixture of
// old and new bytes that is, is unspecified then.)
//
// From 256 KiB on, with a `target` aligned to 64 bytes, the stores bypass the cache; they are
// visible to other threads after the call (it ends with a store fence). A target with another
// alignment is copied with regular stores. Without a first read of the lines it overwrites this is
// faster than memcpy() of large ranges: docs/performance.md.
Hash128 CopyAndHash(std::span<std::byte> target, std::span<const std::byte> source);

}  // namespace backstay
