#include "store/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <fstream>
#include <sstream>
#include <string>

#include "base/os_error.h"

namespace backstay::store {
namespace {

constexpr int32_t kNumaNodesMax = 1024;  // The kernel's own limit.
constexpr size_t kMaskBits = sizeof(unsigned long) * CHAR_BIT;

// "0-1,4": the kernel's way to write a set.
bool IsInList(const std::string& list, int32_t numa_node) {
  std::istringstream ranges(list);
  for (std::string range; std::getline(ranges, range, ',');) {
    std::istringstream numbers(range);
    int32_t first = -1;
    numbers >> first;
    int32_t last = first;
    if (numbers.get() == '-') numbers >> last;
    if (first <= numa_node && numa_node <= last) return true;
  }
  return false;
}

}  // namespace

Status CheckNumaNode(int32_t numa_node) {
  if (numa_node == kAnyNumaNode) return Status::Ok();
  std::string online;
  std::ifstream file("/sys/devices/system/node/online");
  if (!std::getline(file, online)) online = "0";
  if (numa_node >= 0 && numa_node < kNumaNodesMax && IsInList(online, numa_node)) {
    return Status::Ok();
  }
  return InvalidArgument("there is no NUMA node " + std::to_string(numa_node) +
                         " on this machine; it has " + online + ", and -1 is any");
}

Status PreferNumaNode(std::span<std::byte> mapping, int32_t numa_node) {
  BACKSTAY_RETURN_IF_ERROR(CheckNumaNode(numa_node));
  if (numa_node == kAnyNumaNode) return Status::Ok();
  std::array<unsigned long, kNumaNodesMax / kMaskBits> mask = {};
  mask[numa_node / kMaskBits] |= 1UL << (numa_node % kMaskBits);
  // One bit more than there are: the kernel takes the number less one.
  const long done = ::syscall(SYS_mbind, mapping.data(), mapping.size(), MPOL_PREFERRED,
                              mask.data(), static_cast<unsigned long>(kNumaNodesMax) + 1, 0UL);
  // A kernel without NUMA has one node, and containers may forbid the call: it is only a wish.
  if (done != 0 && errno != ENOSYS && errno != EPERM) {
    return OsError(errno, "prefer NUMA node " + std::to_string(numa_node) + " for a slot");
  }
  return Status::Ok();
}

}  // namespace backstay::store
