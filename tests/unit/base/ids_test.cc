#include "base/ids.h"

#include <gtest/gtest.h>

#include <type_traits>
#include <unordered_set>

namespace backstay {
namespace {

static_assert(!std::is_convertible_v<Step, Generation>, "kinds of numbers never mix");
static_assert(!std::is_convertible_v<uint64_t, Step>);
static_assert(!std::is_convertible_v<NodeId, JobName>);

TEST(Ids, ReadAsPlainWords) {
  const SnapshotId id{.generation = Generation(2), .step = Step(110)};
  EXPECT_EQ(ToString(id), "step 110 of generation 2");
  EXPECT_EQ(ToString(ShardName{JobName("llm"), id, ShardId("3")}),
            "llm/step 110 of generation 2/shard 3");
  EXPECT_EQ(ToString(NodeInstance{NodeId("node-1"), Incarnation(3)}), "node-1 (start 3)");
}

TEST(Ids, OrderByGenerationThenStep) {
  EXPECT_LT((SnapshotId{Generation(1), Step(110)}), (SnapshotId{Generation(2), Step(105)}));
  EXPECT_EQ(Step(4).Next(), Step(5));
}

TEST(Ids, AreHashable) {
  const std::unordered_set<Rank> ranks = {Rank(1), Rank(2), Rank(1)};
  const std::unordered_set<NodeId> nodes = {NodeId("a"), NodeId("a")};
  EXPECT_EQ(ranks.size(), 2u);
  EXPECT_EQ(nodes.size(), 1u);
}

}  // namespace
}  // namespace backstay
