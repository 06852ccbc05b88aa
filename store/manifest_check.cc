// The rules that a manifest obeys (docs/formats/manifest.md, "Rules"), for decoded ones and before
// encoding.

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "store/manifest.h"

namespace backstay::store {

namespace {

constexpr size_t kQuotedBytesMax = 80;

// The product, or nothing when it does not fit.
std::optional<uint64_t> Multiply(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// Elements of a shape: 1 for a scalar, 0 when any dimension is 0.
std::optional<uint64_t> ElementCount(std::span<const uint64_t> shape) {
  if (std::ranges::find(shape, uint64_t{0}) != shape.end()) return 0;
  uint64_t count = 1;
  for (const uint64_t size : shape) {
    const std::optional<uint64_t> product = Multiply(count, size);
    if (!product) return std::nullopt;
    count = *product;
  }
  return count;
}

// [offset, offset + size) lies in [0, limit).
bool InRange(uint64_t offset, uint64_t size, uint64_t limit) {
  return offset <= limit && size <= limit - offset;
}

Status CheckName(std::string_view name, size_t bytes_max) {
  if (name.empty()) return InvalidArgument("a name is empty");
  if (name.size() > bytes_max) {
    return InvalidArgument("the name has " + std::to_string(name.size()) + " bytes, at most " +
                           std::to_string(bytes_max) + " are allowed");
  }
  if (name.find('\0') != std::string_view::npos) {
    return InvalidArgument("the name has a NUL byte");
  }
  return Status::Ok();
}

bool Overlap(const Box& a, const Box& b) {
  for (size_t d = 0; d < a.offsets.size(); ++d) {
    if (a.sizes[d] == 0 || b.sizes[d] == 0) return false;
    if (a.offsets[d] >= b.offsets[d] + b.sizes[d] || b.offsets[d] >= a.offsets[d] + a.sizes[d]) {
      return false;
    }
  }
  return true;
}

// Checks that one tensor's slice fits its global and stored shape.
class SliceCheck {
 public:
  SliceCheck(const TensorEntry& entry, uint64_t stored_count, uint64_t global_count)
      : entry_(entry), stored_count_(stored_count), global_count_(global_count) {}

  Status operator()(const WholeSlice&) const {
    if (entry_.shape == entry_.global_shape) return Status::Ok();
    return InvalidArgument("is whole, but its stored and its global shape differ");
  }

  Status operator()(const EmptySlice&) const {
    if (stored_count_ == 0) return Status::Ok();
    return InvalidArgument("is an empty slice, but its stored shape has elements");
  }

  Status operator()(const FlatSlice& slice) const {
    if (!InRange(slice.start, slice.length, global_count_)) {
      return InvalidArgument("flat range of " + std::to_string(slice.length) +
                             " elements from element " + std::to_string(slice.start) +
                             " on ends beyond its global tensor of " +
                             std::to_string(global_count_) + " elements");
    }
    uint64_t with_padding = 0;
    if (__builtin_add_overflow(slice.length, slice.padding, &with_padding) ||
        entry_.shape.size() != 1 || entry_.shape[0] != with_padding) {
      return InvalidArgument(
          "a flat range is stored with one dimension, its length plus its padding");
    }
    return Status::Ok();
  }

  Status operator()(const BoxSlice& slice) const {
    if (slice.boxes.empty() || slice.boxes.size() > kTensorBoxesMax) {
      return InvalidArgument("has " + std::to_string(slice.boxes.size()) + " boxes, need 1 to " +
                             std::to_string(kTensorBoxesMax));
    }
    uint64_t count = 0;
    for (const Box& box : slice.boxes) {
      BACKSTAY_RETURN_IF_ERROR(CheckBox(box));
      // At most global_count_ each, so the sum of kTensorBoxesMax of them is checked as it grows.
      const uint64_t box_count = *ElementCount(box.sizes);
      if (box_count > global_count_ - count) return InvalidArgument("boxes overlap");
      count += box_count;
    }
    for (size_t i = 0; i < slice.boxes.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (Overlap(slice.boxes[i], slice.boxes[j])) return InvalidArgument("boxes overlap");
      }
    }
    const bool shape_fits = slice.boxes.size() == 1
                                ? entry_.shape == slice.boxes[0].sizes
                                : entry_.shape.size() == 1 && entry_.shape[0] == count;
    if (!shape_fits) {
      return InvalidArgument(
          "stored shape is neither that of its one box nor the sum of its boxes' elements");
    }
    return Status::Ok();
  }

  // The tensor that it names is looked up by the caller.
  Status operator()(const AliasSlice&) const {
    if (entry_.offset_bytes == 0 && entry_.size_bytes == 0) return Status::Ok();
    return InvalidArgument("is an alias, but has bytes of its own");
  }

 private:
  Status CheckBox(const Box& box) const {
    const size_t dimensions = entry_.global_shape.size();
    if (box.offsets.size() != dimensions || box.sizes.size() != dimensions) {
      return InvalidArgument("a box has other dimensions than its global shape");
    }
    for (size_t d = 0; d < dimensions; ++d) {
      if (!InRange(box.offsets[d], box.sizes[d], entry_.global_shape[d])) {
        return InvalidArgument("a box ends beyond its global shape in dimension " +
                               std::to_string(d));
      }
    }
    return Status::Ok();
  }

  const TensorEntry& entry_;
  const uint64_t stored_count_;
  const uint64_t global_count_;
};

Status CheckTensor(const TensorEntry& entry, uint64_t size_bytes) {
  BACKSTAY_RETURN_IF_ERROR(CheckName(entry.name, kEntryNameBytesMax));
  if (entry.shape.size() > kTensorDimensionsMax ||
      entry.global_shape.size() > kTensorDimensionsMax) {
    return InvalidArgument("has more than " + std::to_string(kTensorDimensionsMax) + " dimensions");
  }
  const std::optional<uint64_t> stored = ElementCount(entry.shape);
  const std::optional<uint64_t> global = ElementCount(entry.global_shape);
  if (!stored || !global) return InvalidArgument("its shape has too many elements");
  BACKSTAY_RETURN_IF_ERROR(std::visit(SliceCheck(entry, *stored, *global), entry.slice));
  if (std::holds_alternative<AliasSlice>(entry.slice)) return Status::Ok();

  const std::optional<uint64_t> bytes = Multiply(*stored, DtypeBytes(entry.dtype));
  if (bytes != entry.size_bytes) {
    return InvalidArgument("has " + std::to_string(entry.size_bytes) + " bytes, but " +
                           std::to_string(*stored) + " elements of " +
                           std::string(DtypeName(entry.dtype)));
  }
  if (!InRange(entry.offset_bytes, entry.size_bytes, size_bytes)) {
    return InvalidArgument("ends beyond the shard's " + std::to_string(size_bytes) + " bytes");
  }
  return Status::Ok();
}

Status Named(std::string_view kind, std::string_view name, const Status& status) {
  return Status(status.code(), std::string(kind) + " " + QuoteName(name) + ": " + status.message());
}

Status CheckTensors(const std::vector<TensorEntry>& tensors, uint64_t size_bytes) {
  if (tensors.size() > kManifestTensorsMax) {
    return InvalidArgument("more than " + std::to_string(kManifestTensorsMax) + " tensors");
  }
  std::unordered_map<std::string_view, const TensorEntry*> by_name;
  by_name.reserve(tensors.size());
  for (const TensorEntry& entry : tensors) {
    if (Status status = CheckTensor(entry, size_bytes); !status.ok()) {
      return Named("tensor", entry.name, status);
    }
    if (!by_name.emplace(entry.name, &entry).second) {
      return Named("tensor", entry.name, InvalidArgument("is there twice"));
    }
  }
  for (const TensorEntry& entry : tensors) {
    const auto* alias = std::get_if<AliasSlice>(&entry.slice);
    if (alias == nullptr) continue;
    const auto found = by_name.find(alias->of);
    if (found == by_name.end()) {
      return Named("tensor", entry.name,
                   InvalidArgument("is an alias of " + QuoteName(alias->of) +
                                   ", which is not in the shard"));
    }
    const TensorEntry& target = *found->second;
    if (std::holds_alternative<AliasSlice>(target.slice)) {
      return Named(
          "tensor", entry.name,
          InvalidArgument("is an alias of " + QuoteName(alias->of) + ", which is an alias itself"));
    }
    if (target.dtype != entry.dtype || target.shape != entry.shape ||
        target.global_shape != entry.global_shape) {
      return Named("tensor", entry.name,
                   InvalidArgument("has another dtype or shape than " + QuoteName(alias->of) +
                                   ", of which it is an alias"));
    }
  }
  return Status::Ok();
}

Status CheckBlobs(const std::vector<BlobEntry>& blobs, uint64_t size_bytes) {
  if (blobs.size() > kManifestBlobsMax) {
    return InvalidArgument("more than " + std::to_string(kManifestBlobsMax) + " blobs");
  }
  std::unordered_set<std::string_view> names;
  for (const BlobEntry& blob : blobs) {
    Status status = CheckName(blob.name, kEntryNameBytesMax);
    if (status.ok() && !InRange(blob.offset_bytes, blob.size_bytes, size_bytes)) {
      status = InvalidArgument("ends beyond the shard's " + std::to_string(size_bytes) + " bytes");
    }
    if (status.ok() && !names.insert(blob.name).second) status = InvalidArgument("is there twice");
    if (!status.ok()) return Named("blob", blob.name, status);
  }
  return Status::Ok();
}

Status CheckTags(const std::vector<Tag>& tags) {
  if (tags.size() > kManifestTagsMax) {
    return InvalidArgument("more than " + std::to_string(kManifestTagsMax) + " tags");
  }
  std::unordered_set<std::string_view> names;
  for (const Tag& tag : tags) {
    Status status = CheckName(tag.name, kEntryNameBytesMax);
    if (status.ok() && tag.value.size() > kTagValueBytesMax) {
      status = InvalidArgument("its value has " + FormatBytes(tag.value.size()) + ", at most " +
                               FormatBytes(kTagValueBytesMax) + " are allowed");
    }
    if (status.ok() && !names.insert(tag.name).second) status = InvalidArgument("is there twice");
    if (!status.ok()) return Named("tag", tag.name, status);
  }
  return Status::Ok();
}

// No byte belongs to two entries: an alias has none of its own.
Status CheckDisjoint(const ShardContents& contents) {
  struct Range {
    uint64_t offset_bytes;
    uint64_t end_bytes;
    const std::string* name;
  };
  std::vector<Range> ranges;
  ranges.reserve(contents.tensors.size() + contents.blobs.size());
  const auto add = [&ranges](const auto& entry) {
    if (entry.size_bytes == 0) return;
    ranges.push_back({entry.offset_bytes, entry.offset_bytes + entry.size_bytes, &entry.name});
  };
  std::ranges::for_each(contents.tensors, add);
  std::ranges::for_each(contents.blobs, add);
  std::ranges::sort(ranges, {}, &Range::offset_bytes);
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].offset_bytes < ranges[i - 1].end_bytes) {
      return InvalidArgument(QuoteName(*ranges[i - 1].name) + " and " + QuoteName(*ranges[i].name) +
                             " overlap in the shard");
    }
  }
  return Status::Ok();
}

}  // namespace

