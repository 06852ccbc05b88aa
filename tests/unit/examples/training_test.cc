// Goal:   a run's result depends on its seed, world size and length only.
// Method:  every rank is a thread with a communicator of its own; runs are repeated, stopped and
//          resumed from a copy of the state, and their digests compared.
#include <gloo/rendezvous/file_store.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "examples/trainer.h"
#include "gtest/gtest.h"
#include "tests/unit/examples/temporary_directory.h"

namespace backstay::example {
namespace {

constexpr uint64_t kSeed = 11;

std::vector<uint8_t> TestText() {
  // Words over a small vocabulary: something to learn, with any licence texts or none.
  const std::vector<std::string> words = {"node ", "peer ", "copy ", "rank ", "step ", "lost\n"};
  std::vector<uint8_t> text;
  Random random(1);
  for (int i = 0; i < 4000; ++i) {
    const std::string& word = words[random.Next() % words.size()];
    text.insert(text.end(), word.begin(), word.end());
  }
  return text;
}

TrainerState InitialState(uint64_t size_mib, size_t rank, size_t world_size) {
  TrainerState state(size_mib, rank, world_size);
  state.Reset(kSeed);
  return state;
}

struct RankResult {
  TrainerState state;
  std::vector<double> losses;
};

// Trains from `start` (or the beginning) up to `steps` on every rank; also checks that all ranks
// saw the same losses.
std::vector<RankResult> Train(size_t world_size, uint64_t steps, uint64_t state_mib = 1,
                              const std::vector<RankResult>* start = nullptr) {
  TemporaryDirectory directory;
  const std::vector<uint8_t> text = TestText();
  std::vector<std::future<RankResult>> ranks;
  for (size_t rank = 0; rank < world_size; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      gloo::rendezvous::FileStore store(directory.path().string());
      Communicator communicator(
          store, "test",
          {.rank = static_cast<int>(rank), .world_size = static_cast<int>(world_size)});
      RankResult result{
          start != nullptr ? (*start)[rank].state : InitialState(state_mib, rank, world_size), {}};
      Trainer trainer(text, kSeed, result.state);
      while (result.state.step < steps) {
        result.losses.push_back(trainer.ComputeGradients(communicator));
        trainer.UpdateWeights(communicator);
        trainer.UpdateTable(communicator);
      }
      return result;
    }));
  }
  std::vector<RankResult> results;
  for (auto& rank : ranks) results.push_back(rank.get());
  for (const RankResult& result : results) {
    EXPECT_EQ(result.losses, results[0].losses);
    EXPECT_EQ(result.state.weights, results[0].state.weights);
  }
  return results;
}

std::vector<std::string> Digests(const std::vector<RankResult>& results) {
  std::vector<std::string> digests;
  for (const RankResult& result : results) digests.push_back(result.state.Digest());
  return digests;
}

class Training : public testing::TestWithParam<size_t> {};

TEST_P(Training, RepeatsBitForBit) {
  const std::vector<std::string> first = Digests(Train(GetParam(), 12));
  EXPECT_EQ(first, Digests(Train(GetParam(), 12)));
  for (size_t rank = 1; rank < first.size(); ++rank) EXPECT_NE(first[rank], first[0]);
}

TEST_P(Training, ResumedRunEqualsTheUndisturbedOne) {
  const std::vector<std::string> undisturbed = Digests(Train(GetParam(), 12));
  const std::vector<RankResult> stopped = Train(GetParam(), 5);
  EXPECT_NE(Digests(stopped), undisturbed);
  EXPECT_EQ(Digests(Train(GetParam(), 12, 1, &stopped)), undisturbed);
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, Training, testing::Values(1, 2, 3, 4));

TEST(TrainingProgress, LossFallsFarBelowGuessing) {
  const std::vector<RankResult> results = Train(2, 60);
  EXPECT_GT(results[0].losses.front(), 4.5);
  EXPECT_LT(results[0].losses.back(), 1.5);
}

TEST(TrainerState, HasTheSizeAskedFor) {
  for (const uint64_t mib : {1, 3, 20}) {
    const TrainerState state(mib, 1, 4);
    const size_t floats = state.weights.size() + state.moment1.size() + state.moment2.size() +
                          state.table.rows.size() * 3;
    EXPECT_NEAR(static_cast<double>(floats * sizeof(float)), static_cast<double>(mib << 20), 4096);
  }
}

TEST(TrainerState, EveryTensorOfItChangesInEveryStep) {
  const std::vector<RankResult> before = Train(2, 1, 3);
  const std::vector<RankResult> after = Train(2, 2, 3, &before);
  for (size_t rank = 0; rank < before.size(); ++rank) {
    const TrainerState& a = before[rank].state;
    const TrainerState& b = after[rank].state;
    EXPECT_NE(a.weights, b.weights);
    EXPECT_NE(a.moment1, b.moment1);
    EXPECT_NE(a.moment2, b.moment2);
    EXPECT_NE(a.table.moment1, b.table.moment1);
    EXPECT_NE(a.random.state(), b.random.state());
    EXPECT_NE(a.cursor, b.cursor);
    // The decay reaches all rows, also those that no n-gram of the batch hit.
    size_t changed = 0;
    for (size_t i = 0; i < a.table.rows.size(); ++i) changed += a.table.rows[i] != b.table.rows[i];
    EXPECT_GT(changed, a.table.rows.size() * 9 / 10);
  }
}

