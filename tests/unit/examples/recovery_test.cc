// Goal:   whatever is lost and restored, a run ends with the bits of the undisturbed one.
// Method:  the whole trainer, one thread for each rank, over Gloo and a fake libbackstay that kills
//          a rank on demand; this file plays the launcher.
#include <fstream>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "examples/rounds.h"
#include "examples/run.h"
#include "gtest/gtest.h"
#include "tests/unit/examples/fake_backstay.h"
#include "tests/unit/examples/temporary_directory.h"

namespace backstay::example {
namespace {

constexpr int kWorldSize = 3;
constexpr uint64_t kSteps = 14;
constexpr uint64_t kSaveEvery = 4;

using Events = std::vector<nlohmann::json>;

class Job {
 public:
  Job() {
    std::ofstream text(directory_.path() / "text");
    for (int i = 0; i < 3000; ++i) text << "a peer holds a copy of step " << i * i << '\n';
    std::filesystem::create_directory(directory_.path() / "rendezvous");
  }

  // Runs a rank on a thread; the result is its exit code, or nothing if it was killed.
  std::future<std::optional<int>> Start(const std::string& member, int rank, uint64_t round,
                                        bool with_backstay = true, bool exit_on_fault = false) {
    Options options;
    options.rank = rank;
    options.world_size = kWorldSize;
    options.round = round;
    options.member = member;
    options.rendezvous = (directory_.path() / "rendezvous").string();
    options.text = (directory_.path() / "text").string();
    options.events = EventFile(member);
    options.steps = kSteps;
    options.save_every = kSaveEvery;
    options.service = with_backstay ? "fake" : "none";
    options.exit_on_fault = exit_on_fault;
    return std::async(std::launch::async, [options]() -> std::optional<int> {
      try {
        return RunTrainer(options);
      } catch (const fake::RankKilled&) {
        return std::nullopt;
      }
    });
  }

  void Publish(uint64_t round, const std::vector<std::string>& members) {
    Rounds::Publish(directory_.path() / "rendezvous", round, members);
  }

  Events EventsOf(const std::string& member) const {
    Events events;
    std::ifstream file(EventFile(member));
    for (std::string line; std::getline(file, line);) events.push_back(nlohmann::json::parse(line));
    return events;
  }

 private:
  std::string EventFile(const std::string& member) const {
    return (directory_.path() / (member + ".events")).string();
  }

  TemporaryDirectory directory_;
};

std::vector<nlohmann::json> Named(const Events& events, const std::string& name) {
  std::vector<nlohmann::json> found;
  for (const auto& event : events) {
    if (event["event"] == name) found.push_back(event);
  }
  return found;
}

// The digest over all ranks with which a member finished.
std::string FinalDigest(const Job& job, const std::string& member) {
  const auto finished = Named(job.EventsOf(member), "finished");
  return finished.size() == 1 ? finished[0]["digest_all"].get<std::string>()
                              : "did not finish once";
}

const std::string& UndisturbedDigest() {
  static const std::string digest = [] {
    Job job;
    std::vector<std::future<std::optional<int>>> ranks;
    for (int rank = 0; rank < kWorldSize; ++rank) {
      ranks.push_back(job.Start(std::to_string(rank), rank, 0, /*with_backstay=*/false));
    }
    for (auto& rank : ranks) EXPECT_EQ(rank.get(), kExitDone);
    return FinalDigest(job, "0");
  }();
  return digest;
}

class Recovery : public testing::Test {
 protected:
  // Starts ranks 0, 1 and 2 as members a, b and c.
  void StartAll(fake::Faults faults, bool exit_on_fault = false) {
    fake::Reset(std::move(faults));
    for (int rank = 0; rank < kWorldSize; ++rank) {
      const std::string member(1, static_cast<char>('a' + rank));
      running_[member] = job_.Start(member, rank, 0, true, exit_on_fault);
    }
  }

  // Waits for the rank that the fake kills, and puts `members` together as the next round.
  void ReplaceWhenKilled(const std::string& victim, const std::vector<std::string>& members,
                         const std::string& newcomer) {
    ASSERT_EQ(running_[victim].get(), std::nullopt) << "nobody was killed";
    running_.erase(victim);
    job_.Publish(1, members);
    running_[newcomer] = job_.Start(newcomer, 0, 1);
  }

  void ExpectUndisturbedResult() {
    for (auto& [member, exit_code] : running_) {
      EXPECT_EQ(exit_code.get(), kExitDone) << member;
      EXPECT_EQ(FinalDigest(job_, member), UndisturbedDigest()) << member;
    }
  }

