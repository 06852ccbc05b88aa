// DecodeManifest() of contents.h.
#include <protozero/pbf_reader.hpp>

#include "base/slot_control.h"
#include "client/contents.h"
#include "client/limits.h"

namespace backstay::client {
namespace {

using protozero::pbf_reader;

constexpr uint32_t kManifestFormatVersion = 1;

struct ManifestError {
  std::string what;
};

void Require(bool holds, const std::string& what) {
  if (!holds) throw ManifestError{what};
}

constexpr uint32_t Varint(uint32_t tag) {
  return protozero::tag_and_type(tag, protozero::pbf_wire_type::varint);
}
constexpr uint32_t Bytes(uint32_t tag) {
  return protozero::tag_and_type(tag, protozero::pbf_wire_type::length_delimited);
}

template <typename Field>
void ForEach(pbf_reader in, const Field& field) {
  while (in.next()) {
    if (!field(in.tag_and_type(), in)) in.skip();
  }
}

// A repeated number, packed or not.
bool ReadNumbers(uint32_t tag, uint32_t number, pbf_reader& field, std::vector<uint64_t>* out) {
  if (tag == Varint(number)) {
    Require(out->size() < kDimensionsMax, "more dimensions than a tensor has");
    out->push_back(field.get_uint64());
    return true;
  }
  if (tag != Bytes(number)) return false;
  for (const uint64_t value : field.get_packed_uint64()) {
    Require(out->size() < kDimensionsMax, "more dimensions than a tensor has");
    out->push_back(value);
  }
  return true;
}

Box ReadBox(pbf_reader in) {
  Box box;
  ForEach(in, [&](uint32_t tag, pbf_reader& field) {
    return ReadNumbers(tag, 1, field, &box.offset) || ReadNumbers(tag, 2, field, &box.extent);
  });
  return box;
}

void ReadFlat(pbf_reader in, TensorSpec* tensor) {
  ForEach(in, [&](uint32_t tag, pbf_reader& field) {
    if (tag == Varint(1)) return tensor->flat_offset = field.get_uint64(), true;
    if (tag == Varint(2)) return tensor->flat_count = field.get_uint64(), true;
    if (tag == Varint(3)) return tensor->padding_elements = field.get_uint64(), true;
    return false;
  });
}

bool ReadSlice(uint32_t tag, pbf_reader& field, TensorSpec* tensor) {
  switch (tag) {
    case Bytes(7):
      tensor->slice = SliceKind::kWhole;
      field.skip();
      return true;
    case Bytes(8):
      tensor->slice = SliceKind::kBoxes;
      ForEach(field.get_message(), [&](uint32_t box_tag, pbf_reader& box) {
        if (box_tag != Bytes(1)) return false;
        Require(tensor->boxes.size() < kBoxesMax, "more boxes than a tensor has");
        tensor->boxes.push_back(ReadBox(box.get_message()));
        return true;
      });
      return true;
    case Bytes(9):
      tensor->slice = SliceKind::kFlat;
      ReadFlat(field.get_message(), tensor);
      return true;
    case Bytes(10):
      tensor->slice = SliceKind::kEmpty;
      field.skip();
      return true;
    case Bytes(11):
      tensor->slice = SliceKind::kAlias;
      tensor->alias_of = field.get_bytes();
      return true;
    default:
      return false;
  }
}

TensorSpec ReadTensor(pbf_reader in) {
  TensorSpec tensor;
  bool has_slice = false;
  ForEach(in, [&](uint32_t tag, pbf_reader& field) {
    if (tag == Bytes(1)) return tensor.name = field.get_bytes(), true;
    if (tag == Varint(2)) return tensor.dtype = static_cast<Dtype>(field.get_uint32()), true;
    if (ReadNumbers(tag, 3, field, &tensor.shape)) return true;
    if (ReadNumbers(tag, 4, field, &tensor.global_shape)) return true;
    if (tag == Varint(5)) return tensor.offset_bytes = field.get_uint64(), true;
    if (tag == Varint(6)) return tensor.size_bytes = field.get_uint64(), true;
    if (ReadSlice(tag, field, &tensor)) return has_slice = true;
    return false;
  });
  Require(has_slice, "tensor " + tensor.name + " has no slice that this library knows");
  return tensor;
}

BlobSpec ReadBlob(pbf_reader in) {
  BlobSpec blob;
  ForEach(in, [&](uint32_t tag, pbf_reader& field) {
    if (tag == Bytes(1)) return blob.name = field.get_bytes(), true;
    if (tag == Varint(2)) return blob.offset_bytes = field.get_uint64(), true;
    if (tag == Varint(3)) return blob.size_bytes = field.get_uint64(), true;
    return false;
  });
  return blob;
}

std::pair<std::string, std::string> ReadTag(pbf_reader in) {
  std::pair<std::string, std::string> entry;
  ForEach(in, [&](uint32_t tag, pbf_reader& field) {
    if (tag == Bytes(1)) return entry.first = field.get_bytes(), true;
    if (tag == Bytes(2)) return entry.second = field.get_bytes(), true;
    return false;
  });
  return entry;
}

}  // namespace

// Builds a Contents from a manifest, which says itself where things lie.
struct ContentsReader {
  static void Read(pbf_reader in, uint64_t size_bytes, Contents* out) {
    ForEach(in, [&](uint32_t tag, pbf_reader& field) {
      if (tag == Bytes(1)) return Add(ReadTensor(field.get_message()), size_bytes, out), true;
      if (tag == Bytes(2)) return Add(ReadBlob(field.get_message()), size_bytes, out), true;
      if (tag == Bytes(3)) {
        Require(out->tags_.size() < kTagsMax, "more tags than a shard has");
        return out->tags_.insert(ReadTag(field.get_message())), true;
      }
      return false;
    });
    for (TensorSpec& tensor : out->tensors_) {
      if (tensor.slice != SliceKind::kAlias) continue;
      const auto root = out->tensor_index_.find(tensor.alias_of);
      Require(root != out->tensor_index_.end() &&
                  out->tensors_[root->second].slice != SliceKind::kAlias &&
                  out->tensors_[root->second].shape == tensor.shape &&
                  out->tensors_[root->second].dtype == tensor.dtype,
              "tensor " + tensor.name + " is an alias of something else");
      tensor.offset_bytes = out->tensors_[root->second].offset_bytes;
      tensor.size_bytes = out->tensors_[root->second].size_bytes;
    }
  }

