#include "replication/job_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace backstay::replication {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const JobName kJob("job");
const std::string kRoot(16, 'r');

SnapshotId Id(uint64_t generation, uint64_t step) { return {Generation(generation), Step(step)}; }

wire::RecordedSnapshot Snapshot(uint64_t generation, uint64_t step) {
  wire::RecordedSnapshot snapshot;
  snapshot.set_generation(generation);
  snapshot.set_step(step);
  snapshot.set_root(kRoot);
  snapshot.set_world_size(4);
  return snapshot;
}

ChosenBase Base(uint64_t generation, uint64_t step, bool committed = true) {
  ChosenBase base;
  base.snapshot = Id(generation, step);
  base.root = kRoot;
  base.committed = committed;
  return base;
}

ChosenBase FreshBase() {
  ChosenBase base;
  base.fresh = true;
  return base;
}

wire::JobRecord NewJob(uint32_t versions = 1) {
  return CreateRecord(kJob, "token", 4, 1, versions).value();
}

// The record after one whole reconfiguration from `base`.
wire::JobRecord Reconfigured(const wire::JobRecord& record, const std::string& uuid,
                             const ChosenBase& base) {
  const AttemptUuid id(uuid);
  const wire::JobRecord closed = CloseGeneration(record, id, {}).value();
  const wire::JobRecord decided = Decide(closed, id, 4, base).value();
  return MarkResumed(decided, id, Attempt(1)).value();
}

wire::JobRecord Committed(const wire::JobRecord& record, uint64_t step) {
  return CommitSnapshot(record, Snapshot(record.generation(), step)).value();
}

StatusCode CodeOf(const Result<wire::JobRecord>& result) { return result.status().code(); }

TEST(JobRecord, LimitsAreChecked) {
  EXPECT_EQ(CodeOf(CreateRecord(kJob, "", 0, 1, 1)), StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(CreateRecord(kJob, "", kWorldSizeMax + 1, 1, 1)), StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(CreateRecord(kJob, "", 1, kReplicasMax + 1, 1)), StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(CreateRecord(kJob, "", 1, 0, 0)), StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(CreateRecord(kJob, "", 1, 0, kVersionsMax + 1)), StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(CreateRecord(JobName(""), "", 1, 0, 1)), StatusCode::kInvalidArgument);
}

TEST(JobRecord, ARecordOfAnotherFormatIsRefused) {
  wire::JobRecord record = NewJob();
  EXPECT_TRUE(CheckRecord(record, kJob).ok());
  EXPECT_EQ(CheckRecord(record, JobName("other")).code(), StatusCode::kCorrupt);
  record.set_format_version(kJobRecordFormatVersion + 1);
  EXPECT_EQ(CheckRecord(record, kJob).code(), StatusCode::kInvalidArgument);
}

TEST(JobRecord, FirstGenerationStartsFresh) {
  const wire::JobRecord record = Reconfigured(NewJob(), "u1", FreshBase());
  EXPECT_EQ(record.generation(), 1u);
  EXPECT_TRUE(record.decision().resumed());
  EXPECT_FALSE(CurrentBase(record).has_value());
  EXPECT_FALSE(Floor(record).has_value());
}

TEST(JobRecord, NothingIsCommittedWhileClosing) {
  const wire::JobRecord record = Reconfigured(NewJob(), "u1", FreshBase());
  const wire::JobRecord closing = CloseGeneration(record, AttemptUuid("u2"), {}).value();
  EXPECT_EQ(CodeOf(CommitSnapshot(closing, Snapshot(1, 10))), StatusCode::kStale);
}

TEST(JobRecord, NothingIsCommittedBeforeTheGenerationHasResumed) {
  const wire::JobRecord closed = CloseGeneration(NewJob(), AttemptUuid("u"), {}).value();
  const wire::JobRecord decided = Decide(closed, AttemptUuid("u"), 4, FreshBase()).value();
  EXPECT_EQ(CodeOf(CommitSnapshot(decided, Snapshot(1, 10))), StatusCode::kStale);
}

TEST(JobRecord, StepsAreCommittedInIncreasingOrderAboveTheAbandonedOnes) {
  wire::JobRecord record = Reconfigured(NewJob(), "u1", FreshBase());
  record = Committed(record, 20);
  EXPECT_EQ(CodeOf(CommitSnapshot(record, Snapshot(1, 20))), StatusCode::kStale);
  EXPECT_EQ(CodeOf(CommitSnapshot(record, Snapshot(1, 10))), StatusCode::kStale);
  record = AbandonSnapshot(record, Id(1, 40)).value();
  EXPECT_EQ(CodeOf(CommitSnapshot(record, Snapshot(1, 30))), StatusCode::kStale);
  EXPECT_EQ(CodeOf(CommitSnapshot(record, Snapshot(1, 40))), StatusCode::kStale);
  EXPECT_TRUE(CommitSnapshot(record, Snapshot(1, 50)).ok());
}

