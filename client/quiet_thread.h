#pragma once

#include <csignal>
#include <thread>
#include <utility>

namespace backstay::client {

// Blocks all signals of the calling thread while it lives.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

// A thread of the library inside of somebody else's process: it takes none of the process's
// signals, so that the host's handlers run on the host's threads. `name` has at most 15 bytes.
// Throws std::system_error when the system refuses a thread.
template <typename Body>
std::thread StartQuietThread(const char* name, Body body) {
  const BlockedSignals blocked;  // The new thread inherits it.
  std::thread thread(std::move(body));
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace backstay::client
