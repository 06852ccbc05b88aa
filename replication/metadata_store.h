#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/ids.h"
#include "base/status.h"

namespace backstay::replication {

using Revision =
    uint64_t;  // Grows with every transaction that changes something; 0 is "no such key".
using LeaseId = uint64_t;  // 0 is "no lease". Never reused by one store.

inline constexpr LeaseId kNoLease = 0;

struct KeyValue {
  std::string key;
  std::string value;
  Revision create_revision = 0;  // Of the transaction that made the key (after its last deletion).
  Revision mod_revision = 0;     // Of the transaction that last wrote it.
  LeaseId lease = kNoLease;

  friend bool operator==(const KeyValue&, const KeyValue&) = default;
};

// A condition of a transaction on one key.
struct Compare {
  enum class Target { kCreateRevision, kModRevision };
  std::string key;
  Target target = Target::kModRevision;
  Revision revision = 0;  // 0: the key must not exist.

  friend bool operator==(const Compare&, const Compare&) = default;
};

struct Operation {
  enum class Kind { kPut, kDelete };
  Kind kind = Kind::kPut;
  std::string key;
  std::string value;
  LeaseId lease =
      kNoLease;  // The key is deleted when this lease ends. A put replaces the key's former lease.
};

// All of `operations` happen in one revision, if every comparison holds; else nothing does. One
// operation per key, as in etcd. Deleting a key that does not exist changes nothing.
struct Transaction {
  std::vector<Compare> compares;
  std::vector<Operation> operations;
};

struct TransactionResult {
  bool succeeded = false;  // False: a comparison did not hold.
  Revision revision = 0;   // The store's revision after the transaction.
};

struct RangeResult {
  std::vector<KeyValue> pairs;  // In key order.
  Revision revision = 0;        // The store's revision at the read.
};

// The few small keys that must never fork: nodes with leases, and each job's leader, generation and
// last commit. The shape is etcd's (transactions on revisions, leases, ranges), so that etcd is one
// implementation.
//
// Thread:  every method and completion on the owning executor; a completion never runs before its
//          call has returned. Completions of calls that are outstanding when the store is destroyed
//          are dropped.
// Memory:  arguments and results are copies.
// Failure: of every method: kUnavailable: nothing happened, or (for reads) nothing could be found
//          out; try again. kDeadline, kUnknownOutcome: a transaction, grant or revocation may have
//          happened; read to find out. kStale: the store's id is not the one this client was bound
//          to; nothing happened. kInvalidArgument: a limit below, or a malformed request; nothing
//          happened. kNoSpace: the store, or its number of leases or waits, is full; nothing
//          happened.
// A transaction that is valid but whose comparisons do not hold is no error: `succeeded` says so.
class MetadataStore {
 public:
  virtual ~MetadataStore() = default;

  // The random id of the store, made with it.
  virtual void GetStoreId(Deadline deadline, Completion<StoreId> done) = 0;
  // kNotFound: a put names a lease that has ended; nothing happened.
  virtual void Commit(Transaction transaction, Deadline deadline,
                      Completion<TransactionResult> done) = 0;
  // All keys that start with `prefix` (empty: all), linearizable.
  virtual void Range(std::string prefix, Deadline deadline, Completion<RangeResult> done) = 0;
  // As Range(), but answers only once some key under `prefix` was written or deleted after revision
  // `after`, or at `deadline` with the unchanged state. The caller loops: changes may be folded
  // together, none is missed. It may answer early, unchanged: when it limits how long one wait
  // lasts, or no longer remembers what happened since `after` (it keeps the last
  // kMetadataChangesKept changes, and none across a restart).
  virtual void WaitForChange(std::string prefix, Revision after, Deadline deadline,
                             Completion<RangeResult> done) = 0;
  // A lease that ends `ttl` (kLeaseTtlMin to kLeaseTtlMax) after its last renewal, or later: a
  // store that was stopped or stalled gives holders one more ttl to renew. Its keys are deleted in
  // one revision when it ends.
  virtual void GrantLease(Duration ttl, Deadline deadline, Completion<LeaseId> done) = 0;
  // kNotFound: the lease has ended.
  virtual void RenewLease(LeaseId lease, Deadline deadline, StatusCompletion done) = 0;
  // Ends a lease now; its keys are deleted in one revision. kNotFound: it had ended.
  virtual void RevokeLease(LeaseId lease, Deadline deadline, StatusCompletion done) = 0;
};

// Limits that every implementation enforces with kInvalidArgument.
inline constexpr size_t kMetadataKeyBytesMax = 1024;
inline constexpr size_t kMetadataValueBytesMax = 1024 * 1024;
inline constexpr size_t kMetadataOperationsMax =
    128;  // Of a transaction, comparisons included; etcd's default limit.
// Keys and values of one transaction. etcd's default is 1.5 MiB for a request; this leaves room for
// its framing.
inline constexpr size_t kMetadataTransactionBytesMax = 1280 * 1024;
inline constexpr Duration kLeaseTtlMin = std::chrono::milliseconds(10);
inline constexpr Duration kLeaseTtlMax = std::chrono::hours(1);

// Limits that our implementations enforce with kNoSpace, or with kUnavailable where it passes by
// itself (the last two).
inline constexpr size_t kMetadataStoreBytesMax =
    256 * 1024 * 1024;  // Keys and values together; held in memory.
inline constexpr size_t kMetadataRangeBytesMax =
    48 * 1024 * 1024;                                    // Keys and values of one answer.
inline constexpr size_t kMetadataLeasesMax = 16 * 1024;  // One per node; room for failed attempts.
inline constexpr size_t kMetadataWaitsMax = 16 * 1024;   // WaitForChange() calls at a time.
inline constexpr size_t kMetadataAnswersMax =
    64 * 1024;  // Calls of any kind that await the journal.
inline constexpr size_t kMetadataPendingBytesMax =
    64 * 1024 * 1024;  // Changes that await the journal.

inline constexpr size_t kMetadataChangesKept = 4096;

static_assert(kMetadataValueBytesMax + kMetadataKeyBytesMax <= kMetadataTransactionBytesMax);
static_assert(kMetadataTransactionBytesMax < kMetadataRangeBytesMax);
static_assert(kMetadataRangeBytesMax < kMetadataStoreBytesMax);

}  // namespace backstay::replication
