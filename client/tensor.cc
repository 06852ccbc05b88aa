#include "client/tensor.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "client/limits.h"

namespace backstay::client {
namespace {

Status Bad(const TensorSpec& tensor, const std::string& what) {
  return InvalidArgument("tensor " + tensor.name + ": " + what);
}

Status CheckBoxes(const TensorSpec& tensor) {
  if (tensor.boxes.empty() || tensor.boxes.size() > kBoxesMax) {
    return Bad(tensor, "a slice has 1 to " + std::to_string(kBoxesMax) + " boxes, not " +
                           std::to_string(tensor.boxes.size()));
  }
  uint64_t total = 0;
  for (const Box& box : tensor.boxes) {
    if (box.offset.size() != tensor.global_shape.size() || box.extent.size() != box.offset.size())
      return Bad(tensor, "a box needs one offset and one extent per dimension of the global shape");
    for (size_t i = 0; i < box.offset.size(); ++i) {
      const uint64_t size = tensor.global_shape[i];
      if (box.offset[i] > size || box.extent[i] > size - box.offset[i]) {
        return Bad(tensor, "box " + ShapeText(box.offset) + " + " + ShapeText(box.extent) +
                               " is not inside of the global shape " +
                               ShapeText(tensor.global_shape));
      }
    }
    BACKSTAY_ASSIGN_OR_RETURN(const uint64_t count, ElementCount(box.extent));
    total += count;
  }
  const std::vector<uint64_t> expected =
      tensor.boxes.size() == 1 ? tensor.boxes[0].extent : std::vector<uint64_t>{total};
  if (tensor.shape != expected) {
    return Bad(tensor, "its shape " + ShapeText(tensor.shape) + " is not that of its boxes, " +
                           ShapeText(expected));
  }
  return Status::Ok();
}

Status CheckFlat(const TensorSpec& tensor) {
  BACKSTAY_ASSIGN_OR_RETURN(const uint64_t total, ElementCount(tensor.global_shape));
  if (tensor.flat_offset > total || tensor.flat_count > total - tensor.flat_offset) {
    return Bad(tensor, "the flat range of " + std::to_string(tensor.flat_count) +
                           " elements from " + std::to_string(tensor.flat_offset) +
                           " is not inside of the global tensor's " + std::to_string(total));
  }
  if (tensor.padding_elements > kShardBytesMax ||
      tensor.shape != std::vector<uint64_t>{tensor.flat_count + tensor.padding_elements}) {
    return Bad(tensor, "its shape " + ShapeText(tensor.shape) +
                           " is not one dimension of the flat range and its padding, " +
                           std::to_string(tensor.flat_count) + " + " +
                           std::to_string(tensor.padding_elements));
  }
  return Status::Ok();
}

}  // namespace

std::string ShapeText(std::span<const uint64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

Result<uint64_t> ElementCount(std::span<const uint64_t> shape) {
  uint64_t count = 1;
  for (const uint64_t size : shape) {
    if (size != 0 && count > kShardBytesMax / size)
      return InvalidArgument("shape " + ShapeText(shape) + " has more elements than a shard holds");
    count *= size;
  }
  return count;
}

Status CheckTensor(const TensorSpec& tensor) {
  if (tensor.name.empty() || tensor.name.size() > kEntryNameBytesMax) {
    return InvalidArgument("a tensor's name has 1 to " + std::to_string(kEntryNameBytesMax) +
                           " bytes, not " + std::to_string(tensor.name.size()));
  }
  if (DtypeBytes(tensor.dtype) == 0) {
    return Bad(tensor, "dtype " + std::to_string(static_cast<uint32_t>(tensor.dtype)) +
                           " is none of backstay_dtype");
  }
  if (tensor.shape.size() > kDimensionsMax || tensor.global_shape.size() > kDimensionsMax)
    return Bad(tensor, "it has more than " + std::to_string(kDimensionsMax) + " dimensions");
  BACKSTAY_ASSIGN_OR_RETURN(const uint64_t count, ElementCount(tensor.shape));
  if (count > kShardBytesMax / DtypeBytes(tensor.dtype))
    return Bad(tensor, "its shape " + ShapeText(tensor.shape) + " is larger than a shard can be");
  switch (tensor.slice) {
    case SliceKind::kWhole:
    case SliceKind::kReplicated:
      if (tensor.shape == tensor.global_shape) return Status::Ok();
      return Bad(tensor, "all of it is saved, but its shape " + ShapeText(tensor.shape) +
                             " is not the global shape " + ShapeText(tensor.global_shape));
    case SliceKind::kBoxes:
      return CheckBoxes(tensor);
    case SliceKind::kFlat:
      return CheckFlat(tensor);
    case SliceKind::kEmpty:
      if (count == 0) return Status::Ok();
      return Bad(tensor, "it is an empty slice, but its shape is " + ShapeText(tensor.shape));
    case SliceKind::kAlias:
      if (!tensor.alias_of.empty()) return Status::Ok();
      return Bad(tensor, "it is an alias of nothing: set alias_of");
  }
  return Bad(tensor, "slice " + std::to_string(static_cast<uint32_t>(tensor.slice)) +
                         " is none of backstay_slice");
}

Result<StridedMemory> StridedMemory::Make(std::string_view what, void* data, uint64_t element_bytes,
                                          std::span<const uint64_t> shape,
                                          std::span<const int64_t> strides) {
  BACKSTAY_ASSIGN_OR_RETURN(const uint64_t count, ElementCount(shape));
  StridedMemory memory;
  memory.data_ = static_cast<std::byte*>(data);
  memory.size_bytes_ = count * element_bytes;
  memory.run_bytes_ = memory.size_bytes_;
  if (count == 0) return memory;
  if (data == nullptr) return InvalidArgument(std::string(what) + ": its data pointer is null");
  if (strides.empty()) return memory;
  for (const int64_t stride : strides) {
    if (stride < 0 || static_cast<uint64_t>(stride) > kShardBytesMax)
      return InvalidArgument(std::string(what) + ": stride " + std::to_string(stride) +
                             " is negative or too large");
  }
  // From the innermost dimension outwards: grow the run while the next dimension continues it, then
  // fold dimensions that continue each other.
  memory.run_bytes_ = element_bytes;
  std::vector<Dimension> inner_first;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 1) continue;
    const uint64_t stride_bytes = static_cast<uint64_t>(strides[i]) * element_bytes;
    if (inner_first.empty() && stride_bytes == memory.run_bytes_) {
      memory.run_bytes_ *= shape[i];
    } else if (!inner_first.empty() &&
               stride_bytes == inner_first.back().stride_bytes * inner_first.back().count) {
      inner_first.back().count *= shape[i];
    } else {
      inner_first.push_back({shape[i], stride_bytes});
    }
  }
  memory.runs_.assign(inner_first.rbegin(), inner_first.rend());
  return memory;
}

