#pragma once

#include <cstddef>
#include <cstdint>

namespace backstay::replication {

// What a job may ask for.
inline constexpr uint32_t kReplicasMax = 3;       // On other failure domains than the primary's.
inline constexpr uint32_t kVersionsMax = 16;      // Committed snapshots kept, at least 1.
inline constexpr uint32_t kWorldSizeMax = 65536;  // Ranks.
inline constexpr size_t kUuidBytesMax = 63;       // Of a reconfiguration's token, printable ASCII.

}  // namespace backstay::replication
