#include "transport/tcp/served_connection.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>
#include <string>

#include "base/random.h"

namespace backstay::transport {
namespace {

constexpr Duration kSecond = std::chrono::seconds(1);
constexpr Instant kAccepted{1'000'000'000'000};

// One connection, whose time is what the test says.
class ServedConnectionTest : public ::testing::Test {
 protected:
  ServedConnectionTest() {
    context_.store = StoreId("store");
    context_.node = {NodeId("owner"), Incarnation(3)};
    context_.grants = &grants_;
    context_.on_served = [](const NodeId&, uint64_t) {};
    context_.on_refused = [](StatusCode) {};
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    reader_.Reset(fds[0]);
    connection_ = std::make_unique<ServedConnection>(UniqueFd(fds[1]), "reader", &context_,
                                                     &random_, kAccepted);
  }

  std::string HelloBytes() const {
    HelloFrame hello;
    hello.store = context_.store;
    hello.reader = {NodeId("reader"), Incarnation(7)};
    hello.owner = context_.node;
    std::string bytes;
    EncodeFrame(hello, &bytes);
    return bytes;
  }
  // The reader sends `bytes`, which the connection takes in `now`.
  Status Arrive(const std::string& bytes, Instant now) {
    EXPECT_EQ(send(reader_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    return connection_->Receive(now);
  }

  SeededRandom random_{1};
  GrantTable grants_;
  ServeContext context_;
  UniqueFd reader_;
  std::unique_ptr<ServedConnection> connection_;
};

// Attack: a peer that nobody knows drips the bytes of a hello, to hold its connection for hours.
TEST_F(ServedConnectionTest, DrippingAHelloGainsNoTime) {
  const std::string hello = HelloBytes();
  for (size_t i = 0; i + 1 < hello.size(); ++i) {
    const Duration later = kHelloTimeout * static_cast<int64_t>(i) / hello.size();
    ASSERT_TRUE(Arrive(hello.substr(i, 1), kAccepted + later).ok());
    ASSERT_EQ(connection_->closes_at(), kAccepted + kHelloTimeout);
  }
}

TEST_F(ServedConnectionTest, AfterTheHelloProgressCounts) {
  const Instant greeted = kAccepted + 9 * kSecond;
  ASSERT_TRUE(Arrive(HelloBytes(), greeted).ok());
  ASSERT_TRUE(connection_->wants_output()) << "the answer";
  EXPECT_EQ(connection_->closes_at(), greeted + kReaderStallTimeout);
  ASSERT_TRUE(connection_->Send(greeted + kSecond).ok());
  ASSERT_FALSE(connection_->wants_output());
  EXPECT_EQ(connection_->closes_at(), greeted + kSecond + kConnectionIdleTimeout);
}

}  // namespace
}  // namespace backstay::transport
