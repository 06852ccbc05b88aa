// The embedded store when its disk is slow, full, damaged or somebody else's.

#include "replication/metadata_embedded.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/units.h"
#include "replication/metadata_sqlite.h"
#include "tests/support/manual_executor.h"
#include "tests/support/memory_metadata_store.h"
#include "tests/support/temporary_directory.h"

namespace backstay::replication {
namespace {

using namespace std::chrono_literals;
using backstay::testing::ManualExecutor;
using backstay::testing::MemoryMetadata;
using backstay::testing::TemporaryDirectory;

Transaction PutOne(std::string key, std::string value) {
  Transaction transaction;
  transaction.operations = {{Operation::Kind::kPut, std::move(key), std::move(value), kNoLease}};
  return transaction;
}

class EmbeddedMetadataTest : public ::testing::Test {
 protected:
  Result<std::unique_ptr<EmbeddedMetadataStore>> Open(EmbeddedMetadataOptions options = {}) {
    options.directory = directory_.path();
    return OpenEmbeddedMetadataStore(options, &random_, &executor_);
  }
  StatusCode OpenCode(EmbeddedMetadataOptions options = {}) {
    const auto store = Open(std::move(options));
    return store.ok() ? StatusCode::kOk : store.status().code();
  }
  std::string FilePath() const { return directory_.path() + "/" + kMetadataFileName; }

  template <typename T>
  Result<T> Await(const std::function<void(Completion<T>)>& call) {
    std::optional<Result<T>> answer;
    call([&answer](Result<T> got) { answer = std::move(got); });
    EXPECT_TRUE(executor_.RunUntilPosted([&answer] { return answer.has_value(); }, 30s));
    return *std::move(answer);
  }
  Result<TransactionResult> Put(MetadataStore* store, std::string key, std::string value) {
    return Await<TransactionResult>([&](Completion<TransactionResult> done) {
      store->Commit(PutOne(std::move(key), std::move(value)), kNoDeadline, std::move(done));
    });
  }
  Result<RangeResult> Range(MetadataStore* store, std::string prefix) {
    return Await<RangeResult>([&](Completion<RangeResult> done) {
      store->Range(std::move(prefix), kNoDeadline, std::move(done));
    });
  }
  // Changes the closed file behind the store's back.
  void Execute(const std::string& sql) {
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open(FilePath().c_str(), &database), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(database, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK)
        << sqlite3_errmsg(database);
    sqlite3_close(database);
  }
  // Writes until one write fails; says how many succeeded.
  int WriteUntilFailure(MetadataStore* store, Status* failure) {
    constexpr int kWritesMax = 10000;
    const std::string value(8 * kKiB, 'v');
    for (int i = 0; i < kWritesMax; ++i) {
      const auto result = Put(store, std::to_string(i), value);
      if (result.ok()) continue;
      *failure = result.status();
      return i;
    }
    ADD_FAILURE() << "no write failed";
    return kWritesMax;
  }
  // What must hold once a write failed; ends the store.
  void CheckStopped(std::unique_ptr<EmbeddedMetadataStore> store, const Status& failure) {
    EXPECT_EQ(failure.code(), StatusCode::kUnknownOutcome);
    EXPECT_EQ(Put(store.get(), "later", "").status().code(), StatusCode::kUnavailable);
    EXPECT_EQ(Range(store.get(), "").status().code(), StatusCode::kUnavailable);
    EXPECT_EQ(store->health().code(), StatusCode::kUnavailable);
    EXPECT_NE(store->health().message().find(FilePath()), std::string::npos);
  }

