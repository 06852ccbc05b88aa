// What the service's end of the local protocol does with trainers that are new, broken, slow, gone
// or too many. The protocol itself: docs/formats/local_protocol.md.

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "client/limits.h"
#include "tests/unit/tools/session_fixture.h"

namespace backstay::tools::testing {
namespace {

using ::testing::HasSubstr;

wire::ClientFrame BeginFrame(uint64_t request, uint64_t step) {
  wire::ClientFrame frame;
  frame.set_request(request);
  frame.mutable_begin()->set_step(step);
  return frame;
}

wire::ClientFrame IndexFrame(uint64_t request) {
  wire::ClientFrame frame;
  frame.set_request(request);
  frame.mutable_snapshot_index();
  return frame;
}

// The service's last word, and then the end.
void ExpectFarewell(RawClient& client, StatusCode code, const std::string& text) {
  const std::optional<Answer> last = client.Receive();
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(last->frame.request(), 0u);
  EXPECT_EQ(last->code(), code) << last->frame.DebugString();
  EXPECT_THAT(last->frame.status().message(), HasSubstr(text));
  EXPECT_FALSE(client.Receive().has_value());
}

void ExpectRefusedFrame(RawClient& client, size_t size_bytes) {
  const uint32_t length = static_cast<uint32_t>(size_bytes);
  client.SendBytes({reinterpret_cast<const char*>(&length), sizeof length});
  ExpectFarewell(client, StatusCode::kInvalidArgument, std::to_string(length));
}

// ---- Frames -------------------------------------------------------------------------------------

TEST_F(SessionTest, HelloTellsTheNode) {
  RawClient client = Connected();
  client.Send(RawClient::Hello());
  const std::optional<Answer> welcome = client.Receive();
  ASSERT_TRUE(welcome.has_value());
  EXPECT_EQ(welcome->frame.request(), 1u);
  const wire::HelloReply& hello = welcome->frame.hello();
  EXPECT_EQ(hello.protocol_version(), client::kLocalProtocolVersion);
  EXPECT_EQ(hello.node_id(), "n1");
  EXPECT_EQ(hello.incarnation(), 3u);
  EXPECT_EQ(hello.chunk_bytes(), 4096u);
  EXPECT_EQ(hello.service_version(), "test");
}

TEST_F(SessionTest, NothingIsServedBeforeHello) {
  RawClient client = Connected();
  client.Send(BeginFrame(1, 10));
  ExpectFarewell(client, StatusCode::kInvalidArgument, "Hello");
  ASSERT_TRUE(port_.WaitFor([](const FakePort& port) { return port.ConnectedCount() == 0; }));
  EXPECT_TRUE(port_.trainers()[0].calls.empty());
}

TEST_F(SessionTest, AnotherVersionIsRefusedWithBothAndNotServed) {
  RawClient client = Connected();
  client.Send(RawClient::Hello(9));
  const std::optional<Answer> refused = client.Receive();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->frame.request(), 1u);
  EXPECT_EQ(refused->code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused->frame.status().message(), HasSubstr("version 9"));
  EXPECT_THAT(refused->frame.status().message(),
              HasSubstr("version " + std::to_string(client::kLocalProtocolVersion)));
  client.Send(BeginFrame(2, 10));
  ExpectFarewell(client, StatusCode::kInvalidArgument, "Hello");
}

TEST_F(SessionTest, BytesThatAreNoFrameEndTheConnection) {
  RawClient client = Greeted();
  client.SendBytes(std::string("\x03\x00\x00\x00\xff\xff\xff", 7));
  ExpectFarewell(client, StatusCode::kInvalidArgument, "no ClientFrame");
}

TEST_F(SessionTest, AnEmptyFrameBeforeHelloEndsTheConnection) {
  RawClient client = Connected();
  client.SendBytes(std::string(4, '\0'));
  ExpectFarewell(client, StatusCode::kInvalidArgument, "Hello");
}

TEST_F(SessionTest, AFrameOverTheLimitEndsTheConnectionBeforeItsBytesCome) {
  RawClient client = Claimed();
  ExpectRefusedFrame(client, client::kFrameBytesMax + 1);
}

// Anybody may connect: memory is for those whom the service knows.
TEST_F(SessionTest, BeforeHelloAFrameIsSmall) {
  RawClient client = Connected();
  ExpectRefusedFrame(client, client::kHelloFrameBytesMax + 1);
}

TEST_F(SessionTest, BeforeAClaimAFrameIsSmall) {
  RawClient client = Greeted();
  ExpectRefusedFrame(client, client::kUnclaimedFrameBytesMax + 1);
}

TEST_F(SessionTest, TheLargestClaimIsTaken) {
  RawClient client = Greeted();
  wire::ClientFrame frame = RawClient::Register(2);
  frame.mutable_register_()->set_job(std::string(kNameBytesMax, 'j'));
  frame.mutable_register_()->set_token(std::string(kNameBytesMax, 't'));
  frame.mutable_register_()->set_shard_id(std::string(kNameBytesMax, 's'));
  client.Send(frame);
  EXPECT_EQ(client.Receive()->code(), StatusCode::kOk);
}

// Attack: a client that is never welcome, and does not read that it is told so.
TEST_F(SessionTest, RefusalsOfAVersionAreNotQueuedWithoutLimit) {
  RawClient client = Connected();
  const std::string hello = RawClient::Encode(RawClient::Hello(9));
  std::string many;
  while (many.size() < 16 * kMiB) many += hello;
  client.SendBytes(many);  // Blocks for ever unless the service reads on or hangs up.
  EXPECT_TRUE(port_.WaitFor([](const FakePort& port) { return port.ConnectedCount() == 0; }));
}

// The limit is the client library's own: what it sends, the service takes.
TEST_F(SessionTest, AFrameAtTheLimitIsTaken) {
  RawClient client = Claimed();
  wire::ClientFrame frame;
  frame.set_request(2);
  frame.mutable_start_copy()->set_contents(std::string(client::kFrameBytesMax - 64, 'c'));
  ASSERT_LE(frame.ByteSizeLong(), client::kFrameBytesMax);
  client.Send(frame);
  const std::optional<Answer> answer = client.Receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->frame.request(), 2u);
  EXPECT_EQ(answer->code(), StatusCode::kOk);
}

