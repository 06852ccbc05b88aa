#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/contents.h"
#include "client/include/backstay.h"
#include "client/limits.h"
#include "client/save.h"
#include "client/shard_reader.h"

// What the C functions share: handles, sized structs, errors.

struct backstay_client {
  std::shared_ptr<backstay::client::Client> impl;
  pid_t owner = ::getpid();
};

struct backstay_save {
  std::shared_ptr<backstay::client::Save> impl;
  pid_t owner = ::getpid();
};

namespace backstay::client {

// A TensorSpec in its C form. Borrows the spec.
struct TensorView {
  explicit TensorView(const TensorSpec& spec);
  TensorView(TensorView&&) = default;
  TensorView& operator=(TensorView&&) = default;

  std::unique_ptr<backstay_tensor> tensor;  // Stable, as callers hold its address.
  std::vector<backstay_box> boxes;
};

// A tensor from a caller, checked for what would read past its arrays; the rest is checked when it
// is added.
Result<TensorSpec> ReadTensorSpec(const backstay_tensor& tensor);

// The struct's fields as far as the caller has them, the rest 0. kInvalidArgument: null, or no
// struct_size.
template <typename Struct>
Result<Struct> ReadSized(const Struct* in, const char* what) {
  if (in == nullptr) return InvalidArgument(std::string(what) + " is null");
  if (in->struct_size < sizeof(in->struct_size))
    return InvalidArgument(std::string(what) + ": its struct_size is not set");
  Struct out = {};
  std::memcpy(&out, in, std::min(in->struct_size, sizeof out));
  return out;
}

// Writes as much as the caller has room for.
template <typename Struct>
Status WriteSized(Struct value, Struct* out, const char* what) {
  if (out == nullptr) return InvalidArgument(std::string(what) + " is null");
  if (out->struct_size < sizeof(out->struct_size))
    return InvalidArgument(std::string(what) + ": its struct_size is not set");
  value.struct_size = out->struct_size;
  std::memcpy(static_cast<void*>(out), &value, std::min(out->struct_size, sizeof value));
  return Status::Ok();
}

template <size_t kSize>
void CopyText(const std::string& text, char (&out)[kSize]) {
  const size_t size = std::min(text.size(), kSize - 1);
  std::memcpy(out, text.data(), size);
  out[size] = '\0';
}

inline std::string TextOr(const char* text, const std::string& otherwise) {
  return text == nullptr ? otherwise : std::string(text);
}

Result<TimePoint> DeadlineFor(uint32_t timeout_ms);
int Report(const Status& status, backstay_error* error);

// Runs `body` (returning a Status) and turns everything that can go wrong into a code. `handle` may
// be any with an owner; null for none.
template <typename Handle, typename Body>
int Guarded(const Handle* handle, backstay_error* error, const Body& body) {
  if (handle == nullptr) return Report(InvalidArgument("the handle is null"), error);
  if (IsForeignProcess(handle->owner)) {
    return Report(PermissionDenied("this process was forked off the one that made the handle: a "
                                   "child holds nothing of Backstay; connect anew in it"),
                  error);
  }
  try {
    return Report(body(), error);
  } catch (const std::bad_alloc&) {
    return Report(NoSpace("out of memory"), error);
  } catch (const std::exception& exception) {
    return Report(Unavailable(exception.what()), error);
  }
}

// For functions without a handle.
struct NoHandle {
  pid_t owner = ::getpid();
};

}  // namespace backstay::client
