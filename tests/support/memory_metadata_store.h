#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/executor.h"
#include "replication/metadata_embedded.h"
#include "replication/metadata_journal.h"
#include "replication/metadata_store.h"

namespace backstay::testing {

class MemoryMetadataClient;

// The metadata service of a simulated cluster: the production store over a disk that is memory. It
// can be stopped and started again (what was durable stays, leases get one more ttl), replaced by
// an empty store, and its disk can fail.
//
// Thread:  the executor's. Deterministic: time and order come from the executor alone.
// Memory:  must outlive its clients.
class MemoryMetadata {
 public:
  // Starts an empty store.
  MemoryMetadata(Executor* executor, StoreId store_id);
  ~MemoryMetadata();
  MemoryMetadata(const MemoryMetadata&) = delete;
  MemoryMetadata& operator=(const MemoryMetadata&) = delete;

  // A client that is bound to the present store, or to `store_id` (empty: to the one it gets to
  // know by GetStoreId(); until then every other call answers kUnavailable).
  std::unique_ptr<MemoryMetadataClient> NewClient();
  std::unique_ptr<MemoryMetadataClient> NewClient(StoreId store_id);

  // The service dies; changes that its disk has not confirmed are lost.
  void Stop();
  // Starts it on what its disk holds. It must be stopped.
  void Start();
  bool running() const { return store_ != nullptr; }

  // Stops, takes an empty disk and starts as another store.
  void Replace(StoreId store_id);

  // How long a write to the disk takes. Zero at first.
  void SetWriteDelay(Duration delay) { write_delay_ = delay; }
  // Every later write fails with `status`, until Start(). Ok: writes succeed again.
  void FailWrites(Status status) { write_failure_ = std::move(status); }

  // What the disk holds; for auditors.
  const replication::MetadataSnapshot& disk() const { return disk_; }

 private:
  friend class MemoryMetadataClient;
  class Journal;

  void Apply(const replication::MetadataChange& change);

  Executor* const executor_;
  replication::MetadataSnapshot disk_;
  Duration write_delay_{};
  Status write_failure_;
  std::unique_ptr<replication::EmbeddedMetadataStore> store_;
  uint64_t last_client_ = 0;
  std::map<uint64_t, MemoryMetadataClient*> clients_;  // In the order of their making.
};

// One node's way to the metadata service, with its own faults.
//
// Thread:  the executor's.
class MemoryMetadataClient : public replication::MetadataStore {
 public:
  ~MemoryMetadataClient() override;

  // While set, calls answer kUnavailable and nothing is sent. Setting it cuts the connection: calls
  // under way end, changes among them with kUnknownOutcome (what was already sent still arrives).
  void SetUnavailable(bool unavailable);
  // The next `count` changes (transactions, grants, revocations) happen, but answer
  // kUnknownOutcome.
  void LoseReplies(int count) { lost_replies_ = count; }
  // The next `count` changes do not happen, and answer kUnknownOutcome.
  void LoseRequests(int count) { lost_requests_ = count; }
  // Time from the call to the store, and from the store to the completion. Zero at first.
  void SetDelay(Duration request, Duration reply);

  void GetStoreId(Deadline deadline, Completion<StoreId> done) override;
  void Commit(replication::Transaction transaction, Deadline deadline,
              Completion<replication::TransactionResult> done) override;
  void Range(std::string prefix, Deadline deadline,
             Completion<replication::RangeResult> done) override;
  void WaitForChange(std::string prefix, replication::Revision after, Deadline deadline,
                     Completion<replication::RangeResult> done) override;
  void GrantLease(Duration ttl, Deadline deadline, Completion<replication::LeaseId> done) override;
  void RenewLease(replication::LeaseId lease, Deadline deadline, StatusCompletion done) override;
  void RevokeLease(replication::LeaseId lease, Deadline deadline, StatusCompletion done) override;

 private:
  friend class MemoryMetadata;

  enum class Kind { kBind, kRead, kWait, kChange };

  // A call that has not been answered.
  struct Pending {
    Kind kind = Kind::kRead;
    TimerId timer = kNoTimer;
    std::function<void(Status)> fail;
  };

  MemoryMetadataClient(MemoryMetadata* service, uint64_t id, StoreId store_id);

  // `send` passes the call on to the store; T is the completion's argument.
  template <typename T>
  void Call(Kind kind, Deadline deadline, std::function<void(T)> done,
            std::function<void(replication::MetadataStore&, std::function<void(T)>)> send);
  template <typename T>
  void Send(uint64_t call, Kind kind, std::function<void(T)> done,
            std::function<void(replication::MetadataStore&, std::function<void(T)>)> send);
  template <typename T>
  void Finish(uint64_t call, const std::function<void(T)>& done, T result);
  // Why a call that reaches the store now is refused.
  Status Refusal(Kind kind) const;
  void FailLater(uint64_t call, Status status);
  void FailOutstanding(const std::string& why);

  MemoryMetadata* const service_;
  Executor* const executor_;
  const uint64_t id_;
  StoreId store_id_;
  bool unavailable_ = false;
  int lost_replies_ = 0;
  int lost_requests_ = 0;
  Duration request_delay_{};
  Duration reply_delay_{};
  uint64_t last_call_ = 0;
  std::map<uint64_t, Pending> pending_;
  Lifetime lifetime_;
};

}  // namespace backstay::testing
