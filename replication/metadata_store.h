#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/ids.h"
#include "base/status.h"

namespace backstay::replication {

using Revision = uint64_t;  // Grows with every transaction that changes something; 0 is "no such key".
using LeaseId = uint64_t;   // 0 is "no lease".

struct KeyValue {
  std::string key;
  std::string value;
  Revision create_revision = 0;  // Of the transaction that made the key (after its last deletion).
  Revision mod_revision = 0;     // Of the transaction that last wrote it.
  LeaseId lease = 0;
};

// A condition of a transaction on one key.
struct Compare {
  enum class Target { kCreateRevision, kModRevision };
  std::string key;
  Target target = Target::kModRevision;
  Revision revision = 0;  // 0: the key must not exist.
};

struct Operation {
  enum class Kind { kPut, kDelete };
  Kind kind = Kind::kPut;
  std::string key;
  std::string value;
  LeaseId lease = 0;  // The key is deleted when this lease ends.
};

// All of `operations` happen in one revision, if every comparison holds; else nothing does.
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

// The few small keys that must never fork: nodes with leases, and each job's leader, generation and last commit. The
// shape is etcd's (transactions on revisions, leases, ranges), so that etcd is one implementation.
//
// Thread:  every method and completion on the owning executor; a completion never runs before its call has returned.
// Failure: kUnavailable: not sent. kUnknownOutcome or kDeadline: a transaction may have happened; read to find out.
//          kStale: the store's id is not the one this client was bound to.
class MetadataStore {
 public:
  virtual ~MetadataStore() = default;

  // The random id of the store, made with it.
  virtual void GetStoreId(Deadline deadline, Completion<StoreId> done) = 0;
  virtual void Commit(Transaction transaction, Deadline deadline, Completion<TransactionResult> done) = 0;
  // All keys that start with `prefix`, linearizable.
  virtual void Range(std::string prefix, Deadline deadline, Completion<RangeResult> done) = 0;
  // As Range(), but answers only once some key under `prefix` was written or deleted after revision `after`, or at
  // `deadline` with the unchanged state. The caller loops: changes may be folded together, none is missed.
  virtual void WaitForChange(std::string prefix, Revision after, Deadline deadline, Completion<RangeResult> done) = 0;
  // A lease that ends `ttl` after its last renewal.
  virtual void GrantLease(Duration ttl, Deadline deadline, Completion<LeaseId> done) = 0;
  // kNotFound: the lease has ended.
  virtual void RenewLease(LeaseId lease, Deadline deadline, StatusCompletion done) = 0;
  // Ends a lease now; its keys are deleted.
  virtual void RevokeLease(LeaseId lease, Deadline deadline, StatusCompletion done) = 0;
};

// Limits that every implementation enforces with kInvalidArgument.
inline constexpr size_t kMetadataKeyBytesMax = 1024;
inline constexpr size_t kMetadataValueBytesMax = 1024 * 1024;
inline constexpr size_t kMetadataOperationsMax = 4096;  // Of a transaction, comparisons included; etcd needs --max-txn-ops for as many.

}  // namespace backstay::replication
