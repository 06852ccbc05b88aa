#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "base/clock.h"
#include "base/event_loop.h"
#include "base/ids.h"
#include "base/socket.h"
#include "replication/trainer_port.h"

namespace backstay::tools {

class Session;

// One connection, as the server tells them apart; never reused.
using SessionId = StrongNumber<struct SessionIdTag>;

// Where trainers connect: accepts them on a unix socket, speaks client/local.proto with each, and
// tells the port which processes have exited.
//
// A process is known by its pidfd, never by its socket: forked children keep a socket open, and a
// process that lost its connection may come back and find its slots. Processes that the kernel
// cannot show to this service (another pid namespace) are refused, because nobody could tell when
// their writable mappings are gone.
//
// Thread:  the event loop's.
// Memory:  bounded: sessions, frames and queued replies each have a limit below.
// Failure: a client that breaks the protocol, or that cannot be served, gets an error frame and
//          loses its connection; nobody else notices.
class SessionServer {
 public:
  struct Options {
    std::string socket_path;
    uint32_t chunk_bytes = 0;
    std::string version;
    // This node's current start; asked at each Hello. Incarnation 0: not admitted to the cluster
    // yet.
    std::function<NodeInstance()> self;
    // A connection that has not said Hello by then is closed.
    Duration hello_timeout = std::chrono::seconds(5);
  };

  // kUnavailable: another service listens on the path.
  static Result<std::unique_ptr<SessionServer>> Listen(EventLoop& loop,
                                                       replication::TrainerPort& port,
                                                       Options options);
  ~SessionServer();

  static constexpr size_t kSessionsMax = 1024;
  // Connections that have not said Hello: at the limit, the one that has been silent for longest
  // gives way to the next, so that silence never keeps a trainer out.
  static constexpr size_t kSilentSessionsMax = 128;
  static_assert(kSilentSessionsMax < kSessionsMax);

 private:
  friend class Session;

  struct Process {
    replication::ProcessId id;
    UniqueFd pidfd;
  };

  SessionServer(EventLoop& loop, replication::TrainerPort& port, Options options,
                UniqueFd listener);

  void OnConnection();
  // Lets waiting connections wait, for lack of descriptors.
  void PauseAccepting();
  Status StartAccepting();
  Status Admit(UniqueFd& fd);
  // The process behind `pid`, watched until its exit.
  Result<replication::ProcessId> Watch(pid_t pid);
  void OnExit(pid_t pid);
  void OnGreeted(SessionId session) { silent_.erase(session); }
  void Erase(SessionId session);
  // Ends a session after the call that is running in it.
  void Close(SessionId session);

  EventLoop& loop_;
  replication::TrainerPort& port_;
  const Options options_;
  const UniqueFd listener_;
  uint64_t last_process_ = 0;
  uint64_t last_session_ = 0;
  std::map<pid_t, Process> processes_;  // That have connected and live.
  std::map<SessionId, std::unique_ptr<Session>> sessions_;
  std::set<SessionId> silent_;  // Of sessions_, oldest first: Hello has not come.
  Lifetime lifetime_;
};

}  // namespace backstay::tools
