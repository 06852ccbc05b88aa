#include "replication/commit_tracker.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "replication/job_limits.h"
#include "replication/wire_convert.h"

namespace backstay::replication {
namespace {

constexpr size_t kDigestBytes = 16;  // Hash128.
constexpr int kTagsMax = 64;         // Of one shard.

std::string RankText(uint32_t rank) { return "rank " + std::to_string(rank); }

Status CheckNames(const wire::ShardRef& shard, uint32_t rank, uint32_t world_size) {
  if (shard.shard_id().empty() || shard.shard_id().size() > kNameBytesMax) {
    return InvalidArgument("a shard's name has 1 to " + std::to_string(kNameBytesMax) + " bytes");
  }
  if (world_size < 1 || world_size > kWorldSizeMax || rank >= world_size) {
    return InvalidArgument("shard " + shard.shard_id() + " is of rank " + std::to_string(rank) +
                           " of " + std::to_string(world_size) + ", which cannot be");
  }
  return Status::Ok();
}

Status CheckReport(const wire::ShardReport& report) {
  BACKSTAY_RETURN_IF_ERROR(CheckNames(report.shard(), report.rank(), report.world_size()));
  const std::string text = "the report on shard " + report.shard().shard_id();
  if (!report.digest().empty() && report.digest().size() != kDigestBytes) {
    return InvalidArgument(text + " has a digest of " + std::to_string(report.digest().size()) +
                           " bytes");
  }
  if (report.holders_size() > static_cast<int>(CommitTracker::kHoldersMax)) {
    return InvalidArgument(text + " names " + std::to_string(report.holders_size()) + " holders");
  }
  if (report.tags_size() > kTagsMax) {
    return InvalidArgument(text + " has " + std::to_string(report.tags_size()) + " tags");
  }
  return Status::Ok();
}

std::vector<wire::Tag> SortedTags(const google::protobuf::RepeatedPtrField<wire::Tag>& tags) {
  std::vector<wire::Tag> sorted(tags.begin(), tags.end());
  std::ranges::sort(sorted, {}, [](const wire::Tag& tag) { return tag.name(); });
  return sorted;
}

// The name of the first tag on which two ranks differ.
std::string DifferentTag(const std::vector<wire::Tag>& a, const std::vector<wire::Tag>& b) {
  size_t i = 0;
  while (i < a.size() && i < b.size() && a[i].name() == b[i].name() &&
         a[i].value() == b[i].value()) {
    ++i;
  }
  return i < a.size() ? a[i].name() : b[i].name();
}

}  // namespace

void CommitTracker::SetPolicy(uint32_t replica_count) {
  if (replica_count == replica_count_) return;
  replica_count_ = replica_count;
  RecountAll();
}

void CommitTracker::SetLive(LiveDomains live) {
  if (live == live_) return;
  live_ = std::move(live);
  RecountAll();
}

void CommitTracker::RecountAll() {
  for (auto& [id, snapshot] : snapshots_) {
    for (auto& [shard_id, shard] : snapshot.shards) Recount(snapshot, shard);
    NotePassedOver(snapshot);
    NoteLost(snapshot);
  }
}

TrackedSnapshot* CommitTracker::FindOrAdd(const SnapshotId& id, uint32_t world_size, Instant now) {
  const auto it = snapshots_.find(id);
  if (it != snapshots_.end()) return &it->second;
  if (snapshots_.size() >= kSnapshotsMax) return nullptr;
  TrackedSnapshot& snapshot = snapshots_[id];
  snapshot.id = id;
  snapshot.world_size = world_size;
  snapshot.first_seen = now;
  return &snapshot;
}

const TrackedSnapshot* CommitTracker::Find(const SnapshotId& id) const {
  const auto it = snapshots_.find(id);
  return it == snapshots_.end() ? nullptr : &it->second;
}

uint32_t CommitTracker::CountLiveDomains(const TrackedShard& shard) const {
  std::vector<const std::string*> domains;
  for (const NodeInstance& holder : shard.holders) {
    const auto it = live_.find(holder);
    if (it == live_.end()) continue;
    const auto same = [&](const std::string* domain) { return *domain == it->second; };
    if (std::ranges::none_of(domains, same)) domains.push_back(&it->second);
  }
  return static_cast<uint32_t>(domains.size());
}

void CommitTracker::Recount(TrackedSnapshot& snapshot, TrackedShard& shard) {
  shard.live_domains = CountLiveDomains(shard);
  const bool counts = IsShardProtected(shard);
  if (counts && !shard.is_counted) ++snapshot.protected_count;
  if (!counts && shard.is_counted) --snapshot.protected_count;
  shard.is_counted = counts;
}

bool CommitTracker::IsShardProtected(const TrackedShard& shard) const {
  return !shard.digest.empty() && shard.live_domains > replica_count_;
}

void CommitTracker::SetDigest(TrackedSnapshot& snapshot, const ShardId& id, TrackedShard& shard,
                              const std::string& digest, uint64_t size_bytes) {
  if (digest.empty()) return;
  if (shard.digest.empty()) {
    shard.digest = digest;
    shard.size_bytes = size_bytes;
    snapshot.bytes += size_bytes;
    ++snapshot.sealed_count;
  } else if (shard.digest != digest && snapshot.conflict.empty()) {
    snapshot.conflict = "shard " + id.value + " was sealed with two contents";
  }
}

void CommitTracker::AddHolder(TrackedShard& shard, const NodeInstance& holder) {
  // A later start of a node does not have what an earlier one verified, unless it says so itself.
  std::erase_if(shard.holders, [&](const NodeInstance& other) {
    return other.node == holder.node && other.incarnation < holder.incarnation;
  });
  const bool later_known = std::ranges::any_of(shard.holders, [&](const NodeInstance& other) {
    return other.node == holder.node && other.incarnation > holder.incarnation;
  });
  if (later_known) return;
  if (shard.holders.size() >= kHoldersMax) {
    // The dead count for nothing: they make room.
    std::erase_if(shard.holders, [&](const NodeInstance& other) { return !live_.contains(other); });
  }
  if (shard.holders.size() < kHoldersMax) shard.holders.insert(holder);
}

TrackedShard* CommitTracker::FindOrAddShard(TrackedSnapshot& snapshot, const ShardId& id,
                                            uint32_t rank, uint32_t world_size) {
  TrackedShard& shard = snapshot.shards[id];
  if (shard.world_size == 0) {
    shard.rank = rank;
    shard.world_size = world_size;
  }
  if (snapshot.conflict.empty()) {
    if (world_size != snapshot.world_size) {
      snapshot.conflict = RankText(rank) + " counts " + std::to_string(world_size) +
                          " ranks, others " + std::to_string(snapshot.world_size);
    } else if (rank != shard.rank) {
      snapshot.conflict =
          "shard " + id.value + " was saved by " + RankText(shard.rank) + " and " + RankText(rank);
    }
  }
  return &shard;
}

void CommitTracker::NoteBegun(const SnapshotId& id, const ShardId& shard,
                              const NodeInstance& from) {
  const auto known = newest_begun_.find(shard);
  if (known != newest_begun_.end() && known->second.id >= id) return;
  if (known == newest_begun_.end() && newest_begun_.size() >= kWorldSizeMax) return;
  newest_begun_[shard] = {id, from};
  for (auto it = snapshots_.begin(); it != snapshots_.end() && it->first < id; ++it) {
    NotePassedOver(it->second);
  }
}

void CommitTracker::NotePassedOver(TrackedSnapshot& snapshot) const {
  if (!snapshot.passed_over.empty()) return;
  for (const auto& [shard, newest] : newest_begun_) {
    if (newest.id.generation != snapshot.id.generation || newest.id <= snapshot.id) continue;
    const auto part = snapshot.shards.find(shard);
    if (part == snapshot.shards.end()) {
      snapshot.passed_over = "shard " + shard.value + " was not saved at this step";
    } else if (part->second.live_domains == 0 && part->second.reporter != newest.reporter) {
      snapshot.passed_over = "what was saved of shard " + shard.value + " was lost with " +
                             ToString(part->second.reporter);
    } else {
      continue;
    }
    snapshot.passed_over +=
        ": its rank has begun step " + std::to_string(newest.id.step.value) + " already";
    return;
  }
}

bool CommitTracker::HasLaterStart(const NodeInstance& node) const {
  const auto later = live_.upper_bound(node);
  return later != live_.end() && later->first.node == node.node;
}

void CommitTracker::NoteLost(TrackedSnapshot& snapshot) const {
  if (!snapshot.passed_over.empty()) return;
  for (const auto& [id, shard] : snapshot.shards) {
    if (shard.live_domains > 0 || !HasLaterStart(shard.reporter)) continue;
    snapshot.passed_over =
        "what was saved of shard " + id.value + " was lost with " + ToString(shard.reporter);
    return;
  }
}

Status CommitTracker::OnReport(const NodeInstance& from, const wire::ShardReport& report,
                               Instant now) {
  BACKSTAY_RETURN_IF_ERROR(CheckReport(report));
  const SnapshotId id = FromWire(report.shard().snapshot());
  const ShardId shard_id(report.shard().shard_id());
  // Also where the snapshot itself is one too many: it shows which older ones were passed over, and
  // with those gone there is room again.
  if (report.began_unix_ms() != 0) NoteBegun(id, shard_id, from);
  TrackedSnapshot* snapshot = FindOrAdd(id, report.world_size(), now);
  if (snapshot == nullptr) {
    return NoSpace("the leader follows " + std::to_string(kSnapshotsMax) +
                   " snapshots of the job, " + ToString(id) + " would be one more");
  }
  if (!snapshot->shards.contains(shard_id) && snapshot->shards.size() >= snapshot->world_size) {
    // Another name for a rank: no permutation any more, whatever else is reported.
    snapshot->conflict = "shard " + shard_id.value + " is one more than there are ranks";
    return InvalidArgument(ToString(id) + ": " + snapshot->conflict);
  }
  TrackedShard& shard = *FindOrAddShard(*snapshot, shard_id, report.rank(), report.world_size());
  NotePassedOver(*snapshot);
  if (report.began_unix_ms() != 0 &&
      (snapshot->began_unix_ms == 0 || report.began_unix_ms() < snapshot->began_unix_ms)) {
    snapshot->began_unix_ms = report.began_unix_ms();
  }
  SetDigest(*snapshot, shard_id, shard, report.digest(), report.size_bytes());
  if (report.digest() == shard.digest && !shard.digest.empty()) {
    shard.tags = SortedTags(report.tags());
    for (const wire::Instance& holder : report.holders()) {
      AddHolder(shard, {NodeId(holder.node_id()), Incarnation(holder.incarnation())});
    }
  }
  shard.progress = std::max(shard.progress, report.progress());
  shard.reporter = from;
  if (report.failed()) {
    shard.error = report.error().empty() ? std::string("no reason given") : report.error();
    snapshot->failed.insert(shard_id);
  }
  Recount(*snapshot, shard);
  return Status::Ok();
}

Status CommitTracker::OnHeld(const NodeInstance& from, const wire::HeldShard& held, Instant now) {
  BACKSTAY_RETURN_IF_ERROR(CheckNames(held.shard(), held.rank(), held.world_size()));
  if (held.digest().size() != kDigestBytes) {
    return InvalidArgument("a held shard has a digest of " + std::to_string(held.digest().size()) +
                           " bytes");
  }
  const SnapshotId id = FromWire(held.shard().snapshot());
  const ShardId shard_id(held.shard().shard_id());
  TrackedSnapshot* snapshot = FindOrAdd(id, held.world_size(), now);
  if (snapshot == nullptr ||
      (!snapshot->shards.contains(shard_id) && snapshot->shards.size() >= snapshot->world_size)) {
    return NoSpace("the leader follows no more of " + ToString(id));
  }
  TrackedShard& shard = *FindOrAddShard(*snapshot, shard_id, held.rank(), held.world_size());
  SetDigest(*snapshot, shard_id, shard, held.digest(), held.size_bytes());
  if (held.digest() == shard.digest) {
    if (shard.tags.empty()) shard.tags = SortedTags(held.tags());
    AddHolder(shard, from);
  }
  shard.progress = std::max(shard.progress, wire::ShardReport::SEALED);
  Recount(*snapshot, shard);
  return Status::Ok();
}

void CommitTracker::OnNotHeld(const NodeInstance& from, const SnapshotId& id,
                              const ShardId& shard_id) {
  const auto snapshot = snapshots_.find(id);
  if (snapshot == snapshots_.end()) return;
  const auto shard = snapshot->second.shards.find(shard_id);
  if (shard == snapshot->second.shards.end()) return;
  if (shard->second.holders.erase(from) > 0) Recount(snapshot->second, shard->second);
}

void CommitTracker::MarkRestored(const SnapshotId& id) {
  const auto snapshot = snapshots_.find(id);
  if (snapshot != snapshots_.end()) snapshot->second.restored = true;
}

bool CommitTracker::HasEveryShard(const TrackedSnapshot& snapshot) {
  return snapshot.shards.size() == snapshot.world_size &&
         std::ranges::all_of(snapshot.shards,
                             [](const auto& shard) { return shard.second.live_domains > 0; });
}

void CommitTracker::Forget(const std::function<bool(const SnapshotId&)>& keep) {
  std::erase_if(snapshots_, [&](const auto& entry) { return !keep(entry.first); });
}

bool CommitTracker::IsProtected(const TrackedSnapshot& snapshot) const {
  return snapshot.protected_count == snapshot.world_size &&
         snapshot.shards.size() == snapshot.world_size;
}

std::vector<NodeInstance> CommitTracker::LiveHolders(const TrackedShard& shard) const {
  std::vector<NodeInstance> holders;
  for (const NodeInstance& holder : shard.holders) {
    if (live_.contains(holder)) holders.push_back(holder);
  }
  return holders;
}

std::string CannotCommit(const TrackedSnapshot& snapshot) {
  if (!snapshot.conflict.empty()) return snapshot.conflict;
  if (snapshot.restored) return "";
  if (!snapshot.failed.empty()) {
    const ShardId& id = *snapshot.failed.begin();
    return "the save of shard " + id.value + " failed: " + snapshot.shards.at(id).error;
  }
  // What it lacked may have come from an inventory after it was passed over.
  return snapshot.passed_over.empty() || CommitTracker::HasEveryShard(snapshot)
             ? ""
             : snapshot.passed_over;
}

Result<CommitProposal> ProposeCommit(const CommitTracker& tracker,
                                     const TrackedSnapshot& snapshot) {
  if (const std::string reason = CannotCommit(snapshot); !reason.empty()) {
    return InvalidArgument(reason);
  }
  if (!tracker.IsProtected(snapshot)) return Unavailable("not every shard is protected");
  std::vector<const TrackedShard*> by_rank(snapshot.world_size, nullptr);
  CommitProposal proposal;
  for (const auto& [id, shard] : snapshot.shards) {
    if (by_rank[shard.rank] != nullptr) {
      return InvalidArgument("two shards are of " + RankText(shard.rank));
    }
    by_rank[shard.rank] = &shard;
    for (const NodeInstance& holder : tracker.LiveHolders(shard)) proposal.counted.insert(holder);
  }
  std::vector<std::string> digests;
  digests.reserve(by_rank.size());
  for (const TrackedShard* shard : by_rank) {
    if (!SameTags(shard->tags, by_rank[0]->tags)) {
      return InvalidArgument("tag \"" + DifferentTag(shard->tags, by_rank[0]->tags) +
                             "\" differs between ranks 0 and " + std::to_string(shard->rank));
    }
    digests.push_back(shard->digest);
  }
  proposal.snapshot = snapshot.id;
  proposal.root = SnapshotRoot(digests);
  proposal.bytes = snapshot.bytes;
  proposal.world_size = snapshot.world_size;
  return proposal;
}

std::string SnapshotRoot(const std::vector<std::string>& digests_in_rank_order) {
  std::string all;
  all.reserve(digests_in_rank_order.size() * kDigestBytes);
  for (const std::string& digest : digests_in_rank_order) all += digest;
  return HashBytes(std::string_view(all)).ToByteString();
}

std::string WhyNotCommitted(const CommitTracker& tracker, const TrackedSnapshot& snapshot,
                            uint32_t replica_count,
                            const std::function<std::string(const ShardId&)>& describe_missing) {
  constexpr int kShardsNamedMax = 4;
  if (const std::string reason = CannotCommit(snapshot); !reason.empty()) {
    return "it can never be: " + reason;
  }
  if (tracker.IsProtected(snapshot)) {
    const Result<CommitProposal> proposal = ProposeCommit(tracker, snapshot);
    return proposal.ok() ? "every shard is protected; the commit is being recorded"
                         : "it can never be: " + proposal.status().message();
  }
  std::string text;
  int named = 0;
  int more = 0;
  for (const auto& [id, shard] : snapshot.shards) {
    if (tracker.IsShardProtected(shard)) continue;
    if (named == kShardsNamedMax) {
      ++more;
      continue;
    }
    ++named;
    if (!text.empty()) text += "; ";
    text += "shard " + id.value;
    if (shard.digest.empty()) {
      text += " is still being copied by its trainer";
      continue;
    }
    const uint32_t live = shard.live_domains;
    if (live == 0) {
      text += " has no live copy";
    } else {
      text +=
          " has " + std::to_string(live - 1) + " of " + std::to_string(replica_count) + " replicas";
    }
    const std::string detail = describe_missing(id);
    if (!detail.empty()) text += "; " + detail;
  }
  if (more > 0) text += "; and " + std::to_string(more) + " more shards";
  const size_t missing =
      snapshot.world_size - std::min<size_t>(snapshot.shards.size(), snapshot.world_size);
  if (missing > 0) {
    std::vector<bool> seen(snapshot.world_size, false);
    for (const auto& [id, shard] : snapshot.shards) {
      if (shard.rank < snapshot.world_size) seen[shard.rank] = true;
    }
    const size_t first = static_cast<size_t>(std::ranges::find(seen, false) - seen.begin());
    if (!text.empty()) text += "; ";
    text += missing == 1 ? RankText(static_cast<uint32_t>(first)) + " has not begun it"
                         : std::to_string(missing) + " ranks have not begun it, among them " +
                               RankText(static_cast<uint32_t>(first));
  }
  return text;
}

}  // namespace backstay::replication
