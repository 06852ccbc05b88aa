#include "tools/service/session_convert.h"

#include "client/limits.h"
#include "replication/job_limits.h"
#include "store/slot_memory.h"

namespace backstay::tools {

namespace wire = client::wire;
using replication::SnapshotProgress;
using replication::TrainerEvent;

// The plain enums have the numbers of the protocol's, so that they are cast, not mapped.
static_assert(static_cast<int>(SnapshotProgress::kCopying) == wire::SNAPSHOT_COPYING);
static_assert(static_cast<int>(SnapshotProgress::kFailed) == wire::SNAPSHOT_FAILED);
static_assert(static_cast<int>(TrainerEvent::Kind::kFenced) == wire::Event::FENCED);
static_assert(static_cast<int>(TrainerEvent::Kind::kSlotClosed) == wire::Event::SLOT_CLOSED);
static_assert(static_cast<int>(replication::ResumeMode::kFork) == wire::RESUME_FORK);
static_assert(client::kUuidBytesMax == replication::kUuidBytesMax);

SnapshotId FromWire(const wire::SnapshotRef& snapshot) {
  return {Generation(snapshot.generation()), Step(snapshot.step())};
}

replication::ShardClaim FromWire(const wire::Register& request) {
  replication::ShardClaim claim;
  claim.job = JobName(request.job());
  claim.token = request.token();
  claim.shard = ShardId(request.shard_id());
  claim.rank = Rank(request.rank());
  claim.world_size = request.world_size();
  claim.replicas = request.replicas();
  claim.versions = request.versions();
  claim.size_bytes = request.size_bytes();
  claim.numa_node = request.numa_node();
  claim.wait_for_slot = request.wait_for_slot();
  claim.generation = Generation(request.generation());
  if (request.has_missed_step()) claim.missed_step = Step(request.missed_step());
  return claim;
}

replication::ReconfigureRequest FromWire(const wire::Reconfigure& request) {
  replication::ReconfigureRequest out;
  out.uuid = AttemptUuid(request.uuid());
  out.rank = Rank(request.rank());
  out.world_size = request.world_size();
  out.shard = ShardId(request.shard_id());
  out.mode = static_cast<replication::ResumeMode>(request.mode());
  out.exact_step = Step(request.exact_step());
  out.drop_state = request.drop_state();
  out.fork_job = JobName(request.fork_job());
  out.timeout = std::chrono::milliseconds(request.timeout_ms());
  out.has_old_rank = request.has_old_rank();
  out.old_rank = Rank(request.old_rank());
  out.old_generation = Generation(request.old_generation());
  return out;
}

replication::FetchRequest FromWire(const wire::Fetch& request) {
  replication::FetchRequest out;
  out.job = JobName(request.job());
  out.snapshot = FromWire(request.snapshot());
  out.shard = ShardId(request.shard_id());
  out.whole = request.whole();
  out.for_restore = request.for_restore();
  return out;
}

replication::FinishRestoreRequest FromWire(const wire::FinishRestore& request) {
  replication::FinishRestoreRequest out;
  out.uuid = AttemptUuid(request.uuid());
  out.attempt = Attempt(request.attempt());
  out.ok = request.ok();
  out.error = request.error();
  out.bytes = request.bytes();
  out.timeout = std::chrono::milliseconds(request.timeout_ms());
  return out;
}

void ToWire(const Status& status, wire::StatusMessage& out) {
  out.set_code(static_cast<uint32_t>(status.code()));
  out.set_message(status.message());
}

void ToWire(const SnapshotId& snapshot, wire::SnapshotRef& out) {
  out.set_generation(snapshot.generation.value);
  out.set_step(snapshot.step.value);
}

void ToWire(const replication::ClaimReply& reply, wire::RegisterReply& out) {
  out.set_chunk_bytes(reply.chunk_bytes);
  out.set_reserved_bytes_local(reply.reserved_bytes_local);
  out.set_reserved_bytes_peers(reply.reserved_bytes_peers);
  for (const NodeId& node : reply.replica_nodes) out.add_replica_nodes(node.value);
}

void ToWire(const replication::BeginReply& reply, wire::BeginReply& out) {
  out.set_slot_id(reply.slot_id);
  out.set_size_bytes(reply.memory->data().size());
  out.set_control_bytes(reply.memory->control().size());
  out.set_generation(reply.generation.value);
  out.set_epoch(reply.epoch);
}

void ToWire(const replication::DecisionReply& reply, wire::Decision& out) {
  out.set_uuid(reply.uuid.value);
  out.set_generation(reply.generation.value);
  out.set_attempt(reply.attempt.value);
  out.set_fresh(reply.fresh);
  ToWire(reply.base, *out.mutable_base());
  out.set_base_root(reply.base_root);
  out.set_why(reply.why);
  out.set_shard_id(reply.shard.value);
  out.set_base_committed(reply.base_committed);
  out.set_base_job(reply.base_job.value);
}

void ToWire(const replication::FetchReply& reply, wire::FetchReply& out) {
  out.set_handle(reply.fetch.value);
  out.set_size_bytes(reply.memory->data().size());
  out.set_control_bytes(reply.memory->control().size());
  out.set_manifest(reply.manifest);
  out.set_digest(reply.digest);
  out.set_local(reply.local);
}

void ToWire(const replication::FinishRestoreReply& reply, wire::FinishRestoreReply& out) {
  out.set_resumed(reply.resumed);
  if (!reply.resumed) ToWire(reply.next, *out.mutable_next());
}

void ToWire(const replication::SnapshotIndexReply& reply, wire::SnapshotIndexReply& out) {
  ToWire(reply.snapshot, *out.mutable_snapshot());
  for (const std::string& manifest : reply.manifests) out.add_manifests(manifest);
}

void ToWire(const replication::QuerySnapshotReply& reply, wire::QuerySnapshotReply& out) {
  out.set_state(static_cast<wire::SnapshotState>(reply.progress));
  out.set_reason(reply.reason);
}

void ToWire(const TrainerEvent& event, wire::Event& out) {
  out.set_kind(static_cast<wire::Event::Kind>(event.kind));
  ToWire(event.snapshot, *out.mutable_snapshot());
  if (!event.status.ok()) ToWire(event.status, *out.mutable_status());
  out.set_generation(event.generation.value);
  out.set_slot_id(event.slot_id);
}

}  // namespace backstay::tools
