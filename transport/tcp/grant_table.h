#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "base/executor.h"
#include "base/status.h"
#include "transport/transport.h"

namespace backstay::transport {

// A region that may be read, and the count of reads that touch it at this moment.
//
// Thread:  any.
// Memory:  the region is touched only between a Begin() that said yes and its End().
class ServedRegion {
 public:
  ServedRegion(GrantId id, Region region, std::string key, Executor* executor,
               std::function<void()> on_ended);
  ServedRegion(const ServedRegion&) = delete;
  ServedRegion& operator=(const ServedRegion&) = delete;

  GrantId id() const { return id_; }
  const std::string& key() const { return key_; }
  bool Contains(uint64_t offset_bytes, uint64_t size_bytes) const;

  // May the caller touch the region now? After a yes, nobody is told that the grant has ended
  // before End().
  bool Begin();
  void End();
  // Only between Begin() and End().
  std::span<const std::byte> bytes() const { return region_.bytes; }

  // No Begin() says yes any more; posts `on_ended` when the last touch is over. A second call does
  // nothing.
  void Revoke();
  bool revoked() const;

 private:
  const GrantId id_;
  const Region region_;
  const std::string key_;
  Executor* const executor_;

  mutable std::mutex mutex_;  // Guards what follows.
  std::function<void()> on_ended_;
  uint32_t touch_count_ = 0;
  bool revoked_ = false;
};

// The grants of one exporter that have not been revoked. Thread: any.
class GrantTable {
 public:
  void Add(std::shared_ptr<ServedRegion> region);
  // Null when there is none: ended, or never given.
  std::shared_ptr<ServedRegion> Find(GrantId id) const;
  // Removes and revokes; an id that is not there is ignored.
  void Revoke(GrantId id);
  void RevokeAll();
  uint64_t size() const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<GrantId, std::shared_ptr<ServedRegion>> regions_;
};

}  // namespace backstay::transport
