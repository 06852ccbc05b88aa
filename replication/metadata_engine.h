#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "replication/metadata_journal.h"
#include "replication/metadata_store.h"

namespace backstay::replication {

// The rules of the metadata store, without clock, disk or thread: transactions on revisions,
// ranges, leases, and what changed since a revision. Every method that changes something says
// exactly what, for the journal.
//
// Thread:  one.
// Memory:  holds every key and value; bounded by kMetadataStoreBytesMax, kMetadataLeasesMax and
//          kMetadataChangesKept.
// Failure: a call that returns an error has changed nothing.
class MetadataEngine {
 public:
  struct Applied {
    TransactionResult result;
    MetadataChange change;  // Empty when nothing changed.
  };

  // Starts from what a journal holds. Every lease gets its whole ttl from `now`, so that holders
  // have the chance to renew after a restart. kCorrupt when the snapshot contradicts itself.
  static Result<MetadataEngine> Make(const MetadataSnapshot& snapshot, Instant now);

  const StoreId& store_id() const { return store_id_; }
  Revision revision() const { return revision_; }

  Result<Applied> Apply(const Transaction& transaction);
  Result<RangeResult> Range(const std::string& prefix) const;

  // Whether a key under `prefix` was, or may have been, written or deleted after revision `after`.
  // It may have been when that is longer ago than the remembered changes, or `after` lies in the
  // future: then the caller's view comes from somewhere else and must be replaced.
  bool MayHaveChanged(const std::string& prefix, Revision after) const;

  Result<MetadataChange> GrantLease(Duration ttl, Instant now);
  // A lease that is due but has not been expired yet can still be renewed.
  Status RenewLease(LeaseId lease, Instant now);
  Result<MetadataChange> RevokeLease(LeaseId lease);

  // When the first lease is due; kNoDeadline when there is none.
  Instant NextExpiry() const;
  // Ends the leases that are due, in one revision. A lease that is found more than kStallMin late
  // was not watched over: this process was stopped or stalled and its holder could not renew, so it
  // gets one more ttl, once.
  MetadataChange ExpireLeases(Instant now);

  // Longer than any timer is late on a machine that works, shorter than any sensible ttl.
  static constexpr Duration kStallMin = std::chrono::seconds(1);

 private:
  struct Lease {
    Duration ttl{};
    Instant expires_at;
    bool extended = false;  // Had its one extension since the last renewal.
    std::set<std::string> keys;
  };

  MetadataEngine() = default;

  static Status Check(const Transaction& transaction);
  bool Holds(const Compare& compare) const;
  Status CheckSpaceAndLeases(const Transaction& transaction) const;
  void Put(const Operation& operation, MetadataChange* change);
  // False when there was no such key.
  bool Delete(const std::string& key, MetadataChange* change);
  void Remember(const std::string& key);
  void EndLease(std::map<LeaseId, Lease>::iterator lease, MetadataChange* change);
  MetadataChange StartChange() const;
  // Takes over the revision of a change that touched keys, and forgets the oldest remembered
  // changes.
  void FinishChange(MetadataChange* change);

  StoreId store_id_;
  Revision revision_ = 0;
  LeaseId last_lease_ = kNoLease;
  std::map<std::string, KeyValue, std::less<>> pairs_;
  size_t size_bytes_ = 0;  // Of keys and values.
  std::map<LeaseId, Lease> leases_;

  // The last changed keys with their revisions, oldest first: all of those after changes_after_.
  std::deque<std::pair<Revision, std::string>> changes_;
  Revision changes_after_ = 0;
};

// OK, or kInvalidArgument with the limit that `prefix` breaks.
Status CheckMetadataPrefix(const std::string& prefix);
// OK, or kInvalidArgument with the limits of a ttl.
Status CheckLeaseTtl(Duration ttl);

}  // namespace backstay::replication
