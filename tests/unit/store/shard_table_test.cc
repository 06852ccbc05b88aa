#include "store/shard_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/scrubber.h"
#include "store/shard_verifier.h"
#include "tests/unit/store/store_fixture.h"

namespace backstay::store::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kSize = 5 * kChunk + 100;  // The last of six chunks is short.

TEST_F(TableTest, SavedShardIsSealedWithItsManifest) {
  const ReservationId own = Reserved(Purpose::kOwn, kSize, 2);
  const Shard* shard = Save(Name(10), own, kSize);
  ASSERT_NE(shard, nullptr);
  EXPECT_EQ(shard->state, ShardState::kSealed);
  EXPECT_EQ(shard->digest, ManifestDigest(shard->manifest_bytes));
  const Result<Manifest> manifest = DecodeManifest(shard->manifest_bytes);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(*manifest, *shard->manifest);
  EXPECT_EQ(manifest->name, Name(10));
  EXPECT_EQ(manifest->chunk_checksums.size(), 6u);
  EXPECT_EQ(manifest->chunk_checksums[5], HashBytes(shard->bytes().subspan(5 * kChunk)));
  EXPECT_EQ(manifest->contents, Contents(kSize));
  EXPECT_EQ(shard->control().used_bytes(), kSize);
  EXPECT_EQ(*table_.Seal(Name(10), 6), shard->digest) << "a repeated seal has the same answer";
}

TEST_F(TableTest, EmptyShardCanBeSaved) {
  const ReservationId own = Reserved(Purpose::kOwn, 0, 2);
  ASSERT_TRUE(Begin(Name(10), own).ok());
  ASSERT_TRUE(table_.StartCopy(Name(10), 0, "").ok());
  ASSERT_TRUE(table_.Seal(Name(10), 1).ok());
  EXPECT_EQ(table_.Find(Name(10))->ChunkCount(), 0u);
}

// The manifest is built from a copy: what the client writes to the page later changes nothing.
TEST_F(TableTest, ControlPageIsReadOnceAtTheSeal) {
  const Shard* shard = Save(Name(10), Reserved(Purpose::kOwn, kSize, 1), kSize);
  const Manifest sealed = *shard->manifest;
  SlotControlWriter(shard->memory->control(), shard->memory->geometry()).Publish(2, {1, 2});
  EXPECT_EQ(*shard->manifest, sealed);
}