TEST(TrainerState, PlacedAndResetIsAsMadeForThatRank) {
  TrainerState state = InitialState(1, 3, 4);
  state.Place(1, 4);
  state.Reset(kSeed);
  EXPECT_EQ(state.Digest(), InitialState(1, 1, 4).Digest());
}

TEST(TrainerState, DigestSeesEveryPart) {
  const TrainerState state = InitialState(1, 0, 2);
  std::vector<TrainerState> changed(8, state);
  changed[0].step = 1;
  changed[1].cursor = 1;
  changed[2].random.Next();
  changed[3].weights.back() += 1;
  changed[4].moment1.front() += 1;
  changed[5].moment2.back() += 1;
  changed[6].table.rows.back() += 1;
  changed[7].table.moment2.back() += 1;
  for (const TrainerState& other : changed) EXPECT_NE(other.Digest(), state.Digest());
}

TEST(Communicator, APeersDeathEndsACollectiveWithAnError) {
  TemporaryDirectory directory;
  const auto connect = [&](int rank) {
    gloo::rendezvous::FileStore store(directory.path().string());
    return std::make_unique<Communicator>(store, "test",
                                          Communicator::Options{.rank = rank, .world_size = 2});
  };
  // The stores above are gone by the first collective, which does not use them.
  auto other = std::async(std::launch::async, connect, 1);
  const std::unique_ptr<Communicator> communicator = connect(0);
  std::unique_ptr<Communicator> dying = other.get();
  auto collective = std::async(std::launch::async, [&] { return communicator->AllGather(1); });
  dying->Abort();
  EXPECT_THROW(collective.get(), CommunicatorError);
  EXPECT_THROW(communicator->AllGather(1), CommunicatorError);
}

// Says where the first of them lies, so that its bytes can be seen coming in.
struct Page {
  Page() {
    const volatile char* none = nullptr;
    first.compare_exchange_strong(none, bytes.data());
  }

  std::array<char, 4096> bytes = {};
  static inline std::atomic<const volatile char*> first = nullptr;
};

// Not watched by the thread sanitizer: the byte comes from Gloo's own thread, and all that follows
// is the end of this process.
__attribute__((no_sanitize("thread"))) void DieAtFirstByte() {
  while (Page::first == nullptr || *Page::first == 0) std::this_thread::yield();
  std::raise(SIGKILL);
}

// Goal:   a rank that is still sending to a peer learns of its death at once, not at the timeout.
// Method: the peer is a process that kills itself in the middle of a message which no socket's
//         buffer can hold.
TEST(Communicator, APeersDeathIsSeenWhileSendingToIt) {
  constexpr int64_t kPageCount = (int64_t{64} << 20) / sizeof(Page);
  TemporaryDirectory directory;
  gloo::rendezvous::FileStore store(directory.path().string());
  const auto options = [](int rank) {
    return Communicator::Options{
        .rank = rank, .world_size = 2, .timeout = std::chrono::milliseconds(120'000)};
  };
  const pid_t child = fork();  // Before there is a thread.
  ASSERT_GE(child, 0);
  if (child == 0) {
    Communicator communicator(store, "test", options(1));
    const std::thread death(DieAtFirstByte);
    communicator.AllToAll<Page>({}, {0, 0}, {kPageCount, 0});
    _exit(0);
  }
  Communicator communicator(store, "test", options(0));
  std::vector<Page> message(kPageCount);
  message[0].bytes.fill(1);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(
      {
        // What the peer had to say here may all have come before its death: the next exchange
        // sees it.
        communicator.AllToAll<Page>(message, {0, kPageCount}, {0, 0});
        communicator.AllGather(1);
      },
      CommunicatorError);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
}

TEST(Communicator, APeerThatNeverComesIsAnErrorAtTheDeadline) {
  TemporaryDirectory directory;
  gloo::rendezvous::FileStore store(directory.path().string());
  EXPECT_THROW(Communicator(store, "test",
                            {.rank = 0, .world_size = 2, .timeout = std::chrono::milliseconds(50)}),
               CommunicatorError);
}

TEST(Communicator, PartsCoverEverythingOnce) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{7}, size_t{64}}) {
    for (const size_t count : {size_t{1}, size_t{3}, size_t{8}}) {
      size_t next = 0;
      for (size_t i = 0; i < count; ++i) {
        EXPECT_EQ(PartOf(size, i, count).begin, next);
        next = PartOf(size, i, count).end;
      }
      EXPECT_EQ(next, size);
    }
  }
}

}  // namespace
}  // namespace backstay::example
