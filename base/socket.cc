#include "base/socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/os_error.h"

namespace backstay {
namespace {

// Connections that may wait for accept(); the kernel lowers it to net.core.somaxconn.
constexpr int kBacklogMax = 1024;

Status SetOption(int fd, int level, int option, int value, const char* name) {
  if (setsockopt(fd, level, option, &value, sizeof(value)) == 0) return Status::Ok();
  return OsError(errno, std::string("set ") + name + " of a socket");
}

Result<sockaddr_un> UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return InvalidArgument("Unix socket path '" + path + "': must have 1 to " +
                           std::to_string(sizeof(address.sun_path) - 1) + " bytes, has " +
                           std::to_string(path.size()));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// A connected non-blocking socket, or an invalid one when `path` is a socket that nobody listens
// on. (A listener with a full queue is an error, so that it is not taken for a dead one.)
Result<UniqueFd> TryConnectUnix(const std::string& path) {
  BACKSTAY_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  const std::string what = "connect to " + path;
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return OsError(errno, what);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0)
    return fd;
  if (errno == ECONNREFUSED) return UniqueFd();
  return OsError(errno, what);
}

// Makes room for a listener: removes the socket file of a listener that is gone.
Status RemoveDeadSocket(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? Status::Ok() : OsError(errno, "look at " + path);
  }
  if (!S_ISSOCK(info.st_mode)) return InvalidArgument(path + " exists and is not a socket");
  BACKSTAY_ASSIGN_OR_RETURN(const UniqueFd probe, TryConnectUnix(path));
  if (probe.valid()) return Unavailable("another process listens on " + path);
  if (unlink(path.c_str()) != 0 && errno != ENOENT)
    return OsError(errno, "remove the dead socket " + path);
  return Status::Ok();
}

struct alignas(cmsghdr) ControlBuffer {
  char bytes[CMSG_SPACE(sizeof(int) * kPassedFdsMax)];
};

// Takes the descriptors out of a received message.
std::vector<UniqueFd> TakeFds(msghdr& message) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

bool IsWouldBlock(int error_number) {
  return error_number == EAGAIN || error_number == EWOULDBLOCK;
}

// Errors of accept() that are about the connection that was about to be accepted (accept(2), "Error
// handling").
bool IsConnectionGone(int error_number) {
  switch (error_number) {
    case ECONNABORTED:
    case EPROTO:
    case ENETDOWN:
    case ENOPROTOOPT:
    case EHOSTDOWN:
    case ENONET:
    case EHOSTUNREACH:
    case EOPNOTSUPP:
    case ENETUNREACH:
    case EPERM:
      return true;
    default:
      return false;
  }
}

}  // namespace

Result<Listener> ListenTcp(const SocketAddress& address) {
  const std::string what = "listen on " + address.ToString();
  Listener listener;
  listener.fd.Reset(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.fd.valid()) return OsError(errno, what);
  const int fd = listener.fd.get();
  BACKSTAY_RETURN_IF_ERROR(SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR"));
  if (bind(fd, address.get(), address.size_bytes) != 0 || listen(fd, kBacklogMax) != 0) {
    return OsError(errno, what);
  }
  listener.address.size_bytes = sizeof(listener.address.storage);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&listener.address.storage),
                  &listener.address.size_bytes) != 0) {
    return OsError(errno, what);
  }
  return listener;
}

Result<UniqueFd> StartConnectTcp(const SocketAddress& address) {
  const std::string what = "connect to " + address.ToString();
  UniqueFd fd(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return OsError(errno, what);
  BACKSTAY_RETURN_IF_ERROR(SetNoDelay(fd.get()));
  if (connect(fd.get(), address.get(), address.size_bytes) != 0 && errno != EINPROGRESS &&
      errno != EINTR) {
    return OsError(errno, what);
  }
  return fd;
}

Status FinishConnect(int fd, std::string_view peer) {
  int error_number = 0;
  socklen_t size_bytes = sizeof(error_number);
  const std::string what = "connect to " + std::string(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error_number, &size_bytes) != 0)
    return OsError(errno, what);
  if (error_number != 0) return OsError(error_number, what);
  sockaddr_storage address;
  size_bytes = sizeof(address);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size_bytes) == 0) return Status::Ok();
  return errno == ENOTCONN ? Unavailable(what + ": still under way") : OsError(errno, what);
}