TEST(JobRecord, AbandoningOnlyRaises) {
  wire::JobRecord record = Reconfigured(NewJob(), "u1", FreshBase());
  record = AbandonSnapshot(record, Id(1, 40)).value();
  record = AbandonSnapshot(record, Id(1, 30)).value();
  EXPECT_EQ(record.last_abandoned_step(), 40u);
  record = Committed(record, 50);
  EXPECT_EQ(CodeOf(AbandonSnapshot(record, Id(1, 50))), StatusCode::kStale);
  EXPECT_EQ(CodeOf(AbandonSnapshot(record, Id(2, 60))), StatusCode::kStale);
}

TEST(JobRecord, SnapshotsOfOtherGenerationsOrWorldsAreNotCommitted) {
  const wire::JobRecord record = Reconfigured(NewJob(), "u1", FreshBase());
  EXPECT_EQ(CodeOf(CommitSnapshot(record, Snapshot(2, 10))), StatusCode::kStale);
  wire::RecordedSnapshot other = Snapshot(1, 10);
  other.set_world_size(8);
  EXPECT_EQ(CodeOf(CommitSnapshot(record, other)), StatusCode::kInvalidArgument);
}

TEST(JobRecord, RetentionKeepsTheNewestVersions) {
  wire::JobRecord record = Reconfigured(NewJob(2), "u1", FreshBase());
  for (const uint64_t step : {10, 20, 30}) record = Committed(record, step);
  EXPECT_THAT(KeptSet(record), ElementsAre(Id(1, 20), Id(1, 30)));
  EXPECT_EQ(record.last_committed_step(), 30u);
}

TEST(JobRecord, ASecondUuidSupersedesTheFirst) {
  wire::JobRecord record = CloseGeneration(NewJob(), AttemptUuid("u1"), {}).value();
  record = CloseGeneration(record, AttemptUuid("u2"), {AttemptUuid("u0")}).value();
  EXPECT_TRUE(IsSuperseded(record, AttemptUuid("u1")));
  EXPECT_TRUE(IsSuperseded(record, AttemptUuid("u0")));
  EXPECT_EQ(CodeOf(CloseGeneration(record, AttemptUuid("u1"), {})), StatusCode::kStale);
  EXPECT_EQ(CodeOf(Decide(record, AttemptUuid("u1"), 4, FreshBase())), StatusCode::kStale);
  EXPECT_TRUE(Decide(record, AttemptUuid("u2"), 4, FreshBase()).ok());
}

// Attack: uuid 1 arrives late, after uuid 2 was decided.
TEST(JobRecord, ALateUuidFindsTheGenerationTaken) {
  wire::JobRecord record = CloseGeneration(NewJob(), AttemptUuid("u1"), {}).value();
  record = Reconfigured(record, "u2", FreshBase());
  EXPECT_EQ(CodeOf(CloseGeneration(record, AttemptUuid("u1"), {})), StatusCode::kStale);
  EXPECT_EQ(CodeOf(CloseGeneration(record, AttemptUuid("u2"), {})), StatusCode::kStale);
}

TEST(JobRecord, SupersededUuidsAreBounded) {
  wire::JobRecord record = NewJob();
  for (int i = 0; i < 3 * kSupersededUuidsMax; ++i) {
    record = CloseGeneration(record, AttemptUuid("u" + std::to_string(i)), {}).value();
  }
  EXPECT_EQ(record.superseded_uuids_size(), kSupersededUuidsMax);
  EXPECT_TRUE(CheckRecord(record, kJob).ok());
}

