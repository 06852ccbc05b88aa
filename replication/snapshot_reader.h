#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/executor.h"
#include "base/ids.h"
#include "replication/peer_link.h"
#include "replication/trainer_port.h"
#include "store/shard_table.h"

namespace backstay::replication {

// Where the bytes of one shard are, as the job's leader knows it.
struct ShardWhereabouts {
  ShardName name;
  Rank rank;
  Hash128 digest;
  std::vector<NodeInstance> holders;
};
struct SnapshotWhereabouts {
  SnapshotId snapshot;
  std::vector<ShardWhereabouts> shards;  // In rank order.
};

// Finds snapshots and their manifests, of any job that has a leader. Read-only: nothing is pinned.
//
// Thread:  the control executor. Completions run later, exactly once, unless it is destroyed first.
// Failure: kNotFound names what exists; kUnavailable: some manifest could not be had now.
class SnapshotReader {
 public:
  static constexpr Duration kTimeout = std::chrono::seconds(10);
  static constexpr Duration kOpenTimeout = std::chrono::seconds(3);
  static constexpr size_t kAskedAtOnceMax = 16;

  SnapshotReader(Executor& executor, PeerLink& peers, store::ShardTable& table)
      : executor_(executor), peers_(peers), table_(table) {}

  // `snapshot` {0, 0}: the newest committed one.
  void Locate(LeaderLink& leader, const JobName& job, SnapshotId snapshot,
              Completion<SnapshotWhereabouts> done);
  void LocateShard(LeaderLink& leader, const ShardName& name, Completion<ShardWhereabouts> done);
  // All manifests.
  void Index(LeaderLink& leader, const JobName& job, SnapshotId snapshot,
             Completion<SnapshotIndexReply> done);

 private:
  struct IndexRun {
    SnapshotWhereabouts where;
    std::vector<std::string> manifests;
    std::vector<size_t> next_holder;
    size_t next_shard = 0;
    size_t asked_count = 0;
    size_t done_count = 0;
    Completion<SnapshotIndexReply> done;
  };

  void StepIndex(uint64_t id);
  void AskManifest(uint64_t id, size_t shard);
  void FinishIndex(uint64_t id, Result<SnapshotIndexReply> result);

  Executor& executor_;
  PeerLink& peers_;
  store::ShardTable& table_;
  uint64_t last_run_ = 0;
  std::map<uint64_t, IndexRun> runs_;
  Lifetime lifetime_;
};

}  // namespace backstay::replication
