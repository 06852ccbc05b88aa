#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "base/socket.h"
#include "client/limits.h"
#include "client/local.pb.h"
#include "store/numa.h"
#include "store/slot_memory.h"
#include "tools/service/session_server.h"

namespace backstay::tools::testing {

namespace wire = client::wire;

// A port whose trainers answer at once what they can, and keep the rest. The test looks at it from
// its own thread.
//
// Thread: the port's and trainers' methods on the loop's; the rest from any.
class FakePort : public replication::TrainerPort {
 public:
  explicit FakePort(EventLoop& loop);

  struct TrainerRecord {
    replication::ProcessId process;
    replication::TrainerListener* listener = nullptr;  // Nothing once disconnected.
    bool connected = true;
    std::vector<std::string> calls;  // In order, by name.
  };

  std::unique_ptr<replication::Trainer> Connect(replication::ProcessId process,
                                                replication::TrainerListener* listener) override;
  void ProcessExited(replication::ProcessId process) override;

  // Waits until `condition` holds of what has happened so far; false after kWaitMax.
  bool WaitFor(const std::function<bool(const FakePort&)>& condition);
  // For conditions, and after a successful WaitFor().
  const std::vector<TrainerRecord>& trainers() const { return trainers_; }
  const std::vector<replication::ProcessId>& exited() const { return exited_; }
  size_t ConnectedCount() const;
  bool HasCall(size_t trainer, const std::string& call) const;

  // Answers the attempts that were asked for, late.
  void AnswerAttempts();
  void EmitEvent(size_t trainer, const replication::TrainerEvent& event);
  // Of each manifest in the answer to SnapshotIndex.
  void SetManifestBytes(size_t bytes) { manifest_bytes_ = bytes; }

 private:
  friend class FakeTrainer;
  void Note(size_t trainer, std::string call);

  static constexpr std::chrono::seconds kWaitMax{30};

  EventLoop& loop_;
  std::unique_ptr<store::SlotMemoryFactory> factory_ = store::MakeMemfdSlotMemoryFactory();
  std::shared_ptr<store::SlotMemory> slot_;
  std::atomic<size_t> manifest_bytes_{0};
  std::vector<Completion<AttemptUuid>> attempts_;  // Of the loop's thread.

  std::mutex mutex_;  // Guards what follows.
  std::condition_variable changed_;
  std::vector<TrainerRecord> trainers_;
  std::vector<replication::ProcessId> exited_;
};

// A frame of the service and what came with it.
struct Answer {
  wire::ServiceFrame frame;
  std::vector<UniqueFd> fds;

  StatusCode code() const { return static_cast<StatusCode>(frame.status().code()); }
};

// The client's end, byte by byte.
class RawClient {
 public:
  explicit RawClient(const std::string& socket_path);
  RawClient(RawClient&&) = default;
  RawClient& operator=(RawClient&&) = default;

  // Sends all of it, or until the service has closed its end.
  void SendBytes(std::string_view bytes);
  void Send(const wire::ClientFrame& frame) { SendBytes(Encode(frame)); }
  // The next frame; nothing when the service has closed its end. Fails the test after kWaitMax.
  std::optional<Answer> Receive();
  // Says Hello and expects to be welcome.
  void Greet();
  // Claims a shard and expects to get it.
  void Claim();
  void Close() { fd_.Reset(); }
  int fd() const { return fd_.get(); }

  static std::string Encode(const wire::ClientFrame& frame);
  static wire::ClientFrame Hello(uint32_t version = client::kLocalProtocolVersion);
  static wire::ClientFrame Register(uint64_t request);

 private:
  static constexpr int kWaitMaxMs = 30'000;

  // Whether there is more to read; false at the end.
  bool Fill();

  UniqueFd fd_;
  std::string received_;
  std::vector<UniqueFd> fds_;
};

// The session server on a loop of its own.
class SessionTest : public ::testing::Test {
 protected:
  // Long enough for a test to never meet it.
  explicit SessionTest(Duration hello_timeout = std::chrono::minutes(1));
  ~SessionTest() override;

  RawClient Connected() { return RawClient(socket_path_); }
  RawClient Greeted();
  RawClient Claimed();

  std::string directory_;
  std::string socket_path_;
  EventLoop loop_;
  FakePort port_{loop_};
  std::unique_ptr<SessionServer> server_;
};

}  // namespace backstay::tools::testing
