#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/random.h"
#include "base/units.h"
#include "tests/contract/pull/pull_world.h"

namespace backstay::transport {

// A region that is served, and what was heard of its grant.
struct Served {
  std::vector<std::byte> bytes;
  std::vector<std::byte> original;
  Grant grant;
  int ended_count = 0;
};

// A pull, its target, and what came of it.
struct Started {
  std::vector<std::byte> target;
  PullId id = 0;
  int completed_count = 0;
  PullResult result;
};

class PullContract : public ::testing::TestWithParam<WorldFactory> {
 protected:
  static constexpr uint32_t kChunkBytes = 1 * kMiB;

  PullContract() : world_(GetParam().make()) {}

  Served& Serve(uint64_t size_bytes, Deadline expiry = kNoDeadline) {
    Served& served = served_.emplace_back();
    served.bytes.resize(size_bytes);
    SeededRandom random(size_bytes);
    for (size_t i = 0; i + 8 <= size_bytes; i += 8) {
      const uint64_t word = random.Next();
      std::memcpy(served.bytes.data() + i, &word, 8);
    }
    served.original = served.bytes;
    served.grant =
        world_->Export({.bytes = served.bytes}, expiry, [&served] { ++served.ended_count; });
    return served;
  }

  static std::vector<Hash128> HashesOf(std::span<const std::byte> bytes, uint32_t chunk_bytes) {
    std::vector<Hash128> hashes;
    for (size_t begin = 0; begin < bytes.size(); begin += chunk_bytes) {
      hashes.push_back(
          HashBytes(bytes.subspan(begin, std::min<size_t>(chunk_bytes, bytes.size() - begin))));
    }
    return hashes;
  }

  static PullRequest RequestFor(const Served& served, uint32_t chunk_bytes = kChunkBytes) {
    PullRequest request;
    request.source = served.grant;
    request.chunk_bytes = chunk_bytes;
    request.expected = HashesOf(served.original, chunk_bytes);
    return request;
  }

  // Pulls into a fresh target of `size_bytes`.
  Started& Start(PullRequest request, uint64_t size_bytes) {
    Started& started = started_.emplace_back();
    started.target.assign(size_bytes, std::byte{0x5A});
    request.target = started.target;
    started.id = world_->puller().Pull(std::move(request), [&started](PullResult result) {
      ++started.completed_count;
      started.result = std::move(result);
    });
    EXPECT_EQ(started.completed_count, 0) << "completed inside Pull()";
    return started;
  }
  Started& Start(const Served& served) { return Start(RequestFor(served), served.bytes.size()); }

  const PullResult& Finish(Started& started) {
    EXPECT_TRUE(world_->RunUntil([&] { return started.completed_count > 0; }))
        << "the pull did not complete";
    return started.result;
  }
  const PullResult& PullAll(const Served& served) { return Finish(Start(served)); }

  static uint64_t Count(const PullResult& result, ChunkOutcome outcome) {
    return static_cast<uint64_t>(std::count(result.chunks.begin(), result.chunks.end(), outcome));
  }

  // What is reported as verified really is the region's content.
  static void ExpectVerifiedChunksAreRight(const Started& started, const Served& served) {
    for (size_t i = 0; i < started.result.chunks.size(); ++i) {
      if (started.result.chunks[i] != ChunkOutcome::kVerified) continue;
      const size_t begin = i * kChunkBytes;
      const size_t size = std::min<size_t>(kChunkBytes, started.target.size() - begin);
      EXPECT_EQ(std::memcmp(started.target.data() + begin, served.original.data() + begin, size), 0)
          << "chunk " << i;
    }
  }

  // Overwrites the target of a completed pull, lets go of everything on its way, and looks whether
  // anything still writes there.
  void ExpectTargetIsLeftAlone(Started& started) {
    std::fill(started.target.begin(), started.target.end(), std::byte{0xC3});
    world_->Settle();
    for (const std::byte byte : started.target) ASSERT_EQ(byte, std::byte{0xC3});
    EXPECT_EQ(started.completed_count, 1);
  }

  std::deque<Served> served_;  // Outlives the world: regions and targets are borrowed.
  std::deque<Started> started_;
  std::unique_ptr<PullWorld> world_;
};

}  // namespace backstay::transport
