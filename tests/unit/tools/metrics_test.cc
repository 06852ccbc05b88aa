#include "tools/service/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <string>

#include "base/socket.h"

namespace backstay::tools {
namespace {

using replication::wire::NodeStatusReply;
using ::testing::HasSubstr;
using ::testing::Not;

class MetricsTest : public ::testing::Test {
 protected:
  MetricsTest() {
    Result<std::unique_ptr<Metrics>> metrics = Metrics::Listen("127.0.0.1:0", "n1");
    EXPECT_TRUE(metrics.ok()) << metrics.status();
    if (metrics.ok()) metrics_ = std::move(metrics).value();
  }

  // What Prometheus reads.
  std::string Scrape() const {
    const HostPort endpoint{"127.0.0.1", static_cast<uint16_t>(metrics_->port())};
    const Result<SocketAddress> address = ParseLiteral(endpoint);
    EXPECT_TRUE(address.ok()) << address.status();
    Result<UniqueFd> fd = StartConnectTcp(*address);
    EXPECT_TRUE(fd.ok()) << fd.status();
    EXPECT_TRUE(Wait(fd->get(), POLLOUT));
    EXPECT_TRUE(FinishConnect(fd->get(), endpoint.ToString()).ok());
    const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
    EXPECT_EQ(::send(fd->get(), request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
    std::string page;
    std::array<char, 4096> buffer;
    while (Wait(fd->get(), POLLIN)) {
      const ssize_t got = ::recv(fd->get(), buffer.data(), buffer.size(), 0);
      if (got <= 0) break;
      page.append(buffer.data(), static_cast<size_t>(got));
    }
    EXPECT_THAT(page, HasSubstr("200 OK"));
    return page;
  }

  std::unique_ptr<Metrics> metrics_;

 private:
  static bool Wait(int fd, short events) {
    pollfd waits{.fd = fd, .events = events, .revents = 0};
    return ::poll(&waits, 1, 30'000) == 1;
  }
};

void AddJob(NodeStatusReply& status, const std::string& name, uint32_t trainers) {
  auto& job = *status.add_jobs();
  job.set_job(name);
  job.set_trainers(trainers);
  job.set_generation(4);
  job.add_shards()->set_committed(true);
  job.add_shards();
}

TEST_F(MetricsTest, ShowsMemoryPeersAndJobs) {
  NodeStatusReply status;
  status.set_budget_bytes(4096);
  status.set_own_bytes(512);
  auto& peer = *status.add_peers();
  peer.set_node_id("n2");
  peer.set_transport("tcp");
  peer.set_failures(3);
  AddJob(status, "one", 2);
  metrics_->Update(status);
  const std::string page = Scrape();
  EXPECT_THAT(page, HasSubstr("backstay_memory_budget_bytes{node=\"n1\"} 4096"));
  EXPECT_THAT(page, HasSubstr("backstay_memory_bytes{node=\"n1\",kind=\"own\"} 512"));
  EXPECT_THAT(page,
              HasSubstr("backstay_peer_failures{node=\"n1\",peer=\"n2\",transport=\"tcp\"} 3"));
  EXPECT_THAT(page,
              HasSubstr("backstay_shards{node=\"n1\",committed=\"yes\",training_job=\"one\"} 1"));
  EXPECT_THAT(page, HasSubstr("backstay_trainers{node=\"n1\",training_job=\"one\"} 2"));
}

TEST_F(MetricsTest, TheSeriesOfAJobGoWithIt) {
  NodeStatusReply both;
  AddJob(both, "one", 2);
  AddJob(both, "two", 1);
  metrics_->Update(both);
  EXPECT_THAT(Scrape(), HasSubstr("training_job=\"one\""));
  NodeStatusReply later;
  AddJob(later, "two", 3);
  metrics_->Update(later);
  const std::string page = Scrape();
  EXPECT_THAT(page, Not(HasSubstr("training_job=\"one\"")));
  EXPECT_THAT(page, HasSubstr("backstay_trainers{node=\"n1\",training_job=\"two\"} 3"));
  // A job of that name comes back.
  metrics_->Update(both);
  EXPECT_THAT(Scrape(), HasSubstr("backstay_trainers{node=\"n1\",training_job=\"one\"} 2"));
}

}  // namespace
}  // namespace backstay::tools
