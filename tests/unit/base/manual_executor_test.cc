#include "tests/support/manual_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace backstay::testing {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;

TEST(ManualExecutor, RunsByTimeThenByInsertion) {
  ManualExecutor executor;
  std::vector<int> order;
  executor.RunAfter(milliseconds(2), [&] { order.push_back(4); });
  executor.RunAfter(milliseconds(1), [&] { order.push_back(2); });
  executor.RunAfter(milliseconds(1), [&] { order.push_back(3); });
  executor.Post([&] {
    order.push_back(0);
    executor.Post([&] { order.push_back(1); });
  });
  executor.RunUntilIdle();
  EXPECT_THAT(order, ElementsAre(0, 1));
  executor.RunFor(milliseconds(2));
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(executor.pending_count(), 0u);
}

TEST(ManualExecutor, TimersSeeTheirOwnInstant) {
  ManualExecutor executor;
  const Instant start = executor.Now();
  Instant seen;
  executor.RunAfter(seconds(3), [&] { seen = executor.Now(); });
  executor.RunFor(seconds(10));
  EXPECT_EQ(seen - start, seconds(3));
  EXPECT_EQ(executor.Now() - start, seconds(10));
  EXPECT_EQ(executor.clock().UnixMillis(), ManualClock::kStartUnixMillis + 10'000);
}

TEST(ManualExecutor, CancelledTimersNeverRun) {
  ManualExecutor executor;
  bool ran = false;
  TimerId second = kNoTimer;
  executor.RunAfter(milliseconds(1), [&] { executor.CancelTimer(second); });
  second = executor.RunAfter(milliseconds(1), [&] { ran = true; });
  executor.RunFor(milliseconds(5));
  EXPECT_FALSE(ran);
  executor.CancelTimer(second);
  executor.CancelTimer(kNoTimer);
}

TEST(ManualExecutor, RunUntilStopsAtThePredicateOrTheLimit) {
  ManualExecutor executor;
  int ticks = 0;
  std::function<void()> tick = [&] {
    ++ticks;
    executor.RunAfter(seconds(1), tick);
  };
  executor.Post(tick);
  const Instant start = executor.Now();
  EXPECT_TRUE(executor.RunUntil([&] { return ticks == 4; }, hours(1)));
  EXPECT_EQ(executor.Now() - start, seconds(3));
  EXPECT_FALSE(executor.RunUntil([&] { return ticks == 1000; }, seconds(5)));
  EXPECT_EQ(executor.Now() - start, seconds(8));
  EXPECT_EQ(ticks, 9);
}

TEST(ManualExecutor, RunUntilPostedWaitsForOtherThreads) {
  ManualExecutor executor;
  bool arrived = false;
  std::thread poster([&] { executor.Post([&] { arrived = true; }); });
  EXPECT_TRUE(executor.RunUntilPosted([&] { return arrived; }, seconds(30)));
  poster.join();
  EXPECT_FALSE(executor.RunUntilPosted([] { return false; }, milliseconds(1)));
}

TEST(ManualExecutor, UnrunTasksAreDestroyedWithIt) {
  auto token = std::make_shared<int>();
  {
    ManualExecutor executor;
    executor.Post([token] { FAIL() << "must not run"; });
    EXPECT_EQ(token.use_count(), 2);
  }
  EXPECT_EQ(token.use_count(), 1);
}

TEST(Lifetime, CallbacksOfADeadOwnerDoNothing) {
  ManualExecutor executor;
  int runs = 0;
  auto lifetime = std::make_unique<Lifetime>();
  executor.Post(lifetime->Wrap([&] { ++runs; }));
  executor.RunUntilIdle();
  executor.Post(lifetime->Wrap([&] { ++runs; }));
  lifetime.reset();
  executor.RunUntilIdle();
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace backstay::testing
