#include "base/worker_pool.h"

#include <pthread.h>

#include <optional>
#include <utility>

#include "base/check.h"

namespace backstay {

WorkerPool::WorkerPool(const std::string& name, size_t thread_count, size_t queued_count_max)
    : name_(name.substr(0, 15)), queued_count_max_(queued_count_max), queue_(queued_count_max) {
  BACKSTAY_CHECK(thread_count > 0, "a pool needs a thread");
  for (size_t i = 0; i < thread_count; ++i) {
    threads_.emplace_back([this] {
      while (std::optional<std::function<void()>> work = queue_.Pop()) (*work)();
    });
    pthread_setname_np(threads_.back().native_handle(), name_.c_str());
  }
}

WorkerPool::~WorkerPool() {
  queue_.Close();
  for (std::thread& thread : threads_) thread.join();
}

Status WorkerPool::Submit(std::function<void()> work) {
  // Closed only by the destructor, and nobody may call this then.
  if (queue_.TryPush(std::move(work)) == BoundedQueue<std::function<void()>>::Offer::kTaken)
    return Status::Ok();
  return NoSpace("worker pool " + name_ + ": " + std::to_string(queued_count_max_) +
                 " pieces of work are waiting already; try again when some are done");
}

}  // namespace backstay
