#pragma once

#include <csignal>
#include <thread>
#include <utility>

namespace backstay::client {

// A thread of the library inside of somebody else's process: it takes none of the process's
// signals, so that the host's handlers run on the host's threads. `name` has at most 15 bytes.
template <typename Body>
std::thread StartQuietThread(const char* name, Body body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_setname_np(thread.native_handle(), name);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace backstay::client
