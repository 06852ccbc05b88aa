#pragma once

#include <string>
#include <vector>

#include "base/executor.h"
#include "replication/metadata_store.h"

namespace backstay::replication {

struct MetadataLease {
  LeaseId id = kNoLease;
  Duration ttl{};

  friend bool operator==(const MetadataLease&, const MetadataLease&) = default;
};

// What one call changed. Applying the changes of a store in order to nothing gives its state;
// nothing that is applied twice differs from applied once.
struct MetadataChange {
  Revision revision = 0;          // The store's revision after the change.
  LeaseId last_lease = kNoLease;  // The highest lease id given out so far.
  std::vector<KeyValue> puts;
  std::vector<std::string> deletes;
  std::vector<MetadataLease> granted;
  std::vector<LeaseId> ended;

  bool empty() const { return puts.empty() && deletes.empty() && granted.empty() && ended.empty(); }
};

// The whole durable state of a store. When a lease ends is not part of it: after a restart every
// lease has its whole ttl before it.
struct MetadataSnapshot {
  StoreId store_id;
  Revision revision = 0;
  LeaseId last_lease = kNoLease;
  std::vector<KeyValue> pairs;  // In key order.
  std::vector<MetadataLease> leases;
};

// Where a store keeps its changes.
//
// Thread:  the owning executor. The work may be done on another thread; completions run on the
//          executor.
// Failure: after one failed Append() every later one fails: what is on the disk is known only after
//          reopening.
class MetadataJournal {
 public:
  virtual ~MetadataJournal() = default;

  // Makes `change` durable after those appended before it. Completions run in the order of the
  // calls, never inside one.
  virtual void Append(MetadataChange change, StatusCompletion done) = 0;
};

}  // namespace backstay::replication
