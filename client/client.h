#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "client/connection.h"
#include "client/copy_threads.h"
#include "client/slot.h"
#include "client/wire.h"

namespace backstay::client {

class Save;

// Kinds of events: local.proto's Event.Kind, and the library's own from 100 on, as in backstay.h.
enum class EventKind : uint32_t {
  kNone = 0,
  kFenced = 1,
  kProtected = 2,
  kCommitted = 3,
  kSaveFailed = 4,
  kUnderProtected = 5,
  kProtectedAgain = 6,
  kSlotClosed = 7,  // For the library alone.
  kServiceLost = 100,
  kServiceBack = 101,
  kMissed = 102,
};

struct ClientEvent {
  EventKind kind = EventKind::kNone;
  Status status;
  uint64_t generation = 0;
  local::SnapshotRef snapshot;
};

// What a trainer has registered, and whether its shard's name is its rank's number.
struct RegisterRequest {
  local::Register message;
  bool shard_is_rank = false;
};

// One process's connection to its node's service, for one shard of one job.
//
// Thread:  any. Listener's methods on the connection's I/O thread.
// Memory:  saves and shards share it; its threads end with Close().
// Failure: a service that goes away fails unsealed saves; the rest goes on when it is back.
class Client : public Connection::Listener, public std::enable_shared_from_this<Client> {
 public:
  explicit Client(std::string socket_path);
  ~Client() override;

  Status Connect(TimePoint deadline);
  // Ends the threads, and every wait with kUnavailable.
  void Close();

  Result<local::RegisterReply> Register(RegisterRequest request, TimePoint deadline);
  Status Resize(uint64_t size_bytes, TimePoint deadline);
  Status Finish(bool drop_state, TimePoint deadline);
  Result<std::shared_ptr<Save>> Begin(uint64_t step, uint32_t timeout_ms, bool sound_later);

  Result<std::string> NewAttempt(TimePoint deadline);
  // `request` without a shard id: the registered one.
  Result<local::Decision> Decide(local::Reconfigure request);
  // Nothing: resumed. Else the next attempt's decision.
  Result<std::optional<local::Decision>> FinishRestore(const local::Decision& decision,
                                                       local::FinishRestore request);
  // Never waits.
  Status Fence(const std::string& reason);

  Result<local::SnapshotIndexReply> SnapshotIndex(const local::SnapshotIndex& request,
                                                  TimePoint deadline);
  Result<local::SnapshotRef> NewestCommitted(TimePoint deadline);
  Result<local::QuerySnapshotReply> QuerySnapshot(local::SnapshotRef snapshot, TimePoint deadline);

  // The service was away: it is to hear of the step that was not saved when it is back.
  void NoteMissed(uint64_t generation, uint64_t step);

  // Of an open shard; does not wait. A service that is away has closed it by itself.
  void CloseShard(uint64_t handle);
  // Gives back what a reply hands over that nobody uses.
  void GiveBack(const local::ServiceFrame& frame);

  int event_descriptor() const { return event_fd_.get(); }
  ClientEvent NextEvent();

  struct Info {
    bool connected = false;
    std::string node_id;
    uint64_t incarnation = 0;
    uint64_t generation = 0;
    uint32_t chunk_bytes = 0;
    std::string shard_id;
  };
  Info GetInfo() const;
  uint64_t epoch() const { return connection_.epoch(); }

  Connection& connection() { return connection_; }
  CopyThreads& copy_threads() { return copy_threads_; }
  SlotCache& slots() { return slots_; }

  void OnEvent(const local::Event& event) override;
  void OnLost(const Status& why) override;
  std::optional<local::Register> OnHello(const local::HelloReply& hello) override;
  void OnReady(const Status& registered) override;
  void OnLateReply(Reply reply) override;

 private:
  std::vector<std::shared_ptr<Save>> Saves();
  Result<local::RegisterReply> Claim(RegisterRequest request, TimePoint deadline);
  Status ClaimRenumbered(const RegisterRequest& request, TimePoint deadline);
  void CloseSlot(uint64_t slot_id);
  void PushEvent(ClientEvent event);
  void Ignore(const Status& status) { static_cast<void>(status.ok()); }

  CopyThreads copy_threads_;
  SlotCache slots_;

  mutable std::mutex mutex_;  // Protects what follows; never held while a message is sent.
  local::HelloReply hello_;
  std::optional<RegisterRequest> registration_;
  uint32_t chunk_bytes_ = 0;
  uint64_t generation_ = 0;
  uint64_t fenced_generation_ = 0;
  std::string fence_frame_;  // Of fenced_generation_, to say again to a service that comes back.
  std::optional<local::SnapshotRef> missed_;       // The newest.
  std::optional<local::SnapshotRef> missed_told_;  // By the registration that is under way.
  bool seen_ready_ = false;
  std::vector<std::weak_ptr<Save>> saves_;
  std::deque<ClientEvent> events_;
  GuardedFd event_fd_;

  Connection connection_;  // Last: its thread uses all of the above.
};

}  // namespace backstay::client
