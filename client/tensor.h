#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"

namespace backstay::client {

// Numbers of the manifest's format and of backstay.h.
using Dtype = TensorDtype;

enum class SliceKind : uint32_t {
  kWhole = 0,
  kReplicated = 1,  // Stored as whole: the manifest does not tell them apart.
  kBoxes = 2,
  kFlat = 3,
  kEmpty = 4,
  kAlias = 5,
};

struct Box {
  std::vector<uint64_t> offset;
  std::vector<uint64_t> extent;
};

// A tensor and which part of the global tensor it is; see backstay_tensor in backstay.h.
struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::kFp32;
  std::vector<uint64_t> shape;
  SliceKind slice = SliceKind::kWhole;
  std::vector<uint64_t> global_shape;
  std::vector<Box> boxes;
  uint64_t flat_offset = 0;
  uint64_t flat_count = 0;
  uint64_t padding_elements = 0;
  std::string alias_of;
  uint32_t group = 0;

  // Where it lies in the shard. An alias has the numbers of the tensor it stands for.
  uint64_t offset_bytes = 0;
  uint64_t size_bytes = 0;
};

// "[3, 4]".
std::string ShapeText(std::span<const uint64_t> shape);

// The product of `shape`: 1 for a scalar. kInvalidArgument beyond the limits of a shard.
Result<uint64_t> ElementCount(std::span<const uint64_t> shape);

// The rules that one tensor can break by itself: dtype, names, slices that fit their global tensor.
// kInvalidArgument names the tensor.
Status CheckTensor(const TensorSpec& tensor);

// Elements of one tensor in the caller's memory, in row-major order of their indices, as few
// contiguous runs as its strides allow.
//
// Memory: borrows the caller's memory.
class StridedMemory {
 public:
  StridedMemory() = default;
  // `strides` in elements, empty: contiguous. kInvalidArgument: negative strides, or a null pointer
  // where there are elements; `what` names the tensor.
  static Result<StridedMemory> Make(std::string_view what, void* data, uint64_t element_bytes,
                                    std::span<const uint64_t> shape,
                                    std::span<const int64_t> strides);

  uint64_t size_bytes() const { return size_bytes_; }
  bool contiguous() const { return runs_.empty(); }
  // Only of contiguous memory.
  std::byte* data() const { return data_; }

  // Copies `out.size()` bytes of the row-major order from `offset_bytes` on. Offset and size are
  // multiples of the element size.
  void Gather(uint64_t offset_bytes, std::span<std::byte> out) const;
  void Scatter(uint64_t offset_bytes, std::span<const std::byte> in) const;
  // True when two indices are the same memory: legal to save, not to read into.
  bool Overlaps() const;

 private:
  struct Dimension {
    uint64_t count = 0;
    uint64_t stride_bytes = 0;
  };

  // Calls `piece(memory, position, size_bytes)` for each contiguous part of the range.
  template <typename Piece>
  void ForEachRun(uint64_t offset_bytes, uint64_t size_bytes, const Piece& piece) const;

  std::byte* data_ = nullptr;
  uint64_t size_bytes_ = 0;
  uint64_t run_bytes_ = 0;       // Of the innermost contiguous run.
  std::vector<Dimension> runs_;  // How the runs lie, outermost first; empty: one run.
};

}  // namespace backstay::client
