#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace backstay::store {

inline constexpr int32_t kAnyNumaNode = -1;

// Ok for kAnyNumaNode and for a NUMA node of this machine that is online; else kInvalidArgument,
// which says which there are. A machine without NUMA has node 0.
Status CheckNumaNode(int32_t numa_node);

// Pages of this mapping, not touched yet, come from that node while it has free ones; then from
// others. Of shared memory: whoever touches them.
Status PreferNumaNode(std::span<std::byte> mapping, int32_t numa_node);

}  // namespace backstay::store
