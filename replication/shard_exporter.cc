#include "replication/shard_exporter.h"

#include <vector>

namespace backstay::replication {

Result<transport::Grant> ShardExporter::Export(const ShardName& name, Reader reader,
                                               const NodeInstance& to) {
  if (grants_.size() >= kGrantsMax) {
    return NoSpace("more than " + std::to_string(kGrantsMax) +
                   " grants are open; no more readers of " + ToString(name) + " now");
  }
  const store::Shard& shard = *table_.Find(name);
  const store::SlotId slot = table_.BeginGrant(name);
  const uint64_t token = ++last_token_;
  const Duration lifetime =
      reader == Reader::kReplica ? kReplicaGrantLifetime : kRestoreGrantLifetime;
  transport::Grant grant = exporter_.Export({.bytes = shard.bytes()}, executor_.Now() + lifetime,
                                            lifetime_.Wrap([this, token, slot] {
                                              table_.EndGrant(slot);
                                              const auto id = ids_.find(token);
                                              if (id == ids_.end()) return;
                                              grants_.erase(id->second);
                                              ids_.erase(id);
                                            }));
  ids_[token] = grant.id;
  grants_[grant.id] = {name, reader, to, slot};
  return grant;
}

void ShardExporter::Revoke(transport::GrantId id) { exporter_.Revoke(id); }

void ShardExporter::RevokeAll(const ShardName& name) {
  std::vector<transport::GrantId> ids;
  for (const auto& [id, given] : grants_) {
    if (given.name == name) ids.push_back(id);
  }
  for (const transport::GrantId id : ids) exporter_.Revoke(id);
}

void ShardExporter::RevokeRestores(const ShardName& name, const NodeInstance& reader) {
  std::vector<transport::GrantId> ids;
  for (const auto& [id, given] : grants_) {
    if (given.name == name && given.to == reader && given.reader == Reader::kRestore) {
      ids.push_back(id);
    }
  }
  for (const transport::GrantId id : ids) exporter_.Revoke(id);
}

void ShardExporter::RevokeReader(const NodeInstance& reader) {
  std::vector<transport::GrantId> ids;
  for (const auto& [id, given] : grants_) {
    if (given.to == reader) ids.push_back(id);
  }
  for (const transport::GrantId id : ids) exporter_.Revoke(id);
}

void ShardExporter::RevokeEverything() {
  std::vector<transport::GrantId> ids;
  for (const auto& [id, given] : grants_) ids.push_back(id);
  for (const transport::GrantId id : ids) exporter_.Revoke(id);
}

bool ShardExporter::IsBeingRestored(const ShardName& name) const {
  for (const auto& [id, given] : grants_) {
    if (given.name == name && given.reader == Reader::kRestore) return true;
  }
  return false;
}

std::set<NodeInstance> ShardExporter::Readers() const {
  std::set<NodeInstance> readers;
  for (const auto& [id, given] : grants_) readers.insert(given.to);
  return readers;
}

}  // namespace backstay::replication