TEST_F(SessionTest, AnUnknownRequestIsRefusedAndTheConnectionGoesOn) {
  RawClient client = Greeted();
  // Request 7, and a body with field number 100 that this version does not have.
  client.SendBytes(std::string("\x05\x00\x00\x00\x08\x07\xa2\x06\x00", 9));
  const std::optional<Answer> refused = client.Receive();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->frame.request(), 7u);
  EXPECT_EQ(refused->code(), StatusCode::kInvalidArgument);
  client.Send(BeginFrame(8, 10));
  EXPECT_EQ(client.Receive()->frame.request(), 8u);
}

TEST_F(SessionTest, FramesMayComeInPiecesAndTogether) {
  RawClient client = Connected();
  for (const char byte : RawClient::Encode(RawClient::Hello())) client.SendBytes({&byte, 1});
  ASSERT_TRUE(client.Receive().has_value());
  wire::ClientFrame fence;
  fence.mutable_fence()->set_generation(4);
  fence.mutable_fence()->set_reason("x");
  client.SendBytes(RawClient::Encode(BeginFrame(2, 10)) + RawClient::Encode(fence) +
                   RawClient::Encode(IndexFrame(3)));
  EXPECT_EQ(client.Receive()->frame.request(), 2u);
  EXPECT_EQ(client.Receive()->frame.request(), 3u) << "a one-way message has no answer";
  EXPECT_TRUE(port_.WaitFor([](const FakePort& port) { return port.HasCall(0, "fence 4 x"); }));
}

// ---- Answers ------------------------------------------------------------------------------------

TEST_F(SessionTest, ErrorsAndEmptyAnswersArriveAsThey) {
  RawClient client = Greeted();
  wire::ClientFrame frame;
  frame.set_request(2);
  frame.mutable_resize()->set_size_bytes(5);
  client.Send(frame);
  std::optional<Answer> answer = client.Receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->code(), StatusCode::kNoSpace);
  EXPECT_EQ(answer->frame.status().message(), "no more memory");
  frame.set_request(3);
  frame.mutable_newest_committed();
  client.Send(frame);
  answer = client.Receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->code(), StatusCode::kOk) << "that there is none is an answer";
  EXPECT_FALSE(answer->frame.newest_committed().any());
}

