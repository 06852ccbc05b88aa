// The C functions of backstay.h for connecting, registering and saving.
#include "client/c_api.h"

#include <cstdlib>

#include "base/version.h"

using namespace backstay;          // NOLINT(google-build-using-namespace): C functions are global.
using namespace backstay::client;  // NOLINT(google-build-using-namespace)

namespace backstay::client {

static_assert(BACKSTAY_NAME_BYTES == kNameBytesMax + 1);
static_assert(BACKSTAY_DIMENSIONS_MAX == kDimensionsMax);

TensorView::TensorView(const TensorSpec& spec) : tensor(std::make_unique<backstay_tensor>()) {
  for (const Box& box : spec.boxes) boxes.push_back({box.offset.data(), box.extent.data()});
  *tensor = {};
  tensor->struct_size = sizeof *tensor;
  tensor->name = spec.name.c_str();
  tensor->dtype = static_cast<uint32_t>(spec.dtype);
  tensor->dimension_count = static_cast<uint32_t>(spec.shape.size());
  tensor->shape = spec.shape.data();
  tensor->slice = static_cast<uint32_t>(spec.slice);
  tensor->global_dimension_count = static_cast<uint32_t>(spec.global_shape.size());
  tensor->global_shape = spec.global_shape.data();
  tensor->boxes = boxes.data();
  tensor->box_count = boxes.size();
  tensor->flat_offset = spec.flat_offset;
  tensor->flat_count = spec.flat_count;
  tensor->padding_elements = spec.padding_elements;
  tensor->alias_of = spec.alias_of.empty() ? nullptr : spec.alias_of.c_str();
  tensor->group = spec.group;
}

Result<TensorSpec> ReadTensorSpec(const backstay_tensor& in) {
  if (in.name == nullptr) return InvalidArgument("a tensor's name is null");
  TensorSpec spec;
  spec.name = in.name;
  const std::string what = "tensor " + spec.name;
  if (in.dimension_count > kDimensionsMax || in.global_dimension_count > kDimensionsMax)
    return InvalidArgument(what + " has more than " + std::to_string(kDimensionsMax) +
                           " dimensions");
  if (in.dimension_count > 0 && in.shape == nullptr)
    return InvalidArgument(what + ": its shape is null");
  if (in.box_count > kBoxesMax || (in.box_count > 0 && in.boxes == nullptr))
    return InvalidArgument(what + " has more than " + std::to_string(kBoxesMax) +
                           " boxes, or they are null");
  spec.dtype = static_cast<Dtype>(in.dtype);
  spec.slice = static_cast<SliceKind>(in.slice);
  spec.shape.assign(in.shape, in.shape + in.dimension_count);
  if (in.global_shape != nullptr) {
    spec.global_shape.assign(in.global_shape, in.global_shape + in.global_dimension_count);
  } else {
    spec.global_shape = spec.shape;
  }
  for (size_t i = 0; i < in.box_count; ++i) {
    const backstay_box& box = in.boxes[i];
    if (in.global_dimension_count > 0 && (box.offset == nullptr || box.extent == nullptr))
      return InvalidArgument(what + ": a box has a null offset or extent");
    spec.boxes.push_back({{box.offset, box.offset + in.global_dimension_count},
                          {box.extent, box.extent + in.global_dimension_count}});
  }
  spec.flat_offset = in.flat_offset;
  spec.flat_count = in.flat_count;
  spec.padding_elements = in.padding_elements;
  if (in.alias_of != nullptr) spec.alias_of = in.alias_of;
  spec.group = in.group;
  return spec;
}

Result<TimePoint> DeadlineFor(uint32_t timeout_ms) {
  if (timeout_ms > BACKSTAY_TIMEOUT_MS_MAX)
    return InvalidArgument("a timeout of " + std::to_string(timeout_ms) +
                           " ms is longer than a day");
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
}

int Report(const Status& status, backstay_error* error) {
  const int code = static_cast<int>(status.code());
  if (error == nullptr || error->struct_size < sizeof(error->struct_size)) return code;
  const size_t room = error->struct_size;
  if (room < offsetof(backstay_error, message)) return code;
  error->code = code;
  const size_t text_room =
      std::min(room - offsetof(backstay_error, message), sizeof(backstay_error::message));
  if (text_room == 0) return code;
  const size_t size = std::min(status.message().size(), text_room - 1);
  std::memcpy(error->message, status.message().data(), size);
  error->message[size] = '\0';
  return code;
}

}  // namespace backstay::client