TEST(JobRecord, AttemptsMoveOnlyBeforeResuming) {
  wire::JobRecord record = Reconfigured(NewJob(2), "u1", FreshBase());
  record = Committed(Committed(record, 10), 20);
  const AttemptUuid uuid("u2");
  record = CloseGeneration(record, uuid, {}).value();
  record = Decide(record, uuid, 4, Base(1, 20)).value();
  EXPECT_EQ(CodeOf(NextAttempt(record, uuid, Attempt(2), Base(1, 10))), StatusCode::kStale);
  EXPECT_EQ(CodeOf(NextAttempt(record, AttemptUuid("u1"), Attempt(1), Base(1, 10))),
            StatusCode::kStale);
  const wire::JobRecord next = NextAttempt(record, uuid, Attempt(1), Base(1, 10)).value();
  EXPECT_EQ(next.decision().attempt(), 2u);
  EXPECT_EQ(next.generation(), record.generation());
  EXPECT_EQ(CurrentBase(next), Id(1, 10));
  // Step 20 is off the lineage now, and stays until the generation's first commit.
  EXPECT_FALSE(OnLineage(next, Id(1, 20)));
  EXPECT_EQ(next.last_committed_step(), 10u);
  EXPECT_THAT(KeptSet(next), ElementsAre(Id(1, 10), Id(1, 20)));
  EXPECT_EQ(CodeOf(MarkResumed(next, uuid, Attempt(1))), StatusCode::kStale);
  const wire::JobRecord resumed = MarkResumed(next, uuid, Attempt(2)).value();
  EXPECT_EQ(CodeOf(NextAttempt(resumed, uuid, Attempt(2), FreshBase())), StatusCode::kStale);
  const wire::JobRecord committed = Committed(resumed, 15);
  EXPECT_THAT(KeptSet(committed), ElementsAre(Id(1, 10), Id(2, 15)));
  EXPECT_THAT(PinnedSet(committed), IsEmpty());
}

TEST(JobRecord, AttemptsEnd) {
  const AttemptUuid uuid("u");
  wire::JobRecord record = CloseGeneration(NewJob(), uuid, {}).value();
  record = Decide(record, uuid, 4, FreshBase()).value();
  for (uint64_t attempt = 1; attempt < kAttemptsMax; ++attempt) {
    record = NextAttempt(record, uuid, Attempt(attempt), FreshBase()).value();
  }
  EXPECT_FALSE(NextAttempt(record, uuid, Attempt(kAttemptsMax), FreshBase()).ok());
}

// An uncommitted or abandoned step 110 of generation 1 never outranks step 105 of generation 2 that
// grew from step 100.
TEST(JobRecord, LineageFollowsTheBases) {
  wire::JobRecord record = Reconfigured(NewJob(2), "u1", FreshBase());
  record = Committed(record, 100);
  record = Reconfigured(record, "u2", Base(1, 100));
  EXPECT_TRUE(OnLineage(record, Id(1, 100)));
  EXPECT_FALSE(OnLineage(record, Id(1, 110)));
  EXPECT_TRUE(OnLineage(record, Id(2, 105)));
  EXPECT_FALSE(OnLineage(record, Id(3, 120)));
  EXPECT_FALSE(OnLineage(record, Id(0, 0)));
  record = Committed(record, 105);
  record = Reconfigured(record, "u3", Base(2, 105));
  EXPECT_TRUE(OnLineage(record, Id(1, 100)));
  EXPECT_TRUE(OnLineage(record, Id(2, 105)));
  EXPECT_FALSE(OnLineage(record, Id(2, 106)));
}

TEST(JobRecord, LineageIsBoundedAndKeepsWhatTheKeptSetNeeds) {
  wire::JobRecord record = Reconfigured(NewJob(kVersionsMax), "u", FreshBase());
  record = Committed(record, 1);
  for (uint64_t i = 2; i < 5 * static_cast<uint64_t>(kLineageMax); ++i) {
    record = Reconfigured(record, "u" + std::to_string(i), Base(record.generation(), i - 1));
    record = Committed(record, i);
    ASSERT_LE(record.lineage_size(), kLineageMax);
    for (const SnapshotId& kept : KeptSet(record)) ASSERT_TRUE(OnLineage(record, kept));
  }
  EXPECT_EQ(KeptSet(record).size(), kVersionsMax);
  EXPECT_TRUE(CheckRecord(record, kJob).ok());
}

// A job that faults again and again before its first commit keeps its base, and its record stays
// small.
TEST(JobRecord, RestartsWithoutCommitsChangeNothingButTheGeneration) {
  wire::JobRecord record = Reconfigured(NewJob(), "u", FreshBase());
  record = Committed(record, 100);
  for (int i = 0; i < 200; ++i) {
    record = Reconfigured(record, "v" + std::to_string(i), Base(1, 100));
  }
  EXPECT_EQ(record.lineage_size(), 2);
  EXPECT_THAT(KeptSet(record), ElementsAre(Id(1, 100)));
  EXPECT_THAT(PinnedSet(record), ElementsAre(Id(1, 100)));
}

