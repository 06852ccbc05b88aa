#include "client/copy_threads.h"

#include <sched.h>

#include "client/quiet_thread.h"

namespace backstay::client {

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

bool CopyThreads::Run(uint32_t count, const std::function<void()>& work) {
  const std::lock_guard lock(mutex_);
  if (stop_) return false;
  while (threads_.size() < count)
    threads_.push_back(StartQuietThread("backstay-copy", [this] { Loop(); }));
  for (uint32_t i = 0; i < count; ++i) queue_.push_back(work);
  changed_.notify_all();
  return true;
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
