#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/log.h"
#include "base/random.h"
#include "base/socket.h"
#include "tests/support/manual_executor.h"
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

  // False: `message` was not logged that often within `limit`.
  bool WaitFor(const std::string& message, int count, Duration limit = kStuckTimeout) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [&] { return counts_[message] >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, int> counts_;
};

// This process can open no more files while it lives.
class NoDescriptors {
 public:
  NoDescriptors() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit none{.rlim_cur = 0, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoDescriptors() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

// Goal:   a process out of descriptors does not fill its log, and recovers.
// Method: twice, long enough for several tries to accept.
TEST(TcpAccept, SaysOnceThatItIsOutOfDescriptors) {
  const std::string fails = "cannot accept data connections for the moment";
  const std::string works = "accepts data connections again";
  LogCounter logged;
  testing::ManualExecutor executor;
  SeededRandom random(1);
  TcpExporterOptions options;
  options.store = StoreId("store");
  options.node = {NodeId("owner"), Incarnation(3)};
  const std::unique_ptr<TcpExporter> exporter =
      TcpExporter::Listen(&executor, &random, options).value();
  const SocketAddress address = ParseLiteral(HostPort::Parse(exporter->address()).value()).value();
  for (int episode = 1; episode <= 2; ++episode) {
    const UniqueFd reader(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    {
      const NoDescriptors none;
      ASSERT_EQ(connect(reader.get(), address.get(), address.size_bytes), 0);
      EXPECT_TRUE(logged.WaitFor(fails, episode));
      EXPECT_FALSE(logged.WaitFor(fails, episode + 1, std::chrono::milliseconds(350)));
    }
    EXPECT_TRUE(logged.WaitFor(works, episode)) << "the waiting connection is accepted";
  }
}

}  // namespace
}  // namespace backstay::transport
