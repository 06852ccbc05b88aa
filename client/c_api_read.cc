// The C functions of backstay.h for recovering and reading.
#include "client/c_api.h"

using namespace backstay;          // NOLINT(google-build-using-namespace): C functions are global.
using namespace backstay::client;  // NOLINT(google-build-using-namespace)

struct backstay_shard {
  std::shared_ptr<ShardReader> impl;
  std::vector<TensorView> views;  // Of the manifest's tensors, in its order.
  pid_t owner = ::getpid();
};

struct backstay_index {
  struct Entry {
    const ShardManifest* shard;
    const TensorSpec* tensor;
    TensorView view;
  };
  local::SnapshotRef snapshot;
  std::vector<std::unique_ptr<ShardManifest>> shards;
  std::vector<Entry> entries;  // Sorted by name, then rank.
  pid_t owner = ::getpid();
};

namespace {

backstay_decision ToC(const local::Decision& decision) {
  backstay_decision out = {};
  out.generation = decision.generation;
  out.attempt = decision.attempt;
  out.fresh = decision.fresh;
  out.base_committed = decision.base_committed;
  out.base_generation = decision.base.generation;
  out.base_step = decision.base.step;
  std::memcpy(out.base_root, decision.base_root.ToBytes().data(), sizeof out.base_root);
  CopyText(decision.uuid, out.uuid);
  CopyText(decision.shard_id, out.shard_id);
  CopyText(decision.base_job, out.base_job);
  CopyText(decision.why, out.why);
  return out;
}

local::Decision FromC(const backstay_decision& in) {
  local::Decision decision;
  decision.uuid = in.uuid;
  decision.generation = in.generation;
  decision.attempt = in.attempt;
  decision.fresh = in.fresh != 0;
  decision.base = {.generation = in.base_generation, .step = in.base_step};
  decision.shard_id = in.shard_id;
  decision.base_job = in.base_job;
  return decision;
}

Status OpenShard(backstay_client* client, local::Fetch request, TimePoint deadline,
                 backstay_shard** out) {
  if (out == nullptr) return InvalidArgument("opening a shard: `shard` is null");
  BACKSTAY_ASSIGN_OR_RETURN(auto impl, ShardReader::Open(client->impl, request, deadline));
  auto shard = std::make_unique<backstay_shard>();
  shard->impl = std::move(impl);
  for (const TensorSpec& tensor : shard->impl->manifest().contents.tensors())
    shard->views.emplace_back(tensor);
  *out = shard.release();
  return Status::Ok();
}

Status WriteInfo(const ShardManifest& shard, const TensorSpec& tensor, const TensorView& view,
                 backstay_tensor_info* info) {
  backstay_tensor_info out = {};
  out.shard_id = shard.shard_id.c_str();
  out.tensor = view.tensor.get();
  out.offset_bytes = tensor.offset_bytes;
  out.size_bytes = tensor.size_bytes;
  return WriteSized(out, info, "the tensor info");
}

std::string Describe(Dtype dtype, std::span<const uint64_t> shape) {
  return std::string(DtypeName(dtype)) + " " + ShapeText(shape);
}

// The memory that a read of (a range of) `tensor` goes to.
Result<StridedMemory> TargetOf(const TensorSpec& tensor, const backstay_read_options& read) {
  const std::string what = "reading tensor " + tensor.name;
  if (read.dimension_count > kDimensionsMax || (read.dimension_count > 0 && read.shape == nullptr))
    return InvalidArgument(what + ": the memory's shape is null or has too many dimensions");
  const std::span<const uint64_t> shape(read.shape, read.dimension_count);
  const auto dtype = static_cast<Dtype>(read.dtype);
  if (dtype != tensor.dtype)
    return InvalidArgument(what + ": it is stored as " + Describe(tensor.dtype, tensor.shape) +
                           ", read into " + Describe(dtype, shape));
  BACKSTAY_ASSIGN_OR_RETURN(const uint64_t stored, ElementCount(tensor.shape));
  BACKSTAY_ASSIGN_OR_RETURN(const uint64_t count, ElementCount(shape));
  if (read.is_range == 0 &&
      !std::equal(shape.begin(), shape.end(), tensor.shape.begin(), tensor.shape.end()))
    return InvalidArgument(what + ": it is stored with shape " + ShapeText(tensor.shape) +
                           ", read into " + ShapeText(shape));
  if (read.is_range != 0 &&
      (read.first_element > stored || read.element_count > stored - read.first_element))
    return InvalidArgument(what + ": elements " + std::to_string(read.first_element) + " + " +
                           std::to_string(read.element_count) + " are not all among its " +
                           std::to_string(stored));
  if (read.is_range != 0 && count != read.element_count)
    return InvalidArgument(what + ": a range of " + std::to_string(read.element_count) +
                           " elements into memory of shape " + ShapeText(shape));
  std::span<const int64_t> strides;
  if (read.strides != nullptr) strides = {read.strides, read.dimension_count};
  BACKSTAY_ASSIGN_OR_RETURN(
      StridedMemory target,
      StridedMemory::Make(what, read.data, DtypeBytes(dtype), shape, strides));
  if (target.Overlaps())
    return InvalidArgument(what + ": two elements of the target share memory: its strides overlap");
  return target;
}

Status ReadContiguous(ShardReader& shard, const std::string& what, uint64_t offset_bytes,
                      void* data, uint64_t size_bytes, uint32_t timeout_ms) {
  BACKSTAY_ASSIGN_OR_RETURN(const TimePoint deadline, DeadlineFor(timeout_ms));
  const uint64_t shape[] = {size_bytes};
  BACKSTAY_ASSIGN_OR_RETURN(const auto target, StridedMemory::Make(what, data, 1, shape, {}));
  return shard.Read(offset_bytes, target, 1, deadline);
}

// A name from a caller: null is its error.
Result<std::string> NameOf(const char* name) {
  if (name == nullptr) return InvalidArgument("the name is null");
  return std::string(name);
}

}  // namespace

