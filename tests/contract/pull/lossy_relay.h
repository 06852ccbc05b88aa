#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "base/unique_fd.h"

namespace backstay::transport {

// A TCP relay between readers and an owner, which can fall silent after a number of bytes and break
// all connections: what a network does to a transfer, at a moment that the test chooses.
//
// Thread:  the test's; a thread of its own relays.
class LossyRelay {
 public:
  explicit LossyRelay(const std::string& target_address);
  ~LossyRelay();
  LossyRelay(const LossyRelay&) = delete;
  LossyRelay& operator=(const LossyRelay&) = delete;

  const std::string& address() const { return address_; }

  // Lets so many more bytes pass from the owner to readers, then no more.
  void HoldAfter(uint64_t bytes);
  // They have passed.
  bool holding() const { return held_; }
  void LetGo();
  // Closes every connection, with a reset, and refuses new ones.
  void Break();

 private:
  struct Pair {
    UniqueFd reader;
    UniqueFd owner;
  };

  void Run();
  void AcceptReader();
  // False: the pair is over.
  bool RelayToOwner(Pair* pair);
  bool RelayToReader(Pair* pair);
  void Wake();

  const std::string target_address_;
  std::string address_;
  UniqueFd listener_;
  UniqueFd wake_;
  std::list<Pair> pairs_;  // Of the relay's thread.
  std::atomic<bool> stop_{false};
  std::atomic<bool> broken_{false};
  std::atomic<bool> held_{false};
  std::atomic<int64_t> bytes_left_{INT64_MAX};
  std::thread thread_;
};

}  // namespace backstay::transport
