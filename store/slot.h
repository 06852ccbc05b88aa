#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "base/ids.h"
#include "store/slot_memory.h"

namespace backstay::store {

using SlotId = StrongNumber<struct SlotIdTag>;                // From 1, never reused.
using ReservationId = StrongNumber<struct ReservationIdTag>;  // From 1, never reused; 0 is none.
using ClientId = StrongNumber<struct StoreClientIdTag>;  // One client process, as the service tells
                                                         // processes apart; never reused.

// docs/protocol.md, "Slots".
enum class SlotState : uint8_t {
  kFree,         // No content. For its writer alone while that is set.
  kFilling,      // Being copied or pulled into.
  kSealed,       // Has a shard; does not change any more.
  kRevoking,     // Its shard is gone; grants or pins are left.
  kQuarantined,  // No content, but a process that may no longer use it has it mapped writable.
};
std::string_view SlotStateName(SlotState state);

// One slot's memory and state. Knows which moves are legal and nothing of budgets or shards.
//
// Thread: the control executor.
class Slot {
 public:
  Slot(SlotId id, std::shared_ptr<SlotMemory> memory) : id_(id), memory_(std::move(memory)) {}
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  SlotId id() const { return id_; }
  SlotState state() const { return state_; }
  const std::shared_ptr<SlotMemory>& memory() const { return memory_; }
  const SlotGeometry& geometry() const { return memory_->geometry(); }
  // What it costs of the budget: data and control page.
  uint64_t footprint_bytes() const;

  // Free or filled for `client` (nobody: by the service): no other live process can write to it.
  bool UsableBy(std::optional<ClientId> client) const;

  // Each ends in the state of its name, or stops the process: a caller lost track of the slot.
  void StartFilling(std::optional<ClientId> client);  // Empties the control page, next epoch.
  void Seal();
  // The content is given up: kRevoking, and from there as OnReferencesChanged() says.
  void GiveUp();

  // The process has ended: nobody writes through its mapping any more.
  void WriterExited();
  // The process is fenced but may still write: once without content, nobody uses the slot.
  void DisownWriter();
  // A disowned process says that it has unmapped the slot. Its word is enough to give the memory
  // back to the system, not to let somebody else write there.
  void WriterUnmapped();

  void AddGrant() { ++grant_count_; }
  void RemoveGrant();
  void AddPin() { ++pin_count_; }
  void RemovePin();

  uint32_t grant_count() const { return grant_count_; }
  uint32_t pin_count() const { return pin_count_; }
  // The process that has it mapped writable and was not seen to exit.
  const std::optional<ClientId>& writer() const { return writer_; }
  bool writer_disowned() const { return writer_disowned_; }
  // Of no use to anybody: to be freed.
  bool is_spent() const { return unmapped_ && state_ == SlotState::kQuarantined; }
  uint64_t epoch() const { return epoch_; }

 private:
  void MoveTo(SlotState next);
  // Leaves kRevoking when no grant and no pin is left, kFree or kQuarantined by the writer.
  void Settle();

  const SlotId id_;
  const std::shared_ptr<SlotMemory> memory_;
  SlotState state_ = SlotState::kFree;
  std::optional<ClientId> writer_;
  bool writer_disowned_ = false;
  bool unmapped_ = false;  // By the disowned writer.
  uint32_t grant_count_ = 0;
  uint32_t pin_count_ = 0;
  uint64_t epoch_ = 0;
};

}  // namespace backstay::store
