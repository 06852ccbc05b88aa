#include "base/event_loop.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

namespace backstay {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;

  Pipe() {
    std::array<int, 2> fds;
    EXPECT_EQ(pipe2(fds.data(), O_CLOEXEC | O_NONBLOCK), 0);
    read_end.Reset(fds[0]);
    write_end.Reset(fds[1]);
  }
  void Write() { EXPECT_EQ(write(write_end.get(), "x", 1), 1); }
  void Read() {
    char byte;
    EXPECT_EQ(read(read_end.get(), &byte, 1), 1);
  }
};

// Runs `task` on the loop and waits for it.
void RunOn(EventLoop& loop, std::function<void()> task) {
  std::promise<void> done;
  loop.Post([&] {
    task();
    done.set_value();
  });
  done.get_future().wait();
}

TEST(EventLoop, RunsTasksInOrderOnItsThread) {
  EventLoop loop;
  std::vector<int> order;
  loop.Post([&] {
    EXPECT_TRUE(loop.OnLoopThread());
    loop.Post([&] { order.push_back(3); });
    order.push_back(1);
  });
  loop.Post([&] { order.push_back(2); });
  loop.Start("test");
  RunOn(loop, [] {});
  RunOn(loop, [] {});
  EXPECT_FALSE(loop.OnLoopThread());
  loop.Stop();
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
}

TEST(EventLoop, ManyThreadsPost) {
  constexpr int kPosts = 10'000;
  EventLoop loop;
  loop.Start("test");
  int count = 0;  // Of the loop's thread.
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int post = 0; post < kPosts; ++post) loop.Post([&] { ++count; });
    });
  }
  for (std::thread& thread : threads) thread.join();
  loop.Stop();
  EXPECT_EQ(count, 4 * kPosts) << "all were posted before Stop()";
}

TEST(EventLoop, TimersRunByTimeAndNeverEarly) {
  EventLoop loop;
  std::vector<int> order;
  const Instant start = loop.Now();
  const TimerId cancelled = loop.RunAfter(milliseconds(5), [] { FAIL() << "was cancelled"; });
  loop.RunAfter(milliseconds(20), [&] {
    EXPECT_GE(loop.Now() - start, milliseconds(20));
    order.push_back(2);
    loop.Stop();
  });
  loop.RunAfter(milliseconds(10), [&] {
    order.push_back(1);
    loop.CancelTimer(cancelled);
  });
  loop.CancelTimer(cancelled);
  loop.CancelTimer(kNoTimer);
  loop.Run();
  EXPECT_THAT(order, ElementsAre(1, 2));
}

TEST(EventLoop, TasksPostedBeforeStopRunLaterOnesDoNot) {
  EventLoop loop;
  auto token = std::make_shared<int>();
  int runs = 0;
  loop.Post([&] {
    loop.Stop();
    ++runs;
    const int64_t uses = token.use_count();
    loop.Post([token] { FAIL() << "posted after Stop()"; });
    EXPECT_EQ(token.use_count(), uses) << "destroyed at once";
  });
  loop.Post([&, token] { ++runs; });
  loop.RunAfter(std::chrono::hours(1), [token] { FAIL() << "never due"; });
  loop.Run();
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(token.use_count(), 1) << "timers are destroyed with the loop's end";
}

TEST(EventLoop, NeverStartedLoopDestroysItsTasks) {
  auto token = std::make_shared<int>();
  {
    EventLoop loop;
    loop.Post([token] {});
    loop.RunAfter(milliseconds(1), [token] {});
  }
  EXPECT_EQ(token.use_count(), 1);
}

TEST(EventLoop, WatchesDescriptors) {
  EventLoop loop;
  loop.Start("test");
  Pipe pipe;
  std::promise<void> twice;
  int calls = 0;
  RunOn(loop, [&] {
    EXPECT_TRUE(loop.WatchFd(pipe.read_end.get(), EPOLLIN,
                             [&](uint32_t events) {
                               EXPECT_NE(events & EPOLLIN, 0u);
                               pipe.Read();
                               if (++calls == 2) twice.set_value();
                             })
                    .ok());
    EXPECT_FALSE(loop.WatchFd(pipe.read_end.get(), EPOLLIN, [](uint32_t) {}).ok())
        << "one watch each";
  });
  pipe.Write();
  pipe.Write();
  twice.get_future().wait();
  RunOn(loop, [&] { loop.UnwatchFd(pipe.read_end.get()); });
  pipe.Write();
  RunOn(loop, [] {});
  RunOn(loop, [&] { EXPECT_EQ(calls, 2); });
}