extern "C" {

int backstay_new_attempt(backstay_client* client, uint32_t timeout_ms,
                         char uuid[BACKSTAY_UUID_BYTES], backstay_error* error) {
  return Guarded(client, error, [&]() -> Status {
    if (uuid == nullptr) return InvalidArgument("`uuid` is null");
    BACKSTAY_ASSIGN_OR_RETURN(const TimePoint deadline, DeadlineFor(timeout_ms));
    BACKSTAY_ASSIGN_OR_RETURN(const std::string made, client->impl->NewAttempt(deadline));
    std::memcpy(uuid, made.c_str(), made.size() + 1);  // The decoder has limited its length.
    return Status::Ok();
  });
}

int backstay_decide(backstay_client* client, const backstay_decide_options* options,
                    backstay_decision* decision, backstay_error* error) {
  return Guarded(client, error, [&]() -> Status {
    BACKSTAY_ASSIGN_OR_RETURN(const auto sized, ReadSized(options, "the decide options"));
    BACKSTAY_RETURN_IF_ERROR(DeadlineFor(sized.timeout_ms).status());
    local::Reconfigure request;
    request.uuid = TextOr(sized.uuid, "");
    if (request.uuid.empty() || request.uuid.size() > kUuidBytesMax)
      return InvalidArgument(
          "deciding: the uuid is the one that backstay_new_attempt() gave to "
          "one rank, shared with all");
    if (sized.world_size == 0 || sized.world_size > kWorldSizeMax || sized.rank >= sized.world_size)
      return InvalidArgument("deciding: rank " + std::to_string(sized.rank) +
                             " is not one of a world of " + std::to_string(sized.world_size));
    if (sized.mode > BACKSTAY_RESUME_FORK)
      return InvalidArgument("deciding: mode " + std::to_string(sized.mode) +
                             " is none of backstay_resume");
    request.rank = sized.rank;
    request.world_size = sized.world_size;
    request.shard_id = TextOr(sized.shard_id, "");
    request.mode = sized.mode;
    request.exact_step = sized.exact_step;
    request.drop_state = sized.drop_state != 0;
    request.fork_job = TextOr(sized.fork_job, "");
    request.timeout_ms = sized.timeout_ms;
    request.has_old_rank = sized.has_old_rank != 0;
    request.old_rank = sized.old_rank;
    BACKSTAY_ASSIGN_OR_RETURN(const auto made, client->impl->Decide(std::move(request)));
    return WriteSized(ToC(made), decision, "the decision");
  });
}

int backstay_fetch(backstay_client* client, const backstay_decision* decision, uint32_t timeout_ms,
                   backstay_shard** shard, backstay_error* error) {
  return Guarded(client, error, [&]() -> Status {
    BACKSTAY_ASSIGN_OR_RETURN(const auto sized, ReadSized(decision, "the decision"));
    BACKSTAY_ASSIGN_OR_RETURN(const TimePoint deadline, DeadlineFor(timeout_ms));
    if (sized.fresh != 0)
      return InvalidArgument("the decision is to start fresh: there is nothing to fetch");
    const local::Decision made = FromC(sized);
    return OpenShard(client,
                     {.shard_id = made.shard_id,
                      .snapshot = made.base,
                      .job = made.base_job,
                      .whole = true,
                      .for_restore = true},
                     deadline, shard);
  });
}

int backstay_finish_restore(backstay_client* client, const backstay_decision* decision, int ok,
                            const char* why, uint64_t restored_bytes, uint32_t timeout_ms,
                            int* resumed, backstay_decision* next, backstay_error* error) {
  return Guarded(client, error, [&]() -> Status {
    BACKSTAY_ASSIGN_OR_RETURN(const auto sized, ReadSized(decision, "the decision"));
    BACKSTAY_RETURN_IF_ERROR(DeadlineFor(timeout_ms).status());
    BACKSTAY_RETURN_IF_ERROR(ReadSized(next, "`next`").status());
    if (resumed == nullptr) return InvalidArgument("`resumed` is null");
    BACKSTAY_ASSIGN_OR_RETURN(
        const auto later, client->impl->FinishRestore(
                              FromC(sized), {.uuid = {},
                                             .attempt = 0,
                                             .ok = ok != 0,
                                             .error = TextOr(why, "").substr(0, kMessageBytesMax),
                                             .bytes = restored_bytes,
                                             .timeout_ms = timeout_ms}));
    *resumed = later.has_value() ? 0 : 1;
    return later ? WriteSized(ToC(*later), next, "`next`") : Status::Ok();
  });
}

int backstay_fence(backstay_client* client, const char* reason, backstay_error* error) {
  return Guarded(client, error, [&] { return client->impl->Fence(TextOr(reason, "")); });
}

int backstay_open_shard(backstay_client* client, const backstay_open_options* options,
                        backstay_shard** shard, backstay_error* error) {
  return Guarded(client, error, [&]() -> Status {
    BACKSTAY_ASSIGN_OR_RETURN(const auto sized, ReadSized(options, "the open options"));
    BACKSTAY_ASSIGN_OR_RETURN(const TimePoint deadline, DeadlineFor(sized.timeout_ms));
    local::SnapshotRef snapshot{.generation = sized.generation, .step = sized.step};
    if (snapshot == local::SnapshotRef() && sized.job == nullptr) {
      BACKSTAY_ASSIGN_OR_RETURN(snapshot, client->impl->NewestCommitted(deadline));
    }
    return OpenShard(client,
                     {.shard_id = TextOr(sized.shard_id, client->impl->GetInfo().shard_id),
                      .snapshot = snapshot,
                      .job = TextOr(sized.job, ""),
                      .whole = false,
                      .for_restore = false},
                     deadline, shard);
  });
}

void backstay_shard_destroy(backstay_shard* shard) {
  if (shard == nullptr || IsForeignProcess(shard->owner)) return;
  delete shard;
}

int backstay_shard_get_info(backstay_shard* shard, backstay_shard_info* info,
                            backstay_error* error) {
  return Guarded(shard, error, [&]() -> Status {
    const ShardManifest& manifest = shard->impl->manifest();
    backstay_shard_info out = {};
    out.generation = manifest.snapshot.generation;
    out.step = manifest.snapshot.step;
    out.used_bytes = manifest.size_bytes;
    out.chunk_bytes = manifest.chunk_bytes;
    out.chunk_count = static_cast<uint32_t>(manifest.chunk_checksums.size());
    out.ready_chunk_count = static_cast<uint32_t>(shard->impl->ReadyChunkCount());
    out.local = shard->impl->local();
    out.rank = manifest.rank;
    out.world_size = manifest.world_size;
    CopyText(manifest.shard_id, out.shard_id);
    std::memcpy(out.digest, shard->impl->digest().ToBytes().data(), sizeof out.digest);
    return WriteSized(out, info, "the shard info");
  });
}

size_t backstay_shard_tensor_count(const backstay_shard* shard) {
  return shard == nullptr ? 0 : shard->views.size();
}

int backstay_shard_get_tensor(const backstay_shard* shard, size_t index, backstay_tensor_info* info,
                              backstay_error* error) {
  return Guarded(shard, error, [&]() -> Status {
    const ShardManifest& manifest = shard->impl->manifest();
    if (index >= shard->views.size())
      return NotFound("there is no tensor number " + std::to_string(index) + " of " +
                      std::to_string(shard->views.size()));
    return WriteInfo(manifest, manifest.contents.tensors()[index], shard->views[index], info);
  });
}

int backstay_shard_wait_tensor(backstay_shard* shard, const char* name, uint32_t timeout_ms,
                               backstay_error* error) {
  return Guarded(shard, error, [&]() -> Status {
    BACKSTAY_ASSIGN_OR_RETURN(const TimePoint deadline, DeadlineFor(timeout_ms));
    const Contents& contents = shard->impl->manifest().contents;
    BACKSTAY_ASSIGN_OR_RETURN(const std::string text, NameOf(name));
    BACKSTAY_ASSIGN_OR_RETURN(const size_t index, contents.FindTensor(text));
    const TensorSpec& tensor = contents.tensors()[index];
    return shard->impl->WaitReady(tensor.offset_bytes, tensor.size_bytes, deadline);
  });
}

int backstay_shard_read(backstay_shard* shard, const backstay_read_options* options,
                        backstay_error* error) {
  return Guarded(shard, error, [&]() -> Status {
    BACKSTAY_ASSIGN_OR_RETURN(const auto sized, ReadSized(options, "the read options"));
    BACKSTAY_ASSIGN_OR_RETURN(const TimePoint deadline, DeadlineFor(sized.timeout_ms));
    BACKSTAY_ASSIGN_OR_RETURN(const std::string text, NameOf(sized.name));
    const Contents& contents = shard->impl->manifest().contents;
    BACKSTAY_ASSIGN_OR_RETURN(const size_t index, contents.FindTensor(text));
    const TensorSpec& tensor = contents.tensors()[index];
    if (sized.thread_count > kCopyThreadsMax)
      return InvalidArgument("reading tensor " + text + ": at most " +
                             std::to_string(kCopyThreadsMax) + " threads, not " +

                             std::to_string(sized.thread_count));
    BACKSTAY_ASSIGN_OR_RETURN(const StridedMemory target, TargetOf(tensor, sized));
    const uint64_t first = sized.is_range != 0 ? sized.first_element : 0;
    return shard->impl->Read(tensor.offset_bytes + first * DtypeBytes(tensor.dtype), target,
                             std::max<uint32_t>(sized.thread_count, 1), deadline);
  });
}

int backstay_shard_read_bytes(backstay_shard* shard, const char* name, uint64_t offset_bytes,
                              void* data, uint64_t size_bytes, uint32_t timeout_ms,
                              backstay_error* error) {
  return Guarded(shard, error, [&]() -> Status {
    BACKSTAY_ASSIGN_OR_RETURN(const std::string text, NameOf(name));
    const Contents& contents = shard->impl->manifest().contents;
    BACKSTAY_ASSIGN_OR_RETURN(const size_t index, contents.FindTensor(text));
    const TensorSpec& tensor = contents.tensors()[index];
    if (offset_bytes > tensor.size_bytes || size_bytes > tensor.size_bytes - offset_bytes)
      return InvalidArgument("reading tensor " + text + ": bytes " + std::to_string(offset_bytes) +
                             " + " + std::to_string(size_bytes) + " are not all among its " +
                             std::to_string(tensor.size_bytes));
    return ReadContiguous(*shard->impl, "reading tensor " + text,
                          tensor.offset_bytes + offset_bytes, data, size_bytes, timeout_ms);
  });
}

int backstay_shard_read_blob(backstay_shard* shard, const char* name, void* data,
                             size_t capacity_bytes, size_t* size_bytes, uint32_t timeout_ms,
                             backstay_error* error) {
  return Guarded(shard, error, [&]() -> Status {
    BACKSTAY_ASSIGN_OR_RETURN(const std::string text, NameOf(name));
    const Contents& contents = shard->impl->manifest().contents;
    BACKSTAY_ASSIGN_OR_RETURN(const size_t index, contents.FindBlob(text));
    const BlobSpec& blob = contents.blobs()[index];
    if (size_bytes != nullptr) *size_bytes = blob.size_bytes;
    if (data == nullptr) return Status::Ok();
    if (capacity_bytes < blob.size_bytes)
      return InvalidArgument("reading blob " + text + ": it has " +
                             std::to_string(blob.size_bytes) + " bytes, there is room for " +
                             std::to_string(capacity_bytes));
    return ReadContiguous(*shard->impl, "reading blob " + text, blob.offset_bytes, data,
                          blob.size_bytes, timeout_ms);
  });
}

size_t backstay_shard_blob_count(const backstay_shard* shard) {
  return shard == nullptr ? 0 : shard->impl->manifest().contents.blobs().size();
}

const char* backstay_shard_blob_name(const backstay_shard* shard, size_t index) {
  if (index >= backstay_shard_blob_count(shard)) return nullptr;
  return shard->impl->manifest().contents.blobs()[index].name.c_str();
}

int backstay_shard_get_tag(const backstay_shard* shard, const char* name, const char** value,
                           backstay_error* error) {
  return Guarded(shard, error, [&]() -> Status {
    BACKSTAY_ASSIGN_OR_RETURN(const std::string text, NameOf(name));
    if (value == nullptr) return InvalidArgument("`value` is null");
    BACKSTAY_ASSIGN_OR_RETURN(const std::string_view found,
                              shard->impl->manifest().contents.FindTag(text));
    *value = found.data();  // A std::string's, so it ends with a NUL.
    return Status::Ok();
  });
}

int backstay_open_index(backstay_client* client, const char* job, uint64_t generation,
                        uint64_t step, uint32_t timeout_ms, backstay_index** index,
                        backstay_error* error) {
  return Guarded(client, error, [&]() -> Status {
    BACKSTAY_ASSIGN_OR_RETURN(const TimePoint deadline, DeadlineFor(timeout_ms));
    if (index == nullptr) return InvalidArgument("`index` is null");
    BACKSTAY_ASSIGN_OR_RETURN(
        const auto reply, client->impl->SnapshotIndex(
                              {.snapshot = {generation, step}, .job = TextOr(job, "")}, deadline));
    auto made = std::make_unique<backstay_index>();
    made->snapshot = reply.snapshot;
    for (const std::string& bytes : reply.manifests) {
      BACKSTAY_ASSIGN_OR_RETURN(ShardManifest manifest, DecodeManifest(bytes));
      made->shards.push_back(std::make_unique<ShardManifest>(std::move(manifest)));
      const ShardManifest& shard = *made->shards.back();
      for (const TensorSpec& tensor : shard.contents.tensors())
        made->entries.push_back({&shard, &tensor, TensorView(tensor)});
    }
    std::sort(made->entries.begin(), made->entries.end(), [](const auto& a, const auto& b) {
      return std::tie(a.tensor->name, a.shard->rank) < std::tie(b.tensor->name, b.shard->rank);
    });
    *index = made.release();
    return Status::Ok();
  });
}

void backstay_index_destroy(backstay_index* index) {
  if (index == nullptr || IsForeignProcess(index->owner)) return;
  delete index;
}

void backstay_index_get_snapshot(const backstay_index* index, uint64_t* generation,
                                 uint64_t* step) {
  if (index == nullptr) return;
  if (generation != nullptr) *generation = index->snapshot.generation;
  if (step != nullptr) *step = index->snapshot.step;
}

size_t backstay_index_count(const backstay_index* index) {
  return index == nullptr ? 0 : index->entries.size();
}

int backstay_index_get(const backstay_index* index, size_t position, backstay_tensor_info* info,
                       backstay_error* error) {
  return Guarded(index, error, [&]() -> Status {
    if (position >= index->entries.size())
      return NotFound("there is no entry " + std::to_string(position) + " of " +
                      std::to_string(index->entries.size()) + " in the index");
    const backstay_index::Entry& entry = index->entries[position];
    return WriteInfo(*entry.shard, *entry.tensor, entry.view, info);
  });
}

int backstay_index_find(const backstay_index* index, const char* name, size_t* first, size_t* count,
                        backstay_error* error) {
  return Guarded(index, error, [&]() -> Status {
    BACKSTAY_ASSIGN_OR_RETURN(const std::string text, NameOf(name));
    if (first == nullptr || count == nullptr) return InvalidArgument("`first` or `count` is null");
    const auto begin = std::partition_point(
        index->entries.begin(), index->entries.end(),
        [&](const backstay_index::Entry& entry) { return entry.tensor->name < text; });
    const auto end = std::partition_point(
        begin, index->entries.end(),
        [&](const backstay_index::Entry& entry) { return entry.tensor->name == text; });
    if (begin == end) {
      std::vector<std::string_view> names;
      for (const backstay_index::Entry& entry : index->entries) {
        if (names.empty() || names.back() != entry.tensor->name)
          names.push_back(entry.tensor->name);
      }
      return NotFound("there is no tensor " + text + " in the snapshot" +
                      NearestNames(text, names));
    }
    *first = static_cast<size_t>(begin - index->entries.begin());
    *count = static_cast<size_t>(end - begin);
    return Status::Ok();
  });
}

int backstay_newest_committed(backstay_client* client, uint32_t timeout_ms, uint64_t* generation,
                              uint64_t* step, backstay_error* error) {
  return Guarded(client, error, [&]() -> Status {
    BACKSTAY_ASSIGN_OR_RETURN(const TimePoint deadline, DeadlineFor(timeout_ms));
    BACKSTAY_ASSIGN_OR_RETURN(const auto newest, client->impl->NewestCommitted(deadline));
    if (generation != nullptr) *generation = newest.generation;
    if (step != nullptr) *step = newest.step;
    return Status::Ok();
  });
}

int backstay_query_snapshot(backstay_client* client, uint64_t generation, uint64_t step,
                            uint32_t timeout_ms, uint32_t* state,
                            char reason[BACKSTAY_MESSAGE_BYTES], backstay_error* error) {
  return Guarded(client, error, [&]() -> Status {
    BACKSTAY_ASSIGN_OR_RETURN(const TimePoint deadline, DeadlineFor(timeout_ms));
    BACKSTAY_ASSIGN_OR_RETURN(const auto known,
                              client->impl->QuerySnapshot({generation, step}, deadline));
    if (state != nullptr) *state = known.state;
    if (reason != nullptr) {
      const size_t size = std::min<size_t>(known.reason.size(), BACKSTAY_MESSAGE_BYTES - 1);
      std::memcpy(reason, known.reason.data(), size);
      reason[size] = '\0';
    }
    return Status::Ok();
  });
}

int backstay_event_fd(const backstay_client* client) {
  if (client == nullptr || IsForeignProcess(client->owner)) return -1;
  return client->impl->event_descriptor();
}

int backstay_next_event(backstay_client* client, backstay_event* event, backstay_error* error) {
  return Guarded(client, error, [&]() -> Status {
    BACKSTAY_RETURN_IF_ERROR(ReadSized(event, "the event").status());
    const ClientEvent next = client->impl->NextEvent();
    backstay_event out = {};
    out.kind = static_cast<int32_t>(next.kind);
    out.code = static_cast<int32_t>(next.status.code());
    out.generation = next.generation;
    out.snapshot_generation = next.snapshot.generation;
    out.snapshot_step = next.snapshot.step;
    CopyText(next.status.message(), out.message);
    return WriteSized(out, event, "the event");
  });
}

}  // extern "C"
