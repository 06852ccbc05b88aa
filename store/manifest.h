#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/hash.h"
#include "base/ids.h"
#include "base/slot_control.h"
#include "base/status.h"
#include "base/units.h"

namespace backstay::store {

// Manifests: what makes a shard readable, docs/formats/manifest.md. Bytes come from clients, peers
// and disks; nothing here trips over them.

inline constexpr uint32_t kManifestFormatVersion = 1;

// Limits of a manifest. Generous: the largest models have some ten thousand tensors per rank.
inline constexpr uint64_t kManifestBytesMax = 64 * kMiB;
inline constexpr uint64_t kManifestTensorsMax = 1'000'000;
inline constexpr uint64_t kManifestBlobsMax = 100'000;
inline constexpr uint64_t kManifestTagsMax = 1'000;
inline constexpr size_t kEntryNameBytesMax = kNameBytesMax;
inline constexpr size_t kTagValueBytesMax = 64 * kKiB;
inline constexpr size_t kTensorDimensionsMax = 16;
// Keeps the check that boxes are disjoint, which compares all pairs, cheap.
inline constexpr size_t kTensorBoxesMax = 128;
inline constexpr uint64_t kShardBytesMax = uint64_t{1} << 48;
inline constexpr uint32_t kWorldSizeMax = 1'000'000;
static_assert(kShardChunksMax * 16 <= kManifestBytesMax / 2, "room for the tensors");

// Numbers of the format (manifest.proto).
using Dtype = TensorDtype;

// A name of an entry for messages: quoted, cut short, what cannot be printed as \xNN.
std::string QuoteName(std::string_view name);

// Which part of the global tensor a stored tensor is.
struct WholeSlice {
  friend bool operator==(const WholeSlice&, const WholeSlice&) = default;
};
struct Box {
  std::vector<uint64_t> offsets;  // One for each dimension of the global shape.
  std::vector<uint64_t> sizes;
  friend bool operator==(const Box&, const Box&) = default;
};
struct BoxSlice {
  std::vector<Box> boxes;  // Stored one after another, each row-major; disjoint.
  friend bool operator==(const BoxSlice&, const BoxSlice&) = default;
};
struct FlatSlice {  // In elements of the global tensor, row-major.
  uint64_t start = 0;
  uint64_t length = 0;
  uint64_t padding = 0;  // Meaningless elements stored after them.
  friend bool operator==(const FlatSlice&, const FlatSlice&) = default;
};
struct EmptySlice {
  friend bool operator==(const EmptySlice&, const EmptySlice&) = default;
};
struct AliasSlice {
  std::string of;  // The tensor of this shard that has the bytes; not an alias itself.
  friend bool operator==(const AliasSlice&, const AliasSlice&) = default;
};
using Slice = std::variant<WholeSlice, BoxSlice, FlatSlice, EmptySlice, AliasSlice>;

struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::kFp32;
  std::vector<uint64_t> shape;  // Stored; empty for a scalar.
  std::vector<uint64_t> global_shape;
  Slice slice;
  uint64_t offset_bytes = 0;  // In the shard; 0 for an alias, which has no bytes of its own.
  uint64_t size_bytes = 0;
  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

struct BlobEntry {
  std::string name;
  uint64_t offset_bytes = 0;
  uint64_t size_bytes = 0;
  friend bool operator==(const BlobEntry&, const BlobEntry&) = default;
};

struct Tag {
  std::string name;
  std::string value;
  friend bool operator==(const Tag&, const Tag&) = default;
};

// What the client says is in the shard. No byte of the shard belongs to two entries.
struct ShardContents {
  std::vector<TensorEntry> tensors;
  std::vector<BlobEntry> blobs;
  std::vector<Tag> tags;
  friend bool operator==(const ShardContents&, const ShardContents&) = default;
};

struct Manifest {
  ShardName name;
  Rank rank;
  uint32_t world_size = 0;
  uint64_t size_bytes = 0;
  uint32_t chunk_bytes = 0;
  std::vector<Hash128> chunk_checksums;  // One for each chunk; only the last chunk may be short.
  ShardContents contents;
  int64_t created_unix_ms = 0;
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// The rules of docs/formats/manifest.md: limits, ranges inside `size_bytes`, sizes that agree with
// dtype and shape, slices that fit their global tensor, aliases that resolve, no name twice.
// kInvalidArgument names the entry.
Status CheckContents(const ShardContents& contents, uint64_t size_bytes);
Status CheckManifest(const Manifest& manifest);

// An encoded wire.ShardContents from a client, checked. kInvalidArgument.
Result<ShardContents> DecodeContents(std::string_view bytes, uint64_t size_bytes);
std::string EncodeContents(const ShardContents& contents);

// An encoded wire.Manifest, checked. kInvalidArgument for a newer format version (names both) and
// for values that break a rule; kCorrupt for bytes that are no manifest.
Result<Manifest> DecodeManifest(std::string_view bytes);
// Checks, then encodes. kInvalidArgument as CheckManifest(), or larger than kManifestBytesMax.
Result<std::string> EncodeManifest(const Manifest& manifest);

// The shard's digest: the hash of the encoded manifest, which is carried verbatim from the seal on.
Hash128 ManifestDigest(std::string_view manifest_bytes);

// A manifest that checks itself, for files and wherever else its digest does not travel beside it:
// magic, version, length and digest, then the bytes.
std::string SealManifest(std::string_view manifest_bytes);
// The manifest's bytes inside of `sealed` (borrowed). kCorrupt: cut short, damaged, or something
// else; kInvalidArgument: a newer version of the frame.
Result<std::string_view> OpenManifest(std::string_view sealed);

// Hash over all ranks' shard digests, in rank order; the digests' number is the world size.
Hash128 SnapshotRoot(std::span<const Hash128> digests);

}  // namespace backstay::store
