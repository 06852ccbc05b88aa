#include "examples/rounds.h"

#include <fstream>
#include <optional>
#include <stdexcept>

#include "gtest/gtest.h"
#include "tests/unit/examples/temporary_directory.h"

namespace backstay::example {
namespace {

using std::chrono::milliseconds;

// Waits for one look only.
std::optional<Round> Look(const std::filesystem::path& directory, const std::string& member,
                          uint64_t number_min) {
  return Rounds(directory, member).Wait(number_min, milliseconds(0), [](milliseconds) {
    FAIL() << "waited beyond the deadline";
  });
}

TEST(Rounds, GivesTheNewestRoundAndThisMembersRankInIt) {
  TemporaryDirectory directory;
  Rounds::Publish(directory.path(), 9, {"a", "b"});
  Rounds::Publish(directory.path(), 10, {"b", "c", "a"});
  const std::optional<Round> round = Look(directory.path(), "a", 1);
  ASSERT_TRUE(round);
  EXPECT_EQ(round->number, 10u);
  EXPECT_EQ(round->rank, 2);
  EXPECT_EQ(round->world_size, 3);
}

TEST(Rounds, WaitsForARoundThatIsNewEnough) {
  TemporaryDirectory directory;
  Rounds::Publish(directory.path(), 1, {"a"});
  int looks = 0;
  const std::optional<Round> round =
      Rounds(directory.path(), "a").Wait(2, milliseconds(60000), [&](milliseconds) {
        if (++looks == 3) Rounds::Publish(directory.path(), 2, {"b", "a"});
      });
  ASSERT_TRUE(round);
  EXPECT_EQ(looks, 3);
  EXPECT_EQ(round->rank, 1);
}

TEST(Rounds, GivesUpAtTheDeadline) {
  TemporaryDirectory directory;
  Rounds::Publish(directory.path(), 1, {"a"});
  EXPECT_FALSE(Look(directory.path(), "a", 2));
}

TEST(Rounds, SaysSoWhenLeftOut) {
  TemporaryDirectory directory;
  Rounds::Publish(directory.path(), 1, {"a"});
  EXPECT_THROW((void)Look(directory.path(), "b", 1), std::runtime_error);
}

TEST(Rounds, IgnoresFilesThatAreNoRounds) {
  TemporaryDirectory directory;
  for (const char* name : {".round-7", "round-", "round-8x", "round--9", "gloo"}) {
    std::ofstream(directory.path() / name) << "a\n";
  }
  EXPECT_EQ(Rounds(directory.path(), "a").Newest(), std::nullopt);
  Rounds::Publish(directory.path(), 3, {"a"});
  EXPECT_EQ(Rounds(directory.path(), "a").Newest(), 3u);
}

}  // namespace
}  // namespace backstay::example
