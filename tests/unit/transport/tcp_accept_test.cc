#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/random.h"
#include "base/socket.h"
#include "tests/support/manual_executor.h"
#include "tests/unit/transport/raw_peer.h"
#include "transport/tcp/tcp_exporter.h"

namespace backstay::transport {
namespace {

constexpr Duration kStuckTimeout = std::chrono::seconds(20);

// What is logged while it lives. Made before the threads that log, destroyed after them.
class LogCounter {
 public:
  LogCounter() {
    SetLogSink([this](LogLevel, std::string_view message, std::initializer_list<LogField>) {
      const std::lock_guard lock(mutex_);
      ++counts_[std::string(message)];
      changed_.notify_all();
    });
  }
  ~LogCounter() { SetLogSink(nullptr); }
  LogCounter(const LogCounter&) = delete;
  LogCounter& operator=(const LogCounter&) = delete;

  // False: `message` was not logged that often in any sensible time.
  bool WaitFor(const std::string& message, int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kStuckTimeout, [&] { return counts_[message] >= count; });
  }
  int CountOf(const std::string& message) {
    const std::lock_guard lock(mutex_);
    return counts_[message];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, int> counts_;
};

// Goal: a process out of descriptors does not fill its log, and recovers.
TEST(TcpAccept, SaysOnceThatItIsOutOfDescriptors) {
  const std::string fails = "cannot accept data connections for the moment";
  const std::string works = "accepts data connections again";
  LogCounter logged;
  testing::ManualExecutor executor;
  SeededRandom random(1);
  std::atomic<int> failures_left = 0;
  TcpExporterOptions options;
  options.store = StoreId("store");
  options.node = {NodeId("owner"), Incarnation(3)};
  options.accept = [&failures_left](int listener_fd) -> Result<std::optional<Accepted>> {
    if (failures_left > 0) {
      --failures_left;
      return NoSpace("accept a connection: Too many open files (EMFILE)");
    }
    return Accept(listener_fd);
  };
  const std::unique_ptr<TcpExporter> exporter =
      TcpExporter::Listen(&executor, &random, options).value();
  std::vector<RawPeer> readers;
  for (int episode = 1; episode <= 2; ++episode) {
    failures_left = 4;
    readers.push_back(RawPeer::ConnectTo(exporter->address()));
    EXPECT_TRUE(logged.WaitFor(works, episode)) << "the waiting connection is accepted";
    EXPECT_EQ(failures_left, 0);
    EXPECT_EQ(logged.CountOf(fails), episode);
  }
  EXPECT_EQ(exporter->Stats().connections_refused, 0u);
}

}  // namespace
}  // namespace backstay::transport
