#include "transport/tcp/grant_table.h"

#include <utility>

#include "base/check.h"

namespace backstay::transport {

ServedRegion::ServedRegion(GrantId id, Region region, std::string key, Executor* executor,
                           std::function<void()> on_ended)
    : id_(id),
      region_(region),
      key_(std::move(key)),
      executor_(executor),
      on_ended_(std::move(on_ended)) {}

bool ServedRegion::Contains(uint64_t offset_bytes, uint64_t size_bytes) const {
  const uint64_t region_bytes = region_.bytes.size();
  return offset_bytes <= region_bytes && size_bytes <= region_bytes - offset_bytes;
}

bool ServedRegion::Begin() {
  const std::lock_guard lock(mutex_);
  if (revoked_) return false;
  ++touch_count_;
  return true;
}

void ServedRegion::End() {
  std::function<void()> ended;
  {
    const std::lock_guard lock(mutex_);
    BACKSTAY_CHECK(touch_count_ > 0, "End() without Begin()");
    if (--touch_count_ == 0 && revoked_) ended = std::exchange(on_ended_, nullptr);
  }
  if (ended) executor_->Post(std::move(ended));
}

void ServedRegion::Revoke() {
  std::function<void()> ended;
  {
    const std::lock_guard lock(mutex_);
    revoked_ = true;
    if (touch_count_ == 0) ended = std::exchange(on_ended_, nullptr);
  }
  if (ended) executor_->Post(std::move(ended));
}

bool ServedRegion::revoked() const {
  const std::lock_guard lock(mutex_);
  return revoked_;
}

void GrantTable::Add(std::shared_ptr<ServedRegion> region) {
  const std::lock_guard lock(mutex_);
  const GrantId id = region->id();
  const bool added = regions_.emplace(id, std::move(region)).second;
  BACKSTAY_CHECK(added, "grant ids are never reused");
}

std::shared_ptr<ServedRegion> GrantTable::Find(GrantId id) const {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(id);
  return found == regions_.end() ? nullptr : found->second;
}

void GrantTable::Revoke(GrantId id) {
  std::shared_ptr<ServedRegion> region;
  {
    const std::lock_guard lock(mutex_);
    const auto found = regions_.find(id);
    if (found == regions_.end()) return;
    region = std::move(found->second);
    regions_.erase(found);
  }
  region->Revoke();
}

void GrantTable::RevokeAll() {
  std::unordered_map<GrantId, std::shared_ptr<ServedRegion>> regions;
  {
    const std::lock_guard lock(mutex_);
    regions.swap(regions_);
  }
  for (const auto& [id, region] : regions) region->Revoke();
}

uint64_t GrantTable::size() const {
  const std::lock_guard lock(mutex_);
  return regions_.size();
}

}  // namespace backstay::transport
