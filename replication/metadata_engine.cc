#include "replication/metadata_engine.h"

#include <algorithm>
#include <utility>

#include "base/units.h"

namespace backstay::replication {
namespace {

// Keys may hold any bytes; messages show what can be shown.
std::string Printable(std::string_view key) {
  constexpr size_t kShownMax = 96;
  std::string shown;
  for (const char c : key.substr(0, kShownMax)) shown += c >= 0x20 && c < 0x7f ? c : '?';
  return key.size() > kShownMax ? shown + "..." : shown;
}

Status CheckKey(const std::string& key) {
  if (key.empty()) return InvalidArgument("a metadata key must not be empty");
  if (key.size() > kMetadataKeyBytesMax) {
    return InvalidArgument("metadata key '" + Printable(key) + "' has " +
                           std::to_string(key.size()) + " bytes; the limit is " +
                           std::to_string(kMetadataKeyBytesMax));
  }
  return Status::Ok();
}

bool StartsWith(std::string_view key, std::string_view prefix) { return key.starts_with(prefix); }

}  // namespace

Status CheckMetadataPrefix(const std::string& prefix) {
  if (prefix.size() > kMetadataKeyBytesMax) {
    return InvalidArgument("metadata prefix '" + Printable(prefix) + "' has " +
                           std::to_string(prefix.size()) + " bytes; the limit is " +
                           std::to_string(kMetadataKeyBytesMax));
  }
  return Status::Ok();
}

Status CheckLeaseTtl(Duration ttl) {
  if (ttl < kLeaseTtlMin || ttl > kLeaseTtlMax) {
    return InvalidArgument("a lease of " + std::to_string(ToMillis(ttl)) + " ms: it must be from " +
                           std::to_string(ToMillis(kLeaseTtlMin)) + " to " +
                           std::to_string(ToMillis(kLeaseTtlMax)) + " ms");
  }
  return Status::Ok();
}

Result<MetadataEngine> MetadataEngine::Make(const MetadataSnapshot& snapshot, Instant now) {
  MetadataEngine engine;
  if (snapshot.store_id.empty()) return Corrupt("the metadata store has no id");
  engine.store_id_ = snapshot.store_id;
  engine.revision_ = snapshot.revision;
  engine.last_lease_ = snapshot.last_lease;
  engine.changes_after_ = snapshot.revision;
  for (const MetadataLease& lease : snapshot.leases) {
    if (lease.id == kNoLease || lease.id > snapshot.last_lease || !CheckLeaseTtl(lease.ttl).ok()) {
      return Corrupt("the metadata store holds a lease it cannot have given: " +
                     std::to_string(lease.id));
    }
    engine.leases_[lease.id] = {
        .ttl = lease.ttl, .expires_at = now + lease.ttl, .extended = false, .keys = {}};
  }
  for (const KeyValue& pair : snapshot.pairs) {
    const bool sane = CheckKey(pair.key).ok() && pair.value.size() <= kMetadataValueBytesMax &&
                      pair.create_revision > 0 && pair.create_revision <= pair.mod_revision &&
                      pair.mod_revision <= snapshot.revision;
    if (!sane)
      return Corrupt("the metadata store holds a key it cannot have written: '" +
                     Printable(pair.key) + "'");
    if (pair.lease != kNoLease) {
      const auto lease = engine.leases_.find(pair.lease);
      if (lease == engine.leases_.end()) {
        return Corrupt("the metadata store's key '" + Printable(pair.key) + "' outlived its lease");
      }
      lease->second.keys.insert(pair.key);
    }
    engine.size_bytes_ += pair.key.size() + pair.value.size();
    if (!engine.pairs_.emplace(pair.key, pair).second) {
      return Corrupt("the metadata store holds key '" + Printable(pair.key) + "' twice");
    }
  }
  return engine;
}

Status MetadataEngine::Check(const Transaction& transaction) {
  const size_t count = transaction.compares.size() + transaction.operations.size();
  if (count > kMetadataOperationsMax) {
    return InvalidArgument("a metadata transaction of " + std::to_string(count) +
                           " comparisons and operations; the limit is " +
                           std::to_string(kMetadataOperationsMax));
  }
  size_t bytes = 0;
  for (const Compare& compare : transaction.compares) {
    BACKSTAY_RETURN_IF_ERROR(CheckKey(compare.key));
    bytes += compare.key.size();
  }
  std::set<std::string_view> keys;
  for (const Operation& operation : transaction.operations) {
    BACKSTAY_RETURN_IF_ERROR(CheckKey(operation.key));
    if (operation.value.size() > kMetadataValueBytesMax) {
      return InvalidArgument("the value for metadata key '" + Printable(operation.key) + "' has " +
                             FormatBytes(operation.value.size()) + "; the limit is " +
                             FormatBytes(kMetadataValueBytesMax));
    }
    if (!keys.insert(operation.key).second) {
      return InvalidArgument("metadata key '" + Printable(operation.key) +
                             "' is changed twice in one transaction");
    }
    bytes += operation.key.size() + operation.value.size();
  }
  if (bytes > kMetadataTransactionBytesMax) {
    return InvalidArgument("a metadata transaction of " + FormatBytes(bytes) + "; the limit is " +
                           FormatBytes(kMetadataTransactionBytesMax));
  }
  return Status::Ok();
}

bool MetadataEngine::Holds(const Compare& compare) const {
  const auto found = pairs_.find(compare.key);
  if (found == pairs_.end()) return compare.revision == 0;
  const KeyValue& pair = found->second;
  const bool by_create = compare.target == Compare::Target::kCreateRevision;
  return compare.revision == (by_create ? pair.create_revision : pair.mod_revision);
}

Status MetadataEngine::CheckSpaceAndLeases(const Transaction& transaction) const {
  size_t size_bytes = size_bytes_;
  for (const Operation& operation : transaction.operations) {
    const auto found = pairs_.find(operation.key);
    if (found != pairs_.end()) size_bytes -= found->first.size() + found->second.value.size();
    if (operation.kind == Operation::Kind::kDelete) continue;
    size_bytes += operation.key.size() + operation.value.size();
    if (operation.lease != kNoLease && !leases_.contains(operation.lease)) {
      return NotFound("the lease of metadata key '" + Printable(operation.key) + "' has ended");
    }
  }
  if (size_bytes > kMetadataStoreBytesMax && size_bytes > size_bytes_) {
    return NoSpace("the metadata store is full: " + FormatBytes(size_bytes_) + " of " +
                   FormatBytes(kMetadataStoreBytesMax) + " in use; remove finished jobs");
  }
  return Status::Ok();
}

Result<MetadataEngine::Applied> MetadataEngine::Apply(const Transaction& transaction) {
  BACKSTAY_RETURN_IF_ERROR(Check(transaction));
  Applied applied;
  applied.result.revision = revision_;
  const auto holds = [this](const Compare& compare) { return Holds(compare); };
  if (!std::all_of(transaction.compares.begin(), transaction.compares.end(), holds)) return applied;
  BACKSTAY_RETURN_IF_ERROR(CheckSpaceAndLeases(transaction));
  applied.change = StartChange();
  for (const Operation& operation : transaction.operations) {
    if (operation.kind == Operation::Kind::kPut) {
      Put(operation, &applied.change);
    } else {
      Delete(operation.key, &applied.change);
    }
  }
  FinishChange(&applied.change);
  applied.result = {.succeeded = true, .revision = revision_};
  return applied;
}

Result<RangeResult> MetadataEngine::Range(const std::string& prefix) const {
  BACKSTAY_RETURN_IF_ERROR(CheckMetadataPrefix(prefix));
  RangeResult result;
  result.revision = revision_;
  size_t size_bytes = 0;
  for (auto it = pairs_.lower_bound(prefix); it != pairs_.end() && StartsWith(it->first, prefix);
       ++it) {
    size_bytes += it->first.size() + it->second.value.size();
    if (size_bytes > kMetadataRangeBytesMax) {
      return NoSpace("the metadata keys under '" + Printable(prefix) + "' have more than " +
                     FormatBytes(kMetadataRangeBytesMax) +
                     ", the most that one answer holds; ask for a longer prefix");
    }
    result.pairs.push_back(it->second);
  }
  return result;
}

bool MetadataEngine::MayHaveChanged(const std::string& prefix, Revision after) const {
  if (after > revision_ || after < changes_after_) return true;
  for (auto change = changes_.rbegin(); change != changes_.rend() && change->first > after;
       ++change) {
    if (StartsWith(change->second, prefix)) return true;
  }
  return false;
}

Result<MetadataChange> MetadataEngine::GrantLease(Duration ttl, Instant now) {
  BACKSTAY_RETURN_IF_ERROR(CheckLeaseTtl(ttl));
  if (leases_.size() >= kMetadataLeasesMax) {
    return NoSpace("the metadata store has given " + std::to_string(leases_.size()) +
                   " leases, which is its limit");
  }
  MetadataChange change = StartChange();
  change.last_lease = ++last_lease_;
  change.granted.push_back({last_lease_, ttl});
  leases_[last_lease_] = {.ttl = ttl, .expires_at = now + ttl, .extended = false, .keys = {}};
  FinishChange(&change);
  return change;
}

Status MetadataEngine::RenewLease(LeaseId lease, Instant now) {
  const auto found = leases_.find(lease);
  if (found == leases_.end()) return NotFound("lease " + std::to_string(lease) + " has ended");
  found->second.expires_at = now + found->second.ttl;
  found->second.extended = false;
  return Status::Ok();
}

Result<MetadataChange> MetadataEngine::RevokeLease(LeaseId lease) {
  const auto found = leases_.find(lease);
  if (found == leases_.end()) return NotFound("lease " + std::to_string(lease) + " has ended");
  MetadataChange change = StartChange();
  EndLease(found, &change);
  FinishChange(&change);
  return change;
}

Instant MetadataEngine::NextExpiry() const {
  Instant first = kNoDeadline;
  for (const auto& [id, lease] : leases_) first = std::min(first, lease.expires_at);
  return first;
}

MetadataChange MetadataEngine::ExpireLeases(Instant now) {
  MetadataChange change = StartChange();
  for (auto it = leases_.begin(); it != leases_.end();) {
    const auto lease = it++;
    if (lease->second.expires_at > now) continue;
    if (now - lease->second.expires_at > kStallMin && !lease->second.extended) {
      lease->second.extended = true;
      lease->second.expires_at = now + lease->second.ttl;
      continue;
    }
    EndLease(lease, &change);
  }
  FinishChange(&change);
  return change;
}

void MetadataEngine::Put(const Operation& operation, MetadataChange* change) {
  KeyValue& pair = pairs_[operation.key];
  if (pair.mod_revision == 0) {
    pair.key = operation.key;
    pair.create_revision = change->revision;
    size_bytes_ += pair.key.size();
  }
  if (pair.lease != operation.lease) {
    if (pair.lease != kNoLease) leases_.at(pair.lease).keys.erase(pair.key);
    if (operation.lease != kNoLease) leases_.at(operation.lease).keys.insert(pair.key);
    pair.lease = operation.lease;
  }
  size_bytes_ += operation.value.size();
  size_bytes_ -= pair.value.size();
  pair.value = operation.value;
  pair.mod_revision = change->revision;
  change->puts.push_back(pair);
}

bool MetadataEngine::Delete(const std::string& key, MetadataChange* change) {
  const auto found = pairs_.find(key);
  if (found == pairs_.end()) return false;
  const KeyValue& pair = found->second;
  if (pair.lease != kNoLease) leases_.at(pair.lease).keys.erase(key);
  size_bytes_ -= pair.key.size() + pair.value.size();
  change->deletes.push_back(key);
  pairs_.erase(found);
  return true;
}

void MetadataEngine::EndLease(std::map<LeaseId, Lease>::iterator lease, MetadataChange* change) {
  const std::set<std::string> keys = std::move(lease->second.keys);
  lease->second.keys.clear();
  for (const std::string& key : keys) Delete(key, change);
  change->ended.push_back(lease->first);
  leases_.erase(lease);
}

MetadataChange MetadataEngine::StartChange() const {
  MetadataChange change;
  change.revision = revision_ + 1;
  change.last_lease = last_lease_;
  return change;
}

void MetadataEngine::FinishChange(MetadataChange* change) {
  if (change->puts.empty() && change->deletes.empty()) {
    change->revision = revision_;
    return;
  }
  revision_ = change->revision;
  for (const KeyValue& pair : change->puts) changes_.emplace_back(revision_, pair.key);
  for (const std::string& key : change->deletes) changes_.emplace_back(revision_, key);
  while (changes_.size() > kMetadataChangesKept) {
    // A revision is forgotten whole, so that "all after changes_after_" stays true.
    changes_after_ = changes_.front().first;
    while (!changes_.empty() && changes_.front().first == changes_after_) changes_.pop_front();
  }
}

}  // namespace backstay::replication
