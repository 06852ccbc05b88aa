#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/unit/client/client_fixture.h"

namespace backstay::tests {
namespace {

using testing::HasSubstr;

// Entries of a directory of /proc/self: open descriptors, threads.
size_t CountOf(const char* path) {
  const auto entries = std::filesystem::directory_iterator(path);
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

class FailureTest : public ClientTest {
 protected:
  std::vector<float> data_ = Numbers(5000);
};

TEST_F(FailureTest, ASealedSaveSurvivesAServiceThatComesBackWithItsMemory) {
  service_.AutoProtect(false);
  Result<Save> save = client_->Begin(1, kLongMs);
  ASSERT_OK(save.status());
  ASSERT_OK(save->AddTensor(Contiguous("w", data_)));
  ASSERT_OK(save->StartCopy(1));
  ASSERT_OK(save->WaitSealed(kLongMs));
  service_.Stop();
  ASSERT_TRUE(WaitEvent(BACKSTAY_EVENT_SERVICE_LOST).has_value());
  EXPECT_CODE(save->WaitCommitted(kLongMs), Code::kUnavailable);  // At once, not at the deadline.
  EXPECT_CODE(client_->Begin(2, kLongMs).status(), Code::kUnavailable);
  EXPECT_FALSE(client_->Info()->connected);
  service_.Start(/*keep_state=*/true);
  const std::optional<Event> back = WaitEvent(BACKSTAY_EVENT_SERVICE_BACK);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->code, BACKSTAY_OK);
  ASSERT_TRUE(service_.WaitFor(ClientBody::kQuerySnapshot, 1));
  ASSERT_OK(client_->NewestCommitted().status());  // The query's answer came before this one's.
  ASSERT_OK(save->WaitCommitted(kLongMs));
  service_.AutoProtect(true);
  SaveAndCommit(2, 5000, 1);  // With new mappings.
  EXPECT_EQ(service_.Received(ClientBody::kRegister).size(), 2u);
}

// Attack: "there is no socket" taken for "there is no snapshot".
TEST_F(FailureTest, AServiceThatIsAwayIsNeverTakenForNothingThere) {
  SaveAndCommit(1, 5000, 0);
  service_.Stop();
  ASSERT_TRUE(WaitEvent(BACKSTAY_EVENT_SERVICE_LOST).has_value());
  EXPECT_CODE(client_->NewestCommitted(1).status(), Code::kUnavailable);
  EXPECT_CODE(client_->NewAttempt(1).status(), Code::kUnavailable);
}

TEST_F(FailureTest, ASealedSaveWaitsForAServiceThatRefusesToRegisterAgain) {
  service_.AutoProtect(false);
  Result<Save> save = client_->Begin(1, kLongMs);
  ASSERT_OK(save.status());
  ASSERT_OK(save->AddTensor(Contiguous("w", data_)));
  ASSERT_OK(save->StartCopy(1));
  ASSERT_OK(save->WaitSealed(kLongMs));
  service_.Stop();
  ASSERT_TRUE(WaitEvent(BACKSTAY_EVENT_SERVICE_LOST).has_value());
  service_.Play(ClientBody::kRegister, FakeService::Trick::kRefuse);
  service_.Play(ClientBody::kQuerySnapshot, FakeService::Trick::kRefuse);
  service_.Start(/*keep_state=*/true);
  ASSERT_TRUE(WaitEvent(BACKSTAY_EVENT_SERVICE_BACK).has_value());
  ASSERT_OK(client_->NewestCommitted().status());  // After the query's refusal.
  EXPECT_CODE(save->WaitCommitted(kLongMs), Code::kUnavailable);
  ASSERT_OK(Register(1 << 20));
  ASSERT_OK(client_->NewestCommitted().status());
  ASSERT_OK(save->WaitCommitted(kLongMs));
}

TEST_F(FailureTest, AnUnsealedSaveFailsWhenTheServiceGoes) {
  Result<Save> save = client_->Begin(1, kLongMs);
  ASSERT_OK(save.status());
  ASSERT_OK(save->AddTensor(Contiguous("w", data_)));
  service_.Stop();
  ASSERT_TRUE(WaitEvent(BACKSTAY_EVENT_SERVICE_LOST).has_value());
  EXPECT_CODE(save->StartCopy(1), Code::kUnavailable);
  EXPECT_CODE(save->WaitCopied(kLongMs), Code::kUnavailable);
  EXPECT_CODE(save->WaitCommitted(kLongMs), Code::kUnavailable);
  service_.Start(/*keep_state=*/false);
  ASSERT_TRUE(WaitEvent(BACKSTAY_EVENT_SERVICE_BACK).has_value());
  ASSERT_OK(save->Abandon());
  SaveAndCommit(2, 5000, 1);
  // The dead service's slot number is not spoken of to the new one.
  EXPECT_EQ(service_.Received(ClientBody::kAbandon).size(), 0u);
}

// Attack: the service has started again and counts its slots and their uses from the beginning; the
// trainer still has the handle of a save from before, in a later use of the slot of that number.
// The new save was taken for an older one, failed, and held its slot at the service for ever.
TEST_F(FailureTest, HandlesFromBeforeAServicesStartSayNothingOfItsSlots) {
  std::optional<Save> committed;
  for (uint64_t step = 1; step < 10; ++step) {
    Result<Save> save = client_->Begin(step, kLongMs);
    ASSERT_OK(save.status());
    ASSERT_OK(save->AddTensor(Contiguous("w", data_)));
    ASSERT_OK(save->StartCopy(1));
    ASSERT_OK(save->WaitCommitted(kLongMs));
    committed.emplace(std::move(*save));
  }
  service_.Stop();
  ASSERT_TRUE(WaitEvent(BACKSTAY_EVENT_SERVICE_LOST).has_value());
  service_.Start(/*keep_state=*/false);
  ASSERT_TRUE(WaitEvent(BACKSTAY_EVENT_SERVICE_BACK).has_value());
  for (uint64_t step = 10; step < 13; ++step) SaveAndCommit(step, 5000, 1);
  EXPECT_EQ(service_.filling_slots(), 0u);
}

TEST_F(FailureTest, TheServiceThatComesBackHearsWhatWasNotSaved) {
  Result<Save> save = client_->Begin(1, kLongMs);
  ASSERT_OK(save.status());
  const auto newest_missed = [&]() -> std::optional<uint64_t> {
    const auto claim = service_.Received(ClientBody::kRegister).back().register_();
    return claim.has_missed_step() ? std::optional(claim.missed_step()) : std::nullopt;
  };
  EXPECT_EQ(newest_missed(), std::nullopt);
  service_.Stop();
  ASSERT_TRUE(WaitEvent(BACKSTAY_EVENT_SERVICE_LOST).has_value());
  service_.Start(/*keep_state=*/false);
  ASSERT_TRUE(WaitEvent(BACKSTAY_EVENT_SERVICE_BACK).has_value());
  EXPECT_EQ(newest_missed(), 1u) << "it had begun and was lost";

  service_.Stop();
  ASSERT_TRUE(WaitEvent(BACKSTAY_EVENT_SERVICE_LOST).has_value());
  EXPECT_CODE(client_->Begin(7, kLongMs).status(), Code::kUnavailable);
  service_.Start(/*keep_state=*/false);
  ASSERT_TRUE(WaitEvent(BACKSTAY_EVENT_SERVICE_BACK).has_value());
  EXPECT_EQ(newest_missed(), 7u) << "it was never begun";

  service_.Stop();
  ASSERT_TRUE(WaitEvent(BACKSTAY_EVENT_SERVICE_LOST).has_value());
  service_.Start(/*keep_state=*/false);
  ASSERT_TRUE(WaitEvent(BACKSTAY_EVENT_SERVICE_BACK).has_value());
  EXPECT_EQ(newest_missed(), std::nullopt) << "told before";

  service_.AutoProtect(false);
  Result<Save> sealed = client_->Begin(8, kLongMs);
  ASSERT_OK(sealed.status());
  ASSERT_OK(sealed->StartCopy(1));
  ASSERT_OK(sealed->WaitSealed(kLongMs));
  service_.Stop();
  ASSERT_TRUE(WaitEvent(BACKSTAY_EVENT_SERVICE_LOST).has_value());
  service_.Start(/*keep_state=*/false);
  ASSERT_TRUE(WaitEvent(BACKSTAY_EVENT_SERVICE_BACK).has_value());
  EXPECT_EQ(newest_missed(), 8u) << "what was sealed went with the service's memory";
}

TEST_F(FailureTest, AServiceThatComesBackEmptyMakesASealedSaveUnknown) {
  service_.AutoProtect(false);
  Result<Save> save = client_->Begin(1, kLongMs);
  ASSERT_OK(save.status());
  ASSERT_OK(save->StartCopy(1));
  ASSERT_OK(save->WaitSealed(kLongMs));
  service_.Stop();
  service_.Start(/*keep_state=*/false);
  ASSERT_TRUE(WaitEvent(BACKSTAY_EVENT_SERVICE_BACK).has_value());
  ASSERT_EQ(client_->NewestCommitted().status().code(), Code::kNotFound);
  EXPECT_CODE(save->WaitCommitted(kLongMs), Code::kUnknownOutcome);
}

// Goal:   a service that dies at any message leaves a clear error and a client that works again.
// Method: the service hangs up, or sends garbage, on each kind of message in turn.
TEST_F(FailureTest, DyingAtEachMessage) {
  SaveAndCommit(1, 5000, 0);
  uint64_t step = 2;
  for (const Trick trick : {Trick::kDie, Trick::kGarbage, Trick::kOversized}) {
    for (const ClientBody body :
         {ClientBody::kBegin, ClientBody::kStartCopy, ClientBody::kSeal, ClientBody::kResize,
          ClientBody::kNewAttempt, ClientBody::kReconfigure, ClientBody::kFetch,
          ClientBody::kFinishRestore, ClientBody::kSnapshotIndex, ClientBody::kNewestCommitted,
          ClientBody::kQuerySnapshot, ClientBody::kFetchChunks, ClientBody::kRegister}) {
      SCOPED_TRACE(testing::Message() << "trick " << static_cast<int>(trick) << " on " << body);
      service_.Play(body, trick);
      int errors = 0;
      const auto note = [&](const Status& status) {
        if (status.ok()) return;
        ++errors;
        EXPECT_THAT(status.code(), testing::AnyOf(Code::kUnavailable, Code::kUnknownOutcome))
            << status.ToString();
      };
      if (body == ClientBody::kRegister) note(Register(1 << 20));
      note(client_->Resize(1 << 20, kLongMs));
      if (Result<Save> save = client_->Begin(step++, kLongMs); save.ok()) {
        note(save->AddTensor(Contiguous("w", data_)));
        note(save->StartCopy(2));
        note(save->WaitCommitted(kLongMs));
      } else {
        note(save.status());
      }
      note(client_->NewAttempt(kLongMs).status());
      note(client_->SnapshotIndex({}, {}, kLongMs).status());
      std::vector<float> read(5000);
      ReadOptions options;
      options.timeout_ms = kLongMs;
      note(client_->ReadRange({}, "0", "w", 0, 5000, MemoryOf<float>(read), options));
      DecideOptions decide = Client::DefaultDecideOptions();
      decide.uuid = "u";
      decide.world_size = 1;
      note(client_
               ->Restore(decide,
                         [&](const Decision&, Shard& shard) {
                           return shard.Read("w", MemoryOf<float>(read));
                         })
               .status());
      if (body == ClientBody::kQuerySnapshot) {
        uint32_t state = 0;
        note({});
        service_.Stop();
        service_.Start(true);
        static_cast<void>(state);
      } else {
        EXPECT_GE(errors, 1);
      }
      ASSERT_TRUE(WaitEvent(BACKSTAY_EVENT_SERVICE_BACK).has_value());
      while (client_->NextEvent()) {
      }
      SaveAndCommit(step++, 5000, 0);
    }
  }
}

TEST_F(FailureTest, AServiceThatDoesNotAnswerMeetsDeadlines) {
  for (const ClientBody body : {ClientBody::kBegin, ClientBody::kNewAttempt, ClientBody::kResize})
    service_.Play(body, Trick::kIgnore);
  EXPECT_CODE(client_->Begin(1, 1).status(), Code::kDeadline);
  EXPECT_CODE(client_->NewAttempt(1).status(), Code::kDeadline);
  EXPECT_CODE(client_->Resize(4096, 1), Code::kDeadline);
  SaveAndCommit(2, 100, 0);
  service_.Play(ClientBody::kSeal, Trick::kIgnore);
  Result<Save> save = client_->Begin(3, kLongMs);
  ASSERT_OK(save.status());
  ASSERT_OK(save->StartCopy(1));
  ASSERT_OK(save->WaitCopied(kLongMs));
  EXPECT_CODE(save->WaitSealed(1), Code::kDeadline);
  EXPECT_CODE(save->WaitCommitted(0), Code::kDeadline);
}

TEST_F(FailureTest, AnotherProtocolVersionIsRefusedWithBoth) {
  service_.SetProtocolVersion(9);
  Result<Client> other = Client::Connect(service_.socket_path(), 50);
  // The first client holds the fake's one connection: it goes, then the other is served.
  client_.reset();
  other = Client::Connect(service_.socket_path(), kLongMs);
  EXPECT_EQ(other.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(other.status().message(), HasSubstr("protocol version 9"));
  EXPECT_THAT(other.status().message(), HasSubstr("this library speaks version "));
}

TEST_F(FailureTest, AServiceThatHangsUpSaysWhy) {
  service_.Play(ClientBody::kNewestCommitted, FakeService::Trick::kHangUp);
  const Status status = client_->NewestCommitted().status();
  EXPECT_CODE(status, Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("the test hangs up"));
  ASSERT_TRUE(WaitEvent(BACKSTAY_EVENT_SERVICE_BACK).has_value());
  ASSERT_OK(client_->Begin(1, kLongMs).status());
}

TEST_F(FailureTest, AConnectWithoutAServiceNamesTheSocket) {
  Result<Client> none = Client::Connect("/tmp/backstay-no-such-socket", 30);
  EXPECT_EQ(none.status().code(), Code::kNotFound);
  EXPECT_THAT(none.status().message(), HasSubstr("/tmp/backstay-no-such-socket"));
  EXPECT_CODE(Client::Connect(std::string(200, 'x'), 30).status(), Code::kInvalidArgument);
}

TEST_F(FailureTest, ClosingWhileSavesAndShardsAreOpenIsSafe) {
  SaveAndCommit(1, 5000, 0);
  Result<Save> save = client_->Begin(2, kLongMs);
  ASSERT_OK(save.status());
  Result<Shard> shard = client_->OpenShard({});
  ASSERT_OK(shard.status());
  client_.reset();
  EXPECT_CODE(save->StartCopy(1), Code::kUnavailable);
  std::vector<float> read(5000);
  EXPECT_CODE(shard->Read("w", MemoryOf<float>(read)), Code::kUnavailable);
}

TEST_F(FailureTest, NothingLeaksOverManyConnections) {
  client_.reset();
  size_t descriptors = 0;
  for (int round = 0; round < 20; ++round) {
    SetUp();
    SaveAndCommit(static_cast<uint64_t>(round + 1), 3000, 0);
    ASSERT_OK(client_->OpenShard({}).status());
    client_.reset();
    if (round == 0) descriptors = CountOf("/proc/self/fd");
  }
  // The fake's side of a connection may be open a moment longer, and it keeps two slots.
  EXPECT_LE(CountOf("/proc/self/fd"), descriptors + 8);
}

}  // namespace
}  // namespace backstay::tests
