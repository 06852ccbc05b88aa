#include "replication/peer_router.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "replication/wire_convert.h"

namespace backstay::replication {
namespace {

class PeerRouterTest : public ::testing::Test {
 protected:
  PeerRouterTest() : router_(StoreId("store")) {
    router_.SetSelf({NodeId("self"), Incarnation(3)});
    router_.Handle(wire::Request::kJobState,
                   [](const wire::Request&, ReplyFunction reply) { reply(wire::Reply()); });
    router_.Handle(wire::Request::kOffer,
                   [](const wire::Request&, ReplyFunction reply) { reply(wire::Reply()); });
    router_.Handle(wire::Request::kOpenShard,
                   [](const wire::Request&, ReplyFunction reply) { reply(wire::Reply()); });
  }
  static wire::Request State(uint64_t generation, uint64_t term) {
    wire::Request request;
    wire::Header& header = *request.mutable_header();
    header.set_store_id("store");
    *header.mutable_from() = ToWire(NodeInstance{NodeId("peer"), Incarnation(5)});
    header.set_job("job");
    header.set_generation(generation);
    header.set_term(term);
    request.mutable_job_state();
    return request;
  }
  StatusCode Send(const wire::Request& request) {
    std::optional<StatusCode> code;
    router_.OnRequest(request, [&](const Result<wire::Reply>& r) { code = r.status().code(); });
    return code.value();
  }

  PeerRouter router_;
};

TEST_F(PeerRouterTest, FencesThePast) {
  EXPECT_EQ(Send(State(2, 10)), StatusCode::kOk);
  EXPECT_EQ(router_.fence(JobName("job")).generation, Generation(2));
  EXPECT_EQ(Send(State(1, 11)), StatusCode::kStale);
  EXPECT_EQ(Send(State(2, 9)), StatusCode::kStale);
  EXPECT_EQ(Send(State(2, 10)), StatusCode::kOk);
  wire::Request offer = State(1, 0);
  offer.mutable_offer();
  EXPECT_EQ(Send(offer), StatusCode::kStale);
  // Reading is never fenced: old bytes are restored in new generations.
  wire::Request open = State(1, 0);
  open.mutable_open_shard();
  EXPECT_EQ(Send(open), StatusCode::kOk);
}

TEST_F(PeerRouterTest, ARefusedMessageRaisesNothing) {
  wire::Request other = State(7, 7);
  other.mutable_header()->set_store_id("another");
  EXPECT_EQ(Send(other), StatusCode::kStale);
  EXPECT_EQ(router_.fence(JobName("job")).generation, Generation(0));
}

TEST_F(PeerRouterTest, KnowsIncarnations) {
  wire::Request request = State(1, 1);
  *request.mutable_header()->mutable_to() = ToWire(NodeInstance{NodeId("self"), Incarnation(2)});
  EXPECT_EQ(Send(request), StatusCode::kStale);
  *request.mutable_header()->mutable_to() = ToWire(NodeInstance{NodeId("self"), Incarnation(3)});
  EXPECT_EQ(Send(request), StatusCode::kOk);
  request.mutable_header()->mutable_from()->set_incarnation(4);
  EXPECT_EQ(Send(request), StatusCode::kStale);
  router_.ClearSelf();
  EXPECT_EQ(Send(State(1, 1)), StatusCode::kUnavailable);
}

// Its sender would wait for the whole of its deadline.
TEST_F(PeerRouterTest, AnswersForAHandlerThatGoesAway) {
  ReplyFunction kept;
  router_.Handle(wire::Request::kJobState,
                 [&](const wire::Request&, ReplyFunction reply) { kept = std::move(reply); });
  std::vector<StatusCode> answers;
  const auto note = [&](const Result<wire::Reply>& r) { answers.push_back(r.status().code()); };
  router_.OnRequest(State(1, 1), note);
  EXPECT_TRUE(answers.empty());
  kept = nullptr;
  EXPECT_EQ(answers, std::vector{StatusCode::kUnavailable});
  router_.OnRequest(State(1, 1), note);
  kept(wire::Reply());
  kept = nullptr;
  EXPECT_EQ(answers, (std::vector{StatusCode::kUnavailable, StatusCode::kOk}));
}

TEST_F(PeerRouterTest, RefusesWhatItDoesNotKnow) {
  wire::Request request = State(1, 1);
  request.mutable_end_job();
  EXPECT_EQ(Send(request), StatusCode::kInvalidArgument);
  request.mutable_header()->set_job(std::string(kNameBytesMax + 1, 'x'));
  EXPECT_EQ(Send(request), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace backstay::replication
