// What every metadata store promises (replication/metadata_store.h), for each implementation.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/contract/metadata/metadata_backend.h"

namespace backstay::testing {
namespace {

using namespace std::chrono_literals;
using replication::Compare;
using replication::KeyValue;
using replication::kLeaseTtlMax;
using replication::kLeaseTtlMin;
using replication::kMetadataChangesKept;
using replication::kMetadataKeyBytesMax;
using replication::kMetadataOperationsMax;
using replication::kMetadataTransactionBytesMax;
using replication::kMetadataValueBytesMax;
using replication::kNoLease;
using replication::LeaseId;
using replication::MetadataStore;
using replication::Operation;
using replication::RangeResult;
using replication::Revision;
using replication::Transaction;
using replication::TransactionResult;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

Operation Put(std::string key, std::string value, LeaseId lease = kNoLease) {
  return {.kind = Operation::Kind::kPut,
          .key = std::move(key),
          .value = std::move(value),
          .lease = lease};
}
Operation Delete(std::string key) {
  return {.kind = Operation::Kind::kDelete, .key = std::move(key), .value = {}, .lease = kNoLease};
}
Compare Created(std::string key, Revision revision) {
  return {.key = std::move(key), .target = Compare::Target::kCreateRevision, .revision = revision};
}
Compare Modified(std::string key, Revision revision) {
  return {.key = std::move(key), .target = Compare::Target::kModRevision, .revision = revision};
}
std::vector<std::string> Keys(const RangeResult& range) {
  std::vector<std::string> keys;
  for (const KeyValue& pair : range.pairs) keys.push_back(pair.key);
  return keys;
}

// A call under way and its one answer.
template <typename T>
class Answer {
 public:
  std::function<void(T)> Receive() {
    return [state = state_](T value) {
      EXPECT_TRUE(state->returned) << "the completion ran inside the call";
      EXPECT_FALSE(state->value.has_value()) << "the completion ran twice";
      state->value = std::move(value);
    };
  }
  void Returned() { state_->returned = true; }
  bool ready() const { return state_->value.has_value(); }
  T& value() { return *state_->value; }

 private:
  struct State {
    bool returned = false;
    std::optional<T> value;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

class MetadataContract : public ::testing::TestWithParam<MetadataBackendFactory> {
 protected:
  static constexpr Duration kRealTimeMax = 30s;

  ManualExecutor& executor() { return backend_->executor(); }
  Deadline Soon() { return executor().Now() + 60s; }

  template <typename T>
  Answer<T> Start(const std::function<void(std::function<void(T)>)>& call) {
    Answer<T> answer;
    call(answer.Receive());
    answer.Returned();
    return answer;
  }
  template <typename T>
  T Finish(Answer<T> answer) {
    EXPECT_TRUE(executor().RunUntilPosted([&answer] { return answer.ready(); }, kRealTimeMax));
    return std::move(answer.value());
  }

  Answer<Result<TransactionResult>> StartCommit(Transaction transaction, int client = 0) {
    return Start<Result<TransactionResult>>([&](Completion<TransactionResult> done) {
      backend_->client(client).Commit(std::move(transaction), Soon(), std::move(done));
    });
  }
  Result<TransactionResult> Commit(std::vector<Compare> compares, std::vector<Operation> operations,
                                   int client = 0) {
    return Finish(StartCommit({std::move(compares), std::move(operations)}, client));
  }
  Result<RangeResult> Range(const std::string& prefix, int client = 0) {
    return Finish(Start<Result<RangeResult>>([&](Completion<RangeResult> done) {
      backend_->client(client).Range(prefix, Soon(), std::move(done));
    }));
  }
  Answer<Result<RangeResult>> StartWait(const std::string& prefix, Revision after, Duration limit,
                                        int client = 0) {
    return Start<Result<RangeResult>>([&](Completion<RangeResult> done) {
      backend_->client(client).WaitForChange(prefix, after, executor().Now() + limit,
                                             std::move(done));
    });
  }
  Result<LeaseId> Grant(Duration ttl) {
    return Finish(Start<Result<LeaseId>>([&](Completion<LeaseId> done) {
      backend_->client(0).GrantLease(ttl, Soon(), std::move(done));
    }));
  }
  Status Renew(LeaseId lease) {
    return Finish(Start<Status>([&](StatusCompletion done) {
      backend_->client(0).RenewLease(lease, Soon(), std::move(done));
    }));
  }
  Status Revoke(LeaseId lease) {
    return Finish(Start<Status>([&](StatusCompletion done) {
      backend_->client(0).RevokeLease(lease, Soon(), std::move(done));
    }));
  }
  Result<StoreId> GetStoreId(int client = 0) {
    return Finish(Start<Result<StoreId>>([&](Completion<StoreId> done) {
      backend_->client(client).GetStoreId(Soon(), std::move(done));
    }));
  }

