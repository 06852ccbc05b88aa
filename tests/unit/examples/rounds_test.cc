#include "examples/rounds.h"

#include <fstream>
#include <future>
#include <stdexcept>

#include "gtest/gtest.h"
#include "tests/unit/examples/temporary_directory.h"

namespace backstay::example {
namespace {

using std::chrono::milliseconds;

TEST(Rounds, GivesTheNewestRoundAndThisMembersRankInIt) {
  TemporaryDirectory directory;
  Rounds::Publish(directory.path(), 9, {"a", "b"});
  Rounds::Publish(directory.path(), 10, {"b", "c", "a"});
  const Round round = Rounds(directory.path(), "a").Wait(1, milliseconds(0));
  EXPECT_EQ(round.number, 10u);
  EXPECT_EQ(round.rank, 2);
  EXPECT_EQ(round.world_size, 3);
}

TEST(Rounds, WaitsForARoundThatIsNewEnough) {
  TemporaryDirectory directory;
  Rounds::Publish(directory.path(), 1, {"a"});
  auto waited = std::async(std::launch::async, [&] {
    return Rounds(directory.path(), "a").Wait(2, milliseconds(30000)).number;
  });
  Rounds::Publish(directory.path(), 2, {"a"});
  EXPECT_EQ(waited.get(), 2u);
}

TEST(Rounds, SaysSoAtTheDeadlineOrWhenLeftOut) {
  TemporaryDirectory directory;
  Rounds::Publish(directory.path(), 1, {"a"});
  EXPECT_THROW(Rounds(directory.path(), "a").Wait(2, milliseconds(0)), std::runtime_error);
  EXPECT_THROW(Rounds(directory.path(), "b").Wait(1, milliseconds(0)), std::runtime_error);
}

TEST(Rounds, IgnoresFilesThatAreNoRounds) {
  TemporaryDirectory directory;
  for (const char* name : {".round-7", "round-", "round-8x", "round--9", "gloo"}) {
    std::ofstream(directory.path() / name) << "a\n";
  }
  EXPECT_THROW(Rounds(directory.path(), "a").Wait(0, milliseconds(0)), std::runtime_error);
  Rounds::Publish(directory.path(), 3, {"a"});
  EXPECT_EQ(Rounds(directory.path(), "a").Wait(0, milliseconds(0)).number, 3u);
}

}  // namespace
}  // namespace backstay::example
