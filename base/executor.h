#pragma once

#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/status.h"

namespace backstay {

// Runs exactly once, on the executor of whoever asked, never inside the call that started the work.
template <typename T>
using Completion = std::function<void(Result<T>)>;
using StatusCompletion = std::function<void(Status)>;

using TimerId = uint64_t;
inline constexpr TimerId kNoTimer = 0;

// One thread's queue of tasks and timers. All protocol state of a node lives on one executor, so it
// needs no locks; the simulation runs every node of a cluster on one executor with virtual time.
//
// Thread: Post() from any; everything else only on the executor's own thread.
class Executor {
 public:
  virtual ~Executor() = default;

  // Runs `task` after the tasks posted before it.
  virtual void Post(std::function<void()> task) = 0;
  // Runs `task` at `when` or soon after. Ids are never reused.
  virtual TimerId RunAt(Instant when, std::function<void()> task) = 0;
  // A timer that has run or was cancelled is ignored.
  virtual void CancelTimer(TimerId id) = 0;
  virtual const Clock& clock() const = 0;

  Instant Now() const { return clock().Now(); }
  TimerId RunAfter(Duration delay, std::function<void()> task) {
    return RunAt(Now() + delay, std::move(task));
  }
};

// Makes callbacks that do nothing once their owner is gone. Hold one as the last member of a class
// and wrap every callback that captures `this`. Thread: the owner's executor only.
class Lifetime {
 public:
  Lifetime() : alive_(std::make_shared<char>()) {}
  Lifetime(const Lifetime&) = delete;
  Lifetime& operator=(const Lifetime&) = delete;

  template <typename F>
  auto Wrap(F callback) const {
    return [alive = std::weak_ptr<char>(alive_),
            callback = std::move(callback)](auto&&... args) mutable {
      if (!alive.expired()) callback(std::forward<decltype(args)>(args)...);
    };
  }

 private:
  std::shared_ptr<char> alive_;
};

}  // namespace backstay
