#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/ids.h"
#include "base/status.h"
#include "store/memory_budget.h"
#include "store/numa.h"
#include "store/offload.h"
#include "store/slot.h"

namespace backstay::store {

inline constexpr uint32_t kReservationSlotsMax = 1024;  // Far above any retention.
// A spare that nobody has taken for this long goes back to the system. Long enough for a job that
// ends and is submitted again, which then need not wait for its memory to be touched.
inline constexpr Duration kSpareKeptDuration = std::chrono::minutes(10);
// How often spares are looked at, also for what a shrunken budget does not allow any more.
inline constexpr Duration kSpareLookInterval = std::chrono::seconds(10);
static_assert(kSpareLookInterval < kSpareKeptDuration);

// What memory is promised for.
enum class Purpose : uint8_t {
  kOwn,     // Saves of a local trainer.
  kHeld,    // Replicas for peers.
  kRepair,  // Replicas of what is committed already; may use the repair reserve.
  kFetch,   // Shards being restored; may use the repair reserve.
};
std::string_view PurposeName(Purpose purpose);

struct ReservationRequest {
  Purpose purpose = Purpose::kOwn;
  JobName job;
  ShardId shard;
  uint64_t slot_bytes = 0;  // The largest shard that fits. 0 is legal.
  uint32_t slot_count = 0;  // Versions kept + 1.
  uint32_t chunk_bytes = kChunkBytesDefault;
  int32_t numa_node = kAnyNumaNode;  // Preferred.
};

// A slot handed out for filling.
struct AcquiredSlot {
  SlotId id;
  std::shared_ptr<SlotMemory> memory;
  uint64_t epoch = 0;  // Of the control page in this use.
};

// Bytes are footprints, control pages included. The first group adds up to memory_bytes.
struct SlotPoolStats {
  uint64_t memory_bytes = 0;   // In slots, whatever their state.
  uint64_t filling_bytes = 0;  // In flight.
  uint64_t sealed_bytes = 0;
  uint64_t revoking_bytes = 0;
  uint64_t quarantined_bytes = 0;
  uint64_t free_bytes = 0;  // Spare slots included.

  uint64_t own_bytes = 0;   // Slots with content, by the purpose of their reservation.
  uint64_t held_bytes = 0;  // kHeld and kRepair.
  uint64_t fetched_bytes = 0;
  uint64_t pinned_bytes = 0;
  uint64_t spare_bytes = 0;  // Free and promised to nobody.
  uint64_t huge_page_bytes = 0;
  uint64_t advised_huge_page_bytes = 0;

  uint64_t budget_bytes = 0;
  std::string budget_reason;
  uint64_t reserved_bytes = 0;  // Promised, and what is in use beyond that; the base of admission.
  uint64_t repair_reserve_bytes = 0;
  uint64_t slot_count = 0;
};

// All slots of a node and the promises made of them. A reservation is the promise: its slots exist
// and are touched before it is granted, so that a save never waits for the kernel or finds no
// memory.
//
// A slot serves its reservation from use to use. Slots whose reservation is gone or wants another
// size are kept as spares, and a new reservation takes them before new memory. Spares go back to
// the system when others need the room, when the budget has shrunk below what is in slots, and
// after kSpareKeptDuration.
//
// Thread:  the control executor, every method and completion; memory is made through `offload`.
// Memory:  owns all slots; never more than the budget. Completions that are pending when the pool
//          is destroyed do not run.
// Failure: kNoSpace carries the whole sum. An unknown id or an illegal move stops the process.
class SlotPool {
 public:
  // Slots of one reservation that are made (touched) at once.
  static constexpr uint32_t kCreatingMax = 2;

  struct Options {
    NodeId node;                        // For messages.
    uint64_t repair_reserve_bytes = 0;  // Of the budget, not for kOwn and kHeld.
  };
  // All references outlive the pool and the work that it has given to `offload`.
  SlotPool(Options options, Executor& executor, Offload offload, SlotMemoryFactory& factory,
           const MemoryBudget& budget);
  ~SlotPool();
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;

  // Promises memory; `done` runs when all of it is there and touched.
  void Reserve(ReservationRequest request, Completion<ReservationId> done);
  // Other numbers for the same promise. Slots in use keep their shards and are replaced as they
  // become free; larger slots than needed stay. When it is refused, nothing has changed; when the
  // machine has no memory after all, the old numbers hold again. Slots that are too small now and
  // that a live client has mapped are quarantined until its exit.
  void Resize(ReservationId id, uint64_t slot_bytes, uint32_t slot_count, StatusCompletion done);
  // Ends the promise. Slots in use stay until their shards are given up.
  void Release(ReservationId id);
  // Its numbers as they stand; none: released or never made.
  std::optional<ReservationRequest> Find(ReservationId id) const;

