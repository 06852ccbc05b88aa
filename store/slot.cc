#include "store/slot.h"

#include "base/check.h"

namespace backstay::store {

namespace {

// The only moves there are (docs/protocol.md, "Slots"): free, filling, sealed, revoking, free;
// quarantined.
bool IsLegal(SlotState from, SlotState to) {
  switch (from) {
    case SlotState::kFree:
      return to == SlotState::kFilling || to == SlotState::kQuarantined;
    case SlotState::kFilling:
      return to == SlotState::kSealed || to == SlotState::kRevoking;
    case SlotState::kSealed:
      return to == SlotState::kRevoking;
    case SlotState::kRevoking:
      return to == SlotState::kFree || to == SlotState::kQuarantined;
    case SlotState::kQuarantined:
      return to == SlotState::kFree;
  }
  return false;
}

}  // namespace

std::string_view SlotStateName(SlotState state) {
  switch (state) {
    case SlotState::kFree:
      return "free";
    case SlotState::kFilling:
      return "filling";
    case SlotState::kSealed:
      return "sealed";
    case SlotState::kRevoking:
      return "revoking";
    case SlotState::kQuarantined:
      return "quarantined";
  }
  return "unknown";
}

uint64_t Slot::footprint_bytes() const { return SlotFootprintBytes(geometry()); }

bool Slot::UsableBy(std::optional<ClientId> client) const {
  return state_ == SlotState::kFree && (!writer_ || (client == writer_ && !writer_disowned_));
}

void Slot::StartFilling(std::optional<ClientId> client) {
  BACKSTAY_CHECK(UsableBy(client), "slot given to somebody who may not have it");
  MoveTo(SlotState::kFilling);
  if (client) writer_ = client;
  SlotControlWriter(memory_->control(), geometry()).Reset(++epoch_);
}

void Slot::Seal() { MoveTo(SlotState::kSealed); }

void Slot::GiveUp() {
  MoveTo(SlotState::kRevoking);
  Settle();
}

void Slot::WriterExited() {
  writer_.reset();
  writer_disowned_ = false;
  unmapped_ = false;  // That was of its own mapping; the next process has another.
  if (state_ == SlotState::kQuarantined) MoveTo(SlotState::kFree);
}

void Slot::DisownWriter() {
  BACKSTAY_CHECK(writer_.has_value(), "a slot that no client has mapped cannot be disowned");
  writer_disowned_ = true;
  if (state_ == SlotState::kFree) MoveTo(SlotState::kQuarantined);
}

void Slot::WriterUnmapped() {
  BACKSTAY_CHECK(writer_disowned_, "only a disowned client's slot is unmapped for good");
  unmapped_ = true;
}

void Slot::RemoveGrant() {
  BACKSTAY_CHECK(grant_count_ > 0, "a grant ended twice");
  --grant_count_;
  Settle();
}

void Slot::RemovePin() {
  BACKSTAY_CHECK(pin_count_ > 0, "a pin removed twice");
  --pin_count_;
  Settle();
}

void Slot::MoveTo(SlotState next) {
  BACKSTAY_CHECK(IsLegal(state_, next), "slot " + std::to_string(id_.value) + " from " +
                                            std::string(SlotStateName(state_)) + " to " +
                                            std::string(SlotStateName(next)));
  state_ = next;
}

void Slot::Settle() {
  if (state_ != SlotState::kRevoking || grant_count_ > 0 || pin_count_ > 0) return;
  MoveTo(writer_disowned_ ? SlotState::kQuarantined : SlotState::kFree);
}

}  // namespace backstay::store
