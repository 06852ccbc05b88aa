// Client, and the convenience restore, of backstay.hpp. Include backstay.hpp.
#pragma once

#include "backstay.hpp"

namespace backstay {
inline namespace api_v1 {

// What a restore came to.
struct Restored {
  Decision decision;  // Of the attempt that was resumed from.
  uint64_t bytes = 0;
  bool local = false;  // Every byte was in this node's memory already.
};

// How long the three parts of a reconfiguration may take.
struct RestoreTimeouts {
  uint32_t decide_ms = 120'000;
  uint32_t fetch_ms = 30'000;
  uint32_t finish_ms = 300'000;
};

// Attempts of one reconfiguration that Restore() follows; each goes to an older snapshot, and no
// job keeps more.
inline constexpr int kRestoreAttemptsMax = 16;

// Reads this rank's state out of its shard, all of it: after an error of any rank it is called
// again, with the shard of an older snapshot. Not called for a fresh start.
using ReadState = std::function<Status(const Decision& decision, Shard& shard)>;

// A connection to the node's service, for one shard of one job.
//
// Thread: any, also at once; Fence() never blocks.
class Client {
 public:
  // `socket_path` empty: the environment's BACKSTAY_SOCKET.
  static Result<Client> Connect(const std::string& socket_path, uint32_t timeout_ms = 10'000) {
    auto options = internal::Sized<backstay_connect_options>();
    options.socket_path = socket_path.empty() ? nullptr : socket_path.c_str();
    options.timeout_ms = timeout_ms;
    backstay_client* client = nullptr;
    Status status = internal::Call(backstay_connect, &options, &client);
    if (!status.ok()) return status;
    return Client(client);
  }

  // The bytes that a shard with these tensors and blobs (by size) needs.
  static Result<uint64_t> Plan(std::span<const Tensor> tensors,
                               std::span<const uint64_t> blob_sizes = {}) {
    std::vector<internal::TensorView> views;
    views.reserve(tensors.size());
    std::vector<backstay_tensor> c_tensors;
    for (const Tensor& tensor : tensors) {
      if (Status status = views.emplace_back(tensor).Check(); !status.ok()) return status;
      c_tensors.push_back(views.back().c());
    }
    uint64_t size_bytes = 0;
    Status status = internal::Call(backstay_plan, c_tensors.data(), c_tensors.size(),
                                   blob_sizes.data(), blob_sizes.size(), &size_bytes);
    if (!status.ok()) return status;
    return size_bytes;
  }

  // Options with every default: set job, token, rank, world_size and size_bytes.
  static RegisterOptions DefaultRegisterOptions() {
    auto options = internal::Sized<RegisterOptions>();
    options.world_size = 1;
    options.replicas = 1;
    options.versions = 1;
    options.numa_node = -1;
    options.wait_for_slot = 1;
    options.timeout_ms = 60'000;
    return options;
  }
  Result<backstay_registration> Register(const RegisterOptions& options) {
    auto registration = internal::Sized<backstay_registration>();
    Status status = internal::Call(backstay_register, handle_.get(), &options, &registration);
    if (!status.ok()) return status;
    return registration;
  }
  Status Resize(uint64_t size_bytes, uint32_t timeout_ms = 60'000) {
    return internal::Call(backstay_resize, handle_.get(), size_bytes, timeout_ms);
  }
  Status Finish(bool drop_state = false, uint32_t timeout_ms = 60'000) {
    return internal::Call(backstay_finish, handle_.get(), int{drop_state}, timeout_ms);
  }

  Result<Save> Begin(uint64_t step, uint32_t timeout_ms = 10'000, bool sound_later = false) {
    auto options = internal::Sized<backstay_begin_options>();
    options.step = step;
    options.timeout_ms = timeout_ms;
    options.sound_later = sound_later;
    backstay_save* save = nullptr;
    Status status = internal::Call(backstay_begin, handle_.get(), &options, &save);
    if (!status.ok()) return status;
    return Save(save);
  }

  Result<std::string> NewAttempt(uint32_t timeout_ms = 30'000) {
    char uuid[BACKSTAY_UUID_BYTES] = {};
    Status status =
        internal::Call(backstay_new_attempt, handle_.get(), timeout_ms, static_cast<char*>(uuid));
    if (!status.ok()) return status;
    return std::string(uuid);
  }
  static DecideOptions DefaultDecideOptions() {
    auto options = internal::Sized<DecideOptions>();
    options.timeout_ms = RestoreTimeouts{}.decide_ms;
    return options;
  }
  Result<Decision> Decide(const DecideOptions& options) {
    auto decision = internal::Sized<Decision>();
    Status status = internal::Call(backstay_decide, handle_.get(), &options, &decision);
    if (!status.ok()) return status;
    return decision;
  }
  Result<Shard> Fetch(const Decision& decision, uint32_t timeout_ms = RestoreTimeouts{}.fetch_ms) {
    backstay_shard* shard = nullptr;
    Status status = internal::Call(backstay_fetch, handle_.get(), &decision, timeout_ms, &shard);
    if (!status.ok()) return status;
    return Shard(shard);
  }
  // Nothing: resumed, training may go on. Else the decision of the next attempt, to fetch again.
  // `read` is how reading went on this rank.
  Result<std::optional<Decision>> FinishRestore(const Decision& decision, const Status& read,
                                                uint64_t restored_bytes,
                                                uint32_t timeout_ms = RestoreTimeouts{}.finish_ms) {
    int resumed = 0;
    auto next = internal::Sized<Decision>();
    Status status =
        internal::Call(backstay_finish_restore, handle_.get(), &decision, int{read.ok()},
                       read.message().c_str(), restored_bytes, timeout_ms, &resumed, &next);
    if (!status.ok()) return status;
    if (resumed != 0) return std::optional<Decision>();
    return std::optional<Decision>(next);
  }
  // Decide, fetch, read and finish, until resumed. All ranks call it with the same uuid.
  Result<Restored> Restore(const DecideOptions& options, const ReadState& read,
                           const RestoreTimeouts& timeouts = {}) {
    DecideOptions decide = options;
    decide.timeout_ms = timeouts.decide_ms;
    Result<Decision> decision = Decide(decide);
    if (!decision.ok()) return decision.status();
    Restored restored{.decision = *decision};
    for (int attempt = 0; attempt < kRestoreAttemptsMax; ++attempt) {
      const Status outcome =
          restored.decision.fresh ? Status() : ReadDecided(restored, read, timeouts);
      Result<std::optional<Decision>> next =
          FinishRestore(restored.decision, outcome, restored.bytes, timeouts.finish_ms);
      if (!next.ok()) return next.status();
      if (!next->has_value()) {
        if (!outcome.ok()) return outcome;  // The others train on, with what this rank lacks.
        return restored;
      }
      restored = Restored{.decision = **next};
    }
    return Status(Code::kUnavailable, "gave up after " + std::to_string(kRestoreAttemptsMax) +
                                          " attempts to restore: the last was of step " +
                                          std::to_string(restored.decision.base_step));
  }
  Status Fence(const std::string& reason) {
    return internal::Call(backstay_fence, handle_.get(), reason.c_str());
  }

  // Any shard of a snapshot; {0, 0}: the newest committed. Empty names: the registered ones.
  Result<Shard> OpenShard(SnapshotId snapshot, const std::string& shard_id = {},
                          const std::string& job = {}, uint32_t timeout_ms = 30'000) {
    auto options = internal::Sized<backstay_open_options>();
    options.job = job.empty() ? nullptr : job.c_str();
    options.shard_id = shard_id.empty() ? nullptr : shard_id.c_str();
    options.generation = snapshot.generation;
    options.step = snapshot.step;
    options.timeout_ms = timeout_ms;
    backstay_shard* shard = nullptr;
    Status status = internal::Call(backstay_open_shard, handle_.get(), &options, &shard);
    if (!status.ok()) return status;
    return Shard(shard);
  }
  Result<Index> SnapshotIndex(SnapshotId snapshot = {}, const std::string& job = {},
                              uint32_t timeout_ms = 30'000) {
    backstay_index* index = nullptr;
    Status status =
        internal::Call(backstay_open_index, handle_.get(), job.empty() ? nullptr : job.c_str(),
                       snapshot.generation, snapshot.step, timeout_ms, &index);
    if (!status.ok()) return status;
    return Index(index);
  }
  // A range of the elements of one shard's tensor, from any rank. Pulls only the chunks that it
  // needs.
  Status ReadRange(SnapshotId snapshot, const std::string& shard_id, const std::string& tensor,
                   uint64_t first_element, uint64_t element_count, const Memory& memory,
                   const ReadOptions& options = {}) {
    Result<Shard> shard = OpenShard(snapshot, shard_id, {}, options.timeout_ms);
    if (!shard.ok()) return shard.status();
    return shard->ReadRange(tensor, first_element, element_count, memory, options);
  }
  Result<SnapshotId> NewestCommitted(uint32_t timeout_ms = 10'000) {
    SnapshotId id;
    Status status = internal::Call(backstay_newest_committed, handle_.get(), timeout_ms,
                                   &id.generation, &id.step);
    if (!status.ok()) return status;
    return id;
  }

  // Polls readable while NextEvent() has something.
  int EventDescriptor() const { return backstay_event_fd(handle_.get()); }
  std::optional<Event> NextEvent() {
    auto event = internal::Sized<Event>();
    if (backstay_next_event(handle_.get(), &event, nullptr) != BACKSTAY_OK) return std::nullopt;
    if (event.kind == BACKSTAY_EVENT_NONE) return std::nullopt;
    return event;
  }
  Result<backstay_client_info> Info() const {
    auto info = internal::Sized<backstay_client_info>();
    Status status = internal::Call(backstay_get_client_info, handle_.get(), &info);
    if (!status.ok()) return status;
    return info;
  }

 private:
  struct Close {
    void operator()(backstay_client* client) const { backstay_close(client); }
  };
  explicit Client(backstay_client* client) : handle_(client) {}

  Status ReadDecided(Restored& restored, const ReadState& read, const RestoreTimeouts& timeouts) {
    Result<Shard> shard = Fetch(restored.decision, timeouts.fetch_ms);
    if (!shard.ok()) return shard.status();
    Result<ShardInfo> info = shard->Info();
    if (!info.ok()) return info.status();
    restored.bytes = info->used_bytes;
    restored.local = info->local != 0;
    return read(restored.decision, *shard);
  }

  std::unique_ptr<backstay_client, Close> handle_;
};

}  // namespace api_v1
}  // namespace backstay
