#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tests/unit/recovery/job_leader_fixture.h"

namespace backstay::testing {

// A job of two ranks; nodes "a" and "b" hold all that it saved.
class ReconfigurerTest : public JobLeaderTest {
 protected:
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
};

}  // namespace backstay::testing
