#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace backstay::client {

// Threads that copy, started when first asked for and kept until the end.
//
// Thread: any; the destructor not on one of its own threads.
// Memory: owns submitted work until it has run.
class CopyThreads {
 public:
  CopyThreads() = default;
  // Stops.
  ~CopyThreads() { Stop(); }
  CopyThreads(const CopyThreads&) = delete;
  CopyThreads& operator=(const CopyThreads&) = delete;

  // Runs `work` `count` times, on up to that many threads at once; has at least `count` threads
  // from then on. Callers have few things in flight (a save, a read), so the queue stays short.
  // False, and nothing runs, after Stop().
  bool Run(uint32_t count, const std::function<void()>& work);
  // Runs what was submitted, then ends the threads.
  void Stop();

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::vector<std::thread> threads_;
  bool stop_ = false;
};

}  // namespace backstay::client