std::string QuoteName(std::string_view name) {
  std::string quoted = "\"";
  for (const char c : name.substr(0, kQuotedBytesMax)) {
    if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\') {
      quoted.push_back(c);
    } else {
      std::array<char, 5> escaped{};
      std::snprintf(escaped.data(), escaped.size(), "\\x%02x", static_cast<unsigned char>(c));
      quoted += escaped.data();
    }
  }
  return quoted + (name.size() > kQuotedBytesMax ? "\"..." : "\"");
}

Status CheckContents(const ShardContents& contents, uint64_t size_bytes) {
  BACKSTAY_RETURN_IF_ERROR(CheckTensors(contents.tensors, size_bytes));
  BACKSTAY_RETURN_IF_ERROR(CheckBlobs(contents.blobs, size_bytes));
  BACKSTAY_RETURN_IF_ERROR(CheckTags(contents.tags));
  return CheckDisjoint(contents);
}

Status CheckManifest(const Manifest& manifest) {
  if (Status status = CheckName(manifest.name.job.value, kNameBytesMax); !status.ok()) {
    return Named("job", manifest.name.job.value, status);
  }
  if (Status status = CheckName(manifest.name.shard.value, kNameBytesMax); !status.ok()) {
    return Named("shard", manifest.name.shard.value, status);
  }
  const std::string what = "manifest of " + ToString(manifest.name);
  if (manifest.world_size == 0 || manifest.world_size > kWorldSizeMax ||
      manifest.rank.value >= manifest.world_size) {
    return InvalidArgument(what + ": rank " + std::to_string(manifest.rank.value) +
                           " of world size " + std::to_string(manifest.world_size));
  }
  if (manifest.size_bytes > kShardBytesMax) {
    return InvalidArgument(what + ": " + FormatBytes(manifest.size_bytes) +
                           " are more than the limit of " + FormatBytes(kShardBytesMax));
  }
  const SlotGeometry geometry{manifest.size_bytes, manifest.chunk_bytes};
  if (Status status = geometry.Validate(); !status.ok()) {
    return InvalidArgument(what + ": " + status.message());
  }
  if (manifest.chunk_checksums.size() != geometry.ChunkCount()) {
    return InvalidArgument(what + ": " + std::to_string(manifest.chunk_checksums.size()) +
                           " checksums for " + std::to_string(geometry.ChunkCount()) + " chunks");
  }
  if (Status status = CheckContents(manifest.contents, manifest.size_bytes); !status.ok()) {
    return InvalidArgument(what + ": " + status.message());
  }
  return Status::Ok();
}

}  // namespace backstay::store
