#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "base/status.h"

namespace backstay {

// A fixed number of threads for work that would hold up an executor: hashing, copying, blocking
// calls. Work posts its result back to the executor itself.
//
// Thread:  any; the destructor not on one of its own threads.
// Memory:  owns submitted work until it has run.
// Failure: a full queue is an answer (kNoSpace), never a wait.
class WorkerPool {
 public:
  // Threads are called `name` (at most 15 bytes) in the system's tools.
  WorkerPool(const std::string& name, size_t thread_count, size_t queued_count_max);
  // Runs what was submitted, then ends the threads.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Runs `work` on one of the threads, in any order. kNoSpace: the queue is full and `work` will
  // not run.
  Status Submit(std::function<void()> work);

 private:
  const std::string name_;
  const size_t queued_count_max_;
  BoundedQueue<std::function<void()>> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace backstay