template <typename Piece>
void StridedMemory::ForEachRun(uint64_t offset_bytes, uint64_t size_bytes,
                               const Piece& piece) const {
  BACKSTAY_CHECK(offset_bytes <= size_bytes_ && size_bytes <= size_bytes_ - offset_bytes,
                 "a range outside of its tensor");
  if (size_bytes == 0) return;
  // An odometer over the runs, set once by division and then only counted up.
  uint64_t index[kDimensionsMax] = {};
  uint64_t run = offset_bytes / run_bytes_;
  uint64_t skip_bytes = offset_bytes % run_bytes_;
  std::byte* at = data_;
  for (size_t i = runs_.size(); i-- > 0;) {
    index[i] = run % runs_[i].count;
    run /= runs_[i].count;
    at += index[i] * runs_[i].stride_bytes;
  }
  uint64_t position = 0;
  while (true) {
    const uint64_t bytes = std::min(run_bytes_ - skip_bytes, size_bytes - position);
    piece(at + skip_bytes, position, bytes);
    position += bytes;
    skip_bytes = 0;
    if (position == size_bytes) return;
    for (size_t i = runs_.size(); i-- > 0;) {
      at += runs_[i].stride_bytes;
      if (++index[i] < runs_[i].count) break;
      at -= runs_[i].stride_bytes * runs_[i].count;
      index[i] = 0;
    }
  }
}

namespace {

// memcpy of a size that is known to the compiler where it is an element's.
inline void CopyRun(std::byte* to, const std::byte* from, uint64_t bytes) {
  switch (bytes) {
    case 1:
      *to = *from;
      return;
    case 2:
      std::memcpy(to, from, 2);
      return;
    case 4:
      std::memcpy(to, from, 4);
      return;
    case 8:
      std::memcpy(to, from, 8);
      return;
    default:
      std::memcpy(to, from, bytes);
  }
}

}  // namespace

void StridedMemory::Gather(uint64_t offset_bytes, std::span<std::byte> out) const {
  ForEachRun(offset_bytes, out.size(),
             [&](const std::byte* memory, uint64_t position, uint64_t bytes) {
               CopyRun(out.data() + position, memory, bytes);
             });
}

void StridedMemory::Scatter(uint64_t offset_bytes, std::span<const std::byte> in) const {
  ForEachRun(offset_bytes, in.size(), [&](std::byte* memory, uint64_t position, uint64_t bytes) {
    CopyRun(memory, in.data() + position, bytes);
  });
}

bool StridedMemory::Overlaps() const {
  // Sorted by stride, each dimension must step over all that the smaller ones span. That is
  // sufficient, and every layout made by permuting, slicing and padding passes.
  std::vector<Dimension> sorted = runs_;
  std::sort(sorted.begin(), sorted.end(),
            [](const Dimension& a, const Dimension& b) { return a.stride_bytes < b.stride_bytes; });
  uint64_t span_bytes = run_bytes_;
  for (const Dimension& dimension : sorted) {
    if (dimension.stride_bytes < span_bytes) return true;
    span_bytes += dimension.stride_bytes * (dimension.count - 1);
  }
  return false;
}

}  // namespace backstay::client
