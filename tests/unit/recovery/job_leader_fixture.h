#pragma once

#include <gtest/gtest.h>

#include "tests/unit/recovery/leader_fixture.h"

namespace backstay::testing {

// A job of two ranks that runs in generation 1.
class JobLeaderTest : public ::testing::Test {
 protected:
  void StartJob() {
    cluster_.Elect();
    cluster_.AdmitAll();
    ASSERT_EQ(cluster_.ReconfigureAll("u1", 0).generation(), 1u);
  }
  void Commit(uint64_t step) {
    cluster_.Protect(1, step);
    ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.CommitIsRecorded(step); }));
  }
  wire::SnapshotStatus StatusOf(uint64_t step) {
    const wire::LeaderStatusReply shown = cluster_.ReadStatus();
    for (const wire::SnapshotStatus& snapshot : shown.snapshots()) {
      if (snapshot.snapshot().step() == step) return snapshot;
    }
    return {};
  }

  LeaderFixture cluster_;
};

}  // namespace backstay::testing
