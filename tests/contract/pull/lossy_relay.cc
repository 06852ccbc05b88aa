#include "tests/contract/pull/lossy_relay.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "base/socket.h"
#include "transport/tcp/connect.h"

namespace backstay::transport {

namespace {

constexpr size_t kRelayBytes = 64 * 1024;

bool SendWhole(int fd, const std::byte* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL);
    if (sent < 0) return false;
    data += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

void ResetOnClose(int fd) {
  const linger reset{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
}

}  // namespace

LossyRelay::LossyRelay(const std::string& target_address) : target_address_(target_address) {
  Listener listener = ListenTcp(ParseLiteral({"127.0.0.1", 0}).value()).value();
  address_ = listener.address.ToString();
  listener_ = std::move(listener.fd);
  wake_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  thread_ = std::thread([this] { Run(); });
}

LossyRelay::~LossyRelay() {
  stop_ = true;
  Wake();
  thread_.join();
}

void LossyRelay::HoldAfter(uint64_t bytes) {
  held_ = false;
  bytes_left_ = static_cast<int64_t>(bytes);
}

void LossyRelay::LetGo() {
  bytes_left_ = INT64_MAX;
  held_ = false;
  Wake();
}

void LossyRelay::Break() {
  broken_ = true;
  Wake();
}

void LossyRelay::Wake() { eventfd_write(wake_.get(), 1); }

void LossyRelay::Run() {
  while (!stop_) {
    if (broken_) {
      for (const Pair& pair : pairs_) ResetOnClose(pair.reader.get());
      pairs_.clear();
      listener_.Reset();
    }
    std::vector<pollfd> events = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    const bool hold = bytes_left_ <= 0;
    for (const Pair& pair : pairs_) {
      events.push_back({pair.reader.get(), POLLIN, 0});
      // While it holds, not even the owner's end of the connection is passed on.
      events.push_back({hold ? -1 : pair.owner.get(), POLLIN, 0});
    }
    BACKSTAY_CHECK(poll(events.data(), events.size(), -1) >= 0, "poll");
    if (events[0].revents != 0) {
      eventfd_t ignored = 0;
      eventfd_read(wake_.get(), &ignored);
    }
    size_t next = 2;
    for (auto pair = pairs_.begin(); pair != pairs_.end();) {
      bool alive = events[next].revents == 0 || RelayToOwner(&*pair);
      if (alive && events[next + 1].revents != 0) alive = RelayToReader(&*pair);
      next += 2;
      pair = alive ? std::next(pair) : pairs_.erase(pair);
    }
    if (events[1].revents != 0) AcceptReader();
  }
}

void LossyRelay::AcceptReader() {
  Result<std::optional<Accepted>> result = Accept(listener_.get());
  if (!result.ok() || !result->has_value()) return;
  const std::optional<Accepted>& accepted = *result;
  Result<UniqueFd> owner = ConnectWithin(target_address_, std::chrono::seconds(5), wake_.get());
  if (!owner.ok()) return;
  BACKSTAY_CHECK(SetNonBlocking(accepted->fd.get(), false).ok(), "a socket can block");
  // A reader that takes nothing must not stop the relay from being ended.
  SetIoTimeout(accepted->fd.get(), std::chrono::seconds(10));
  pairs_.push_back({std::move((*result)->fd), *std::move(owner)});
}

bool LossyRelay::RelayToOwner(Pair* pair) {
  std::array<std::byte, kRelayBytes> buffer;
  const ssize_t received = recv(pair->reader.get(), buffer.data(), buffer.size(), 0);
  return received > 0 && SendWhole(pair->owner.get(), buffer.data(), static_cast<size_t>(received));
}

bool LossyRelay::RelayToReader(Pair* pair) {
  std::array<std::byte, kRelayBytes> buffer;
  const int64_t left = bytes_left_;
  const auto room = static_cast<size_t>(std::min<int64_t>(left, kRelayBytes));
  if (room == 0) return true;
  const ssize_t received = recv(pair->owner.get(), buffer.data(), room, 0);
  if (received <= 0) return false;
  if (left != INT64_MAX && bytes_left_.fetch_sub(received) <= received) held_ = true;
  return SendWhole(pair->reader.get(), buffer.data(), static_cast<size_t>(received));
}

}  // namespace backstay::transport
