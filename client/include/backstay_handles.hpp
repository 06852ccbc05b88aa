// The owning handles of backstay.hpp: Client, Save, Shard and Index. Include backstay.hpp.
#pragma once

#include "backstay.hpp"

namespace backstay {
inline namespace api_v1 {
namespace internal {

// The C form of a Tensor. Borrows the Tensor's vectors: it must not outlive it.
class TensorView {
 public:
  explicit TensorView(const Tensor& tensor) {
    boxes_.reserve(tensor.boxes.size());
    bool boxes_fit = true;
    for (const Box& box : tensor.boxes) {
      boxes_.push_back({box.offset.data(), box.extent.data()});
      boxes_fit &=
          box.offset.size() == tensor.global_shape.size() && box.extent.size() == box.offset.size();
    }
    c_ = Sized<backstay_tensor>();
    c_.name = tensor.name.c_str();
    c_.dtype = static_cast<uint32_t>(tensor.dtype);
    c_.dimension_count = static_cast<uint32_t>(tensor.shape.size());
    c_.data = tensor.data;
    c_.shape = tensor.shape.data();
    c_.strides = tensor.strides.empty() ? nullptr : tensor.strides.data();
    c_.slice = static_cast<uint32_t>(tensor.slice);
    c_.global_dimension_count = static_cast<uint32_t>(tensor.global_shape.size());
    c_.global_shape = tensor.global_shape.empty() ? nullptr : tensor.global_shape.data();
    c_.boxes = boxes_.data();
    c_.box_count = boxes_.size();
    c_.flat_offset = tensor.flat_offset;
    c_.flat_count = tensor.flat_count;
    c_.padding_elements = tensor.padding_elements;
    c_.alias_of = tensor.alias_of.empty() ? nullptr : tensor.alias_of.c_str();
    c_.group = tensor.group;
    if (!boxes_fit)
      error_ = "its boxes do not have one offset and extent per dimension of global_shape";
    if (!tensor.strides.empty() && tensor.strides.size() != tensor.shape.size())
      error_ = "it does not have one stride per dimension of its shape";
  }

  // What C cannot see: vectors whose lengths do not go together.
  Status Check() const {
    if (error_ == nullptr) return {};
    return {Code::kInvalidArgument, std::string("tensor ") + c_.name + ": " + error_};
  }
  const backstay_tensor& c() const { return c_; }

 private:
  backstay_tensor c_;
  std::vector<backstay_box> boxes_;
  const char* error_ = nullptr;
};

inline TensorInfo ToTensorInfo(const backstay_tensor_info& info) {
  const backstay_tensor& t = *info.tensor;
  TensorInfo out;
  out.shard_id = info.shard_id;
  out.offset_bytes = info.offset_bytes;
  out.size_bytes = info.size_bytes;
  out.tensor.name = t.name;
  out.tensor.dtype = static_cast<Dtype>(t.dtype);
  out.tensor.shape.assign(t.shape, t.shape + t.dimension_count);
  out.tensor.slice = static_cast<Slice>(t.slice);
  out.tensor.global_shape.assign(t.global_shape, t.global_shape + t.global_dimension_count);
  for (size_t i = 0; i < t.box_count; ++i) {
    const backstay_box& box = t.boxes[i];
    out.tensor.boxes.push_back({{box.offset, box.offset + t.global_dimension_count},
                                {box.extent, box.extent + t.global_dimension_count}});
  }
  out.tensor.flat_offset = t.flat_offset;
  out.tensor.flat_count = t.flat_count;
  out.tensor.padding_elements = t.padding_elements;
  if (t.alias_of != nullptr) out.tensor.alias_of = t.alias_of;
  out.tensor.group = t.group;
  return out;
}

}  // namespace internal

// One save of one step. Order: Add*(), StartCopy(), WaitCopied() before a tensor changes. The
// library seals by itself.
class Save {
 public:
  Status AddTensor(const Tensor& tensor) {
    const internal::TensorView view(tensor);
    if (Status status = view.Check(); !status.ok()) return status;
    return internal::Call(backstay_save_add_tensor, handle_.get(), &view.c());
  }
  Status AddBlob(const std::string& name, std::span<const std::byte> bytes) {
    return internal::Call(backstay_save_add_blob, handle_.get(), name.c_str(), bytes.data(),
                          bytes.size());
  }
  // For plain structs of plain numbers: stored byte for byte.
  template <typename T>
  requires(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>) Status
      AddBlobOf(const std::string& name, const T& value) {
    return AddBlob(name, std::as_bytes(std::span(&value, 1)));
  }
  Status AddTag(const std::string& name, const std::string& value) {
    return internal::Call(backstay_save_add_tag, handle_.get(), name.c_str(), value.c_str());
  }

  Status StartCopy(uint32_t thread_count) {
    return internal::Call(backstay_save_start_copy, handle_.get(), thread_count);
  }
  Status WaitCopied(uint32_t timeout_ms = 60'000) {
    return WaitCopied(BACKSTAY_ALL_GROUPS, timeout_ms);
  }
  Status WaitCopied(uint32_t group, uint32_t timeout_ms) {
    return Wait(BACKSTAY_COPIED, group, timeout_ms);
  }
  Status WaitSealed(uint32_t timeout_ms) {
    return Wait(BACKSTAY_SEALED, BACKSTAY_ALL_GROUPS, timeout_ms);
  }
  Status WaitProtected(uint32_t timeout_ms) {
    return Wait(BACKSTAY_PROTECTED, BACKSTAY_ALL_GROUPS, timeout_ms);
  }
  Status WaitCommitted(uint32_t timeout_ms) {
    return Wait(BACKSTAY_COMMITTED, BACKSTAY_ALL_GROUPS, timeout_ms);
  }
  Status StepIsSound() { return internal::Call(backstay_save_step_is_sound, handle_.get()); }
  Status Abandon() { return internal::Call(backstay_save_abandon, handle_.get()); }

  Result<SaveStats> Stats() const {
    auto stats = internal::Sized<SaveStats>();
    Status status = internal::Call(backstay_save_get_stats, handle_.get(), &stats);
    if (!status.ok()) return status;
    return stats;
  }

 private:
  friend class Client;
  struct Destroy {
    void operator()(backstay_save* save) const { backstay_save_destroy(save); }
  };
  explicit Save(backstay_save* save) : handle_(save) {}
  Status Wait(uint32_t stage, uint32_t group, uint32_t timeout_ms) {
    return internal::Call(backstay_save_wait, handle_.get(), stage, group, timeout_ms);
  }

  std::unique_ptr<backstay_save, Destroy> handle_;
};

// A shard open for reading. Every read verifies: ok means exactly the sealed bytes.
class Shard {
 public:
  // The whole tensor, into memory of the same dtype and shape.
  Status Read(const std::string& name, const Memory& memory, const ReadOptions& options = {}) {
    return Read(name, memory, false, 0, 0, options);
  }
  // `element_count` elements from `first_element` (row-major), into memory with that many.
  Status ReadRange(const std::string& name, uint64_t first_element, uint64_t element_count,
                   const Memory& memory, const ReadOptions& options = {}) {
    return Read(name, memory, true, first_element, element_count, options);
  }
  Status ReadBytes(const std::string& name, uint64_t offset_bytes, std::span<std::byte> target,
                   uint32_t timeout_ms = 60'000) {
    return internal::Call(backstay_shard_read_bytes, handle_.get(), name.c_str(), offset_bytes,
                          static_cast<void*>(target.data()), target.size(), timeout_ms);
  }
  Status WaitTensor(const std::string& name, uint32_t timeout_ms) {
    return internal::Call(backstay_shard_wait_tensor, handle_.get(), name.c_str(), timeout_ms);
  }
  Result<std::vector<std::byte>> ReadBlob(const std::string& name, uint32_t timeout_ms = 60'000) {
    size_t size = 0;
    Status status = internal::Call(backstay_shard_read_blob, handle_.get(), name.c_str(),
                                   static_cast<void*>(nullptr), size_t{0}, &size, timeout_ms);
    if (!status.ok()) return status;
    std::vector<std::byte> bytes(size);
    if (size == 0) return bytes;
    status = internal::Call(backstay_shard_read_blob, handle_.get(), name.c_str(),
                            static_cast<void*>(bytes.data()), bytes.size(), &size, timeout_ms);
    if (!status.ok()) return status;
    return bytes;
  }
  // A blob that AddBlobOf() stored: kInvalidArgument when its size differs.
  template <typename T>
  requires(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>) Status
      ReadBlobInto(const std::string& name, T& value, uint32_t timeout_ms = 60'000) {
    Result<std::vector<std::byte>> bytes = ReadBlob(name, timeout_ms);
    if (!bytes.ok()) return bytes.status();
    if (bytes->size() != sizeof(T)) {
      return {Code::kInvalidArgument, "blob " + name + " has " + std::to_string(bytes->size()) +
                                          " bytes, read into a type of " +
                                          std::to_string(sizeof(T))};
    }
    std::memcpy(&value, bytes->data(), sizeof(T));
    return {};
  }
  Result<std::string> Tag(const std::string& name) const {
    const char* value = nullptr;
    Status status = internal::Call(backstay_shard_get_tag, handle_.get(), name.c_str(), &value);
    if (!status.ok()) return status;
    return std::string(value);
  }

  Result<ShardInfo> Info() const {
    auto info = internal::Sized<ShardInfo>();
    Status status = internal::Call(backstay_shard_get_info, handle_.get(), &info);
    if (!status.ok()) return status;
    return info;
  }
  std::vector<TensorInfo> Tensors() const {
    std::vector<TensorInfo> tensors;
    const size_t count = backstay_shard_tensor_count(handle_.get());
    for (size_t i = 0; i < count; ++i) {
      auto info = internal::Sized<backstay_tensor_info>();
      if (backstay_shard_get_tensor(handle_.get(), i, &info, nullptr) != BACKSTAY_OK) break;
      tensors.push_back(internal::ToTensorInfo(info));
    }
    return tensors;
  }
  std::vector<std::string> BlobNames() const {
    std::vector<std::string> names(backstay_shard_blob_count(handle_.get()));
    for (size_t i = 0; i < names.size(); ++i) names[i] = backstay_shard_blob_name(handle_.get(), i);
    return names;
  }

 private:
  friend class Client;
  struct Destroy {
    void operator()(backstay_shard* shard) const { backstay_shard_destroy(shard); }
  };
  explicit Shard(backstay_shard* shard) : handle_(shard) {}
  Status Read(const std::string& name, const Memory& memory, bool is_range, uint64_t first,
              uint64_t count, const ReadOptions& options) {
    if (!memory.strides.empty() && memory.strides.size() != memory.shape.size()) {
      return {Code::kInvalidArgument,
              "reading tensor " + name + ": the memory does not have one stride per dimension"};
    }
    auto read = internal::Sized<backstay_read_options>();
    read.name = name.c_str();
    read.dtype = static_cast<uint32_t>(memory.dtype);
    read.dimension_count = static_cast<uint32_t>(memory.shape.size());
    read.data = memory.data;
    read.shape = memory.shape.data();
    read.strides = memory.strides.empty() ? nullptr : memory.strides.data();
    read.is_range = is_range;
    read.first_element = first;
    read.element_count = count;
    read.thread_count = options.thread_count;
    read.timeout_ms = options.timeout_ms;
    return internal::Call(backstay_shard_read, handle_.get(), &read);
  }

  std::unique_ptr<backstay_shard, Destroy> handle_;
};

// All tensors of a snapshot, of all ranks, by name.
class Index {
 public:
  SnapshotId snapshot() const {
    SnapshotId id;
    backstay_index_get_snapshot(handle_.get(), &id.generation, &id.step);
    return id;
  }
  size_t size() const { return backstay_index_count(handle_.get()); }
  Result<TensorInfo> Get(size_t position) const {
    auto info = internal::Sized<backstay_tensor_info>();
    Status status = internal::Call(backstay_index_get, handle_.get(), position, &info);
    if (!status.ok()) return status;
    return internal::ToTensorInfo(info);
  }
  // The parts of one tensor, one per shard that has it, in rank order.
  Result<std::vector<TensorInfo>> Find(const std::string& name) const {
    size_t first = 0;
    size_t count = 0;
    Status status =
        internal::Call(backstay_index_find, handle_.get(), name.c_str(), &first, &count);
    if (!status.ok()) return status;
    std::vector<TensorInfo> found;
    for (size_t i = first; i < first + count; ++i) {
      Result<TensorInfo> info = Get(i);
      if (!info.ok()) return info.status();
      found.push_back(std::move(*info));
    }
    return found;
  }

 private:
  friend class Client;
  struct Destroy {
    void operator()(backstay_index* index) const { backstay_index_destroy(index); }
  };
  explicit Index(backstay_index* index) : handle_(index) {}
  std::unique_ptr<backstay_index, Destroy> handle_;
};

}  // namespace api_v1
}  // namespace backstay

#include "backstay_client.hpp"