Result<std::optional<Accepted>> Accept(int listener_fd) {
  Accepted accepted;
  accepted.peer.size_bytes = sizeof(accepted.peer.storage);
  accepted.fd.Reset(accept4(listener_fd, reinterpret_cast<sockaddr*>(&accepted.peer.storage),
                            &accepted.peer.size_bytes, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!accepted.fd.valid()) {
    if (IsWouldBlock(errno) || errno == EINTR || IsConnectionGone(errno))
      return std::optional<Accepted>();
    return OsError(errno, "accept a connection");
  }
  if (accepted.peer.family() == AF_UNIX) accepted.peer = {};
  return std::optional<Accepted>(std::move(accepted));
}

Result<UniqueFd> ListenUnix(const std::string& path, mode_t mode) {
  BACKSTAY_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  BACKSTAY_RETURN_IF_ERROR(RemoveDeadSocket(path));
  const std::string what = "listen on " + path;
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return OsError(errno, what);
  // On the socket before bind(), so that the file never exists with wider access; the umask can
  // only narrow it, which chmod() then undoes.
  if (fchmod(fd.get(), mode) != 0) return OsError(errno, what);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return OsError(errno, what);
  }
  if (chmod(path.c_str(), mode) != 0) return OsError(errno, "set the access mode of " + path);
  if (listen(fd.get(), kBacklogMax) != 0) return OsError(errno, what);
  return fd;
}

Result<UniqueFd> ConnectUnix(const std::string& path) {
  BACKSTAY_ASSIGN_OR_RETURN(UniqueFd fd, TryConnectUnix(path));
  if (!fd.valid()) return OsError(ECONNREFUSED, "connect to " + path);
  BACKSTAY_RETURN_IF_ERROR(SetNonBlocking(fd.get(), false));
  return fd;
}

Status SetNonBlocking(int fd, bool non_blocking) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0) return OsError(errno, "read the flags of a socket");
  const int wanted = non_blocking ? flags | O_NONBLOCK : flags & ~O_NONBLOCK;
  if (fcntl(fd, F_SETFL, wanted) != 0) return OsError(errno, "set the flags of a socket");
  return Status::Ok();
}

Status SetNoDelay(int fd) { return SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"); }

Result<Sent> SendWithFds(int fd, std::span<const std::byte> bytes, std::span<const int> fds) {
  BACKSTAY_CHECK(!bytes.empty(), "descriptors travel with bytes");
  BACKSTAY_CHECK(fds.size() <= kPassedFdsMax, "too many descriptors for one message");
  iovec range{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &range;
  message.msg_iovlen = 1;
  ControlBuffer control{};
  if (!fds.empty()) {
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(part), fds.data(), fds.size_bytes());
  }
  ssize_t sent;
  do {
    sent = sendmsg(fd, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return Sent{IoState::kBytes, static_cast<size_t>(sent)};
  if (IsWouldBlock(errno)) return Sent{};
  return OsError(errno, "send on a local socket");
}

Result<Received> ReceiveWithFds(int fd, std::span<std::byte> bytes) {
  BACKSTAY_CHECK(!bytes.empty(), "receiving nothing cannot be told from the end");
  iovec range{bytes.data(), bytes.size()};
  ControlBuffer control{};
  msghdr message{};
  message.msg_iov = &range;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  ssize_t got;
  do {
    got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  Received received;
  if (got < 0) {
    if (IsWouldBlock(errno)) return received;
    return OsError(errno, "receive on a local socket");
  }
  received.state = got == 0 ? IoState::kClosed : IoState::kBytes;
  received.size_bytes = static_cast<size_t>(got);
  received.fds = TakeFds(message);
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    received.fds_status = PermissionDenied(
        "the kernel dropped a passed file descriptor (MSG_CTRUNC): a security module such as "
        "SELinux or AppArmor refused it, this process has too many files open (ulimit -n), or more "
        "than " +
        std::to_string(kPassedFdsMax) + " came at once");
  }
  return received;
}

Result<PeerCredentials> GetPeerCredentials(int fd) {
  ucred credentials{};
  socklen_t size_bytes = sizeof(credentials);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size_bytes) != 0) {
    return OsError(errno, "read the credentials of a local peer");
  }
  return PeerCredentials{credentials.pid, credentials.uid, credentials.gid};
}

Result<UniqueFd> OpenPidFd(pid_t pid) {
  // The system call sets close-on-exec. glibc has no wrapper in every version we build with.
  UniqueFd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!fd.valid()) return OsError(errno, "watch process " + std::to_string(pid));
  return fd;
}

}  // namespace backstay
