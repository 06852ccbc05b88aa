#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace backstay::store {

// How much memory slots may use in all, and which limit said so.
struct Budget {
  uint64_t bytes = 0;
  std::string reason;  // "configured", "what the machine leaves".
};

// Thread:  the control executor.
// Failure: a limit that cannot be read does not count.
class MemoryBudget {
 public:
  virtual ~MemoryBudget() = default;
  // The least of what is configured, what the control group and what the machine leave;
  // `slots_bytes` are in slots already and count as left.
  virtual Budget Compute(uint64_t slots_bytes) const = 0;
};

// What the kernel says is left for this process.
struct MemoryLeft {
  std::optional<uint64_t> control_group_bytes;  // The least along the way to the root.
  std::optional<uint64_t> machine_bytes;        // MemAvailable plus free huge pages.
};

// Reads /proc and /sys/fs/cgroup (version 2 or 1) below `root` ("" for the real ones).
MemoryLeft ReadMemoryLeft(const std::string& root);

// `margin_bytes` are left to the rest of the service and of the machine.
Budget ComputeBudget(uint64_t configured_bytes, const MemoryLeft& left, uint64_t slots_bytes,
                     uint64_t margin_bytes);

class SystemMemoryBudget : public MemoryBudget {
 public:
  // What a service may use beyond the bytes held (docs/performance.md).
  static constexpr uint64_t kMarginBytes = 64 * 1024 * 1024;

  explicit SystemMemoryBudget(uint64_t configured_bytes, std::string root = "")
      : configured_bytes_(configured_bytes), root_(std::move(root)) {}
  Budget Compute(uint64_t slots_bytes) const override;

 private:
  const uint64_t configured_bytes_;
  const std::string root_;
};

// The configured number alone, for the simulation.
class FixedMemoryBudget : public MemoryBudget {
 public:
  explicit FixedMemoryBudget(uint64_t bytes) : bytes_(bytes) {}
  Budget Compute(uint64_t) const override { return {bytes_, "configured"}; }
  void Set(uint64_t bytes) { bytes_ = bytes; }

 private:
  uint64_t bytes_;
};

}  // namespace backstay::store
