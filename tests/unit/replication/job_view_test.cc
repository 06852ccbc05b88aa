#include "replication/job_view.h"

#include <gtest/gtest.h>

namespace backstay::replication {
namespace {

ShardName Name(uint64_t generation, uint64_t step) {
  return {JobName("job"), {Generation(generation), Step(step)}, ShardId("0")};
}

JobView View() {
  JobView view;
  view.revision = 5;
  view.generation = Generation(2);
  view.resumed_attempt = Attempt(1);
  view.kept[{Generation(2), Step(100)}] = Hash128{1, 1};
  view.last_committed = Step(100);
  view.last_abandoned = Step(110);
  view.first_commit_done = true;
  return view;
}

TEST(JudgeShard, KeepsTheKeptSetAndWhatMayStillCommit) {
  const JobView view = View();
  EXPECT_EQ(JudgeShard(view, Name(2, 100)), KeepVerdict::kKeepCommitted);
  EXPECT_EQ(JudgeShard(view, Name(2, 90)), KeepVerdict::kDrop);
  EXPECT_EQ(JudgeShard(view, Name(2, 110)), KeepVerdict::kDrop);
  EXPECT_EQ(JudgeShard(view, Name(2, 111)), KeepVerdict::kKeep);
  EXPECT_EQ(JudgeShard(view, Name(3, 1)), KeepVerdict::kKeep);
  EXPECT_EQ(JudgeShard(view, Name(1, 200)), KeepVerdict::kDrop);
}

TEST(JudgeShard, NothingOfThePastGoesBeforeTheFirstCommit) {
  JobView view = View();
  view.first_commit_done = false;
  view.kept.clear();
  EXPECT_EQ(JudgeShard(view, Name(1, 50)), KeepVerdict::kKeep);
  EXPECT_EQ(JudgeShard(view, Name(1, 200)), KeepVerdict::kKeep);
}

TEST(JudgeShard, KeepsPinnedBasesAndEverythingWhileClosing) {
  JobView view = View();
  view.pinned.insert({Generation(1), Step(200)});
  EXPECT_EQ(JudgeShard(view, Name(1, 200)), KeepVerdict::kKeep);
  EXPECT_EQ(JudgeShard(view, Name(1, 190)), KeepVerdict::kDrop);
  view.closing_uuid = AttemptUuid("next");
  EXPECT_EQ(JudgeShard(view, Name(1, 190)), KeepVerdict::kKeep);
}

TEST(JudgeShard, KnowsNothingBeforeTheLeaderSpoke) {
  EXPECT_EQ(JudgeShard(JobView(), Name(1, 1)), KeepVerdict::kKeep);
  JobView view = View();
  view.ended = true;
  EXPECT_EQ(JudgeShard(view, Name(2, 100)), KeepVerdict::kDrop);
}

TEST(DecodeJobState, RefusesMalformedStates) {
  wire::Header header;
  header.set_job("job");
  header.set_generation(2);
  wire::JobState state;
  state.add_kept()->set_root("short");
  EXPECT_EQ(DecodeJobState(header, state).status().code(), StatusCode::kInvalidArgument);
  state.clear_kept();
  for (int i = 0; i <= kSnapshotsInStateMax; ++i) state.add_pinned();
  EXPECT_EQ(DecodeJobState(header, state).status().code(), StatusCode::kInvalidArgument);
  state.clear_pinned();
  ASSERT_TRUE(DecodeJobState(header, state).ok());
  EXPECT_EQ(DecodeJobState(header, state)->generation, Generation(2));
}

}  // namespace
}  // namespace backstay::replication
