#include "client/contents.h"

#include <algorithm>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>

#include "base/slot_control.h"
#include "client/limits.h"

namespace backstay::client {
namespace {

using protozero::pbf_reader;
using protozero::pbf_writer;

// The names nearest to a wrong one are found by edit distance, of so much of each name and among so
// many names to both sides of it in their order: an error costs at most some tens of milliseconds.
constexpr size_t kCompareBytesMax = 64;
constexpr size_t kCompareNamesMax = 5'000;
constexpr size_t kNearestCount = 3;

size_t EditDistance(std::string_view a, std::string_view b) {
  a = a.substr(0, kCompareBytesMax);
  b = b.substr(0, kCompareBytesMax);
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

template <typename Entry>
std::vector<std::string_view> NamesOf(const std::map<std::string, Entry>& index) {
  std::vector<std::string_view> names;
  for (const auto& [name, entry] : index) names.push_back(name);
  return names;
}

void AddPacked(pbf_writer& out, uint32_t tag, const std::vector<uint64_t>& values) {
  if (!values.empty()) out.add_packed_uint64(tag, values.begin(), values.end());
}

void AddNumber(pbf_writer& out, uint32_t tag, uint64_t value) {
  if (value != 0) out.add_uint64(tag, value);
}

Status BadNameSize(const char* of, const std::string& name) {
  return InvalidArgument(std::string(of) + "'s name has 1 to " +
                         std::to_string(kEntryNameBytesMax) + " bytes, not " +
                         std::to_string(name.size()));
}

std::string EncodeBoxes(const TensorSpec& tensor) {
  std::string encoded;
  pbf_writer out(encoded);
  for (const Box& box : tensor.boxes) {
    std::string bytes;
    pbf_writer writer(bytes);
    AddPacked(writer, 1, box.offset);
    AddPacked(writer, 2, box.extent);
    out.add_message(1, bytes);
  }
  return encoded;
}

std::string EncodeFlat(const TensorSpec& tensor) {
  std::string encoded;
  pbf_writer out(encoded);
  AddNumber(out, 1, tensor.flat_offset);
  AddNumber(out, 2, tensor.flat_count);
  AddNumber(out, 3, tensor.padding_elements);
  return encoded;
}

std::string EncodeTensor(const TensorSpec& tensor) {
  std::string encoded;
  pbf_writer out(encoded);
  out.add_bytes(1, tensor.name);
  out.add_enum(2, static_cast<int32_t>(tensor.dtype));
  AddPacked(out, 3, tensor.shape);
  AddPacked(out, 4, tensor.global_shape);
  if (tensor.slice != SliceKind::kAlias) {  // An alias has no bytes of its own.
    AddNumber(out, 5, tensor.offset_bytes);
    AddNumber(out, 6, tensor.size_bytes);
  }
  switch (tensor.slice) {
    case SliceKind::kWhole:
    case SliceKind::kReplicated:
      out.add_message(7, std::string());
      break;
    case SliceKind::kBoxes:
      out.add_message(8, EncodeBoxes(tensor));
      break;
    case SliceKind::kFlat:
      out.add_message(9, EncodeFlat(tensor));
      break;
    case SliceKind::kEmpty:
      out.add_message(10, std::string());
      break;
    case SliceKind::kAlias:
      out.add_bytes(11, tensor.alias_of);
      break;
  }
  return encoded;
}

}  // namespace

std::string NearestNames(const std::string& name, const std::vector<std::string_view>& candidates) {
  if (candidates.empty()) return "";
  std::vector<std::pair<size_t, std::string_view>> scored;
  const auto at = static_cast<size_t>(
      std::lower_bound(candidates.begin(), candidates.end(), name) - candidates.begin());
  const size_t end = std::min(at + kCompareNamesMax, candidates.size());
  for (size_t i = at - std::min(at, kCompareNamesMax); i < end; ++i)
    scored.emplace_back(EditDistance(name, candidates[i]), candidates[i]);
  const size_t count = std::min(kNearestCount, scored.size());
  std::partial_sort(scored.begin(), scored.begin() + static_cast<ptrdiff_t>(count), scored.end());
  std::string text = count == 1 ? "; the nearest name is " : "; the nearest names are ";
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) text += i + 1 == count ? " and " : ", ";
    text += scored[i].second;
  }
  return text;
}

