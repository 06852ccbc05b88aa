#include "client/copy_threads.h"

#include <sched.h>

#include <system_error>

#include "client/limits.h"
#include "client/quiet_thread.h"

namespace backstay::client {
namespace {

// Runs beyond one of each call that wait for a thread. Many short reads beside a long copy would
// else pile up helpers that find nothing left to do.
constexpr size_t kQueuedMax = 4 * kCopyThreadsMax;

}  // namespace

void CopyThreads::Stop() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    threads.swap(threads_);
    changed_.notify_all();
  }
  for (std::thread& thread : threads) thread.join();
}

Status CopyThreads::Run(uint32_t count, const std::function<void()>& work) {
  const std::lock_guard lock(mutex_);
  if (stop_) return Unavailable("the client is closed");
  try {
    while (threads_.size() < count)
      threads_.push_back(StartQuietThread("backstay-copy", [this] { Loop(); }));
  } catch (const std::system_error& error) {
    if (threads_.empty()) {
      return NoSpace(std::string("cannot start a thread to copy with (a limit of processes?): ") +
                     error.what());
    }
  }
  queue_.push_back(work);
  for (uint32_t i = 1; i < count && queue_.size() < kQueuedMax; ++i) queue_.push_back(work);
  changed_.notify_all();
  return Status::Ok();
}

namespace {

// A copy is background work: being woken for it must not take the processor from the thread that
// started it, which wants to go on computing. (Batch threads get their share, but preempt nobody.)
// A host that runs on a real-time or idle policy has chosen, and keeps it.
void PreemptNobody() {
  if (::sched_getscheduler(0) != SCHED_OTHER) return;
  const sched_param none = {};
  static_cast<void>(::sched_setscheduler(0, SCHED_BATCH, &none));  // Only slower when refused.
}

}  // namespace

void CopyThreads::Loop() {
  PreemptNobody();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    work = nullptr;  // What it holds may take locks of its own when it goes.
    lock.lock();
  }
}

}  // namespace backstay::client
