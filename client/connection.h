#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "client/fork_guard.h"
#include "client/wire.h"

namespace backstay::client {

using TimePoint = std::chrono::steady_clock::time_point;

// A frame of the service and the descriptors that came with it.
struct Reply {
  uint64_t epoch = 0;  // Connection::epoch() when it arrived.
  local::ServiceFrame frame;
  std::vector<GuardedFd> descriptors;

  // The body, or the frame's error. kCorrupt: another body than asked for.
  template <typename Body>
  Result<Body> Take() {
    if (!frame.status.ok()) return frame.status;
    if (auto* body = std::get_if<Body>(&frame.body)) return std::move(*body);
    return Corrupt("the service answered with another message than was asked for");
  }
};

// The socket to the node's service: requests and their replies, events, and coming back after the
// service was away.
//
// Thread:  one I/O thread from Start() to Stop() owns the socket; everything else from any thread.
//          Listener and completions run on the I/O thread and must not wait.
// Memory:  owns frames until they are sent; at most kOutgoingBytesMax of them.
// Failure: when the service goes away, or breaks the protocol, everything outstanding ends with
//          kUnavailable and the I/O thread reconnects, with backoff, until Stop().
class Connection {
 public:
  // What the owner hears, on the I/O thread.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void OnEvent(const local::Event& event) = 0;
    virtual void OnLost(const Status& why) = 0;
    // Before OnReady(). Returns what to register; nothing before the first registration.
    virtual std::optional<local::Register> OnHello(const local::HelloReply& hello) = 0;
    // Requests can be sent. `registered` is how registering again went; ok when there was none.
    virtual void OnReady(const Status& registered) = 0;
    // The reply to a Call() that has returned kDeadline: what it hands over must be given back.
    virtual void OnLateReply(Reply reply) = 0;
  };
  using Completion = std::function<void(Result<Reply>)>;

  // `listener` must outlive the connection.
  Connection(std::string socket_path, Listener* listener);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Starts the I/O thread and waits until it is connected. kNotFound, kPermission and kUnavailable
  // name the socket; kInvalidArgument: the service speaks another version.
  Status Start(TimePoint deadline);
  // Ends everything outstanding, then the thread.
  void Stop();

  // Sends a request; `done` runs exactly once, on the I/O thread: with the reply, or kUnavailable.
  // kUnavailable at once (and `done` never runs) while the service is away; kNoSpace: it reads
  // nothing.
  template <typename Body>
  Status Send(const Body& body, Completion done) {
    return SendFrame([&](uint64_t request) { return local::EncodeFrame(request, body); },
                     std::move(done));
  }
  // Sends a request and waits for its reply. While the service is away it first waits until it is
  // back. kDeadline at `deadline`.
  template <typename Body>
  Result<Reply> Call(const Body& body, TimePoint deadline, const char* what) {
    return CallFrame([&](uint64_t request) { return local::EncodeFrame(request, body); }, deadline,
                     what);
  }
  // Queues a one-way message; one that waits while the service is away is sent after the next
  // registration. Never waits. kNoSpace: it reads nothing.
  Status SendOneWay(std::string frame);

  bool ready() const;
  // Grows each time the service is lost, before Listener::OnLost(): handles of an older epoch mean
  // nothing to it.
  uint64_t epoch() const { return epoch_.load(); }

 private:
  enum class Phase { kAway, kSayingHello, kRegistering, kReady, kStopped };
  using Encoder = std::function<std::string(uint64_t request)>;

  Status SendFrame(const Encoder& encode, Completion done);
  Result<Reply> CallFrame(const Encoder& encode, TimePoint deadline, const char* what);
  void Wake();

  // I/O thread.
  void Run();
  void TryConnect();
  void Handshake(Reply reply);
  void BecomeReady(const Status& registered);
  Status ReadSocket();
  Status TakeFrames();
  void TakeDescriptors(Reply* reply);
  Status Dispatch(Reply reply);
  Status WriteSocket();
  void Lose(const Status& why);
  int PollTimeoutMs() const;

  const std::string socket_path_;
  Listener* const listener_;
  GuardedFd wake_;
  std::thread thread_;
  std::atomic<uint64_t> epoch_{0};

  mutable std::mutex mutex_;  // Protects what follows; never held while a completion runs.
  std::condition_variable changed_;
  Phase phase_ = Phase::kAway;
  Status away_because_;
  bool version_refused_ = false;
  uint64_t next_request_ = 1;
  std::map<uint64_t, Completion> pending_;
  std::deque<std::string> outgoing_;
  size_t outgoing_bytes_ = 0;
  std::deque<std::string> held_;  // One-way frames for when the service is back.
  bool stop_ = false;

  // I/O thread only.
  GuardedFd socket_;
  std::string incoming_;
  std::vector<GuardedFd> incoming_descriptors_;
  bool descriptors_dropped_ = false;
  size_t sent_bytes_ = 0;  // Of outgoing_.front().
  TimePoint retry_at_;
  TimePoint handshake_until_;
  std::chrono::milliseconds backoff_;
};

}  // namespace backstay::client