  const std::unique_ptr<MetadataBackend> backend_ = GetParam().make();
};

TEST_P(MetadataContract, StoreIdIsTheSameForAll) {
  const StoreId id = GetStoreId(0).value();
  EXPECT_FALSE(id.empty());
  EXPECT_EQ(GetStoreId(1).value(), id);
}

TEST_P(MetadataContract, TransactionHappensInOneRevision) {
  const TransactionResult first = Commit({}, {Put("a", "1"), Put("b", "2")}).value();
  EXPECT_TRUE(first.succeeded);
  const TransactionResult second =
      Commit({}, {Put("a", "3"), Delete("b"), Put("c", std::string("\0\xff", 2))}).value();
  EXPECT_GT(second.revision, first.revision);
  const RangeResult range = Range("", 1).value();
  EXPECT_EQ(range.revision, second.revision);
  EXPECT_THAT(range.pairs,
              ElementsAre(KeyValue{"a", "3", first.revision, second.revision, kNoLease},
                          KeyValue{"c", std::string("\0\xff", 2), second.revision, second.revision,
                                   kNoLease}));
}

TEST_P(MetadataContract, NothingHappensUnlessEveryComparisonHolds) {
  const Revision made = Commit({}, {Put("a", "1")})->revision;
  const Revision changed = Commit({}, {Put("a", "2")})->revision;
  const auto succeeds = [this](const Compare& compare) {
    const TransactionResult result = Commit({compare}, {}).value();
    return result.succeeded;
  };
  EXPECT_TRUE(succeeds(Created("a", made)));
  EXPECT_TRUE(succeeds(Modified("a", changed)));
  EXPECT_TRUE(succeeds(Created("absent", 0)));
  EXPECT_TRUE(succeeds(Modified("absent", 0)));
  EXPECT_FALSE(succeeds(Created("a", changed)));
  EXPECT_FALSE(succeeds(Modified("a", made)));
  EXPECT_FALSE(succeeds(Created("a", 0)));
  EXPECT_FALSE(succeeds(Modified("absent", made)));

  const TransactionResult refused =
      Commit({Created("a", made), Modified("a", made)}, {Put("b", "")}).value();
  EXPECT_FALSE(refused.succeeded);
  EXPECT_EQ(refused.revision, changed);
  EXPECT_THAT(Keys(*Range("")), ElementsAre("a"));
}

TEST_P(MetadataContract, KeyThatIsMadeAgainGetsANewCreateRevision) {
  const Revision made = Commit({}, {Put("a", "1")})->revision;
  ASSERT_TRUE(Commit({}, {Delete("a")})->succeeded);
  const Revision again = Commit({Created("a", 0)}, {Put("a", "1")})->revision;
  EXPECT_GT(again, made);
  EXPECT_EQ(Range("a")->pairs.at(0).create_revision, again);
  EXPECT_FALSE(Commit({Created("a", made)}, {Put("a", "2")})->succeeded);
}

TEST_P(MetadataContract, ChangingNothingKeepsTheRevision) {
  const Revision revision = Commit({}, {Put("a", "1")})->revision;
  const TransactionResult result = Commit({}, {Delete("absent")}).value();
  EXPECT_TRUE(result.succeeded);
  EXPECT_EQ(result.revision, revision);
}

TEST_P(MetadataContract, RangeTakesAllKeysOfThePrefixInOrder) {
  ASSERT_TRUE(Commit({}, {Put("n/2", ""), Put("n/10", ""), Put("n", ""), Put("o", ""),
                          Put("n/\xff", ""), Put("n0", "")})
                  ->succeeded);
  EXPECT_THAT(Keys(*Range("n/")), ElementsAre("n/10", "n/2", "n/\xff"));
  EXPECT_THAT(Keys(*Range("")), ElementsAre("n", "n/10", "n/2", "n/\xff", "n0", "o"));
  EXPECT_THAT(Keys(*Range("x")), IsEmpty());
}

TEST_P(MetadataContract, WaitAnswersAtTheNextChangeUnderItsPrefix) {
  const Revision revision = Commit({}, {Put("a/1", "1")})->revision;
  auto wait = StartWait("a/", revision, 30s, 1);
  ASSERT_TRUE(Commit({}, {Put("b/1", "1")})->succeeded);
  ASSERT_TRUE(Range("", 1).ok());
  EXPECT_FALSE(wait.ready());
  const Revision changed = Commit({}, {Put("a/2", "2")})->revision;
  const RangeResult seen = Finish(wait).value();
  EXPECT_GE(seen.revision, changed);
  EXPECT_THAT(Keys(seen), ElementsAre("a/1", "a/2"));
}

TEST_P(MetadataContract, WaitMissesNoChangeThatCameBeforeIt) {
  const Revision revision = Commit({}, {Put("a/1", "1"), Put("a/2", "")})->revision;
  ASSERT_TRUE(Commit({}, {Delete("a/1")})->succeeded);
  ASSERT_TRUE(Commit({}, {Put("b", "")})->succeeded);
  EXPECT_THAT(Keys(*Finish(StartWait("a/", revision, 30s))), ElementsAre("a/2"));
}

TEST_P(MetadataContract, WaitSeesADeletion) {
  const Revision revision = Commit({}, {Put("a/1", "1")})->revision;
  auto wait = StartWait("a/", revision, 30s);
  ASSERT_TRUE(Commit({}, {Delete("a/1")})->succeeded);
  EXPECT_THAT(Finish(wait)->pairs, IsEmpty());
}

TEST_P(MetadataContract, WaitAnswersAtItsDeadlineWithTheUnchangedState) {
  const Revision revision = Commit({}, {Put("a", "1")})->revision;
  auto wait = StartWait("a", revision, 3s);
  ASSERT_TRUE(Range("").ok());
  EXPECT_FALSE(wait.ready());
  // Where it travels, it may arrive only now, and waits so long from there on.
  for (int i = 0; i < 100 && !wait.ready(); ++i) {
    executor().RunFor(3s);
    ASSERT_TRUE(Range("").ok());
  }
  EXPECT_THAT(Keys(*Finish(wait)), ElementsAre("a"));
}

TEST_P(MetadataContract, WaitForARevisionBeyondMemoryOrOfAnotherHistoryAnswersAtOnce) {
  const Revision revision = Commit({}, {Put("a", "1")})->revision;
  EXPECT_TRUE(Finish(StartWait("a", revision + 1000, 30s)).ok());
  std::vector<Operation> puts;
  for (size_t i = 0; i < 100; ++i) puts.push_back(Put("b/" + std::to_string(i), ""));
  for (size_t written = 0; written <= kMetadataChangesKept; written += puts.size()) {
    ASSERT_TRUE(Commit({}, puts)->succeeded);
  }
  EXPECT_TRUE(Finish(StartWait("a", revision, 30s)).ok());
}

// A watcher that loops sees the last of many writes, whatever was folded together on the way.
TEST_P(MetadataContract, LoopOfWaitsArrivesAtTheLastState) {
  constexpr int kWrites = 200;
  std::vector<Answer<Result<TransactionResult>>> commits;
  for (int i = 1; i <= kWrites; ++i)
    commits.push_back(StartCommit({{}, {Put("w", std::to_string(i))}}, i % 2));
  Revision seen = 0;
  std::string value;
  int rounds = 0;
  while (value != std::to_string(kWrites) && ++rounds <= kWrites + 1) {
    const RangeResult range = Finish(StartWait("w", seen, 30s, 1)).value();
    EXPECT_GT(range.revision, seen);
    seen = range.revision;
    if (!range.pairs.empty()) value = range.pairs[0].value;
    if (rounds == 1) {
      for (auto& commit : commits) ASSERT_TRUE(Finish(commit)->succeeded);
      // Writes of two clients may overtake each other; the last one is made certain.
      ASSERT_TRUE(Commit({}, {Put("w", std::to_string(kWrites))})->succeeded);
    }
  }
  EXPECT_EQ(value, std::to_string(kWrites));
}

TEST_P(MetadataContract, OfTwoWritersWithTheSameComparisonOneWins) {
  Revision revision = Commit({}, {Put("counter", "")})->revision;
  for (int round = 0; round < 20; ++round) {
    auto first = StartCommit({{Modified("counter", revision)}, {Put("counter", "first")}}, 0);
    auto second = StartCommit({{Modified("counter", revision)}, {Put("counter", "second")}}, 1);
    const TransactionResult of_first = Finish(first).value();
    const TransactionResult of_second = Finish(second).value();
    EXPECT_NE(of_first.succeeded, of_second.succeeded);
    const KeyValue pair = Range("counter")->pairs.at(0);
    EXPECT_EQ(pair.value, of_first.succeeded ? "first" : "second");
    EXPECT_GT(pair.mod_revision, revision);
    revision = pair.mod_revision;
  }
}

TEST_P(MetadataContract, LeaseTakesItsKeysWithItInOneRevision) {
  const LeaseId lease = Grant(5s).value();
  const Revision made =
      Commit({}, {Put("n/1", "", lease), Put("n/2", "", lease), Put("n/3", "")})->revision;
  auto wait = StartWait("n/", made, 60s, 1);
  EXPECT_EQ(Range("n/")->pairs.at(0).lease, lease);
  executor().RunFor(4900ms);
  EXPECT_EQ(Range("n/")->pairs.size(), 3u);
  executor().RunFor(200ms);
  const RangeResult seen = Finish(wait).value();
  EXPECT_THAT(Keys(seen), ElementsAre("n/3"));
  EXPECT_EQ(seen.revision, made + 1);
  EXPECT_EQ(Renew(lease).code(), StatusCode::kNotFound);
  EXPECT_EQ(Revoke(lease).code(), StatusCode::kNotFound);
  EXPECT_EQ(Commit({}, {Put("n/4", "", lease)}).status().code(), StatusCode::kNotFound);
}

TEST_P(MetadataContract, RenewalKeepsALease) {
  const LeaseId lease = Grant(5s).value();
  ASSERT_TRUE(Commit({}, {Put("a", "", lease)})->succeeded);
  for (int i = 0; i < 5; ++i) {
    executor().RunFor(4s);
    EXPECT_TRUE(Renew(lease).ok());
  }
  EXPECT_EQ(Range("a")->pairs.size(), 1u);
  executor().RunFor(5100ms);
  EXPECT_THAT(Range("a")->pairs, IsEmpty());
}

TEST_P(MetadataContract, RevokedLeaseTakesItsKeysAndIsNeverGivenAgain) {
  const LeaseId lease = Grant(5s).value();
  ASSERT_TRUE(Commit({}, {Put("a", "", lease)})->succeeded);
  EXPECT_TRUE(Revoke(lease).ok());
  EXPECT_THAT(Range("a")->pairs, IsEmpty());
  EXPECT_EQ(Renew(lease).code(), StatusCode::kNotFound);
  EXPECT_NE(Grant(5s).value(), lease);
}

TEST_P(MetadataContract, PutReplacesTheLeaseOfAKey) {
  const LeaseId lease = Grant(5s).value();
  ASSERT_TRUE(Commit({}, {Put("a", "", lease), Put("b", "", lease), Put("c", "")})->succeeded);
  ASSERT_TRUE(Commit({}, {Put("a", ""), Delete("b"), Put("c", "", lease)})->succeeded);
  ASSERT_TRUE(Commit({}, {Put("b", "")})->succeeded);
  EXPECT_TRUE(Revoke(lease).ok());
  EXPECT_THAT(Keys(*Range("")), ElementsAre("a", "b"));
}

TEST_P(MetadataContract, LimitsAreKeptExactly) {
  const auto code = [this](std::vector<Operation> operations) {
    const auto result = Commit({}, std::move(operations));
    return result.ok() ? StatusCode::kOk : result.status().code();
  };
  EXPECT_EQ(code({Put(std::string(kMetadataKeyBytesMax, 'k'), "")}), StatusCode::kOk);
  EXPECT_EQ(code({Put(std::string(kMetadataKeyBytesMax + 1, 'k'), "")}),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code({Put("", "")}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({Put("v", std::string(kMetadataValueBytesMax, 'v'))}), StatusCode::kOk);
  EXPECT_EQ(code({Put("v", std::string(kMetadataValueBytesMax + 1, 'v'))}),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code({Put("a", ""), Delete("a")}), StatusCode::kInvalidArgument);
  const size_t half = kMetadataTransactionBytesMax / 2;
  EXPECT_EQ(code({Put("x", std::string(half - 1, 'x')), Put("y", std::string(half - 1, 'y'))}),
            StatusCode::kOk);
  EXPECT_EQ(code({Put("x", std::string(half, 'x')), Put("y", std::string(half - 1, 'y'))}),
            StatusCode::kInvalidArgument);
  std::vector<Operation> many;
  for (size_t i = 0; i < kMetadataOperationsMax; ++i)
    many.push_back(Put("m/" + std::to_string(i), ""));
  EXPECT_EQ(code(many), StatusCode::kOk);
  EXPECT_EQ(Commit({Created("absent", 0)}, many).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Range(std::string(kMetadataKeyBytesMax + 1, 'k')).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(Grant(kLeaseTtlMin - 1ms).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Grant(kLeaseTtlMax + 1ms).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Grant(kLeaseTtlMax).ok());
  EXPECT_THAT(Keys(*Range("m/")), ::testing::SizeIs(kMetadataOperationsMax));
}

TEST_P(MetadataContract, PassedDeadlineIsAnErrorAndNothingHappens) {
  auto late = Start<Result<TransactionResult>>([&](Completion<TransactionResult> done) {
    backend_->client(0).Commit({{}, {Put("late", "")}}, executor().Now() - 1ms, std::move(done));
  });
  EXPECT_EQ(Finish(late).status().code(), StatusCode::kDeadline);
  EXPECT_THAT(Range("late")->pairs, IsEmpty());
}

TEST_P(MetadataContract, EverythingButLeaseTimesSurvivesARestart) {
  const StoreId id = GetStoreId().value();
  const LeaseId lease = Grant(5s).value();
  const Revision made = Commit({}, {Put("a", "1"), Put("gone", "")})->revision;
  const Revision leased = Commit({}, {Delete("gone"), Put("n", "2", lease)})->revision;
  executor().RunFor(4s);

  backend_->Restart();

  ASSERT_EQ(GetStoreId().value(), id);
  const RangeResult range = Range("").value();
  EXPECT_EQ(range.revision, leased);
  EXPECT_THAT(range.pairs, ElementsAre(KeyValue{"a", "1", made, made, kNoLease},
                                       KeyValue{"n", "2", leased, leased, lease}));
  executor().RunFor(4s);  // Eight seconds after its last renewal, but four after the restart.
  EXPECT_TRUE(Renew(lease).ok());
  EXPECT_NE(Grant(5s).value(), lease);
  // What changed before the restart is forgotten; a wait that asks about it must not hang.
  EXPECT_TRUE(Finish(StartWait("a", made, 30s)).ok());
  EXPECT_GT(Commit({}, {Put("b", "")})->revision, leased);
  executor().RunFor(5100ms);
  EXPECT_THAT(Keys(*Range("")), ElementsAre("a", "b"));
}

TEST_P(MetadataContract, AnotherStoreInItsPlaceIsRefused) {
  ASSERT_TRUE(Commit({}, {Put("a", "1")})->succeeded);
  if (!backend_->Replace()) return;  // In this process: nothing can be mixed up.
  EXPECT_EQ(GetStoreId().status().code(), StatusCode::kStale);
  EXPECT_EQ(Commit({}, {Put("a", "2")}).status().code(), StatusCode::kStale);
  EXPECT_EQ(Range("").status().code(), StatusCode::kStale);
  EXPECT_EQ(Finish(StartWait("", 0, 30s)).status().code(), StatusCode::kStale);
  EXPECT_EQ(Grant(5s).status().code(), StatusCode::kStale);
  EXPECT_EQ(Renew(1).code(), StatusCode::kStale);
  EXPECT_EQ(Revoke(1).code(), StatusCode::kStale);
}

INSTANTIATE_TEST_SUITE_P(AllStores, MetadataContract,
                         ::testing::Values(MetadataBackendFactory{"Memory", MakeMemoryBackend},
                                           MetadataBackendFactory{"Embedded", MakeEmbeddedBackend},
                                           MetadataBackendFactory{"Grpc", MakeGrpcBackend}),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace backstay::testing
