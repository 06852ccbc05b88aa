// libbackstay for C++20: owning handles over the stable C ABI of backstay.h, header-only, without
// exceptions.
//
// backstay.h says what each call does, its units, threads and errors; here stands only what C++
// adds. Handles are move-only and end their object when destroyed. A Save or Shard must not outlive
// its Client. After a call returned an error, its Result has no value and reading it ends the
// process.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "backstay.h"

namespace backstay {
// The version is part of every symbol, so programs with parts built against different headers link.
inline namespace api_v1 {

enum class Code : int32_t {
  kOk = BACKSTAY_OK,
  kNotFound = BACKSTAY_NOT_FOUND,
  kCorrupt = BACKSTAY_CORRUPT,
  kNoSpace = BACKSTAY_NO_SPACE,
  kStale = BACKSTAY_STALE,
  kUnavailable = BACKSTAY_UNAVAILABLE,
  kDeadline = BACKSTAY_DEADLINE,
  kUnknownOutcome = BACKSTAY_UNKNOWN_OUTCOME,
  kInvalidArgument = BACKSTAY_INVALID_ARGUMENT,
  kPermission = BACKSTAY_PERMISSION,
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  std::string ToString() const {
    return ok() ? "ok" : std::string(backstay_code_name(static_cast<int>(code_))) + ": " + message_;
  }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

// A value, or the error that stands in its place.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return Checked(); }
  const T& value() const& { return const_cast<Result*>(this)->Checked(); }
  T&& value() && { return std::move(Checked()); }
  T& operator*() & { return Checked(); }
  T&& operator*() && { return std::move(Checked()); }
  T* operator->() { return &Checked(); }

 private:
  T& Checked() {
    if (!value_) {
      std::fprintf(stderr, "backstay: the value of an error was read: %s\n",
                   status_.ToString().c_str());
      std::abort();
    }
    return *value_;
  }

  Status status_;
  std::optional<T> value_;
};

namespace internal {

// Calls `function(arguments..., &error)` and makes a Status of what it returned.
template <typename Function, typename... Arguments>
Status Call(Function function, Arguments... arguments) {
  backstay_error error;
  error.struct_size = sizeof error;
  error.message[0] = '\0';
  const int code = function(arguments..., &error);
  if (code == BACKSTAY_OK) return {};
  return {static_cast<Code>(code), error.message};
}

template <typename Struct>
Struct Sized() {
  Struct value = {};
  value.struct_size = sizeof value;
  return value;
}

}  // namespace internal

enum class Dtype : uint32_t {
  kBf16 = BACKSTAY_BF16,
  kFp16 = BACKSTAY_FP16,
  kFp8E4m3 = BACKSTAY_FP8_E4M3,
  kFp8E5m2 = BACKSTAY_FP8_E5M2,
  kFp32 = BACKSTAY_FP32,
  kFp64 = BACKSTAY_FP64,
  kInt8 = BACKSTAY_INT8,
  kInt16 = BACKSTAY_INT16,
  kInt32 = BACKSTAY_INT32,
  kInt64 = BACKSTAY_INT64,
  kUint8 = BACKSTAY_UINT8,
  kBool = BACKSTAY_BOOL,
};

// The dtype of a C++ element type; the types that C++ does not have are named by hand.
template <typename T>
constexpr Dtype DtypeOf() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, float>)
    return Dtype::kFp32;
  else if constexpr (std::is_same_v<U, double>)
    return Dtype::kFp64;
  else if constexpr (std::is_same_v<U, int8_t>)
    return Dtype::kInt8;
  else if constexpr (std::is_same_v<U, int16_t>)
    return Dtype::kInt16;
  else if constexpr (std::is_same_v<U, int32_t>)
    return Dtype::kInt32;
  else if constexpr (std::is_same_v<U, int64_t>)
    return Dtype::kInt64;
  else if constexpr (std::is_same_v<U, uint8_t>)
    return Dtype::kUint8;
  else if constexpr (std::is_same_v<U, bool>)
    return Dtype::kBool;
  else
    static_assert(!sizeof(U), "name the dtype of this element type by hand");
}

enum class Slice : uint32_t {
  kWhole = BACKSTAY_WHOLE,
  kReplicated = BACKSTAY_REPLICATED,
  kBoxes = BACKSTAY_BOXES,
  kFlat = BACKSTAY_FLAT,
  kEmpty = BACKSTAY_EMPTY,
  kAlias = BACKSTAY_ALIAS,
};

struct Box {
  std::vector<uint64_t> offset;  // One per dimension of the global tensor, in elements.
  std::vector<uint64_t> extent;
};

// A tensor to save; see backstay_tensor for what goes with each kind of slice. Memory: `data` is
// borrowed from Save::StartCopy() until a WaitCopied() of it returned ok, or the Save has ended.
struct Tensor {
  std::string name;
  Dtype dtype = Dtype::kFp32;
  const void* data = nullptr;
  std::vector<uint64_t> shape;
  std::vector<int64_t> strides = {};  // In elements; empty: contiguous, row-major.
  Slice slice = Slice::kWhole;
  std::vector<uint64_t> global_shape = {};  // Empty: as `shape`.
  std::vector<Box> boxes = {};
  uint64_t flat_offset = 0;
  uint64_t flat_count = 0;
  uint64_t padding_elements = 0;
  std::string alias_of = {};
  uint32_t group = 0;
};

// Where to read a tensor to.
struct Memory {
  Dtype dtype = Dtype::kFp32;
  void* data = nullptr;
  std::vector<uint64_t> shape;
  std::vector<int64_t> strides = {};  // In elements; empty: contiguous, row-major.
};

// A one-dimensional, contiguous Memory.
template <typename T>
Memory MemoryOf(std::span<T> elements) {
  return {.dtype = DtypeOf<T>(), .data = elements.data(), .shape = {elements.size()}};
}

struct ReadOptions {
  uint32_t thread_count = 1;
  uint32_t timeout_ms = 60'000;
};

// What the manifest says of a stored tensor.
struct TensorInfo {
  std::string shard_id;
  Tensor tensor;  // Its data is null.
  uint64_t offset_bytes = 0;
  uint64_t size_bytes = 0;
};

struct SnapshotId {
  uint64_t generation = 0;
  uint64_t step = 0;
};

using RegisterOptions = backstay_register_options;
using Decision = backstay_decision;
using DecideOptions = backstay_decide_options;
using Event = backstay_event;
using SaveStats = backstay_save_stats;
using ShardInfo = backstay_shard_info;

}  // namespace api_v1
}  // namespace backstay

#include "backstay_handles.hpp"
