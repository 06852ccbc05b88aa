#include "recovery/candidate.h"

#include <algorithm>
#include <utility>

#include "replication/commit_tracker.h"
#include "replication/job_limits.h"
#include "replication/wire_convert.h"

namespace backstay::recovery {
namespace {

using replication::wire::HeldShard;
using replication::wire::ShardSource;
using replication::wire::Tag;

constexpr size_t kShardsNamedMax = 4;

// The one content of a shard that may be restored, or null. Of several the one that its holders
// know to be committed under `root`.
const std::pair<const std::string, FoundContent>* ChooseContent(const FoundShard& shard,
                                                                const std::string& root) {
  if (shard.contents.size() == 1) return &*shard.contents.begin();
  const std::pair<const std::string, FoundContent>* chosen = nullptr;
  for (const auto& content : shard.contents) {
    if (root.empty() || !content.second.roots.contains(root)) continue;
    if (chosen != nullptr) return nullptr;
    chosen = &content;
  }
  return chosen;
}

// With the holders that may be read from.
ShardSource MakeSource(const ShardId& id, uint32_t rank,
                       const std::pair<const std::string, FoundContent>& content,
                       const std::set<NodeInstance>& unreadable) {
  ShardSource source;
  source.set_shard_id(id.value);
  source.set_rank(rank);
  source.set_digest(content.first);
  source.set_size_bytes(content.second.size_bytes);
  for (const NodeInstance& holder : content.second.holders) {
    if (unreadable.contains(holder)) continue;
    *source.add_holders() = replication::ToWire(holder);
  }
  return source;
}

std::string DescribeMissing(const std::vector<bool>& found) {
  std::string text;
  size_t missing = 0;
  for (size_t rank = 0; rank < found.size(); ++rank) {
    if (found[rank]) continue;
    if (++missing > kShardsNamedMax) continue;
    text += (missing > 1 ? ", " : "") + std::to_string(rank);
  }
  if (missing > kShardsNamedMax) {
    text += " and " + std::to_string(missing - kShardsNamedMax) + " more";
  }
  return (missing == 1 ? "lacks the shard of rank " : "lacks the shards of ranks ") + text;
}

}  // namespace

std::map<SnapshotId, SnapshotParts> CollectParts(const InventoryView& inventory) {
  std::map<SnapshotId, SnapshotParts> all;
  for (const auto& [node, shards] : inventory.answered) {
    for (const HeldShard& held : shards) {
      const SnapshotId id{Generation(held.shard().snapshot().generation()),
                          Step(held.shard().snapshot().step())};
      SnapshotParts& parts = all[id];
      parts.world_sizes.insert(held.world_size());
      FoundShard& shard = parts.shards[ShardId(held.shard().shard_id())];
      shard.rank = held.rank();
      FoundContent& content = shard.contents[held.digest()];
      content.size_bytes = held.size_bytes();
      content.holders.insert(node);
      content.tags.assign(held.tags().begin(), held.tags().end());
      std::ranges::sort(content.tags, {}, [](const Tag& tag) { return tag.name(); });
      if (held.committed()) content.roots.insert(held.root());
    }
  }
  return all;
}

PartsCheck CheckParts(const SnapshotParts& parts, const PartsRule& rule) {
  PartsCheck check;
  if (parts.shards.empty()) {
    check.problem = "was found on no node";
    return check;
  }
  if (parts.world_sizes.size() != 1) {
    check.problem = "has shards of different world sizes";
    return check;
  }
  check.world_size = *parts.world_sizes.begin();
  if (check.world_size == 0 || check.world_size > replication::kWorldSizeMax ||
      (rule.world_size != 0 && rule.world_size != check.world_size)) {
    check.problem = "has shards of another world size than was committed";
    return check;
  }
  std::vector<ShardSource> sources(check.world_size);
  std::vector<bool> found(check.world_size, false);
  const std::vector<Tag>* tags = nullptr;
  for (const auto& [id, shard] : parts.shards) {
    if (shard.rank >= check.world_size || found[shard.rank]) {
      check.problem = "has shards that are no permutation of its ranks";
      return check;
    }
    const auto* content = ChooseContent(shard, rule.root);
    if (content == nullptr) {
      check.problem = "has two contents under the name of shard " + id.value;
      return check;
    }
    if (!rule.committed) {
      if (tags != nullptr && !replication::SameTags(*tags, content->second.tags)) {
        check.problem = "has tags that differ between ranks";
        return check;
      }
      tags = &content->second.tags;
    }
    found[shard.rank] = true;
    const auto unreadable = rule.unreadable.find(id);
    sources[shard.rank] = MakeSource(
        id, shard.rank, *content,
        unreadable == rule.unreadable.end() ? std::set<NodeInstance>() : unreadable->second);
    if (sources[shard.rank].holders_size() == 0) {
      check.problem = "has a shard, " + id.value + ", that could not be read from any holder";
      return check;
    }
  }
  if (std::ranges::find(found, false) != found.end()) {
    check.problem = DescribeMissing(found);
    return check;
  }
  std::vector<std::string> digests;
  digests.reserve(sources.size());
  for (const ShardSource& source : sources) digests.push_back(source.digest());
  check.root = replication::SnapshotRoot(digests);
  if (!rule.root.empty() && rule.root != check.root) {
    check.problem = "has shards that do not add up to the root that was recorded";
    return check;
  }
  check.sources = std::move(sources);
  return check;
}

}  // namespace backstay::recovery
