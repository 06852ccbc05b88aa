#include "base/bounded_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace backstay {
namespace {

using Offer = BoundedQueue<int>::Offer;

TEST(BoundedQueue, KeepsOrderAndItsBound) {
  BoundedQueue<int> queue(2);
  EXPECT_EQ(queue.TryPush(1), Offer::kTaken);
  EXPECT_EQ(queue.TryPush(2), Offer::kTaken);
  EXPECT_EQ(queue.TryPush(3), Offer::kFull);
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.Push(4), Offer::kTaken);
  EXPECT_EQ(queue.Pop(), 2);
  EXPECT_EQ(queue.Pop(), 4);
}

TEST(BoundedQueue, AnItemThatIsNotTakenStaysWithItsOwner) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  auto item = std::make_unique<int>(5);
  queue.Close();
  EXPECT_EQ(queue.TryPush(std::move(item)), BoundedQueue<std::unique_ptr<int>>::Offer::kClosed);
  ASSERT_NE(item, nullptr);
}

TEST(BoundedQueue, CloseLetsWhatIsInsideOut) {
  BoundedQueue<int> queue(2);
  EXPECT_EQ(queue.TryPush(1), Offer::kTaken);
  queue.Close();
  EXPECT_EQ(queue.Push(2), Offer::kClosed);
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.Pop(), std::nullopt);
}

TEST(BoundedQueue, CloseWakesWaiters) {
  BoundedQueue<int> full(1);
  BoundedQueue<int> empty(1);
  EXPECT_EQ(full.TryPush(1), Offer::kTaken);
  std::thread producer([&] { EXPECT_EQ(full.Push(2), Offer::kClosed); });
  std::thread consumer([&] { EXPECT_EQ(empty.Pop(), std::nullopt); });
  full.Close();
  empty.Close();
  producer.join();
  consumer.join();
}

TEST(BoundedQueue, ManyThreadsLoseAndDoubleNothing) {
  constexpr int kItemsPerProducer = 5000;
  BoundedQueue<int> queue(3);
  std::atomic<int64_t> sum = 0;
  std::atomic<int> count = 0;
  std::vector<std::thread> consumers;
  std::vector<std::thread> producers;
  for (int i = 0; i < 3; ++i) {
    consumers.emplace_back([&] {
      while (const std::optional<int> item = queue.Pop()) {
        sum += *item;
        ++count;
      }
    });
    producers.emplace_back([&] {
      for (int item = 1; item <= kItemsPerProducer; ++item)
        ASSERT_EQ(queue.Push(int{item}), Offer::kTaken);
    });
  }
  for (std::thread& thread : producers) thread.join();
  queue.Close();
  for (std::thread& thread : consumers) thread.join();
  EXPECT_EQ(count, 3 * kItemsPerProducer);
  EXPECT_EQ(sum, 3 * int64_t{kItemsPerProducer} * (kItemsPerProducer + 1) / 2);
}

}  // namespace
}  // namespace backstay
