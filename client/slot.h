#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "base/slot_control.h"
#include "base/status.h"
#include "client/connection.h"
#include "client/fork_guard.h"

namespace backstay::client {

// Device and inode: two descriptors with the same are the same memory, while one of them is held.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;

  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

// A slot's data and control page in this process. Shared by those who use it and unmapped when the
// last lets go, so no copy thread ever writes to memory that is gone.
struct MappedSlot {
  // Let go of after the mappings, for SlotCache::Drop().
  mutable std::shared_ptr<void> when_unmapped;
  Mapping data;
  Mapping control;
  SlotGeometry geometry;
  FileIdentity file;  // Of the data: what is mapped, whatever descriptor or slot number names it.

  std::span<std::byte> bytes() const { return {data.data(), geometry.size_bytes}; }
  std::span<std::byte> page() const { return {control.data(), geometry.ControlBytes()}; }
};

// Maps what came with `reply`, and checks that the control page is one and fits the data. kCorrupt
// when not; kNoSpace and the like when the system refuses.
Result<std::shared_ptr<const MappedSlot>> MapSlot(Reply& reply, uint64_t size_bytes,
                                                  uint64_t control_bytes, uint32_t chunk_bytes,
                                                  bool writable);

// The slots that this process has mapped writable, kept for later saves.
//
// Thread: any.
class SlotCache {
 public:
  // The slot that `begin` hands over: mapped now from `reply`'s descriptors, or before. kCorrupt
  // when neither.
  Result<std::shared_ptr<const MappedSlot>> Take(Reply& reply, const local::BeginReply& begin,
                                                 uint32_t chunk_bytes);
  // The memory that came with `reply`, when it is one of these slots: a shard that this process
  // saved, and whose pages it need not map again (which costs as much as copying them). Nothing
  // when it is not.
  std::shared_ptr<const MappedSlot> FindMapped(const Reply& reply, const SlotGeometry& geometry);
  // The service will not hand it over again. `unmapped` runs once, on any thread, when nobody uses
  // it any more and it is unmapped; never for a slot that is not mapped here.
  void Drop(uint64_t slot_id, std::function<void()> unmapped);
  void DropAll();

 private:
  std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<const MappedSlot>> slots_;
};

}  // namespace backstay::client