  // A free slot of the reservation, to be filled by `client` or (nothing) by the service; its
  // control page is reset. kNotFound: no such reservation. kUnavailable: all slots are in use, says
  // by what; ask again after OnSlotFree.
  Result<AcquiredSlot> Acquire(ReservationId id, std::optional<ClientId> client);
  bool HasFreeSlot(ReservationId id, std::optional<ClientId> client) const;
  // Called (posted, folded) after slots of the reservation became free. For the pool's lifetime.
  void OnSlotFree(std::function<void(ReservationId)> observer);
  // A slot that a process has mapped left its reservation: it will not get it again. Posted.
  void OnSlotClosed(std::function<void(SlotId, ClientId)> observer);

  void Seal(SlotId id);
  // The content is not needed any more: revoking until the last grant and pin, then free.
  void GiveUp(SlotId id);

  // Counted; a slot with either is neither reused nor freed.
  void AddPin(SlotId id);
  void RemovePin(SlotId id);
  void AddGrant(SlotId id);
  void RemoveGrant(SlotId id);

  // The process was seen to have ended: its slots can serve others, its quarantined ones too. What
  // it was filling is still to be given up by whoever began it.
  void ClientExited(ClientId client);
  // The process lost its shard but may still write: its slots of the reservation are quarantined
  // once without content, and replaced while the budget allows. Its other shards are not touched.
  void DisownClient(ReservationId id, ClientId client);
  // A process says that it has unmapped a slot that is closed to it: the memory is freed once it
  // has no content. kNotFound: no such slot is closed to that process.
  Status ClientUnmapped(ClientId client, SlotId slot);

  const Slot& slot(SlotId id) const;
  SlotPoolStats Stats() const;

 private:
  struct Reservation;
  struct Entry;

  Entry& Get(SlotId id);
  static SlotGeometry GeometryOf(const ReservationRequest& request);
  static bool Fits(const Slot& slot, const ReservationRequest& request);

  // What a reservation with these numbers counts as: its slots, and what it is still to get.
  uint64_t ChargeOf(const Reservation& reservation, const ReservationRequest& request) const;
  // All reservations, and slots in use without one, by purpose.
  struct Charges;
  Charges CurrentCharges() const;
  // Whether the budget allows `reservation` (if any) to change to `request`.
  Status Admit(const ReservationRequest& request, const Reservation* reservation) const;

  // Brings the reservation one step closer to its numbers. Safe to call at any time: the first
  // try, growing and replacing lost slots are the same code.
  void Fill(ReservationId id);
  void FillAll();
  bool TakeSpare(ReservationId id, Reservation& reservation);
  bool StartCreating(ReservationId id, Reservation& reservation);
  void OnCreated(ReservationId id, uint64_t footprint_bytes, int32_t numa_node,
                 Result<std::unique_ptr<SlotMemory>> memory);
  void OnFillFailed(ReservationId id, const Status& status);
  void FinishWaiting(Reservation& reservation, const Status& status);

  // After a slot's state may have changed: frees it for its reservation, or takes it away.
  void AfterChange(SlotId id);
  void Attach(Entry& entry, ReservationId id, Reservation& reservation);
  void Detach(Entry& entry);
  // Removes spares until at least `bytes_min` are freed or none is left, and those that have been
  // spare since `unwanted_since` or longer.
  std::vector<std::shared_ptr<SlotMemory>> RemoveSpares(
      uint64_t bytes_min, std::optional<Instant> unwanted_since = std::nullopt);
  void RemoveIfSpent(SlotId id);  // Which may have been evicted.
  void GiveBack(std::vector<std::shared_ptr<SlotMemory>> removed);
  void LookAtSpares();
  void LookAtSparesLater();
  void NotifyFree(ReservationId id);

  const Options options_;
  Executor& executor_;
  const Offload offload_;
  SlotMemoryFactory& factory_;
  const MemoryBudget& budget_;
  std::map<ReservationId, std::unique_ptr<Reservation>> reservations_;
  std::map<SlotId, std::unique_ptr<Entry>> slots_;
  uint64_t memory_bytes_ = 0;    // Footprints of slots_.
  uint64_t creating_bytes_ = 0;  // Footprints being made.
  uint64_t last_slot_ = 0;
  uint64_t last_reservation_ = 0;
  std::function<void(SlotId, ClientId)> closed_observer_;
  std::vector<std::function<void(ReservationId)>> free_observers_;
  std::set<ReservationId> free_to_tell_;
  Lifetime lifetime_;
};

}  // namespace backstay::store
