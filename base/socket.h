#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace backstay {

// Sockets as several parts need them. Every descriptor made here is close-on-exec. Errors name the
// address.
//
// Thread: any; a socket on one thread at a time.

// What "127.0.0.1:7070", "[::1]:7070" or "node-3.cluster:7070" says.
struct HostPort {
  std::string host;  // An IPv4 or IPv6 literal (without brackets) or a name.
  uint16_t port = 0;

  // kInvalidArgument says what is wrong with `text`. Port 0 is legal: "any free port" for a
  // listener.
  static Result<HostPort> Parse(std::string_view text);
  // What Parse() reads: IPv6 literals in brackets.
  std::string ToString() const;

  friend bool operator==(const HostPort&, const HostPort&) = default;
};

// An address that the kernel takes: IPv4 or IPv6 with a port.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size_bytes = 0;

  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  uint16_t port() const;
  // Reachable from this machine only (127/8, ::1, and 127/8 written as IPv6).
  bool IsLoopback() const;
  // "127.0.0.1:7070", "[::1]:7070".
  std::string ToString() const;
};

// The addresses of `endpoint`, at least one, best first. A literal never waits; a name asks the
// system's resolver, which can take seconds: not on an executor. kNotFound: there is no such name;
// kUnavailable: the resolver did not answer.
Result<std::vector<SocketAddress>> Resolve(const HostPort& endpoint);
// As Resolve() for a literal; a name is kInvalidArgument. Never waits.
Result<SocketAddress> ParseLiteral(const HostPort& endpoint);

struct Listener {
  UniqueFd fd;            // Non-blocking.
  SocketAddress address;  // With the port that was chosen when 0 was asked for.
};

// Listens with SO_REUSEADDR. kUnavailable: the port is in use.
Result<Listener> ListenTcp(const SocketAddress& address);

// Starts to connect and returns a non-blocking socket: when it becomes writable, FinishConnect()
// says how it went.
Result<UniqueFd> StartConnectTcp(const SocketAddress& address);
// Ok when `fd` is connected; kUnavailable (refused, unreachable ...) or kDeadline else. `peer` is
// for the message.
Status FinishConnect(int fd, std::string_view peer);

struct Accepted {
  UniqueFd fd;         // Non-blocking.
  SocketAddress peer;  // Empty for Unix sockets.
};

// The next waiting connection; nothing when there is none (or it has gone away again). kNoSpace:
// out of descriptors; the connection stays waiting, so wait before trying again.
Result<std::optional<Accepted>> Accept(int listener_fd);

// Listens on a Unix stream socket at `path` (non-blocking) with access `mode`. A socket file that a
// dead process left is replaced; one that somebody listens on is kUnavailable, another kind of file
// kInvalidArgument.
Result<UniqueFd> ListenUnix(const std::string& path, mode_t mode);
// Connects to a Unix stream socket without waiting: kUnavailable when nobody listens or the queue
// is full, kNotFound when there is no such file. The socket is blocking.
Result<UniqueFd> ConnectUnix(const std::string& path);

Status SetNonBlocking(int fd, bool non_blocking);
// Sends small messages at once (TCP_NODELAY).
Status SetNoDelay(int fd);

enum class IoState {
  kBytes,       // Some bytes were moved.
  kWouldBlock,  // None now: wait for the descriptor.
  kClosed,      // The peer has closed its end in order. Receive only.
};

struct Sent {
  IoState state = IoState::kWouldBlock;
  size_t size_bytes = 0;  // May be less than was asked for.
};

struct Received {
  IoState state = IoState::kWouldBlock;
  size_t size_bytes = 0;
  std::vector<UniqueFd> fds;  // Came with these bytes.
  // kPermission when the kernel dropped descriptors on the way (MSG_CTRUNC): a security module
  // refused them, this process has too many open, or more came than kPassedFdsMax. The bytes are
  // good; `fds` holds those that arrived.
  Status fds_status;
};

// The most descriptors in one message; the kernel's limit is 253 (SCM_MAX_FD).
inline constexpr size_t kPassedFdsMax = 16;

// Sends `bytes` (at least one) on a Unix stream socket, and with the first of them `fds` (borrowed;
// the peer gets duplicates): all or none of them, when any byte was sent. Raises no SIGPIPE; a peer
// that is gone is kUnavailable.
Result<Sent> SendWithFds(int fd, std::span<const std::byte> bytes, std::span<const int> fds);
// Receives up to `bytes.size()` (at least one) bytes and the descriptors that came with them,
// close-on-exec.
Result<Received> ReceiveWithFds(int fd, std::span<std::byte> bytes);

// Who connected, as the kernel saw it when it happened. In another pid namespace `pid` is 0.
struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};
Result<PeerCredentials> GetPeerCredentials(int fd);

// A descriptor that becomes readable when process `pid` has exited. kNotFound: there is no such
// process.
Result<UniqueFd> OpenPidFd(pid_t pid);

}  // namespace backstay
