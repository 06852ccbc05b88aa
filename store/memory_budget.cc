#include "store/memory_budget.h"

#include <algorithm>
#include <fstream>
#include <string_view>

#include "base/units.h"

namespace backstay::store {

namespace {

// The first number of a file; nothing when there is none ("max" in a control group: no limit).
std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

// The number after `key` in a file of "key number" lines.
std::optional<uint64_t> ReadField(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    uint64_t number = 0;
    if (word == key && file >> number) return number;
  }
  return std::nullopt;
}

// Names of the files that say limit, use and reclaimable page cache; cgroup-v2.rst and
// cgroup-v1/memory.rst of the kernel.
struct ControlGroupFiles {
  const char* mount;
  const char* limit;
  const char* usage;
  const char* cache_key;
};
constexpr ControlGroupFiles kVersion2 = {"/sys/fs/cgroup", "/memory.max", "/memory.current",
                                         "inactive_file"};
constexpr ControlGroupFiles kVersion1 = {"/sys/fs/cgroup/memory", "/memory.limit_in_bytes",
                                         "/memory.usage_in_bytes", "total_inactive_file"};

// The least that the group at `path` and those above it leave. Inside a container the path may be
// the host's and not exist here; the mount's root is then the container's own group.
std::optional<uint64_t> LeftIn(const ControlGroupFiles& files, const std::string& root,
                               std::string path) {
  if (!path.starts_with('/')) path.clear();
  std::optional<uint64_t> least;
  for (;;) {
    const std::string group = root + files.mount + path;
    const std::optional<uint64_t> limit = ReadNumber(group + files.limit);
    const std::optional<uint64_t> usage = ReadNumber(group + files.usage);
    if (limit && usage) {
      const uint64_t cache = ReadField(group + "/memory.stat", files.cache_key).value_or(0);
      const uint64_t used = *usage - std::min(*usage, cache);
      const uint64_t left = *limit - std::min(*limit, used);
      least = std::min(least.value_or(left), left);
    }
    if (path.empty() || path == "/") return least;
    path.erase(path.find_last_of('/'));
  }
}

std::optional<uint64_t> ControlGroupLeft(const std::string& root) {
  std::ifstream groups(root + "/proc/self/cgroup");
  std::optional<uint64_t> least;
  for (std::string line; std::getline(groups, line);) {
    // "0::/path" (version 2) or "4:memory:/path" (version 1; more controllers, comma-separated).
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool is_version_2 = controllers == ",,";
    if (!is_version_2 && controllers.find(",memory,") == std::string::npos) continue;
    const std::optional<uint64_t> left =
        LeftIn(is_version_2 ? kVersion2 : kVersion1, root, line.substr(second + 1));
    if (left) least = std::min(least.value_or(*left), *left);
  }
  return least;
}

std::optional<uint64_t> MachineLeft(const std::string& root) {
  const std::string meminfo = root + "/proc/meminfo";
  const std::optional<uint64_t> available_kib = ReadField(meminfo, "MemAvailable:");
  if (!available_kib) return std::nullopt;
  // Reserved huge pages are not in MemAvailable.
  const uint64_t huge_kib = ReadField(meminfo, "HugePages_Free:").value_or(0) *
                            ReadField(meminfo, "Hugepagesize:").value_or(0);
  return (*available_kib + huge_kib) * kKiB;
}

}  // namespace

MemoryLeft ReadMemoryLeft(const std::string& root) {
  return {ControlGroupLeft(root), MachineLeft(root)};
}

Budget ComputeBudget(uint64_t configured_bytes, const MemoryLeft& left, uint64_t slots_bytes,
                     uint64_t margin_bytes) {
  Budget budget{configured_bytes, "configured"};
  const auto apply = [&](std::optional<uint64_t> left_bytes, const char* reason) {
    if (!left_bytes) return;
    const uint64_t limit = slots_bytes + *left_bytes - std::min(*left_bytes, margin_bytes);
    if (limit < budget.bytes) budget = {limit, reason};
  };
  // A group without a limit says a number near 2^63 (version 1) or nothing (version 2): no sum
  // overflows.
  apply(left.control_group_bytes, "what the control group leaves");
  apply(left.machine_bytes, "what the machine leaves");
  return budget;
}

Budget SystemMemoryBudget::Compute(uint64_t slots_bytes) const {
  return ComputeBudget(configured_bytes_, ReadMemoryLeft(root_), slots_bytes, kMarginBytes);
}

}  // namespace backstay::store
