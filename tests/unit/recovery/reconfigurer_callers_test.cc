// Who may leave a generation and open the next one, and whose call counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "recovery/callers.h"
#include "tests/unit/recovery/reconfigurer_fixture.h"

namespace backstay::testing {
namespace {

using ::testing::HasSubstr;

// Attack: a second set of trainers opens the job's next generation while the first one trains.
TEST_F(ReconfigurerTest, StrangersDoNotStealTheGeneration) {
  StartJob();
  cluster_.node("c").trainers.resize(2);
  cluster_.node("c").trainers[0].set_trainer(900);
  cluster_.node("c").trainers[1].set_trainer(901);
  const auto first = cluster_.Call("u2", 0, "c", 0, 5000, /*trainer=*/900);
  const auto second = cluster_.Call("u2", 1, "c", 0, 5000, /*trainer=*/901);
  const Result<wire::Reply> reply = cluster_.Wait(first);
  EXPECT_EQ(CodeOf(reply), StatusCode::kStale);
  EXPECT_THAT(reply.status().message(), HasSubstr("alive on"));
  EXPECT_EQ(CodeOf(cluster_.Wait(second)), StatusCode::kStale);
  EXPECT_EQ(cluster_.ReadRecord().generation(), 1u);
}

TEST_F(ReconfigurerTest, ARestartOfAllRanksWaitsForTheOldTrainersToBeGone) {
  StartJob();
  Commit(10);
  cluster_.node("a").trainers[0].set_trainer(900);
  cluster_.node("a").trainers[0].set_generation(0);
  const auto first = cluster_.Call("u2", 0, "a", 0, 20'000, 900);
  wire::LiveTrainer fresh = cluster_.node("b").trainers[0];
  fresh.set_trainer(901);
  fresh.set_generation(0);
  cluster_.node("b").trainers.push_back(fresh);
  const auto second = cluster_.Call("u2", 1, "b", 0, 20'000, 901);
  cluster_.executor().RunFor(std::chrono::seconds(3));
  EXPECT_FALSE(first->has_value());  // The old trainer on "b" still lives.
  cluster_.node("b").trainers.erase(cluster_.node("b").trainers.begin());
  EXPECT_TRUE(cluster_.Wait(first).ok());
  EXPECT_TRUE(cluster_.Wait(second).ok());
}

// "I could not find out" whether a trainer lives is not "there is none".
TEST_F(ReconfigurerTest, ANodeThatWasNotHeardMayHaveTrainers) {
  StartJob();
  cluster_.node("b").answers = false;
  cluster_.Elect();
  cluster_.Admit(0, "a", 900);
  const auto first = cluster_.Call("u2", 0, "a", 0, 3000, 900);
  const auto second = cluster_.Call("u2", 1, "a", 0, 3000, 901);
  EXPECT_FALSE(cluster_.Wait(first).ok());
  EXPECT_FALSE(cluster_.Wait(second).ok());
  EXPECT_EQ(cluster_.ReadRecord().generation(), 1u);
}

// Attack: uuid 1 arrives late, after uuid 2.
TEST_F(ReconfigurerTest, ALateCallOfASupersededUuidIsStale) {
  StartJob();
  const auto early = cluster_.Call("u2", 0, "a", 1);
  const auto later = cluster_.Call("u3", 0, "a", 1);
  EXPECT_EQ(CodeOf(cluster_.Wait(early)), StatusCode::kStale);
  const auto late = cluster_.Call("u2", 0, "a", 1);
  EXPECT_EQ(CodeOf(cluster_.Wait(late)), StatusCode::kStale);
  const auto other = cluster_.Call("u2", 1, "b", 1);
  EXPECT_EQ(CodeOf(cluster_.Wait(other)), StatusCode::kStale);
  cluster_.Call("u3", 1, "b", 1);
  EXPECT_TRUE(cluster_.Wait(later).ok());
  // Also a new leader knows it: the record does.
  cluster_.Elect();
  cluster_.AdmitAll();
  EXPECT_EQ(CodeOf(cluster_.Wait(cluster_.Call("u2", 1, "b", 1))), StatusCode::kStale);
}

// Attack: uuid 1 arrives for the first time when uuid 2 was decided and is forgotten. In a world of
// one rank that one call is the whole reconfiguration.
TEST_F(ReconfigurerTest, ACallThatCameAfterALaterOneWasDecidedClosesNothing) {
  cluster_.ranks = 1;
  cluster_.Elect();
  ASSERT_TRUE(cluster_.Wait(cluster_.Admit(0, "a")).ok());
  const auto resume = [this](const Result<wire::Reply>& reply) {
    ASSERT_TRUE(reply.ok()) << reply.status();
    cluster_.Verify(reply->reconfigure(), 0, "a");
    ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.ReadRecord().decision().resumed(); }));
    cluster_.node("a").trainers[0].set_generation(reply->reconfigure().generation());
  };
  resume(cluster_.Wait(cluster_.Call("u1", 0, "a", 0)));
  const wire::Request late = cluster_.MakeCall("u2", 0, "a", 1);
  const Result<wire::Reply> later = cluster_.Wait(cluster_.Call("u3", 0, "a", 1));
  ASSERT_TRUE(later.ok()) << later.status();
  // Before the node has told of the later call, and before that one has resumed.
  cluster_.node("a").trainers[0].set_last_call(0);
  EXPECT_EQ(CodeOf(cluster_.Wait(cluster_.Ask("a", late))), StatusCode::kStale);
  resume(later);
  EXPECT_EQ(CodeOf(cluster_.Wait(cluster_.Ask("a", late))), StatusCode::kStale);
  // A new leader has it from the node.
  wire::Request admission = cluster_.MakeAdmission(0, 0);
  wire::LiveTrainer& trainer = cluster_.node("a").trainers[0];
  trainer.set_last_call(late.reconfigure().call() + 1);
  *admission.mutable_admit_shard()->mutable_trainer() = trainer;
  cluster_.Elect();
  ASSERT_TRUE(cluster_.Wait(cluster_.Ask("a", admission)).ok());
  const auto again = cluster_.Ask("a", late);
  EXPECT_EQ(CodeOf(cluster_.Wait(again)), StatusCode::kStale);
  EXPECT_EQ(cluster_.ReadRecord().generation(), 2u);
  EXPECT_EQ(cluster_.ReadRecord().closing_uuid(), "");
}

// Attack: a rank's service starts again while it waits, and its trainer, now under another number,
// begins another reconfiguration. The others waited for it in the first one until their deadlines.
TEST(Callers, ALaterClaimantOfARankEndsWhatTheEarlierOneCalledFor) {
  recovery::Callers callers;
  const Instant now = Instant() + std::chrono::seconds(1);
  std::map<std::string, StatusCode> answers;
  const auto call = [&](const std::string& uuid, uint32_t rank, uint64_t trainer,
                        bool is_claimant) {
    wire::Reconfigure request;
    request.set_uuid(uuid);
    request.set_rank(rank);
    request.set_world_size(3);
    request.set_shard_id(std::to_string(rank));
    request.set_trainer(trainer);
    request.set_call(1);
    request.set_timeout_ms(1000);
    const std::string name = uuid + "/" + std::to_string(rank);
    callers.Add({NodeId("a"), Incarnation(1)}, request, is_claimant, now,
                [&answers, name](const Result<wire::Reply>& reply) {
                  answers[name] = reply.status().code();
                });
  };
  call("u1", 0, 100, true);
  call("u1", 1, 101, true);
  callers.DropGone([](recovery::Caller& caller) { return caller.request.trainer() == 100; });
  EXPECT_EQ(answers.erase("u1/0"), 1u);
  call("u2", 0, 500, false);  // A stranger says nothing of the rank.
  EXPECT_TRUE(answers.empty());
  call("u3", 0, 900, true);
  EXPECT_EQ(answers, (std::map<std::string, StatusCode>{{"u1/1", StatusCode::kStale},
                                                        {"u2/0", StatusCode::kStale}}));
  call("u1", 2, 102, true);
  EXPECT_EQ(answers["u1/2"], StatusCode::kStale);
  EXPECT_EQ(callers.groups().size(), 1u);
}

// Attack: a split job whose halves steal the generation from each other.
TEST_F(ReconfigurerTest, HalvesOfASplitJobGetNothing) {
  StartJob();
  const auto first = cluster_.Call("left", 0, "a", 1, 3000);
  const auto second = cluster_.Call("right", 1, "b", 1, 3000);
  EXPECT_EQ(CodeOf(cluster_.Wait(first)), StatusCode::kDeadline);
  EXPECT_EQ(CodeOf(cluster_.Wait(second)), StatusCode::kDeadline);
  EXPECT_EQ(cluster_.ReadRecord().generation(), 1u);
  EXPECT_EQ(cluster_.ReadRecord().closing_uuid(), "");
}

TEST_F(ReconfigurerTest, ARankWhoseTrainerDiesWhileItWaitsIsMissingAgain) {
  StartJob();
  const auto first = cluster_.Call("u2", 0, "a", 1);
  cluster_.node("a").trainers.clear();
  EXPECT_EQ(CodeOf(cluster_.Wait(first)), StatusCode::kUnavailable);
  const auto second = cluster_.Call("u2", 1, "b", 1, 2000);
  const Result<wire::Reply> reply = cluster_.Wait(second);
  EXPECT_THAT(reply.status().message(), HasSubstr("rank 0 has not called"));
}

TEST_F(ReconfigurerTest, RanksThatDisagreeGetAnErrorAndNothingHasChanged) {
  StartJob();
  wire::Request request = cluster_.MakeCall("u2", 0, "a", 1);
  request.mutable_reconfigure()->set_mode(1);
  request.mutable_reconfigure()->set_exact_step(5);
  const auto first = cluster_.Ask("a", request);
  const auto second = cluster_.Call("u2", 1, "b", 1);
  EXPECT_EQ(CodeOf(cluster_.Wait(first)), StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(cluster_.Wait(second)), StatusCode::kInvalidArgument);
  EXPECT_EQ(cluster_.ReadRecord().closing_uuid(), "");
}

TEST_F(ReconfigurerTest, AnotherWorldSizeIsNotSupportedYet) {
  StartJob();
  Commit(10);
  wire::Request request = cluster_.MakeCall("u2", 0, "a", 1);
  request.mutable_reconfigure()->set_world_size(1);
  const Result<wire::Reply> reply = cluster_.Wait(cluster_.Ask("a", request));
  EXPECT_EQ(CodeOf(reply), StatusCode::kInvalidArgument);
  EXPECT_THAT(reply.status().message(), HasSubstr("resharding is not supported yet"));
}

TEST_F(ReconfigurerTest, ACallThatIsRepeatedIsAnsweredOnce) {
  StartJob();
  const auto first = cluster_.Call("u2", 0, "a", 1);
  const auto again = cluster_.Call("u2", 0, "a", 1);
  EXPECT_EQ(CodeOf(cluster_.Wait(first)), StatusCode::kUnavailable);
  cluster_.Call("u2", 1, "b", 1);
  EXPECT_TRUE(cluster_.Wait(again).ok());
}

}  // namespace
}  // namespace backstay::testing