 private:
  static void Add(TensorSpec tensor, uint64_t size_bytes, Contents* out) {
    const Status status = CheckTensor(tensor);
    Require(status.ok(), status.message());
    Require(out->tensors_.size() < kTensorsMax, "more tensors than a shard has");
    if (tensor.slice != SliceKind::kAlias) {
      const Result<uint64_t> count = ElementCount(tensor.shape);
      Require(count.ok() && *count * DtypeBytes(tensor.dtype) == tensor.size_bytes,
              "tensor " + tensor.name + " has another size than its shape");
      Require(tensor.size_bytes <= size_bytes &&
                  tensor.offset_bytes <= size_bytes - tensor.size_bytes &&
                  tensor.offset_bytes % DtypeBytes(tensor.dtype) == 0,
              "tensor " + tensor.name + " lies outside of the shard");
    }
    Require(out->tensor_index_.emplace(tensor.name, out->tensors_.size()).second,
            "tensor " + tensor.name + " is there twice");
    out->tensors_.push_back(std::move(tensor));
  }

  static void Add(BlobSpec blob, uint64_t size_bytes, Contents* out) {
    Require(out->blobs_.size() < kBlobsMax, "more blobs than a shard has");
    Require(blob.size_bytes <= size_bytes && blob.offset_bytes <= size_bytes - blob.size_bytes,
            "blob " + blob.name + " lies outside of the shard");
    Require(out->blob_index_.emplace(blob.name, out->blobs_.size()).second,
            "blob " + blob.name + " is there twice");
    out->blobs_.push_back(std::move(blob));
  }
};

namespace {

void ReadChecksums(pbf_reader& field, ShardManifest* out) {
  const protozero::data_view view = field.get_view();
  Require(view.size() % 16 == 0, "its checksums are cut short");
  out->chunk_checksums.clear();
  out->chunk_checksums.reserve(view.size() / 16);
  for (size_t i = 0; i < view.size(); i += 16)
    out->chunk_checksums.push_back(*Hash128::FromBytes(std::string_view(view.data() + i, 16)));
}

// Everything but the contents, whose check needs the size.
protozero::data_view ReadHeader(pbf_reader in, ShardManifest* out, uint32_t* version) {
  protozero::data_view contents;
  ForEach(in, [&](uint32_t tag, pbf_reader& field) {
    if (tag == Varint(1)) return *version = field.get_uint32(), true;
    if (tag == Bytes(2)) return out->job = field.get_bytes(), true;
    if (tag == Varint(3)) return out->snapshot.generation = field.get_uint64(), true;
    if (tag == Varint(4)) return out->snapshot.step = field.get_uint64(), true;
    if (tag == Bytes(5)) return out->shard_id = field.get_bytes(), true;
    if (tag == Varint(6)) return out->rank = field.get_uint32(), true;
    if (tag == Varint(7)) return out->world_size = field.get_uint32(), true;
    if (tag == Varint(8)) return out->size_bytes = field.get_uint64(), true;
    if (tag == Varint(9)) return out->chunk_bytes = field.get_uint32(), true;
    if (tag == Bytes(10)) return ReadChecksums(field, out), true;
    if (tag == Bytes(11)) return contents = field.get_view(), true;
    return false;
  });
  return contents;
}

}  // namespace

Result<ShardManifest> DecodeManifest(std::string_view bytes) {
  ShardManifest manifest;
  uint32_t version = 0;
  try {
    const protozero::data_view contents =
        ReadHeader(pbf_reader(bytes.data(), bytes.size()), &manifest, &version);
    if (version != kManifestFormatVersion) {
      return InvalidArgument("the shard's manifest has format version " + std::to_string(version) +
                             ", this library reads version " +
                             std::to_string(kManifestFormatVersion));
    }
    Require(IsChunkSize(manifest.chunk_bytes), "its chunk size is not one");
    Require(manifest.size_bytes <= kShardBytesMax, "it is larger than a shard can be");
    Require(manifest.shard_id.size() <= kNameBytesMax && manifest.job.size() <= kNameBytesMax,
            "its names are too long");
    Require(CeilDiv(manifest.size_bytes, manifest.chunk_bytes) == manifest.chunk_checksums.size(),
            "it has not one checksum per chunk");
    ContentsReader::Read(pbf_reader(contents), manifest.size_bytes, &manifest.contents);
  } catch (const ManifestError& error) {
    return Corrupt("the shard's manifest breaks a rule: " + error.what);
  } catch (const protozero::exception& error) {
    return Corrupt(std::string("the shard's manifest is malformed: ") + error.what());
  }
  return manifest;
}

}  // namespace backstay::client
