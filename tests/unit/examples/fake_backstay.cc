#include "tests/unit/examples/fake_backstay.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "backstay.h"

namespace backstay::example::fake {
namespace {

struct StoredShard {
  std::map<std::string, std::vector<char>> tensors;
  std::map<std::string, std::vector<char>> blobs;
  std::map<std::string, std::string> tags;
};

struct Reconfiguration {
  std::set<uint32_t> callers;
  bool decided = false;
  uint64_t generation = 0;
  uint64_t attempt = 1;
  uint64_t base_step = 0;            // 0: fresh.
  uint32_t finished = 0;             // Ranks that reported for this attempt,
  bool all_ok = true;                // and how it went.
  std::map<uint64_t, bool> outcome;  // By attempt: resumed.
};

// One job.
struct Cluster {
  std::mutex mutex;
  std::condition_variable changed;
  Faults faults;
  Counters counters;
  bool fenced = true;  // Until the first generation.
  uint32_t world_size = 0;
  uint64_t tokens = 0;
  std::map<uint64_t, std::map<std::string, StoredShard>> snapshots;  // By step and shard id.
  std::map<std::string, Reconfiguration> reconfigurations;
};

Cluster& TheCluster() {
  static auto* cluster = new Cluster;
  return *cluster;
}

int Fail(int code, const std::string& message, backstay_error* error) {
  if (error != nullptr) {
    error->code = code;
    std::snprintf(error->message, sizeof error->message, "%s", message.c_str());
  }
  return code;
}

size_t SizeOf(const backstay_tensor& tensor) {
  size_t elements = 1;
  for (uint32_t i = 0; i < tensor.dimension_count; ++i) elements *= tensor.shape[i];
  return elements * sizeof(float);
}

uint64_t NewestComplete(const Cluster& cluster) {
  for (auto step = cluster.snapshots.rbegin(); step != cluster.snapshots.rend(); ++step) {
    if (step->second.size() == cluster.world_size) return step->first;
  }
  return 0;
}

void FillDecision(const Reconfiguration& from, const char* uuid, backstay_decision* decision) {
  decision->generation = from.generation;
  decision->attempt = from.attempt;
  decision->fresh = from.base_step == 0;
  decision->base_committed = 1;
  decision->base_step = from.base_step;
  std::snprintf(decision->uuid, sizeof decision->uuid, "%s", uuid);
  std::snprintf(decision->why, sizeof decision->why, "the newest complete step");
}

}  // namespace

void Reset(Faults faults) {
  Cluster& cluster = TheCluster();
  const std::lock_guard lock(cluster.mutex);
  cluster.faults = std::move(faults);
  cluster.counters = {};
  cluster.fenced = true;
  cluster.snapshots.clear();
  cluster.reconfigurations.clear();
}

Counters Count() {
  Cluster& cluster = TheCluster();
  const std::lock_guard lock(cluster.mutex);
  return cluster.counters;
}

}  // namespace backstay::example::fake

using namespace backstay::example::fake;  // NOLINT: the C ABI's functions are not in a namespace.

struct backstay_client {
  uint32_t rank = 0;
  uint64_t size_bytes = 0;
  int event_descriptor = -1;
  bool killed =
      false;  // Whatever it still says while its thread unwinds, a killed process would not.
};

struct backstay_save {
  backstay_client* client;
  uint64_t step;
  uint64_t generation;
  StoredShard shard;
  struct Pending {
    std::string name;
    const void* data;
    size_t size;
    uint32_t group;
  };
  std::vector<Pending> pending;
  bool started = false;
  bool sealed = false;
};

struct backstay_shard {
  StoredShard stored;
  bool corrupt;
};

const char* backstay_code_name(int code) { return code == BACKSTAY_OK ? "ok" : "error"; }

int backstay_connect(const backstay_connect_options*, backstay_client** client, backstay_error*) {
  *client = new backstay_client;
  (*client)->event_descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return BACKSTAY_OK;
}

void backstay_close(backstay_client* client) {
  if (client == nullptr) return;
  close(client->event_descriptor);
  delete client;
}

int backstay_plan(const backstay_tensor* tensors, size_t tensor_count, const uint64_t* blob_sizes,
                  size_t blob_count, uint64_t* size_bytes, backstay_error*) {
  *size_bytes = 0;
  for (size_t i = 0; i < tensor_count; ++i) *size_bytes += SizeOf(tensors[i]);
  for (size_t i = 0; i < blob_count; ++i) *size_bytes += blob_sizes[i];
  return BACKSTAY_OK;
}

int backstay_register(backstay_client* client, const backstay_register_options* options,
                      backstay_registration*, backstay_error*) {
  const std::lock_guard lock(TheCluster().mutex);
  client->rank = options->rank;
  client->size_bytes = options->size_bytes;
  TheCluster().world_size = options->world_size;
  return BACKSTAY_OK;
}

