#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "base/executor.h"

namespace backstay::testing {

// A clock that moves only when told to. Thread: one.
class ManualClock : public Clock {
 public:
  // The first instant is not zero, so that "zero" and "now" cannot be mixed up unseen.
  static constexpr Instant kStart{1'000'000'000'000};
  static constexpr int64_t kStartUnixMillis = 1'700'000'000'000;

  Instant Now() const override { return now_; }
  int64_t UnixMillis() const override { return kStartUnixMillis + ToMillis(now_ - kStart); }

  // Moves to `when`; never back.
  void AdvanceTo(Instant when);
  void Advance(Duration by) { AdvanceTo(now_ + by); }

 private:
  Instant now_ = kStart;
};

// Runs tasks and timers in virtual time, in an order that depends only on what was asked for: by
// time, then in the order of the calls. Nothing runs but inside Run...(); time stands still while a
// task runs.
//
// Thread:  Post() from any (a test of a real thread may need it; wait for it with
//          RunUntilPosted()); everything else on the one thread that drives it.
// Memory: tasks that never ran are destroyed with the executor, without running.
class ManualExecutor : public Executor {
 public:
  // `clock` must outlive the executor; only the executor may move it while tasks are pending.
  explicit ManualExecutor(ManualClock* clock) : clock_(clock) {}
  ManualExecutor() : clock_(&own_clock_) {}
  ManualExecutor(const ManualExecutor&) = delete;
  ManualExecutor& operator=(const ManualExecutor&) = delete;

  void Post(std::function<void()> task) override;
  TimerId RunAt(Instant when, std::function<void()> task) override;
  void CancelTimer(TimerId id) override;
  const Clock& clock() const override { return *clock_; }

  // Runs all that is due now, and what that posts, until nothing is due. Time does not move. Stops
  // the process after kTasksMax tasks: work that posts itself again for ever would hang the test.
  void RunUntilIdle();
  // Moves time forward by `duration`, running each timer at its own instant.
  void RunFor(Duration duration);
  // Runs until `predicate` holds, checked before each task; false when `limit` of virtual time
  // passed without it.
  [[nodiscard]] bool RunUntil(const std::function<bool()>& predicate, Duration limit);
  // As RunUntil() for work that other threads of the process post: lets real time pass while
  // nothing is due, virtual time stands still. False when `limit` of real time passed without it.
  [[nodiscard]] bool RunUntilPosted(const std::function<bool()>& predicate, Duration limit);

  // Runs the next task that is due at or before `limit`, moving time to it. False: there is none.
  bool RunNext(Instant limit);
  // Tasks and timers that have not run.
  size_t pending_count() const;
  // When the next task is due; kNoDeadline when there is none.
  Instant NextDue() const;

  static constexpr int kTasksMax = 10'000'000;

 private:
  using Key = std::pair<Instant, TimerId>;

  void AdvanceTo(Instant when);

  ManualClock own_clock_;
  ManualClock* clock_;

  mutable std::mutex mutex_;  // Guards what follows.
  std::condition_variable posted_;
  TimerId last_id_ = kNoTimer;
  std::map<Key, std::function<void()>> tasks_;  // In the order in which they will run.
  std::map<TimerId, Instant> due_;              // When each of `tasks_` is due.
};

}  // namespace backstay::testing
