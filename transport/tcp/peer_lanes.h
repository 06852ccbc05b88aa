#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "transport/transport.h"

namespace backstay::transport {

// What one read asks for: whole chunks, at least one. Small enough that lanes finish a pull at
// nearly the same time, large enough that its two frames cost nothing.
inline constexpr uint64_t kReadBytesTarget = 1 * kMiB;
// Asked for ahead on one lane: enough to cover a millisecond of round trip at 4 GB/s, and at least
// two reads.
inline constexpr uint64_t kLaneWindowBytes = 4 * kMiB;
inline constexpr size_t kLaneReadsMin = 2;
inline constexpr size_t kLaneReadsMax = 16;
// Release messages that wait for a lane. Beyond it the oldest is dropped: the owner can always
// revoke.
inline constexpr size_t kReleasesQueuedMax = 1024;

struct ChunkRun {
  uint64_t first_chunk = 0;
  uint64_t chunk_count = 0;
};

// A pull under way. Everything but `request` is guarded by its PeerLanes.
struct ActivePull {
  PullRequest request;
  PullResult result;
  std::function<void(PullResult)> complete;  // Posts to the executor. Null once it was called.

  uint64_t next_chunk = 0;         // Never asked for yet.
  std::vector<ChunkRun> returned;  // Asked for on a lane that was closed before it answered.
  uint64_t reads_outstanding = 0;  // Lanes may write into the target.
  std::optional<Status> ended;     // Nothing more is asked for.

  bool has_work() const {
    return !ended.has_value() && (!returned.empty() || next_chunk < result.chunks.size());
  }
  std::span<std::byte> TargetOf(const ChunkRun& run) const;
  uint64_t SourceOffsetOf(const ChunkRun& run) const {
    return request.source_offset_bytes + run.first_chunk * request.chunk_bytes;
  }
};

// A read that a lane has asked for, or is about to.
struct LaneRead {
  std::shared_ptr<ActivePull> pull;
  ChunkRun run;
};

// What came of a read.
struct LaneReadResult {
  Status status;
  std::vector<ChunkOutcome> outcomes;  // Of the run's chunks; may be shorter after an error.
  std::vector<Hash128> hashes;         // As many.
  uint64_t bytes = 0;
};

// What a puller has read from one node, whichever start of it.
struct PeerReadCounts {
  uint64_t bytes_read = 0;  // Verified or not.
  uint64_t lanes_open = 0;
  uint64_t lanes_failed = 0;  // Broken by the peer or the network while reads were outstanding.
  uint64_t connects_failed = 0;

  uint64_t failures() const { return lanes_failed + connects_failed; }
};

// Counts of one puller. Thread: any.
struct PullerCounters {
  std::mutex mutex;  // Guards what follows.
  uint64_t releases_dropped = 0;
  std::map<NodeId, PeerReadCounts> peers;
};

struct LaneOptions {
  StoreId store;
  NodeInstance reader;
  uint32_t lane_count = 2;
  uint32_t receive_buffer_bytes = 0;
  Duration connect_timeout{};
  Duration stall_timeout{};
  Duration idle_timeout{};
};

// The pulls from one start of one node, and the lanes that serve them: a queue from which every
// lane takes the next few chunks of the next pull in turn.
//
// Thread:  Add(), End(), Release() and the destructor: the executor. The methods for lanes: the
//          lane's thread.
// Memory:  a lane writes into a pull's target only while it has a read of it; `complete` is called
//          when no lane has.
// Failure: a pull that ends early closes the lanes that read for it, because that is the one way to
//          be sure, at once, that nothing is written any more; reads of other pulls on such a lane
//          are asked for again on a new one.
class PeerLanes {
 public:
  // State of a lane that others may look at; guarded by `mutex_` except for `wake`.
  struct LaneState {
    std::thread thread;
    UniqueFd wake;             // Readable once the lane must stop connecting.
    int socket = -1;           // Borrowed from the lane while it is connected.
    bool interrupted = false;  // Its socket was shut down by us, not by the peer.
    bool finished = false;     // Its thread takes nothing more and can be joined.
    std::deque<LaneRead> reads;
  };

  PeerLanes(NodeInstance owner, std::string address, const LaneOptions* options,
            PullerCounters* counters);
  // Ends every pull (kUnavailable) and waits for the lanes' threads.
  ~PeerLanes();
  PeerLanes(const PeerLanes&) = delete;
  PeerLanes& operator=(const PeerLanes&) = delete;

  void Add(const std::shared_ptr<ActivePull>& pull);
  void End(const std::shared_ptr<ActivePull>& pull, const Status& status);
  void Release(const Grant& grant);
  // No pull, no release, no lane.
  bool Unused();

  // For lanes.
  const NodeInstance& owner() const { return owner_; }
  const std::string& address() const { return address_; }
  const LaneOptions& options() const { return *options_; }
  // Waits for something to do. False: the lane has finished, and calls nothing here any more.
  bool WaitForWork(LaneState* lane);
  // The next read for this lane, which it now has.
  std::optional<LaneRead> Take(LaneState* lane);
  std::optional<Grant> TakeRelease();
  // The oldest read of this lane is over.
  void OnReadEnd(LaneState* lane, LaneReadResult result);
  void OnConnected(LaneState* lane, int socket);
  // The lane has finished, as after WaitForWork().
  void OnConnectFailed(LaneState* lane, const Status& status);
  // Call with the socket still open; the lane closes it afterwards. `retry`: its reads cannot have
  // failed by themselves.
  void OnDisconnect(LaneState* lane);
  // After the socket was closed.
  void OnLaneFailed(LaneState* lane, const Status& status, bool retry);

 private:
  void StartLanes(uint64_t read_count);
  void OnNoThread(const Status& status);
  void JoinFinished();
  void FinishLocked(LaneState* lane);
  ChunkRun NextRun(ActivePull* pull);
  void Queue(const std::shared_ptr<ActivePull>& pull);
  void EndLocked(const std::shared_ptr<ActivePull>& pull, const Status& status);
  void InterruptLanesOf(const ActivePull* pull);
  void CompleteIfOver(const std::shared_ptr<ActivePull>& pull);
  void LogOnce(const Status& status);
  // Changes this peer's counts.
  template <typename F>
  void Count(F change);

  const NodeInstance owner_;
  const std::string address_;
  const LaneOptions* const options_;
  PullerCounters* const counters_;

  std::mutex mutex_;  // Guards what follows.
  std::condition_variable work_;
  bool stopping_ = false;
  std::list<std::unique_ptr<LaneState>> lanes_;
  std::vector<std::shared_ptr<ActivePull>> active_;    // Not completed.
  std::deque<std::shared_ptr<ActivePull>> with_work_;  // In the order of their turns.
  std::deque<Grant> releases_;
  std::string last_logged_;  // One line for a peer that stays unreachable, not one for each try.
};

}  // namespace backstay::transport