int backstay_get_client_info(backstay_client* client, backstay_client_info* info, backstay_error*) {
  std::snprintf(info->node_id, sizeof info->node_id, "node-%u", client->rank);
  return BACKSTAY_OK;
}

int backstay_begin(backstay_client* client, const backstay_begin_options* options,
                   backstay_save** save, backstay_error* error) {
  Cluster& cluster = TheCluster();
  const std::lock_guard lock(cluster.mutex);
  if (cluster.fenced) return Fail(BACKSTAY_STALE, "the generation is over", error);
  if (options->step == cluster.faults.no_slot_step) {
    return Fail(BACKSTAY_NO_SPACE, "no slot is free", error);
  }
  *save = new backstay_save{client, options->step, cluster.counters.generation, {}, {}};
  return BACKSTAY_OK;
}

int backstay_save_add_tensor(backstay_save* save, const backstay_tensor* tensor, backstay_error*) {
  save->pending.push_back({tensor->name, tensor->data, SizeOf(*tensor), tensor->group});
  return BACKSTAY_OK;
}

int backstay_save_add_blob(backstay_save* save, const char* name, const void* data,
                           size_t size_bytes, backstay_error*) {
  const char* bytes = static_cast<const char*>(data);
  save->shard.blobs[name].assign(bytes, bytes + size_bytes);
  return BACKSTAY_OK;
}

int backstay_save_add_tag(backstay_save* save, const char* name, const char* value,
                          backstay_error*) {
  save->shard.tags[name] = value;
  return BACKSTAY_OK;
}

int backstay_save_start_copy(backstay_save* save, uint32_t, backstay_error* error) {
  Cluster& cluster = TheCluster();
  const std::lock_guard lock(cluster.mutex);
  save->started = true;
  size_t size = 0;
  for (const auto& pending : save->pending) size += pending.size;
  for (const auto& blob : save->shard.blobs) size += blob.second.size();
  if (size > save->client->size_bytes) return Fail(BACKSTAY_NO_SPACE, "larger than planned", error);
  if (save->client->rank == cluster.faults.kill_rank && save->step == cluster.faults.kill_step) {
    cluster.faults.kill_rank = -1;
    save->client->killed = true;
    throw RankKilled();
  }
  return BACKSTAY_OK;
}

int backstay_save_wait(backstay_save* save, uint32_t stage, uint32_t group, uint32_t timeout_ms,
                       backstay_error* error) {
  Cluster& cluster = TheCluster();
  std::unique_lock lock(cluster.mutex);
  if (stage != BACKSTAY_COPIED) {
    const auto committed = [&] {
      const auto snapshot = cluster.snapshots.find(save->step);
      return snapshot != cluster.snapshots.end() && snapshot->second.size() == cluster.world_size;
    };
    if (cluster.changed.wait_for(lock, std::chrono::milliseconds(timeout_ms), committed)) {
      return BACKSTAY_OK;
    }
    return Fail(BACKSTAY_DEADLINE, "not yet committed", error);
  }
  std::vector<backstay_save::Pending> left;
  for (const auto& pending : save->pending) {
    if (pending.group > group) {
      left.push_back(pending);
      continue;
    }
    const char* bytes = static_cast<const char*>(pending.data);
    save->shard.tensors[pending.name].assign(bytes, bytes + pending.size);
  }
  save->pending = left;
  if (!left.empty() || save->sealed) return BACKSTAY_OK;
  if (cluster.fenced || save->generation != cluster.counters.generation) {
    return Fail(BACKSTAY_STALE, "the generation is over", error);
  }
  save->sealed = true;
  auto& snapshot = cluster.snapshots[save->step];
  snapshot[std::to_string(save->client->rank)] = save->shard;
  if (snapshot.size() == cluster.world_size) ++cluster.counters.commits;
  cluster.changed.notify_all();
  return BACKSTAY_OK;
}

int backstay_save_get_stats(backstay_save* save, backstay_save_stats* stats, backstay_error*) {
  stats->step = save->step;
  return BACKSTAY_OK;
}

void backstay_save_destroy(backstay_save* save) { delete save; }

int backstay_new_attempt(backstay_client*, uint32_t, char uuid[BACKSTAY_UUID_BYTES],
                         backstay_error*) {
  Cluster& cluster = TheCluster();
  const std::lock_guard lock(cluster.mutex);
  std::snprintf(uuid, BACKSTAY_UUID_BYTES, "token-%llu",
                static_cast<unsigned long long>(++cluster.tokens));
  return BACKSTAY_OK;
}

