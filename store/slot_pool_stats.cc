// Admission and the numbers that people see: what is promised, what is used, what is left.

#include <algorithm>

#include "base/units.h"
#include "store/manifest.h"
#include "store/slot_pool.h"
#include "store/slot_pool_state.h"

namespace backstay::store {

namespace {

// "3 slots of 512.0 MiB (2 kept + 1) = 1.5 GiB with control pages".
std::string SumText(const ReservationRequest& request) {
  const bool keeps_versions =
      (request.purpose == Purpose::kOwn || request.purpose == Purpose::kHeld) &&
      request.slot_count > 1;
  const uint64_t slot_bytes = SlotDataBytes(request.slot_bytes);
  return std::to_string(request.slot_count) +
         (request.slot_count == 1 ? " slot of " : " slots of ") + FormatBytes(slot_bytes) +
         (keeps_versions ? " (" + std::to_string(request.slot_count - 1) + " kept + 1)" : "") +
         " = " +
         FormatBytes(SlotFootprintBytes({slot_bytes, request.chunk_bytes}) * request.slot_count) +
         " with control pages";
}

Status CheckNumbers(const ReservationRequest& request) {
  if (request.slot_count == 0 || request.slot_count > kReservationSlotsMax) {
    return InvalidArgument("a reservation of " + std::to_string(request.slot_count) +
                           " slots: need 1 to " + std::to_string(kReservationSlotsMax));
  }
  if (request.slot_bytes > kShardBytesMax) {
    return InvalidArgument("a shard of " + FormatBytes(request.slot_bytes) + ", at most " +
                           FormatBytes(kShardBytesMax) + " are allowed");
  }
  return SlotGeometry{SlotDataBytes(request.slot_bytes), request.chunk_bytes}.Validate();
}

}  // namespace

std::string_view PurposeName(Purpose purpose) {
  switch (purpose) {
    case Purpose::kOwn:
      return "own";
    case Purpose::kHeld:
      return "held";
    case Purpose::kRepair:
      return "repair";
    case Purpose::kFetch:
      return "fetch";
  }
  return "unknown";
}

uint64_t& SlotPool::Charges::Of(Purpose purpose) {
  switch (purpose) {
    case Purpose::kOwn:
      return own_bytes;
    case Purpose::kHeld:
      return held_bytes;
    case Purpose::kRepair:
      return repair_bytes;
    case Purpose::kFetch:
      break;
  }
  return fetch_bytes;
}

uint64_t SlotPool::ChargeOf(const Reservation& reservation,
                            const ReservationRequest& request) const {
  const uint64_t wanted_bytes = SlotFootprintBytes(GeometryOf(request));
  uint64_t kept_count = 0;
  uint64_t charge = 0;
  uint64_t lost_bytes = 0;
  for (const SlotId id : reservation.slots) {
    const Slot& slot = this->slot(id);
    if (Fits(slot, request)) {
      ++kept_count;
      charge += slot.footprint_bytes();
    } else if (slot.state() != SlotState::kFree) {
      // Will be replaced when its shard goes: it counts as the larger of the two.
      ++kept_count;
      charge += std::max(slot.footprint_bytes(), wanted_bytes);
      // But the memory that a live client has mapped does not come back with that.
      if (slot.writer()) lost_bytes += std::min(slot.footprint_bytes(), wanted_bytes);
    } else if (slot.writer()) {
      lost_bytes += slot.footprint_bytes();  // Will be quarantined.
    }
  }
  if (kept_count < request.slot_count) charge += (request.slot_count - kept_count) * wanted_bytes;
  return charge + lost_bytes;
}

SlotPool::Charges SlotPool::CurrentCharges() const {
  Charges charges;
  for (const auto& [id, reservation] : reservations_) {
    charges.Of(reservation->request.purpose) += ChargeOf(*reservation, reservation->request);
  }
  for (const auto& [id, entry] : slots_) {
    if (entry->reservation.value != 0 || entry->slot.state() == SlotState::kFree) continue;
    (entry->slot.state() == SlotState::kQuarantined ? charges.quarantined_bytes
                                                    : charges.in_use_bytes) +=
        entry->slot.footprint_bytes();
  }
  return charges;
}

Status SlotPool::Admit(const ReservationRequest& request, const Reservation* reservation) const {
  BACKSTAY_RETURN_IF_ERROR(CheckNumbers(request));
  const Charges before = CurrentCharges();
  Charges after = before;
  if (reservation != nullptr) {
    after.Of(request.purpose) -= ChargeOf(*reservation, reservation->request);
    after.Of(request.purpose) += ChargeOf(*reservation, request);
  } else {
    after.Of(request.purpose) += ChargeOf(Reservation{}, request);
  }
  const bool may_use_reserve =
      request.purpose == Purpose::kRepair || request.purpose == Purpose::kFetch;
  const uint64_t kept_back = may_use_reserve
                                 ? 0
                                 : options_.repair_reserve_bytes -
                                       std::min(options_.repair_reserve_bytes, after.ForRecovery());
  const Budget budget = budget_.Compute(memory_bytes_ + creating_bytes_);
  // Less than before always fits: a shrinking budget must not hinder giving memory back.
  if (after.Total() <= before.Total() || after.Total() + kept_back <= budget.bytes) {
    return Status::Ok();
  }
  const uint64_t taken = before.Total() + kept_back;
  return NoSpace(
      "job " + QuoteName(request.job.value) + ", shard " + QuoteName(request.shard.value) + ": " +
      SumText(request) + " for " + std::string(PurposeName(request.purpose)) + " shards on node " +
      options_.node.value + " do not fit; budget " + FormatBytes(budget.bytes) + " (" +
      budget.reason + "), reserved " + FormatBytes(before.Total()) + ", of which own " +
      FormatBytes(before.own_bytes) + ", held " + FormatBytes(before.held_bytes) + ", repair " +
      FormatBytes(before.repair_bytes) + ", fetch " + FormatBytes(before.fetch_bytes) +
      ", being let go " + FormatBytes(before.in_use_bytes) + ", quarantined " +
      FormatBytes(before.quarantined_bytes) +
      (kept_back > 0 ? "; kept back for repair " + FormatBytes(kept_back) : "") + "; free " +
      FormatBytes(budget.bytes - std::min(budget.bytes, taken)) +
      "; keep fewer versions, or raise memory_budget");
}

SlotPoolStats SlotPool::Stats() const {
  SlotPoolStats stats;
  stats.memory_bytes = memory_bytes_;
  stats.slot_count = slots_.size();
  for (const auto& [id, entry] : slots_) {
    const Slot& slot = entry->slot;
    const uint64_t bytes = slot.footprint_bytes();
    if (slot.memory()->pages() == PageKind::kHuge) stats.huge_page_bytes += bytes;
    if (slot.memory()->pages() == PageKind::kAdvisedHuge) stats.advised_huge_page_bytes += bytes;
    if (slot.pin_count() > 0) stats.pinned_bytes += bytes;
    switch (slot.state()) {
      case SlotState::kFree:
        stats.free_bytes += bytes;
        if (entry->reservation.value == 0) stats.spare_bytes += bytes;
        continue;
      case SlotState::kQuarantined:
        stats.quarantined_bytes += bytes;
        continue;
      case SlotState::kFilling:
        stats.filling_bytes += bytes;
        break;
      case SlotState::kSealed:
        stats.sealed_bytes += bytes;
        break;
      case SlotState::kRevoking:
        stats.revoking_bytes += bytes;
        break;
    }
    const auto found = reservations_.find(entry->reservation);
    if (found == reservations_.end()) continue;
    switch (found->second->request.purpose) {
      case Purpose::kOwn:
        stats.own_bytes += bytes;
        break;
      case Purpose::kHeld:
      case Purpose::kRepair:
        stats.held_bytes += bytes;
        break;
      case Purpose::kFetch:
        stats.fetched_bytes += bytes;
        break;
    }
  }
  const Budget budget = budget_.Compute(memory_bytes_ + creating_bytes_);
  stats.budget_bytes = budget.bytes;
  stats.budget_reason = budget.reason;
  stats.reserved_bytes = CurrentCharges().Total();
  stats.repair_reserve_bytes = options_.repair_reserve_bytes;
  return stats;
}

}  // namespace backstay::store
