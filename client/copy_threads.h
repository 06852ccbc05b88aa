#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/status.h"

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

  // Runs `work` up to `count` times, on up to that many threads at once: as many as the system lets
  // it have, and fewer while many wait already. Nothing runs on an error: kUnavailable after
  // Stop(), kNoSpace without any thread. `work` must not throw.
  Status Run(uint32_t count, const std::function<void()>& work);
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