  // The step from which a member's last reconfiguration let it go on.
  uint64_t ResumedStep(const std::string& member) {
    const auto resumed = Named(job_.EventsOf(member), "resumed");
    return resumed.empty() ? UINT64_MAX : resumed.back()["step"].get<uint64_t>();
  }

  Job job_;
  std::map<std::string, std::future<std::optional<int>>> running_;
};

TEST_F(Recovery, SavingChangesNothing) {
  StartAll({});
  ExpectUndisturbedResult();
  EXPECT_EQ(fake::Count().commits, static_cast<int>(kSteps / kSaveEvery));
  EXPECT_EQ(fake::Count().fences, 0);
  EXPECT_EQ(Named(job_.EventsOf("a"), "saved").size(), kSteps / kSaveEvery);
}

TEST_F(Recovery, ALostRankIsReplaced) {
  StartAll({.kill_rank = 1, .kill_step = 12});
  ReplaceWhenKilled("b", {"a", "spare", "c"}, "spare");
  ExpectUndisturbedResult();
  for (const char* member : {"a", "spare", "c"}) EXPECT_EQ(ResumedStep(member), 8u) << member;
  EXPECT_GE(fake::Count().fences, 1);
  EXPECT_EQ(fake::Count().generation, 2u);
}

TEST_F(Recovery, TimelineIsCompleteAndInOrder) {
  StartAll({.kill_rank = 1, .kill_step = 8});
  ReplaceWhenKilled("b", {"a", "spare", "c"}, "spare");
  ExpectUndisturbedResult();
  std::vector<std::string> names;
  int64_t last_ms = 0;
  for (const auto& event : job_.EventsOf("a")) {
    EXPECT_GE(event["unix_ms"].get<int64_t>(), last_ms);
    last_ms = event["unix_ms"];
    names.push_back(event["event"]);
  }
  const auto fault = std::find(names.begin(), names.end(), "fault_seen");
  ASSERT_NE(fault, names.end());
  const std::vector<std::string> expected = {"fault_seen", "round_failed", "reconfigure_begin",
                                             "decided",    "restored",     "resumed",
                                             "first_step"};
  ASSERT_GE(static_cast<size_t>(names.end() - fault), expected.size());
  EXPECT_EQ(std::vector<std::string>(fault, fault + expected.size()), expected);
}

TEST_F(Recovery, SurvivorsMayComeBackUnderOtherNumbers) {
  StartAll({.kill_rank = 0, .kill_step = 8});
  ReplaceWhenKilled("a", {"c", "b", "spare"}, "spare");
  ExpectUndisturbedResult();
  EXPECT_EQ(ResumedStep("c"), 4u);
}

TEST_F(Recovery, AFaultBeforeTheFirstCommitStartsFromTheBeginning) {
  StartAll({.kill_rank = 2, .kill_step = kSaveEvery});
  ReplaceWhenKilled("c", {"a", "b", "spare"}, "spare");
  ExpectUndisturbedResult();
  EXPECT_EQ(ResumedStep("a"), 0u);
}

TEST_F(Recovery, AllRanksMoveToAnOlderStepWhenOneCannotReadItsOwn) {
  StartAll({.kill_rank = 1, .kill_step = 12, .corrupt = {{8, "2"}}});
  ReplaceWhenKilled("b", {"a", "spare", "c"}, "spare");
  ExpectUndisturbedResult();
  for (const char* member : {"a", "spare", "c"}) EXPECT_EQ(ResumedStep(member), 4u) << member;
}

TEST_F(Recovery, AFailedSaveDoesNotStopTraining) {
  StartAll({.no_slot_step = 8});
  ExpectUndisturbedResult();
  EXPECT_EQ(fake::Count().commits, static_cast<int>(kSteps / kSaveEvery) - 1);
  EXPECT_EQ(Named(job_.EventsOf("b"), "save_failed").size(), 1u);
}

TEST_F(Recovery, AllRanksCanBeRestarted) {
  StartAll({.kill_rank = 1, .kill_step = 12}, /*exit_on_fault=*/true);
  EXPECT_EQ(running_["a"].get(), kExitFault);
  EXPECT_EQ(running_["b"].get(), std::nullopt);
  EXPECT_EQ(running_["c"].get(), kExitFault);
  running_.clear();
  job_.Publish(1, {"x", "y", "z"});
  for (const char* member : {"x", "y", "z"}) running_[member] = job_.Start(member, 0, 1);
  ExpectUndisturbedResult();
  EXPECT_EQ(ResumedStep("y"), 8u);
}

}  // namespace
}  // namespace backstay::example
