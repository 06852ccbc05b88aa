#include "base/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>

namespace backstay {
namespace {

TEST(WorkerPool, RunsOnAllItsThreads) {
  std::latch all_here(3);
  WorkerPool pool("test", 3, 3);
  // Each waits for the others, so this ends only if three threads run at once.
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(pool.Submit([&] { all_here.arrive_and_wait(); }).ok());
  all_here.wait();
}

TEST(WorkerPool, AFullQueueIsAnAnswer) {
  std::latch started(1);
  std::latch release(1);
  std::atomic<int> runs = 0;
  {
    WorkerPool pool("test", 1, 1);
    ASSERT_TRUE(pool.Submit([&] {
                      started.count_down();
                      release.wait();
                    })
                    .ok());
    started.wait();
    ASSERT_TRUE(pool.Submit([&] { ++runs; }).ok());
    const Status full = pool.Submit([&] { ++runs; });
    EXPECT_EQ(full.code(), StatusCode::kNoSpace);
    release.count_down();
  }
  EXPECT_EQ(runs, 1) << "what was submitted runs before the pool ends, what was refused never";
}

}  // namespace
}  // namespace backstay