namespace {

Status CheckTimeout(uint32_t timeout_ms) { return DeadlineFor(timeout_ms).status(); }

// The element of an array of structs whose size the caller decides.
const backstay_tensor* ElementAt(const backstay_tensor* first, size_t index) {
  return reinterpret_cast<const backstay_tensor*>(reinterpret_cast<const char*>(first) +
                                                  index * first->struct_size);
}

Result<RegisterRequest> ToRequest(const backstay_register_options& options) {
  RegisterRequest request;
  request.shard_is_rank = options.shard_id == nullptr;
  if (options.job == nullptr || options.job[0] == '\0')
    return InvalidArgument("registering: the job has no name");
  request.message.job = options.job;
  request.message.token = TextOr(options.token, "");
  request.message.shard_id = TextOr(options.shard_id, std::to_string(options.rank));
  const std::string what =
      "registering shard " + request.message.shard_id + " of job " + request.message.job + ": ";
  if (request.message.job.size() > kNameBytesMax || request.message.token.size() > kNameBytesMax ||
      request.message.shard_id.size() > kNameBytesMax || request.message.shard_id.empty())
    return InvalidArgument(what + "job, token and shard id have 1 to " +
                           std::to_string(kNameBytesMax) + " bytes");
  if (options.world_size == 0 || options.world_size > kWorldSizeMax ||
      options.rank >= options.world_size)
    return InvalidArgument(what + "rank " + std::to_string(options.rank) +
                           " is not one of a world of " + std::to_string(options.world_size));
  if (options.replicas > kReplicasMax)
    return InvalidArgument(what + "0 to " + std::to_string(kReplicasMax) + " replicas, not " +
                           std::to_string(options.replicas));
  if (options.versions == 0) return InvalidArgument(what + "at least 1 version must be kept");
  if (options.size_bytes == 0 || options.size_bytes > kShardBytesMax)
    return InvalidArgument(what + "a size of " + std::to_string(options.size_bytes) +
                           " bytes; backstay_plan() computes it");
  request.message.rank = options.rank;
  request.message.world_size = options.world_size;
  request.message.replicas = options.replicas;
  request.message.versions = options.versions;
  request.message.size_bytes = options.size_bytes;
  request.message.numa_node = options.numa_node;
  request.message.wait_for_slot = options.wait_for_slot != 0;
  return request;
}

}  // namespace

