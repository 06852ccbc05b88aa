// Reads manifests from bytes that may be anything. Walks them with protozero instead of parsing
// them into generated messages: two bytes of input can be an entry, so limits have to hold before
// memory is spent, not after.

#include <protozero/pbf_reader.hpp>
#include <utility>

#include "store/manifest.h"

namespace backstay::store {

namespace {

using protozero::pbf_reader;
using protozero::pbf_wire_type;
using protozero::tag_and_type;

constexpr auto kVarint = pbf_wire_type::varint;
constexpr auto kBytes = pbf_wire_type::length_delimited;

std::string ToText(protozero::data_view view) { return {view.data(), view.size()}; }

Status TooMany(std::string_view what, uint64_t limit) {
  return InvalidArgument("more than " + std::to_string(limit) + " " + std::string(what));
}

// The next value(s) of a repeated uint64, packed or not.
Status AppendNumbers(pbf_reader& reader, std::vector<uint64_t>& out) {
  if (reader.wire_type() == kVarint) {
    if (out.size() >= kTensorDimensionsMax) return TooMany("dimensions", kTensorDimensionsMax);
    out.push_back(reader.get_uint64());
    return Status::Ok();
  }
  for (const uint64_t number : reader.get_packed_uint64()) {
    if (out.size() >= kTensorDimensionsMax) return TooMany("dimensions", kTensorDimensionsMax);
    out.push_back(number);
  }
  return Status::Ok();
}

Result<Box> ReadBox(pbf_reader reader) {
  Box box;
  while (reader.next()) {
    switch (reader.tag_and_type()) {
      case tag_and_type(1, kVarint):
      case tag_and_type(1, kBytes):
        BACKSTAY_RETURN_IF_ERROR(AppendNumbers(reader, box.offsets));
        break;
      case tag_and_type(2, kVarint):
      case tag_and_type(2, kBytes):
        BACKSTAY_RETURN_IF_ERROR(AppendNumbers(reader, box.sizes));
        break;
      default:
        reader.skip();
    }
  }
  return box;
}

Result<Slice> ReadBoxes(pbf_reader reader) {
  BoxSlice slice;
  while (reader.next()) {
    if (reader.tag_and_type() != tag_and_type(1, kBytes)) {
      reader.skip();
      continue;
    }
    if (slice.boxes.size() >= kTensorBoxesMax) return TooMany("boxes", kTensorBoxesMax);
    BACKSTAY_ASSIGN_OR_RETURN(Box box, ReadBox(reader.get_message()));
    slice.boxes.push_back(std::move(box));
  }
  return Slice(std::move(slice));
}

Slice ReadFlat(pbf_reader reader) {
  FlatSlice slice;
  while (reader.next()) {
    switch (reader.tag_and_type()) {
      case tag_and_type(1, kVarint):
        slice.start = reader.get_uint64();
        break;
      case tag_and_type(2, kVarint):
        slice.length = reader.get_uint64();
        break;
      case tag_and_type(3, kVarint):
        slice.padding = reader.get_uint64();
        break;
      default:
        reader.skip();
    }
  }
  return slice;
}

// The slice in the reader's current field, which is one of 7 to 11.
Result<Slice> ReadSlice(pbf_reader& reader) {
  switch (reader.tag()) {
    case 7:
      reader.skip();
      return Slice(WholeSlice{});
    case 8:
      return ReadBoxes(reader.get_message());
    case 9:
      return ReadFlat(reader.get_message());
    case 10:
      reader.skip();
      return Slice(EmptySlice{});
    default:
      return Slice(AliasSlice{ToText(reader.get_view())});
  }
}

// Errors do not name the tensor: its name is known only when its field was seen.
Status ReadTensorFields(pbf_reader reader, TensorEntry& entry) {
  uint64_t dtype = 0;
  bool has_slice = false;
  while (reader.next()) {
    switch (reader.tag_and_type()) {
      case tag_and_type(1, kBytes):
        entry.name = ToText(reader.get_view());
        break;
      case tag_and_type(2, kVarint):
        dtype = reader.get_uint64();
        break;
      case tag_and_type(3, kVarint):
      case tag_and_type(3, kBytes):
        BACKSTAY_RETURN_IF_ERROR(AppendNumbers(reader, entry.shape));
        break;
      case tag_and_type(4, kVarint):
      case tag_and_type(4, kBytes):
        BACKSTAY_RETURN_IF_ERROR(AppendNumbers(reader, entry.global_shape));
        break;
      case tag_and_type(5, kVarint):
        entry.offset_bytes = reader.get_uint64();
        break;
      case tag_and_type(6, kVarint):
        entry.size_bytes = reader.get_uint64();
        break;
      case tag_and_type(7, kBytes):
      case tag_and_type(8, kBytes):
      case tag_and_type(9, kBytes):
      case tag_and_type(10, kBytes):
      case tag_and_type(11, kBytes): {
        if (has_slice) return InvalidArgument("says twice which slice it is");
        has_slice = true;
        BACKSTAY_ASSIGN_OR_RETURN(entry.slice, ReadSlice(reader));
        break;
      }
      default:
        reader.skip();
    }
  }
  if (!has_slice) return InvalidArgument("does not say which slice it is");
  if (dtype < static_cast<uint64_t>(Dtype::kBf16) || dtype > static_cast<uint64_t>(Dtype::kBool)) {
    return InvalidArgument("dtype number " + std::to_string(dtype) + " is not known");
  }
  entry.dtype = static_cast<Dtype>(dtype);
  return Status::Ok();
}

Result<TensorEntry> ReadTensor(pbf_reader reader) {
  TensorEntry entry;
  if (Status status = ReadTensorFields(reader, entry); !status.ok()) {
    return Status(status.code(), "tensor " + QuoteName(entry.name) + ": " + status.message());
  }
  return entry;
}

BlobEntry ReadBlob(pbf_reader reader) {
  BlobEntry entry;
  while (reader.next()) {
    switch (reader.tag_and_type()) {
      case tag_and_type(1, kBytes):
        entry.name = ToText(reader.get_view());
        break;
      case tag_and_type(2, kVarint):
        entry.offset_bytes = reader.get_uint64();
        break;
      case tag_and_type(3, kVarint):
        entry.size_bytes = reader.get_uint64();
        break;
      default:
        reader.skip();
    }
  }
  return entry;
}

Tag ReadTag(pbf_reader reader) {
  Tag tag;
  while (reader.next()) {
    switch (reader.tag_and_type()) {
      case tag_and_type(1, kBytes):
        tag.name = ToText(reader.get_view());
        break;
      case tag_and_type(2, kBytes):
        tag.value = ToText(reader.get_view());
        break;
      default:
        reader.skip();
    }
  }
  return tag;
}

Result<ShardContents> ReadContents(pbf_reader reader) {
  ShardContents contents;
  while (reader.next()) {
    switch (reader.tag_and_type()) {
      case tag_and_type(1, kBytes): {
        if (contents.tensors.size() >= kManifestTensorsMax) {
          return TooMany("tensors", kManifestTensorsMax);
        }
        BACKSTAY_ASSIGN_OR_RETURN(TensorEntry entry, ReadTensor(reader.get_message()));
        contents.tensors.push_back(std::move(entry));
        break;
      }
      case tag_and_type(2, kBytes):
        if (contents.blobs.size() >= kManifestBlobsMax) return TooMany("blobs", kManifestBlobsMax);
        contents.blobs.push_back(ReadBlob(reader.get_message()));
        break;
      case tag_and_type(3, kBytes):
        if (contents.tags.size() >= kManifestTagsMax) return TooMany("tags", kManifestTagsMax);
        contents.tags.push_back(ReadTag(reader.get_message()));
        break;
      default:
        reader.skip();
    }
  }
  return contents;
}

Status CheckFormatVersion(uint64_t version) {
  if (version == kManifestFormatVersion) return Status::Ok();
  return InvalidArgument(
      "manifest of format version " + std::to_string(version) + ", this program reads version " +
      std::to_string(kManifestFormatVersion) +
      (version > kManifestFormatVersion ? ": upgrade the service that reads it" : ""));
}

// Read before anything else: a newer version may give the other fields another meaning.
uint64_t ReadFormatVersion(pbf_reader reader) {
  uint64_t version = 0;
  while (reader.next()) {
    if (reader.tag_and_type() == tag_and_type(1, kVarint)) {
      version = reader.get_uint64();
    } else {
      reader.skip();
    }
  }
  return version;
}

Status ReadChecksums(std::string_view bytes, std::vector<Hash128>& out) {
  if (bytes.size() % sizeof(Hash128) != 0 || bytes.size() / sizeof(Hash128) > kShardChunksMax) {
    return InvalidArgument("manifest has " + std::to_string(bytes.size()) +
                           " bytes of checksums: need 16 for each of at most " +
                           std::to_string(kShardChunksMax) + " chunks");
  }
  out.clear();
  out.reserve(bytes.size() / sizeof(Hash128));
  for (size_t at = 0; at < bytes.size(); at += sizeof(Hash128)) {
    out.push_back(*Hash128::FromBytes(bytes.substr(at, sizeof(Hash128))));
  }
  return Status::Ok();
}

Result<Manifest> ReadManifest(pbf_reader reader) {
  Manifest manifest;
  bool has_contents = false;
  while (reader.next()) {
    switch (reader.tag_and_type()) {
      case tag_and_type(2, kBytes):
        manifest.name.job = JobName(ToText(reader.get_view()));
        break;
      case tag_and_type(3, kVarint):
        manifest.name.snapshot.generation = Generation(reader.get_uint64());
        break;
      case tag_and_type(4, kVarint):
        manifest.name.snapshot.step = Step(reader.get_uint64());
        break;
      case tag_and_type(5, kBytes):
        manifest.name.shard = ShardId(ToText(reader.get_view()));
        break;
      case tag_and_type(6, kVarint):
        manifest.rank = Rank(reader.get_uint32());
        break;
      case tag_and_type(7, kVarint):
        manifest.world_size = reader.get_uint32();
        break;
      case tag_and_type(8, kVarint):
        manifest.size_bytes = reader.get_uint64();
        break;
      case tag_and_type(9, kVarint):
        manifest.chunk_bytes = reader.get_uint32();
        break;
      case tag_and_type(10, kBytes): {
        const protozero::data_view view = reader.get_view();
        BACKSTAY_RETURN_IF_ERROR(
            ReadChecksums({view.data(), view.size()}, manifest.chunk_checksums));
        break;
      }
      case tag_and_type(11, kBytes): {
        if (has_contents) return InvalidArgument("manifest lists its contents twice");
        has_contents = true;
        BACKSTAY_ASSIGN_OR_RETURN(manifest.contents, ReadContents(reader.get_message()));
        break;
      }
      case tag_and_type(12, kVarint):
        manifest.created_unix_ms = reader.get_int64();
        break;
      default:
        reader.skip();
    }
  }
  return manifest;
}

Status CheckSize(std::string_view bytes) {
  if (bytes.size() <= kManifestBytesMax) return Status::Ok();
  return InvalidArgument("manifest of " + FormatBytes(bytes.size()) +
                         " is larger than the limit of " + FormatBytes(kManifestBytesMax) +
                         ": save fewer or larger tensors per shard");
}

}  // namespace

Result<ShardContents> DecodeContents(std::string_view bytes, uint64_t size_bytes) {
  BACKSTAY_RETURN_IF_ERROR(CheckSize(bytes));
  try {
    BACKSTAY_ASSIGN_OR_RETURN(ShardContents contents,
                              ReadContents(pbf_reader(bytes.data(), bytes.size())));
    BACKSTAY_RETURN_IF_ERROR(CheckContents(contents, size_bytes));
    return contents;
  } catch (const protozero::exception& error) {
    return InvalidArgument(std::string("list of tensors cannot be decoded: ") + error.what());
  }
}

Result<Manifest> DecodeManifest(std::string_view bytes) {
  BACKSTAY_RETURN_IF_ERROR(CheckSize(bytes));
  try {
    const pbf_reader reader(bytes.data(), bytes.size());
    BACKSTAY_RETURN_IF_ERROR(CheckFormatVersion(ReadFormatVersion(reader)));
    BACKSTAY_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(reader));
    BACKSTAY_RETURN_IF_ERROR(CheckManifest(manifest));
    return manifest;
  } catch (const protozero::exception& error) {
    return Corrupt(std::string("manifest cannot be decoded: ") + error.what());
  }
}

}  // namespace backstay::store
