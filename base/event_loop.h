#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace backstay {

// The executor of a real process: one thread that runs tasks, timers and file descriptor callbacks
// (epoll).
//
// Thread:  Post(), Stop() and OnLoopThread() from any. Everything else on the loop's thread, or on
//          the owner's while the loop is not running (before Run() or Start(), after Stop());
//          anything else stops the process.
// Memory:  owns tasks and callbacks until they have run or were cancelled; watched descriptors are
//          borrowed until UnwatchFd(), which must come before their close(). What has not run when
//          the loop ends is destroyed, without running, on the loop's thread (or in the destructor,
//          if it never ran).
// Failure: fair, not fast, under overload: each round takes at most kEventsPerRound descriptors,
//          the timers due at its start and the tasks posted before it, so that none of the three
//          can starve another.
class EventLoop : public Executor {
 public:
  using FdCallback = std::function<void(uint32_t epoll_events)>;

  EventLoop();
  // Stops the loop; waits for a Start()ed thread. Not on the loop's own thread.
  ~EventLoop() override;
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Runs the loop on the calling thread until Stop(). Once in the life of a loop: Run() or Start().
  void Run();
  // Runs the loop on a thread of its own, called `thread_name` (at most 15 bytes) in the system's
  // tools.
  void Start(const std::string& thread_name);
  // Ends the loop with the round it is in: tasks posted before this still run, tasks posted later
  // never do, timers and descriptor callbacks not after that round. Waits for a Start()ed thread to
  // end, unless called on it; one thread at a time may wait. May be called again.
  void Stop();

  // On the thread that is inside Run(), or that Start() made.
  bool OnLoopThread() const;

  // After Stop() the task is destroyed, on the calling thread, without running.
  void Post(std::function<void()> task) override;
  // Precision: up to a millisecond late, never early.
  TimerId RunAt(Instant when, std::function<void()> task) override;
  void CancelTimer(TimerId id) override;
  const Clock& clock() const override { return clock_; }

  // Runs `callback` whenever one of `epoll_events` (EPOLLIN ...; level-triggered unless EPOLLET is
  // in it), an error or a hang-up is there for `fd`. An error when the kernel cannot poll `fd`; one
  // watch for each descriptor.
  Status WatchFd(int fd, uint32_t epoll_events, FdCallback callback);
  // Waits for other events from now on. `fd` must be watched.
  void UpdateFd(int fd, uint32_t epoll_events);
  // No callback for `fd` starts after this, also not for events that were already fetched. Safe
  // inside callbacks, its own included (a running callback lives until it returns). A descriptor
  // that is not watched is ignored.
  void UnwatchFd(int fd);

  static constexpr int kEventsPerRound = 64;

 private:
  // What epoll hands back for a descriptor is the id of its watch, which is never reused: an event
  // that was fetched for a closed descriptor cannot reach the next owner of its number.
  using WatchId = uint64_t;
  struct Watch {
    int fd;
    FdCallback callback;
  };

  void CheckThread() const;
  void Loop();
  // Milliseconds that epoll may wait: 0 when tasks are waiting, -1 for ever.
  int WaitMillis();
  void DispatchEvents(int wait_ms);
  void RunDueTimers();
  // Runs the tasks posted so far; false when there will be no more.
  bool RunPostedTasks();
  void Wake();
  void DestroyUnrun();

  SystemClock clock_;
  UniqueFd epoll_;
  UniqueFd wake_;  // An eventfd.
  std::thread thread_;
  std::atomic<std::thread::id> loop_thread_{};  // None while not running.

  // Of the loop's thread.
  TimerId last_timer_ = kNoTimer;
  std::map<std::pair<Instant, TimerId>, std::function<void()>> timers_;
  std::unordered_map<TimerId, Instant> timer_due_;
  WatchId last_watch_ = 0;
  std::unordered_map<WatchId, std::shared_ptr<Watch>> watches_;
  std::unordered_map<int, WatchId> watch_of_fd_;

  std::mutex mutex_;  // Guards what follows.
  std::vector<std::function<void()>> tasks_;
  bool wake_sent_ = false;  // The loop will take `tasks_` without another wake-up.
  bool stopping_ = false;
};

}  // namespace backstay
