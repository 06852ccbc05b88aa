#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/slot_control.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace backstay::store {

// What stands behind a slot's data.
enum class PageKind {
  kSmall,
  kAdvisedHuge,  // The kernel was asked for huge pages and gives them where it finds some.
  kHuge,         // From the reserved pool of huge pages.
};

// The memory of one slot: its data and its control page, each mapped here and known by a
// descriptor. A GPU allocation fits too: its exported descriptor and its mapping.
//
// Thread: immutable; any.
// Memory: owns mappings and descriptors. A client that has mapped them keeps the pages alive.
class SlotMemory {
 public:
  virtual ~SlotMemory() = default;

  virtual const SlotGeometry& geometry() const = 0;
  virtual std::span<std::byte> data() = 0;     // geometry().size_bytes.
  virtual std::span<std::byte> control() = 0;  // At least geometry().ControlBytes().
  // For clients that fill the slot; -1 when the memory has none.
  virtual int data_fd() const = 0;
  virtual int control_fd() const = 0;
  virtual PageKind pages() const = 0;

  struct ReadOnlyFds {
    UniqueFd data;
    UniqueFd control;
  };
  // Descriptors that cannot be mapped writable, for clients that restore. kUnavailable: none.
  virtual Result<ReadOnlyFds> OpenReadOnly() const = 0;
};

// Thread: any.
class SlotMemoryFactory {
 public:
  virtual ~SlotMemoryFactory() = default;
  // Zeroed, touched memory, of that NUMA node where it has any (store/numa.h).
  // `geometry.size_bytes` is a multiple of kSlotBytesMultiple. Takes as long as touching the pages
  // takes. kNoSpace: the machine has no memory for it. kInvalidArgument: there is no such node.
  virtual Result<std::unique_ptr<SlotMemory>> Create(const SlotGeometry& geometry,
                                                     int32_t numa_node) = 0;
};

// Slots are whole small pages; from a huge page on, whole huge pages (2 MiB on x86-64 and arm64).
inline constexpr uint64_t kSlotBytesMultiple = 4 * kKiB;
inline constexpr uint64_t kHugePageBytes = 2 * kMiB;
// Data bytes of a slot that can hold `size_bytes`; at least one page.
uint64_t SlotDataBytes(uint64_t size_bytes);
// Of its control page: whole small pages.
uint64_t ControlMemoryBytes(const SlotGeometry& geometry);
// What a slot costs of the budget.
inline uint64_t SlotFootprintBytes(const SlotGeometry& geometry) {
  return geometry.size_bytes + ControlMemoryBytes(geometry);
}

// Memory files that nobody can shrink or grow, on huge pages where enough are free.
std::unique_ptr<SlotMemoryFactory> MakeMemfdSlotMemoryFactory();

}  // namespace backstay::store
