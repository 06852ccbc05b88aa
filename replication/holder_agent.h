#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/executor.h"
#include "base/ids.h"
#include "replication/job_view.h"
#include "replication/messenger.h"
#include "replication/peer_link.h"
#include "replication/replica_receiver.h"
#include "replication/shard_exporter.h"
#include "store/shard_table.h"
#include "store/shard_verifier.h"
#include "store/slot_pool.h"
#include "transport/transport.h"

namespace backstay::replication {

// One job's replicas that this node holds for peers: the memory promised for them, receiving them,
// and letting peers read and check whatever shards of the job are here.
//
// Thread:  the control executor. Replies run exactly once.
// Memory:  everything that it refers to outlives it.
// Failure: requests are checked and refused; a receiver that fails or whose source is gone is
//          discarded, and the next offer starts another.
class HolderAgent {
 public:
  static constexpr size_t kReservationsMax = 4096;
  static constexpr size_t kReceiversMax = 4096;
  static constexpr size_t kVerifiesMax = 4;  // At once; each reads a whole shard.
  // Memory of the repair reserve that was made ready and for which no offer comes any more.
  static constexpr Duration kRepairRoomKept = std::chrono::seconds(15);
  // How often sources and readers are looked at.
  static constexpr Duration kSweepInterval = std::chrono::milliseconds(500);

  // `chunk_bytes` is the same on all nodes of a cluster; offers in another unit are refused.
  HolderAgent(JobName job, uint32_t chunk_bytes, Executor& executor, PeerLink& peers,
              store::SlotPool& pool, store::ShardTable& table, store::ShardVerifier& verifier,
              ShardExporter& exporter, transport::Puller& puller);
  ~HolderAgent();
  HolderAgent(const HolderAgent&) = delete;
  HolderAgent& operator=(const HolderAgent&) = delete;

  void OnReserve(const wire::Header& header, const wire::Reserve& reserve, ReplyFunction reply);
  void OnOffer(const wire::Header& header, const wire::Offer& offer, const JobView& view,
               ReplyFunction reply);
  void OnRelease(const wire::Header& header, const wire::Release& release, ReplyFunction reply);
  void OnOpenShard(const wire::Header& header, const wire::OpenShard& open, ReplyFunction reply);
  void OnVerifyShard(const wire::VerifyShard& verify, ReplyFunction reply);

  // The job's state has changed: receivers of what cannot commit any more end.
  void OnView(const JobView& view);
  // Somebody else brings this shard in: ends its receiver, if there is one.
  void Discard(const ShardName& name);
  // Reads a suspect shard of this node again and quarantines it if it is bad.
  void VerifyOwn(const ShardName& name, Completion<store::VerifyReport> done);
  bool HasReceiver(const ShardName& name) const { return receivers_.contains(name); }
  bool HoldsAnything() const {
    return !reservations_.empty() || !receivers_.empty() || !repair_rooms_.empty();
  }
  // Called when a shard was found bad and quarantined.
  void OnQuarantine(std::function<void(const ShardName&)> observer) {
    on_quarantine_ = std::move(observer);
  }

 private:
  struct HeldReservation {
    store::ReservationId id;  // 0 while it is being made.
    uint64_t size_bytes = 0;
    uint32_t slot_count = 0;
    bool resizing = false;  // To something else than these.
    uint64_t made_for = 0;  // Which of the agent's reservations it is.
    Revision revision = 0;  // Of the job's record that it was made, or asked for again, for.
  };
  // One slot of the repair reserve, from the first offer that finds no other until one takes it.
  struct RepairRoom {
    store::ReservationId id;  // 0 while it is being made.
    Status refusal;           // It cannot be made.
    Instant last_offer;
  };

  Status CheckOffer(const wire::Header& header, const wire::Offer& offer, const ShardName& name,
                    const JobView& view) const;
  Status StartReceiving(const wire::Header& header, const wire::Offer& offer, const ShardName& name,
                        const JobView& view);
  // For a repair, where the reservation of its shard has no room: what saves were promised and hold
  // must not keep out what the leader wants restored.
  Result<const store::Shard*> BeginInRepairReserve(store::ShardTable::ReceiveRequest request);
  // Gives up one uncommitted shard of this id to make room for `name`. False: there is none.
  bool DisplaceFor(const ShardName& name, const JobView& view);
  // False: a later word on this shard's memory was here before.
  bool TakeOrder(const ShardId& shard, std::pair<uint64_t, uint64_t> order);
  void OnReceiverEnded(ShardName name);  // A copy: ends the receiver that it came with.
  void ReleaseEnded(Revision revision);
  void Sweep();

  const JobName job_;
  const uint32_t chunk_bytes_;
  Executor& executor_;
  PeerLink& peers_;
  store::SlotPool& pool_;
  store::ShardTable& table_;
  store::ShardVerifier& verifier_;
  ShardExporter& exporter_;
  transport::Puller& puller_;
  std::function<void(const ShardName&)> on_quarantine_;
  std::map<ShardId, HeldReservation> reservations_;
  // The newest word on each, also on one that was given back: (term, number).
  std::map<ShardId, std::pair<uint64_t, uint64_t>> reserve_orders_;
  uint64_t last_made_ = 0;
  std::map<ShardName, std::unique_ptr<ReplicaReceiver>> receivers_;
  std::map<ShardName, RepairRoom> repair_rooms_;
  size_t verify_count_ = 0;
  TimerId sweep_timer_ = kNoTimer;
  Lifetime lifetime_;
};

}  // namespace backstay::replication
