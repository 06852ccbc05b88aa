// Manifests outside of messages: the frame that checks itself, and the hash over a whole snapshot.

#include <limits>

#include "base/check.h"
#include "store/manifest.h"

namespace backstay::store {

namespace {

// docs/formats/manifest.md, "Sealed manifest".
constexpr std::string_view kMagic("BKSMANIF", 8);
constexpr uint32_t kFrameVersion = 1;
constexpr size_t kVersionOffset = 8;
constexpr size_t kLengthOffset = 12;
constexpr size_t kDigestOffset = 16;
constexpr size_t kHeaderBytes = 32;
static_assert(kManifestBytesMax <= std::numeric_limits<uint32_t>::max());

constexpr std::string_view kRootPrefix("backstay snapshot root 1", 24);

template <typename Number>
void AppendLittleEndian(Number value, std::string& out) {
  for (size_t i = 0; i < sizeof(Number); ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

uint32_t LittleEndian32(std::string_view bytes, size_t offset) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    value |= uint32_t{static_cast<unsigned char>(bytes[offset + i])} << (8 * i);
  }
  return value;
}

}  // namespace

std::string SealManifest(std::string_view manifest_bytes) {
  BACKSTAY_CHECK(manifest_bytes.size() <= kManifestBytesMax, "manifests have a limit");
  std::string sealed(kMagic);
  sealed.reserve(kHeaderBytes + manifest_bytes.size());
  AppendLittleEndian(kFrameVersion, sealed);
  AppendLittleEndian(static_cast<uint32_t>(manifest_bytes.size()), sealed);
  sealed.append(ManifestDigest(manifest_bytes).ToByteString());
  sealed.append(manifest_bytes);
  return sealed;
}

Result<std::string_view> OpenManifest(std::string_view sealed) {
  if (sealed.size() < kHeaderBytes || sealed.substr(0, kMagic.size()) != kMagic) {
    return Corrupt("this is not a sealed manifest");
  }
  const uint32_t version = LittleEndian32(sealed, kVersionOffset);
  if (version != kFrameVersion) {
    return InvalidArgument("sealed manifest of frame version " + std::to_string(version) +
                           ", this program reads version " + std::to_string(kFrameVersion));
  }
  const std::string_view manifest_bytes = sealed.substr(kHeaderBytes);
  if (LittleEndian32(sealed, kLengthOffset) != manifest_bytes.size()) {
    return Corrupt("sealed manifest has " + std::to_string(manifest_bytes.size()) +
                   " bytes, says " + std::to_string(LittleEndian32(sealed, kLengthOffset)));
  }
  const std::string_view digest = sealed.substr(kDigestOffset, kHeaderBytes - kDigestOffset);
  if (Hash128::FromBytes(digest) != ManifestDigest(manifest_bytes)) {
    return Corrupt("sealed manifest does not match its own digest");
  }
  return manifest_bytes;
}

Hash128 SnapshotRoot(std::span<const Hash128> digests) {
  std::string bytes(kRootPrefix);
  bytes.reserve(kRootPrefix.size() + sizeof(uint64_t) + digests.size() * sizeof(Hash128));
  AppendLittleEndian(static_cast<uint64_t>(digests.size()), bytes);
  for (const Hash128& digest : digests) bytes.append(digest.ToByteString());
  return HashBytes(bytes);
}

}  // namespace backstay::store
