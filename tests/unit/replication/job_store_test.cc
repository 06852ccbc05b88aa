#include "replication/job_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "replication/metadata_keys.h"
#include "tests/support/manual_executor.h"
#include "tests/support/memory_metadata_store.h"

namespace backstay::replication {
namespace {

using namespace std::chrono_literals;
using backstay::testing::ManualExecutor;
using backstay::testing::MemoryMetadata;
using backstay::testing::MemoryMetadataClient;
using ::testing::ElementsAre;

class JobStoreTest : public ::testing::Test {
 protected:
  static constexpr Duration kPatience = 10s;

  Result<StoredJob> Read(const JobName& job) {
    std::optional<Result<StoredJob>> answer;
    store_.Read(job, executor_.Now() + kPatience, [&](Result<StoredJob> got) { answer = got; });
    return Await(answer);
  }
  Result<Revision> Write(const std::string& bytes, Revision expected,
                         std::vector<Compare> conditions = {}, Duration patience = kPatience) {
    std::optional<Result<Revision>> answer;
    store_.Write(job_, bytes, expected, std::move(conditions), executor_.Now() + patience,
                 [&](Result<Revision> got) { answer = got; });
    return Await(answer);
  }
  Status Remove(Revision expected, std::vector<Compare> conditions = {}) {
    std::optional<Status> answer;
    store_.Remove(job_, expected, std::move(conditions), executor_.Now() + kPatience,
                  [&](Status got) { answer = got; });
    return Await(answer);
  }
  template <typename T>
  T Await(std::optional<T>& answer) {
    EXPECT_FALSE(answer.has_value()) << "the completion ran inside the call";
    EXPECT_TRUE(executor_.RunUntil([&] { return answer.has_value(); }, 2 * kPatience));
    return *answer;
  }
  // Another writer's transaction.
  Revision Put(const std::string& key, const std::string& value) {
    std::optional<Result<TransactionResult>> answer;
    Transaction transaction;
    transaction.operations = {{Operation::Kind::kPut, key, value, kNoLease}};
    other_->Commit(transaction, kNoDeadline, [&](Result<TransactionResult> got) { answer = got; });
    return Await(answer)->revision;
  }

