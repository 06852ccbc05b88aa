#include "client/shard_reader.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/hash.h"
#include "client/client.h"
#include "client/limits.h"

namespace backstay::client {
namespace {

using std::chrono::microseconds;
using std::chrono::steady_clock;

// A chunk that fails more often than a policy has holders (three replicas and the primary) fails
// everywhere.
constexpr int kChunkAttemptsMax = kReplicasMax + 2;

// The control page has nothing to wait on, so readiness is polled: a chunk of 1 MiB takes about
// 200 us at the rate of one TCP stream.
constexpr microseconds kPollMin{20};
constexpr microseconds kPollMax{500};

}  // namespace

// What the threads of one read share.
struct ShardReader::ReadJob {
  uint64_t offset_bytes = 0;
  const StridedMemory* target = nullptr;
  uint64_t last_chunk = 0;
  TimePoint deadline;
  std::atomic<uint64_t> next_chunk{0};

  std::mutex mutex;
  std::condition_variable done;
  uint32_t running = 0;
  Status status;  // The first error.
};

ShardReader::ShardReader(std::shared_ptr<Client> client, local::Fetch request)
    : client_(std::move(client)), request_(std::move(request)) {}

Result<std::shared_ptr<ShardReader>> ShardReader::Open(std::shared_ptr<Client> client,
                                                       local::Fetch request, TimePoint deadline) {
  std::shared_ptr<ShardReader> reader(new ShardReader(std::move(client), std::move(request)));
  BACKSTAY_RETURN_IF_ERROR(reader->Attach(deadline));
  return reader;
}

ShardReader::~ShardReader() {
  const std::shared_ptr<const View> open = view();
  if (open == nullptr || open->epoch != client_->epoch()) return;
  client_->CloseShard(open->handle);
}

std::string ShardReader::Name() const {
  return "shard " + request_.shard_id + " of step " + std::to_string(request_.snapshot.step) +
         " of generation " + std::to_string(request_.snapshot.generation);
}

Status ShardReader::Attach(TimePoint deadline) {
  const std::string what = "opening " + Name();
  BACKSTAY_ASSIGN_OR_RETURN(Reply reply,
                            client_->connection().Call(request_, deadline, what.c_str()));
  const auto attach = [&]() -> Status {
    BACKSTAY_ASSIGN_OR_RETURN(const auto fetched, reply.Take<local::FetchReply>());
    auto open = std::make_shared<View>();
    open->handle = fetched.handle;
    open->epoch = reply.epoch;
    if (HashBytes(fetched.manifest) != fetched.digest)
      return Corrupt(what + ": the manifest that the service sent does not have its digest");
    if (view() != nullptr && fetched.digest != digest_)
      return Corrupt(what + " again: it has another digest than before");
    BACKSTAY_ASSIGN_OR_RETURN(ShardManifest manifest, DecodeManifest(fetched.manifest));
    const bool named = request_.snapshot != local::SnapshotRef();
    if (manifest.shard_id != request_.shard_id ||
        (named && manifest.snapshot != request_.snapshot)) {
      return Corrupt(what + ": the service sent shard " + manifest.shard_id + " of step " +
                     std::to_string(manifest.snapshot.step) + " of generation " +
                     std::to_string(manifest.snapshot.generation));
    }
    if (manifest.size_bytes > fetched.size_bytes)
      return Corrupt(what + ": the service's memory is smaller than the shard");
    open->slot = client_->slots().FindMapped(
        reply, {.size_bytes = fetched.size_bytes, .chunk_bytes = manifest.chunk_bytes});
    if (open->slot == nullptr) {
      BACKSTAY_ASSIGN_OR_RETURN(open->slot,
                                MapSlot(reply, fetched.size_bytes, fetched.control_bytes,
                                        manifest.chunk_bytes, /*writable=*/false));
    }
    const std::lock_guard lock(mutex_);
    if (view_ == nullptr) {  // Readers hold references into the first manifest.
      manifest_ = std::move(manifest);
      request_.snapshot = manifest_.snapshot;  // Also when it is opened again.
      digest_ = fetched.digest;
      local_ = fetched.local;
    }
    view_ = open;
    return Status::Ok();
  };
  const Status attached = attach();
  if (!attached.ok()) client_->GiveBack(reply.frame);
  return attached;
}

std::shared_ptr<const ShardReader::View> ShardReader::view() const {
  const std::lock_guard lock(mutex_);
  return view_;
}

uint64_t ShardReader::ChunkBytes(uint64_t chunk) const {
  const uint64_t start = chunk * manifest_.chunk_bytes;
  return std::min<uint64_t>(manifest_.chunk_bytes, manifest_.size_bytes - start);
}

uint64_t ShardReader::ReadyChunkCount() const {
  const std::shared_ptr<const View> open = view();
  const SlotControlView control(open->slot->page(), open->slot->geometry);
  uint64_t ready = 0;
  for (uint64_t chunk = 0; chunk < manifest_.chunk_checksums.size(); ++chunk)
    ready += control.IsReady(chunk) ? 1 : 0;
  return ready;
}

// A whole shard is on its way already; of another, the chunks that are not here are asked for.
Status ShardReader::RequestChunks(uint64_t first, uint64_t count) {
  if (request_.whole) return Status::Ok();
  const std::shared_ptr<const View> open = view();
  const SlotControlView control(open->slot->page(), open->slot->geometry);
  while (count > 0 && control.IsReady(first)) ++first, --count;
  while (count > 0 && control.IsReady(first + count - 1)) --count;
  if (count == 0) return Status::Ok();
  return client_->connection().Send(
      local::FetchChunks{.handle = open->handle,
                         .first_chunk = static_cast<uint32_t>(first),
                         .chunk_count = static_cast<uint32_t>(count)},
      [](const Result<Reply>&) {});  // How it went is on the control page.
}

Status ShardReader::WaitChunk(const View& open, uint64_t chunk, TimePoint deadline) const {
  const SlotControlView control(open.slot->page(), open.slot->geometry);
  const std::string what = "chunk " + std::to_string(chunk) + " of " + Name();
  for (microseconds pause = kPollMin;; pause = std::min(2 * pause, kPollMax)) {
    switch (control.State(chunk)) {
      case ChunkState::kChunkReady:
        return Status::Ok();
      case ChunkState::kChunkFailed:
        return Unavailable(what + " could not be brought to this node from any holder");
      case ChunkState::kChunkEmpty:
        break;
    }
    // Moved: what is read here is checked against its hash, and then read there.
    if (view().get() != &open) return Status::Ok();
    if (open.epoch != client_->epoch())
      return Unavailable(what + ": the service went away while it was being fetched; open again");
    if (steady_clock::now() >= deadline) return DeadlineExceeded(what + " is not here yet");
    std::this_thread::sleep_for(pause);
  }
}

Status ShardReader::ReadChunk(uint64_t chunk, std::span<std::byte> target, TimePoint deadline) {
  for (int attempt = 0; attempt < kChunkAttemptsMax; ++attempt) {
    const std::shared_ptr<const View> open = view();
    BACKSTAY_RETURN_IF_ERROR(WaitChunk(*open, chunk, deadline));
    const auto source =
        open->slot->bytes().subspan(chunk * manifest_.chunk_bytes, ChunkBytes(chunk));
    // What is hashed is what was copied: the slot could change in between.
    if (CopyAndHash(target, source) == manifest_.chunk_checksums[chunk]) return Status::Ok();
    if (attempt + 1 < kChunkAttemptsMax)
      BACKSTAY_RETURN_IF_ERROR(ReplaceBadChunk(*open, chunk, deadline));
  }
  return Corrupt("chunk " + std::to_string(chunk) + " of " + Name() +
                 " does not match its checksum, " + std::to_string(kChunkAttemptsMax) +
                 " times, from every holder that was tried");
}

Status ShardReader::ReplaceBadChunk(const View& bad, uint64_t chunk, TimePoint deadline) {
  const std::lock_guard one_at_a_time(replace_mutex_);
  if (view().get() != &bad) return Status::Ok();  // The shard has moved meanwhile: read there.
  const std::string what =
      "chunk " + std::to_string(chunk) + " of " + Name() + " is bad: asking for another copy";
  local::ReportBadChunks report{.handle = bad.handle, .chunks = {static_cast<uint32_t>(chunk)}};
  BACKSTAY_ASSIGN_OR_RETURN(Reply reply,
                            client_->connection().Call(report, deadline, what.c_str()));
  BACKSTAY_ASSIGN_OR_RETURN(const auto replaced, reply.Take<local::BadChunksReply>());
  if (!replaced.reopened) return Status::Ok();
  const uint64_t left_handle = bad.handle;
  BACKSTAY_RETURN_IF_ERROR(Attach(deadline));
  client_->CloseShard(left_handle);  // Not before: the shard is kept while somebody reads it.
  return RequestChunks(0, manifest_.chunk_checksums.size());
}

Result<std::shared_ptr<std::vector<std::byte>>> ShardReader::VerifiedChunk(uint64_t chunk,
                                                                           TimePoint deadline) {
  {
    const std::lock_guard lock(mutex_);
    for (const CachedChunk& cached : cache_) {
      if (cached.chunk == chunk) return cached.bytes;
    }
  }
  auto bytes = std::make_shared<std::vector<std::byte>>(ChunkBytes(chunk));
  BACKSTAY_RETURN_IF_ERROR(ReadChunk(chunk, *bytes, deadline));
  const std::lock_guard lock(mutex_);
  if (cache_.size() == kCachedChunks) cache_.erase(cache_.begin());
  cache_.push_back({chunk, bytes});
  return bytes;
}

// The part of the target that lies in `chunk`.
Status ShardReader::ReadPart(const ReadJob& job, uint64_t chunk) {
  const uint64_t chunk_start = chunk * manifest_.chunk_bytes;
  const uint64_t from = std::max(chunk_start, job.offset_bytes);
  const uint64_t to =
      std::min(chunk_start + ChunkBytes(chunk), job.offset_bytes + job.target->size_bytes());
  if (job.target->contiguous() && to - from == ChunkBytes(chunk)) {
    std::byte* target = job.target->data() + (from - job.offset_bytes);
    return ReadChunk(chunk, std::span(target, to - from), job.deadline);
  }
  BACKSTAY_ASSIGN_OR_RETURN(const auto bytes, VerifiedChunk(chunk, job.deadline));
  job.target->Scatter(from - job.offset_bytes,
                      std::span<const std::byte>(*bytes).subspan(from - chunk_start, to - from));
  return Status::Ok();
}

// Until no chunk is left. Not even for want of memory may it end otherwise: others wait for it.
Status ShardReader::ReadParts(ReadJob& job) try {
  while (true) {
    const uint64_t chunk = job.next_chunk++;
    if (chunk > job.last_chunk) return Status::Ok();
    BACKSTAY_RETURN_IF_ERROR(ReadPart(job, chunk));
  }
} catch (const std::bad_alloc&) {
  return NoSpace("no memory to read " + Name() + " with");
}

Status ShardReader::Read(uint64_t offset_bytes, const StridedMemory& target, uint32_t thread_count,
                         TimePoint deadline) {
  if (target.size_bytes() == 0) return Status::Ok();
  const uint64_t first = offset_bytes / manifest_.chunk_bytes;
  const uint64_t last = (offset_bytes + target.size_bytes() - 1) / manifest_.chunk_bytes;
  BACKSTAY_RETURN_IF_ERROR(RequestChunks(first, last - first + 1));
  auto job = std::make_shared<ReadJob>();
  job->offset_bytes = offset_bytes;
  job->target = &target;
  job->last_chunk = last;
  job->deadline = deadline;
  job->next_chunk = first;
  // Helpers that come too late to find a chunk touch nothing but the job, which they share.
  const auto work = [this, job] {
    {
      const std::lock_guard lock(job->mutex);
      if (job->next_chunk > job->last_chunk) return;
      ++job->running;
    }
    const Status status = ReadParts(*job);
    const std::lock_guard lock(job->mutex);
    if (!status.ok() && job->status.ok()) {
      job->status = status;
      job->next_chunk = job->last_chunk + 1;
    }
    --job->running;
    job->done.notify_all();
  };
  const auto helpers =
      static_cast<uint32_t>(std::min<uint64_t>(thread_count, last - first + 1)) - 1;
  // Without helpers this thread reads alone.
  if (helpers > 0) static_cast<void>(client_->copy_threads().Run(helpers, work).ok());
  work();
  std::unique_lock lock(job->mutex);
  job->done.wait(lock, [&] { return job->running == 0; });
  return job->status;
}

Status ShardReader::WaitReady(uint64_t offset_bytes, uint64_t size_bytes, TimePoint deadline) {
  if (size_bytes == 0) return Status::Ok();
  const uint64_t first = offset_bytes / manifest_.chunk_bytes;
  const uint64_t last = (offset_bytes + size_bytes - 1) / manifest_.chunk_bytes;
  BACKSTAY_RETURN_IF_ERROR(RequestChunks(first, last - first + 1));
  std::shared_ptr<const View> open;
  while (open != view()) {  // Again when the shard has moved meanwhile.
    open = view();
    for (uint64_t chunk = first; chunk <= last; ++chunk)
      BACKSTAY_RETURN_IF_ERROR(WaitChunk(*open, chunk, deadline));
  }
  return Status::Ok();
}

}  // namespace backstay::client