TEST_F(SessionTest, ASlotsDescriptorsComeOncePerConnection) {
  RawClient client = Greeted();
  client.Send(BeginFrame(2, 10));
  std::optional<Answer> first = client.Receive();
  ASSERT_TRUE(first.has_value());
  EXPECT_TRUE(first->frame.begin().has_fds());
  EXPECT_EQ(first->fds.size(), 2u);
  client.Send(BeginFrame(3, 15));
  EXPECT_TRUE(client.Receive()->frame.begin().has_fds()) << "it may not have been able to map it";
  wire::ClientFrame start;
  start.set_request(4);
  start.mutable_start_copy()->set_slot_id(77);
  start.mutable_start_copy()->set_epoch(15);
  client.Send(start);
  EXPECT_EQ(client.Receive()->code(), StatusCode::kOk);
  client.Send(BeginFrame(5, 20));
  const std::optional<Answer> second = client.Receive();
  EXPECT_FALSE(second->frame.begin().has_fds()) << "the process has it mapped";
  EXPECT_TRUE(second->fds.empty());
  // The same slot, by its number, is the newest save in it; an earlier use is another save.
  wire::ClientFrame abandon;
  abandon.set_request(6);
  abandon.mutable_abandon()->set_slot_id(77);
  abandon.mutable_abandon()->set_epoch(15);
  client.Send(abandon);
  EXPECT_EQ(client.Receive()->code(), StatusCode::kNotFound);
  wire::ClientFrame seal;
  seal.set_request(7);
  seal.mutable_seal()->set_slot_id(77);
  seal.mutable_seal()->set_epoch(20);
  client.Send(seal);
  EXPECT_EQ(client.Receive()->frame.seal().digest(), "digest");
  EXPECT_TRUE(port_.WaitFor([](const FakePort& port) { return port.HasCall(0, "seal 20"); }));

  // A process that comes back does not know what it had mapped.
  client.Close();
  RawClient again = Greeted();
  again.Send(BeginFrame(2, 30));
  const std::optional<Answer> third = again.Receive();
  EXPECT_TRUE(third->frame.begin().has_fds());
  EXPECT_EQ(third->fds.size(), 2u);
  EXPECT_EQ(port_.trainers()[0].process, port_.trainers()[1].process);
  EXPECT_TRUE(port_.exited().empty());
}

TEST_F(SessionTest, RestoresAreHandedReadOnlyDescriptors) {
  RawClient client = Greeted();
  wire::ClientFrame fetch;
  fetch.set_request(2);
  fetch.mutable_fetch();
  client.Send(fetch);
  std::optional<Answer> answer = client.Receive();
  ASSERT_TRUE(answer.has_value());
  ASSERT_EQ(answer->fds.size(), 2u);
  for (const UniqueFd& fd : answer->fds) {
    EXPECT_EQ(::write(fd.get(), "x", 1), -1);
    EXPECT_EQ(errno, EBADF);
  }
}

TEST_F(SessionTest, ASlotThatWasNeverHandedOverNamesNoSave) {
  RawClient client = Greeted();
  wire::ClientFrame abandon;
  abandon.set_request(2);
  abandon.mutable_abandon()->set_slot_id(12345);
  client.Send(abandon);
  EXPECT_EQ(client.Receive()->code(), StatusCode::kNotFound);
}

TEST_F(SessionTest, EventsArriveWithoutBeingAskedFor) {
  RawClient client = Greeted();
  replication::TrainerEvent event;
  event.kind = replication::TrainerEvent::Kind::kSaveFailed;
  event.snapshot = {Generation(2), Step(40)};
  event.status = NoSpace("no slot");
  port_.EmitEvent(0, event);
  const std::optional<Answer> answer = client.Receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->frame.request(), 0u);
  EXPECT_EQ(answer->frame.event().kind(), wire::Event::SAVE_FAILED);
  EXPECT_EQ(answer->frame.event().snapshot().step(), 40u);
  EXPECT_EQ(answer->frame.event().status().message(), "no slot");
}

