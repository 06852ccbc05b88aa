#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/contract/pull/pull_fixture.h"

// What transport.h promises about how pulls and grants end, of every transport.

namespace backstay::transport {
namespace {

using ::testing::Each;

class PullEnding : public PullContract {
 protected:
  static constexpr uint64_t kLargeBytes = 64 * kMiB;

  // A pull of which some bytes have arrived and the rest cannot.
  Started& StartAndHold(const Served& served, PullRequest request) {
    world_->HoldAfter(3 * kMiB);
    Started& started = Start(std::move(request), served.bytes.size());
    EXPECT_TRUE(world_->RunUntilHeld()) << "no byte was moved";
    EXPECT_EQ(started.completed_count, 0);
    return started;
  }
  Started& StartAndHold(const Served& served) { return StartAndHold(served, RequestFor(served)); }

  bool RunUntilEnded(const Served& served) {
    return world_->RunUntil([&] { return served.ended_count > 0; });
  }
};

INSTANTIATE_TEST_SUITE_P(Transports, PullEnding, ::testing::Values(SimulatedWorld(), TcpWorld()),
                         [](const auto& param) { return param.param.name; });

TEST_P(PullEnding, ARevokedGrantEndsAndIsStale) {
  const Served& served = Serve(2 * kMiB);
  EXPECT_TRUE(PullAll(served).status.ok());
  world_->exporter().Revoke(served.grant.id);
  EXPECT_EQ(served.ended_count, 0) << "ended inside Revoke()";
  EXPECT_TRUE(RunUntilEnded(served));
  const PullResult& result = PullAll(served);
  EXPECT_EQ(result.status.code(), StatusCode::kStale) << result.status;
  EXPECT_THAT(result.chunks, Each(ChunkOutcome::kNotRead));
}

// Method:  the reader's network is stuck in the middle of a pull. The grant must end although
//          nobody takes the bytes; what the region holds after that must never be taken for its
//          content.
TEST_P(PullEnding, ARevokeDuringAReadNeitherWaitsForTheReaderNorShowsItLaterBytes) {
  Served& served = Serve(kLargeBytes);
  PullRequest request = RequestFor(served);
  request.expected.clear();  // So that a wrong chunk would be reported as verified.
  Started& started = StartAndHold(served, std::move(request));
  world_->exporter().Revoke(served.grant.id);
  ASSERT_TRUE(RunUntilEnded(served)) << "the revoke waits for a reader that takes nothing";
  std::fill(served.bytes.begin(), served.bytes.end(), std::byte{0xEE});
  world_->LetGo();
  const PullResult& result = Finish(started);
  EXPECT_EQ(result.status.code(), StatusCode::kStale) << result.status;
  EXPECT_GT(Count(result, ChunkOutcome::kNotRead), 0u);
  ExpectVerifiedChunksAreRight(started, served);
  EXPECT_EQ(served.ended_count, 1);
}

TEST_P(PullEnding, TheReadersReleaseEndsTheGrant) {
  const Served& served = Serve(2 * kMiB);
  EXPECT_TRUE(PullAll(served).status.ok());
  world_->puller().Release(served.grant);
  EXPECT_EQ(served.ended_count, 0);
  EXPECT_TRUE(RunUntilEnded(served));
  EXPECT_EQ(PullAll(served).status.code(), StatusCode::kStale);
}

TEST_P(PullEnding, AReleaseWithoutAReadEndsTheGrantToo) {
  const Served& served = Serve(kMiB);
  world_->puller().Release(served.grant);
  EXPECT_TRUE(RunUntilEnded(served));
}

TEST_P(PullEnding, AReleaseWithoutTheKeyEndsNothing) {
  const Served& served = Serve(kMiB);
  Grant forged = served.grant;
  forged.key.assign(kGrantKeyBytes, 'x');
  world_->puller().Release(forged);
  EXPECT_TRUE(PullAll(served).status.ok());
  EXPECT_EQ(served.ended_count, 0);
}

TEST_P(PullEnding, AGrantEndsAtItsExpiry) {
  const Served& served =
      Serve(2 * kMiB, world_->executor().Now() + Duration(std::chrono::minutes(2)));
  EXPECT_TRUE(PullAll(served).status.ok());
  EXPECT_EQ(served.ended_count, 0);
  world_->executor().RunFor(std::chrono::minutes(3));
  EXPECT_TRUE(RunUntilEnded(served));
  EXPECT_EQ(PullAll(served).status.code(), StatusCode::kStale);
}

TEST_P(PullEnding, EndedIsSaidOnceWhateverEndsIt) {
  const Served& served =
      Serve(2 * kMiB, world_->executor().Now() + Duration(std::chrono::minutes(2)));
  EXPECT_TRUE(PullAll(served).status.ok());
  world_->puller().Release(served.grant);
  world_->exporter().Revoke(served.grant.id);
  world_->exporter().Revoke(served.grant.id);
  world_->executor().RunFor(std::chrono::minutes(3));
  EXPECT_TRUE(RunUntilEnded(served));
  world_->DestroyExporter();
  world_->Settle();
  EXPECT_EQ(served.ended_count, 1);
}

TEST_P(PullEnding, DestroyingTheExporterEndsGrantsAndBreaksPulls) {
  const Served& served = Serve(kLargeBytes);
  const Served& unread = Serve(kMiB);
  Started& started = StartAndHold(served);
  world_->DestroyExporter();
  world_->LetGo();
  EXPECT_TRUE(RunUntilEnded(served));
  EXPECT_TRUE(RunUntilEnded(unread));
  EXPECT_EQ(Finish(started).status.code(), StatusCode::kUnavailable) << started.result.status;
  ExpectVerifiedChunksAreRight(started, served);
}

TEST_P(PullEnding, TheDeadlineEndsAPullThatIsStuck) {
  const Served& served = Serve(kLargeBytes);
  PullRequest request = RequestFor(served);
  request.deadline = world_->executor().Now() + Duration(std::chrono::milliseconds(500));
  Started& started = StartAndHold(served, std::move(request));
  world_->executor().RunFor(std::chrono::seconds(1));
  EXPECT_EQ(Finish(started).status.code(), StatusCode::kDeadline) << started.result.status;
  ExpectVerifiedChunksAreRight(started, served);
  ExpectTargetIsLeftAlone(started);
}

TEST_P(PullEnding, CancelEndsAPullThatIsStuck) {
  const Served& served = Serve(kLargeBytes);
  Started& started = StartAndHold(served);
  world_->puller().Cancel(started.id);
  EXPECT_EQ(started.completed_count, 0) << "completed inside Cancel()";
  EXPECT_EQ(Finish(started).status.code(), StatusCode::kUnavailable) << started.result.status;
  ExpectVerifiedChunksAreRight(started, served);
  world_->puller().Cancel(started.id);
  ExpectTargetIsLeftAlone(started);
}

TEST_P(PullEnding, CancellingOnePullDoesNotHarmAnother) {
  const Served& served = Serve(kLargeBytes);
  world_->HoldAfter(3 * kMiB);
  Started& cancelled = Start(served);
  Started& kept = Start(served);
  ASSERT_TRUE(world_->RunUntilHeld());
  world_->puller().Cancel(cancelled.id);
  EXPECT_EQ(Finish(cancelled).status.code(), StatusCode::kUnavailable);
  world_->LetGo();
  EXPECT_TRUE(Finish(kept).status.ok()) << kept.result.status;
  EXPECT_THAT(kept.result.chunks, Each(ChunkOutcome::kVerified));
  EXPECT_EQ(kept.target, served.original);
}

TEST_P(PullEnding, APeerThatIsGoneFailsThePull) {
  const Served& served = Serve(2 * kMiB);
  world_->Break();
  const PullResult& result = PullAll(served);
  EXPECT_EQ(result.status.code(), StatusCode::kUnavailable) << result.status;
  EXPECT_THAT(result.chunks, Each(ChunkOutcome::kNotRead));
}

TEST_P(PullEnding, APeerThatDiesInTheMiddleFailsThePull) {
  const Served& served = Serve(kLargeBytes);
  Started& started = StartAndHold(served);
  world_->Break();
  EXPECT_EQ(Finish(started).status.code(), StatusCode::kUnavailable) << started.result.status;
  EXPECT_GT(Count(started.result, ChunkOutcome::kNotRead), 0u);
  ExpectVerifiedChunksAreRight(started, served);
  ExpectTargetIsLeftAlone(started);
}

TEST_P(PullEnding, APeerThatFallsSilentFailsThePull) {
  const Served& served = Serve(kLargeBytes);
  Started& started = StartAndHold(served);
  EXPECT_EQ(Finish(started).status.code(), StatusCode::kUnavailable) << started.result.status;
  ExpectTargetIsLeftAlone(started);
}

TEST_P(PullEnding, ASilenceThatEndsInTimeHarmsNothing) {
  const Served& served = Serve(kLargeBytes);
  Started& started = StartAndHold(served);
  world_->LetGo();
  EXPECT_TRUE(Finish(started).status.ok()) << started.result.status;
  EXPECT_EQ(started.target, served.original);
}

TEST_P(PullEnding, DestroyingThePullerCompletesItsPulls) {
  const Served& served = Serve(kLargeBytes);
  Started& stuck = StartAndHold(served);
  Started& waiting = Start(served);
  world_->DestroyPuller();
  EXPECT_EQ(stuck.completed_count, 0) << "completed inside the destructor";
  EXPECT_EQ(Finish(stuck).status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(Finish(waiting).status.code(), StatusCode::kUnavailable);
  ExpectTargetIsLeftAlone(stuck);
}

}  // namespace
}  // namespace backstay::transport
