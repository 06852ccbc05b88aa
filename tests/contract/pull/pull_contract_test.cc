#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/contract/pull/pull_fixture.h"

// What transport.h promises about bytes and refusals, of every transport. Endings are in
// pull_ending_test.cc.

namespace backstay::transport {
namespace {

using ::testing::Each;

INSTANTIATE_TEST_SUITE_P(Transports, PullContract, ::testing::Values(SimulatedWorld(), TcpWorld()),
                         [](const auto& param) { return param.param.name; });

TEST_P(PullContract, ReadsAndVerifiesARegionWithAShortLastChunk) {
  const Served& served = Serve(5 * kMiB + 12345);
  Started& started = Start(served);
  const PullResult& result = Finish(started);
  EXPECT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.chunks.size(), 6u);
  EXPECT_THAT(result.chunks, Each(ChunkOutcome::kVerified));
  EXPECT_EQ(result.hashes, HashesOf(served.original, kChunkBytes));
  EXPECT_EQ(started.target, served.original);
}

TEST_P(PullContract, ReadsALargeRegionOverAllLanes) {
  const Served& served = Serve(96 * kMiB);
  Started& started = Start(served);
  EXPECT_TRUE(Finish(started).status.ok()) << started.result.status;
  EXPECT_THAT(started.result.chunks, Each(ChunkOutcome::kVerified));
  EXPECT_EQ(started.target, served.original);
}

TEST_P(PullContract, ReadsChunksOfAnySize) {
  const Served& served = Serve(3 * kMiB + 7);
  for (const uint32_t chunk_bytes : {1u << 12, 65'537u, 1u << 20, 1u << 26}) {
    Started& started = Start(RequestFor(served, chunk_bytes), served.bytes.size());
    EXPECT_TRUE(Finish(started).status.ok()) << started.result.status;
    EXPECT_THAT(started.result.chunks, Each(ChunkOutcome::kVerified)) << chunk_bytes;
    EXPECT_EQ(started.target, served.original) << chunk_bytes;
  }
}

TEST_P(PullContract, ReadsARangeInTheMiddle) {
  const Served& served = Serve(8 * kMiB);
  PullRequest request = RequestFor(served);
  request.source_offset_bytes = 3 * kMiB;
  request.expected = {request.expected[3], request.expected[4]};
  Started& started = Start(std::move(request), 2 * kMiB);
  EXPECT_TRUE(Finish(started).status.ok()) << started.result.status;
  EXPECT_THAT(started.result.chunks, Each(ChunkOutcome::kVerified));
  EXPECT_EQ(std::memcmp(started.target.data(), served.original.data() + 3 * kMiB, 2 * kMiB), 0);
}

TEST_P(PullContract, WithoutExpectedHashesReturnsThoseItFound) {
  const Served& served = Serve(3 * kMiB + 1);
  PullRequest request = RequestFor(served);
  request.expected.clear();
  const PullResult& result = Finish(Start(std::move(request), served.bytes.size()));
  EXPECT_TRUE(result.status.ok()) << result.status;
  EXPECT_THAT(result.chunks, Each(ChunkOutcome::kVerified));
  EXPECT_EQ(result.hashes, HashesOf(served.original, kChunkBytes));
}

TEST_P(PullContract, AMismatchConcernsItsChunkOnly) {
  Served& served = Serve(6 * kMiB);
  served.bytes[2 * kMiB + 77] ^= std::byte{1};
  Started& started = Start(served);
  const PullResult& result = Finish(started);
  EXPECT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.chunks[2], ChunkOutcome::kMismatch);
  EXPECT_EQ(result.hashes[2], HashesOf(served.bytes, kChunkBytes)[2]);
  EXPECT_EQ(Count(result, ChunkOutcome::kVerified), 5u);
  ExpectVerifiedChunksAreRight(started, served);
}

TEST_P(PullContract, AnEmptyTargetCompletes) {
  const Served& served = Serve(kMiB);
  PullRequest request = RequestFor(served);
  request.expected.clear();
  const PullResult& result = Finish(Start(std::move(request), 0));
  EXPECT_TRUE(result.status.ok()) << result.status;
  EXPECT_TRUE(result.chunks.empty());
}

TEST_P(PullContract, ManyPullsAtOnceAllComplete) {
  const Served& large = Serve(24 * kMiB);
  const Served& small = Serve(100'000);
  std::vector<Started*> pulls;
  for (int i = 0; i < 6; ++i) pulls.push_back(&Start(large));
  for (int i = 0; i < 60; ++i) pulls.push_back(&Start(small));
  for (Started* started : pulls) {
    const PullResult& result = Finish(*started);
    EXPECT_TRUE(result.status.ok()) << result.status;
    EXPECT_THAT(result.chunks, Each(ChunkOutcome::kVerified));
  }
  world_->Settle();
  for (const Started* started : pulls) EXPECT_EQ(started->completed_count, 1);
}

TEST_P(PullContract, AWrongKeyIsRefusedAndTheRightOneStillAccepted) {
  const Served& served = Serve(2 * kMiB);
  PullRequest request = RequestFor(served);
  request.source.key[5] = static_cast<char>(request.source.key[5] ^ 1);
  Started& refused = Start(std::move(request), served.bytes.size());
  EXPECT_EQ(Finish(refused).status.code(), StatusCode::kPermission) << refused.result.status;
  EXPECT_THAT(refused.result.chunks, Each(ChunkOutcome::kNotRead));
  EXPECT_THAT(refused.target, Each(std::byte{0x5A})) << "bytes moved without a proven key";
  EXPECT_TRUE(PullAll(served).status.ok());
}

TEST_P(PullContract, AKeyThatWasProvenDoesNotServeAPullWithAnother) {
  const Served& served = Serve(2 * kMiB);
  EXPECT_TRUE(PullAll(served).status.ok());
  PullRequest request = RequestFor(served);
  request.source.key.assign(kGrantKeyBytes, 'x');
  Started& refused = Start(std::move(request), served.bytes.size());
  EXPECT_EQ(Finish(refused).status.code(), StatusCode::kPermission) << refused.result.status;
  EXPECT_THAT(refused.target, Each(std::byte{0x5A}));
  EXPECT_TRUE(PullAll(served).status.ok());
}

TEST_P(PullContract, ARangeOutsideOfTheGrantIsRefusedByTheReader) {
  const Served& served = Serve(2 * kMiB);
  const PullResult& result = Finish(Start(RequestFor(served), 2 * kMiB + 1));
  EXPECT_EQ(result.status.code(), StatusCode::kInvalidArgument) << result.status;
}

TEST_P(PullContract, ARangeOutsideOfTheRegionIsRefusedByTheOwner) {
  const Served& served = Serve(2 * kMiB);
  PullRequest request = RequestFor(served);
  request.source.size_bytes = 64 * kMiB;
  request.source_offset_bytes = 2 * kMiB;
  request.expected.clear();
  const PullResult& result = Finish(Start(std::move(request), kMiB));
  EXPECT_EQ(result.status.code(), StatusCode::kInvalidArgument) << result.status;
  EXPECT_EQ(Count(result, ChunkOutcome::kNotRead), 1u);
}

TEST_P(PullContract, RequestsThatCannotBeRightAreRefused) {
  const Served& served = Serve(2 * kMiB);
  const auto code_of = [&](const std::function<void(PullRequest*)>& spoil) {
    PullRequest request = RequestFor(served);
    spoil(&request);
    return Finish(Start(std::move(request), served.bytes.size())).status.code();
  };
  EXPECT_EQ(code_of([](PullRequest* r) { r->chunk_bytes = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](PullRequest* r) { r->chunk_bytes = UINT32_MAX; }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](PullRequest* r) { r->expected.pop_back(); }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](PullRequest* r) { r->source_offset_bytes = 1; }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](PullRequest* r) { r->source_offset_bytes = 0 - uint64_t{kMiB}; }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](PullRequest* r) { r->source.key.pop_back(); }),
            StatusCode::kInvalidArgument);
}

TEST_P(PullContract, AGrantThatNeverWasIsStale) {
  const Served& served = Serve(kMiB);
  PullRequest request = RequestFor(served);
  request.source.id += 1000;
  const PullResult& result = Finish(Start(std::move(request), kMiB));
  EXPECT_EQ(result.status.code(), StatusCode::kStale) << result.status;
}

TEST_P(PullContract, AGrantOfAnEarlierStartOfTheOwnerIsStale) {
  const Served& served = Serve(kMiB);
  PullRequest request = RequestFor(served);
  request.source.owner.incarnation = Incarnation(kOwner.incarnation.value - 1);
  const PullResult& result = Finish(Start(std::move(request), kMiB));
  EXPECT_EQ(result.status.code(), StatusCode::kStale) << result.status;
}

}  // namespace
}  // namespace backstay::transport
