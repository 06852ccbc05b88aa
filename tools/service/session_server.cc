#include "tools/service/session_server.h"

#include <sys/epoll.h>
#include <unistd.h>

#include "base/log.h"
#include "tools/service/session.h"

namespace backstay::tools {
namespace {

// Who may try: the job's token decides, not the user; containers remap user ids.
constexpr mode_t kSocketMode = 0666;

// Without descriptors for another connection, this long until the next try.
constexpr std::chrono::milliseconds kAcceptPause{200};

}  // namespace

Result<std::unique_ptr<SessionServer>> SessionServer::Listen(EventLoop& loop,
                                                             replication::TrainerPort& port,
                                                             Options options) {
  BACKSTAY_ASSIGN_OR_RETURN(UniqueFd listener, ListenUnix(options.socket_path, kSocketMode));
  std::unique_ptr<SessionServer> server(
      new SessionServer(loop, port, std::move(options), std::move(listener)));
  BACKSTAY_RETURN_IF_ERROR(server->StartAccepting());
  return server;
}

SessionServer::SessionServer(EventLoop& loop, replication::TrainerPort& port, Options options,
                             UniqueFd listener)
    : loop_(loop), port_(port), options_(std::move(options)), listener_(std::move(listener)) {}

SessionServer::~SessionServer() {
  loop_.UnwatchFd(listener_.get());
  // While it still listens: nobody else can have taken the name. After a kill ListenUnix() does it.
  unlink(options_.socket_path.c_str());
  sessions_.clear();
  for (const auto& [pid, process] : processes_) loop_.UnwatchFd(process.pidfd.get());
}

Status SessionServer::StartAccepting() {
  return loop_.WatchFd(listener_.get(), EPOLLIN, [this](uint32_t) { OnConnection(); });
}

void SessionServer::PauseAccepting() {
  loop_.UnwatchFd(listener_.get());
  loop_.RunAfter(kAcceptPause, lifetime_.Wrap([this] {
    if (!StartAccepting().ok()) PauseAccepting();
  }));
}

void SessionServer::OnConnection() {
  Result<std::optional<Accepted>> accepted = Accept(listener_.get());
  if (!accepted.ok()) {
    Log(LogLevel::kWarning, "cannot accept a trainer", {{"error", accepted.status().ToString()}});
    return PauseAccepting();
  }
  if (!accepted->has_value()) return;
  UniqueFd fd = std::move((*accepted)->fd);
  const Status admitted = Admit(fd);
  if (admitted.ok()) return;
  Log(LogLevel::kWarning, "refused a trainer", {{"error", admitted.ToString()}});
  if (fd.valid()) Session::SendFarewell(fd.get(), admitted);
}

// Takes `fd` unless it refuses.
Status SessionServer::Admit(UniqueFd& fd) {
  if (sessions_.size() >= kSessionsMax) {
    return NoSpace("already " + std::to_string(kSessionsMax) + " trainer connections");
  }
  BACKSTAY_ASSIGN_OR_RETURN(const PeerCredentials credentials, GetPeerCredentials(fd.get()));
  if (credentials.pid == 0) {
    return PermissionDenied(
        "the trainer runs in a pid namespace that this service cannot see, so its exit could not "
        "be noticed: share the "
        "namespace (hostPID in Kubernetes) or run the service inside of it");
  }
  BACKSTAY_ASSIGN_OR_RETURN(const replication::ProcessId process, Watch(credentials.pid));
  const SessionId id(++last_session_);
  auto session = std::make_unique<Session>(*this, id, std::move(fd), credentials.pid, process);
  BACKSTAY_RETURN_IF_ERROR(session->Start());
  sessions_.emplace(id, std::move(session));
  silent_.insert(id);
  if (silent_.size() > kSilentSessionsMax) {
    sessions_.at(*silent_.begin())
        ->Fail(NoSpace("more than " + std::to_string(kSilentSessionsMax) +
                       " connections have not said Hello, this one for the longest"));
  }
  return Status::Ok();
}

Result<replication::ProcessId> SessionServer::Watch(pid_t pid) {
  if (const auto known = processes_.find(pid); known != processes_.end()) return known->second.id;
  BACKSTAY_ASSIGN_OR_RETURN(UniqueFd pidfd, OpenPidFd(pid));
  BACKSTAY_RETURN_IF_ERROR(
      loop_.WatchFd(pidfd.get(), EPOLLIN, [this, pid](uint32_t) { OnExit(pid); }));
  const replication::ProcessId id(++last_process_);
  processes_.emplace(pid, Process{id, std::move(pidfd)});
  return id;
}

void SessionServer::OnExit(pid_t pid) {
  const auto process = processes_.find(pid);
  if (process == processes_.end()) return;
  const replication::ProcessId id = process->second.id;
  loop_.UnwatchFd(process->second.pidfd.get());
  processes_.erase(process);
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    const auto session = it++;
    if (session->second->process() == id) Erase(session->first);
  }
  Log(LogLevel::kInfo, "trainer process exited", {{"pid", std::to_string(pid)}});
  port_.ProcessExited(id);
}

void SessionServer::Erase(SessionId session) {
  silent_.erase(session);
  sessions_.erase(session);
}

void SessionServer::Close(SessionId session) {
  silent_.erase(session);  // It counts no more, from now on.
  loop_.Post(lifetime_.Wrap([this, session] { Erase(session); }));
}

}  // namespace backstay::tools
