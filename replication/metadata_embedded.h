#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/executor.h"
#include "replication/metadata_engine.h"
#include "replication/metadata_journal.h"
#include "replication/metadata_store.h"

namespace backstay::replication {

// A metadata store in this process: the engine decides at once, the journal makes it durable, and
// no answer, also not of a read, leaves before everything it depends on is durable. Changes that
// come while the journal syncs are written together, so a commit costs about one sync however many
// are under way.
//
// Thread:  the owning executor.
// Memory:  what the engine holds, and at most kMetadataAnswersMax answers, kMetadataPendingBytesMax
//          of unwritten changes and kMetadataWaitsMax waits.
// Failure: after a failed write the memory is ahead of the disk and neither can be believed:
//          outstanding changes answer kUnknownOutcome, everything else and all later calls
//          kUnavailable, until the process starts again.
class EmbeddedMetadataStore : public MetadataStore {
 public:
  EmbeddedMetadataStore(MetadataEngine engine, std::unique_ptr<MetadataJournal> journal,
                        Executor* executor);
  ~EmbeddedMetadataStore() override;
  EmbeddedMetadataStore(const EmbeddedMetadataStore&) = delete;
  EmbeddedMetadataStore& operator=(const EmbeddedMetadataStore&) = delete;

  void GetStoreId(Deadline deadline, Completion<StoreId> done) override;
  void Commit(Transaction transaction, Deadline deadline,
              Completion<TransactionResult> done) override;
  void Range(std::string prefix, Deadline deadline, Completion<RangeResult> done) override;
  void WaitForChange(std::string prefix, Revision after, Deadline deadline,
                     Completion<RangeResult> done) override;
  void GrantLease(Duration ttl, Deadline deadline, Completion<LeaseId> done) override;
  void RenewLease(LeaseId lease, Deadline deadline, StatusCompletion done) override;
  void RevokeLease(LeaseId lease, Deadline deadline, StatusCompletion done) override;

  const StoreId& store_id() const { return engine_.store_id(); }
  // OK, or why the store has stopped answering.
  const Status& health() const { return failure_; }

 private:
  // Number of a change given to the journal, from 1.
  using Sequence = uint64_t;

  // An answer that is ready, but waits for the journal.
  struct Answer {
    Sequence after = 0;  // Goes out once this change is durable.
    bool changes =
        false;  // The call changed something: losing the journal leaves its outcome unknown.
    TimerId timer = kNoTimer;
    std::function<void(const Status&)> run;  // OK: with the result.
  };

  struct Wait {
    TimerId timer = kNoTimer;
    Deadline deadline = kNoDeadline;
    Completion<RangeResult> done;
  };

  // OK, or why a call that arrives now is refused.
  Status Refusal(Deadline deadline) const;
  template <typename T, typename Done>
  void Reply(T result, bool changes, Deadline deadline, Done done);
  void AddAnswer(Answer answer, Deadline deadline);
  void ReleaseSoon();
  void Release();

  // Appends to the journal, wakes waits and watches over new leases.
  void Record(MetadataChange change);
  void OnAppended(Sequence sequence, const Status& status);
  void Fail(const Status& status);

  void WakeWaits(const MetadataChange& change);
  void OnWaitDeadline(const std::string& prefix, uint64_t id);

  void ArmExpiry(Instant when);
  void OnExpiry();

  Executor* const executor_;
  MetadataEngine engine_;
  const std::unique_ptr<MetadataJournal> journal_;
  Status failure_;

  Sequence appended_ = 0;
  Sequence durable_ = 0;
  std::deque<size_t> pending_sizes_;  // Of the changes after durable_.
  size_t pending_bytes_ = 0;          // Their sum.
  uint64_t last_answer_id_ = 0;
  std::map<uint64_t, Answer> answers_;  // In the order of the calls, so also of `after`.
  bool release_posted_ = false;

  uint64_t last_wait_id_ = 0;
  std::map<std::string, std::map<uint64_t, Wait>> waits_;  // By prefix.
  size_t wait_count_ = 0;

  TimerId expiry_timer_ = kNoTimer;
  Instant expiry_at_ = kNoDeadline;

  Lifetime lifetime_;
};

}  // namespace backstay::replication
