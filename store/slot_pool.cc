#include "store/slot_pool.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "store/manifest.h"
#include "store/slot_pool_state.h"

namespace backstay::store {

SlotPool::SlotPool(Options options, Executor& executor, Offload offload, SlotMemoryFactory& factory,
                   const MemoryBudget& budget)
    : options_(std::move(options)),
      executor_(executor),
      offload_(std::move(offload)),
      factory_(factory),
      budget_(budget) {
  LookAtSparesLater();
}

SlotPool::~SlotPool() = default;

SlotPool::Entry& SlotPool::Get(SlotId id) {
  const auto found = slots_.find(id);
  BACKSTAY_CHECK(found != slots_.end(), "no such slot: " + std::to_string(id.value));
  return *found->second;
}

const Slot& SlotPool::slot(SlotId id) const { return const_cast<SlotPool*>(this)->Get(id).slot; }

SlotGeometry SlotPool::GeometryOf(const ReservationRequest& request) {
  return {SlotDataBytes(request.slot_bytes), request.chunk_bytes};
}

bool SlotPool::Fits(const Slot& slot, const ReservationRequest& request) {
  return slot.geometry().chunk_bytes == request.chunk_bytes &&
         slot.geometry().size_bytes >= SlotDataBytes(request.slot_bytes);
}

// ---- Reservations -------------------------------------------------------------------------------

void SlotPool::Reserve(ReservationRequest request, Completion<ReservationId> done) {
  if (Status status = Admit(request, nullptr); !status.ok()) {
    executor_.Post(lifetime_.Wrap([status, done = std::move(done)] { done(status); }));
    return;
  }
  const ReservationId id(++last_reservation_);
  auto reservation = std::make_unique<Reservation>();
  reservation->request = std::move(request);
  reservation->waiting.push_back([id, done = std::move(done)](const Status& status) {
    if (status.ok()) {
      done(id);
    } else {
      done(status);
    }
  });
  reservations_.emplace(id, std::move(reservation));
  Fill(id);
}

void SlotPool::Resize(ReservationId id, uint64_t slot_bytes, uint32_t slot_count,
                      StatusCompletion done) {
  const auto refuse = [this, &done](Status status) {
    executor_.Post(
        lifetime_.Wrap([status = std::move(status), done = std::move(done)] { done(status); }));
  };
  const auto found = reservations_.find(id);
  if (found == reservations_.end()) return refuse(NotFound("resize: the reservation has ended"));
  Reservation& reservation = *found->second;
  ReservationRequest request = reservation.request;
  request.slot_bytes = slot_bytes;
  request.slot_count = slot_count;
  if (Status status = Admit(request, &reservation); !status.ok()) return refuse(status);
  if (!reservation.before_resize) reservation.before_resize = reservation.request;
  reservation.request = std::move(request);
  reservation.waiting.push_back(std::move(done));
  Fill(id);
}

void SlotPool::Release(ReservationId id) {
  const auto found = reservations_.find(id);
  if (found == reservations_.end()) return;
  FinishWaiting(*found->second, Unavailable("the reservation was released meanwhile"));
  for (const SlotId slot : std::vector<SlotId>(found->second->slots)) Detach(Get(slot));
  reservations_.erase(found);
  FillAll();
}

std::optional<ReservationRequest> SlotPool::Find(ReservationId id) const {
  const auto found = reservations_.find(id);
  if (found == reservations_.end()) return std::nullopt;
  return found->second->request;
}

void SlotPool::Fill(ReservationId id) {
  const auto found = reservations_.find(id);
  if (found == reservations_.end()) return;
  Reservation& reservation = *found->second;
  const ReservationRequest& request = reservation.request;

  // Free slots that the numbers do not ask for (any more).
  for (const SlotId slot_id : std::vector<SlotId>(reservation.slots)) {
    Entry& entry = Get(slot_id);
    const bool surplus = reservation.slots.size() > request.slot_count;
    if (entry.slot.state() == SlotState::kFree && (surplus || !Fits(entry.slot, request))) {
      Detach(entry);
    }
  }
  while (reservation.slots.size() + reservation.creating_count < request.slot_count) {
    if (TakeSpare(id, reservation)) continue;
    if (reservation.creating_count == kCreatingMax || !StartCreating(id, reservation)) return;
  }
  if (reservation.creating_count == 0) {
    reservation.granted = true;
    reservation.before_resize.reset();
    FinishWaiting(reservation, Status::Ok());
  }
}

void SlotPool::FillAll() {
  std::vector<ReservationId> ids;
  for (const auto& [id, reservation] : reservations_) ids.push_back(id);
  for (const ReservationId id : ids) Fill(id);
}

bool SlotPool::TakeSpare(ReservationId id, Reservation& reservation) {
  const SlotGeometry wanted = GeometryOf(reservation.request);
  for (auto& [slot_id, entry] : slots_) {
    if (entry->is_spare() && entry->slot.geometry() == wanted &&
        entry->numa_node == reservation.request.numa_node) {
      Attach(*entry, id, reservation);
      return true;
    }
  }
  return false;
}

// False: that failed, and the reservation may be gone.
bool SlotPool::StartCreating(ReservationId id, Reservation& reservation) {
  const SlotGeometry geometry = GeometryOf(reservation.request);
  const uint64_t footprint = SlotFootprintBytes(geometry);
  // Admission has promised it, but the budget may have shrunk or slots been quarantined since.
  const uint64_t budget = budget_.Compute(memory_bytes_ + creating_bytes_).bytes;
  const uint64_t wanted = memory_bytes_ + creating_bytes_ + footprint;
  uint64_t spare_bytes = 0;
  for (const auto& [slot_id, entry] : slots_) {
    if (entry->is_spare()) spare_bytes += entry->slot.footprint_bytes();
  }
  const uint64_t excess = wanted > budget ? wanted - budget : 0;
  if (excess > spare_bytes) {
    OnFillFailed(id, NoSpace(FormatBytes(footprint) + " for a slot of job " +
                             QuoteName(reservation.request.job.value) + ", shard " +
                             QuoteName(reservation.request.shard.value) + " exceed the budget of " +
                             FormatBytes(budget) + ", of which " + FormatBytes(memory_bytes_) +
                             " are in slots: free snapshots or raise memory_budget"));
    return false;
  }
  // Evicted by the work itself, so that the old memory is gone before the new one is touched.
  auto evicted = std::make_shared<std::vector<std::shared_ptr<SlotMemory>>>(RemoveSpares(excess));
  auto made = std::make_shared<Result<std::unique_ptr<SlotMemory>>>(Unavailable("not made yet"));
  const int32_t numa_node = reservation.request.numa_node;
  const Status started = offload_(
      [evicted, made, geometry, numa_node, &factory = factory_] {
        evicted->clear();
        *made = factory.Create(geometry, numa_node);
      },
      lifetime_.Wrap([this, id, footprint, numa_node, made] {
        OnCreated(id, footprint, numa_node, std::move(*made));
      }));
  if (!started.ok()) {
    OnFillFailed(id, started);
    return false;
  }
  ++reservation.creating_count;
  creating_bytes_ += footprint;
  return true;
}

void SlotPool::OnCreated(ReservationId id, uint64_t footprint_bytes, int32_t numa_node,
                         Result<std::unique_ptr<SlotMemory>> memory) {
  creating_bytes_ -= footprint_bytes;
  const auto found = reservations_.find(id);
  Reservation* reservation = found == reservations_.end() ? nullptr : found->second.get();
  if (reservation != nullptr) --reservation->creating_count;
  if (!memory.ok()) return OnFillFailed(id, memory.status());

  const SlotId slot_id(++last_slot_);
  Entry& entry =
      *slots_.emplace(slot_id, std::make_unique<Entry>(slot_id, *std::move(memory), numa_node))
           .first->second;
  memory_bytes_ += entry.slot.footprint_bytes();
  if (reservation != nullptr && reservation->slots.size() < reservation->request.slot_count &&
      Fits(entry.slot, reservation->request)) {
    Attach(entry, id, *reservation);
    Fill(id);
  } else {
    FillAll();  // A spare: somebody else may want it.
  }
}

void SlotPool::OnFillFailed(ReservationId id, const Status& status) {
  const auto found = reservations_.find(id);
  if (found == reservations_.end()) return;
  Reservation& reservation = *found->second;
  FinishWaiting(reservation, status);
  if (!reservation.granted) return Release(id);
  if (reservation.before_resize) {
    reservation.request = *std::exchange(reservation.before_resize, std::nullopt);
    Fill(id);
  }
  // Else it has fewer slots than promised until something is freed: FillAll() tries again.
}

void SlotPool::FinishWaiting(Reservation& reservation, const Status& status) {
  for (StatusCompletion& done : std::exchange(reservation.waiting, {})) {
    executor_.Post(lifetime_.Wrap([status, done = std::move(done)] { done(status); }));
  }
}

// ---- Slots --------------------------------------------------------------------------------------

Result<AcquiredSlot> SlotPool::Acquire(ReservationId id, std::optional<ClientId> client) {
  const auto found = reservations_.find(id);
  if (found == reservations_.end()) return NotFound("the reservation has ended");
  const Reservation& reservation = *found->second;
  Slot* best = nullptr;
  std::string states;
  for (const SlotId slot_id : reservation.slots) {
    Slot& slot = Get(slot_id).slot;
    states += (states.empty() ? "" : ", ") + std::string(SlotStateName(slot.state()));
    if (!slot.UsableBy(client)) continue;
    // One that the client has mapped already is warm on its side too.
    if (best == nullptr || (!best->writer() && slot.writer())) best = &slot;
  }
  if (best == nullptr) {
    return Unavailable("job " + QuoteName(reservation.request.job.value) + ", shard " +
                       QuoteName(reservation.request.shard.value) + ": none of its " +
                       std::to_string(reservation.request.slot_count) + " slots is free (" +
                       (states.empty() ? "none is there yet" : states) +
                       "): save less often, or wait");
  }
  best->StartFilling(client);
  return AcquiredSlot{best->id(), best->memory(), best->epoch()};
}

bool SlotPool::HasFreeSlot(ReservationId id, std::optional<ClientId> client) const {
  const auto found = reservations_.find(id);
  return found != reservations_.end() &&
         std::ranges::any_of(found->second->slots,
                             [&](SlotId slot_id) { return slot(slot_id).UsableBy(client); });
}

void SlotPool::OnSlotFree(std::function<void(ReservationId)> observer) {
  free_observers_.push_back(std::move(observer));
}

void SlotPool::OnSlotClosed(std::function<void(SlotId, ClientId)> observer) {
  closed_observer_ = std::move(observer);
}

void SlotPool::Seal(SlotId id) { Get(id).slot.Seal(); }

void SlotPool::GiveUp(SlotId id) {
  Get(id).slot.GiveUp();
  AfterChange(id);
}

void SlotPool::AddPin(SlotId id) { Get(id).slot.AddPin(); }
void SlotPool::AddGrant(SlotId id) { Get(id).slot.AddGrant(); }

void SlotPool::RemovePin(SlotId id) {
  Get(id).slot.RemovePin();
  AfterChange(id);
}

void SlotPool::RemoveGrant(SlotId id) {
  Get(id).slot.RemoveGrant();
  AfterChange(id);
}

void SlotPool::ClientExited(ClientId client) {
  for (auto& [slot_id, entry] : slots_) {
    if (entry->slot.writer() != client) continue;
    entry->slot.WriterExited();
    if (entry->slot.state() == SlotState::kFree && entry->reservation.value != 0) {
      NotifyFree(entry->reservation);  // For others than that client now.
    }
  }
  FillAll();
}

void SlotPool::DisownClient(ReservationId id, ClientId client) {
  const auto found = reservations_.find(id);
  if (found == reservations_.end()) return;  // Its slots were disowned as they left it.
  for (const SlotId slot_id : std::vector<SlotId>(found->second->slots)) {
    Entry& entry = Get(slot_id);
    if (entry.slot.writer() != client) continue;
    entry.slot.DisownWriter();
    if (entry.slot.state() == SlotState::kQuarantined) Detach(entry);
  }
  FillAll();
}

Status SlotPool::ClientUnmapped(ClientId client, SlotId id) {
  const auto found = slots_.find(id);
  if (found == slots_.end() || found->second->slot.writer() != client ||
      !found->second->slot.writer_disowned()) {
    return NotFound("slot " + std::to_string(id.value) + " is not closed to this process");
  }
  found->second->slot.WriterUnmapped();
  RemoveIfSpent(id);
  return Status::Ok();
}

void SlotPool::RemoveIfSpent(SlotId id) {
  const auto found = slots_.find(id);
  if (found == slots_.end() || !found->second->slot.is_spent()) return;
  std::vector<std::shared_ptr<SlotMemory>> removed{found->second->slot.memory()};
  memory_bytes_ -= found->second->slot.footprint_bytes();
  slots_.erase(found);
  GiveBack(std::move(removed));
  FillAll();
}

void SlotPool::GiveBack(std::vector<std::shared_ptr<SlotMemory>> removed) {
  const auto memory =
      std::make_shared<std::vector<std::shared_ptr<SlotMemory>>>(std::move(removed));
  // Unmapping takes long; when the workers have no room for it, it is done here after all.
  if (!offload_([memory] { memory->clear(); }, [] {}).ok()) memory->clear();
}

void SlotPool::LookAtSparesLater() {
  executor_.RunAfter(kSpareLookInterval, lifetime_.Wrap([this] {
    LookAtSpares();
    LookAtSparesLater();
  }));
}

void SlotPool::LookAtSpares() {
  const Instant now = executor_.Now();
  for (auto& [id, entry] : slots_) {
    if (!entry->is_spare()) {
      entry->spare_since.reset();
    } else if (!entry->spare_since) {
      entry->spare_since = now;
    }
  }
  const Budget budget = budget_.Compute(memory_bytes_ + creating_bytes_);
  const uint64_t used = memory_bytes_ + creating_bytes_;
  const uint64_t excess = used - std::min(used, budget.bytes);
  std::vector<std::shared_ptr<SlotMemory>> removed =
      RemoveSpares(excess, /*unwanted_since=*/now - kSpareKeptDuration);
  if (removed.empty()) return;
  Log(LogLevel::kInfo, "gave memory that nobody uses back to the system",
      {{"bytes", std::to_string(used - memory_bytes_ - creating_bytes_)},
       {"slots", std::to_string(removed.size())},
       {"left_in_slots", std::to_string(memory_bytes_)},
       {"budget", std::to_string(budget.bytes)}});
  GiveBack(std::move(removed));
}

void SlotPool::AfterChange(SlotId id) {
  Entry& entry = Get(id);
  const SlotState state = entry.slot.state();
  if (state != SlotState::kFree && state != SlotState::kQuarantined) return;
  const auto found = reservations_.find(entry.reservation);
  if (found == reservations_.end() || state == SlotState::kQuarantined) {
    Detach(entry);
    FillAll();  // May evict it.
    RemoveIfSpent(id);
    return;
  }
  // Keeps it, or replaces it when it does not fit any more, or evicts it for its replacement.
  Fill(entry.reservation);
  const auto left = slots_.find(id);
  if (left != slots_.end() && left->second->reservation.value != 0) {
    NotifyFree(left->second->reservation);
  } else {
    FillAll();
  }
}

void SlotPool::Attach(Entry& entry, ReservationId id, Reservation& reservation) {
  entry.reservation = id;
  entry.spare_since.reset();
  reservation.slots.push_back(entry.slot.id());
  NotifyFree(id);
}

void SlotPool::Detach(Entry& entry) {
  if (const auto found = reservations_.find(entry.reservation); found != reservations_.end()) {
    std::erase(found->second->slots, entry.slot.id());
  }
  entry.reservation = ReservationId();
  // A client of the old reservation may still write: nobody else gets the slot before its exit.
  if (!entry.slot.writer()) return;
  const bool was_closed = entry.slot.writer_disowned();
  entry.slot.DisownWriter();
  if (was_closed || !closed_observer_) return;
  executor_.Post(lifetime_.Wrap([this, id = entry.slot.id(), client = *entry.slot.writer()] {
    closed_observer_(id, client);
  }));
}

std::vector<std::shared_ptr<SlotMemory>> SlotPool::RemoveSpares(
    uint64_t bytes_min, std::optional<Instant> unwanted_since) {
  std::vector<std::shared_ptr<SlotMemory>> removed;
  uint64_t bytes = 0;
  for (auto it = slots_.begin(); it != slots_.end();) {
    const Entry& entry = *it->second;
    const bool unwanted =
        unwanted_since && entry.spare_since && *entry.spare_since <= *unwanted_since;
    if (!entry.is_spare() || (bytes >= bytes_min && !unwanted)) {
      ++it;
      continue;
    }
    bytes += entry.slot.footprint_bytes();
    removed.push_back(entry.slot.memory());
    it = slots_.erase(it);
  }
  memory_bytes_ -= bytes;
  return removed;
}

void SlotPool::NotifyFree(ReservationId id) {
  const bool first = free_to_tell_.empty();
  free_to_tell_.insert(id);
  if (!first) return;
  executor_.Post(lifetime_.Wrap([this] {
    for (const ReservationId told : std::exchange(free_to_tell_, {})) {
      for (const auto& observer : free_observers_) observer(told);
    }
  }));
}

}  // namespace backstay::store