TEST_F(SessionTest, AClosedSlotIsToldToWhoHasItMappedAndSentAnewAfterwards) {
  replication::TrainerEvent event;
  event.kind = replication::TrainerEvent::Kind::kSlotClosed;
  event.slot_id = 77;
  RawClient client = Greeted();
  port_.EmitEvent(0, event);  // Not mapped: nothing to say.
  client.Send(BeginFrame(2, 10));
  std::optional<Answer> answer = client.Receive();
  ASSERT_TRUE(answer.has_value());
  ASSERT_EQ(answer->frame.begin().slot_id(), 77u);
  port_.EmitEvent(0, event);
  answer = client.Receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->frame.event().kind(), wire::Event::SLOT_CLOSED);
  EXPECT_EQ(answer->frame.event().slot_id(), 77u);
  wire::ClientFrame unmapped;
  unmapped.set_request(3);
  unmapped.mutable_slot_unmapped()->set_slot_id(77);
  client.Send(unmapped);
  EXPECT_EQ(client.Receive()->code(), StatusCode::kOk);
  EXPECT_TRUE(port_.WaitFor([](const FakePort& port) { return port.HasCall(0, "unmapped 77"); }));
  client.Send(BeginFrame(4, 20));
  EXPECT_TRUE(client.Receive()->frame.begin().has_fds()) << "it is not mapped any more";
}

TEST_F(SessionTest, AnAnswerOverTheLimitIsReplacedByAnError) {
  port_.SetManifestBytes(client::kFrameBytesMax + 1);
  RawClient client = Greeted();
  client.Send(IndexFrame(2));
  const std::optional<Answer> answer = client.Receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->frame.request(), 2u);
  EXPECT_EQ(answer->code(), StatusCode::kNoSpace);
}

// ---- Ends ---------------------------------------------------------------------------------------

TEST_F(SessionTest, AClientThatReadsNothingIsCutOff) {
  port_.SetManifestBytes(16 * kMiB);
  RawClient slow = Greeted();
  RawClient other = Greeted();
  for (uint64_t request = 2; request < 20; ++request) slow.Send(IndexFrame(request));
  ASSERT_TRUE(port_.WaitFor([](const FakePort& port) { return port.ConnectedCount() == 1; }));
  port_.SetManifestBytes(0);
  other.Send(IndexFrame(2));
  EXPECT_TRUE(other.Receive().has_value());
}

TEST_F(SessionTest, AnAnswerAfterTheEndIsDropped) {
  RawClient client = Greeted();
  wire::ClientFrame frame;
  frame.set_request(2);
  frame.mutable_new_attempt();
  client.Send(frame);
  ASSERT_TRUE(port_.WaitFor([](const FakePort& port) { return port.HasCall(0, "new_attempt"); }));
  client.Close();
  ASSERT_TRUE(port_.WaitFor([](const FakePort& port) { return port.ConnectedCount() == 0; }));
  RawClient other = Greeted();
  port_.AnswerAttempts();
  other.Send(BeginFrame(2, 10));
  EXPECT_EQ(other.Receive()->frame.request(), 2u) << "and nothing else";
}

TEST_F(SessionTest, ABrokenConnectionDoesNotTouchAnother) {
  RawClient good = Greeted();
  RawClient bad = Greeted();
  bad.SendBytes("\xff\xff\xff\xff");
  ExpectFarewell(bad, StatusCode::kInvalidArgument, "limit");
  good.Send(BeginFrame(2, 10));
  EXPECT_EQ(good.Receive()->code(), StatusCode::kOk);
  EXPECT_TRUE(port_.WaitFor([](const FakePort& port) { return port.ConnectedCount() == 1; }));
}

// Attack: a data loader that was forked from the trainer keeps the socket open after its death.
TEST_F(SessionTest, AnExitIsSeenWhileAForkedChildHoldsTheSocket) {
  int lives[2];  // Closes when the grandchild is told to go.
  ASSERT_EQ(::pipe(lives), 0);
  const std::string hello = RawClient::Encode(RawClient::Hello());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_path_.data(), socket_path_.size());
  const pid_t trainer = ::fork();
  ASSERT_GE(trainer, 0);
  if (trainer == 0) {  // Only system calls: the other threads are not here.
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    char answer[256];
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        ::write(fd, hello.data(), hello.size()) != static_cast<ssize_t>(hello.size()) ||
        ::read(fd, answer, sizeof answer) <= 0) {
      ::_exit(1);
    }
    if (::fork() == 0) {
      char byte;
      ::close(lives[1]);
      [[maybe_unused]] const ssize_t end = ::read(lives[0], &byte, 1);
      ::_exit(0);
    }
    ::_exit(0);
  }
  int exit_status = 0;
  ASSERT_EQ(::waitpid(trainer, &exit_status, 0), trainer);
  ASSERT_EQ(exit_status, 0);
  EXPECT_TRUE(port_.WaitFor([](const FakePort& port) { return port.exited().size() == 1; }));
  EXPECT_EQ(port_.exited().at(0), port_.trainers().at(0).process);
  EXPECT_FALSE(port_.trainers().at(0).connected);
  ::close(lives[0]);
  ::close(lives[1]);
}