TEST(EventLoop, UpdateChangesTheEvents) {
  EventLoop loop;
  Pipe pipe;
  std::vector<uint32_t> seen;
  ASSERT_TRUE(loop.WatchFd(pipe.write_end.get(), 0,
                           [&](uint32_t events) {
                             seen.push_back(events);
                             loop.UnwatchFd(pipe.write_end.get());
                             loop.Stop();
                           })
                  .ok());
  loop.Post([&] { loop.UpdateFd(pipe.write_end.get(), EPOLLOUT); });
  loop.Run();
  EXPECT_THAT(seen, ElementsAre(EPOLLOUT));
}

// Goal:    nothing runs for a descriptor after UnwatchFd(), not even what epoll has handed out
//          already. Method: two readable pipes in one round; whichever callback comes first
//          unwatches both, closes both, and watches a new pipe that gets the old numbers.
TEST(EventLoop, UnwatchCoversEventsOfTheSameRound) {
  EventLoop loop;
  auto first = std::make_unique<Pipe>();
  auto second = std::make_unique<Pipe>();
  first->Write();
  second->Write();
  std::unique_ptr<Pipe> third;
  auto token = std::make_shared<int>();
  int calls = 0;
  const auto callback = [&, token](uint32_t) {
    ++calls;
    loop.UnwatchFd(first->read_end.get());
    loop.UnwatchFd(second->read_end.get());
    first.reset();
    second.reset();
    third = std::make_unique<Pipe>();
    EXPECT_TRUE(
        loop.WatchFd(third->read_end.get(), EPOLLIN, [](uint32_t) { FAIL() << "is empty"; }).ok());
    EXPECT_GE(token.use_count(), 1) << "the running callback is alive";
    loop.Post([&] { loop.Stop(); });
  };
  ASSERT_TRUE(loop.WatchFd(first->read_end.get(), EPOLLIN, callback).ok());
  ASSERT_TRUE(loop.WatchFd(second->read_end.get(), EPOLLIN, callback).ok());
  loop.Run();
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, HangUpIsReportedUnasked) {
  EventLoop loop;
  Pipe pipe;
  pipe.write_end.Reset();
  ASSERT_TRUE(loop.WatchFd(pipe.read_end.get(), 0,
                           [&](uint32_t events) {
                             EXPECT_NE(events & EPOLLHUP, 0u);
                             loop.UnwatchFd(pipe.read_end.get());
                             loop.Stop();
                           })
                  .ok());
  loop.Run();
}

TEST(EventLoop, WhatCannotBePolledIsAnError) {
  EventLoop loop;
  const UniqueFd file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(loop.WatchFd(file.get(), EPOLLIN, [](uint32_t) {}).ok());
  EXPECT_EQ(loop.WatchFd(-1, EPOLLIN, [](uint32_t) {}).code(), StatusCode::kInvalidArgument);
  loop.UnwatchFd(12345);
}

// A task that posts itself for ever starves neither timers nor descriptors.
TEST(EventLoop, IsFair) {
  EventLoop loop;
  Pipe pipe;
  pipe.Write();
  bool timer_ran = false;
  bool fd_ran = false;
  std::function<void()> again = [&] {
    if (timer_ran && fd_ran) return loop.Stop();
    loop.Post(again);
  };
  loop.Post(again);
  loop.RunAfter(milliseconds(1), [&] { timer_ran = true; });
  ASSERT_TRUE(loop.WatchFd(pipe.read_end.get(), EPOLLIN, [&](uint32_t) { fd_ran = true; }).ok());
  loop.Run();
  EXPECT_TRUE(timer_ran && fd_ran);
}

TEST(EventLoop, CallbacksMayUseTheLoopWhenTheyAreDestroyed) {
  struct Owner {
    EventLoop* loop;
    TimerId timer;
    Owner(EventLoop* its_loop, TimerId its_timer) : loop(its_loop), timer(its_timer) {}
    ~Owner() {
      loop->CancelTimer(timer);
      loop->Post([] { FAIL() << "the loop has ended"; });
    }
  };
  EventLoop loop;
  const TimerId other = loop.RunAfter(std::chrono::hours(2), [] {});
  loop.RunAfter(std::chrono::hours(1), [owner = std::make_shared<Owner>(&loop, other)] {});
  loop.Post([&] { loop.Stop(); });
  loop.Run();
}

TEST(EventLoopDeathTest, ForeignThreadsMustPost) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        EventLoop loop;
        loop.Start("test");
        loop.RunAfter(milliseconds(1), [] {});
      },
      "use Post");
}

}  // namespace
}  // namespace backstay
