#include "base/event_loop.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <latch>

#include "base/check.h"
#include "base/os_error.h"

namespace backstay {
namespace {

constexpr uint64_t kWakeWatch = 0;  // Watch ids start at 1.

// The longest uninterrupted wait; only keeps the milliseconds inside of epoll's int.
constexpr int64_t kWaitMillisMax = 3'600'000;

}  // namespace

EventLoop::EventLoop()
    : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  BACKSTAY_CHECK(epoll_.valid() && wake_.valid(),
                 "an event loop needs two file descriptors: " + OsErrorText(errno));
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kWakeWatch}};
  BACKSTAY_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) == 0,
                 OsErrorText(errno));
}

EventLoop::~EventLoop() {
  BACKSTAY_CHECK(!OnLoopThread(), "an event loop cannot be destroyed by what it runs");
  Stop();
  if (thread_.joinable()) thread_.join();
  DestroyUnrun();
}

void EventLoop::Run() {
  BACKSTAY_CHECK(!thread_.joinable() && loop_thread_.load() == std::thread::id(),
                 "the loop runs once");
  loop_thread_ = std::this_thread::get_id();
  Loop();
  loop_thread_ = std::thread::id();
}

void EventLoop::Start(const std::string& thread_name) {
  BACKSTAY_CHECK(!thread_.joinable() && loop_thread_.load() == std::thread::id(),
                 "the loop runs once");
  std::latch started(1);
  thread_ = std::thread([this, &started] {
    loop_thread_ = std::this_thread::get_id();
    started.count_down();
    Loop();
    loop_thread_ = std::thread::id();
  });
  pthread_setname_np(thread_.native_handle(), thread_name.substr(0, 15).c_str());
  started.wait();
}

void EventLoop::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  Wake();
  if (thread_.joinable() && std::this_thread::get_id() != thread_.get_id()) thread_.join();
}

bool EventLoop::OnLoopThread() const { return loop_thread_.load() == std::this_thread::get_id(); }

void EventLoop::CheckThread() const {
  const std::thread::id running = loop_thread_.load();
  BACKSTAY_CHECK(running == std::thread::id() || running == std::this_thread::get_id(),
                 "called from a foreign thread: use Post()");
}

void EventLoop::Post(std::function<void()> task) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;  // `task` is a parameter: destroyed after the lock.
    tasks_.push_back(std::move(task));
    wake = !wake_sent_ && !OnLoopThread();
    wake_sent_ = wake_sent_ || wake;
  }
  if (wake) Wake();
}

TimerId EventLoop::RunAt(Instant when, std::function<void()> task) {
  CheckThread();
  const TimerId id = ++last_timer_;
  timers_.emplace(std::pair(when, id), std::move(task));
  timer_due_.emplace(id, when);
  return id;
}

void EventLoop::CancelTimer(TimerId id) {
  CheckThread();
  const auto due = timer_due_.find(id);
  if (due == timer_due_.end()) return;
  // Taken out first, because what the task holds may call back when it is destroyed.
  const auto cancelled = timers_.extract(std::pair(due->second, id));
  timer_due_.erase(due);
}

Status EventLoop::WatchFd(int fd, uint32_t epoll_events, FdCallback callback) {
  CheckThread();
  const WatchId id = ++last_watch_;
  epoll_event event{.events = epoll_events, .data = {.u64 = id}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return OsError(errno, "watch file descriptor " + std::to_string(fd));
  }
  BACKSTAY_CHECK(watch_of_fd_.emplace(fd, id).second, "a watched file descriptor was closed");
  watches_.emplace(id, std::make_shared<Watch>(Watch{fd, std::move(callback)}));
  return Status::Ok();
}

void EventLoop::UpdateFd(int fd, uint32_t epoll_events) {
  CheckThread();
  const auto watch = watch_of_fd_.find(fd);
  BACKSTAY_CHECK(watch != watch_of_fd_.end(), "the file descriptor is not watched");
  epoll_event event{.events = epoll_events, .data = {.u64 = watch->second}};
  BACKSTAY_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0, OsErrorText(errno));
}

void EventLoop::UnwatchFd(int fd) {
  CheckThread();
  const auto watch = watch_of_fd_.find(fd);
  if (watch == watch_of_fd_.end()) return;
  BACKSTAY_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr) == 0,
                 "a watched file descriptor was closed: " + OsErrorText(errno));
  const auto removed = watches_.extract(watch->second);
  watch_of_fd_.erase(watch);
}

void EventLoop::Loop() {
  do {
    DispatchEvents(WaitMillis());
    RunDueTimers();
  } while (RunPostedTasks());
  DestroyUnrun();
}

int EventLoop::WaitMillis() {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || !tasks_.empty()) return 0;
  }
  if (timers_.empty()) return -1;
  const Instant due = timers_.begin()->first.first;
  const Instant now = Now();
  if (due <= now) return 0;
  const int64_t nanoseconds = due.ns - now.ns;
  const int64_t millis = nanoseconds / 1'000'000 + (nanoseconds % 1'000'000 != 0 ? 1 : 0);
  return static_cast<int>(std::min(millis, kWaitMillisMax));
}

void EventLoop::DispatchEvents(int wait_ms) {
  std::array<epoll_event, kEventsPerRound> events;
  const int count = epoll_wait(epoll_.get(), events.data(), kEventsPerRound, wait_ms);
  BACKSTAY_CHECK(count >= 0 || errno == EINTR, "epoll_wait: " + OsErrorText(errno));
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kWakeWatch) {
      eventfd_t ignored;
      eventfd_read(wake_.get(), &ignored);
      continue;
    }
    const auto found = watches_.find(events[i].data.u64);
    if (found == watches_.end()) continue;  // Unwatched by an earlier callback of this round.
    const std::shared_ptr<Watch> watch = found->second;
    watch->callback(events[i].events);
  }
}

void EventLoop::RunDueTimers() {
  const Instant now = Now();
  const TimerId last = last_timer_;
  while (!timers_.empty() && timers_.begin()->first.first <= now &&
         timers_.begin()->first.second <= last) {
    const auto timer = timers_.extract(timers_.begin());
    timer_due_.erase(timer.key().second);
    timer.mapped()();
  }
}

bool EventLoop::RunPostedTasks() {
  std::vector<std::function<void()>> batch;
  bool stopping = false;
  {
    const std::lock_guard lock(mutex_);
    batch.swap(tasks_);
    wake_sent_ = false;
    stopping = stopping_;
  }
  for (std::function<void()>& task : batch) {
    task();
    task = nullptr;  // Its captures end before the next task, as if it had been alone.
  }
  return !stopping;
}

void EventLoop::Wake() {
  // Fails only when the counter is full, and then the loop is awake.
  (void)eventfd_write(wake_.get(), 1);
}

void EventLoop::DestroyUnrun() {
  const auto timers = std::move(timers_);
  timers_.clear();
  timer_due_.clear();
  const auto watches = std::move(watches_);
  watches_.clear();
  for (const auto& [fd, watch] : watch_of_fd_) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  watch_of_fd_.clear();
}

}  // namespace backstay
