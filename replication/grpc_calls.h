#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/executor.h"

namespace backstay::replication {

// A client's gRPC calls in flight. `Call` has a grpc::ClientContext `context`, and what gRPC reads
// and writes.
//
// Calls are owned here and never by their callbacks: a context keeps its channel, and where the
// last of a channel goes on one of gRPC's own threads, that thread waits for its own end, and frees
// what it runs on.
//
// Thread: any; Close() on none of gRPC's.
template <typename Call>
class GrpcCalls : public std::enable_shared_from_this<GrpcCalls<Call>> {
 public:
  Call* Add(std::unique_ptr<Call> call) {
    Call* const added = call.get();
    const std::lock_guard lock(mutex_);
    live_[added].call = std::move(call);
    return added;
  }

  // The callback of `call` runs. `then` gets it, on `executor`, unless Close() comes first.
  void End(Call* call, Executor& executor, std::function<void(std::unique_ptr<Call>)> then) {
    const std::lock_guard lock(mutex_);
    live_.at(call).ended = true;
    if (closed_) {
      changed_.notify_all();
      return;
    }
    executor.Post([self = this->shared_from_this(), call, then = std::move(then)] {
      if (std::unique_ptr<Call> own = self->Take(call)) then(std::move(own));
    });
  }

  bool IsClosed() {
    const std::lock_guard lock(mutex_);
    return closed_;
  }

  // Cancels all calls, and waits until no callback runs any more. No `then` runs afterwards.
  void Close() {
    std::unique_lock lock(mutex_);
    closed_ = true;
    std::vector<Call*> calls;
    for (const auto& [call, state] : live_) calls.push_back(call);
    // Without the lock, because a callback may run inside of it.
    lock.unlock();
    for (Call* call : calls) call->context.TryCancel();
    lock.lock();
    changed_.wait(lock, [this] {
      for (const auto& [call, state] : live_) {
        if (!state.ended) return false;
      }
      return true;
    });
    live_.clear();
  }

 private:
  struct State {
    std::unique_ptr<Call> call;
    bool ended = false;
  };

  std::unique_ptr<Call> Take(Call* call) {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(call);
    if (closed_ || found == live_.end()) return nullptr;
    std::unique_ptr<Call> own = std::move(found->second.call);
    live_.erase(found);
    return own;
  }

  std::mutex mutex_;  // Protects what follows.
  std::condition_variable changed_;
  std::map<Call*, State> live_;
  bool closed_ = false;
};

}  // namespace backstay::replication
