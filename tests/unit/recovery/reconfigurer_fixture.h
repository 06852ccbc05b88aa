#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tests/unit/recovery/leader_fixture.h"

namespace backstay::testing {

// A job of two ranks; nodes "a" and "b" hold all that it saved.
class ReconfigurerTest : public ::testing::Test {
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
  static StatusCode CodeOf(const Result<wire::Reply>& reply) { return reply.status().code(); }
  wire::Request RestoreReport(const wire::Decision& decision, uint32_t rank, bool ok,
                              bool unreadable) {
    wire::Request request;
    wire::ReportVerified* report = request.mutable_report_verified();
    report->set_uuid(decision.uuid());
    report->set_attempt(decision.attempt());
    wire::RankRestore* restore = report->add_ranks();
    restore->set_rank(rank);
    restore->set_ok(ok);
    restore->set_unreadable(unreadable);
    restore->set_shard_id(std::to_string(rank));
    return request;
  }

  LeaderFixture cluster_;
};

}  // namespace backstay::testing
