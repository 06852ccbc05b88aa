#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "base/executor.h"
#include "base/ids.h"
#include "transport/tcp/peer_lanes.h"
#include "transport/transport.h"

namespace backstay::transport {

// A connection attempt gives up after this.
inline constexpr Duration kLaneConnectTimeout = std::chrono::seconds(3);
// A lane on which no byte arrives for this long, with reads outstanding, fails with its pulls.
inline constexpr Duration kLaneStallTimeout = std::chrono::seconds(5);
// A lane with nothing to do is kept this long for the next pull.
inline constexpr Duration kLaneIdleTimeout = std::chrono::seconds(60);

struct TcpPullerOptions {
  StoreId store;
  NodeInstance node;                  // The reader: this node.
  uint32_t lane_count = 2;            // Connections, and threads, for each peer that is being read.
  uint32_t receive_buffer_bytes = 0;  // 0: as the kernel thinks best.
  Duration connect_timeout = kLaneConnectTimeout;
  Duration stall_timeout = kLaneStallTimeout;
  Duration idle_timeout = kLaneIdleTimeout;
};

struct TcpPullerStats {
  PeerReadCounts total;
  uint64_t releases_dropped = 0;
  std::map<NodeId, PeerReadCounts> peers;  // By owner.
};

// Pulls over TCP: PeerLanes for each start of each peer, frames as in docs/formats/data_plane.md.
//
// Thread:  the owning executor, Stats() any. Lanes have threads of their own, which receive and
//          hash.
// Memory:  as Puller says: lanes write straight into the targets, and a pull that ends early closes
//          the lanes that read for it before it completes.
// Failure: one refused or broken connection fails the pulls that depended on it at once, so that
//          their callers go to another source. Only an idle connection that turns out to be dead is
//          replaced silently, once. The destructor ends all pulls, waits for the lanes, and posts
//          the completions (kUnavailable): they run on the executor, which must outlive them, after
//          the puller is gone.
class TcpPuller : public Puller {
 public:
  TcpPuller(Executor* executor, TcpPullerOptions options);
  ~TcpPuller() override;

  PullId Pull(PullRequest request, PullCompletion done) override;
  void Cancel(PullId id) override;
  void Release(const Grant& grant) override;

  TcpPullerStats Stats() const;

 private:
  using PeerKey = std::pair<std::string, NodeInstance>;
  struct Tracked {
    std::shared_ptr<ActivePull> pull;
    PeerLanes* peer = nullptr;
    TimerId deadline_timer = kNoTimer;
  };

  PeerLanes* PeerOf(const Grant& grant);
  void End(PullId id, const Status& status);
  void Forget(PullId id);

  Executor* const executor_;
  LaneOptions lane_options_;
  mutable PullerCounters counters_;
  PullId last_id_ = 0;
  std::unordered_map<PullId, Tracked> pulls_;
  std::map<PeerKey, std::unique_ptr<PeerLanes>> peers_;
  Lifetime lifetime_;
};

}  // namespace backstay::transport
