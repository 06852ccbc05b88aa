#include "base/hash.h"

#include <cstring>

#include "base/check.h"
#include "base/hash_kernels.h"

namespace backstay {
namespace {

const internal::HashKernels& Kernels() {
  static const internal::HashKernels* const widest = [] {
    internal::NamedHashKernels sets[internal::kHashKernelSetsMax];
    internal::SupportedHashKernels(sets);
    return sets[0].kernels;
  }();
  return *widest;
}

void PutBigEndian(uint64_t value, std::byte* out) {
  for (int i = 0; i < 8; ++i) out[i] = static_cast<std::byte>((value >> (56 - 8 * i)) & 0xff);
}

uint64_t GetBigEndian(const char* bytes) {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

}  // namespace

std::array<std::byte, 16> Hash128::ToBytes() const {
  std::array<std::byte, 16> bytes;
  PutBigEndian(high, bytes.data());
  PutBigEndian(low, bytes.data() + 8);
  return bytes;
}

std::string Hash128::ToByteString() const {
  const std::array<std::byte, 16> bytes = ToBytes();
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::optional<Hash128> Hash128::FromBytes(std::string_view bytes) {
  if (bytes.size() != 16) return std::nullopt;
  return Hash128{.low = GetBigEndian(bytes.data() + 8), .high = GetBigEndian(bytes.data())};
}

std::string Hash128::ToHex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(32);
  for (const std::byte byte : ToBytes()) {
    text.push_back(kDigits[std::to_integer<int>(byte >> 4)]);
    text.push_back(kDigits[std::to_integer<int>(byte & std::byte{0xf})]);
  }
  return text;
}

Hash128 HashBytes(std::span<const std::byte> bytes) {
  uint64_t hash[2];
  Kernels().hash(bytes.data(), bytes.size(), hash);
  return {.low = hash[0], .high = hash[1]};
}

Hash128 HashBytes(std::string_view bytes) { return HashBytes(std::as_bytes(std::span(bytes))); }

Hash128 CopyAndHash(std::span<std::byte> target, std::span<const std::byte> source) {
  BACKSTAY_CHECK(target.size() == source.size(), "a copy needs a target of the source's size");
  uint64_t hash[2];
  Kernels().copy_and_hash(target.data(), source.data(), source.size(), hash);
  return {.low = hash[0], .high = hash[1]};
}

}  // namespace backstay
