#include "replication/metadata_engine.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace backstay::replication {
namespace {

using namespace std::chrono_literals;

constexpr Instant kStart{1'000'000'000};

MetadataEngine NewEngine() {
  MetadataSnapshot snapshot;
  snapshot.store_id = StoreId("store");
  return MetadataEngine::Make(snapshot, kStart).value();
}

Transaction PutOne(std::string key, std::string value, LeaseId lease = kNoLease) {
  Transaction transaction;
  transaction.operations = {{Operation::Kind::kPut, std::move(key), std::move(value), lease}};
  return transaction;
}

// Attack:  the machine that serves the store is stopped for longer than every lease. Nobody could
//          renew, so nobody may be taken for dead at once; but a stall is forgiven only once.
TEST(MetadataEngine, StallGivesEveryLeaseOneMoreTtlOnce) {
  MetadataEngine engine = NewEngine();
  const LeaseId lease = engine.GrantLease(3s, kStart)->last_lease;
  ASSERT_TRUE(engine.Apply(PutOne("n", "", lease)).ok());
  Instant now = kStart + 60s;
  EXPECT_TRUE(engine.ExpireLeases(now).empty());
  EXPECT_EQ(engine.NextExpiry(), now + 3s);
  now = now + 60s;
  EXPECT_EQ(engine.ExpireLeases(now).ended, std::vector<LeaseId>{lease});
  EXPECT_TRUE(engine.Range("n")->pairs.empty());
  EXPECT_EQ(engine.NextExpiry(), kNoDeadline);
}

TEST(MetadataEngine, RenewalEarnsForgivenessAgain) {
  MetadataEngine engine = NewEngine();
  const LeaseId lease = engine.GrantLease(3s, kStart)->last_lease;
  EXPECT_TRUE(engine.ExpireLeases(kStart + 60s).empty());
  ASSERT_TRUE(engine.RenewLease(lease, kStart + 61s).ok());
  EXPECT_TRUE(engine.ExpireLeases(kStart + 120s).empty());
}

TEST(MetadataEngine, LeaseThatEndsOnTimeIsNotForgiven) {
  MetadataEngine engine = NewEngine();
  ASSERT_TRUE(engine.GrantLease(3s, kStart).ok());
  EXPECT_TRUE(engine.ExpireLeases(kStart + 3s - 1ns).empty());
  EXPECT_EQ(engine.ExpireLeases(kStart + 3s).ended.size(), 1u);
}

TEST(MetadataEngine, LeasesAreBounded) {
  MetadataEngine engine = NewEngine();
  for (size_t i = 0; i < kMetadataLeasesMax; ++i) ASSERT_TRUE(engine.GrantLease(3s, kStart).ok());
  EXPECT_EQ(engine.GrantLease(3s, kStart).status().code(), StatusCode::kNoSpace);
  ASSERT_TRUE(engine.RevokeLease(1).ok());
  EXPECT_TRUE(engine.GrantLease(3s, kStart).ok());
}

TEST(MetadataEngine, AnswersAndTheWholeStoreAreBounded) {
  MetadataEngine engine = NewEngine();
  const std::string value(kMetadataValueBytesMax, 'v');
  size_t stored_bytes = 0;
  int written = 0;
  while (true) {
    const std::string key = std::to_string(1000 + written);
    const auto applied = engine.Apply(PutOne(key, value));
    if (!applied.ok()) {
      EXPECT_EQ(applied.status().code(), StatusCode::kNoSpace);
      break;
    }
    stored_bytes += key.size() + value.size();
    ++written;
    ASSERT_LE(stored_bytes, kMetadataStoreBytesMax);
  }
  EXPECT_GT(stored_bytes + value.size() + 4, kMetadataStoreBytesMax);
  EXPECT_EQ(engine.Range("").status().code(), StatusCode::kNoSpace);
  EXPECT_EQ(engine.Range("1000")->pairs.size(), 1u);
  // A full store still shrinks, and then takes writes again.
  EXPECT_TRUE(engine.Apply(PutOne("1000", "")).ok());
  EXPECT_TRUE(engine.Apply(PutOne("1001", "small")).ok());
}

TEST(MetadataEngine, SnapshotThatContradictsItselfIsRefused) {
  MetadataSnapshot good;
  good.store_id = StoreId("store");
  good.revision = 5;
  good.last_lease = 2;
  good.leases = {{1, 3s}};
  good.pairs = {{"a", "", 2, 5, 1}, {"b", "", 3, 3, kNoLease}};
  ASSERT_TRUE(MetadataEngine::Make(good, kStart).ok());
  const auto code = [&good](const std::function<void(MetadataSnapshot*)>& damage) {
    MetadataSnapshot bad = good;
    damage(&bad);
    const Result<MetadataEngine> engine = MetadataEngine::Make(bad, kStart);
    return engine.ok() ? StatusCode::kOk : engine.status().code();
  };
  EXPECT_EQ(code([](auto* s) { s->store_id = StoreId(); }), StatusCode::kCorrupt);
  EXPECT_EQ(code([](auto* s) { s->revision = 4; }), StatusCode::kCorrupt);
  EXPECT_EQ(code([](auto* s) { s->pairs[0].create_revision = 0; }), StatusCode::kCorrupt);
  EXPECT_EQ(code([](auto* s) { s->pairs[0].create_revision = 6; }), StatusCode::kCorrupt);
  EXPECT_EQ(code([](auto* s) { s->pairs[0].key = ""; }), StatusCode::kCorrupt);
  EXPECT_EQ(code([](auto* s) { s->pairs[1].key = "a"; }), StatusCode::kCorrupt);
  EXPECT_EQ(code([](auto* s) { s->leases.clear(); }), StatusCode::kCorrupt);
  EXPECT_EQ(code([](auto* s) { s->leases[0].ttl = 0s; }), StatusCode::kCorrupt);
  EXPECT_EQ(code([](auto* s) { s->last_lease = 0; }), StatusCode::kCorrupt);
}

}  // namespace
}  // namespace backstay::replication
