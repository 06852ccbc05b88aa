#pragma once

#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/socket.h"
#include "base/unique_fd.h"
#include "transport/tcp/connect.h"
#include "transport/tcp/frames.h"

namespace backstay::transport {

// A peer that says exactly what the test wants, over a blocking socket.
class RawPeer {
 public:
  explicit RawPeer(UniqueFd fd) : fd_(std::move(fd)) {
    // A test that is wrong about what comes next fails instead of hanging.
    SetIoTimeout(fd_.get(), std::chrono::seconds(20));
  }
  static RawPeer ConnectTo(const std::string& address) {
    UniqueFd never_woken;
    return RawPeer(ConnectWithin(address, std::chrono::seconds(20), never_woken.get()).value());
  }

  bool Send(const std::string& bytes) {
    return send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  bool Send(const Frame& frame) {
    std::string bytes;
    EncodeFrame(frame, &bytes);
    return Send(bytes);
  }

  // The next frame; nothing at the end of the stream.
  std::optional<Frame> Receive() {
    while (true) {
      const auto decoded =
          DecodeFrame({reinterpret_cast<const std::byte*>(input_.data()), input_.size()});
      BACKSTAY_CHECK(decoded.ok(), "the peer sends frames");
      if (decoded->has_value()) {
        input_.erase(0, (*decoded)->frame_bytes);
        return (*decoded)->frame;
      }
      char buffer[4096];
      const ssize_t received = recv(fd_.get(), buffer, sizeof(buffer), 0);
      if (received <= 0) return std::nullopt;
      input_.append(buffer, static_cast<size_t>(received));
    }
  }
  template <typename Wanted>
  std::optional<Wanted> ReceiveA() {
    std::optional<Frame> frame = Receive();
    if (!frame.has_value() || !std::holds_alternative<Wanted>(*frame)) return std::nullopt;
    return std::get<Wanted>(*frame);
  }
  // Nothing but the end of the stream, or a reset, comes any more.
  bool AtEnd() { return !Receive().has_value(); }

 private:
  UniqueFd fd_;
  std::string input_;
};

// Accepts connections on loopback and lets `serve` deal with each on a thread of its own.
class RawOwner {
 public:
  explicit RawOwner(std::function<void(RawPeer)> serve) {
    Listener listener = ListenTcp(ParseLiteral({"127.0.0.1", 0}).value()).value();
    BACKSTAY_CHECK(SetNonBlocking(listener.fd.get(), false).ok(), "a socket can block");
    address_ = listener.address.ToString();
    listener_ = std::move(listener.fd);
    thread_ = std::thread([this, serve = std::move(serve)] {
      while (true) {
        Result<std::optional<Accepted>> accepted = Accept(listener_.get());
        if (stop_) return;
        if (!accepted.ok() || !accepted->has_value()) continue;
        BACKSTAY_CHECK(SetNonBlocking((*accepted)->fd.get(), false).ok(), "a socket can block");
        serve(RawPeer(std::move((*accepted)->fd)));
      }
    });
  }
  ~RawOwner() {
    stop_ = true;
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  const std::string& address() const { return address_; }

 private:
  std::string address_;
  UniqueFd listener_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace backstay::transport