TEST_F(TableTest, SealNeedsEveryChunk) {
  const ReservationId own = Reserved(Purpose::kOwn, kSize, 1);
  const Shard* shard = *Begin(Name(10), own);
  EXPECT_THAT(table_.Seal(Name(10), 1).status().message(), HasSubstr("has not started"));
  ASSERT_TRUE(table_.StartCopy(Name(10), kSize, EncodeContents(Contents(kSize))).ok());
  CopyInto(*shard);
  SlotControlWriter control(shard->memory->control(), shard->memory->geometry());
  control.PublishFailed(4);
  const Result<Hash128> digest = table_.Seal(Name(10), 1);
  EXPECT_EQ(digest.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(digest.status().message(), HasSubstr("chunk 4 of 6"));
  EXPECT_EQ(shard->state, ShardState::kFilling);
  control.Publish(4, HashBytes(shard->ChunkBytes(4)));
  EXPECT_TRUE(table_.Seal(Name(10), 1).ok());
}

TEST_F(TableTest, StartCopyChecksWhatTheClientSays) {
  const ReservationId own = Reserved(Purpose::kOwn, kSize, 1);
  ASSERT_TRUE(Begin(Name(10), own).ok());
  const std::string contents = EncodeContents(Contents(kSize));
  EXPECT_THAT(table_.StartCopy(Name(10), kSize + 1, contents).message(), HasSubstr("resize"))
      << "the slot has room to its page's end, but that is not what was registered";
  EXPECT_EQ(table_.StartCopy(Name(10), kSize - 1, contents).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(table_.StartCopy(Name(10), kSize, "nonsense").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(table_.StartCopy(Name(11), kSize, contents).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(table_.StartCopy(Name(10), kSize, contents).ok());
  EXPECT_TRUE(table_.StartCopy(Name(10), kSize, contents).ok()) << "repeated";
  EXPECT_EQ(table_.StartCopy(Name(10), kSize, "").code(), StatusCode::kInvalidArgument);
}

// Attack: begin 110, abandon, begin 110 again.
TEST_F(TableTest, NameIsBegunOnce) {
  const ReservationId own = Reserved(Purpose::kOwn, kSize, 3);
  ASSERT_TRUE(Begin(Name(110, 2), own).ok());
  EXPECT_EQ(Begin(Name(110, 2), own).status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(table_.Abandon(Name(110, 2)).ok());
  EXPECT_EQ(Begin(Name(110, 2), own).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Begin(Name(105, 2), own).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Begin(Name(120, 1), own).status().code(), StatusCode::kStale);
  EXPECT_TRUE(Begin(Name(105, 3), own).ok()) << "a new generation goes on from an older step";
  table_.DropJob(JobName("job"));
  EXPECT_TRUE(Begin(Name(1, 1), own).ok()) << "a job of that name starts anew";
}

TEST_F(TableTest, AbandonIsRefusedAfterTheSeal) {
  const ReservationId own = Reserved(Purpose::kOwn, kSize, 1);
  Save(Name(10), own, kSize);
  EXPECT_EQ(table_.Abandon(Name(10)).code(), StatusCode::kInvalidArgument);
  EXPECT_NE(table_.Find(Name(10)), nullptr);
  EXPECT_EQ(table_.Abandon(Name(11)).code(), StatusCode::kNotFound);
}

TEST_F(TableTest, RefusedBeginTakesNoSlotAndNoName) {
  const ReservationId own = Reserved(Purpose::kOwn, kSize, 1);
  ASSERT_TRUE(Begin(Name(10), own).ok());
  EXPECT_EQ(Begin(Name(20), own).status().code(), StatusCode::kUnavailable);
  ASSERT_TRUE(table_.Abandon(Name(10)).ok());
  EXPECT_TRUE(Begin(Name(20), own).ok());
}

class ReceiveTest : public TableTest {
 protected:
  // A peer's sealed shard, made in a second table.
  void SetUp() override {
    source_ = Save(Name(10), Reserved(Purpose::kOwn, kSize, 1), kSize);
    held_ = Reserved(Purpose::kHeld, kSize, 2);
  }

  Result<const Shard*> BeginReceive(uint64_t size_bytes = kSize, uint32_t chunk_bytes = kChunk) {
    return peer_.BeginReceive({.name = Name(10),
                               .role = ShardRole::kHeld,
                               .size_bytes = size_bytes,
                               .chunk_bytes = chunk_bytes,
                               .reservation = held_,
                               .unix_ms = 1});
  }

  void Receive(const Shard& target, uint64_t chunk) {
    std::ranges::copy(source_->ChunkBytes(chunk), target.ChunkBytes(chunk).begin());
    peer_.ChunkReceived(Name(10), chunk, HashBytes(target.ChunkBytes(chunk)));
  }

  ShardTable peer_{pool_};
  const Shard* source_ = nullptr;
  ReservationId held_;
};

// Attack: the trainer rewrites chunk 2 between the peer's read and the seal.
TEST_F(ReceiveTest, ChunksStreamedBeforeTheSealAreComparedWithIt) {
  const Shard* shard = *BeginReceive();
  for (uint64_t chunk = 0; chunk < 4; ++chunk) Receive(*shard, chunk);
  shard->ChunkBytes(2)[7] ^= std::byte{1};
  peer_.ChunkReceived(Name(10), 2, HashBytes(shard->ChunkBytes(2)));
  EXPECT_THAT(peer_.MissingChunks(Name(10)), ElementsAre(4, 5));
  EXPECT_FALSE(shard->control().IsReady(0)) << "nobody is told before the manifest says so";

  ASSERT_TRUE(peer_.AcceptManifest(Name(10), source_->manifest_bytes, source_->digest).ok());
  EXPECT_THAT(peer_.MissingChunks(Name(10)), ElementsAre(2, 4, 5));
  EXPECT_TRUE(shard->control().IsReady(0));
  EXPECT_FALSE(shard->control().IsReady(2));
  EXPECT_EQ(peer_.SealReceived(Name(10)).code(), StatusCode::kUnavailable);
  for (const uint64_t chunk : {2, 4, 5}) Receive(*shard, chunk);
  ASSERT_TRUE(peer_.SealReceived(Name(10)).ok());
  EXPECT_TRUE(peer_.SealReceived(Name(10)).ok());
  EXPECT_TRUE(shard->sealed());
  EXPECT_EQ(shard->digest, source_->digest);
  EXPECT_EQ(shard->rank, Rank(3));
  EXPECT_TRUE(std::ranges::equal(shard->bytes(), source_->bytes()));
}

TEST_F(ReceiveTest, ManifestMustBeTheAnnouncedOne) {
  ASSERT_TRUE(BeginReceive().ok());
  std::string damaged = source_->manifest_bytes;
  damaged[damaged.size() / 2] ^= 1;
  EXPECT_EQ(peer_.AcceptManifest(Name(10), damaged, source_->digest).code(), StatusCode::kCorrupt);
  EXPECT_EQ(peer_.AcceptManifest(Name(10), "junk", ManifestDigest("junk")).code(),
            StatusCode::kCorrupt);
  Manifest other = *source_->manifest;
  other.name.snapshot.step = Step(11);
  const std::string other_bytes = *EncodeManifest(other);
  EXPECT_EQ(peer_.AcceptManifest(Name(10), other_bytes, ManifestDigest(other_bytes)).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(peer_.AcceptManifest(Name(12), source_->manifest_bytes, source_->digest).code(),
            StatusCode::kNotFound);
  ASSERT_TRUE(peer_.AcceptManifest(Name(10), source_->manifest_bytes, source_->digest).ok());
  EXPECT_TRUE(peer_.AcceptManifest(Name(10), source_->manifest_bytes, source_->digest).ok());

  Manifest second = *source_->manifest;
  second.chunk_checksums[0].low ^= 1;
  const std::string second_bytes = *EncodeManifest(second);
  const Status status = peer_.AcceptManifest(Name(10), second_bytes, ManifestDigest(second_bytes));
  EXPECT_THAT(status.message(), HasSubstr("two contents"));
}

TEST_F(ReceiveTest, WhatDoesNotFitIsRefused) {
  EXPECT_EQ(BeginReceive(kSize + 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(BeginReceive(kSize, 2 * kChunk).status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(BeginReceive().ok());
  EXPECT_EQ(BeginReceive().status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(peer_.Abandon(Name(10)).ok());
  EXPECT_TRUE(BeginReceive().ok()) << "a replica may be received again";
}

TEST_F(ReceiveTest, ChunkFoundBadByAReaderIsMissingAgain) {
  const Shard* shard = *BeginReceive();
  ASSERT_TRUE(peer_.AcceptManifest(Name(10), source_->manifest_bytes, source_->digest).ok());
  for (uint64_t chunk = 0; chunk < 6; ++chunk) Receive(*shard, chunk);
  ASSERT_TRUE(peer_.ForgetChunk(Name(10), 3).ok());
  EXPECT_THAT(peer_.MissingChunks(Name(10)), ElementsAre(3));
  EXPECT_FALSE(shard->control().IsReady(3));
  EXPECT_EQ(peer_.ForgetChunk(Name(10), 6).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(peer_.ForgetChunk(Name(99), 0).code(), StatusCode::kNotFound);
  peer_.ChunkReceived(Name(10), 2, {1, 1});  // Written over with something else.
  EXPECT_THAT(peer_.MissingChunks(Name(10)), ElementsAre(2, 3));
  EXPECT_FALSE(shard->control().IsReady(2));
  peer_.ChunkFailed(Name(10), 2);
  EXPECT_EQ(shard->control().State(2), ChunkState::kChunkFailed);
  for (const uint64_t chunk : {2, 3}) Receive(*shard, chunk);
  ASSERT_TRUE(peer_.SealReceived(Name(10)).ok());
  EXPECT_EQ(peer_.ForgetChunk(Name(10), 3).code(), StatusCode::kUnavailable);
}

TEST_F(ReceiveTest, LateReplicaLearnsThatItIsCommitted) {
  const Hash128 root{7, 8};
  peer_.MarkCommitted(JobName("job"), Name(10).snapshot, root);
  const Shard* shard = *BeginReceive();
  ASSERT_TRUE(peer_.AcceptManifest(Name(10), source_->manifest_bytes, source_->digest).ok());
  for (uint64_t chunk = 0; chunk < 6; ++chunk) Receive(*shard, chunk);
  EXPECT_FALSE(shard->committed);
  ASSERT_TRUE(peer_.SealReceived(Name(10)).ok());
  EXPECT_TRUE(shard->committed);
  EXPECT_EQ(shard->root, root);
}

TEST_F(ReceiveTest, QuarantinedReplicaIsReplacedByAGoodOne) {
  const Shard* shard = *BeginReceive();
  ASSERT_TRUE(peer_.AcceptManifest(Name(10), source_->manifest_bytes, source_->digest).ok());
  for (uint64_t chunk = 0; chunk < 6; ++chunk) Receive(*shard, chunk);
  ASSERT_TRUE(peer_.SealReceived(Name(10)).ok());
  const SlotId bad_slot = shard->slot;
  const ShardPin pin = peer_.Pin(Name(10));  // Somebody still reads the bad one.
  peer_.Quarantine(Name(10), "chunk 3 differs");
  EXPECT_EQ(peer_.FindSealed(Name(10)).status().code(), StatusCode::kCorrupt);
  const Result<const Shard*> again = BeginReceive();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_NE((*again)->slot, bad_slot);
  EXPECT_EQ(pool_.slot(bad_slot).state(), SlotState::kRevoking);
}

TEST_F(TableTest, DropWaitsForPinsAndKeepsTheSlotForGrants) {
  const ReservationId own = Reserved(Purpose::kOwn, kSize, 1);
  const Shard* shard = Save(Name(10), own, kSize);
  const SlotId slot = shard->slot;
  const std::shared_ptr<SlotMemory> memory = shard->memory;
  EXPECT_EQ(table_.BeginGrant(Name(10)), slot);
  {
    ShardPin pin = table_.Pin(Name(10));
    ShardPin moved = std::move(pin);
    EXPECT_TRUE(table_.IsPinned(Name(10)));
    EXPECT_EQ(table_.Drop(Name(10)).code(), StatusCode::kUnavailable);
    EXPECT_NE(table_.Find(Name(10)), nullptr);
  }
  EXPECT_FALSE(table_.IsPinned(Name(10)));
  ASSERT_TRUE(table_.Drop(Name(10)).ok());
  EXPECT_TRUE(table_.Drop(Name(10)).ok()) << "repeated";
  EXPECT_EQ(table_.Find(Name(10)), nullptr);
  EXPECT_EQ(pool_.slot(slot).state(), SlotState::kRevoking);
  EXPECT_EQ(Begin(Name(20), own).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(memory->data()[5], Pattern(10, 5)) << "unchanged while somebody may read it";
  table_.EndGrant(slot);
  EXPECT_TRUE(Begin(Name(20), own).ok());
}

TEST_F(TableTest, EndedJobGoesButForWhatIsPinned) {
  const ReservationId own = Reserved(Purpose::kOwn, kSize, 2);
  const SlotId pinned = Save(Name(10), own, kSize)->slot;
  const SlotId plain = Save(Name(20), own, kSize)->slot;
  ShardPin pin = table_.Pin(Name(10));
  table_.DropJob(JobName("job"));
  EXPECT_TRUE(table_.All().empty());
  EXPECT_EQ(pool_.slot(plain).state(), SlotState::kFree);
  EXPECT_EQ(pool_.slot(pinned).state(), SlotState::kRevoking);
  pin.Reset();
  EXPECT_EQ(pool_.slot(pinned).state(), SlotState::kFree);
}

TEST_F(TableTest, EndedJobLeavesWhatIsBeingFilledToWhoFillsIt) {
  const ReservationId own = Reserved(Purpose::kOwn, kSize, 2);
  ASSERT_TRUE(Begin(Name(10), own).ok());
  table_.DropJob(JobName("job"));
  ASSERT_NE(table_.Find(Name(10)), nullptr);
  EXPECT_TRUE(table_.Abandon(Name(10)).ok());
  EXPECT_TRUE(table_.All().empty());
}

TEST_F(TableTest, PinMayOutliveTheTable) {
  auto table = std::make_unique<ShardTable>(pool_);
  const ReservationId own = Reserved(Purpose::kOwn, kSize, 1);
  ASSERT_TRUE(table
                  ->Begin({.name = Name(10),
                           .rank = Rank(0),
                           .world_size = 1,
                           .reservation = own,
                           .client = kAlice,
                           .unix_ms = 1})
                  .ok());
  ShardPin pin = table->Pin(Name(10));
  table.reset();
  pin.Reset();
}

TEST_F(TableTest, LookupsNameWhatIsNear) {
  const ReservationId own = Reserved(Purpose::kOwn, kSize, 3);
  EXPECT_THAT(table_.FindSealed(Name(110)).status().message(), HasSubstr("no step"));
  Save(Name(100), own, kSize);
  Save(Name(120), own, kSize);
  const Status missing = table_.FindSealed(Name(110)).status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("steps 100 and 120"));
  EXPECT_EQ(table_.NearestSteps(JobName("job"), Step(5)), "step 100");
  EXPECT_EQ(table_.NearestSteps(JobName("job"), Step(500)), "step 120");
  EXPECT_EQ(table_.NearestSteps(JobName("jo"), Step(500)), "no step");
  ASSERT_TRUE(Begin(Name(130), own).ok());
  EXPECT_EQ(table_.FindSealed(Name(130)).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(table_.ShardsOf(JobName("job")).size(), 3u);
  EXPECT_EQ(table_.ShardsOf(JobName("job"), Name(120).snapshot).size(), 1u);
  EXPECT_TRUE(table_.ShardsOf(JobName("other")).empty());
}

TEST_F(TableTest, CommitMarksTheSnapshotAlone) {
  const ReservationId own = Reserved(Purpose::kOwn, kSize, 2);
  const Shard* first = Save(Name(10), own, kSize);
  const Shard* second = Save(Name(20), own, kSize);
  table_.MarkCommitted(JobName("job"), Name(10).snapshot, {1, 1});
  EXPECT_TRUE(first->committed);
  EXPECT_FALSE(second->committed);
}

// A thousand saves of two kept versions: same memory, and nothing is remembered of what is gone.
TEST_F(TableTest, MemoryIsFlatAfterAThousandSaves) {
  const ReservationId own = Reserved(Purpose::kOwn, kSize, 3);
  for (uint64_t step = 1; step <= 1000; ++step) {
    ASSERT_NE(Save(Name(step), own, kSize), nullptr);
    table_.MarkCommitted(JobName("job"), Name(step).snapshot, {step, 0});
    if (step > 2) {
      ASSERT_TRUE(table_.Drop(Name(step - 2)).ok());
    }
  }
  EXPECT_EQ(factory_.created_count(), 3u);
  EXPECT_EQ(pool_.Stats().memory_bytes, 3 * Footprint(kSize));
  EXPECT_EQ(table_.All().size(), 2u);
}

class VerifierTest : public TableTest {
 protected:
  std::optional<Result<VerifyReport>> Verify(const ShardName& name) {
    std::optional<Result<VerifyReport>> answer;
    verifier_.Verify(name, [&](Result<VerifyReport> report) { answer = std::move(report); });
    EXPECT_FALSE(answer.has_value());
    executor_.RunUntilIdle();
    return answer;
  }

  ShardVerifier verifier_{table_, executor_, OffloadOnto(executor_)};
};

TEST_F(VerifierTest, FindsEveryBadChunk) {
  const Shard* shard = Save(Name(10), Reserved(Purpose::kOwn, kSize, 1), kSize);
  auto report = Verify(Name(10));
  ASSERT_TRUE(report && report->ok());
  EXPECT_EQ((*report)->chunk_count, 6u);
  EXPECT_TRUE((*report)->bad_chunks.empty());

  shard->memory->data()[0] ^= std::byte{1};
  shard->memory->data()[kSize - 1] ^= std::byte{128};
  report = Verify(Name(10));
  ASSERT_TRUE(report && report->ok());
  EXPECT_THAT((*report)->bad_chunks, ElementsAre(0, 5));
  EXPECT_FALSE(table_.IsPinned(Name(10)));
}

TEST_F(VerifierTest, KeepsTheShardMeanwhile) {
  const ReservationId own = Reserved(Purpose::kOwn, kSize, 1);
  Save(Name(10), own, kSize);
  bool done = false;
  verifier_.Verify(Name(10), [&](Result<VerifyReport> report) { done = report.ok(); });
  EXPECT_EQ(table_.Drop(Name(10)).code(), StatusCode::kUnavailable);
  executor_.RunUntilIdle();
  EXPECT_TRUE(done);
  EXPECT_TRUE(table_.Drop(Name(10)).ok());
}

TEST_F(VerifierTest, SaysWhyItCannot) {
  const auto missing = Verify(Name(10));
  ASSERT_TRUE(missing);
  EXPECT_EQ(missing->status().code(), StatusCode::kNotFound);
  Save(Name(10), Reserved(Purpose::kOwn, kSize, 1), kSize);
  ShardVerifier full(table_, executor_, [](auto, auto) { return NoSpace("queue full"); });
  std::optional<StatusCode> code;
  full.Verify(Name(10), [&](Result<VerifyReport> report) { code = report.status().code(); });
  executor_.RunUntilIdle();
  EXPECT_EQ(code, StatusCode::kNoSpace);
  EXPECT_FALSE(table_.IsPinned(Name(10)));
}

class ScrubberTest : public VerifierTest {
 protected:
  // A batch is the whole of each of these small shards, so one is read each `kSize / kRate`.
  static constexpr uint64_t kRate = kSize / 2;

  std::vector<ShardName> bad_;
  Scrubber scrubber_{table_, verifier_, executor_, kRate,
                     [this](const ShardName& name) { bad_.push_back(name); }};
};

TEST_F(ScrubberTest, FindsDamageThatNobodyHasRead) {
  const ReservationId own = Reserved(Purpose::kOwn, kSize, 3);
  Save(Name(10), own, kSize);
  const Shard* damaged = Save(Name(20), own, kSize);
  Save(Name(30), own, kSize);
  executor_.RunFor(std::chrono::seconds(20));
  EXPECT_TRUE(bad_.empty());
  EXPECT_GE(scrubber_.stats().passes, 2u);
  EXPECT_GT(scrubber_.stats().last_pass_unix_ms, 0);
  damaged->memory->data()[kSize / 2] ^= std::byte{1};
  executor_.RunFor(std::chrono::seconds(8));
  ASSERT_FALSE(bad_.empty());
  EXPECT_EQ(bad_.front(), Name(20));
  // Set aside, as its owner does: it is not read again.
  table_.Quarantine(Name(20), "found");
  const size_t found = bad_.size();
  EXPECT_EQ(scrubber_.stats().bad_shards, found);
  executor_.RunFor(std::chrono::seconds(20));
  EXPECT_EQ(bad_.size(), found);
}

TEST_F(ScrubberTest, KeepsToItsRateAndPinsNothingInBetween) {
  Save(Name(10), Reserved(Purpose::kOwn, kSize, 2), kSize);
  executor_.RunFor(std::chrono::seconds(60));
  // Two seconds for the shard and one between passes.
  EXPECT_GE(scrubber_.stats().scrubbed_bytes, 18 * kSize);
  EXPECT_LE(scrubber_.stats().scrubbed_bytes, 21 * kSize);
  EXPECT_FALSE(table_.IsPinned(Name(10)));
}

TEST_F(ScrubberTest, GoesOnWhenWhatItReadsIsDropped) {
  const ReservationId own = Reserved(Purpose::kOwn, kSize, 2);
  for (uint64_t step = 10; step < 200; step += 10) {
    Save(Name(step), own, kSize);
    executor_.RunFor(std::chrono::milliseconds(700));
    if (step == 10) continue;
    EXPECT_TRUE(table_.Drop(Name(step - 10)).ok());
  }
  EXPECT_TRUE(bad_.empty());
  EXPECT_GT(scrubber_.stats().passes, 0u);
}

}  // namespace
}  // namespace backstay::store::testing