extern "C" {

uint32_t backstay_abi_version(void) { return BACKSTAY_ABI_VERSION; }
const char* backstay_version(void) { return backstay::kVersion; }
const char* backstay_code_name(int code) {
  if (code < 0 || code > BACKSTAY_PERMISSION) return "unknown code";
  return StatusCodeName(static_cast<StatusCode>(code)).data();  // A literal.
}
const char* backstay_dtype_name(uint32_t dtype) { return DtypeName(static_cast<Dtype>(dtype)); }

int backstay_connect(const backstay_connect_options* options, backstay_client** client,
                     backstay_error* error) {
  const NoHandle none;
  return Guarded(&none, error, [&]() -> Status {
    BACKSTAY_ASSIGN_OR_RETURN(const auto sized, ReadSized(options, "the connect options"));
    if (client == nullptr) return InvalidArgument("connecting: `client` is null");
    BACKSTAY_ASSIGN_OR_RETURN(const TimePoint deadline, DeadlineFor(sized.timeout_ms));
    const char* path = sized.socket_path;
    if (path == nullptr) path = std::getenv("BACKSTAY_SOCKET");
    if (path == nullptr)
      return InvalidArgument("connecting: no socket path, and BACKSTAY_SOCKET is not set");
    auto impl = std::make_shared<Client>(path);
    BACKSTAY_RETURN_IF_ERROR(impl->Connect(deadline));
    *client = new backstay_client{.impl = std::move(impl)};
    return Status::Ok();
  });
}

void backstay_close(backstay_client* client) {
  // In a child the threads do not exist and the locks may be held: the object is left alone.
  if (client == nullptr || IsForeignProcess(client->owner)) return;
  client->impl->Close();
  delete client;
}

int backstay_register(backstay_client* client, const backstay_register_options* options,
                      backstay_registration* registration, backstay_error* error) {
  return Guarded(client, error, [&]() -> Status {
    BACKSTAY_ASSIGN_OR_RETURN(const auto sized, ReadSized(options, "the register options"));
    BACKSTAY_ASSIGN_OR_RETURN(const TimePoint deadline, DeadlineFor(sized.timeout_ms));
    BACKSTAY_ASSIGN_OR_RETURN(RegisterRequest request, ToRequest(sized));
    BACKSTAY_ASSIGN_OR_RETURN(const auto reply,
                              client->impl->Register(std::move(request), deadline));
    if (registration == nullptr) return Status::Ok();
    backstay_registration out = {};
    out.chunk_bytes = client->impl->GetInfo().chunk_bytes;
    out.reserved_bytes_local = reply.reserved_bytes_local;
    out.reserved_bytes_peers = reply.reserved_bytes_peers;
    for (const std::string& node : reply.replica_nodes)
      CopyText(node, out.replica_nodes[out.replica_node_count++]);
    return WriteSized(out, registration, "the registration");
  });
}

int backstay_resize(backstay_client* client, uint64_t size_bytes, uint32_t timeout_ms,
                    backstay_error* error) {
  return Guarded(client, error, [&]() -> Status {
    BACKSTAY_ASSIGN_OR_RETURN(const TimePoint deadline, DeadlineFor(timeout_ms));
    if (size_bytes == 0 || size_bytes > kShardBytesMax)
      return InvalidArgument("resizing to " + std::to_string(size_bytes) + " bytes");
    return client->impl->Resize(size_bytes, deadline);
  });
}

int backstay_finish(backstay_client* client, int drop_state, uint32_t timeout_ms,
                    backstay_error* error) {
  return Guarded(client, error, [&]() -> Status {
    BACKSTAY_ASSIGN_OR_RETURN(const TimePoint deadline, DeadlineFor(timeout_ms));
    return client->impl->Finish(drop_state != 0, deadline);
  });
}

int backstay_get_client_info(backstay_client* client, backstay_client_info* info,
                             backstay_error* error) {
  return Guarded(client, error, [&]() -> Status {
    const Client::Info known = client->impl->GetInfo();
    backstay_client_info out = {};
    out.connected = known.connected;
    CopyText(known.node_id, out.node_id);
    out.node_incarnation = known.incarnation;
    out.generation = known.generation;
    out.chunk_bytes = known.chunk_bytes;
    return WriteSized(out, info, "the client info");
  });
}

int backstay_plan(const backstay_tensor* tensors, size_t tensor_count, const uint64_t* blob_sizes,
                  size_t blob_count, uint64_t* size_bytes, backstay_error* error) {
  const NoHandle none;
  return Guarded(&none, error, [&]() -> Status {
    if (size_bytes == nullptr || (tensor_count > 0 && tensors == nullptr) ||
        (blob_count > 0 && blob_sizes == nullptr))
      return InvalidArgument("planning: a pointer is null");
    Contents contents;
    for (size_t i = 0; i < tensor_count; ++i) {
      BACKSTAY_ASSIGN_OR_RETURN(const auto sized, ReadSized(ElementAt(tensors, i), "a tensor"));
      BACKSTAY_ASSIGN_OR_RETURN(TensorSpec spec, ReadTensorSpec(sized));
      BACKSTAY_RETURN_IF_ERROR(contents.AddTensor(std::move(spec)).status());
    }
    for (size_t i = 0; i < blob_count; ++i)
      BACKSTAY_RETURN_IF_ERROR(contents.AddBlob(std::to_string(i), blob_sizes[i]).status());
    *size_bytes = contents.SizeBytes();
    return Status::Ok();
  });
}

int backstay_begin(backstay_client* client, const backstay_begin_options* options,
                   backstay_save** save, backstay_error* error) {
  return Guarded(client, error, [&]() -> Status {
    BACKSTAY_ASSIGN_OR_RETURN(const auto sized, ReadSized(options, "the begin options"));
    BACKSTAY_RETURN_IF_ERROR(CheckTimeout(sized.timeout_ms));
    if (save == nullptr) return InvalidArgument("beginning a save: `save` is null");
    BACKSTAY_ASSIGN_OR_RETURN(
        auto impl, client->impl->Begin(sized.step, sized.timeout_ms, sized.sound_later != 0));
    *save = new backstay_save{.impl = std::move(impl)};
    return Status::Ok();
  });
}

int backstay_save_add_tensor(backstay_save* save, const backstay_tensor* tensor,
                             backstay_error* error) {
  return Guarded(save, error, [&]() -> Status {
    BACKSTAY_ASSIGN_OR_RETURN(const auto sized, ReadSized(tensor, "the tensor"));
    BACKSTAY_ASSIGN_OR_RETURN(TensorSpec spec, ReadTensorSpec(sized));
    std::span<const int64_t> strides;
    if (sized.strides != nullptr) strides = {sized.strides, sized.dimension_count};
    return save->impl->AddTensor(std::move(spec), sized.data, strides);
  });
}

int backstay_save_add_blob(backstay_save* save, const char* name, const void* data,
                           size_t size_bytes, backstay_error* error) {
  return Guarded(save, error, [&]() -> Status {
    if (name == nullptr || (data == nullptr && size_bytes > 0))
      return InvalidArgument("adding a blob: its name or data is null");
    return save->impl->AddBlob(name, std::string_view(static_cast<const char*>(data), size_bytes));
  });
}

int backstay_save_add_tag(backstay_save* save, const char* name, const char* value,
                          backstay_error* error) {
  return Guarded(save, error, [&]() -> Status {
    if (name == nullptr || value == nullptr)
      return InvalidArgument("adding a tag: its name or value is null");
    return save->impl->AddTag(name, value);
  });
}

int backstay_save_start_copy(backstay_save* save, uint32_t thread_count, backstay_error* error) {
  return Guarded(save, error, [&] { return save->impl->StartCopy(thread_count); });
}

int backstay_save_wait(backstay_save* save, uint32_t stage, uint32_t group, uint32_t timeout_ms,
                       backstay_error* error) {
  return Guarded(save, error, [&]() -> Status {
    BACKSTAY_ASSIGN_OR_RETURN(const TimePoint deadline, DeadlineFor(timeout_ms));
    switch (stage) {
      case BACKSTAY_COPIED:
        return save->impl->WaitCopied(group, deadline);
      case BACKSTAY_SEALED:
        return save->impl->Wait(Save::Stage::kSealed, deadline);
      case BACKSTAY_PROTECTED:
        return save->impl->Wait(Save::Stage::kProtected, deadline);
      case BACKSTAY_COMMITTED:
        return save->impl->Wait(Save::Stage::kCommitted, deadline);
      default:
        return InvalidArgument("stage " + std::to_string(stage) + " is none of backstay_stage");
    }
  });
}

int backstay_save_step_is_sound(backstay_save* save, backstay_error* error) {
  return Guarded(save, error, [&] { return save->impl->StepIsSound(); });
}

int backstay_save_abandon(backstay_save* save, backstay_error* error) {
  return Guarded(save, error, [&] { return save->impl->Abandon(); });
}

int backstay_save_get_stats(backstay_save* save, backstay_save_stats* stats,
                            backstay_error* error) {
  return Guarded(save, error, [&]() -> Status {
    const Save::Stats known = save->impl->GetStats();
    backstay_save_stats out = {};
    out.generation = known.snapshot.generation;
    out.step = known.snapshot.step;
    out.used_bytes = known.used_bytes;
    out.copy_ns = known.copy_ns;
    out.begin_ns = known.begin_ns;
    out.waited_ns = known.waited_ns;
    std::memcpy(out.digest, known.digest.ToBytes().data(), sizeof out.digest);
    return WriteSized(out, stats, "the save's statistics");
  });
}

void backstay_save_destroy(backstay_save* save) {
  if (save == nullptr || IsForeignProcess(save->owner)) return;
  save->impl->Release();
  delete save;
}

}  // extern "C"
