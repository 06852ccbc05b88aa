#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "store/slot_memory.h"

namespace backstay::testing {

// Slots without descriptors, for the simulation and unit tests.
//
// Thread: any.
class HeapSlotMemoryFactory : public store::SlotMemoryFactory {
 public:
  HeapSlotMemoryFactory() : counters_(std::make_shared<Counters>()) {}

  Result<std::unique_ptr<store::SlotMemory>> Create(const SlotGeometry& geometry,
                                                    int32_t numa_node) override;

  // The machine runs out of memory after this many more bytes of data.
  void FailAfter(uint64_t bytes) { bytes_left_ = bytes; }
  // Data bytes of the memory that exists now; outlives slots that are kept elsewhere.
  uint64_t live_bytes() const { return counters_->live_bytes; }
  uint64_t created_count() const { return counters_->created_count; }
  // A bit of some slot's data, chosen by `choice`, turns over, as memory does. False: there is no
  // slot.
  bool FlipBit(uint64_t choice);
  // Some byte is still as FlipBit() left it: neither written again nor freed.
  bool HasFlippedBit() const;

 private:
  friend class HeapSlotMemory;
  struct Counters {
    std::atomic<uint64_t> live_bytes = 0;
    std::atomic<uint64_t> created_count = 0;
    std::mutex mutex;                               // Guards what follows.
    std::map<uint64_t, std::span<std::byte>> live;  // By the order of their making.
    struct Flip {
      uint64_t slot = 0;
      uint64_t at_bytes = 0;
      std::byte left{};
    };
    std::vector<Flip> flips;
  };
  const std::shared_ptr<Counters> counters_;
  std::atomic<uint64_t> bytes_left_ = UINT64_MAX;
};

}  // namespace backstay::testing
