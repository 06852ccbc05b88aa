#include "store/manifest.h"

#include <google/protobuf/arena.h>

#include "store/manifest.pb.h"

namespace backstay::store {

namespace {

// The plain enum has the numbers of the format, so that it is cast, not mapped.
static_assert(static_cast<int>(Dtype::kBf16) == wire::DTYPE_BF16);
static_assert(static_cast<int>(Dtype::kFp64) == wire::DTYPE_FP64);
static_assert(static_cast<int>(Dtype::kBool) == wire::DTYPE_BOOL);

struct SliceToWire {
  wire::TensorEntry& to;

  void operator()(const WholeSlice&) const { to.mutable_whole(); }
  void operator()(const EmptySlice&) const { to.mutable_empty(); }
  void operator()(const AliasSlice& slice) const { to.set_alias_of(slice.of); }
  void operator()(const FlatSlice& slice) const {
    wire::FlatRange* flat = to.mutable_flat();
    flat->set_start(slice.start);
    flat->set_length(slice.length);
    flat->set_padding(slice.padding);
  }
  void operator()(const BoxSlice& slice) const {
    wire::Boxes* boxes = to.mutable_boxes();
    for (const Box& box : slice.boxes) {
      wire::Box* out = boxes->add_boxes();
      out->mutable_offsets()->Add(box.offsets.begin(), box.offsets.end());
      out->mutable_sizes()->Add(box.sizes.begin(), box.sizes.end());
    }
  }
};

void ToWire(const ShardContents& from, wire::ShardContents& to) {
  for (const TensorEntry& entry : from.tensors) {
    wire::TensorEntry* tensor = to.add_tensors();
    tensor->set_name(entry.name);
    tensor->set_dtype(static_cast<wire::Dtype>(entry.dtype));
    tensor->mutable_shape()->Add(entry.shape.begin(), entry.shape.end());
    tensor->mutable_global_shape()->Add(entry.global_shape.begin(), entry.global_shape.end());
    tensor->set_offset_bytes(entry.offset_bytes);
    tensor->set_size_bytes(entry.size_bytes);
    std::visit(SliceToWire{*tensor}, entry.slice);
  }
  for (const BlobEntry& entry : from.blobs) {
    wire::BlobEntry* blob = to.add_blobs();
    blob->set_name(entry.name);
    blob->set_offset_bytes(entry.offset_bytes);
    blob->set_size_bytes(entry.size_bytes);
  }
  for (const Tag& entry : from.tags) {
    wire::Tag* tag = to.add_tags();
    tag->set_name(entry.name);
    tag->set_value(entry.value);
  }
}

}  // namespace

std::string EncodeContents(const ShardContents& contents) {
  google::protobuf::Arena arena;
  auto* message = google::protobuf::Arena::CreateMessage<wire::ShardContents>(&arena);
  ToWire(contents, *message);
  return message->SerializeAsString();
}

Result<std::string> EncodeManifest(const Manifest& manifest) {
  BACKSTAY_RETURN_IF_ERROR(CheckManifest(manifest));
  google::protobuf::Arena arena;
  auto* message = google::protobuf::Arena::CreateMessage<wire::Manifest>(&arena);
  message->set_format_version(kManifestFormatVersion);
  message->set_job(manifest.name.job.value);
  message->set_generation(manifest.name.snapshot.generation.value);
  message->set_step(manifest.name.snapshot.step.value);
  message->set_shard_id(manifest.name.shard.value);
  message->set_rank(static_cast<uint32_t>(manifest.rank.value));
  message->set_world_size(manifest.world_size);
  message->set_size_bytes(manifest.size_bytes);
  message->set_chunk_bytes(manifest.chunk_bytes);
  message->set_created_unix_ms(manifest.created_unix_ms);
  std::string* checksums = message->mutable_chunk_checksums();
  checksums->reserve(manifest.chunk_checksums.size() * sizeof(Hash128));
  for (const Hash128& checksum : manifest.chunk_checksums) {
    checksums->append(checksum.ToByteString());
  }
  ToWire(manifest.contents, *message->mutable_contents());

  if (message->ByteSizeLong() > kManifestBytesMax) {
    return InvalidArgument("manifest of " + ToString(manifest.name) + " would have " +
                           FormatBytes(message->ByteSizeLong()) + ", more than the limit of " +
                           FormatBytes(kManifestBytesMax) +
                           ": save fewer or larger tensors per shard");
  }
  return message->SerializeAsString();
}

Hash128 ManifestDigest(std::string_view manifest_bytes) { return HashBytes(manifest_bytes); }

}  // namespace backstay::store
