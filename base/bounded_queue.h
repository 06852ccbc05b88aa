#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "base/check.h"

namespace backstay {

// A queue between threads that holds at most `count_max` items and can be closed.
//
// Thread: any number of producers and consumers.
// Memory: owns the items in it.
template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t count_max) : count_max_(count_max) {
    BACKSTAY_CHECK(count_max > 0, "a queue needs room for an item");
  }
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  // What became of an item that was offered.
  enum class Offer { kTaken, kFull, kClosed };

  // Never waits. Moves from `item` only when it is taken.
  Offer TryPush(T&& item) {
    const std::lock_guard lock(mutex_);
    return PushLocked(std::move(item));
  }

  // Waits while the queue is full: kTaken or kClosed.
  Offer Push(T&& item) {
    std::unique_lock lock(mutex_);
    not_full_.wait(lock, [this] { return closed_ || items_.size() < count_max_; });
    return PushLocked(std::move(item));
  }

  // Waits for an item. Nothing once the queue is closed and empty.
  std::optional<T> Pop() {
    std::unique_lock lock(mutex_);
    not_empty_.wait(lock, [this] { return closed_ || !items_.empty(); });
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    not_full_.notify_one();
    return item;
  }

  // Takes no more items; what is in the queue can still be taken out.
  void Close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    not_full_.notify_all();
    not_empty_.notify_all();
  }

  size_t size() const {
    const std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  Offer PushLocked(T&& item) {
    if (closed_) return Offer::kClosed;
    if (items_.size() >= count_max_) return Offer::kFull;
    items_.push_back(std::move(item));
    not_empty_.notify_one();
    return Offer::kTaken;
  }

  const size_t count_max_;
  mutable std::mutex mutex_;  // Guards what follows.
  std::condition_variable not_full_;
  std::condition_variable not_empty_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace backstay
