#include "tests/support/manual_executor.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"

namespace backstay::testing {

void ManualClock::AdvanceTo(Instant when) {
  BACKSTAY_CHECK(when >= now_, "a monotonic clock never goes back");
  now_ = when;
}

// In the past, so: now, after what was asked for before.
void ManualExecutor::Post(std::function<void()> task) { RunAt(Instant{}, std::move(task)); }

TimerId ManualExecutor::RunAt(Instant when, std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  const TimerId id = ++last_id_;
  when = std::max(when, Now());
  tasks_.emplace(Key(when, id), std::move(task));
  due_.emplace(id, when);
  posted_.notify_one();
  return id;
}

void ManualExecutor::CancelTimer(TimerId id) {
  std::function<void()> cancelled;  // Destroyed without the lock: its captures may call back.
  const std::lock_guard lock(mutex_);
  const auto due = due_.find(id);
  if (due == due_.end()) return;
  const auto task = tasks_.find(Key(due->second, id));
  cancelled = std::move(task->second);
  tasks_.erase(task);
  due_.erase(due);
}

bool ManualExecutor::RunNext(Instant limit) {
  std::function<void()> task;
  {
    const std::lock_guard lock(mutex_);
    if (tasks_.empty() || tasks_.begin()->first.first > limit) return false;
    const auto next = tasks_.begin();
    if (next->first.first > Now()) clock_->AdvanceTo(next->first.first);
    task = std::move(next->second);
    due_.erase(next->first.second);
    tasks_.erase(next);
  }
  task();
  return true;
}

// Under the lock, because a Post() of another thread reads the clock.
void ManualExecutor::AdvanceTo(Instant when) {
  const std::lock_guard lock(mutex_);
  clock_->AdvanceTo(when);
}

void ManualExecutor::RunUntilIdle() {
  for (int count = 0; RunNext(Now()); ++count) {
    BACKSTAY_CHECK(count < kTasksMax, "tasks post each other without end");
  }
}

void ManualExecutor::RunFor(Duration duration) {
  const Instant end = Now() + duration;
  for (int count = 0; RunNext(end); ++count) {
    BACKSTAY_CHECK(count < kTasksMax, "tasks post each other without end");
  }
  AdvanceTo(end);
}

bool ManualExecutor::RunUntil(const std::function<bool()>& predicate, Duration limit) {
  const Instant end = Now() + limit;
  for (int count = 0; !predicate(); ++count) {
    BACKSTAY_CHECK(count < kTasksMax, "tasks post each other without end");
    if (RunNext(end)) continue;
    AdvanceTo(end);
    return predicate();
  }
  return true;
}

bool ManualExecutor::RunUntilPosted(const std::function<bool()>& predicate, Duration limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!predicate()) {
    if (RunNext(Now())) continue;
    std::unique_lock lock(mutex_);
    const auto due_now = [this] { return !tasks_.empty() && tasks_.begin()->first.first <= Now(); };
    if (!posted_.wait_until(lock, end, due_now)) {
      lock.unlock();
      return predicate();
    }
  }
  return true;
}

size_t ManualExecutor::pending_count() const {
  const std::lock_guard lock(mutex_);
  return tasks_.size();
}

Instant ManualExecutor::NextDue() const {
  const std::lock_guard lock(mutex_);
  return tasks_.empty() ? kNoDeadline : tasks_.begin()->first.first;
}

}  // namespace backstay::testing
