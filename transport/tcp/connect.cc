#include "transport/tcp/connect.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <vector>

#include "base/socket.h"

namespace backstay::transport {

namespace {

Status WaitConnected(int fd, const std::string& address, Duration timeout, int wake_fd) {
  pollfd events[] = {{fd, POLLOUT, 0}, {wake_fd, POLLIN, 0}};
  int ready = 0;
  do {
    ready = poll(events, 2, static_cast<int>(ToMillis(timeout)));
  } while (ready < 0 && errno == EINTR);
  if (events[1].revents != 0) return Unavailable("connecting to " + address + " was given up");
  if (ready == 0) {
    return Unavailable("no answer from " + address + " within " +
                       std::to_string(ToMillis(timeout)) + " ms");
  }
  return FinishConnect(fd, address);
}

Result<UniqueFd> ConnectOne(const SocketAddress& address, Duration timeout, int wake_fd) {
  BACKSTAY_ASSIGN_OR_RETURN(UniqueFd fd, StartConnectTcp(address));
  BACKSTAY_RETURN_IF_ERROR(WaitConnected(fd.get(), address.ToString(), timeout, wake_fd));
  BACKSTAY_RETURN_IF_ERROR(SetNonBlocking(fd.get(), false));
  return fd;
}

}  // namespace

Result<UniqueFd> ConnectWithin(const std::string& address, Duration timeout, int wake_fd) {
  BACKSTAY_ASSIGN_OR_RETURN(const HostPort endpoint, HostPort::Parse(address));
  BACKSTAY_ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses, Resolve(endpoint));
  Status last = Unavailable("no address for " + address);
  for (const SocketAddress& one : addresses) {
    Result<UniqueFd> fd = ConnectOne(one, timeout, wake_fd);
    if (fd.ok()) return fd;
    last = fd.status();
  }
  return last;
}

void SetIoTimeout(int fd, Duration timeout) {
  const int64_t us = std::chrono::duration_cast<std::chrono::microseconds>(timeout).count();
  timeval value{};
  value.tv_sec = us / 1'000'000;
  value.tv_usec = us % 1'000'000;
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &value, sizeof(value));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &value, sizeof(value));
}

}  // namespace backstay::transport