TEST(JobRecord, AnUncommittedBaseIsCommittedUnderItsOwnNameAndTheFloorStaysUntilThen) {
  wire::JobRecord record = Reconfigured(NewJob(1), "u1", FreshBase());
  record = Committed(record, 100);
  record = Reconfigured(record, "u2", Base(1, 110, /*committed=*/false));
  EXPECT_EQ(record.last_committed_step(), 100u);
  EXPECT_THAT(KeptSet(record), ElementsAre(Id(1, 100)));
  EXPECT_THAT(PinnedSet(record), ElementsAre(Id(1, 110)));
  wire::RecordedSnapshot other = Snapshot(1, 110);
  other.set_root(std::string(16, 'x'));
  EXPECT_EQ(CodeOf(CommitSnapshot(record, other)), StatusCode::kInvalidArgument);
  const wire::JobRecord committed = CommitSnapshot(record, Snapshot(1, 110)).value();
  EXPECT_THAT(KeptSet(committed), ElementsAre(Id(1, 110)));
  EXPECT_TRUE(committed.decision().base_committed());
  // It is no commit of the new generation: what is off the lineage still stays.
  EXPECT_FALSE(committed.first_commit_done());
  EXPECT_EQ(CodeOf(CommitSnapshot(committed, Snapshot(1, 110))), StatusCode::kStale);
}

TEST(JobRecord, ANewGenerationCommitsOnlyAboveItsBase) {
  wire::JobRecord record = Reconfigured(NewJob(1), "u1", FreshBase());
  record = Committed(record, 100);
  record = Reconfigured(record, "u2", Base(1, 110, /*committed=*/false));
  EXPECT_EQ(CodeOf(CommitSnapshot(record, Snapshot(2, 105))), StatusCode::kStale);
  const wire::JobRecord later = Committed(record, 120);
  EXPECT_THAT(KeptSet(later), ElementsAre(Id(2, 120)));
}

TEST(JobRecord, DroppingStateFreesTheOldOnlyAfterTheFirstCommit) {
  wire::JobRecord record = Reconfigured(NewJob(1), "u1", FreshBase());
  record = Committed(record, 100);
  record = Reconfigured(record, "u2", FreshBase());
  EXPECT_FALSE(Floor(record).has_value());
  EXPECT_THAT(KeptSet(record), ElementsAre(Id(1, 100)));
  record = Committed(record, 5);
  EXPECT_THAT(KeptSet(record), ElementsAre(Id(2, 5)));
}

TEST(JobRecord, AForkStartsItsOwnLineage) {
  ChosenBase base = Base(7, 300);
  base.job = "parent";
  const wire::JobRecord record = Reconfigured(NewJob(), "u1", base);
  EXPECT_FALSE(CurrentBase(record).has_value());
  EXPECT_FALSE(OnLineage(record, Id(7, 300)));
  EXPECT_EQ(CodeOf(CommitSnapshot(record, Snapshot(1, 300))), StatusCode::kStale);
  EXPECT_TRUE(CommitSnapshot(record, Snapshot(1, 310)).ok());
}

TEST(JobRecord, ABaseOfTheFutureIsRefused) {
  const wire::JobRecord closing = CloseGeneration(NewJob(), AttemptUuid("u"), {}).value();
  EXPECT_EQ(CodeOf(Decide(closing, AttemptUuid("u"), 4, Base(1, 5))), StatusCode::kInvalidArgument);
}

TEST(JobRecord, AnEndedJobChangesNoMore) {
  const wire::JobRecord record = Committed(Reconfigured(NewJob(), "u1", FreshBase()), 10);
  const wire::JobRecord ended = EndRecord(record, 1).value();
  EXPECT_EQ(CodeOf(CommitSnapshot(ended, Snapshot(1, 20))), StatusCode::kStale);
  EXPECT_EQ(CodeOf(CloseGeneration(ended, AttemptUuid("u2"), {})), StatusCode::kStale);
  EXPECT_EQ(CodeOf(AbandonSnapshot(ended, Id(1, 20))), StatusCode::kStale);
  EXPECT_EQ(EndRecord(ended, 99).value().ended_unix_ms(), 1);
}

// Attack: a job ends and another of its name begins; leftovers of the first look like the second's.
TEST(JobRecord, AJobThatBeginsAgainHasNoLineageIntoTheOldOne) {
  const wire::JobRecord again =
      CreateRecord(kJob, "token", 4, 1, 1, /*last=*/Generation(7)).value();
  EXPECT_GT(again.generation(), 7u);
  EXPECT_FALSE(OnLineage(again, Id(7, 100)));
}

}  // namespace
}  // namespace backstay::replication