  const JobName job_{"team/run 1"};
  ManualExecutor executor_;
  SeededRandom random_{1};
  MemoryMetadata service_{&executor_, StoreId("store")};
  std::unique_ptr<MemoryMetadataClient> client_ = service_.NewClient();
  std::unique_ptr<MemoryMetadataClient> other_ = service_.NewClient();
  JobStore store_{client_.get(), &executor_, &random_};
};

TEST_F(JobStoreTest, WritesOnlyOverWhatItRead) {
  EXPECT_EQ(Read(job_).status().code(), StatusCode::kNotFound);
  const Revision first = Write("one", 0).value();
  EXPECT_EQ(Read(job_)->bytes, "one");
  EXPECT_EQ(Read(job_)->revision, first);
  EXPECT_EQ(Write("two", 0).status().code(), StatusCode::kStale);
  const Revision second = Write("two", first).value();
  EXPECT_GT(second, first);
  EXPECT_EQ(Write("three", first).status().code(), StatusCode::kStale);
  EXPECT_EQ(Read(job_)->bytes, "two");
  EXPECT_EQ(Remove(first).code(), StatusCode::kStale);
  EXPECT_TRUE(Remove(second).ok());
  EXPECT_EQ(Read(job_).status().code(), StatusCode::kNotFound);
}

// Attack: a deposed leader, or one that counts on a dead node, commits.
TEST_F(JobStoreTest, WritesOnlyWhileItsConditionsHold) {
  const Revision term = Put(LeaderKey(job_), "me");
  const Compare lead{LeaderKey(job_), Compare::Target::kCreateRevision, term};
  const Compare alive{NodeKey(NodeId("n")), Compare::Target::kCreateRevision, 77};
  const Revision first = Write("one", 0, {lead}).value();
  EXPECT_EQ(Write("two", first, {lead, alive}).status().code(), StatusCode::kStale);
  EXPECT_EQ(Read(job_)->bytes, "one");
  EXPECT_EQ(Remove(first, {alive}).code(), StatusCode::kStale);
}

TEST_F(JobStoreTest, LostAnswerIsResolvedByReading) {
  client_->LoseReplies(1);
  const Revision first = Write("one", 0).value();
  EXPECT_EQ(Read(job_)->revision, first);
  client_->LoseRequests(3);
  const Revision second = Write("two", first).value();
  EXPECT_EQ(Read(job_)->bytes, "two");
  EXPECT_EQ(Read(job_)->revision, second);
  // The same bytes again are a new write, which must not be taken for the old one.
  client_->LoseRequests(1);
  EXPECT_GT(Write("two", second).value(), second);
  client_->LoseReplies(1);
  EXPECT_TRUE(Remove(Read(job_)->revision).ok());
  EXPECT_EQ(Read(job_).status().code(), StatusCode::kNotFound);
}

TEST_F(JobStoreTest, LostRequestMeetsAnotherWriter) {
  const Revision first = Write("one", 0).value();
  client_->SetDelay(1s, 0s);
  client_->LoseRequests(1);
  std::optional<Result<Revision>> answer;
  store_.Write(job_, "mine", first, {}, executor_.Now() + kPatience,
               [&](Result<Revision> got) { answer = got; });
  Put(JobRecordKey(job_), "theirs");
  EXPECT_EQ(Await(answer).status().code(), StatusCode::kStale);
  EXPECT_EQ(Read(job_)->bytes, "theirs");
}

TEST_F(JobStoreTest, LostRequestWhoseConditionNoLongerHoldsEnds) {
  const Revision first = Write("one", 0).value();
  client_->LoseRequests(1);
  const Compare gone{LeaderKey(job_), Compare::Target::kCreateRevision, 12345};
  EXPECT_EQ(Write("two", first, {gone}).status().code(), StatusCode::kStale);
  EXPECT_EQ(Read(job_)->bytes, "one");
}

TEST_F(JobStoreTest, WhatCannotBeFoundOutIsUnknown) {
  client_->SetUnavailable(true);
  EXPECT_EQ(Write("one", 0).status().code(), StatusCode::kUnavailable);
  client_->SetUnavailable(false);
  client_->SetDelay(0s, 1s);
  std::optional<Result<Revision>> answer;
  store_.Write(job_, "one", 0, {}, executor_.Now() + 5s,
               [&](Result<Revision> got) { answer = got; });
  executor_.RunFor(100ms);
  client_->SetUnavailable(true);  // The write arrived; its answer and every question are lost.
  EXPECT_EQ(Await(answer).status().code(), StatusCode::kUnknownOutcome);
  client_->SetUnavailable(false);
  EXPECT_EQ(Read(job_)->bytes, "one");
}

TEST_F(JobStoreTest, WaitTellsTheNextRecord) {
  const Revision first = Write("one", 0).value();
  std::optional<Result<StoredJob>> answer;
  store_.WaitForChange(job_, first, executor_.Now() + 5s,
                       [&](Result<StoredJob> got) { answer = got; });
  executor_.RunFor(1s);
  EXPECT_FALSE(answer.has_value());
  const Revision second = Put(JobRecordKey(job_), "two");
  executor_.RunUntilIdle();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ((*answer)->bytes, "two");
  EXPECT_EQ((*answer)->revision, second);
}

TEST_F(JobStoreTest, ListsJobsWithRecords) {
  ASSERT_TRUE(Write("one", 0).ok());
  Put(JobRecordKey(JobName("a")), "");
  Put(LeaderKey(JobName("only a leader")), "");
  Put("jobs/%zz/record", "");
  std::optional<Result<JobListing>> answer;
  store_.List(executor_.Now() + 1s, [&](Result<JobListing> got) { answer = got; });
  EXPECT_THAT(Await(answer)->jobs, ElementsAre(JobName("a"), job_));
}

TEST_F(JobStoreTest, BadNamesAreRefused) {
  std::optional<Result<Revision>> answer;
  store_.Write(JobName(""), "", 0, {}, kNoDeadline, [&](Result<Revision> got) { answer = got; });
  EXPECT_EQ(Await(answer).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace backstay::replication
