#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "recovery/planner.h"

namespace backstay::recovery {

// One content that was found under a shard's name, and where.
struct FoundContent {
  uint64_t size_bytes = 0;
  std::set<NodeInstance> holders;
  std::vector<replication::wire::Tag> tags;  // By name.
  std::set<std::string> roots;               // Of the commits that its holders were told of.
};

// One shard of one snapshot as the inventory shows it. One name means one content; more than one is
// damage, and is told apart by the committed root where there is one.
struct FoundShard {
  uint32_t rank = 0;
  std::map<std::string, FoundContent> contents;  // By digest.
};

struct SnapshotParts {
  std::set<uint32_t> world_sizes;
  std::map<ShardId, FoundShard> shards;
};

// All snapshots of which at least one shard was found.
std::map<SnapshotId, SnapshotParts> CollectParts(const InventoryView& inventory);

// What a snapshot has to match.
struct PartsRule {
  std::string root;         // Empty: not known.
  uint32_t world_size = 0;  // 0: as its shards say.
  bool committed = false;   // Else the tags of all ranks have to agree, as for a commit.
  std::map<ShardId, std::set<NodeInstance>> unreadable;  // Could not be read from these holders.
};

struct PartsCheck {
  std::string
      problem;  // Empty: whole. Else as in "step 100 lacks shard 3 (no node that answered has it)".
  std::string root;
  uint32_t world_size = 0;
  std::vector<replication::wire::ShardSource> sources;  // In rank order; empty with a problem.
};

PartsCheck CheckParts(const SnapshotParts& parts, const PartsRule& rule);

// A snapshot that a restore could choose.
struct Candidate {
  SnapshotId id;
  bool committed = false;
  bool on_lineage = false;
  bool abandoned = false;
  PartsCheck check;
};

}  // namespace backstay::recovery
