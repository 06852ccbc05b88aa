// Drives a recovery for any communicator: Gloo, NCCL, torchcomms, or a launcher that restarts all
// ranks.
#pragma once

#include <atomic>
#include <string>

#include "backstay.hpp"

namespace backstay {
inline namespace api_v1 {

// Gives one string to all ranks of the new communicator: over its store or a broadcast. Rank 0
// passes the token, the others the empty string; returns the token on every rank.
using ShareToken = std::function<Result<std::string>(const std::string& token)>;

// Two calls from a communicator's hooks, and everything between a fault and the first step after it
// is done.
//
//   // As soon as it is seen, before the communicator is aborted:
//   session.OnFault("allreduce failed: ...");
//   // ... make the new communicator ... then, on every rank; returns when all may train on:
//   session.OnReconfigured(rank, world_size, share, read);
//
// A first start is the second call alone.
//
// Thread:  OnFault() and faulted() from any thread, at any time, also while OnReconfigured() runs;
//          OnReconfigured() from one thread at a time. The session must outlive the threads that
//          call it.
// Memory:  borrows the client.
// Failure: when OnReconfigured() fails nothing was resumed on this rank; call it again, with a new
//          token.
class RecoverySession {
 public:
  struct Options {
    // Empty: the registered one, or where that was a rank's number, the new rank's.
    std::string shard_id = {};
    uint32_t mode = BACKSTAY_RESUME_AUTO;
    uint64_t exact_step = 0;
    bool drop_state = false;
    std::string fork_job = {};
    RestoreTimeouts timeouts = {};
  };

  RecoverySession(Client& client, Options options)
      : client_(client), options_(std::move(options)) {}

  // The communicator failed. Never blocks: the service hears of it on the library's own thread, and
  // seals nothing of this generation from then on.
  void OnFault(const std::string& reason) noexcept {
    faulted_.store(true, std::memory_order_release);
    // A second fence, or one before a first generation, changes nothing.
    const Status status = client_.Fence(reason);
    static_cast<void>(status.ok());
  }
  // True from OnFault() until the next OnReconfigured() has begun.
  bool faulted() const { return faulted_.load(std::memory_order_acquire); }

  // There is a new communicator. Decides, reads through `read`, and returns when all ranks may
  // train on.
  Result<Restored> OnReconfigured(uint32_t rank, uint32_t world_size, const ShareToken& share,
                                  const ReadState& read) {
    faulted_.store(false, std::memory_order_release);
    std::string token;
    if (rank == 0) {
      Result<std::string> made = client_.NewAttempt();
      // The others wait for rank 0's word: the empty token tells them that there is none.
      if (!made.ok()) {
        const Result<std::string> told = share("");
        static_cast<void>(told.ok());
        return made.status();
      }
      token = *made;
    }
    Result<std::string> shared = share(token);
    if (!shared.ok()) return shared.status();
    if (shared->empty())
      return Status(Code::kUnavailable, "rank 0 got no token for this reconfiguration; try again");
    return Reconfigure(rank, world_size, *shared, read);
  }

  // The same with a token that all ranks have already.
  Result<Restored> OnReconfigured(uint32_t rank, uint32_t world_size, const std::string& token,
                                  const ReadState& read) {
    faulted_.store(false, std::memory_order_release);
    return Reconfigure(rank, world_size, token, read);
  }

 private:
  Result<Restored> Reconfigure(uint32_t rank, uint32_t world_size, const std::string& token,
                               const ReadState& read) {
    DecideOptions decide = Client::DefaultDecideOptions();
    decide.uuid = token.c_str();
    decide.rank = rank;
    decide.world_size = world_size;
    decide.shard_id = options_.shard_id.empty() ? nullptr : options_.shard_id.c_str();
    decide.mode = options_.mode;
    decide.exact_step = options_.exact_step;
    decide.drop_state = options_.drop_state;
    decide.fork_job = options_.fork_job.empty() ? nullptr : options_.fork_job.c_str();
    decide.has_old_rank = has_rank_;
    decide.old_rank = rank_;
    Result<Restored> restored = client_.Restore(decide, read, options_.timeouts);
    if (!restored.ok()) return restored;
    has_rank_ = true;
    rank_ = rank;
    // What was asked of the first start (an exact step, a fork, dropping state) does not hold for
    // later faults.
    options_.mode = BACKSTAY_RESUME_AUTO;
    options_.drop_state = false;
    return restored;
  }

  Client& client_;
  Options options_;
  bool has_rank_ = false;
  uint32_t rank_ = 0;
  std::atomic<bool> faulted_{false};
};

}  // namespace api_v1
}  // namespace backstay
