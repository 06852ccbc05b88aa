#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/ids.h"
#include "base/slot_control.h"
#include "base/status.h"
#include "store/manifest.h"
#include "store/slot_pool.h"

namespace backstay::store {

// Commits of a job whose roots are remembered, for shards that arrive after their commit. More than
// any retention keeps.
inline constexpr size_t kCommitsRememberedMax = 64;

enum class ShardRole : uint8_t {
  kOwn,      // A local trainer saved it: this node is its primary.
  kHeld,     // A replica for a peer.
  kFetched,  // Brought in for a restore.
};
enum class ShardState : uint8_t {
  kFilling,      // A local client copies into it.
  kReceiving,    // It is being pulled.
  kSealed,       // Immutable: manifest and digest are fixed.
  kQuarantined,  // Sealed, and chunks of it were found bad: never served, kept to be looked at.
};
std::string_view ShardRoleName(ShardRole role);
std::string_view ShardStateName(ShardState state);

// One shard in this node's memory. Read-only for all but the table; valid until it is dropped.
struct Shard {
  ShardName name;
  ShardRole role = ShardRole::kOwn;
  ShardState state = ShardState::kFilling;
  Rank rank;                // Of an own shard from Begin(), else with the manifest.
  uint32_t world_size = 0;  // As rank.
  SlotId slot;
  std::shared_ptr<SlotMemory> memory;
  uint64_t epoch = 0;              // Of the control page.
  std::optional<ClientId> client;  // That fills it (kFilling).
  int64_t began_unix_ms = 0;

  uint64_t slot_bytes = 0;  // The largest size_bytes that it may get.
  uint64_t size_bytes = 0;  // Known from StartCopy() or BeginReceive() on.
  uint32_t chunk_bytes = 0;
  bool copy_started = false;  // kFilling: size_bytes and contents are known.
  ShardContents contents;     // kFilling: what the client announced. Later in the manifest.

  std::shared_ptr<const Manifest> manifest;  // From the seal on, or when a peer's has arrived.
  std::string manifest_bytes;                // Verbatim.
  Hash128 digest;
  std::vector<std::optional<Hash128>> received;  // kReceiving: hashes of what is in the slot.

  bool committed = false;
  Hash128 root;  // Of the committed snapshot.
  std::string quarantine_reason;

  uint64_t ChunkCount() const { return CeilDiv(size_bytes, chunk_bytes); }
  bool sealed() const { return state == ShardState::kSealed; }
  std::span<const std::byte> bytes() const { return memory->data().first(size_bytes); }
  std::span<std::byte> ChunkBytes(uint64_t chunk) const;  // To pull into, while kReceiving.
  SlotControlView control() const { return SlotControlView(memory->control(), memory->geometry()); }
};

// Keeps a shard's bytes where and as they are. Does nothing once the pool is gone.
//
// Thread: the control executor. What it protects may be read on any thread while it is held.
class ShardPin {
 public:
  ShardPin() = default;
  ShardPin(ShardPin&&) noexcept = default;
  ShardPin& operator=(ShardPin&& other) noexcept;
  ~ShardPin() { Reset(); }
  void Reset();

 private:
  friend class ShardTable;
  ShardPin(std::weak_ptr<SlotPool*> pool, SlotId slot) : pool_(std::move(pool)), slot_(slot) {}
  std::weak_ptr<SlotPool*> pool_;
  SlotId slot_;
};

// The shards of a node by name, and the rules that make them immutable and their names unique.
// Knows nothing of transports and peers: who exports a shard's memory calls BeginGrant() and
// EndGrant().
//
// Thread:  the control executor.
// Memory:  each shard has one slot of the pool, given up when the shard is dropped.
// Failure: kNotFound names the nearest steps that exist. Values from clients and peers are checked
//          and refused; misuse by our own code stops the process.
class ShardTable {
 public:
  explicit ShardTable(SlotPool& pool);
  ~ShardTable();

  // ---- A local save -----------------------------------------------------------------------------

  struct BeginRequest {
    ShardName name;
    Rank rank;
    uint32_t world_size = 0;
    ReservationId reservation;
    std::optional<ClientId> client;
    int64_t unix_ms = 0;
  };
  // Takes a slot for `name`. One name, one content: each (job, shard) begins its snapshots in
  // growing order, also over failed and abandoned ones. kStale: an older generation.
  // kInvalidArgument: this step or a later one was begun. kUnavailable: no slot is free.
  Result<const Shard*> Begin(const BeginRequest& request);
  // The size and contents of what is being copied; peers may read from here on. kInvalidArgument:
  // larger than registered, bad contents, or other ones than before.
  Status StartCopy(const ShardName& name, uint64_t size_bytes, std::string_view contents_bytes);
  // All chunks are published. Copies their checksums out of the control page, once, and fixes
  // manifest and digest. kInvalidArgument: chunks are missing, or the copy was not started. A shard
  // that is sealed answers with its digest again.
  Result<Hash128> Seal(const ShardName& name, int64_t unix_ms);

