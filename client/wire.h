#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/hash.h"
#include "base/status.h"
#include "client/limits.h"

// The messages of local.proto as plain structs, encoded and decoded with protozero: libprotobuf
// cannot be hidden inside a shared library. local.proto says what each field means.
namespace backstay::client::local {

struct SnapshotRef {
  uint64_t generation = 0;
  uint64_t step = 0;
  friend auto operator<=>(const SnapshotRef&, const SnapshotRef&) = default;
};

// ---- From the client

struct Hello {
  uint32_t protocol_version = kLocalProtocolVersion;
  uint32_t pid = 0;
  std::string client_version;
};
struct Register {
  std::string job;
  std::string token;
  std::string shard_id;
  uint32_t rank = 0;
  uint32_t world_size = 0;
  uint32_t replicas = 0;
  uint32_t versions = 0;
  uint64_t size_bytes = 0;
  int32_t numa_node = -1;
  bool wait_for_slot = false;
  uint64_t generation = 0;
  bool has_missed_step = false;
  uint64_t missed_step = 0;
};
struct Resize {
  uint64_t size_bytes = 0;
};
struct Begin {
  uint64_t step = 0;
  uint32_t timeout_ms = 0;
};
struct StartCopy {
  uint64_t slot_id = 0;
  uint64_t used_bytes = 0;
  std::string contents;
  uint64_t epoch = 0;
};
struct Seal {
  uint64_t slot_id = 0;
  bool sound = true;
  uint64_t epoch = 0;
};
struct StepIsSound {
  uint64_t step = 0;
};
struct Abandon {
  uint64_t slot_id = 0;
  uint64_t epoch = 0;
};
struct SlotUnmapped {
  uint64_t slot_id = 0;
};
struct Fence {
  uint64_t generation = 0;
  std::string reason;
  int64_t unix_ms = 0;
};
struct NewAttempt {};
struct Reconfigure {
  std::string uuid;
  uint32_t rank = 0;
  uint32_t world_size = 0;
  std::string shard_id;
  uint32_t mode = 0;
  uint64_t exact_step = 0;
  bool drop_state = false;
  std::string fork_job;
  uint32_t timeout_ms = 0;
  bool has_old_rank = false;
  uint32_t old_rank = 0;
  uint64_t old_generation = 0;
};
struct Fetch {
  std::string shard_id;
  SnapshotRef snapshot;
  std::string job;
  bool whole = false;
  bool for_restore = false;
};
struct FetchChunks {
  uint64_t handle = 0;
  uint32_t first_chunk = 0;
  uint32_t chunk_count = 0;
};
struct ReportBadChunks {
  uint64_t handle = 0;
  std::vector<uint32_t> chunks;
};
struct CloseShard {
  uint64_t handle = 0;
};
struct FinishRestore {
  std::string uuid;
  uint64_t attempt = 0;
  bool ok = false;
  std::string error;
  uint64_t bytes = 0;
  uint32_t timeout_ms = 0;
};
struct SnapshotIndex {
  SnapshotRef snapshot;
  std::string job;
};
struct NewestCommitted {};
struct QuerySnapshot {
  SnapshotRef snapshot;
};
struct Finish {
  bool drop_state = false;
};

// A ClientFrame with `body`, behind its length. One for each struct above.
template <typename Body>
std::string EncodeFrame(uint64_t request, const Body& body);

// ---- From the service

struct HelloReply {
  uint32_t protocol_version = 0;
  std::string node_id;
  uint64_t incarnation = 0;
  std::string service_version;
  uint32_t chunk_bytes = 0;
};
struct RegisterReply {
  uint32_t chunk_bytes = 0;
  uint64_t reserved_bytes_local = 0;
  uint64_t reserved_bytes_peers = 0;
  std::vector<std::string> replica_nodes;
};
struct BeginReply {
  uint64_t slot_id = 0;
  uint64_t size_bytes = 0;
  uint64_t control_bytes = 0;
  bool has_fds = false;
  uint64_t generation = 0;
  uint64_t epoch = 0;
};
struct SealReply {
  Hash128 digest;
};
struct NewAttemptReply {
  std::string uuid;
};
struct Decision {
  std::string uuid;
  uint64_t generation = 0;
  uint64_t attempt = 0;
  bool fresh = false;
  SnapshotRef base;
  Hash128 base_root;
  std::string why;
  std::string shard_id;
  bool base_committed = false;
  std::string base_job;
};
struct FetchReply {
  uint64_t handle = 0;
  uint64_t size_bytes = 0;
  uint64_t control_bytes = 0;
  std::string manifest;
  Hash128 digest;
  bool local = false;
};
struct BadChunksReply {
  bool reopened = false;
};
struct FinishRestoreReply {
  bool resumed = false;
  Decision next;
};
struct SnapshotIndexReply {
  SnapshotRef snapshot;
  std::vector<std::string> manifests;
};
struct NewestCommittedReply {
  bool any = false;
  SnapshotRef snapshot;
};
// As in local.proto and backstay.h.
enum class SnapshotState : uint32_t {
  kUnknown = 0,
  kCopying = 1,
  kSealed = 2,
  kProtected = 3,
  kCommitted = 4,
  kFailed = 5,
};
struct QuerySnapshotReply {
  uint32_t state = 0;  // SnapshotState, or one of a newer service.
  std::string reason;
};
struct Event {
  uint32_t kind = 0;
  SnapshotRef snapshot;
  Status status;
  uint64_t generation = 0;
  uint64_t slot_id = 0;
};

struct ServiceFrame {
  uint64_t request = 0;
  Status status;
  std::variant<std::monostate, HelloReply, RegisterReply, BeginReply, NewAttemptReply, Decision,
               FetchReply, SnapshotIndexReply, NewestCommittedReply, QuerySnapshotReply, SealReply,
               Event, FinishRestoreReply, BadChunksReply>
      body;
};

// A ServiceFrame without its length word. Fields and bodies that we do not know are skipped (an
// unknown body reads as none). kCorrupt: no frame, or one beyond the limits; says which field.
Result<ServiceFrame> DecodeServiceFrame(std::string_view bytes);

}  // namespace backstay::client::local
