#pragma once

#include <functional>
#include <string>

#include "base/executor.h"
#include "base/random.h"
#include "replication/metadata_store.h"

namespace backstay::replication {

// Delays between retries: doubling from `min` to `max`, each shortened at random by up to half, so
// that many nodes that failed together do not come back together.
class RetryDelay {
 public:
  RetryDelay(Duration min, Duration max, Random* random)
      : min_(min), max_(max), next_(min), random_(random) {}

  Duration Next();
  void Reset() { next_ = min_; }

 private:
  const Duration min_;
  const Duration max_;
  Duration next_;
  Random* const random_;
};

struct MetadataWatchOptions {
  Duration poll = std::chrono::seconds(10);         // The state is confirmed at least this often.
  Duration answer_slack = std::chrono::seconds(2);  // For an answer to travel, beyond its wait.
  Duration retry_min = std::chrono::milliseconds(50);
  Duration retry_max = std::chrono::seconds(1);
};

// Follows all keys under a prefix: tells the state at first, after changes, and at least every
// `poll`. Changes may be folded together; the last one is always told.
//
// Thread:  the owning executor. Callbacks run there, never inside a method; they may destroy
//          nothing of the watch's owner.
// Failure: goes on trying until destroyed. A store whose revision went backwards was put back to an
//          old copy; its state is not believed, but reported as kStale.
class MetadataWatch {
 public:
  // `asked_at`: the state is no older than this.
  using StateCallback = std::function<void(const RangeResult& state, Instant asked_at)>;
  using ErrorCallback = std::function<void(const Status& error)>;

  MetadataWatch(MetadataStore* store, Executor* executor, Random* random, std::string prefix,
                MetadataWatchOptions options, StateCallback on_state, ErrorCallback on_error);
  ~MetadataWatch();
  MetadataWatch(const MetadataWatch&) = delete;
  MetadataWatch& operator=(const MetadataWatch&) = delete;

  void Start();

 private:
  void Ask();
  void OnAnswer(Instant asked_at, const Result<RangeResult>& answer);
  void Retry(const Status& error);

  MetadataStore* const store_;
  Executor* const executor_;
  const std::string prefix_;
  const MetadataWatchOptions options_;
  const StateCallback on_state_;
  const ErrorCallback on_error_;
  RetryDelay retry_delay_;
  bool read_once_ = false;
  Revision revision_ = 0;
  TimerId retry_timer_ = kNoTimer;
  Lifetime lifetime_;
};

}  // namespace backstay::replication