Result<size_t> Contents::AddTensor(TensorSpec tensor) {
  BACKSTAY_RETURN_IF_ERROR(CheckTensor(tensor));
  if (tensors_.size() == kTensorsMax)
    return NoSpace("a shard has at most " + std::to_string(kTensorsMax) + " tensors");
  if (tensor_index_.contains(tensor.name))
    return InvalidArgument("tensor " + tensor.name + " was added before");
  if (tensor.slice == SliceKind::kAlias) {
    Result<size_t> found = FindTensor(tensor.alias_of);
    if (!found.ok())
      return InvalidArgument("tensor " + tensor.name + " is an alias: " + found.status().message());
    const TensorSpec& root = tensors_[*found];
    // Left out it stands for the shape, also where the named tensor is a slice of a larger one.
    if (tensor.global_shape == tensor.shape) tensor.global_shape = root.global_shape;
    if (root.dtype != tensor.dtype || root.shape != tensor.shape ||
        root.global_shape != tensor.global_shape) {
      return InvalidArgument("tensor " + tensor.name + " (" + DtypeName(tensor.dtype) + " " +
                             ShapeText(tensor.shape) + ") is an alias of " + root.name + " (" +
                             DtypeName(root.dtype) + " " + ShapeText(root.shape) +
                             "): dtype, shape and global shape must be the same");
    }
    // An alias of an alias stands for the tensor that has the bytes.
    if (root.slice == SliceKind::kAlias) tensor.alias_of = root.alias_of;
    tensor.offset_bytes = root.offset_bytes;
    tensor.size_bytes = root.size_bytes;
  } else {
    BACKSTAY_ASSIGN_OR_RETURN(const uint64_t count, ElementCount(tensor.shape));
    tensor.size_bytes = count * DtypeBytes(tensor.dtype);
    tensor.offset_bytes = tensor_bytes_;
    if (tensor.size_bytes > kShardBytesMax - SizeBytes())
      return NoSpace("tensor " + tensor.name + " makes the shard larger than a shard can be");
    tensor_bytes_ = RoundUp(tensor_bytes_ + tensor.size_bytes, kEntryAlignmentBytes);
  }
  tensor_index_[tensor.name] = tensors_.size();
  tensors_.push_back(std::move(tensor));
  return tensors_.size() - 1;
}

Result<size_t> Contents::AddBlob(std::string name, uint64_t size_bytes) {
  if (name.empty() || name.size() > kEntryNameBytesMax) return BadNameSize("a blob", name);
  if (blob_index_.contains(name)) return InvalidArgument("blob " + name + " was added before");
  if (blobs_.size() == kBlobsMax)
    return NoSpace("a shard has at most " + std::to_string(kBlobsMax) + " blobs");
  if (size_bytes > kShardBytesMax - SizeBytes())
    return NoSpace("blob " + name + " makes the shard larger than a shard can be");
  blob_bytes_ += RoundUp(size_bytes, kEntryAlignmentBytes);
  blob_index_[name] = blobs_.size();
  blobs_.push_back({.name = std::move(name), .size_bytes = size_bytes});
  return blobs_.size() - 1;
}

Status Contents::AddTag(std::string name, std::string value) {
  if (name.empty() || name.size() > kEntryNameBytesMax) return BadNameSize("a tag", name);
  if (value.size() > kTagValueBytesMax)
    return InvalidArgument("tag " + name + " has a value of more than " +
                           std::to_string(kTagValueBytesMax) + " bytes");
  if (tags_.contains(name)) return InvalidArgument("tag " + name + " was added before");
  if (tags_.size() == kTagsMax)
    return NoSpace("a shard has at most " + std::to_string(kTagsMax) + " tags");
  tags_.emplace(std::move(name), std::move(value));
  return Status::Ok();
}

void Contents::Finish() {
  uint64_t offset = tensor_bytes_;
  for (BlobSpec& blob : blobs_) {
    blob.offset_bytes = offset;
    offset += RoundUp(blob.size_bytes, kEntryAlignmentBytes);
  }
}

Result<size_t> Contents::FindTensor(const std::string& name) const {
  const auto found = tensor_index_.find(name);
  if (found != tensor_index_.end()) return found->second;
  return NotFound("there is no tensor " + name + NearestNames(name, NamesOf(tensor_index_)));
}

Result<size_t> Contents::FindBlob(const std::string& name) const {
  const auto found = blob_index_.find(name);
  if (found != blob_index_.end()) return found->second;
  return NotFound("there is no blob " + name + NearestNames(name, NamesOf(blob_index_)));
}

Result<std::string_view> Contents::FindTag(const std::string& name) const {
  const auto found = tags_.find(name);
  if (found != tags_.end()) return std::string_view(found->second);
  return NotFound("there is no tag " + name + NearestNames(name, NamesOf(tags_)));
}

std::string Contents::Encode() const {
  std::string encoded;
  pbf_writer out(encoded);
  for (const TensorSpec& tensor : tensors_) out.add_message(1, EncodeTensor(tensor));
  for (const BlobSpec& blob : blobs_) {
    std::string bytes;
    pbf_writer writer(bytes);
    writer.add_bytes(1, blob.name);
    AddNumber(writer, 2, blob.offset_bytes);
    AddNumber(writer, 3, blob.size_bytes);
    out.add_message(2, bytes);
  }
  for (const auto& [name, value] : tags_) {
    std::string bytes;
    pbf_writer writer(bytes);
    writer.add_bytes(1, name);
    if (!value.empty()) writer.add_bytes(2, value);
    out.add_message(3, bytes);
  }
  return encoded;
}

}  // namespace backstay::client
