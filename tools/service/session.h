#pragma once

#include <sys/types.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/ids.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "client/limits.h"
#include "client/local.pb.h"
#include "replication/trainer_port.h"
#include "tools/service/session_server.h"

namespace backstay::tools {

// One connection of one trainer: frames in, requests to its replication::Trainer, replies and
// events out.
//
// Thread:  the event loop's.
// Memory:  owns the socket and everything queued for it; a slot whose descriptors wait to be sent
//          is kept alive. One frame is kept as it comes in: of some KiB until the client has been
//          welcomed and has claimed a shard.
// Failure: any broken frame ends this session through SessionServer::Close(), after a last frame
//          that says why; a reply that comes later is dropped.
class Session : public replication::TrainerListener {
 public:
  Session(SessionServer& server, SessionId id, UniqueFd fd, pid_t pid,
          replication::ProcessId process);
  ~Session() override;

  Status Start();
  replication::ProcessId process() const { return process_; }

  void OnEvent(const replication::TrainerEvent& event) override;

  // Ends the session: says why, and asks the server to close it.
  void Fail(const Status& status);

  // The last frame on a connection, for a client that is not served (any more). Best effort: a
  // client that does not read misses it.
  static void SendFarewell(int fd, const Status& why);

  bool greeted() const { return stage_ != Stage::kNew; }

  // A client that does not read its replies is cut off here.
  static constexpr size_t kQueuedBytesMax = 2 * client::kFrameBytesMax;
  // The same for one that has not been welcomed: room for a refusal of its version.
  static constexpr size_t kNewQueuedBytesMax = 16 * kKiB;
  // What is kept for the next frame's bytes once all that came are used up.
  static constexpr size_t kKeptReceiveBytesMax = 1 * kMiB;

 private:
  // How far the client has come. It is trusted with memory accordingly: anybody may connect.
  enum class Stage {
    kNew,      // Nothing but Hello is taken, and only until the server's deadline for it.
    kGreeted,  // Hello was accepted.
    kClaimed,  // A claim with the job's token was accepted.
  };

  // A slot that was handed over on this connection, and its latest save.
  struct HandedOutSlot {
    replication::SaveHandle save;
    uint64_t epoch = 0;
    bool mapped = false;  // A copy into it was started. Mappings belong to a connection: a process
                          // that comes back maps anew.
  };

  // A frame on its way out. `fds` go with its first byte and are borrowed from `keeps_fds_alive`.
  struct Outgoing {
    std::string bytes;
    size_t sent_bytes = 0;
    std::vector<int> fds;
    std::shared_ptr<void> keeps_fds_alive;
  };

  void OnReady(uint32_t epoll_events);
  Status ReadFrames();
  Status TakeFrames();
  size_t FrameBytesMax() const;
  Status OnFrame(const client::wire::ClientFrame& frame);
  // Requests after Hello, by what they belong to; false when the frame is not one of theirs.
  bool OnClaimRequest(const client::wire::ClientFrame& frame);
  bool OnSaveRequest(const client::wire::ClientFrame& frame);
  bool OnRecoveryRequest(const client::wire::ClientFrame& frame);
  bool OnReadRequest(const client::wire::ClientFrame& frame);
  void OnHello(uint64_t request, const client::wire::Hello& hello);

  void Begin(uint64_t request, const client::wire::Begin& begin);
  void StartCopy(uint64_t request, const client::wire::StartCopy& start);
  void Fetch(uint64_t request, const client::wire::Fetch& fetch);
  void NewestCommitted(uint64_t request);
  replication::SaveHandle SaveIn(uint64_t slot_id, uint64_t epoch) const;

  // Completion that answers `request` with a status, and `fill`s the body of a good reply.
  StatusCompletion Answer(uint64_t request);
  template <typename T, typename Fill>
  Completion<T> Answer(uint64_t request, Fill fill);

  void Reply(uint64_t request, const Status& status);
  void Send(const client::wire::ServiceFrame& frame, std::vector<int> fds = {},
            std::shared_ptr<void> keeps_fds_alive = nullptr);
  void Flush();
  void WaitToWrite(bool waits);

  SessionServer& server_;
  const SessionId id_;
  const UniqueFd fd_;
  const pid_t pid_;
  const replication::ProcessId process_;
  Stage stage_ = Stage::kNew;
  TimerId hello_timer_ = kNoTimer;
  bool closing_ = false;  // Close() was asked for: nothing is read or sent any more.
  std::string received_;
  std::deque<Outgoing> queue_;
  size_t queued_bytes_ = 0;
  bool waits_to_write_ = false;  // The loop watches for room in the socket.
  // By id. As many as the process was given slots, each of which is memory that stays this
  // process's until its exit: the budget is their bound, not the number of saves.
  std::map<uint64_t, HandedOutSlot> slots_;
  std::unique_ptr<replication::Trainer> trainer_;
  Lifetime lifetime_;
};

}  // namespace backstay::tools
