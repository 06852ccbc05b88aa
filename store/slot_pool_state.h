#pragma once

// What slot_pool.cc and slot_pool_stats.cc share; nobody else includes it.

#include <vector>

#include "store/slot_pool.h"

namespace backstay::store {

struct SlotPool::Reservation {
  ReservationRequest request;
  std::optional<ReservationRequest> before_resize;  // While a resize is not finished.
  bool granted = false;                             // Reserve() has succeeded.
  std::vector<SlotId> slots;
  uint32_t creating_count = 0;            // Slots being made, at most kCreatingMax.
  std::vector<StatusCompletion> waiting;  // For all slots to be there.
};

struct SlotPool::Entry {
  Entry(SlotId id, std::shared_ptr<SlotMemory> memory, int32_t numa)
      : slot(id, std::move(memory)), numa_node(numa) {}
  Slot slot;
  const int32_t numa_node;             // That its memory was made for.
  ReservationId reservation;           // 0: none.
  std::optional<Instant> spare_since;  // As a look at the spares found it; none: it is not one.

  // Free, and promised to nobody.
  bool is_spare() const { return reservation.value == 0 && slot.state() == SlotState::kFree; }
};

struct SlotPool::Charges {
  uint64_t own_bytes = 0;
  uint64_t held_bytes = 0;
  uint64_t repair_bytes = 0;
  uint64_t fetch_bytes = 0;
  uint64_t in_use_bytes = 0;  // Slots with content whose reservation has gone.
  uint64_t quarantined_bytes = 0;

  uint64_t& Of(Purpose purpose);
  // What the repair reserve is not for.
  uint64_t ForSaves() const { return own_bytes + held_bytes + in_use_bytes + quarantined_bytes; }
  uint64_t ForRecovery() const { return repair_bytes + fetch_bytes; }
  uint64_t Total() const { return ForSaves() + ForRecovery(); }
};

}  // namespace backstay::store