  // ---- A replica or a restored shard ------------------------------------------------------------

  struct ReceiveRequest {
    ShardName name;
    ShardRole role = ShardRole::kHeld;
    uint64_t size_bytes = 0;
    uint32_t chunk_bytes = 0;
    ReservationId reservation;
    int64_t unix_ms = 0;
  };
  // Takes a slot to pull into; in the place of a quarantined shard of that name, if there is one.
  // kInvalidArgument: the name is here already, or does not fit the reservation. kUnavailable: no
  // slot is free.
  Result<const Shard*> BeginReceive(const ReceiveRequest& request);
  // A chunk with this hash is in the slot. Published on the control page once it is known to be
  // the manifest's.
  void ChunkReceived(const ShardName& name, uint64_t chunk, const Hash128& hash);
  // The peer's sealed manifest. Chunks received before that differ from it are forgotten; see
  // MissingChunks(). kCorrupt: not `digest`. kInvalidArgument: of another shard, size or format, or
  // another digest than the one accepted before.
  Status AcceptManifest(const ShardName& name, std::string manifest_bytes, const Hash128& digest);
  // Chunks of a kReceiving shard that are not there as the manifest (or, without one yet, anybody)
  // says.
  std::vector<uint64_t> MissingChunks(const ShardName& name) const;
  // Every chunk is there and verified: the shard is a replica from here on. kUnavailable: not yet.
  Status SealReceived(const ShardName& name);
  // The chunk's bytes in the slot were found bad after all: it is missing again. kUnavailable: the
  // shard is sealed, so it has to be quarantined and received anew.
  Status ForgetChunk(const ShardName& name, uint64_t chunk);
  // No copy of the chunk can be had: whoever waits on the control page learns it.
  void ChunkFailed(const ShardName& name, uint64_t chunk);

  // ---- Letting go -------------------------------------------------------------------------------

  // Gives up an unsealed shard. kInvalidArgument after the seal; kNotFound.
  Status Abandon(const ShardName& name);
  // Lets go of a shard. kUnavailable while it is pinned: try again later. Grants do not hinder it,
  // they only keep the slot revoking.
  Status Drop(const ShardName& name);
  // The job has ended: its sealed shards go, and what is remembered of its names. Pins and grants
  // keep their slots alone. A shard that is being filled or received stays: whoever does that gives
  // it up.
  void DropJob(const JobName& job);
  // Chunks were found bad: never served again. Kept until dropped.
  void Quarantine(const ShardName& name, std::string reason);

  // All shards of the snapshot, also ones that arrive later.
  void MarkCommitted(const JobName& job, SnapshotId snapshot, const Hash128& root);

  // ---- Looking ----------------------------------------------------------------------------------

  const Shard* Find(const ShardName& name) const;
  // Sealed, or why not: kNotFound with the nearest steps, kUnavailable (not sealed yet), kCorrupt
  // (quarantined).
  Result<const Shard*> FindSealed(const ShardName& name) const;
  // In name order.
  std::vector<const Shard*> ShardsOf(const JobName& job) const;
  std::vector<const Shard*> ShardsOf(const JobName& job, SnapshotId snapshot) const;
  std::vector<const Shard*> All() const;
  // "steps 100 and 120" around `step` of what is here; "no step" when there is none.
  std::string NearestSteps(const JobName& job, Step step) const;

  // Keeps the shard from being dropped, and its slot from being reused.
  [[nodiscard]] ShardPin Pin(const ShardName& name);
  bool IsPinned(const ShardName& name) const;
  // Somebody was given permission to read the slot. The answer names the slot to EndGrant(), which
  // is called when the grant has *ended*, the shard dropped or not.
  SlotId BeginGrant(const ShardName& name);
  void EndGrant(SlotId slot) { pool_.RemoveGrant(slot); }

 private:
  Shard& Get(const ShardName& name);
  const Shard& Get(const ShardName& name) const;
  Status AdmitName(const ShardName& name) const;
  Shard& Insert(const ShardName& name, ShardRole role, const AcquiredSlot& slot);
  void Remove(const ShardName& name);
  Status SealOnce(Shard& shard, int64_t unix_ms);
  void ApplyCommitted(Shard& shard);

  SlotPool& pool_;
  std::shared_ptr<SlotPool*> pool_alive_;  // Pins hold it weakly.
  std::map<ShardName, std::unique_ptr<Shard>> shards_;
  // The newest snapshot that each own shard has begun.
  std::map<std::pair<JobName, ShardId>, SnapshotId> newest_begun_;
  std::map<JobName, std::map<SnapshotId, Hash128>> committed_;  // Roots of the newest commits.
};

}  // namespace backstay::store
