#include "tests/support/heap_slot_memory.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>
#include <vector>

namespace backstay::testing {

class HeapSlotMemory : public store::SlotMemory {
 public:
  HeapSlotMemory(SlotGeometry geometry, std::shared_ptr<HeapSlotMemoryFactory::Counters> counters)
      : geometry_(geometry),
        data_(geometry.size_bytes),
        control_(store::ControlMemoryBytes(geometry) / sizeof(uint64_t)),
        counters_(std::move(counters)) {
    counters_->live_bytes += data_.size();
    number_ = ++counters_->created_count;
    const std::lock_guard lock(counters_->mutex);
    counters_->live[number_] = data_;
  }
  ~HeapSlotMemory() override {
    counters_->live_bytes -= data_.size();
    const std::lock_guard lock(counters_->mutex);
    counters_->live.erase(number_);
  }

  const SlotGeometry& geometry() const override { return geometry_; }
  std::span<std::byte> data() override { return data_; }
  std::span<std::byte> control() override {
    return std::as_writable_bytes(std::span<uint64_t>(control_));
  }
  int data_fd() const override { return -1; }
  int control_fd() const override { return -1; }
  store::PageKind pages() const override { return store::PageKind::kSmall; }
  Result<ReadOnlyFds> OpenReadOnly() const override {
    return Unavailable("slots of the simulation have no descriptors");
  }

 private:
  const SlotGeometry geometry_;
  std::vector<std::byte> data_;
  std::vector<uint64_t> control_;  // Words, for the alignment of the page's header.
  const std::shared_ptr<HeapSlotMemoryFactory::Counters> counters_;
  uint64_t number_ = 0;
};

Result<std::unique_ptr<store::SlotMemory>> HeapSlotMemoryFactory::Create(
    const SlotGeometry& geometry, int32_t) {
  BACKSTAY_RETURN_IF_ERROR(geometry.Validate());
  uint64_t left = bytes_left_.load();
  do {
    if (left < geometry.size_bytes) return NoSpace("the machine has no memory left");
  } while (!bytes_left_.compare_exchange_weak(left, left - geometry.size_bytes));
  return std::unique_ptr<store::SlotMemory>(std::make_unique<HeapSlotMemory>(geometry, counters_));
}

bool HeapSlotMemoryFactory::FlipBit(uint64_t choice) {
  const std::lock_guard lock(counters_->mutex);
  if (counters_->live.empty()) return false;
  auto slot = counters_->live.begin();
  std::advance(slot, static_cast<std::ptrdiff_t>(choice % counters_->live.size()));
  const uint64_t bit = (choice / counters_->live.size()) % (slot->second.size() * 8);
  std::byte& flipped = slot->second[bit / 8];
  flipped ^= static_cast<std::byte>(1u << (bit % 8));
  counters_->flips.push_back({slot->first, bit / 8, flipped});
  return true;
}

bool HeapSlotMemoryFactory::HasFlippedBit() const {
  const std::lock_guard lock(counters_->mutex);
  return std::ranges::any_of(counters_->flips, [&](const Counters::Flip& flip) {
    const auto slot = counters_->live.find(flip.slot);
    return slot != counters_->live.end() && slot->second[flip.at_bytes] == flip.left;
  });
}

}  // namespace backstay::testing
