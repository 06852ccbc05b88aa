// ShardTable, the part for shards that are pulled from peers: chunks come before or after the
// manifest that they are checked against.

#include <utility>

#include "base/check.h"
#include "store/shard_table.h"

namespace backstay::store {

namespace {

SlotControlWriter Control(const Shard& shard) {
  return SlotControlWriter(shard.memory->control(), shard.memory->geometry());
}

Status CheckFits(const ShardTable::ReceiveRequest& request, const ReservationRequest& reserved) {
  if (request.size_bytes > reserved.slot_bytes) {
    return InvalidArgument("receive " + ToString(request.name) + ": " +
                           std::to_string(request.size_bytes) + " bytes, reserved are " +
                           std::to_string(reserved.slot_bytes));
  }
  if (request.chunk_bytes != reserved.chunk_bytes) {
    return InvalidArgument("receive " + ToString(request.name) + ": chunks of " +
                           std::to_string(request.chunk_bytes) + " bytes, reserved are chunks of " +
                           std::to_string(reserved.chunk_bytes));
  }
  return Status::Ok();
}

}  // namespace

Result<const Shard*> ShardTable::BeginReceive(const ReceiveRequest& request) {
  const Shard* existing = Find(request.name);
  if (existing != nullptr && existing->state != ShardState::kQuarantined) {
    return InvalidArgument("receive " + ToString(request.name) + ": it is here already (" +
                           std::string(ShardStateName(existing->state)) + ")");
  }
  const std::optional<ReservationRequest> reserved = pool_.Find(request.reservation);
  if (!reserved) return NotFound("receive " + ToString(request.name) + ": nothing is reserved");
  BACKSTAY_RETURN_IF_ERROR(CheckFits(request, *reserved));
  BACKSTAY_ASSIGN_OR_RETURN(const AcquiredSlot slot,
                            pool_.Acquire(request.reservation, std::nullopt));
  if (existing != nullptr) Remove(request.name);
  Shard& shard = Insert(request.name, request.role, slot);
  shard.state = ShardState::kReceiving;
  shard.began_unix_ms = request.unix_ms;
  shard.slot_bytes = reserved->slot_bytes;
  shard.size_bytes = request.size_bytes;
  shard.received.resize(shard.ChunkCount());
  Control(shard).SetUsedBytes(request.size_bytes);
  return &shard;
}

void ShardTable::ChunkReceived(const ShardName& name, uint64_t chunk, const Hash128& hash) {
  Shard& shard = Get(name);
  BACKSTAY_CHECK(shard.state == ShardState::kReceiving && chunk < shard.ChunkCount(),
                 "a chunk for a shard that does not wait for it: " + ToString(name));
  shard.received[chunk] = hash;
  if (shard.manifest == nullptr) return;
  if (hash == shard.manifest->chunk_checksums[chunk]) {
    Control(shard).Publish(chunk, hash);
  } else {
    shard.received[chunk].reset();
    Control(shard).Retract(chunk);
  }
}

Status ShardTable::AcceptManifest(const ShardName& name, std::string manifest_bytes,
                                  const Hash128& digest) {
  const auto found = shards_.find(name);
  if (found == shards_.end()) return NotFound("accept the manifest of " + ToString(name));
  Shard& shard = *found->second;
  const std::string what = "manifest of " + ToString(name);
  if (shard.manifest != nullptr) {
    if (shard.digest == digest) return Status::Ok();
    return InvalidArgument(what + ": digest " + digest.ToHex() + ", but here it has digest " +
                           shard.digest.ToHex() + ": one name has two contents");
  }
  if (shard.state != ShardState::kReceiving) {
    return InvalidArgument(what + ": the shard is being saved here");
  }
  if (ManifestDigest(manifest_bytes) != digest) {
    return Corrupt(what + ": its bytes do not match digest " + digest.ToHex());
  }
  BACKSTAY_ASSIGN_OR_RETURN(Manifest manifest, DecodeManifest(manifest_bytes));
  if (manifest.name != name || manifest.size_bytes != shard.size_bytes ||
      manifest.chunk_bytes != shard.chunk_bytes) {
    return InvalidArgument(what + ": it describes " + ToString(manifest.name) + " of " +
                           std::to_string(manifest.size_bytes) + " bytes in chunks of " +
                           std::to_string(manifest.chunk_bytes) + ", announced were " +
                           std::to_string(shard.size_bytes) + " in chunks of " +
                           std::to_string(shard.chunk_bytes));
  }
  shard.rank = manifest.rank;
  shard.world_size = manifest.world_size;
  shard.digest = digest;
  shard.manifest_bytes = std::move(manifest_bytes);
  shard.manifest = std::make_shared<const Manifest>(std::move(manifest));
  for (uint64_t chunk = 0; chunk < shard.ChunkCount(); ++chunk) {
    if (const std::optional<Hash128> hash = shard.received[chunk]) {
      ChunkReceived(name, chunk, *hash);
    }
  }
  return Status::Ok();
}

std::vector<uint64_t> ShardTable::MissingChunks(const ShardName& name) const {
  const Shard& shard = Get(name);
  std::vector<uint64_t> missing;
  for (uint64_t chunk = 0; chunk < shard.received.size(); ++chunk) {
    if (!shard.received[chunk]) missing.push_back(chunk);
  }
  return missing;
}

Status ShardTable::SealReceived(const ShardName& name) {
  Shard& shard = Get(name);
  if (shard.state == ShardState::kSealed) return Status::Ok();
  BACKSTAY_CHECK(shard.state == ShardState::kReceiving, "only received shards: " + ToString(name));
  if (shard.manifest == nullptr) {
    return Unavailable(ToString(name) + ": its manifest has not come yet");
  }
  if (const size_t missing = MissingChunks(name).size(); missing > 0) {
    return Unavailable(ToString(name) + ": " + std::to_string(missing) + " of " +
                       std::to_string(shard.ChunkCount()) + " chunks have not come yet");
  }
  shard.received.clear();
  shard.state = ShardState::kSealed;
  pool_.Seal(shard.slot);
  ApplyCommitted(shard);
  return Status::Ok();
}

Status ShardTable::ForgetChunk(const ShardName& name, uint64_t chunk) {
  const auto found = shards_.find(name);
  if (found == shards_.end()) return NotFound("read a chunk of " + ToString(name) + " again");
  Shard& shard = *found->second;
  if (shard.state != ShardState::kReceiving) {
    return Unavailable("read a chunk of " + ToString(name) + " again: it is " +
                       std::string(ShardStateName(shard.state)));
  }
  if (chunk >= shard.ChunkCount()) {
    return InvalidArgument(ToString(name) + " has no chunk " + std::to_string(chunk));
  }
  shard.received[chunk].reset();
  Control(shard).Retract(chunk);
  return Status::Ok();
}

void ShardTable::ChunkFailed(const ShardName& name, uint64_t chunk) {
  const Shard& shard = Get(name);
  BACKSTAY_CHECK(shard.state == ShardState::kReceiving && chunk < shard.ChunkCount(),
                 "a chunk for a shard that does not wait for it: " + ToString(name));
  Control(shard).PublishFailed(chunk);
}

}  // namespace backstay::store
