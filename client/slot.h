#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "base/slot_control.h"
#include "base/status.h"
#include "client/connection.h"
#include "client/fork_guard.h"

namespace backstay::client {

// A slot's data and control page in this process. Shared by those who use it and unmapped when the
// last lets go, so no copy thread ever writes to memory that is gone.
struct MappedSlot {
  Mapping data;
  Mapping control;
  SlotGeometry geometry;

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
  // The service will not hand it over again.
  void Drop(uint64_t slot_id);
  void DropAll();

 private:
  std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<const MappedSlot>> slots_;
};

}  // namespace backstay::client
