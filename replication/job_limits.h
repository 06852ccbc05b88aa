#pragma once

#include <cstdint>

namespace backstay::replication {

// What a job may ask for.
inline constexpr uint32_t kReplicasMax = 3;       // On other failure domains than the primary's.
inline constexpr uint32_t kVersionsMax = 16;      // Committed snapshots kept, at least 1.
inline constexpr uint32_t kWorldSizeMax = 65536;  // Ranks.

}  // namespace backstay::replication
