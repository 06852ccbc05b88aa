// Whole clusters from a seed: faults at random moments of saving, committing, restoring and
// repairing. The fault model and how to replay a seed: docs/simulation.md.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/cluster/sim_cluster.h"

namespace backstay::sim {
namespace {

constexpr Duration kStartLimit = std::chrono::seconds(30);
// Far beyond what anything needs that goes on by itself, and short of the deadlines at which the
// leader gives a save up (120 s) or orders a repair elsewhere (60 s): what only that frees was
// stuck.
constexpr Duration kRecoveryLimit = std::chrono::seconds(45);
constexpr Duration kProtectLimit = std::chrono::seconds(45);
constexpr uint64_t kFixedSeeds = 195;
constexpr uint64_t kFreshSeeds = 25;
constexpr int kFaultsPerRun = 3;
// A link that is slower is as good as cut.
constexpr uint64_t kSlowestBytesPerSecond = 500'000;

// How often rare branches ran, over all seeds of the process.
struct Reached {
  uint64_t commits = 0;
  uint64_t above_floor = 0;
  uint64_t leader_changes = 0;
  uint64_t dropped_messages = 0;
  uint64_t duplicated_messages = 0;
  uint64_t cut_messages = 0;
  uint64_t corrupted_chunks = 0;
  uint64_t stale_pulls = 0;
  uint64_t stalled_pulls = 0;
  uint64_t kills_while_restoring = 0;
  uint64_t moves = 0;
};
Reached g_reached;

enum class Fault {
  kKillNode,
  kKillTrainer,
  kRestartNode,
  kCutOff,
  kMetadataDown,
  kLeaderKilled,
  kDamage,
  kKillTwice,
  kStall,
  kSlow,
  kDamageAndKill,
  kMetadataUnsure,
  kCount,
};

ClusterOptions OptionsOf(Random& random) {
  ClusterOptions options;
  options.world_size = static_cast<uint32_t>(2 + random.Next() % 3);
  options.replicas = static_cast<uint32_t>(1 + random.Next() % 2);
  options.node_count = std::max(options.world_size + 2, options.replicas + 3);
  options.versions = static_cast<uint32_t>(1 + random.Next() % 2);
  options.state_bytes = 8 + random.Next() % 60'000;
  constexpr uint64_t kNetworks[] = {10'000'000'000, 100'000'000, 4'000'000};
  options.network.bytes_per_second = kNetworks[random.Next() % std::size(kNetworks)];
  // Ranks that pass steps over each by itself would hardly ever save the same one over a network
  // that is slower than they save.
  options.saves_block = options.network.bytes_per_second != kNetworks[0] || random.Next() % 2 == 0;
  return options;
}

// One run: train, break something, recover, be protected again; then the same with the next fault.
class Scenario {
 public:
  explicit Scenario(uint64_t seed) : random_(seed ^ 0x5eed), cluster_(seed, OptionsOf(random_)) {}

  void All() {
    ASSERT_TRUE(cluster_.Start(kStartLimit)) << cluster_.Describe();
    MakeNetworkBad();
    for (int i = 0; i < kFaultsPerRun; ++i) {
      TrainUntilCommits(1 + random_.Next() % 3);
      if (::testing::Test::HasFatalFailure()) return;
      cluster_.RunFor(std::chrono::microseconds(random_.Next() % 40'000));
      OneFault();
      if (::testing::Test::HasFatalFailure() || is_lost_) return;
    }
    cluster_.control().SetFaults({});
    cluster_.data().SetCorruptPerMillion(0);
    TrainUntilCommits(2);
    cluster_.AuditRest();
    Count();
  }

  SimCluster& cluster() { return cluster_; }

 private:
  void MakeNetworkBad() {
    ControlFaults faults;
    faults.delay_max = std::chrono::microseconds(200 + random_.Next() % 2000);
    faults.drops_per_million = static_cast<uint32_t>(random_.Next() % 20'000);
    faults.duplicates_per_million = static_cast<uint32_t>(random_.Next() % 20'000);
    cluster_.control().SetFaults(faults);
    cluster_.data().SetCorruptPerMillion(static_cast<uint32_t>(random_.Next() % 3'000));
    cluster_.data().SetReleaseLossPerMillion(100'000);
  }

  void TrainUntilCommits(uint64_t count) {
    const uint64_t before = cluster_.auditor().reached().commits;
    ASSERT_TRUE(cluster_.RunUntil(
        [&] {
          return cluster_.CommittedAfter(before + count - 1) ||
                 !cluster_.auditor().violations().empty();
        },
        kRecoveryLimit))
        << "no " << count << " commits after " << before << ": " << cluster_.Describe();
    AssertNoViolation();
  }

  void AssertNoViolation() {
    const auto& violations = cluster_.auditor().violations();
    ASSERT_TRUE(violations.empty()) << violations.front() << "\n" << cluster_.Describe();
  }

  size_t NodeWithTrainer() {
    for (;;) {
      const std::optional<size_t> node =
          cluster_.NodeOf(random_.Next() % cluster_.options().world_size);
      if (node && cluster_.alive(*node)) return *node;
    }
  }

  // A fault that the policy promises to survive: the auditor counts it.
  void Lose(size_t node) {
    cluster_.auditor().OnNodesLost(1, cluster_.options().replicas);
    cluster_.KillNode(node);
    dead_.push_back(node);
  }

  void OneFault() {
    switch (static_cast<Fault>(random_.Next() % static_cast<uint64_t>(Fault::kCount))) {
      case Fault::kKillNode:
        Lose(NodeWithTrainer());
        break;
      case Fault::kKillTrainer:
        cluster_.KillTrainer(random_.Next() % cluster_.options().world_size);
        break;
      case Fault::kRestartNode: {
        const size_t node = NodeWithTrainer();
        Lose(node);
        cluster_.RunFor(std::chrono::milliseconds(random_.Next() % 1500));
        cluster_.RestartNode(node);
        std::erase(dead_, node);
        break;
      }
      case Fault::kCutOff:
        CutOff();
        break;
      case Fault::kMetadataDown:
        cluster_.SetMetadataDown(true);
        cluster_.RunFor(std::chrono::milliseconds(random_.Next() % 400));
        cluster_.SetMetadataDown(false);
        break;
      case Fault::kLeaderKilled:
        if (const std::optional<size_t> leader = cluster_.LeaderNode();
            leader && cluster_.alive(*leader))
          Lose(*leader);
        break;
      case Fault::kDamage:
        // A copy is lost, though nobody knows before somebody reads it.
        cluster_.auditor().OnNodesLost(1, cluster_.options().replicas);
        cluster_.DamageMemory(NodeWithTrainer());
        break;
      case Fault::kKillTwice:
        KillTwice();
        break;
      case Fault::kStall: {
        const NodeId node = cluster_.id(NodeWithTrainer());
        cluster_.data().SetStalled(node, true);
        cluster_.RunFor(std::chrono::milliseconds(random_.Next() % 12'000));
        cluster_.data().SetStalled(node, false);
        break;
      }
      case Fault::kSlow:
        // For the rest of the run.
        cluster_.data().SetSlowdown(
            cluster_.id(NodeWithTrainer()),
            static_cast<uint32_t>(
                2 + random_.Next() %
                        (cluster_.options().network.bytes_per_second / kSlowestBytesPerSecond)));
        break;
      case Fault::kDamageAndKill:
        // Copies are bad, which their readers find when the others are gone.
        for (uint64_t left = 1 + random_.Next() % 4; left > 0; --left) {
          cluster_.auditor().OnNodesLost(1, cluster_.options().replicas);
          cluster_.DamageMemory(random_.Next() % cluster_.node_count());
        }
        Lose(NodeWithTrainer());
        break;
      case Fault::kMetadataUnsure:
        cluster_.MakeMetadataUnsure(cluster_.LeaderNode().value_or(0));
        cluster_.KillTrainer(random_.Next() % cluster_.options().world_size);
        break;
      case Fault::kCount:
        break;
    }
    Recover();
  }

  void CutOff() {
    const size_t node = NodeWithTrainer();
    cluster_.auditor().OnNodesLost(1, cluster_.options().replicas);
    cluster_.CutOff(node);
    cluster_.RunFor(std::chrono::milliseconds(random_.Next() % 3000));
    cluster_.Heal(node);
  }

  // The second one dies while the first is being recovered from; only where the policy covers both.
  void KillTwice() {
    Lose(NodeWithTrainer());
    if (cluster_.options().replicas < 2) return;
    cluster_.RunFor(std::chrono::milliseconds(random_.Next() % 300));
    if (!cluster_.training()) g_reached.kills_while_restoring += 1;
    for (size_t node = 0; node < cluster_.node_count(); ++node) {
      if (cluster_.alive(node)) return Lose(node);
    }
  }

  void Recover() {
    const bool trains = cluster_.RunUntil(
        [&] {
          is_lost_ = cluster_.auditor().beyond_policy() && cluster_.ToldOfLoss();
          return cluster_.training() || is_lost_ || !cluster_.auditor().violations().empty();
        },
        kRecoveryLimit);
    AssertNoViolation();
    if (is_lost_) return;
    ASSERT_TRUE(trains) << "not training again: " << cluster_.Describe();
    for (const size_t node : dead_) cluster_.RestartNode(node);
    dead_.clear();
    ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.FullyProtected(); }, kProtectLimit))
        << "not protected again: " << cluster_.Describe();
    if (!cluster_.HasHiddenDamage()) cluster_.auditor().OnProtectedAgain();
  }

  void Count() {
    g_reached.commits += cluster_.auditor().reached().commits;
    g_reached.above_floor += cluster_.auditor().reached().resumes_above_floor;
    g_reached.moves += cluster_.auditor().reached().moves;
    g_reached.leader_changes += cluster_.leader_changes();
    g_reached.dropped_messages += cluster_.control().counters().dropped;
    g_reached.duplicated_messages += cluster_.control().counters().duplicated;
    g_reached.cut_messages += cluster_.control().counters().cut;
    g_reached.corrupted_chunks += cluster_.data().counters().chunks_corrupted;
    g_reached.stale_pulls += cluster_.data().counters().pulls_stale;
    g_reached.stalled_pulls += cluster_.data().counters().pulls_stalled;
  }

  SeededRandom random_;
  SimCluster cluster_;
  std::vector<size_t> dead_;
  bool is_lost_ = false;  // Beyond the policy, and said so: the run is over.
};

std::string ReplayCommand(uint64_t seed) {
  return "replay with: BACKSTAY_SIM_SEED=" + std::to_string(seed) + " sim_cluster_test";
}

std::optional<uint64_t> FromEnvironment(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? std::nullopt : std::optional(std::strtoull(text, nullptr, 10));
}

uint64_t FreshSeed() {
  static std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

// Which seeds to run: one, a run of fixed ones and some fresh ones, or fresh ones for some time.
class Seeds {
 public:
  std::optional<uint64_t> Next() {
    if (only_) return std::exchange(only_, std::nullopt);
    if (is_single_) return std::nullopt;
    if (minutes_) {
      const auto passed = std::chrono::steady_clock::now() - started_;
      if (passed >= std::chrono::minutes(*minutes_)) return std::nullopt;
      return FreshSeed();
    }
    if (fixed_ <= last_fixed_) return fixed_++;
    return fresh_left_-- > 0 ? std::optional(FreshSeed()) : std::nullopt;
  }
  bool is_single() const { return is_single_; }

 private:
  std::optional<uint64_t> only_ = FromEnvironment("BACKSTAY_SIM_SEED");
  const bool is_single_ = only_.has_value();
  const std::optional<uint64_t> minutes_ = FromEnvironment("BACKSTAY_SIM_MINUTES");
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  uint64_t fixed_ = FromEnvironment("BACKSTAY_SIM_FIRST").value_or(1);
  const uint64_t last_fixed_ = FromEnvironment("BACKSTAY_SIM_LAST").value_or(kFixedSeeds);
  int64_t fresh_left_ =
      static_cast<int64_t>(FromEnvironment("BACKSTAY_SIM_FRESH").value_or(kFreshSeeds));
};

// Goal:    what docs/design.md says always holds, holds whatever breaks within the policy, and
//          every run comes to rest. Method: fixed seeds and fresh ones, three faults each.
TEST(Cluster, SurvivesWhatThePolicyPromises) {
  Seeds seeds;
  uint64_t count = 0;
  while (const std::optional<uint64_t> seed = seeds.Next()) {
    SCOPED_TRACE(ReplayCommand(*seed));
    Scenario run(*seed);
    run.All();
    if (HasFatalFailure()) return;
    ++count;
  }
  if (seeds.is_single()) return;
  std::cout << count << " seeds reached: " << g_reached.commits << " commits, "
            << g_reached.above_floor << " restores of an uncommitted snapshot, "
            << g_reached.leader_changes << " leader changes, " << g_reached.dropped_messages
            << " messages lost, " << g_reached.duplicated_messages << " repeated, "
            << g_reached.cut_messages << " cut, " << g_reached.corrupted_chunks
            << " chunks corrupted, " << g_reached.stale_pulls << " stale pulls, "
            << g_reached.stalled_pulls << " stalled, " << g_reached.kills_while_restoring
            << " kills while restoring, " << g_reached.moves
            << " moves of all ranks to an older snapshot\n";
  // A rare branch that never ran was not tested.
  EXPECT_GT(g_reached.above_floor, 0u);
  EXPECT_GT(g_reached.leader_changes, 0u);
  EXPECT_GT(g_reached.dropped_messages, 0u);
  EXPECT_GT(g_reached.duplicated_messages, 0u);
  EXPECT_GT(g_reached.cut_messages, 0u);
  EXPECT_GT(g_reached.corrupted_chunks, 0u);
  EXPECT_GT(g_reached.stale_pulls, 0u);
  EXPECT_GT(g_reached.stalled_pulls, 0u);
  EXPECT_GT(g_reached.kills_while_restoring, 0u);
  EXPECT_GT(g_reached.moves, 0u);
}

// Goal:   a seed is a scenario: the same one twice is the same run.
TEST(Cluster, SameSeedSameTrace) {
  uint64_t traces[2] = {};
  for (uint64_t& trace : traces) {
    Scenario run(7);
    run.All();
    if (HasFatalFailure()) return;
    trace = run.cluster().trace();
  }
  EXPECT_EQ(traces[0], traces[1]);
}

// Goal:   the auditor sees what it must: promises broken on purpose are found.
TEST(Auditor, CatchesBrokenPromises) {
  const SnapshotId base{Generation(1), Step(10)};
  {
    Auditor auditor;
    auditor.OnSealed(base, Rank(0), 1, 100);
    auditor.OnVerified(Generation(2), Attempt(1), Rank(0));
    auditor.OnResumed(Generation(2), Attempt(1), Rank(0), 1, base, 1, 101);
    EXPECT_EQ(auditor.violations().size(), 1u) << "other bytes than were sealed";
  }
  {
    Auditor auditor;
    auditor.OnSealed(base, Rank(0), 1, 100);
    auditor.OnSealed({Generation(1), Step(5)}, Rank(1), 1, 200);
    for (const uint64_t rank : {0, 1}) auditor.OnVerified(Generation(2), Attempt(1), Rank(rank));
    auditor.OnResumed(Generation(2), Attempt(1), Rank(0), 2, base, 1, 100);
    auditor.OnResumed(Generation(2), Attempt(1), Rank(1), 2, SnapshotId{Generation(1), Step(5)}, 1,
                      200);
    EXPECT_EQ(auditor.violations().size(), 1u) << "two ranks, two steps";
  }
  {
    Auditor auditor;
    replication::wire::JobRecord record;
    record.set_world_size(1);
    auto* committed = record.add_committed();
    committed->set_generation(1);
    committed->set_step(10);
    committed->set_root("root");
    auditor.OnSealed(base, Rank(0), 1, 100);
    auditor.OnRecord(record);
    EXPECT_TRUE(auditor.violations().empty());
    auditor.OnVerified(Generation(2), Attempt(1), Rank(0));
    auditor.OnResumed(Generation(2), Attempt(1), Rank(0), 1, std::nullopt, 0, 0);
    EXPECT_EQ(auditor.violations().size(), 1u) << "a fresh start over a commit";
  }
  {
    Auditor auditor;
    auditor.OnVerified(Generation(1), Attempt(1), Rank(0));
    auditor.OnResumed(Generation(1), Attempt(1), Rank(0), 2, std::nullopt, 0, 0);
    EXPECT_EQ(auditor.violations().size(), 1u) << "the other rank has nothing yet";
  }
}

}  // namespace
}  // namespace backstay::sim
