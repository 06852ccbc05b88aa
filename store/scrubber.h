#pragma once

#include <cstdint>
#include <deque>
#include <functional>

#include "base/executor.h"
#include "base/units.h"
#include "store/shard_verifier.h"

namespace backstay::store {

// Reads what lies in this node's memory again, shard by shard, all the time, at a set rate: damage
// that nobody has read yet is found while there are good copies to replace it from.
//
// A pass reads what was there at its start, so that a job that saves all the time does not keep the
// others' shards from being read. What is dropped meanwhile is left out. A shard is pinned for one
// batch at a time, some milliseconds: a scrub never keeps a slot from a save.
//
// Thread:  the control executor; the hashing through the verifier.
// Memory:  reads sealed shards only.
// Failure: a batch that the worker pool has no room for is tried again after its usual pause.
class Scrubber {
 public:
  struct Stats {
    uint64_t scrubbed_bytes = 0;    // Since the start of the service.
    uint64_t bad_shards = 0;        // Found so.
    uint64_t passes = 0;            // Ended, over everything that was here.
    int64_t last_pass_unix_ms = 0;  // When the last one ended; 0: none has.
  };
  // Chunks of this shard do not match its manifest. Whoever hears it reads the shard again, and
  // sets it aside.
  using OnBad = std::function<void(const ShardName& name)>;

  // `bytes_per_second` 0: never reads anything. All outlive the scrubber.
  Scrubber(ShardTable& table, ShardVerifier& verifier, Executor& executor,
           uint64_t bytes_per_second, OnBad on_bad);
  ~Scrubber();
  Scrubber(const Scrubber&) = delete;
  Scrubber& operator=(const Scrubber&) = delete;

  const Stats& stats() const { return stats_; }

 private:
  // How soon it looks again where there is nothing to read.
  static constexpr Duration kIdleInterval = std::chrono::seconds(1);

  void ScheduleNext(Duration pause);
  void StartPass();
  void ScrubBatch();
  void OnBatch(const ShardName& name, uint64_t bytes, const Result<VerifyReport>& report);
  // What is to be read now; nothing at the end of a pass.
  const Shard* NextShard();

  ShardTable& table_;
  ShardVerifier& verifier_;
  Executor& executor_;
  const uint64_t bytes_per_second_;
  const OnBad on_bad_;
  struct Due {
    ShardName name;
    Hash128 digest;
  };
  std::deque<Due> due_;      // In this pass; the first is being read.
  uint64_t next_chunk_ = 0;  // Of the first.
  Stats stats_;
  TimerId timer_ = kNoTimer;
  Lifetime lifetime_;
};

}  // namespace backstay::store
