#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "base/executor.h"
#include "base/random.h"

namespace backstay::replication {

class JobStore;
class Membership;
class Messenger;
class MetadataStore;
class PeerRouter;

// The world as a job's leader sees it. All of it outlives the leader.
struct LeaderSeams {
  Executor* executor = nullptr;
  Random* random = nullptr;
  Membership* membership = nullptr;
  MetadataStore* metadata = nullptr;
  JobStore* jobs = nullptr;
  Messenger* messenger = nullptr;
  PeerRouter* router = nullptr;
};

struct LeaderConfig {
  // A snapshot that is not committed this long after its first rank began is abandoned.
  Duration save_deadline = std::chrono::seconds(120);
  // JobState is repeated this often, so that a lost one and a forgotten trainer are found.
  Duration announce_interval = std::chrono::seconds(1);
  // An admission waits this long for the job's other ranks, so that groups are formed among the
  // nodes that have trainers and not with whoever came first.
  Duration admission_window = std::chrono::seconds(1);
  // Once the newest committed snapshot is covered, how long a slower holder's answer may still
  // bring a newer one.
  Duration inventory_patience = std::chrono::milliseconds(100);
  // A shard counts as gone only when this long has passed since a node was last lost: a node whose
  // lease ended by a stall comes back within it.
  Duration gone_grace = std::chrono::seconds(1);
  // One message to a peer, one transaction.
  Duration message_deadline = std::chrono::seconds(2);
  Duration transaction_deadline = std::chrono::seconds(5);
  // Retries double from the first to the last.
  Duration retry_min = std::chrono::milliseconds(20);
  Duration retry_max = std::chrono::seconds(1);
  // How often holders are asked what they hold, to learn of replicas that were found bad.
  Duration inventory_interval = std::chrono::seconds(10);
  // A step that is whole and has been open for so long is repaired like a committed one: its
  // primaries may have started again, and offer it to nobody.
  Duration open_patience = std::chrono::seconds(5);
  // Repairs that one node may be the source, or the target, of at a time.
  uint32_t repairs_per_node_max = 2;
  // A repair that was ordered and not reported done in this time is ordered again, perhaps
  // elsewhere.
  Duration repair_deadline = std::chrono::seconds(60);
};

}  // namespace backstay::replication