// ---- Limits -------------------------------------------------------------------------------------

// Enough descriptors for both ends of all connections.
class ManyDescriptors {
 public:
  ManyDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit more = before_;
    more.rlim_cur = more.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &more);
  }
  ~ManyDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(SessionTest, OneConnectionTooManyIsToldSoUntilAnotherEnds) {
  const ManyDescriptors enough;
  std::vector<RawClient> clients;
  for (size_t i = 0; i < SessionServer::kSessionsMax; ++i) clients.push_back(Greeted());
  ASSERT_TRUE(port_.WaitFor(
      [](const FakePort& port) { return port.ConnectedCount() == SessionServer::kSessionsMax; }));
  RawClient refused = Connected();
  ExpectFarewell(refused, StatusCode::kNoSpace, std::to_string(SessionServer::kSessionsMax));
  clients.pop_back();
  ASSERT_TRUE(port_.WaitFor([](const FakePort& port) {
    return port.ConnectedCount() == SessionServer::kSessionsMax - 1;
  }));
  Greeted();
}

// Attack: connections that say nothing keep no trainer out, whoever holds them.
TEST_F(SessionTest, TheLongestSilentConnectionGivesWay) {
  const ManyDescriptors enough;
  RawClient trainer = Greeted();
  std::vector<RawClient> silent;
  for (size_t i = 0; i < SessionServer::kSilentSessionsMax; ++i) silent.push_back(Connected());
  RawClient another = Greeted();
  ExpectFarewell(silent[0], StatusCode::kNoSpace, "Hello");
  trainer.Send(BeginFrame(2, 10));
  EXPECT_EQ(trainer.Receive()->code(), StatusCode::kOk);
  silent[1].Greet();
  another.Send(BeginFrame(2, 10));
  EXPECT_EQ(another.Receive()->code(), StatusCode::kOk);
}

class ImpatientSessionTest : public SessionTest {
 protected:
  ImpatientSessionTest() : SessionTest(std::chrono::seconds(1)) {}
};

TEST_F(ImpatientSessionTest, AClientThatDoesNotSayHelloIsClosed) {
  RawClient greeted = Greeted();
  RawClient silent = Connected();
  RawClient half = Connected();
  half.SendBytes(RawClient::Encode(RawClient::Hello()).substr(0, 6));
  RawClient refused = Connected();
  refused.Send(RawClient::Hello(9));
  EXPECT_EQ(refused.Receive()->frame.request(), 1u);
  ExpectFarewell(silent, StatusCode::kDeadline, "Hello");
  ExpectFarewell(half, StatusCode::kDeadline, "Hello");
  ExpectFarewell(refused, StatusCode::kDeadline, "Hello");
  greeted.Send(BeginFrame(2, 10));  // Whoever has said Hello may take its time.
  EXPECT_EQ(greeted.Receive()->code(), StatusCode::kOk);
}

TEST_F(SessionTest, WithoutDescriptorsAConnectionWaits) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 128;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  RawClient client = Connected();
  client.Greet();
  std::vector<UniqueFd> used;
  for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) used.emplace_back(fd);
  used.pop_back();  // For the client's end.
  RawClient waiting = Connected();
  client.Send(BeginFrame(2, 10));  // Whoever is connected is served meanwhile: its reply is a sign
  EXPECT_TRUE(client.Receive().has_value());  // that the server has met the new connection.
  used.clear();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  waiting.Greet();
}

TEST_F(SessionTest, ASecondServiceOnThePathIsRefused) {
  SessionServer::Options options;
  options.socket_path = socket_path_;
  EventLoop other;
  const auto second = SessionServer::Listen(other, port_, options);
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr(socket_path_));
}

}  // namespace
}  // namespace backstay::tools::testing
