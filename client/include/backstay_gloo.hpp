// The recovery session as a Gloo program uses it. Needs Gloo's headers, which libbackstay itself
// does not.
#pragma once

#include <gloo/rendezvous/store.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "backstay_session.hpp"

namespace backstay {
inline namespace api_v1 {

// Drives a RecoverySession from Gloo's exceptions and rendezvous store:
//
//   GlooSession session(client, {});
//   for (...) {                                        // Each group of ranks that is put together.
//     context->connectFullMesh(store, device);
//     session.OnReconfigured(rank, world_size, store, /*attempt=*/0, read);
//     session.FenceOnError([&] { ... train ... });     // Throws what Gloo throws, after the fence.
//   }
//
// Thread:  as RecoverySession: OnFault() from any thread, the rest from one at a time.
// Memory:  borrows the client; a store during the call.
// Failure: Gloo's exceptions pass through FenceOnError() and nothing else here throws.
class GlooSession {
 public:
  // How long a rank waits for rank 0's token. Rank 0 asks its service first, which may have to find
  // a leader.
  static constexpr std::chrono::milliseconds kTokenTimeout{30'000};

  GlooSession(Client& client, RecoverySession::Options options)
      : session_(client, std::move(options)) {}

  // Runs `train`, and fences when it throws: before the exception leaves this call, and so before
  // the caller closes a connection. No collective that peers give up on can then still be sealed.
  template <typename Function>
  decltype(auto) FenceOnError(Function&& train) {
    try {
      return std::forward<Function>(train)();
    } catch (const std::exception& error) {
      session_.OnFault(error.what());
      throw;
    } catch (...) {
      session_.OnFault("the training step failed");
      throw;
    }
  }
  // For a watchdog that sees the fault first.
  void OnFault(const std::string& reason) noexcept { session_.OnFault(reason); }
  bool faulted() const { return session_.faulted(); }

  // Rank 0 gets the attempt's token and shares it through `store`, which must be this group's own:
  // a PrefixStore, or an empty one. `attempt` is 0 for the group's first try, and one more, on all
  // ranks, for each that failed.
  Result<Restored> OnReconfigured(uint32_t rank, uint32_t world_size,
                                  gloo::rendezvous::Store& store, uint32_t attempt,
                                  const ReadState& read) {
    const std::string key = "backstay_token_" + std::to_string(attempt);
    const ShareToken share = [&](const std::string& token) {
      return rank == 0 ? Publish(store, key, token) : Await(store, key);
    };
    return session_.OnReconfigured(rank, world_size, share, read);
  }

 private:
  // A store may refuse an empty value or not tell it from a missing one, so a mark goes before it.
  static constexpr char kMark = '=';

  static Result<std::string> Publish(gloo::rendezvous::Store& store, const std::string& key,
                                     const std::string& token) {
    try {
      const std::string value = kMark + token;
      store.set(key, {value.begin(), value.end()});
      return token;
    } catch (const std::exception& error) {
      return Status(
          Code::kUnavailable,
          std::string("giving the token to the other ranks through Gloo's store: ") + error.what());
    }
  }

  static Result<std::string> Await(gloo::rendezvous::Store& store, const std::string& key) {
    try {
      store.wait({key}, kTokenTimeout);
      const std::vector<char> value = store.get(key);
      if (value.empty() || value.front() != kMark) {
        return Status(Code::kCorrupt, "Gloo's store holds something else under " + key);
      }
      return std::string(value.begin() + 1, value.end());
    } catch (const std::exception& error) {
      return Status(Code::kUnavailable,
                    std::string("waiting for rank 0's token in Gloo's store: ") + error.what());
    }
  }

  RecoverySession session_;
};

}  // namespace api_v1
}  // namespace backstay
