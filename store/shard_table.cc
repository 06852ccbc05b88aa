#include "store/shard_table.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"

namespace backstay::store {

std::string_view ShardRoleName(ShardRole role) {
  switch (role) {
    case ShardRole::kOwn:
      return "own";
    case ShardRole::kHeld:
      return "held";
    case ShardRole::kFetched:
      return "fetched";
  }
  return "unknown";
}

std::string_view ShardStateName(ShardState state) {
  switch (state) {
    case ShardState::kFilling:
      return "filling";
    case ShardState::kReceiving:
      return "receiving";
    case ShardState::kSealed:
      return "sealed";
    case ShardState::kQuarantined:
      return "quarantined";
  }
  return "unknown";
}

std::span<std::byte> Shard::ChunkBytes(uint64_t chunk) const {
  BACKSTAY_CHECK(chunk < ChunkCount(), "chunk out of range");
  const uint64_t offset_bytes = chunk * chunk_bytes;
  return memory->data().subspan(offset_bytes,
                                std::min<uint64_t>(chunk_bytes, size_bytes - offset_bytes));
}

ShardPin& ShardPin::operator=(ShardPin&& other) noexcept {
  if (this != &other) {
    Reset();
    pool_ = std::move(other.pool_);
    slot_ = other.slot_;
  }
  return *this;
}

void ShardPin::Reset() {
  if (const auto pool = std::exchange(pool_, {}).lock()) (*pool)->RemovePin(slot_);
}

ShardTable::ShardTable(SlotPool& pool)
    : pool_(pool), pool_alive_(std::make_shared<SlotPool*>(&pool)) {}

ShardTable::~ShardTable() = default;

Shard& ShardTable::Get(const ShardName& name) {
  const auto found = shards_.find(name);
  BACKSTAY_CHECK(found != shards_.end(), "no such shard: " + ToString(name));
  return *found->second;
}

const Shard& ShardTable::Get(const ShardName& name) const {
  return const_cast<ShardTable*>(this)->Get(name);
}

Shard& ShardTable::Insert(const ShardName& name, ShardRole role, const AcquiredSlot& slot) {
  auto shard = std::make_unique<Shard>();
  shard->name = name;
  shard->role = role;
  shard->slot = slot.id;
  shard->memory = slot.memory;
  shard->epoch = slot.epoch;
  shard->chunk_bytes = slot.memory->geometry().chunk_bytes;
  const auto [at, inserted] = shards_.emplace(name, std::move(shard));
  BACKSTAY_CHECK(inserted, "two shards of one name: " + ToString(name));
  return *at->second;
}

void ShardTable::Remove(const ShardName& name) {
  const SlotId slot = Get(name).slot;
  shards_.erase(name);
  pool_.GiveUp(slot);
}

// ---- A local save -------------------------------------------------------------------------------

Status ShardTable::AdmitName(const ShardName& name) const {
  const auto begun = newest_begun_.find({name.job, name.shard});
  if (begun != newest_begun_.end() && name.snapshot <= begun->second) {
    const SnapshotId newest = begun->second;
    std::string message = "begin " + ToString(name) + ": " + ToString(newest) +
                          " was begun already; a step is saved once, in growing order";
    return name.snapshot.generation < newest.generation ? Stale(std::move(message))
                                                        : InvalidArgument(std::move(message));
  }
  if (shards_.contains(name)) {
    return InvalidArgument("begin " + ToString(name) + ": a copy of it is held here already");
  }
  return Status::Ok();
}

Result<const Shard*> ShardTable::Begin(const BeginRequest& request) {
  BACKSTAY_RETURN_IF_ERROR(AdmitName(request.name));
  if (request.world_size == 0 || request.rank.value >= request.world_size) {
    return InvalidArgument("begin " + ToString(request.name) + ": rank " +
                           std::to_string(request.rank.value) + " of world size " +
                           std::to_string(request.world_size));
  }
  BACKSTAY_ASSIGN_OR_RETURN(const AcquiredSlot slot,
                            pool_.Acquire(request.reservation, request.client));
  newest_begun_[{request.name.job, request.name.shard}] = request.name.snapshot;
  Shard& shard = Insert(request.name, ShardRole::kOwn, slot);
  shard.state = ShardState::kFilling;
  shard.rank = request.rank;
  shard.world_size = request.world_size;
  shard.client = request.client;
  shard.began_unix_ms = request.unix_ms;
  shard.slot_bytes = pool_.Find(request.reservation)->slot_bytes;
  return &shard;
}

Status ShardTable::StartCopy(const ShardName& name, uint64_t size_bytes,
                             std::string_view contents_bytes) {
  const auto found = shards_.find(name);
  if (found == shards_.end() || found->second->state != ShardState::kFilling) {
    return InvalidArgument("copy " + ToString(name) + ": it is not begun");
  }
  Shard& shard = *found->second;
  if (size_bytes > shard.slot_bytes) {
    return InvalidArgument("copy " + ToString(name) + ": " + std::to_string(size_bytes) +
                           " bytes, registered are " + std::to_string(shard.slot_bytes) +
                           ": resize the shard first");
  }
  BACKSTAY_ASSIGN_OR_RETURN(ShardContents contents, DecodeContents(contents_bytes, size_bytes));
  if (shard.copy_started) {
    if (shard.size_bytes == size_bytes && shard.contents == contents) return Status::Ok();
    return InvalidArgument("copy " + ToString(name) + ": its copy has started with other contents");
  }
  shard.copy_started = true;
  shard.size_bytes = size_bytes;
  shard.contents = std::move(contents);
  SlotControlWriter(shard.memory->control(), shard.memory->geometry()).SetUsedBytes(size_bytes);
  return Status::Ok();
}

Status ShardTable::SealOnce(Shard& shard, int64_t unix_ms) {
  if (!shard.copy_started) {
    return InvalidArgument("seal " + ToString(shard.name) + ": its copy has not started");
  }
  auto manifest = std::make_shared<Manifest>();
  manifest->name = shard.name;
  manifest->rank = shard.rank;
  manifest->world_size = shard.world_size;
  manifest->size_bytes = shard.size_bytes;
  manifest->chunk_bytes = shard.chunk_bytes;
  manifest->created_unix_ms = unix_ms;
  manifest->chunk_checksums.reserve(shard.ChunkCount());
  const SlotControlView control = shard.control();
  for (uint64_t chunk = 0; chunk < shard.ChunkCount(); ++chunk) {
    if (!control.IsReady(chunk)) {
      return InvalidArgument("seal " + ToString(shard.name) + ": chunk " + std::to_string(chunk) +
                             " of " + std::to_string(shard.ChunkCount()) + " is not copied");
    }
    manifest->chunk_checksums.push_back(control.Checksum(chunk));
  }
  manifest->contents = shard.contents;
  BACKSTAY_ASSIGN_OR_RETURN(std::string manifest_bytes, EncodeManifest(*manifest));

  shard.digest = ManifestDigest(manifest_bytes);
  shard.manifest_bytes = std::move(manifest_bytes);
  shard.manifest = std::move(manifest);
  shard.contents = {};
  shard.client.reset();
  shard.state = ShardState::kSealed;
  pool_.Seal(shard.slot);
  ApplyCommitted(shard);
  return Status::Ok();
}

Result<Hash128> ShardTable::Seal(const ShardName& name, int64_t unix_ms) {
  const auto found = shards_.find(name);
  if (found == shards_.end() || found->second->role != ShardRole::kOwn) {
    return InvalidArgument("seal " + ToString(name) + ": it is not begun");
  }
  Shard& shard = *found->second;
  if (shard.state == ShardState::kFilling) {
    BACKSTAY_RETURN_IF_ERROR(SealOnce(shard, unix_ms));
  }
  return shard.digest;
}

// ---- Letting go ---------------------------------------------------------------------------------

Status ShardTable::Abandon(const ShardName& name) {
  const Shard* shard = Find(name);
  if (shard == nullptr) return NotFound("abandon " + ToString(name) + ": it is not begun");
  if (shard->state != ShardState::kFilling && shard->state != ShardState::kReceiving) {
    return InvalidArgument("abandon " + ToString(name) + ": it is sealed already");
  }
  Remove(name);
  return Status::Ok();
}

Status ShardTable::Drop(const ShardName& name) {
  if (Find(name) == nullptr) return Status::Ok();
  if (IsPinned(name)) {
    return Unavailable("let go of " + ToString(name) + ": it is being read or restored");
  }
  Remove(name);
  return Status::Ok();
}

void ShardTable::DropJob(const JobName& job) {
  for (const Shard* shard : ShardsOf(job)) {
    const bool unsealed =
        shard->state == ShardState::kFilling || shard->state == ShardState::kReceiving;
    if (!unsealed) Remove(ShardName(shard->name));
  }
  std::erase_if(newest_begun_, [&](const auto& begun) { return begun.first.first == job; });
  committed_.erase(job);
}

void ShardTable::Quarantine(const ShardName& name, std::string reason) {
  Shard& shard = Get(name);
  BACKSTAY_CHECK(shard.state == ShardState::kSealed || shard.state == ShardState::kQuarantined,
                 "only sealed shards are set aside: " + ToString(name));
  shard.state = ShardState::kQuarantined;
  shard.quarantine_reason = std::move(reason);
}

void ShardTable::MarkCommitted(const JobName& job, SnapshotId snapshot, const Hash128& root) {
  std::map<SnapshotId, Hash128>& roots = committed_[job];
  roots[snapshot] = root;
  if (roots.size() > kCommitsRememberedMax) roots.erase(roots.begin());
  for (const Shard* shard : ShardsOf(job, snapshot)) {
    Shard& marked = Get(shard->name);
    marked.committed = true;
    marked.root = root;
  }
}

void ShardTable::ApplyCommitted(Shard& shard) {
  const auto job = committed_.find(shard.name.job);
  if (job == committed_.end()) return;
  const auto root = job->second.find(shard.name.snapshot);
  if (root == job->second.end()) return;
  shard.committed = true;
  shard.root = root->second;
}

// ---- Looking ------------------------------------------------------------------------------------

const Shard* ShardTable::Find(const ShardName& name) const {
  const auto found = shards_.find(name);
  return found == shards_.end() ? nullptr : found->second.get();
}

Result<const Shard*> ShardTable::FindSealed(const ShardName& name) const {
  const Shard* shard = Find(name);
  if (shard == nullptr) {
    return NotFound(ToString(name) + " is not on this node; of the job there is " +
                    NearestSteps(name.job, name.snapshot.step));
  }
  if (shard->state == ShardState::kQuarantined) {
    return Corrupt(ToString(name) + " was set aside: " + shard->quarantine_reason);
  }
  if (!shard->sealed()) return Unavailable(ToString(name) + " is not complete yet");
  return shard;
}

std::vector<const Shard*> ShardTable::ShardsOf(const JobName& job) const {
  std::vector<const Shard*> shards;
  for (auto it = shards_.lower_bound({job, {}, {}}); it != shards_.end() && it->first.job == job;
       ++it) {
    shards.push_back(it->second.get());
  }
  return shards;
}

std::vector<const Shard*> ShardTable::ShardsOf(const JobName& job, SnapshotId snapshot) const {
  std::vector<const Shard*> shards;
  for (auto it = shards_.lower_bound({job, snapshot, {}});
       it != shards_.end() && it->first.job == job && it->first.snapshot == snapshot; ++it) {
    shards.push_back(it->second.get());
  }
  return shards;
}

std::vector<const Shard*> ShardTable::All() const {
  std::vector<const Shard*> shards;
  for (const auto& [name, shard] : shards_) shards.push_back(shard.get());
  return shards;
}

std::string ShardTable::NearestSteps(const JobName& job, Step step) const {
  std::set<Step> steps;
  for (const Shard* shard : ShardsOf(job)) {
    if (shard->sealed()) steps.insert(shard->name.snapshot.step);
  }
  const auto above = steps.lower_bound(step);
  const bool has_below = above != steps.begin();
  const bool has_above = above != steps.end();
  if (!has_below && !has_above) return "no step";
  if (!has_below) return "step " + std::to_string(above->value);
  const std::string below = std::to_string(std::prev(above)->value);
  if (!has_above) return "step " + below;
  return "steps " + below + " and " + std::to_string(above->value);
}

ShardPin ShardTable::Pin(const ShardName& name) {
  const SlotId slot = Get(name).slot;
  pool_.AddPin(slot);
  return ShardPin(pool_alive_, slot);
}

bool ShardTable::IsPinned(const ShardName& name) const {
  return pool_.slot(Get(name).slot).pin_count() > 0;
}

SlotId ShardTable::BeginGrant(const ShardName& name) {
  const SlotId slot = Get(name).slot;
  pool_.AddGrant(slot);
  return slot;
}

}  // namespace backstay::store