int backstay_decide(backstay_client* client, const backstay_decide_options* options,
                    backstay_decision* decision, backstay_error* error) {
  Cluster& cluster = TheCluster();
  std::unique_lock lock(cluster.mutex);
  client->rank = options->rank;
  Reconfiguration& mine = cluster.reconfigurations[options->uuid];
  mine.callers.insert(options->rank);
  if (mine.callers.size() == options->world_size) {
    mine.decided = true;
    mine.generation = ++cluster.counters.generation;
    mine.base_step = NewestComplete(cluster);
    cluster.counters.last_base_step = mine.base_step;
    cluster.fenced = false;
    cluster.changed.notify_all();
  }
  const auto timeout = std::chrono::milliseconds(options->timeout_ms);
  if (!cluster.changed.wait_for(lock, timeout, [&] { return mine.decided; })) {
    return Fail(BACKSTAY_DEADLINE, "ranks are missing", error);
  }
  FillDecision(mine, options->uuid, decision);
  return BACKSTAY_OK;
}

int backstay_fetch(backstay_client* client, const backstay_decision* decision, uint32_t,
                   backstay_shard** shard, backstay_error*) {
  Cluster& cluster = TheCluster();
  const std::lock_guard lock(cluster.mutex);
  const std::string id = std::to_string(client->rank);
  *shard = new backstay_shard{cluster.snapshots.at(decision->base_step).at(id),
                              cluster.faults.corrupt.contains({decision->base_step, id})};
  return BACKSTAY_OK;
}

int backstay_finish_restore(backstay_client*, const backstay_decision* decision, int ok,
                            const char*, uint64_t, uint32_t, int* resumed, backstay_decision* next,
                            backstay_error*) {
  Cluster& cluster = TheCluster();
  std::unique_lock lock(cluster.mutex);
  Reconfiguration& mine = cluster.reconfigurations[decision->uuid];
  const uint64_t attempt = decision->attempt;
  mine.all_ok &= ok != 0;
  if (++mine.finished == cluster.world_size) {
    mine.outcome[attempt] = mine.all_ok;
    if (!mine.all_ok) {
      cluster.snapshots.erase(mine.base_step);
      mine.base_step = NewestComplete(cluster);
      cluster.counters.last_base_step = mine.base_step;
      ++mine.attempt;
      mine.finished = 0;
      mine.all_ok = true;
    } else {
      // What the job had done beyond its base is off the lineage.
      std::erase_if(cluster.snapshots, [&](const auto& it) { return it.first > mine.base_step; });
    }
    cluster.changed.notify_all();
  }
  cluster.changed.wait(lock, [&] { return mine.outcome.contains(attempt); });
  *resumed = mine.outcome[attempt];
  if (*resumed == 0) FillDecision(mine, decision->uuid, next);
  return BACKSTAY_OK;
}

int backstay_fence(backstay_client* client, const char*, backstay_error*) {
  Cluster& cluster = TheCluster();
  const std::lock_guard lock(cluster.mutex);
  if (client->killed) return BACKSTAY_OK;
  ++cluster.counters.fences;
  cluster.fenced = true;
  return BACKSTAY_OK;
}

void backstay_shard_destroy(backstay_shard* shard) { delete shard; }

int backstay_shard_get_info(backstay_shard*, backstay_shard_info* info, backstay_error*) {
  info->local = 1;
  return BACKSTAY_OK;
}

int backstay_shard_get_tag(const backstay_shard* shard, const char* name, const char** value,
                           backstay_error* error) {
  const auto tag = shard->stored.tags.find(name);
  if (tag == shard->stored.tags.end()) return Fail(BACKSTAY_NOT_FOUND, "no such tag", error);
  *value = tag->second.c_str();
  return BACKSTAY_OK;
}

int backstay_shard_read(backstay_shard* shard, const backstay_read_options* options,
                        backstay_error* error) {
  const std::vector<char>& bytes = shard->stored.tensors.at(options->name);
  size_t elements = 1;
  for (uint32_t i = 0; i < options->dimension_count; ++i) elements *= options->shape[i];
  if (bytes.size() != elements * sizeof(float)) {
    return Fail(BACKSTAY_INVALID_ARGUMENT, "another size", error);
  }
  if (shard->corrupt) return Fail(BACKSTAY_CORRUPT, "no holder has it whole", error);
  std::memcpy(options->data, bytes.data(), bytes.size());
  return BACKSTAY_OK;
}

int backstay_shard_read_blob(backstay_shard* shard, const char* name, void* data,
                             size_t capacity_bytes, size_t* size_bytes, uint32_t, backstay_error*) {
  const std::vector<char>& bytes = shard->stored.blobs.at(name);
  *size_bytes = bytes.size();
  if (data != nullptr && capacity_bytes >= bytes.size()) {
    std::memcpy(data, bytes.data(), bytes.size());
  }
  return BACKSTAY_OK;
}

int backstay_event_fd(const backstay_client* client) { return client->event_descriptor; }

int backstay_next_event(backstay_client*, backstay_event* event, backstay_error*) {
  event->kind = BACKSTAY_EVENT_NONE;
  return BACKSTAY_OK;
}

int backstay_finish(backstay_client*, int, uint32_t, backstay_error*) { return BACKSTAY_OK; }
