#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/ids.h"
#include "replication/peer_link.h"
#include "replication/shard_fetcher.h"
#include "replication/trainer_port.h"
#include "store/shard_table.h"
#include "store/shard_verifier.h"
#include "store/slot_pool.h"
#include "transport/transport.h"

namespace backstay::replication {

// Opens shards for readers on this node: what is here is pinned and read in place, the rest is
// fetched once, however many readers want it.
//
// Thread:  the control executor. Completions run later, exactly once.
// Memory:  a shard is neither dropped nor moved while it is open. What was fetched for a restore
//          stays, as a replica like any other; what was only looked at goes with its last reader.
// Failure: bytes that a reader finds wrong are read again; if the memory here is bad, the shard is
//          set aside and the next open fetches it from another holder.
class FetchAgent {
 public:
  static constexpr size_t kOpenMax = 4096;
  static constexpr size_t kStatsMax = 256;

  struct OpenRequest {
    ShardName name;
    std::optional<Hash128> digest;      // Nothing: whatever there is under the name.
    std::vector<NodeInstance> sources;  // Nodes that may hold it, this one or not.
    bool whole = false;
    bool for_restore = false;
    store::ReservationId own;  // Used if it has a free slot that fits; 0: none.
  };
  // What bringing a shard in has cost, for the restore's report.
  struct Stats {
    uint64_t bytes_remote = 0;
    std::vector<NodeId> sources;  // This node's id when it was here.
    Instant started;
    Instant ended;
    Status outcome;
  };
  using VerifyShard = std::function<void(const ShardName&, Completion<store::VerifyReport>)>;
  // A replica that is being received under this name gives way.
  using DiscardReceiver = std::function<void(const ShardName&)>;

  FetchAgent(Executor& executor, PeerLink& peers, store::SlotPool& pool, store::ShardTable& table,
             transport::Puller& puller, VerifyShard verify, DiscardReceiver discard_receiver);
  ~FetchAgent();
  FetchAgent(const FetchAgent&) = delete;
  FetchAgent& operator=(const FetchAgent&) = delete;

  void Open(OpenRequest request, Completion<FetchReply> done);
  Status FetchChunks(FetchHandle handle, uint32_t first_chunk, uint32_t chunk_count);
  // True: the shard here is set aside; close it and open it again.
  void ReportBad(FetchHandle handle, Completion<bool> done);
  Status Close(FetchHandle handle);
  // The job has ended: nothing more of it is fetched. What is open stays so until it is closed.
  void EndJob(const JobName& job);

  // Of the last fetch of this shard, for a while; nothing: none.
  std::optional<Stats> StatsOf(const ShardName& name) const;
  uint64_t open_count() const { return readers_.size(); }

 private:
  struct Reader {
    ShardName name;
    store::ShardPin pin;
  };
  struct WaitingOpen {
    FetchHandle handle;
    Completion<FetchReply> done;
  };
  struct Active {
    uint64_t number = 0;  // Of this fetch; its name may be fetched again.
    std::unique_ptr<ShardFetcher> fetcher;
    store::ReservationId scratch;  // Made for this fetch; given back when its slot is taken.
    std::vector<WaitingOpen> waiting;
    bool for_restore = false;
  };

  void OpenLocal(FetchHandle handle, const store::Shard& shard, bool local,
                 const Completion<FetchReply>& done);
  void StartFetch(const OpenRequest& request);
  void ReserveSlot(const ShardName& name, store::ReservationId own, uint64_t size_bytes,
                   uint32_t chunk_bytes, Completion<store::ReservationId> done);
  void OnOpened(const ShardName& name);
  void OnEnded(ShardName name);  // A copy: ends the fetch that the name came with.
  void NoteStats(const ShardFetcher& fetcher, Stats* stats) const;
  void StartStats(const ShardName& name, std::vector<NodeId> sources);
  bool HasReaders(const ShardName& name) const;
  void EndFetch(const ShardName& name);
  void Forget(const ShardName& name);

  Executor& executor_;
  PeerLink& peers_;
  store::SlotPool& pool_;
  store::ShardTable& table_;
  transport::Puller& puller_;
  const VerifyShard verify_;
  const DiscardReceiver discard_receiver_;
  uint64_t last_handle_ = 0;
  uint64_t last_fetch_ = 0;
  std::map<FetchHandle, Reader> readers_;
  std::map<ShardName, Active> active_;
  std::set<ShardName> looked_at_;  // Fetched, sealed, and to go with the last reader.
  std::map<ShardName, Stats> stats_;
  Lifetime lifetime_;
};

}  // namespace backstay::replication
