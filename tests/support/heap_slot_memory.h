#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "store/slot_memory.h"

namespace backstay::testing {

// Slots without descriptors, for the simulation and unit tests.
//
// Thread: any.
class HeapSlotMemoryFactory : public store::SlotMemoryFactory {
 public:
  HeapSlotMemoryFactory() : counters_(std::make_shared<Counters>()) {}

  Result<std::unique_ptr<store::SlotMemory>> Create(const SlotGeometry& geometry) override;

  // The machine runs out of memory after this many more bytes of data.
  void FailAfter(uint64_t bytes) { bytes_left_ = bytes; }
  // Data bytes of the memory that exists now; outlives slots that are kept elsewhere.
  uint64_t live_bytes() const { return counters_->live_bytes; }
  uint64_t created_count() const { return counters_->created_count; }

 private:
  friend class HeapSlotMemory;
  struct Counters {
    std::atomic<uint64_t> live_bytes = 0;
    std::atomic<uint64_t> created_count = 0;
  };
  const std::shared_ptr<Counters> counters_;
  std::atomic<uint64_t> bytes_left_ = UINT64_MAX;
};

}  // namespace backstay::testing