  TemporaryDirectory directory_;
  ManualExecutor executor_;
  SeededRandom random_{1};
};

TEST_F(EmbeddedMetadataTest, FullDiskStopsTheStoreAndLosesNothingThatWasConfirmed) {
  auto store = Open({.directory = {}, .file_bytes_max = kMiB}).value();
  std::optional<Result<RangeResult>> wait;
  store->WaitForChange("never", 1, kNoDeadline, [&](Result<RangeResult> got) { wait = got; });
  Status failure;
  const int written = WriteUntilFailure(store.get(), &failure);
  EXPECT_GT(written, 10);
  EXPECT_NE(failure.message().find("full"), std::string::npos) << failure;
  executor_.RunUntilIdle();
  ASSERT_TRUE(wait.has_value());
  CheckStopped(std::move(store), failure);

  const auto reopened = Open().value();
  EXPECT_GE(Range(reopened.get(), "")->pairs.size(), static_cast<size_t>(written));
  EXPECT_TRUE(Put(reopened.get(), "again", "").ok());
}

TEST_F(EmbeddedMetadataTest, FailedWriteStopsTheStore) {
  auto store = Open().value();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = kMiB, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  Status failure;
  const int written = WriteUntilFailure(store.get(), &failure);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_GT(written, 10);
  CheckStopped(std::move(store), failure);

  const auto reopened = Open().value();
  EXPECT_GE(Range(reopened.get(), "")->pairs.size(), static_cast<size_t>(written));
}

TEST_F(EmbeddedMetadataTest, OneServiceAtATime) {
  auto store = Open().value();
  const auto second = Open();
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(second.status().message().find("another service"), std::string::npos);
  store.reset();
  EXPECT_TRUE(Open().ok());
}

TEST_F(EmbeddedMetadataTest, StoreThatMustExistIsNotMade) {
  EXPECT_EQ(OpenCode({.directory = {}, .create = false}), StatusCode::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(FilePath()));
  std::ofstream(FilePath()).flush();
  EXPECT_EQ(OpenCode({.directory = {}, .create = false}), StatusCode::kNotFound);
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(Open({.directory = {}, .create = false}).ok());
}

TEST_F(EmbeddedMetadataTest, DirectoryThatDoesNotExistIsNamed) {
  const auto store =
      OpenEmbeddedMetadataStore({.directory = directory_.path() + "/none"}, &random_, &executor_);
  EXPECT_EQ(store.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(store.status().message().find("/none"), std::string::npos);
}

TEST_F(EmbeddedMetadataTest, DamagedRowsAreFound) {
  const std::vector<std::string> damages = {
      "UPDATE pairs SET value = x'00' WHERE key = CAST('a' AS BLOB)",
      "UPDATE pairs SET mod_revision = 1 WHERE key = CAST('b' AS BLOB)",
      "UPDATE leases SET ttl_ns = ttl_ns + 1", "UPDATE state SET revision = revision + 1",
      "DELETE FROM state"};
  for (const std::string& damage : damages) {
    SCOPED_TRACE(damage);
    {
      const auto store = Open().value();
      ASSERT_TRUE(Put(store.get(), "a", "1").ok());
      ASSERT_TRUE(Put(store.get(), "b", "2").ok());
      ASSERT_TRUE(Await<LeaseId>([&](Completion<LeaseId> done) {
                    store->GrantLease(3s, kNoDeadline, std::move(done));
                  }).ok());
    }
    ASSERT_NO_FATAL_FAILURE(Execute(damage));
    EXPECT_EQ(OpenCode(), StatusCode::kCorrupt);
    for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(FilePath() + suffix);
  }
}

TEST_F(EmbeddedMetadataTest, ForeignFilesAreLeftAlone) {
  ASSERT_NO_FATAL_FAILURE(Execute("CREATE TABLE theirs (a); PRAGMA user_version = 1"));
  EXPECT_EQ(OpenCode(), StatusCode::kInvalidArgument);
  std::ofstream(FilePath(), std::ios::trunc) << std::string(8192, 'x');
  EXPECT_EQ(OpenCode(), StatusCode::kCorrupt);
}

TEST_F(EmbeddedMetadataTest, AnotherFormatVersionIsRefused) {
  ASSERT_TRUE(Open().ok());
  ASSERT_NO_FATAL_FAILURE(Execute("PRAGMA user_version = 2"));
  const auto store = Open();
  EXPECT_EQ(store.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(store.status().message().find("version 2"), std::string::npos);
}

TEST_F(EmbeddedMetadataTest, LogStaysBounded) {
  const auto store = Open().value();
  const std::string value(64 * kKiB, 'v');
  for (int i = 0; i < 400; ++i) ASSERT_TRUE(Put(store.get(), "same", value).ok());
  // 400 times 64 KiB are 25 MiB; the log is moved into the file at 1,000 pages of 4 KiB.
  EXPECT_LT(std::filesystem::file_size(FilePath() + "-wal"), 8 * kMiB);
}

TEST_F(EmbeddedMetadataTest, ClosingWritesWhatWasAccepted) {
  auto store = Open().value();
  for (int i = 0; i < 50; ++i) {
    store->Commit(PutOne(std::to_string(i), ""), kNoDeadline,
                  [](const Result<TransactionResult>&) { FAIL() << "must have been dropped"; });
  }
  store.reset();
  executor_.RunUntilIdle();
  EXPECT_EQ(Range(Open()->get(), "")->pairs.size(), 50u);
}

// No answer, also not of a read, may leave before what it tells is on the disk.
TEST(EmbeddedMetadataOrder, AnswersWaitForTheDisk) {
  ManualExecutor executor;
  MemoryMetadata service(&executor, StoreId("store"));
  const auto client = service.NewClient();
  service.SetWriteDelay(1s);
  std::vector<std::string> order;
  client->Commit(PutOne("a", ""), kNoDeadline, [&](const Result<TransactionResult>& result) {
    EXPECT_TRUE(result.ok());
    EXPECT_EQ(service.disk().pairs.size(), 1u);
    order.push_back("commit");
  });
  client->Range("", kNoDeadline, [&](const Result<RangeResult>& range) {
    EXPECT_EQ(range->pairs.size(), 1u);
    EXPECT_EQ(service.disk().pairs.size(), 1u);
    order.push_back("range");
  });
  executor.RunFor(900ms);
  EXPECT_TRUE(order.empty());
  executor.RunFor(200ms);
  EXPECT_EQ(order, (std::vector<std::string>{"commit", "range"}));
}

TEST(EmbeddedMetadataOrder, HungDiskMeetsTheDeadlines) {
  ManualExecutor executor;
  MemoryMetadata service(&executor, StoreId("store"));
  const auto client = service.NewClient();
  service.SetWriteDelay(10s);
  std::vector<StatusCode> codes;
  const Deadline deadline = executor.Now() + 1s;
  client->WaitForChange("a", 0, deadline,
                        [&](const auto& result) { codes.push_back(result.status().code()); });
  client->Commit(PutOne("a", ""), deadline,
                 [&](const auto& result) { codes.push_back(result.status().code()); });
  client->Range("", deadline, [&](const auto& result) { codes.push_back(result.status().code()); });
  executor.RunFor(2s);
  EXPECT_EQ(codes, (std::vector<StatusCode>(3, StatusCode::kDeadline)));
  executor.RunFor(20s);
  EXPECT_EQ(codes.size(), 3u);
  EXPECT_EQ(service.disk().pairs.size(), 1u);
}

TEST(EmbeddedMetadataOrder, WhatAFailedDiskNeverHeldIsNeverShown) {
  ManualExecutor executor;
  MemoryMetadata service(&executor, StoreId("store"));
  const auto client = service.NewClient();
  service.FailWrites(NoSpace("the disk is full"));
  std::optional<StatusCode> commit;
  std::optional<StatusCode> range;
  client->Commit(PutOne("a", ""), kNoDeadline,
                 [&](const auto& result) { commit = result.status().code(); });
  client->Range("", kNoDeadline, [&](const auto& result) { range = result.status().code(); });
  executor.RunUntilIdle();
  EXPECT_EQ(commit, StatusCode::kUnknownOutcome);
  EXPECT_EQ(range, StatusCode::kUnavailable);
  service.Stop();
  service.Start();
  client->Range("", kNoDeadline, [&](const auto& result) {
    range = result.status().code();
    EXPECT_TRUE(result->pairs.empty());
  });
  executor.RunUntilIdle();
  EXPECT_EQ(range, StatusCode::kOk);
}

TEST(EmbeddedMetadataOrder, WaitsAreBounded) {
  ManualExecutor executor;
  MemoryMetadata service(&executor, StoreId("store"));
  const auto client = service.NewClient();
  size_t answered = 0;
  StatusCode code = StatusCode::kOk;
  for (size_t i = 0; i <= kMetadataWaitsMax; ++i) {
    client->WaitForChange("a", 0, kNoDeadline, [&](const auto& result) {
      ++answered;
      code = result.status().code();
    });
  }
  executor.RunUntilIdle();
  EXPECT_EQ(answered, 1u);
  EXPECT_EQ(code, StatusCode::kNoSpace);
  client->Commit(PutOne("a", ""), kNoDeadline, [](const auto&) {});
  executor.RunUntilIdle();
  EXPECT_EQ(answered, kMetadataWaitsMax + 1);
  EXPECT_EQ(code, StatusCode::kOk);
}

}  // namespace
}  // namespace backstay::replication
