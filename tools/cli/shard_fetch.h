#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <set>
#include <span>
#include <vector>

#include "base/executor.h"
#include "store/manifest.h"
#include "transport/transport.h"

namespace backstay::tools {

// One request reads at most this much (at least a chunk), and two are under way for each holder, so
// that the next is there when one ends.
inline constexpr uint64_t kFetchGroupBytesMax = 16 * kMiB;
inline constexpr size_t kFetchGroupsPerHolder = 2;
inline constexpr Duration kFetchGroupTimeout = std::chrono::seconds(60);

// Which bytes of a shard to read, and where they go.
struct FetchSpec {
  store::Manifest manifest;
  std::vector<transport::Grant> sources;
  uint64_t begin_bytes = 0;  // Of the shard.
  uint64_t end_bytes = 0;
  Duration timeout = std::chrono::hours(24);  // Of the whole read.
  // Takes verified bytes at an offset counted from `begin_bytes`; in any order, each once.
  std::function<Status(uint64_t offset_bytes, std::span<const std::byte> bytes)> write;
  std::function<void(uint64_t bytes_done)> on_progress;
};

// What came of it, also when it failed.
struct FetchOutcome {
  Status status;
  std::vector<std::string> problems;  // One for each holder that failed or had bad chunks.
};

// Reads a range of a shard from all of its holders at once, verifies every chunk, and has another
// holder take over what one could not give.
//
// Thread:  the executor; `done` runs there, once, after Start() has returned.
// Memory:  owns its buffers; lives until `done` has run.
// Failure: kUnavailable or kCorrupt when some chunk has no good copy among the holders; kDeadline
//          after the timeout; kNoSpace or whatever `write` says ends it at once.
class ShardFetch {
 public:
  using Done = std::function<void(FetchOutcome)>;

  ShardFetch(Executor* executor, transport::Puller* puller, FetchSpec spec, Done done);
  ShardFetch(const ShardFetch&) = delete;
  ShardFetch& operator=(const ShardFetch&) = delete;

  void Start();

 private:
  // A run of chunks that is read in one go.
  struct Group {
    uint64_t first_chunk = 0;
    uint64_t chunk_count = 0;
    std::set<size_t> tried;  // Sources that could not give it.
  };
  struct Source {
    size_t in_flight = 0;
    bool failed = false;
  };

  uint64_t ChunkBegin(uint64_t chunk) const { return chunk * spec_.manifest.chunk_bytes; }
  uint64_t ChunkEnd(uint64_t chunk) const;
  void Step();
  bool CanGive(size_t source, const Group& group) const;
  void Pull(size_t source, Group group);
  void OnPulled(size_t source, Group group, std::vector<std::byte>& buffer,
                const transport::PullResult& result);
  void Write(uint64_t chunk, std::span<const std::byte> bytes);
  void Fail(Status status);
  void FinishIfIdle();

  Executor* const executor_;
  transport::Puller* const puller_;
  const FetchSpec spec_;
  const Deadline deadline_;
  Done done_;
  std::deque<Group> waiting_;
  std::vector<Source> sources_;
  size_t in_flight_ = 0;
  uint64_t bytes_done_ = 0;
  bool mismatch_seen_ = false;
  FetchOutcome outcome_;
};

}  // namespace backstay::tools
