#pragma once

#include <map>
#include <set>

#include "base/executor.h"
#include "base/ids.h"
#include "base/status.h"
#include "store/shard_table.h"
#include "transport/transport.h"

namespace backstay::replication {

// Gives peers permission to read shards, and keeps the store told until each grant has ended, so
// that no slot is reused under a reader.
//
// Thread: the control executor.
// Memory: lives as long as the table: grants that end later are not counted down any more.
class ShardExporter {
 public:
  enum class Reader {
    kReplica,  // A holder that was offered the shard; revoked freely.
    kRestore,  // Whoever opened it; the shard is not dropped under a living one.
  };
  // A reader that takes longer gets another grant. A restore's is short: a reader that died, or
  // whose release was lost, keeps the shard from being let go of for no longer.
  static constexpr Duration kReplicaGrantLifetime = std::chrono::minutes(2);
  static constexpr Duration kRestoreGrantLifetime = std::chrono::seconds(15);
  static constexpr size_t kGrantsMax = 4096;

  ShardExporter(Executor& executor, store::ShardTable& table, transport::Exporter& exporter)
      : executor_(executor), table_(table), exporter_(exporter) {}

  // kNoSpace at kGrantsMax. The shard is in the table.
  Result<transport::Grant> Export(const ShardName& name, Reader reader, const NodeInstance& to);
  void Revoke(transport::GrantId id);
  void RevokeAll(const ShardName& name);
  // The reader is done with the shard.
  void RevokeRestores(const ShardName& name, const NodeInstance& reader);
  // All that this start of the node may read.
  void RevokeReader(const NodeInstance& reader);
  // The node serves nothing any more.
  void RevokeEverything();
  bool IsBeingRestored(const ShardName& name) const;
  // The living readers' nodes, for finding out that one is gone.
  std::set<NodeInstance> Readers() const;

 private:
  struct Given {
    ShardName name;
    Reader reader = Reader::kReplica;
    NodeInstance to;
    store::SlotId slot;
  };

  Executor& executor_;
  store::ShardTable& table_;
  transport::Exporter& exporter_;
  uint64_t last_token_ = 0;
  std::map<uint64_t, transport::GrantId> ids_;  // By token: known before the grant's id is.
  std::map<transport::GrantId, Given> grants_;  // That have not ended.
  Lifetime lifetime_;
};

}  // namespace backstay::replication
