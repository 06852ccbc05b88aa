// Control messages over gRPC on loopback: what arrives, what an error becomes, and how both ends
// end.

#include "replication/peer_grpc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/manual_executor.h"

namespace backstay::replication {
namespace {

using namespace std::chrono_literals;
using backstay::testing::ManualExecutor;
using ::testing::HasSubstr;

class PeerGrpcTest : public ::testing::Test {
 protected:
  static constexpr Duration kRealTimeMax = 30s;
  // A call that gets an answer never comes near it.
  static constexpr Duration kPatience = 60s;

  PeerGrpcTest() { MakeMessenger(); }
  ~PeerGrpcTest() override {
    messenger_.reset();
    StopServer();
  }

  void StartServer() {
    service_ = std::make_unique<PeerGrpcService>(
        executor_, [this](const wire::Request& request, ReplyFunction reply) {
          requests_.push_back(request);
          replies_.push_back(std::move(reply));
        });
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port_),
                             grpc::InsecureServerCredentials(), &port_);
    builder.SetMaxReceiveMessageSize(kPeerMessageBytesMax);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  void StopServer() {
    if (server_ == nullptr) return;
    service_->FailPending();
    server_->Shutdown();
    server_.reset();
    service_.reset();
  }
  void MakeMessenger() {
    messenger_ = std::make_unique<GrpcMessenger>(
        executor_,
        [this](const NodeId& node) -> std::optional<std::string> {
          if (node != NodeId("n2")) return std::nullopt;
          return "127.0.0.1:" + std::to_string(port_);
        },
        grpc::InsecureChannelCredentials());
  }

  using Outcome = std::shared_ptr<std::optional<Result<wire::Reply>>>;
  Outcome Send(const std::string& node, Duration patience = kPatience, size_t padding_bytes = 0) {
    wire::Request request;
    request.mutable_header()->set_job("job");
    request.mutable_report_fence()->set_reason(std::string(padding_bytes, 'p'));
    auto outcome = std::make_shared<std::optional<Result<wire::Reply>>>();
    messenger_->Send(NodeId(node), std::move(request), executor_.Now() + patience,
                     [outcome](Result<wire::Reply> reply) {
                       EXPECT_FALSE(outcome->has_value()) << "a completion runs once";
                       outcome->emplace(std::move(reply));
                     });
    EXPECT_FALSE(outcome->has_value()) << "a completion runs after Send() has returned";
    return outcome;
  }
  bool AwaitRequests(size_t count) {
    return executor_.RunUntilPosted([&] { return requests_.size() == count; }, kRealTimeMax);
  }
  Status Await(const Outcome& outcome) {
    EXPECT_TRUE(executor_.RunUntilPosted([&] { return outcome->has_value(); }, kRealTimeMax));
    return outcome->has_value() ? (*outcome)->status() : Unavailable("no outcome");
  }

  ManualExecutor executor_;
  int port_ = 0;
  std::vector<wire::Request> requests_;
  std::vector<ReplyFunction> replies_;
  std::unique_ptr<PeerGrpcService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<GrpcMessenger> messenger_;
};

TEST_F(PeerGrpcTest, TheReplyIsTheRoutersWord) {
  StartServer();
  const Outcome outcome = Send("n2");
  ASSERT_TRUE(AwaitRequests(1));
  EXPECT_EQ(requests_[0].header().job(), "job");
  EXPECT_TRUE(requests_[0].has_report_fence());
  wire::Reply reply;
  reply.mutable_new_attempt()->set_uuid("u");
  replies_[0](reply);
  ASSERT_TRUE(Await(outcome).ok());
  EXPECT_EQ((**outcome)->new_attempt().uuid(), "u");
}

TEST_F(PeerGrpcTest, AnErrorArrivesAsThatError) {
  StartServer();
  const Outcome outcome = Send("n2");
  ASSERT_TRUE(AwaitRequests(1));
  replies_[0](Stale("another incarnation"));
  const Status status = Await(outcome);
  EXPECT_EQ(status.code(), StatusCode::kStale);
  EXPECT_EQ(status.message(), "another incarnation");
}

TEST_F(PeerGrpcTest, AnswersComeInAnyOrder) {
  StartServer();
  std::vector<Outcome> outcomes;
  for (int i = 0; i < 8; ++i) outcomes.push_back(Send("n2"));
  ASSERT_TRUE(AwaitRequests(8));
  for (size_t i = replies_.size(); i-- > 0;) replies_[i](wire::Reply());
  for (const Outcome& outcome : outcomes) EXPECT_TRUE(Await(outcome).ok());
}

TEST_F(PeerGrpcTest, ALargeMessageFitsAndATooLargeOneIsNoSpace) {
  StartServer();
  const Outcome fits = Send("n2", kPatience, 8 * 1024 * 1024);
  ASSERT_TRUE(AwaitRequests(1));
  replies_[0](wire::Reply());
  EXPECT_TRUE(Await(fits).ok());
  const Outcome too_large = Send("n2", kPatience, kPeerMessageBytesMax + 1);
  EXPECT_EQ(Await(too_large).code(), StatusCode::kNoSpace);
}

TEST_F(PeerGrpcTest, WithoutAnAnswerTheDeadlineEndsTheCall) {
  StartServer();
  const Outcome outcome = Send("n2", 100ms);
  const Status status = Await(outcome);
  EXPECT_EQ(status.code(), StatusCode::kDeadline);
  EXPECT_THAT(status.message(), HasSubstr("n2"));
  // The router's answer, later, goes nowhere.
  if (AwaitRequests(1)) replies_[0](wire::Reply());
  executor_.RunUntilIdle();
}

TEST_F(PeerGrpcTest, ADeadlineThatIsPastEndsTheCall) {
  StartServer();
  EXPECT_EQ(Await(Send("n2", -1s)).code(), StatusCode::kDeadline);
}

TEST_F(PeerGrpcTest, WhoIsNoMemberIsUnavailable) {
  const Status status = Await(Send("n9"));
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("n9"));
}

