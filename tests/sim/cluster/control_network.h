#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "base/executor.h"
#include "base/ids.h"
#include "base/random.h"
#include "replication/messenger.h"
#include "replication/peer_router.h"

namespace backstay::sim {

struct ControlFaults {
  Duration delay_min = std::chrono::microseconds(50);
  Duration delay_max = std::chrono::microseconds(500);
  uint32_t drops_per_million = 0;       // Of requests, and of replies.
  uint32_t duplicates_per_million = 0;  // Of requests.
};

struct ControlCounters {
  uint64_t delivered = 0;
  uint64_t dropped = 0;
  uint64_t duplicated = 0;
  uint64_t cut = 0;  // By a partition.
};

// The control network of a simulated cluster: messages between routers as bytes, each with its own
// delay, so that they overtake each other; some get lost, some come twice.
//
// Thread:  the executor of all nodes.
// Memory:  must outlive its messengers.
class ControlNetwork {
 public:
  ControlNetwork(Executor* executor, Random* random) : executor_(executor), random_(random) {}

  // From here on messages to `node` reach `router`; null: the process is gone, and callers are
  // refused.
  void Attach(const NodeId& node, replication::PeerRouter* router);
  std::unique_ptr<replication::Messenger> MakeMessenger(const NodeId& node);

  void SetFaults(const ControlFaults& faults) { faults_ = faults; }
  void SetPartitioned(const NodeId& a, const NodeId& b, bool partitioned);
  const ControlCounters& counters() const { return counters_; }

 private:
  friend class SimMessenger;

  Duration DrawDelay();
  bool Draw(uint32_t per_million) { return random_->Next() % 1'000'000 < per_million; }
  bool Cut(const NodeId& a, const NodeId& b) const {
    return partitions_.contains(std::minmax(a, b));
  }
  // Runs `deliver` after a delay, unless the message is lost on its way.
  void Carry(const NodeId& from, const NodeId& to, std::function<void()> deliver);

  Executor* const executor_;
  Random* const random_;
  ControlFaults faults_;
  std::map<NodeId, replication::PeerRouter*> routers_;
  std::set<std::pair<NodeId, NodeId>> partitions_;
  ControlCounters counters_;
  Lifetime lifetime_;
};

}  // namespace backstay::sim
