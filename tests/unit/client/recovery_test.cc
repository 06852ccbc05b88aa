#include <thread>

#include "tests/unit/client/client_fixture.h"

namespace backstay::tests {
namespace {

class RecoveryTest : public ClientTest {
 protected:
  ReadState ReadInto(std::vector<float>* state, std::vector<uint64_t>* steps) {
    return [state, steps](const Decision& decision, Shard& shard) {
      steps->push_back(decision.base_step);
      return shard.Read("w", MemoryOf<float>(*state));
    };
  }
  static Result<std::string> Alone(const std::string& token) { return token; }
};

TEST_F(RecoveryTest, AFirstStartIsFresh) {
  RecoverySession session(*client_, {});
  Result<Restored> restored = session.OnReconfigured(
      0, 1, &Alone, [](const Decision&, Shard&) { return Status(Code::kCorrupt, "not called"); });
  ASSERT_OK(restored.status());
  EXPECT_TRUE(restored->decision.fresh);
  EXPECT_EQ(client_->Info()->generation, 2u);
}

TEST_F(RecoveryTest, FencesThenRestoresAndResumes) {
  SaveAndCommit(10, 100, 1);
  RecoverySession session(*client_, {});
  session.OnFault("allreduce failed");
  EXPECT_TRUE(session.faulted());
  ASSERT_TRUE(service_.WaitFor(ClientBody::kFence, 1));
  EXPECT_EQ(service_.Received(ClientBody::kFence)[0].fence().generation(), 1u);
  EXPECT_EQ(service_.Received(ClientBody::kFence)[0].fence().reason(), "allreduce failed");
  std::vector<float> state(100);
  std::vector<uint64_t> steps;
  Result<Restored> restored = session.OnReconfigured(0, 1, &Alone, ReadInto(&state, &steps));
  ASSERT_OK(restored.status());
  EXPECT_FALSE(session.faulted());
  EXPECT_EQ(restored->decision.base_step, 10u);
  EXPECT_TRUE(restored->local);
  EXPECT_EQ(restored->bytes, 448u);
  EXPECT_EQ(state, Numbers(100, 1));
  EXPECT_EQ(service_.Received(ClientBody::kReconfigure)[0].reconfigure().old_generation(), 1u);
  SaveAndCommit(11, 100, 2);  // In the new generation.
}

TEST_F(RecoveryTest, AnErrorOfReadingMovesAllRanksToAnOlderSnapshot) {
  SaveAndCommit(10, 100, 1);
  SaveAndCommit(20, 100, 1000);
  RecoverySession session(*client_, {});
  int calls = 0;
  std::vector<float> state(100);
  Result<Restored> restored =
      session.OnReconfigured(0, 1, &Alone, [&](const Decision&, Shard& shard) {
        if (++calls == 1) return Status(Code::kCorrupt, "bad everywhere");
        return shard.Read("w", MemoryOf<float>(state));
      });
  ASSERT_OK(restored.status());
  EXPECT_EQ(restored->decision.base_step, 10u);
  EXPECT_EQ(restored->decision.attempt, 2u);
  EXPECT_EQ(state, Numbers(100, 1));
  const auto finished = service_.Received(ClientBody::kFinishRestore);
  ASSERT_EQ(finished.size(), 2u);
  EXPECT_FALSE(finished[0].finish_restore().ok());
  EXPECT_EQ(finished[0].finish_restore().error(), "bad everywhere");
  EXPECT_TRUE(finished[1].finish_restore().ok());
}

TEST_F(RecoveryTest, AnotherRanksErrorReadsAgain) {
  SaveAndCommit(10, 100, 1);
  service_.SetNextAttempts(2);
  RecoverySession session(*client_, {});
  std::vector<float> state(100);
  std::vector<uint64_t> steps;
  ASSERT_OK(session.OnReconfigured(0, 1, &Alone, ReadInto(&state, &steps)).status());
  EXPECT_EQ(steps.size(), 3u);
}

TEST_F(RecoveryTest, AttemptsAreBounded) {
  SaveAndCommit(10, 100, 1);
  service_.SetNextAttempts(1000);
  RecoverySession session(*client_, {});
  std::vector<float> state(100);
  std::vector<uint64_t> steps;
  EXPECT_CODE(session.OnReconfigured(0, 1, &Alone, ReadInto(&state, &steps)).status(),
              Code::kUnavailable);
}

TEST_F(RecoveryTest, ARankThatComesBackUnderAnotherNumberTakesThatShard) {
  RegisterOptions options = Client::DefaultRegisterOptions();
  options.job = "job";
  options.token = "secret";
  options.world_size = 2;
  options.size_bytes = 1 << 20;
  ASSERT_OK(client_->Register(options).status());
  SaveAndCommit(10, 100, 1);
  RecoverySession session(*client_, {});
  std::vector<float> state(100);
  std::vector<uint64_t> steps;
  ASSERT_OK(session.OnReconfigured(0, 2, &Alone, ReadInto(&state, &steps)).status());
  const auto token = [](const std::string&) { return Result<std::string>(std::string("shared")); };
  // This service has shard 0 alone: its bytes are not taken for shard 1's, and nothing resumes.
  EXPECT_FALSE(session.OnReconfigured(1, 2, token, ReadInto(&state, &steps)).ok());
  EXPECT_EQ(steps.size(), 1u);
  const auto requests = service_.Received(ClientBody::kReconfigure);
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[1].reconfigure().uuid(), "shared");
  EXPECT_EQ(requests[1].reconfigure().shard_id(), "1");
  EXPECT_TRUE(requests[1].reconfigure().has_old_rank());
  EXPECT_EQ(requests[1].reconfigure().old_rank(), 0u);
  // It saves as what it restored.
  const auto claims = service_.Received(ClientBody::kRegister);
  ASSERT_EQ(claims.size(), 3u);
  EXPECT_EQ(claims[2].register_().shard_id(), "1");
  EXPECT_EQ(claims[2].register_().rank(), 1u);
  EXPECT_EQ(claims[2].register_().generation(), 0u);
}

TEST_F(RecoveryTest, WithoutATokenNobodyWaitsForEver) {
  RecoverySession session(*client_, {});
  EXPECT_CODE(session.OnReconfigured(1, 2, &Alone, nullptr).status(), Code::kUnavailable);
  service_.Play(ClientBody::kNewAttempt, Trick::kRefuse);
  std::string told = "nothing";
  const auto share = [&](const std::string& token) {
    told = token;
    return Result<std::string>(token);
  };
  EXPECT_CODE(session.OnReconfigured(0, 2, share, nullptr).status(), Code::kStale);
  EXPECT_EQ(told, "");
}

TEST_F(RecoveryTest, AFaultMayComeFromAnyThreadAtAnyTime) {
  SaveAndCommit(10, 100, 1);
  RecoverySession session(*client_, {});
  std::atomic<bool> stop{false};
  std::thread watchdog([&] {
    while (!stop) session.OnFault("watchdog");
  });
  std::vector<float> state(100);
  std::vector<uint64_t> steps;
  for (int i = 0; i < 5; ++i)
    EXPECT_TRUE(session.OnReconfigured(0, 1, &Alone, ReadInto(&state, &steps)).ok());
  stop = true;
  watchdog.join();
  session.OnFault("once more");
  EXPECT_TRUE(session.faulted());
  // However often it is said, a generation is fenced once.
  EXPECT_LE(service_.Received(ClientBody::kFence).size(), 6u);
}

TEST_F(RecoveryTest, AFaultWhileTheServiceIsAwayIsToldLater) {
  SaveAndCommit(10, 100, 1);
  service_.Stop();
  ASSERT_TRUE(WaitEvent(BACKSTAY_EVENT_SERVICE_LOST).has_value());
  RecoverySession session(*client_, {});
  session.OnFault("link down");
  service_.Start(true);
  ASSERT_TRUE(service_.WaitFor(ClientBody::kFence, 1));
}

TEST_F(RecoveryTest, BadRequestsAreRefusedHere) {
  DecideOptions options = Client::DefaultDecideOptions();
  options.uuid = "u";
  options.rank = 2;
  options.world_size = 2;
  EXPECT_CODE(client_->Decide(options).status(), Code::kInvalidArgument);
  options.rank = 0;
  options.uuid = nullptr;
  EXPECT_CODE(client_->Decide(options).status(), Code::kInvalidArgument);
  options.uuid = "u";
  options.timeout_ms = BACKSTAY_TIMEOUT_MS_MAX + 1;
  EXPECT_CODE(client_->Decide(options).status(), Code::kInvalidArgument);
  EXPECT_EQ(service_.Received(ClientBody::kReconfigure).size(), 0u);
}

}  // namespace
}  // namespace backstay::tests