TEST_F(PeerGrpcTest, APeerThatIsGoneIsUnavailableAndIsFoundAgain) {
  StartServer();
  const Outcome first = Send("n2");
  ASSERT_TRUE(AwaitRequests(1));
  replies_[0](wire::Reply());
  ASSERT_TRUE(Await(first).ok());
  StopServer();
  const Status gone = Await(Send("n2"));
  EXPECT_EQ(gone.code(), StatusCode::kUnavailable);
  EXPECT_THAT(gone.message(), HasSubstr("127.0.0.1:" + std::to_string(port_)));
  StartServer();
  Status back = Unavailable("not tried");
  // Each failure is a try; the channel connects again in its own time.
  for (int tries = 0; !back.ok() && tries < 10'000; ++tries) {
    const Outcome again = Send("n2");
    ASSERT_TRUE(executor_.RunUntilPosted(
        [&] { return again->has_value() || requests_.size() == 2; }, kRealTimeMax));
    if (!again->has_value()) replies_[1](wire::Reply());
    back = Await(again);
  }
  EXPECT_TRUE(back.ok()) << back;
}

TEST_F(PeerGrpcTest, FailPendingEndsWhatWaitsAndRefusesWhatComes) {
  StartServer();
  const Outcome waits = Send("n2");
  ASSERT_TRUE(AwaitRequests(1));
  service_->FailPending();
  EXPECT_EQ(Await(waits).code(), StatusCode::kUnavailable);
  replies_[0](wire::Reply());  // Too late: dropped.
  EXPECT_EQ(Await(Send("n2")).code(), StatusCode::kUnavailable);
  EXPECT_EQ(requests_.size(), 1u);
}

// A request that was taken from gRPC and not handled yet is not handled after FailPending().
TEST_F(PeerGrpcTest, FailPendingAlsoEndsWhatIsOnItsWayToTheRouter) {
  StartServer();
  const Outcome waits = Send("n2");
  ASSERT_TRUE(
      executor_.RunUntilPosted([&] { return executor_.pending_count() > 0; }, kRealTimeMax));
  service_->FailPending();
  EXPECT_EQ(Await(waits).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(requests_.empty());
}

TEST_F(PeerGrpcTest, TheMessengerEndsWithCallsInFlight) {
  StartServer();
  std::vector<Outcome> outcomes;
  for (int i = 0; i < 16; ++i) outcomes.push_back(Send("n2"));
  ASSERT_TRUE(AwaitRequests(16));
  messenger_.reset();
  for (const ReplyFunction& reply : replies_) reply(wire::Reply());
  executor_.RunUntilIdle();
  for (const Outcome& outcome : outcomes) EXPECT_FALSE(outcome->has_value());
}

// Attack: the answer is there, posted to the executor, when the messenger and its owner end.
TEST_F(PeerGrpcTest, AnAnswerThatHasNotRunWhenTheMessengerEndsNeverRuns) {
  StartServer();
  const Outcome answered = Send("n2");
  ASSERT_TRUE(AwaitRequests(1));
  replies_[0](wire::Reply());
  ASSERT_TRUE(
      executor_.RunUntilPosted([&] { return executor_.pending_count() > 0; }, kRealTimeMax));
  const Outcome refused = Send("n9");
  messenger_.reset();
  executor_.RunUntilIdle();
  EXPECT_FALSE(answered->has_value());
  EXPECT_FALSE(refused->has_value());
}

}  // namespace
}  // namespace backstay::replication
